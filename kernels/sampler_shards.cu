// sampler_draw_shards: a token per row of logits by ranks that have some ids each, as sampler_draw by one device that has all.
// Source:  as sampler.cu. Twin: src/cuda/kernels/sampler_shards.rs.
// Spec:    decoding/sampling/shard.rs; ops/host/ranks/choice.rs.
// Legend:  S rows, V vocabulary, I ids of this rank, from id F on, Q slots, n ranks.
// Shapes:  logits [.., I] f32, work [S, I] f32, counts [Q, I] u32; board of a rank [2, n, S, BOARD_PAIRS] pairs of u32.
// Traffic: of memory a rank's part of sampler_draw's. Between ranks 96 bytes a round and peer; of a digit 24 KB (16 KB without masses).
// Grid:    one block of 512 threads per row, no more than are resident at once: a row's blocks wait for each other.
// Order:   as sampler.cu; the sum of the logprobs goes on by rank.
// Rounds:  a row's block says a few words to the blocks of the row on the other ranks, and all draw the same conclusions: maxima,
//          counts and masses, best candidates, bins of a digit. A greedy row takes 3 rounds, a drawn one 4, with top_k or top_p 2 more and
//          one for each digit, with its logprob 3 more. A round uses the half of the board that the one before did not: a peer that
//          writes a half again has heard this rank in between. The token is that of sampler_draw, to the bit.
// Tried:   not measured on a device; runs on 2, 4 and 8 emulated ones.

constexpr unsigned THREADS = 512;
#include "peer.cuh"
#include "sampler.cuh"

// Words that a rank says in a round of few.
constexpr u32 MAX_WORDS = 4;
// Words that a rank can say of a row in a round: a count and a mass of each bin.
constexpr u32 BOARD_PAIRS = 3 * BINS;
// Operation of a wait, for its report; the twin's Operation::Sample.
constexpr u32 CHOICE = 3;
// In place of one: another rank has other inputs; the twin's Operation::Compare.
constexpr u32 COMPARE = 8;

struct SamplerDrawShardsParams {
    SamplerDrawParams draw;
    Link link;
    u32* rounds;  // [board_rows]: the last round of each row of the board
    u64 board;    // its offset in an area; all 0 at first
    u32 board_rows;
    u32 columns;          // D
    const float* inputs;  // [T, D], which the logits are products of, the same on all ranks; or null: they are not compared
    const u32* rows;      // [S]: the row of `inputs` of each row of logits
};

// A row of one of several ranks, whose blocks for the row come to the same rounds.
struct Board {
    static constexpr bool IS_ALONE = false;
    static constexpr u32 FIRST_LOADS = 8;

    const SamplerDrawShardsParams& params;
    const Link& link;
    u32 round;
    u32 sum;  // of the bits of the row that its logits are products of

    __device__ __forceinline__ u32 world() const { return link.world; }
    __device__ __forceinline__ bool writes() const { return true; }

    // What the ranks have said in the last round of few words.
    static __device__ __forceinline__ u32 (&heard())[MAX_RANKS][MAX_WORDS] {
        __shared__ u32 words[MAX_RANKS][MAX_WORDS];
        return words;
    }

    // Place of a word that `source` says, in the area of `rank`.
    __device__ __forceinline__ u8* place(u32 rank, u32 source, u32 word) const {
        const u32 half = round % 2 * link.world + source;
        const u32 at = (half * params.board_rows + blockIdx.x) * BOARD_PAIRS + word;
        return link.areas[rank] + params.board + at * sizeof(u64);
    }

    __device__ __forceinline__ void say(u32 word, u32 value) const {
#pragma unroll 1
        for (u32 step = 1; step < link.world; ++step) {
            put_pair(place((link.rank + step) % link.world, link.rank, word), value, round);
        }
    }

    // A word of another rank.
    __device__ __forceinline__ u32 hear(u32 source, u32 word) const {
        const u8* at = place(link.rank, source, word);
        Wait wait;
        u64 pair = look_pair(at);
        while (static_cast<u32>(pair >> 32) != round) {
            if (!wait.goes_on(link, CHOICE, source, round)) {
                break;
            }
            pair = look_pair(at);
        }
        return static_cast<u32>(pair);
    }

    // A round of few words, the same in all threads: heard()[rank][i] = what each rank says. The last word is the sum of the row, which
    // all ranks have the same of: one that has computed something else is found before its token is used.
    __device__ __forceinline__ void gather(u32 first, u32 second = 0, u32 third = 0) {
        static_assert(MAX_RANKS * MAX_WORDS <= 32, "a lane hears a word");
        ++round;
        __syncthreads();  // reads of the round before
        const u32 word = threadIdx.x % MAX_WORDS, source = threadIdx.x / MAX_WORDS;
        if (source == 0) {
            const u32 own = word == 0 ? first : word == 1 ? second : word == 2 ? third : sum;
            say(word, own);
            heard()[link.rank][word] = own;
        }
        if (source < link.world && source != link.rank) {
            const u32 theirs = hear(source, word);
            heard()[source][word] = theirs;
            if (word == MAX_WORDS - 1 && theirs != sum && atomicCAS(&link.state->failed, 0, COMPARE + 1) == 0) {
                link.state->peer = source;
                link.state->at = round;
            }
        }
        // Lanes have waited for different ranks.
        __syncwarp();
        __syncthreads();
    }

    // Adds the bins of all ranks.
    template <bool MASSES>
    __device__ __forceinline__ void add_bins(Bins& bins) {
        ++round;
        constexpr u32 WORDS = MASSES ? 3 : 1;
        // A thread has two neighbouring bins, which no other one touches.
        const u32 first = 2 * threadIdx.x;
#pragma unroll 1
        for (u32 bin = first; bin < first + 2; ++bin) {
            say(bin * WORDS, bins.counts[bin]);
            if constexpr (MASSES) {
                say(bin * WORDS + 1, bins.low[bin]);
                say(bin * WORDS + 2, bins.high[bin]);
            }
        }
#pragma unroll 1
        for (u32 bin = first; bin < first + 2; ++bin) {
#pragma unroll 1
            for (u32 source = 0; source < link.world; ++source) {
                if (source != link.rank) {
                    bins.counts[bin] += hear(source, bin * WORDS);
                    if constexpr (MASSES) {
                        const u64 low = hear(source, bin * WORDS + 1);
                        bins.set_mass(bin, bins.mass(bin) + (static_cast<u64>(hear(source, bin * WORDS + 2)) << 32 | low));
                    }
                }
            }
        }
        __syncwarp();
    }

    // Appends what the other ranks list.
    __device__ __forceinline__ void add_listed(Shared& shared) {
        const u32 own = shared.num_listed;
        gather(own);
        ++round;
        if (threadIdx.x < own) {
            const u64 key = shared.listed[threadIdx.x];
            say(2 * threadIdx.x, static_cast<u32>(key));
            say(2 * threadIdx.x + 1, static_cast<u32>(key >> 32));
        }
        // Who lists nothing is heard too: a rank that has not heard all may not begin the next round.
        if (threadIdx.x == 0) {
            say(2 * MAX_TOP, 0);
        }
        if (threadIdx.x < link.world && threadIdx.x != link.rank) {
            hear(threadIdx.x, 2 * MAX_TOP);
        }
        __syncthreads();  // reads of this rank's keys
        u32 first = own;
#pragma unroll 1
        for (u32 rank = 0; rank < link.world; ++rank) {
            if (rank == link.rank) {
                continue;
            }
            const u32 count = min(heard()[rank][0], MAX_TOP);
            if (threadIdx.x < count && first + threadIdx.x < MAX_TOP) {
                const u64 low = hear(rank, 2 * threadIdx.x);
                shared.listed[first + threadIdx.x] = static_cast<u64>(hear(rank, 2 * threadIdx.x + 1)) << 32 | low;
            }
            first += count;
        }
        __syncwarp();
    }
};

// Sum of the bits of this block's row of inputs, in every thread.
__device__ __forceinline__ u32 sum_of_bits(const SamplerDrawShardsParams& params) {
    if (params.inputs == nullptr) {
        return 0;
    }
    __shared__ u32 sums[THREADS / 32];
    const u32* row = reinterpret_cast<const u32*>(params.inputs) +
                     static_cast<i64>(params.rows[params.draw.rows[blockIdx.x].row]) * params.columns;
    u32 sum = 0;
    for (u32 i = threadIdx.x; i < params.columns; i += THREADS) {
        sum += row[i];
    }
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = 0;
#pragma unroll
    for (u32 warp = 0; warp < THREADS / 32; ++warp) {
        sum += sums[warp];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
sampler_draw_shards(const __grid_constant__ SamplerDrawShardsParams params) {
    begin_kernel();
    __shared__ Shared shared;
    Board board = {params, params.link, params.rounds[blockIdx.x], sum_of_bits(params)};
    choose(params.draw, blockIdx.x, params.draw.work + static_cast<i64>(blockIdx.x) * params.draw.stride, board, shared);
    if (threadIdx.x == 0) {
        params.rounds[blockIdx.x] = board.round;
    }
}
