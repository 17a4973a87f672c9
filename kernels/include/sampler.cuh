// A token from a row of logits, by a block that has all ids of the row or by blocks of a cluster or of several ranks that have some each.
//
// Who includes it says THREADS, of a block, before, and gives `choose` what joins the blocks. Arithmetic and orders: sampler.cu.

#include "types.cuh"

constexpr u32 WARPS = THREADS / 32;
static_assert(WARPS <= 32 && (WARPS & WARPS - 1) == 0, "a reduction reads one value of a warp per lane");
// Bins of a digit of a selection; a thread scans two.
constexpr u32 BINS = 2 * THREADS;
constexpr int DIGIT = THREADS == 1024 ? 11 : 10;
static_assert(BINS == 1u << DIGIT, "a bin for each value of a digit");
// Most likely ids that a row can ask for.
constexpr u32 MAX_TOP = 256;

constexpr float MAX = 3.40282347e+38f;
constexpr float MIN_POSITIVE = 1.17549435e-38f;
constexpr float MIN_TEMPERATURE = 0.01f;
// Unit of masses: sums of weights of at most 1 as integers.
constexpr float MASS_UNIT = 17592186044416.0f;
// Bits of the counts: the token is in the prompt, its number in the reply.
constexpr u32 IN_PROMPT = 0x80000000u;
constexpr u32 IN_REPLY = 0x7fffffffu;

// SamplerRow::rule.
enum Rule : u32 { DRAW, GIVEN, END_IF_RANK_BELOW };
// SamplerRow::options.
constexpr u32 PENALISES = 1;
constexpr u32 MASKED = 2;
constexpr u32 SCORES = 4;
// SamplerRow::commit.
constexpr u32 COUNTS = 1;
constexpr u32 SETS_LAST = 2;
// SamplerOutcome::flags, RowFlags of ops/sample.rs.
constexpr u32 NON_FINITE = 1;
constexpr u32 FLAT = 2;
constexpr u32 ENDED = 4;

// One row to sample from. Lists are ranges of `lists`, in words; ids in them are below V.
struct SamplerRow {
    u64 seed;           // of the noise, with `position`
    u64 position;       // index of the token in its reply
    u32 row;            // row of the logits
    u32 slot;           // its counts are read, its state is written by sampler_commit
    float temperature;  // 0 is greedy
    float top_p;        // in (0, 1]
    float min_p;        // in [0, 1]
    u32 top_k;          // 0 is off
    float repetition;   // read with PENALISES
    float presence;     // read with PENALISES
    float frequency;    // read with PENALISES
    u32 rule;           // DRAW, GIVEN, END_IF_RANK_BELOW
    u32 value;          // GIVEN: the token; END_IF_RANK_BELOW: the rank
    u32 options;        // PENALISES, MASKED, SCORES
    u32 commit;         // COUNTS, SETS_LAST
    u32 bias;           // pairs (id, f32 bits), equal ids adjacent
    u32 num_biases;
    u32 stops;          // ids, of equal logits the first one wins
    u32 num_stops;
    u32 forbidden;      // ids
    u32 num_forbidden;
    u32 mask;           // bit id % 32 of word id / 32 allows id; ids beyond the last word are not allowed
    u32 num_mask_words;
    u32 mask_first;     // the drawn id where no allowed id has a finite logit
    u32 top;            // most likely ids wanted, at most MAX_TOP and V
    u32 top_first;      // place of the first one in `top`
};
static_assert(sizeof(SamplerRow) == 112, "the twin's size");

// Outcome of a row. The logprob of a logit x is x - (max + ln(sum)); without SCORES `sum` to `rank` are 0.
struct SamplerOutcome {
    double sum;   // of e^(logit - max)
    float max;    // +inf in a row without a finite logit
    float logit;  // of the token, NaN replaced by -inf, +inf by MAX; -inf for an id beyond V
    u32 rank;     // of the token, from 1
    u32 token;
    u32 flags;    // NON_FINITE, FLAT, ENDED
    u32 slot;     // of the row
    u32 commit;   // of the row
    u32 padding;
};
static_assert(sizeof(SamplerOutcome) == 40, "the twin's size");

// One of the most likely ids.
struct SamplerTop {
    u32 id;
    float logit;  // NaN replaced by -inf, +inf by MAX, -0 by 0
};

struct SamplerDrawParams {
    const float* logits;       // [.., I]
    float* work;               // [S, I]
    const u32* counts;         // [Q, I]
    const SamplerRow* rows;    // [S]
    const u32* lists;          // of the rows
    SamplerOutcome* outcomes;  // [S]
    SamplerTop* top;           // of the rows, flat
    u32 vocab;                 // V
    u32 first;                 // F
    u32 ids;                   // I
    u32 stride;                // from one row or slot to the next, in ids: I where a block has all ids of the device
};

struct Bin {
    u64 mass;
    u32 count;
    u32 index;
};

// Numbers and masses of the members of each bin. A mass is two words: an atomic sum of 64 bits in shared memory is a loop of exchanges.
struct Bins {
    u32 counts[BINS];
    u32 low[BINS];
    u32 high[BINS];

    __device__ __forceinline__ u64 mass(u32 bin) const { return static_cast<u64>(high[bin]) << 32 | low[bin]; }

    __device__ __forceinline__ void set_mass(u32 bin, u64 mass) {
        low[bin] = static_cast<u32>(mass);
        high[bin] = static_cast<u32>(mass >> 32);
    }

    // By several threads at once: each sum of the low words that passes 2^32 carries once.
    __device__ __forceinline__ void add_mass(u32 bin, u64 mass) {
        const u32 word = static_cast<u32>(mass);
        const u32 carry = atomicAdd(&low[bin], word) > ~word;
        const u32 rest = static_cast<u32>(mass >> 32) + carry;
        if (rest != 0) {
            atomicAdd(&high[bin], rest);
        }
    }
};

struct Shared {
    u64 warp_values[WARPS];
    u64 listed[MAX_TOP];
    // Of a selection: the bin with the border, and what lies before it.
    Bin border;
    Bin before;
    Bins bins;
    u32 warp_counts[WARPS];
    u32 num_listed;
};

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= MAX; }

// A logit with NaN and +inf replaced.
__device__ __forceinline__ float clean(float logit) {
    logit = logit >= MAX ? MAX : logit;
    return logit == logit ? logit : -infinity();
}

// Bits that order as the numbers do; not for NaN. -0 is below 0.
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float unordered(u32 bits) {
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// sampling/exp.rs, operation by operation.
__device__ __forceinline__ float exp_nonpositive(float x) {
    constexpr float LOWEST = -87.0f;
    constexpr float ROUND = 12582912.0f;
    const bool in_range = x >= LOWEST;
    x = in_range ? x : LOWEST;
    const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, 1.44269504088896340736f), ROUND), ROUND);
    const float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 355.0f / 512.0f)), __fmul_rn(n, -2.1219444e-4f));
    float p = 1.9875691e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3982e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.333452e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665796e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666666e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    const float y = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
    const u32 exponent = (__float_as_uint(__fadd_rn(n, ROUND)) & 0xffu) + 127u & 0xffu;
    return in_range ? __fmul_rn(y, __uint_as_float(exponent << 23)) : 0.0f;
}

__device__ __forceinline__ u64 mass_of(float weight) { return __float2ull_rz(__fmul_rn(weight, MASS_UNIT)); }

// sampling/noise.rs.
struct Noise {
    u32 first;
    u32 second;

    __device__ __forceinline__ static u64 mix(u64 z) {
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }

    __device__ __forceinline__ Noise(u64 seed, u64 position) {
        constexpr u64 GOLDEN = 0x9e3779b97f4a7c15ull;
        const u64 stream = mix(seed * GOLDEN + GOLDEN);
        const u64 key = mix(mix(stream ^ position * GOLDEN) + stream);
        first = static_cast<u32>(key);
        second = static_cast<u32>(key >> 32);
    }

    __device__ __forceinline__ static u32 finalise(u32 x) {
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        return x ^ x >> 16;
    }

    __device__ __forceinline__ u32 bits(u32 id) const { return finalise(finalise(id ^ first) + second); }
};

// Time of noise bits in an exponential race of rate 1, positive.
__device__ __forceinline__ double time_of(u32 bits) {
    return -log1p(-__dmul_rn(__dadd_rn(static_cast<double>(bits), 0.5), 1.0 / 4294967296.0));
}

struct Sum {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct Least {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? a : b; }
};
struct Most {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const { return a > b ? a : b; }
};

// Reduction over the block, the same bits in every thread: both lanes of a pair combine the same two values.
template <typename T, typename Op>
__device__ __forceinline__ T reduce(T value, Shared& shared, Op op) {
    T* warp_values = reinterpret_cast<T*>(shared.warp_values);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value = op(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    __syncthreads();  // reads of the reduction before
    if (threadIdx.x % 32 == 0) {
        warp_values[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = warp_values[threadIdx.x % WARPS];
#pragma unroll
    for (int distance = WARPS / 2; distance > 0; distance /= 2) {
        value = op(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
}

// Sum of the values of the threads before this one.
template <typename T>
__device__ __forceinline__ T sum_before(T value, T (&warp_sums)[WARPS]) {
    const u32 lane = threadIdx.x % 32;
    const auto scan = [lane](T sum) {
#pragma unroll
        for (u32 distance = 1; distance < 32; distance *= 2) {
            const T other = __shfl_up_sync(0xffffffffu, sum, distance);
            sum += lane >= distance ? other : 0;
        }
        return sum;
    };
    const T within = scan(value);
    if (lane == 31) {
        warp_sums[threadIdx.x / 32] = within;
    }
    __syncthreads();
    const T of_warp = lane < WARPS ? warp_sums[lane] : 0;
    const T before = __shfl_sync(0xffffffffu, scan(of_warp) - of_warp, threadIdx.x / 32);
    return before + within - value;
}

// Reduction over the blocks in their order, of a value of one or two words.
template <typename Ranks, typename T, typename Op>
__device__ __forceinline__ T across(Ranks& ranks, T value, Op op) {
    if constexpr (!Ranks::IS_ALONE) {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "words of a round");
        u32 words[2] = {};
        memcpy(words, &value, sizeof(T));
        ranks.gather(words[0], words[1]);
        const auto said = [&ranks](u32 rank) {
            T theirs;
            memcpy(&theirs, ranks.heard()[rank], sizeof(T));
            return theirs;
        };
        value = said(0);
#pragma unroll 1
        for (u32 rank = 1; rank < ranks.world(); ++rank) {
            value = op(value, said(rank));
        }
    }
    return value;
}

// Calls `with` with each of this thread's places and its value in `from`, in their order. COUNT values are on their way at once: a block
// has a row, and waits for little else.
template <u32 COUNT = 8, typename With>
__device__ __forceinline__ void for_values(const float* from, u32 ids, const With& with) {
    u32 at = threadIdx.x;
#pragma unroll 1
    for (; at + (COUNT - 1) * THREADS < ids; at += COUNT * THREADS) {
        float values[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            values[i] = from[at + i * THREADS];
        }
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            with(at + i * THREADS, values[i]);
        }
    }
#pragma unroll 1
    for (; at < ids; at += THREADS) {
        with(at, from[at]);
    }
}

// A member of a selection: keys are distinct, since their low half is an id; the smallest is the best.
struct Member {
    bool exists;
    u64 key;
    u64 mass;
};

// The best members up to a border: their largest key or more, but less than any other member's, and their mass.
struct Border {
    u64 key;
    u64 mass;
};

// The best members until their number (or their mass, BY_MASS) reaches `goal`, which is at least 1 and at most that of all
// members. Digit by digit from the highest: a histogram of the members that share the border's digits so far finds the
// next one. Few bins of a digit hold more than one member after the second; ties in the leading half go on to the ids. `member_of` makes a
// member of a place and its value in `from`.
template <bool MASSES, bool BY_MASS, typename Ranks, typename MemberOf>
__device__ __forceinline__ Border select(
    Ranks& ranks, Shared& shared, const float* from, u32 ids, u64 goal, const MemberOf& member_of) {
    u64 digits = 0;
    u64 decided = 0;
    Bin before = {0, 0, 0};
    for (int shift = 64 - DIGIT;; shift = max(shift - DIGIT, 0)) {
        const u32 bin = 2 * threadIdx.x;
        Bins& bins = shared.bins;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            bins.counts[bin + i] = bins.low[bin + i] = bins.high[bin + i] = 0;
        }
        __syncthreads();
        for_values<4>(from, ids, [&](u32 at, float value) {
            const Member member = member_of(at, value);
            if (member.exists && ((member.key ^ digits) & decided) == 0) {
                const u32 digit = static_cast<u32>(member.key >> shift) & BINS - 1;
                atomicAdd(&bins.counts[digit], 1);
                if constexpr (MASSES) {
                    bins.add_mass(digit, member.mass);
                }
            }
        });
        __syncthreads();
        if constexpr (!Ranks::IS_ALONE) {
            ranks.template add_bins<MASSES>(bins);
        }
        Bin next = before;
        next.count += sum_before(bins.counts[bin] + bins.counts[bin + 1], shared.warp_counts);
        next.mass += sum_before(bins.mass(bin) + bins.mass(bin + 1), shared.warp_values);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const Bin own = {bins.mass(bin + i), bins.counts[bin + i], bin + i};
            const u64 reached = BY_MASS ? next.mass : next.count;
            if (reached < goal && reached + (BY_MASS ? own.mass : own.count) >= goal) {
                shared.border = own;
                shared.before = next;
            }
            next.count += own.count;
            next.mass += own.mass;
        }
        __syncthreads();
        const Bin border = shared.border;
        before = shared.before;
        digits |= static_cast<u64>(border.index) << shift;
        decided = ~0ull << shift;
        // A whole bin by number only: members without mass at its end would lie beyond a border by mass.
        const bool whole = !BY_MASS && before.count + border.count == goal;
        if (border.count <= 1 || whole || shift == 0) {
            return {digits | ~decided, before.mass + border.mass};
        }
    }
}

// The ids that a row's mask allows; what a loop reads of a row is read in front of it, or it would be read again behind every store.
struct Mask {
    const u32* words;
    u32 num_words;
    bool allows_all;

    __device__ __forceinline__ Mask(const SamplerRow& row, const u32* lists)
        : words(lists + row.mask), num_words(row.num_mask_words), allows_all(!(row.options & MASKED)) {}

    __device__ __forceinline__ bool allows(u32 id) const {
        return allows_all || (id / 32 < num_words && (words[id / 32] >> id % 32 & 1));
    }
};

// The most likely of the stops if fewer than `row.value` ids are more likely, else V.
template <typename Ranks>
__device__ __forceinline__ u32 likely_end(
    const SamplerDrawParams& params, const SamplerRow& row, const float* raw, Ranks& ranks, Shared& shared) {
    const u32* lists = params.lists;
    // The order of f32::total_cmp, as bits that order: of a broken row, a NaN may be the largest. Of equal ones the first stop is taken.
    u64 best = 0;
    for (u32 i = 0; i < row.num_stops; ++i) {
        const u32 at = lists[row.stops + i] - params.first;
        if (at < params.ids) {
            const u64 key = static_cast<u64>(ordered(raw[at])) << 32 | ~i;
            best = key > best ? key : best;
        }
    }
    best = across(ranks, best, Most());
    const float logit = unordered(static_cast<u32>(best >> 32));
    if (best == 0 || !is_finite(logit)) {
        return params.vocab;
    }
    u32 better = 0;
    for_values(raw, params.ids, [&](u32, float other) { better += other > logit; });
    better = across(ranks, reduce(better, shared, Sum()), Sum());
    return better < row.value ? lists[row.stops + ~static_cast<u32>(best)] : params.vocab;
}

// Applies biases, then bans, to the work row.
__device__ __forceinline__ void apply_lists(const SamplerDrawParams& params, const SamplerRow& row, float* work) {
    const u32* lists = params.lists;
    const u32* biases = lists + row.bias;
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.num_biases; i += THREADS) {
        const u32 id = biases[2 * i];
        const u32 at = id - params.first;
        if (at < params.ids && (i == 0 || biases[2 * i - 2] != id)) {
            float logit = work[at];
            for (u32 j = i; j < row.num_biases && biases[2 * j] == id; ++j) {
                logit = __fadd_rn(logit, __uint_as_float(biases[2 * j + 1]));
            }
            work[at] = logit;
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.num_forbidden; i += THREADS) {
        const u32 at = lists[row.forbidden + i] - params.first;
        if (at < params.ids) {
            work[at] = -infinity();
        }
    }
    __syncthreads();
}

struct Penalties {
    float repetition, presence, frequency;

    __device__ __forceinline__ explicit Penalties(const SamplerRow& row)
        : repetition(row.repetition), presence(row.presence), frequency(row.frequency) {}

    __device__ __forceinline__ float of(u32 counted, float logit) const {
        if (counted != 0) {
            logit = logit > 0.0f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
        }
        const u32 in_reply = counted & IN_REPLY;
        if (in_reply != 0) {
            const float penalty = __fadd_rn(__fmul_rn(frequency, __uint2float_rn(in_reply)), presence);
            logit = __fsub_rn(logit, penalty);
        }
        return logit;
    }
};

// Key of a weight in [0, 1]: the largest weight first, then the lowest id. 30 bits of the weight are left-aligned, so that
// the first digit tells 16 weights per power of two apart.
__device__ __forceinline__ u64 weight_key(float weight, u32 id) {
    return static_cast<u64>((0x3f800000u - __float_as_uint(weight)) << 2) << 32 | id;
}

// The id with the smallest time / weight among those within the border, ties by lower id. The favourite has weight 1 and
// takes part; an id whose noise alone excludes it costs no logarithm.
template <typename Ranks>
__device__ __forceinline__ u32 race(const SamplerDrawParams& params, const SamplerRow& row, const float* weights, float least,
                                    u64 border, u32 favourite, Ranks& ranks, Shared& shared) {
    const Noise noise(row.seed, row.position);
    double best = time_of(noise.bits(favourite));
    u32 winner = favourite;
    const auto may_win = [&](u32 at, float weight) {
        const u32 id = params.first + at;
        // A time is at least its uniform number. The limit is rounded up: an f32 product may be too small.
        const float least_time = __fmul_rn(static_cast<float>(noise.bits(id) >> 8), 1.0f / 16777216.0f);
        return weight >= least && weight_key(weight, id) <= border &&
               least_time <= __fmul_rn(weight, __fmul_rn(static_cast<float>(best), 1.000001f));
    };
    // Few come here; the code of a logarithm is there once.
    u32 candidates = 0, first_place = threadIdx.x;
    const auto run = [&] {
#pragma unroll 1
        for (; candidates != 0; candidates &= candidates - 1) {
            const u32 at = first_place + (__ffs(candidates) - 1) * THREADS;
            const u32 id = params.first + at;
            const float weight = weights[at];
            if (may_win(at, weight)) {
                const double time = __ddiv_rn(time_of(noise.bits(id)), static_cast<double>(weight));
                if (time < best || (time == best && id < winner)) {
                    best = time;
                    winner = id;
                }
            }
        }
    };
    constexpr u32 COUNT = 8;
#pragma unroll 1
    for (; first_place < params.ids; first_place += COUNT * THREADS) {
        float loaded[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            const u32 at = first_place + i * THREADS;
            // No weight is negative.
            loaded[i] = at < params.ids ? weights[at] : -1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            candidates |= static_cast<u32>(may_win(first_place + i * THREADS, loaded[i])) << i;
        }
        run();
    }
    const double first = reduce(best, shared, Least());
    winner = reduce(best == first ? winner : params.vocab, shared, Least());
    if constexpr (!Ranks::IS_ALONE) {
        // Positive times order as their bits do.
        const u64 time = static_cast<u64>(__double_as_longlong(first));
        ranks.gather(winner, static_cast<u32>(time), static_cast<u32>(time >> 32));
        u64 earliest = ~0ull;
#pragma unroll 1
        for (u32 rank = 0; rank < ranks.world(); ++rank) {
            const u32* heard = ranks.heard()[rank];
            const u64 theirs = static_cast<u64>(heard[2]) << 32 | heard[1];
            if (theirs < earliest || (theirs == earliest && heard[0] < winner)) {
                earliest = theirs;
                winner = heard[0];
            }
        }
    }
    return winner;
}

// A token from the clean logits in the work row, which then holds adjusted logits, then weights.
template <typename Ranks>
__device__ __forceinline__ u32 draw(const SamplerDrawParams& params, const SamplerRow& row, const float* raw, float* work,
                                    Ranks& ranks, Shared& shared) {
    const u32 ids = params.ids, vocab = params.vocab;
    const u32* lists = params.lists;
    if (row.num_biases + row.num_forbidden > 0) {
        apply_lists(params, row, work);
    }
    const u32* counts = params.counts + static_cast<i64>(row.slot) * params.stride;
    const bool penalises = row.options & PENALISES;
    const Penalties penalties(row);
    const Mask mask(row, lists);
    float max = -MAX;
    bool any = false;
    for_values(work, ids, [&](u32 at, float logit) {
        if (penalises) {
            logit = penalties.of(counts[at], logit);
        }
        logit = mask.allows(params.first + at) ? logit : -infinity();
        work[at] = logit;
        // A penalty can make +inf of a large logit.
        max = fminf(fmaxf(max, logit), MAX);
        any |= is_finite(logit);
    });
    any = __syncthreads_or(any);
    max = reduce(max, shared, Most());
    if constexpr (!Ranks::IS_ALONE) {
        ranks.gather(__float_as_uint(max), any);
#pragma unroll 1
        for (u32 rank = 0; rank < ranks.world(); ++rank) {
            max = fmaxf(max, __uint_as_float(ranks.heard()[rank][0]));
            any |= ranks.heard()[rank][1] != 0;
        }
    }
    if (!any) {
        // Bans and mask leave no finite logit: the best raw one is drawn, of the allowed ones if there is a mask.
        u64 best = 0;
        for (u32 at = threadIdx.x; at < ids; at += THREADS) {
            const u32 id = params.first + at;
            const float logit = clean(raw[at]);
            if (logit >= -MAX && mask.allows(id)) {
                const u64 key = static_cast<u64>(ordered(logit + 0.0f)) << 32 | ~id;
                best = key > best ? key : best;
            }
        }
        best = across(ranks, reduce(best, shared, Most()), Most());
        return best == 0 ? row.mask_first : ~static_cast<u32>(best);
    }

    if (row.temperature == 0.0f) {
        u32 first = vocab;
        for_values(work, ids, [&](u32 at, float logit) {
            first = logit >= max ? min(first, params.first + at) : first;
        });
        return across(ranks, reduce(first, shared, Least()), Least());
    }

    const float inverse = __fdiv_rn(1.0f, fmaxf(row.temperature, MIN_TEMPERATURE));
    // The best weight is 1, so min_p is the least weight itself.
    const float least = fmaxf(row.min_p, MIN_POSITIVE);
    u32 favourite = vocab;
    u32 num_left = 0;
    u64 mass = 0;
    for_values(work, ids, [&](u32 at, float logit) {
        const float difference = __fmul_rn(__fsub_rn(logit, max), inverse);
        // Of a +inf logit the difference is positive.
        const float weight = exp_nonpositive(difference > 0.0f ? 0.0f : difference);
        work[at] = weight;
        favourite = weight >= 1.0f ? min(favourite, params.first + at) : favourite;
        num_left += weight >= least;
        mass += weight >= least ? mass_of(weight) : 0;
    });
    favourite = across(ranks, reduce(favourite, shared, Least()), Least());
    // vLLM's order: min_p, then top_k, then top_p on the remaining mass.
    u64 border = ~0ull;
    const auto member = [&](u32 at, float weight) {
        return Member{weight >= least, weight_key(weight, params.first + at), mass_of(weight)};
    };
    if (row.top_k > 0 || row.top_p < 1.0f) {
        num_left = across(ranks, reduce(num_left, shared, Sum()), Sum());
        mass = across(ranks, reduce(mass, shared, Sum()), Sum());
        if (row.top_k > 0 && row.top_k < num_left) {
            const Border kept = select<true, false>(ranks, shared, work, ids, row.top_k, member);
            border = kept.key;
            mass = kept.mass;
        }
        if (row.top_p < 1.0f) {
            const double share = __dmul_rn(static_cast<double>(row.top_p), __ull2double_rn(mass));
            const u64 goal = __double2ull_rz(fmax(ceil(share), 1.0));
            if (goal <= mass) {
                border = select<true, true>(ranks, shared, work, ids, goal, member).key;
            }
        }
    }
    return race(params, row, work, least, border, favourite, ranks, shared);
}

// Log-softmax of the raw row at the token: what the host needs for its logprob, its rank, and the most likely ids.
template <typename Ranks>
__device__ __forceinline__ void score(const SamplerDrawParams& params, const SamplerRow& row, const float* raw, u32 token,
                                      bool any, float max, SamplerOutcome& outcome, Ranks& ranks, Shared& shared) {
    const u32 ids = params.ids;
    // A mask beyond the vocabulary or a given token can lead there: an id without a logit ranks last.
    const u32 place = token - params.first;
    const float own = across(ranks, place < ids ? clean(raw[place]) : -infinity(), Most());
    double sum = 0.0;
    u32 larger = 0;
    for_values<4>(raw, ids, [&](u32 at, float value) {
        const u32 id = params.first + at;
        const float logit = clean(value);
        sum = __dadd_rn(sum, static_cast<double>(exp_nonpositive(__fsub_rn(logit, max))));
        larger += logit > own || (logit == own && id < token);
    });
    sum = across(ranks, reduce(sum, shared, Sum()), Sum());
    larger = across(ranks, reduce(larger, shared, Sum()), Sum());
    // ln(1) + inf: every logprob is -inf.
    outcome.sum = any ? sum : 1.0;
    outcome.max = any ? max : infinity();
    outcome.logit = own;
    outcome.rank = larger + 1;
    if (row.top == 0) {
        return;
    }

    const auto key_of = [&params](u32 at, float value) {
        return static_cast<u64>(~ordered(clean(value) + 0.0f)) << 32 | params.first + at;
    };
    const u64 border = select<false, false>(ranks, shared, raw, ids, row.top, [key_of](u32 at, float value) {
        return Member{true, key_of(at, value), 0};
    }).key;
    if (threadIdx.x == 0) {
        shared.num_listed = 0;
    }
    __syncthreads();
    for_values(raw, ids, [&](u32 at, float value) {
        const u64 key = key_of(at, value);
        if (key <= border) {
            shared.listed[atomicAdd(&shared.num_listed, 1)] = key;
        }
    });
    __syncthreads();
    if constexpr (!Ranks::IS_ALONE) {
        ranks.add_listed(shared);
        __syncthreads();
    }
    if (ranks.writes() && threadIdx.x < row.top) {
        const u64 key = shared.listed[threadIdx.x];
        u32 place = 0;
        for (u32 other = 0; other < row.top; ++other) {
            place += shared.listed[other] < key;
        }
        const float logit = unordered(~static_cast<u32>(key >> 32));
        params.top[row.top_first + place] = SamplerTop{static_cast<u32>(key), logit};
    }
}

// Row `index` of the call; `work` has room for its I ids of this block.
template <typename Ranks>
__device__ __forceinline__ void choose(const SamplerDrawParams& params, u32 index, float* work, Ranks& ranks, Shared& shared) {
    const SamplerRow& row = params.rows[index];
    const u32 ids = params.ids;
    const float* raw = params.logits + static_cast<i64>(row.row) * params.stride;

    // The survey is of the raw row: the adjustments must not hide a broken one.
    const float head = raw[0];
    float max = -MAX;
    bool any = false;
    bool broken = false;
    bool differs = false;
    const bool is_given = row.rule == GIVEN;
    for_values<Ranks::FIRST_LOADS>(raw, ids, [&](u32 at, float logit) {
        const float cleaned = clean(logit);
        max = fmaxf(max, cleaned);
        any |= is_finite(logit);
        broken |= !(logit <= MAX);
        differs |= !(logit == head);
        if (!is_given) {
            work[at] = cleaned;
        }
    });
    any = __syncthreads_or(any);
    broken = __syncthreads_or(broken);
    differs = __syncthreads_or(differs);
    max = reduce(max, shared, Most());
    if constexpr (!Ranks::IS_ALONE) {
        const u32 said = (any ? 1 : 0) | (broken ? 2 : 0) | (differs ? 4 : 0);
        ranks.gather(__float_as_uint(max), said, __float_as_uint(head));
#pragma unroll 1
        for (u32 rank = 0; rank < ranks.world(); ++rank) {
            const u32* heard = ranks.heard()[rank];
            max = fmaxf(max, __uint_as_float(heard[0]));
            any |= (heard[1] & 1) != 0;
            broken |= (heard[1] & 2) != 0;
            differs |= (heard[1] & 4) != 0 || !(__uint_as_float(heard[2]) == head);
        }
    }
    u32 flags = (broken || !any ? NON_FINITE : 0) | (params.vocab > 1 && !differs ? FLAT : 0);

    u32 token = params.vocab;
    if (row.rule == GIVEN) {
        token = row.value;
    } else if (row.rule == END_IF_RANK_BELOW) {
        token = likely_end(params, row, raw, ranks, shared);
        flags |= token < params.vocab ? ENDED : 0;
    }
    if (row.rule != GIVEN && token == params.vocab) {
        token = any ? draw(params, row, raw, work, ranks, shared) : 0;
    }

    SamplerOutcome outcome = {0.0, 0.0f, 0.0f, 0, token, flags, row.slot, row.commit, 0};
    if (row.options & SCORES) {
        score(params, row, raw, token, any, max, outcome, ranks, shared);
    }
    if (ranks.writes() && threadIdx.x == 0) {
        params.outcomes[index] = outcome;
    }
}
