// tiled_mla_decode: the items of mla_decode.cu on the tensor cores: queries, keys and probabilities in bf16, sums in f32.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; splits as in Dao et al., "Flash-Decoding", 2023.
// Twin:    src/cuda/kernels/tiled_mla_decode.rs. Spec: ops/reference.rs `attend_absorbed`; mla_absorb and mla_combine, before
//          and after it, are in mla_decode.cu.
// Legend:  A rows of a pass, I items, H heads, L keys of a row, C and R as in ops/shapes.rs `MlaShape`, B bytes of a row.
// Shapes:  latent_queries [A, H, C+R] f32; cache [slots, B] bf16 or FP8; statistics [I, H, 2], latents [I, H, C] f32.
// Traffic: A*L*B bytes of cache, once per 32 heads (the second time from L2); 4*I*H*(C+2) bytes of results.
// Work:    2*A*H*L*(2C+R) FLOP.
// Floor:   A=64 L=8192 H=64 C=512 R=64, FP8 (656 bytes): 344 MB -> 80 us at 4.3 TB/s (H200); 73 GFLOP -> 92 us at
//          790 TFLOP/s; results of items 135 MB -> 31 us. A=1: 5.4 MB, latency.
// Grid:    (items, groups of heads), 8 warps; blocks step through the items of the list in device memory.
//          Shared memory: 90,112 bytes with 32 heads; 1 block on a multiprocessor, by registers.
// Order:   scores: four quarters of the columns, each a chain of steps of 16, added pairwise; softmax: tiles of 32 keys at
//          absolute positions, a lane's sum of exponentials over tiles, then a butterfly; values: tiles in their order. A
//          row's result depends on its query, its position and its keys alone, not on how many heads a block has.
// Tried:   no timing yet. Per 32 keys and 32 heads shared memory moves 114 KB (890 cycles of a multiprocessor) and the
//          tensor cores work 544: queries stay in registers, since reading them for each tile would add 74 KB.
//
// A tile has 32 keys. For scores a warp has 16 keys as the A operand, straight from the cache, and a quarter of the
// columns; it leaves the keys in shared memory in bf16, whence values are read transposed: there a warp has every eighth 16
// columns as the A operand. Heads are the B operand in both. An E8M0 scale is a power of two: it multiplies scores and
// probabilities, so that codes become bf16 exactly and without it.

#include "cached_row.cuh"
#include "mla.cuh"
#include "mla_pass.cuh"
#include "mma.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int KEYS = 32;
constexpr int QUARTERS = 4;
// Columns that four lanes read at once, 16 each; a quarter has every fourth unit, and every fourth step of the rope key.
constexpr int UNIT = 64;
constexpr int UNITS = MAX_LATENT / UNIT / QUARTERS;
constexpr int COLUMN_TILES = MAX_LATENT / 16 / WARPS;
// Rows of shared memory begin four banks apart.
constexpr int VALUE_PITCH = MAX_LATENT + 8;
constexpr int SCORE_PITCH = KEYS + 4;

template <int HEADS>
struct Shared {
    bf16 values[2][KEYS][VALUE_PITCH];  // of this tile and of the one before
    bf16 weights[HEADS][KEYS];          // probabilities, in the order in which lanes read them
    float scores[QUARTERS][HEADS][SCORE_PITCH];
    float shrink[HEADS];
    float scales[KEYS];
    u32 slots[SPLIT];
};

// 16 columns of a key in bf16; register i of the pairs holds two of the columns 4 (i / 2) .. + 3.
struct KeyBf16 {
    static constexpr bool SCALED = false, ROPE_CODES = false;
    struct Columns {
        uint4 words[2];
    };
    static __device__ __forceinline__ void load(Columns& columns, const u8* row, int column) {
        columns.words[0] = *reinterpret_cast<const uint4*>(row + 2 * column);
        columns.words[1] = *reinterpret_cast<const uint4*>(row + 2 * column + 16);
    }
    static __device__ __forceinline__ u32 pair(const Columns& columns, int i) { return word_of(columns.words[i / 4], i % 4); }
    static __device__ __forceinline__ const u8* rope(const u8* row, int latent) { return row + 2 * latent; }
    static __device__ __forceinline__ u32 scales(const u8*, int, int) { return 0; }
};

// The same in codes, with the scales of the row.
template <bool CODES>
struct KeyFp8 {
    static constexpr bool SCALED = true, ROPE_CODES = CODES;
    struct Columns {
        uint4 word;
    };
    static __device__ __forceinline__ void load(Columns& columns, const u8* row, int column) {
        columns.word = *reinterpret_cast<const uint4*>(row + column);
    }
    static __device__ __forceinline__ u32 pair(const Columns& columns, int i) {
        return bf16_of_e4m3(i % 2 ? word_of(columns.word, i / 2) : word_of(columns.word, i / 2) << 8);
    }
    static __device__ __forceinline__ const u8* rope(const u8* row, int latent) { return row + latent; }
    // The scale of the latent in the lower byte, that of the rope key above it.
    static __device__ __forceinline__ u32 scales(const u8* row, int latent, int rope) {
        const u8* at = row + latent + (CODES ? rope : 2 * rope);
        return CODES ? *reinterpret_cast<const u16*>(at) : *at;
    }
};

// Which of four columns is at a place of two registers: bytes 0, 2, 1, 3 of codes, and their own of bf16.
template <bool CODES>
__device__ __forceinline__ constexpr int column_at(int place) {
    return CODES && (place == 1 || place == 2) ? 3 - place : place;
}

template <bool CODES>
__device__ __forceinline__ void query_pairs(u32 (&pairs)[2], const float* from) {
    const float4 four = four_of(from);
    pairs[0] = pair_of(four.x, CODES ? four.z : four.y);
    pairs[1] = pair_of(CODES ? four.y : four.z, four.w);
}

// An E8M0 scale.
__device__ __forceinline__ float scale_of(u32 scale) {
    return __uint_as_float(scale == NOT_FINITE ? 0x7fc00000u : scale << 23);
}

// What a lane has read of two keys, g and g + 8 of its warp's 16.
template <typename Key>
struct Loaded {
    typename Key::Columns columns[2][UNITS];
    uint2 rope[2];  // four columns, or one word of codes
    u32 scales[2];
};

template <typename Key, int GROUPS>
__device__ __forceinline__ void decode(const MlaDecodeParams& params) {
    constexpr int HEADS = 8 * GROUPS;
    extern __shared__ uint4 memory[];
    Shared<HEADS>& shared = *reinterpret_cast<Shared<HEADS>*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int half = warp % 2, quarter = warp / 2;
    const int latent = params.latent, width = params.latent + params.rope;
    const int first_head = blockIdx.y * HEADS;
    const bool has_rope = 16 * quarter < params.rope;
    const float infinity = __uint_as_float(0x7f800000u);
    // Of this lane: its first column of a unit, and of the rope key.
    const auto column_of = [&](int u) { return (QUARTERS * u + quarter) * UNIT + 16 * t; };
    const int rope_column = 16 * quarter + 4 * t;
    // Where the key of this lane stands in a row of `weights`: a lane of the product reads keys 2t 2t+1 2t+8 2t+9 of both
    // steps at once.
    const int place = lane % 8 / 2 * 8 + lane / 16 * 4 + lane / 8 % 2 * 2 + lane % 2;

    const u32 num_items = params.pass->num_items;
    for (u32 item = blockIdx.x; item < num_items; item += gridDim.x) {
        const int index = row_of_item(params.pass, item);
        const RowEntry entry = rows_of(params.pass)[index];
        const int first_key = (item - entry.first_item) * SPLIT;
        const int num_keys = min(static_cast<int>(entry.num_keys) - first_key, SPLIT);
        for (int key = threadIdx.x; key < num_keys; key += THREADS) {
            shared.slots[key] = cached_slot(params.block_tables + entry.table, first_key + key, params.block_size);
        }

        // A head beyond the last one computes the last one again and stores nothing.
        u32 query[UNITS][GROUPS][4][2] = {};
        u32 rope_query[GROUPS][2] = {};
#pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
            const int head = min(first_head + 8 * n + g, params.num_heads - 1);
            const float* from = params.latent_queries + (static_cast<i64>(index) * params.num_heads + head) * width;
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                if (column_of(u) < latent) {
#pragma unroll
                    for (int step = 0; step < 4; ++step) {
                        query_pairs<Key::SCALED>(query[u][n][step], from + column_of(u) + 4 * step);
                    }
                }
            }
            if (has_rope) {
                query_pairs<Key::ROPE_CODES>(rope_query[n], from + latent + rope_column);
            }
        }
        float sums[COLUMN_TILES][GROUPS][4] = {};
        // Of heads GROUPS * warp + i: the sum is this lane's part.
        float largest[GROUPS], total[GROUPS];
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            largest[i] = -infinity, total[i] = 0.0f;
        }
        __syncthreads();

        Loaded<Key> loaded;
        const auto load = [&](int tile) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int key = tile + 16 * half + 8 * r + g;
                const bool present = key < num_keys;
                const u8* row = params.cache + (present ? static_cast<i64>(shared.slots[key]) * params.row_bytes : 0);
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    loaded.columns[r][u] = {};
                    if (present && column_of(u) < latent) {
                        Key::load(loaded.columns[r][u], row, column_of(u));
                    }
                }
                loaded.rope[r] = make_uint2(0, 0);
                if (present && has_rope) {
                    const u8* from = Key::rope(row, latent);
                    if constexpr (Key::ROPE_CODES) {
                        loaded.rope[r].x = *reinterpret_cast<const u32*>(from + rope_column);
                    } else {
                        loaded.rope[r] = *reinterpret_cast<const uint2*>(from + 2 * rope_column);
                    }
                }
                loaded.scales[r] = present ? Key::scales(row, latent, params.rope) : 0;
            }
        };
        load(0);

        for (int tile = 0; tile < num_keys; tile += KEYS) {
            auto& values = shared.values[tile / KEYS % 2];
            float scores[GROUPS][4] = {};
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                if ((QUARTERS * u + quarter) * UNIT < latent) {
                    u32 pairs[2][8];
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
#pragma unroll
                        for (int i = 0; i < 8; ++i) {
                            pairs[r][i] = Key::pair(loaded.columns[r][u], i);
                        }
                        uint4* to = reinterpret_cast<uint4*>(&values[16 * half + 8 * r + g][column_of(u)]);
                        to[0] = make_uint4(pairs[r][0], pairs[r][1], pairs[r][2], pairs[r][3]);
                        to[1] = make_uint4(pairs[r][4], pairs[r][5], pairs[r][6], pairs[r][7]);
                    }
#pragma unroll
                    for (int step = 0; step < 4; ++step) {
                        const u32 a[4] = {pairs[0][2 * step], pairs[1][2 * step], pairs[0][2 * step + 1],
                                          pairs[1][2 * step + 1]};
#pragma unroll
                        for (int n = 0; n < GROUPS; ++n) {
                            mma(scores[n], a, query[u][n][step][0], query[u][n][step][1]);
                        }
                    }
                }
            }
            if constexpr (Key::SCALED) {
                const float scales[2] = {scale_of(loaded.scales[0] & 0xffu), scale_of(loaded.scales[1] & 0xffu)};
#pragma unroll
                for (int n = 0; n < GROUPS; ++n) {
                    scores[n][0] *= scales[0], scores[n][1] *= scales[0];
                    scores[n][2] *= scales[1], scores[n][3] *= scales[1];
                }
                if (quarter == 0 && t == 0) {
                    shared.scales[16 * half + g] = scales[0];
                    shared.scales[16 * half + 8 + g] = scales[1];
                }
            }
            if (has_rope) {
                u32 a[4] = {loaded.rope[0].x, loaded.rope[1].x, loaded.rope[0].y, loaded.rope[1].y};
                if constexpr (Key::ROPE_CODES) {
                    // A power of two in bf16: its bits are those of the f32.
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        const u32 scale = __float_as_uint(scale_of(loaded.scales[r] >> 8)) >> 16;
                        a[r] = multiply2(bf16_of_e4m3(loaded.rope[r].x << 8), scale * 0x00010001u);
                        a[r + 2] = multiply2(bf16_of_e4m3(loaded.rope[r].x), scale * 0x00010001u);
                    }
                }
#pragma unroll
                for (int n = 0; n < GROUPS; ++n) {
                    mma(scores[n], a, rope_query[n][0], rope_query[n][1]);
                }
            }
#pragma unroll
            for (int n = 0; n < GROUPS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    shared.scores[quarter][8 * n + 2 * t + i % 2][16 * half + 8 * (i / 2) + g] = scores[n][i];
                }
            }
            if (tile + KEYS < num_keys) {
                load(tile + KEYS);
            }
            __syncthreads();

#pragma unroll
            for (int i = 0; i < GROUPS; ++i) {
                const int head = GROUPS * warp + i;
                const float sum = (shared.scores[0][head][lane] + shared.scores[1][head][lane]) +
                                  (shared.scores[2][head][lane] + shared.scores[3][head][lane]);
                const float score = tile + lane < num_keys ? params.scale * sum : -infinity;
                const float before = largest[i];
                largest[i] = fmaxf(before, group_max<32>(score));
                const float shrink = expf(before - largest[i]);
                const float weight = expf(score - largest[i]);
                total[i] = __fmaf_rn(total[i], shrink, weight);
                shared.weights[head][place] = bf16_of(Key::SCALED ? weight * shared.scales[lane] : weight);
                if (lane == 0) {
                    shared.shrink[head] = shrink;
                }
            }
            __syncthreads();

            bool changes = false;
            float2 shrink[GROUPS];
            uint4 weights[GROUPS];
#pragma unroll
            for (int n = 0; n < GROUPS; ++n) {
                shrink[n] = *reinterpret_cast<const float2*>(&shared.shrink[8 * n + 2 * t]);
                weights[n] = *reinterpret_cast<const uint4*>(&shared.weights[8 * n + g][8 * t]);
                changes |= shrink[n].x != 1.0f || shrink[n].y != 1.0f;
            }
            // Most tiles have no larger score than those before; 1 changes no bits.
            if (__any_sync(0xffffffffu, changes)) {
#pragma unroll
                for (int m = 0; m < COLUMN_TILES; ++m) {
#pragma unroll
                    for (int n = 0; n < GROUPS; ++n) {
                        sums[m][n][0] *= shrink[n].x, sums[m][n][1] *= shrink[n].y;
                        sums[m][n][2] *= shrink[n].x, sums[m][n][3] *= shrink[n].y;
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < COLUMN_TILES; ++m) {
                const int column = 16 * (WARPS * m + warp);
                if (column < latent) {
#pragma unroll
                    for (int step = 0; step < KEYS / 16; ++step) {
                        u32 a[4];
                        load_transposed(a, &values[16 * step + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
#pragma unroll
                        for (int n = 0; n < GROUPS; ++n) {
                            mma(sums[m][n], a, word_of(weights[n], 2 * step), word_of(weights[n], 2 * step + 1));
                        }
                    }
                }
            }
        }

        const i64 at = static_cast<i64>(item) * params.num_heads + first_head;
#pragma unroll
        for (int m = 0; m < COLUMN_TILES; ++m) {
            const int tile = 16 * (WARPS * m + warp), column = tile + g / 4 * 4 + column_at<Key::SCALED>(g % 4);
            if (tile < latent) {
#pragma unroll
                for (int n = 0; n < GROUPS; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int head = 8 * n + 2 * t + i % 2;
                        if (first_head + head < params.num_heads) {
                            params.latents[(at + head) * latent + column + 8 * (i / 2)] = sums[m][n][i];
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            const int head = GROUPS * warp + i;
            const float sum = warp_sum(total[i]);
            if (lane == 0 && first_head + head < params.num_heads) {
                params.statistics[2 * (at + head)] = largest[i];
                params.statistics[2 * (at + head) + 1] = sum;
            }
        }
    }
}

#define KERNEL(name, Key, groups)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ MlaDecodeParams params) { \
        decode<Key, groups>(params);                                                                             \
    }
#define KERNELS(name, Key) KERNEL(name##_8, Key, 1) KERNEL(name##_16, Key, 2) KERNEL(name##_32, Key, 4)

KERNELS(tiled_mla_decode_bf16, KeyBf16)
KERNELS(tiled_mla_decode_fp8, KeyFp8<false>)
KERNELS(tiled_mla_decode_fp8_rope, KeyFp8<true>)
