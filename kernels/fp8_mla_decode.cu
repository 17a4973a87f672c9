// fp8_mla_decode: the items of mla_decode.cu on the tensor cores of RTX PRO 6000 and RTX 50, with the cache's E4M3 codes as they are: queries
// of latents and probabilities are sums of two E4M3 values each, rope keys bf16 or codes, sums f32. For latents of 512 and rope keys of 64.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; splits as in Dao et al., "Flash-Decoding", 2023.
// Twin:    src/cuda/kernels/fp8_mla_decode.rs. Spec: host/reference.rs `attend_absorbed`; before it is tiled_mla_absorb.cu, behind it
//          tiled_mla_combine.cu.
// Legend:  A rows of a pass, I items, H heads, L keys of a row, C = 512, R = 64, B bytes of a row.
// Shapes:  latent_queries [A, H, C+R] f32; cache [slots, B] FP8; statistics [I, H, 2] f32, latents [I, H, C] f16.
// Traffic: A*L*B bytes of cache, once per 32 heads (the second time from L2); 2*I*H*(C+4) bytes of results.
// Work:    2*A*H*L*(4C+2R) FLOP in E4M3 and bf16.
// Floor:   A=64 L=32768 H=64, FP8 (656 bytes): 1376 MB -> 917 us at 1.5 TB/s (RTX PRO 6000); results of items 67 MB, written and read. A tile of
//          32 keys and 32 heads: 3,150 clocks of memory, where two blocks share it; 2,180 of the tensor cores (scores 1,150, values 1,020); 740 of
//          shared memory at 128 bytes.
// Grid:    (blocks in clusters of 4, groups of 32 heads), 8 warps; a cluster has consecutive items, so that it converts the queries of a
//          row once, and each of its blocks one of the four splits of an item, 32 to 512 keys. Shared memory: 94 KB, of which three tiles of
//          keys 63 KB; one block on a multiprocessor.
// Order:   scores: four quarters of the columns, each a chain of steps of 32, first and second terms in turn, then the rope key; added pairwise;
//          softmax: tiles of 32 keys at absolute positions, a lane's sum of exponentials over tiles, then a butterfly; values: tiles in
//          their order, then splits in theirs. A row's result depends on its query, its position and its keys alone.
// Tried:   nothing on a device. Two terms keep 2^-8 of a value and 2^-18 of the largest one of a head: closer than bf16 where values matter. As
//          tiled_mla_decode has it, bf16 takes the same time of the tensor cores and 34 instructions for 16 codes on top; its barriers of the whole
//          block leave nothing to overlap. Queries in registers: read from shared memory for each tile they would be 147 KB of it, 1,150 clocks.
//          Queries as operands, as wgmma_mla_absorb.cu leaves them, would spare a row's first item some 3 us.
//
// A tile has 32 keys. Four warps have a quarter of the columns each of the scores of 32 heads, add the quarters in shared memory, and leave
// probabilities there; four, a tile behind them, have 128 columns each of the sums of values, and read keys transposed (`ldmatrix` of bytes). The
// first warp has the rows of the tile after the next one copied, a lane each: a warp of its own would leave all of them 168 registers.
//
// The scale 2^n of a key's latent multiplies its score, and as a value its probability: 2^(s + n) there, so the largest of s + n is what
// exponentials are taken against, weights are up to 1, and 2^-n brings them back where the probabilities themselves are summed.
//
// Of fewer heads, as ranks have them, a block takes several rows of one sequence: 2 of 16 heads. A row's sums do not depend on the rows beside
// it: their keys behind its own have the weight 0.

#include "barrier.cuh"
#include "cached_row.cuh"
#include "mla.cuh"
#include "mla_items.cuh"

constexpr int HEADS = 32;
constexpr int KEYS = 32;
constexpr int QUARTERS = 4;
constexpr int SCORERS = QUARTERS * 32, ADDERS = 4 * 32;
constexpr int THREADS = SCORERS + ADDERS;
constexpr int STAGES = 3;
constexpr int GROUPS = HEADS / 16;
constexpr int STEPS = LATENT / QUARTERS / 32;
constexpr int TERMS = 2;
// Columns of a warp that adds values, in tiles of 16.
constexpr int COLUMNS = LATENT / 4;
constexpr int COLUMN_TILES = COLUMNS / 16;
// Rows begin in banks of their own, of eight that are read at once; scores of four heads in banks of their own.
constexpr int SCORE_PITCH = KEYS + 8;
constexpr int WEIGHT_PITCH = KEYS + 16;
// Sums of half of the columns in f16, in the place of keys.
constexpr int SUM_PITCH = LATENT + 16;
constexpr int HALVES = 2;
// Heads of a block whose sums it merges.
constexpr int MERGED_HEADS = HEADS / BLOCKS;
// Largest of a head's query and of probabilities as E4M3, whose largest value is 448: below 2^8, and 2^8.
constexpr int QUERY_EXPONENT = 7, WEIGHT_EXPONENT = 8;
// Numbers of named barriers.
constexpr int SCORE_GROUP = 1, VALUE_GROUP = 2;

using Item = ItemOf<KEYS>;
using Walk = WalkOf<KEYS>;

template <int ROW>
struct Shared {
    u8 keys[STAGES][KEYS][ROW];
    float scores[QUARTERS][HEADS][SCORE_PITCH];
    u32 scales[KEYS];  // of latents: exponents of 2^n
    u8 weights[STAGES][TERMS][HEADS][WEIGHT_PITCH];
    float shrink[STAGES][HEADS];
    float2 of_split[STAGES][HEADS];  // largest score in base 2 and sum of exponentials, behind the last tile of a split
    float peaks[QUARTERS][HEADS];    // largest of a head's query
    u64 filled[STAGES];   // keys are there: scores
    u64 weighed[STAGES];  // probabilities and factors are there: values
    u64 emptied[STAGES];  // all were read: copies
    u64 given;            // sums of an item's splits are there, in all blocks: their merge
    u64 merged;           // they were read, in all blocks
};

// Which of the places of tiles, and in which round.
struct Turn {
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void go_on() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// sums += A B, of E4M3. Fragments of m16n8k32, lane 4g + t: A holds (row g, k 4t .. 4t+3), (row g + 8, the same), (row g, k 16 + 4t ..), (row g + 8,
// the same); B (k 4t .., column g), (k 16 + 4t .., column g).
__device__ __forceinline__ void mma_e4m3(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two 16x16 matrices of bytes, transposed; lane l gives the address of row l % 16 of matrix l / 16, a multiple of 16. A lane gets of each (rows 4t ..
// 4t+3, column g), then (the same, column g + 8).
__device__ __forceinline__ void load_bytes_transposed(u32 (&to)[4], const u8* row) {
    asm volatile("ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Four values to E4M3, the first one in the lowest byte.
__device__ __forceinline__ u32 e4m3_of(const float (&values)[4]) {
    u16 low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(values[1]), "f"(values[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(values[3]), "f"(values[2]));
    return low | static_cast<u32>(high) << 16;
}

// Four values as two terms in E4M3: rounded, and what is left, rounded.
__device__ __forceinline__ void take_terms(u32& first, u32& second, float (&values)[4]) {
    first = e4m3_of(values);
    const float2 low = floats_of_f16(f16_of_e4m3(first)), high = floats_of_f16(f16_of_e4m3(first >> 16));
    values[0] -= low.x, values[1] -= low.y, values[2] -= high.x, values[3] -= high.y;
    second = e4m3_of(values);
}

// What a head with this largest value is multiplied by, and what its scores are multiplied by: powers of two. A head that is not finite has no scores.
__device__ __forceinline__ float query_factor(float largest) {
    return __uint_as_float((127 + QUERY_EXPONENT + 127 - max(__float_as_uint(largest) >> 23, 15u)) << 23);
}
__device__ __forceinline__ float query_power(float largest) {
    const u32 exponent = max(__float_as_uint(largest) >> 23, 15u);
    return __uint_as_float(exponent == 255 ? 0x7fc00000u : (exponent - QUERY_EXPONENT) << 23);
}

template <int ROW>
__device__ __forceinline__ float largest_of(const Shared<ROW>& shared, int at) {
    return fmaxf(fmaxf(shared.peaks[0][at], shared.peaks[1][at]), fmaxf(shared.peaks[2][at], shared.peaks[3][at]));
}

// Scales of a key of this row: of its latent in the lower byte, that of a rope key in codes above it.
template <bool CODES>
__device__ __forceinline__ u32 scales_of(const u8* row) {
    const u8* at = row + LATENT + (CODES ? ROPE : 2 * ROPE);
    return CODES ? *reinterpret_cast<const u16*>(at) : *at;
}

// What makes scores of rope keys those of codes without a scale, since the latent's multiplies the sum: 2^-n has the exponent 254 - n. A part that is not
// finite stays so, and codes of 2^127 times the latent's become infinite.
template <bool CODES>
__device__ __forceinline__ float rope_factor(u32 scales) {
    const u32 latent = scales & 0xffu, rope = scales >> 8;
    const int exponent = CODES ? max(static_cast<int>(rope - latent) + 127, 0) : max(254 - static_cast<int>(latent), 0);
    return __uint_as_float(CODES && rope == NOT_FINITE ? 0x7fc00000u : static_cast<u32>(min(exponent, 255)) << 23);
}

// Has the rows of one tile after another copied, by one warp.
template <int ROW>
struct Copies {
    Walk walk;
    Turn turn;
    bool more;

    // The next tile, if there is one, once its place is free. A key behind the last one is the last one again: its probability is 0.
    __device__ __forceinline__ void go_on(const MlaDecodeParams& params, Shared<ROW>& shared) {
        if (!more) {
            return;
        }
        const int lane = threadIdx.x % 32, key = walk.left.first_key + min(lane, walk.left.num_keys - 1);
        const u32 slot = cached_slot(params.block_tables + walk.left.table, key, params.block_size);
        wait(&shared.emptied[turn.stage], turn.parity ^ 1);
        if (lane == 0) {
            expect_bytes(&shared.filled[turn.stage], KEYS * ROW);
        }
        __syncwarp();
        copy_bytes(shared.keys[turn.stage][lane], params.cache + static_cast<i64>(slot) * ROW, ROW, &shared.filled[turn.stage]);
        turn.go_on();
        more = walk.go_on(params);
    }
};

// Queries of this warp's columns as operands, of latents in two terms, and of rope keys. Codes of rope keys are two steps of two terms: a warp has one of each.
template <bool CODES>
struct Queries {
    u32 latent[STEPS][GROUPS][TERMS][4];
    u32 rope[GROUPS][4];

    // By all warps of scores. Behind the last head it is read again, and its result is not written.
    template <int ROW>
    __device__ __forceinline__ void load(const MlaDecodeParams& params, Shared<ROW>& shared, const Item& item, int first_head) {
        const int quarter = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int last = item.rows * params.num_heads - first_head - 1;
        const auto query_of = [&](int m, int upper) {
            const i64 at = static_cast<i64>(item.index) * params.num_heads + first_head + min(16 * m + 8 * upper + g, last);
            return params.latent_queries + at * WIDTH;
        };
        const int column = LATENT / QUARTERS * quarter + 4 * t;
        const int rope_column = CODES ? LATENT + 32 * (quarter / 2) + 4 * t : LATENT + 16 * quarter + 2 * t;
        const auto peak_of = [](float4 four) { return fmaxf(fmaxf(fabsf(four.x), fabsf(four.y)), fmaxf(fabsf(four.z), fabsf(four.w))); };
#pragma unroll
        for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                const float* from = query_of(m, upper);
                float peak = 0.0f;
#pragma unroll
                for (int i = 0; i < 2 * STEPS; ++i) {
                    peak = fmaxf(peak, peak_of(four_of(from + column + 16 * i)));
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if constexpr (CODES) {
                        peak = fmaxf(peak, peak_of(four_of(from + rope_column + 16 * i)));
                    } else {
                        const float2 pair = *reinterpret_cast<const float2*>(from + rope_column + 8 * i);
                        peak = fmaxf(peak, fmaxf(fabsf(pair.x), fabsf(pair.y)));
                    }
                }
                peak = group_max<4>(peak);
                if (t == 0) {
                    shared.peaks[quarter][16 * m + 8 * upper + g] = peak;
                }
            }
        }
        meet<SCORERS>(SCORE_GROUP);
#pragma unroll
        for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                const float* from = query_of(m, upper);
                const float factor = query_factor(largest_of(shared, 16 * m + 8 * upper + g));
                const auto terms_at = [&](u32& first, u32& second, int at) {
                    const float4 four = four_of(from + at);
                    float values[4] = {four.x * factor, four.y * factor, four.z * factor, four.w * factor};
                    take_terms(first, second, values);
                };
#pragma unroll
                for (int i = 0; i < 2 * STEPS; ++i) {
                    u32(&terms)[TERMS][4] = latent[i / 2][m];
                    terms_at(terms[0][i % 2 * 2 + upper], terms[1][i % 2 * 2 + upper], column + 16 * i);
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    u32& word = rope[m][2 * i + upper];
                    if constexpr (CODES) {
                        u32 first, second;
                        terms_at(first, second, rope_column + 16 * i);
                        word = quarter % 2 ? second : first;
                    } else {
                        const float2 pair = *reinterpret_cast<const float2*>(from + rope_column + 8 * i);
                        word = pair_of(pair.x * factor, pair.y * factor);
                    }
                }
            }
        }
    }
};

// This warp's quarter of the scores of a tile. A lane has the heads g and g + 8 of 16, and of every eight keys 2t and 2t + 1.
template <bool CODES, int ROW>
__device__ __forceinline__ void multiply_keys(Shared<ROW>& shared, const Queries<CODES>& queries, const u8 (&keys)[KEYS][ROW]) {
    const int quarter = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto load = [](u32(&to)[4], const u8* row) { load_matrices(to, reinterpret_cast<const bf16*>(row)); };
#pragma unroll
    for (int first = 0; first < KEYS; first += 16) {
        float latents[2][GROUPS][4] = {}, ropes[2][GROUPS][4] = {};
        u32 b[4];
        load(b, &keys[first + lane / 16 * 8 + lane % 8][LATENT + 32 * (CODES ? quarter / 2 : quarter) + lane / 8 % 2 * 16]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int m = 0; m < GROUPS; ++m) {
                if constexpr (CODES) {
                    mma_e4m3(ropes[n][m], queries.rope[m], b[2 * n], b[2 * n + 1]);
                } else {
                    mma(ropes[n][m], queries.rope[m], b[2 * n], b[2 * n + 1]);
                }
            }
        }
#pragma unroll
        for (int two = 0; two < STEPS / 2; ++two) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                load(b, &keys[first + 8 * n + lane % 8][LATENT / QUARTERS * quarter + 64 * two + lane / 8 * 16]);
#pragma unroll
                for (int step = 0; step < 2; ++step) {
#pragma unroll
                    for (int term = 0; term < TERMS; ++term) {
#pragma unroll
                        for (int m = 0; m < GROUPS; ++m) {
                            mma_e4m3(latents[n][m], queries.latent[2 * two + step][m][term], b[2 * step], b[2 * step + 1]);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const int key = first + 8 * n + 2 * t;
            const u32 scales[2] = {scales_of<CODES>(keys[key]), scales_of<CODES>(keys[key + 1])};
            const float factors[2] = {rope_factor<CODES>(scales[0]), rope_factor<CODES>(scales[1])};
            if (quarter == 0 && g == 0) {
                *reinterpret_cast<uint2*>(&shared.scales[key]) = make_uint2(scales[0] & 0xffu, scales[1] & 0xffu);
            }
#pragma unroll
            for (int m = 0; m < GROUPS; ++m) {
                float sums[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    sums[i] = __fmaf_rn(ropes[n][m][i], factors[i % 2], latents[n][m][i]);
                }
                float* to = &shared.scores[quarter][16 * m + g][key];
                *reinterpret_cast<float2*>(to) = make_float2(sums[0], sums[1]);
                *reinterpret_cast<float2*>(to + 8 * SCORE_PITCH) = make_float2(sums[2], sums[3]);
            }
        }
    }
}

// Scores and probabilities. In softmax a lane has four keys of two heads.
template <bool CODES, int ROW>
__device__ __forceinline__ void score(const MlaDecodeParams& params, Shared<ROW>& shared, Item item, u32 end, int first_head) {
    constexpr int OWN = HEADS / (SCORERS / 8);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = lane % 8;
    const float infinity = __uint_as_float(0x7f800000u);
    // Not four heads side by side, whose words of probabilities would share banks.
    const auto head_at = [&](int j) { return OWN * (4 * warp + lane / 8) + j; };
    Copies<ROW> copies = {{item, end}};
    copies.more = warp == 0 && copies.walk.begin(params);
    for (int stage = 0; stage + 1 < STAGES; ++stage) {
        copies.go_on(params, shared);
    }
    Queries<CODES> queries;
    float factors[OWN];
    // The first of the rows whose queries are in registers.
    int loaded = -1;
    Turn turn;
    do {
        const int tiles = item.tiles();
        if (tiles > 0 && item.index != loaded) {
            loaded = item.index;
            queries.load(params, shared, item, first_head);
#pragma unroll
            for (int j = 0; j < OWN; ++j) {
                factors[j] = params.scale * LOG2_E * query_power(largest_of(shared, head_at(j)));
            }
        }
        int own_keys[OWN];
        // In base 2; the sum is this lane's part.
        float largest[OWN], total[OWN] = {};
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            own_keys[j] = own_keys_of(params, item, first_head, head_at(j));
            largest[j] = -infinity;
        }
        for (int tile = 0; tile < tiles; ++tile, turn.go_on()) {
            wait(&shared.filled[turn.stage], turn.parity);
            multiply_keys<CODES>(shared, queries, shared.keys[turn.stage]);
            meet<SCORERS>(SCORE_GROUP);
            float4 parts[OWN][QUARTERS];
#pragma unroll
            for (int j = 0; j < OWN; ++j) {
#pragma unroll
                for (int q = 0; q < QUARTERS; ++q) {
                    parts[j][q] = *reinterpret_cast<const float4*>(&shared.scores[q][head_at(j)][4 * part]);
                }
            }
            const uint4 scale_words = *reinterpret_cast<const uint4*>(&shared.scales[4 * part]);
            // All quarters were read: those of the next tile take their place.
            meet<SCORERS>(SCORE_GROUP);
            float scales[4], exponents[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 scale = word_of(scale_words, i);
                const float nan = __uint_as_float(0x7fc00000u);
                scales[i] = scale == NOT_FINITE ? nan : __uint_as_float(scale << 23);
                exponents[i] = scale == NOT_FINITE ? nan : static_cast<float>(static_cast<int>(scale) - 127);
            }
#pragma unroll
            for (int j = 0; j < OWN; ++j) {
                const float4 sums = add4(add4(parts[j][0], parts[j][1]), add4(parts[j][2], parts[j][3]));
                float scores[4] = {sums.x, sums.y, sums.z, sums.w};
                float peak = -infinity;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float weighed = __fmaf_rn(scores[i] * factors[j], scales[i], exponents[i]);
                    scores[i] = tile * KEYS + 4 * part + i < own_keys[j] ? weighed : -infinity;
                    peak = fmaxf(peak, scores[i]);
                }
                const float before = largest[j];
                largest[j] = fmaxf(before, group_max<8>(peak));
                const float shrink = exp2_of(before - largest[j]);
                float weights[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    weights[i] = exp2_of(scores[i] - largest[j]);
                }
                const float low = __fmaf_rn(weights[0], inverse_of_power(scales[0]), weights[1] * inverse_of_power(scales[1]));
                const float high = __fmaf_rn(weights[2], inverse_of_power(scales[2]), weights[3] * inverse_of_power(scales[3]));
                total[j] = __fmaf_rn(total[j], shrink, low + high);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    weights[i] *= 1 << WEIGHT_EXPONENT;
                }
                u32 terms[TERMS];
                take_terms(terms[0], terms[1], weights);
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    *reinterpret_cast<u32*>(&shared.weights[turn.stage][term][head_at(j)][4 * part]) = terms[term];
                }
                if (part == 0) {
                    shared.shrink[turn.stage][head_at(j)] = shrink;
                }
                if (tile + 1 == tiles) {
                    const float sum = group_sum<8>(total[j]);
                    if (part == 0) {
                        shared.of_split[turn.stage][head_at(j)] =
                            make_float2(largest[j] + CODES_EXPONENT, sum * (1.0f / (1 << CODES_EXPONENT)));
                    }
                }
            }
            arrive(&shared.weighed[turn.stage]);
            copies.go_on(params, shared);
        }
    } while (item.go_on(params, end));
}

// Arrives at a barrier of all blocks of the cluster and waits for its phase, at which the warps that add values of all of them do.
__device__ __forceinline__ void meet_adders(u64* barrier, u32 parity) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    if (lane < BLOCKS) {
        arrive_in_cluster(address_in_block(shared_address(barrier), lane));
    }
    wait_for_cluster(shared_address(barrier), parity);
}

// Sums of this warp's columns, not yet divided by the sum of probabilities, and the merge of an item's splits.
template <int ROW>
__device__ __forceinline__ void add_values(const MlaDecodeParams& params, Shared<ROW>& shared, Item item, u32 end, int first_head) {
    const int thread = threadIdx.x - SCORERS, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    Turn turn;
    // Where each block has the first tile of its next split.
    int stages[BLOCKS] = {};
    u32 phase = 0;
    do {
        const int tiles = item.tiles();
        float sums[COLUMN_TILES][2][GROUPS][4] = {};
        int stage = 0;
        for (int tile = 0; tile < tiles; ++tile, turn.go_on()) {
            stage = turn.stage;
            wait(&shared.weighed[stage], turn.parity);
            bool changes = false;
            float shrink[GROUPS][2];
            u32 weights[GROUPS][TERMS][4];
#pragma unroll
            for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
                for (int upper = 0; upper < 2; ++upper) {
                    shrink[m][upper] = shared.shrink[stage][16 * m + 8 * upper + g];
                    changes |= shrink[m][upper] != 1.0f;
                }
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    const u8* row = &shared.weights[stage][term][16 * m + lane % 16][lane / 16 * 16];
                    load_matrices(weights[m][term], reinterpret_cast<const bf16*>(row));
                }
            }
            // Most tiles have no larger score than those before; 1 changes no bits.
            if (__any_sync(0xffffffffu, changes)) {
#pragma unroll
                for (int c = 0; c < COLUMN_TILES; ++c) {
#pragma unroll
                    for (int n = 0; n < 2; ++n) {
#pragma unroll
                        for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                sums[c][n][m][i] *= shrink[m][i / 2];
                            }
                        }
                    }
                }
            }
#pragma unroll
            for (int c = 0; c < COLUMN_TILES; ++c) {
                u32 b[4];
                load_bytes_transposed(b, &shared.keys[stage][lane][COLUMNS * warp + 16 * c]);
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
#pragma unroll
                    for (int m = 0; m < GROUPS; ++m) {
                        mma_e4m3(sums[c][0][m], weights[m][term], b[0], b[2]);
                        mma_e4m3(sums[c][1][m], weights[m][term], b[1], b[3]);
                    }
                }
            }
            if (tile + 1 < tiles) {
                arrive(&shared.emptied[stage]);
            }
        }
        if (tiles > 0) {
            // All warps have read the keys of the last tile.
            meet<ADDERS>(VALUE_GROUP);
        }
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            stages[r] = (stages[r] + item.tiles_of(r)) % STAGES;
        }
#pragma unroll 1
        for (int half = 0; half < HALVES; ++half) {
            if (tiles > 0 && warp / HALVES == half) {
                const float factor = 1.0f / (1 << (WEIGHT_EXPONENT + CODES_EXPONENT));
                const u32 to = shared_address(shared.keys[stage]) + g * SUM_PITCH + 2 * (COLUMNS * (warp % HALVES) + 2 * t);
#pragma unroll
                for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
                    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
                        for (int n = 0; n < 2 * COLUMN_TILES; ++n) {
                            const float* pair = &sums[n / 2][n % 2][m][2 * upper];
                            store_shared(
                                to + (16 * m + 8 * upper) * SUM_PITCH + 16 * n, f16_pair_of(pair[0] * factor, pair[1] * factor));
                        }
                    }
                }
                // Later copies come to this place.
                publish_stores();
            }
            meet_adders(&shared.given, phase);
            constexpr int HALF_CHUNKS = CHUNKS / HALVES;
            const int chunk = thread % HALF_CHUNKS;
#pragma unroll 1
            for (int i = thread / HALF_CHUNKS; i < MERGED_HEADS; i += ADDERS / HALF_CHUNKS) {
                const int row = rank_of_block() * MERGED_HEADS + i;
                // The tile in front of the next one.
                const auto stage_of = [&](int r) { return stages[r] == 0 ? STAGES - 1 : stages[r] - 1; };
                merge_chunk(
                    params, item, first_head, row, half * HALF_CHUNKS + chunk,
                    [&](int r) { return shared_address(shared.keys[stage_of(r)]) + row * SUM_PITCH + 16 * chunk; },
                    [&](int r) { return shared_address(&shared.of_split[stage_of(r)][row]); });
            }
            meet_adders(&shared.merged, phase);
            phase ^= 1;
        }
        if (tiles > 0) {
            arrive(&shared.emptied[stage]);
        }
    } while (item.go_on(params, end));
}

template <bool CODES>
__device__ __forceinline__ void decode(const MlaDecodeParams& params) {
    constexpr int ROW = (LATENT + (CODES ? ROPE + 2 : 2 * ROPE + 1) + 15) / 16 * 16;
    static_assert(HEADS * SUM_PITCH <= KEYS * ROW);
    extern __shared__ __align__(128) u8 memory[];
    Shared<ROW>& shared = *reinterpret_cast<Shared<ROW>*>(memory);
    const u32 cluster = blockIdx.x / BLOCKS, end = share_of(params, cluster + 1);
    const int first_head = blockIdx.y * HEADS;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            create_barrier(&shared.filled[stage], 1);
            create_barrier(&shared.weighed[stage], SCORERS / 32);
            create_barrier(&shared.emptied[stage], ADDERS / 32);
        }
        create_barrier(&shared.given, BLOCKS * ADDERS / 32);
        create_barrier(&shared.merged, BLOCKS * ADDERS / 32);
        publish_stores();
    }
    meet_cluster();
    if (threadIdx.x == THREADS - 1) {
        fetch_ahead(params.ahead, blockIdx.y * gridDim.x + blockIdx.x, gridDim.x * gridDim.y);
    }
    const Item item = Item::from(params, share_of(params, cluster), end);
    if (item.place >= end) {
        return;
    }
    if (threadIdx.x < SCORERS) {
        score<CODES>(params, shared, item, end, first_head);
    } else {
        add_values(params, shared, item, end, first_head);
    }
    // A block stays until the others have read its sums.
    __syncwarp();
    meet_cluster();
}

#define KERNEL(name, codes)                                                                                      \
    extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)                      \
        name(const __grid_constant__ MlaDecodeParams params) {                                                   \
        begin_kernel();                                                                                          \
        decode<codes>(params);                                                                                   \
    }

KERNEL(fp8_mla_decode, false)
KERNEL(fp8_mla_decode_rope, true)
