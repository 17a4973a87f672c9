// tiled_mla_decode: the items of mla_decode.cu on the tensor cores: queries, keys and probabilities in bf16, sums in f32.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; splits as in Dao et al., "Flash-Decoding", 2023.
// Twin:    src/cuda/kernels/tiled_mla_decode.rs. Spec: host/reference.rs `attend_absorbed`; mla_absorb and mla_combine, before
//          and after it, are in mla_decode.cu.
// Legend:  A rows of a pass, I items, H heads, L keys of a row, C and R as in ops/shapes.rs `MlaShape`, B bytes of a row.
// Shapes:  latent_queries [A, H, C+R] f32; cache [slots, B] bf16 or FP8; statistics [I, H, 2], latents [I, H, C] f32.
// Traffic: A*L*B bytes of cache, once per 32 heads (the second time from L2); 4*I*H*(C+2) bytes of results.
// Work:    2*A*H*L*(2C+R) FLOP.
// Floor:   A=64 L=8192 H=64 C=512 R=64, FP8 (656 bytes): 344 MB -> 80 us at 4.3 TB/s (H200); 73 GFLOP -> 92 us at
//          790 TFLOP/s; results of items 135 MB -> 31 us. A=1: 5.4 MB, latency.
// Grid:    (items, groups of heads), 8 warps; blocks step through the items of the list in device memory.
//          Shared memory: 92 KB with 32 heads; 1 block on a multiprocessor, by registers.
// Order:   scores: four quarters of the columns, each a chain of steps of 16, added pairwise; softmax: tiles of 32 keys at
//          absolute positions, a lane's sum of exponentials over tiles, then a butterfly; values: tiles in their order. A
//          row's result depends on its query, its position and its keys alone, not on how many heads a block has.
// Tried:   sm_90a: 506 machine instructions of a warp for 32 keys and 32 heads of FP8, 333 of bf16. With 64
//          heads that is 63 and 42 cycles of a multiprocessor per key, mma.sync takes 55, HBM 35 and 62: for FP8 at full
//          speed wgmma is needed, with queries in shared memory. Per 32 keys and 32 heads shared memory moves 114 KB (890 cycles of a multiprocessor) and the
//          tensor cores work 544: queries stay in registers, since reading them for each tile would add 74 KB. Keys as the
//          A operand of both products need a move for every register: A and a store of 16 bytes want them in different order.
//          H100, A=64 L=32768: 2,578 us of FP8, 2,824 of bf16, four times what was counted: barriers of the whole block
//          leave nothing to overlap. Hopper has wgmma_mla_decode.cu.
//
// A tile has 32 keys. For scores heads are the A operand, and a warp has 16 keys, straight from the cache, and a quarter of
// the columns as the B operand; it leaves the keys in shared memory in bf16, whence values are read transposed: there a warp
// has every eighth 16 columns. An E8M0 scale is a power of two: it multiplies scores and probabilities, so that codes become
// bf16 exactly and without it.

#include "cached_row.cuh"
#include "mla.cuh"
#include "mla_pass.cuh"
#include "mma.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int KEYS = 32;
constexpr int QUARTERS = 4;
// Columns that four lanes read at once, 16 each; a quarter has every fourth unit, and every fourth step of the rope key.
constexpr int UNIT = 64;
constexpr int UNITS = MAX_LATENT / UNIT / QUARTERS;
constexpr int COLUMN_TILES = MAX_LATENT / 16 / WARPS;
// Rows of shared memory begin four and eight banks apart.
constexpr int VALUE_PITCH = MAX_LATENT + 8;
constexpr int SCORE_PITCH = KEYS + 8;
// Probabilities of 16 heads and 16 keys, four words of each lane; steps begin 16 banks apart, groups of heads four.
constexpr int STEP_PITCH = 128 + 16;
constexpr int GROUP_PITCH = 2 * STEP_PITCH + 4;

// GROUPS of 16 heads.
template <int GROUPS>
struct Shared {
    bf16 values[2][KEYS][VALUE_PITCH];  // of this tile and of the one before
    float scores[QUARTERS][16 * GROUPS][SCORE_PITCH];
    u32 weights[GROUPS * GROUP_PITCH];  // probabilities, in the order in which lanes read them
    float scales[KEYS];
    float shrink[16 * GROUPS];
    u32 slots[SPLIT];
};

// 16 columns of a key; pair i is two of the columns 4 (i / 2) .. + 3.
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

// Four columns of a head as words `first` and `first + 2` of an A operand.
template <bool CODES>
__device__ __forceinline__ void put_query(u32 (&a)[4], int first, const float* from) {
    const float4 four = four_of(from);
    a[first] = pair_of(four.x, CODES ? four.z : four.y);
    a[first + 2] = pair_of(CODES ? four.y : four.z, four.w);
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
    constexpr int HEADS = 16 * GROUPS;
    extern __shared__ uint4 memory[];
    Shared<GROUPS>& shared = *reinterpret_cast<Shared<GROUPS>*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int half = warp % 2, quarter = warp / 2;
    const int latent = params.latent, width = params.latent + params.rope;
    const int first_head = blockIdx.y * HEADS;
    const float infinity = __uint_as_float(0x7f800000u);
    // Columns of this lane: without a place in the latent, its first ones, which queries of 0 multiply.
    const bool has_rope = 16 * quarter < params.rope;
    const int rope_column = has_rope ? 16 * quarter + 4 * t : 0;
    bool has_unit[UNITS];
    int columns[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int column = (QUARTERS * u + quarter) * UNIT + 16 * t;
        has_unit[u] = column < latent;
        columns[u] = has_unit[u] ? column : 0;
    }
    // In softmax a lane has four keys of one head.
    const int softmax_row = lane / 8, softmax_part = lane % 8, softmax_head = (warp + 8 * softmax_row) % HEADS;
    const bool has_softmax = 8 * softmax_row < HEADS;
    u32* const probabilities = shared.weights + softmax_row / 2 * GROUP_PITCH + softmax_part / 4 * STEP_PITCH +
                               4 * (4 * warp + softmax_part % 2 * 2) + softmax_part % 4 / 2 * 2 + softmax_row % 2;

    const u32 num_items = params.pass->num_items;
    for (u32 item = blockIdx.x; item < num_items; item += gridDim.x) {
        const int index = row_of_item(params.pass, item);
        const RowEntry entry = rows_of(params.pass)[index];
        const int split = keys_of_item(params, entry.num_keys);
        const int first_key = (item - entry.first_item) * split;
        const int num_keys = min(static_cast<int>(entry.num_keys) - first_key, split);
        for (int key = threadIdx.x; key < num_keys; key += THREADS) {
            shared.slots[key] = cached_slot(params.block_tables + entry.table, first_key + key, params.block_size);
        }

        // A head beyond the last one computes the last one again and stores nothing.
        u32 query[UNITS][GROUPS][4][4] = {};
        u32 rope_query[GROUPS][4] = {};
#pragma unroll
        for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                const int head = min(first_head + 16 * m + 8 * upper + g, params.num_heads - 1);
                const float* from = params.latent_queries + (static_cast<i64>(index) * params.num_heads + head) * width;
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    if (has_unit[u]) {
#pragma unroll
                        for (int step = 0; step < 4; ++step) {
                            put_query<Key::SCALED>(query[u][m][step], upper, from + columns[u] + 4 * step);
                        }
                    }
                }
                if (has_rope) {
                    put_query<Key::ROPE_CODES>(rope_query[m], upper, from + latent + rope_column);
                }
            }
        }
        float sums[COLUMN_TILES][2][GROUPS][4] = {};
        // Of softmax_head, in base 2; the sum is this lane's part.
        float largest = -infinity, total = 0.0f;
        __syncthreads();

        // A key behind the last one is the last one again: its probability is 0.
        Loaded<Key> loaded;
        const auto load = [&](int tile) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int key = min(tile + 16 * half + 8 * r + g, num_keys - 1);
                const u8* row = params.cache + static_cast<i64>(shared.slots[key]) * params.row_bytes;
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    Key::load(loaded.columns[r][u], row, columns[u]);
                }
                const u8* from = Key::rope(row, latent);
                if constexpr (Key::ROPE_CODES) {
                    loaded.rope[r].x = *reinterpret_cast<const u32*>(from + rope_column);
                } else {
                    loaded.rope[r] = *reinterpret_cast<const uint2*>(from + 2 * rope_column);
                }
                loaded.scales[r] = Key::scales(row, latent, params.rope);
            }
        };
        load(0);

        for (int tile = 0; tile < num_keys; tile += KEYS) {
            auto& values = shared.values[tile / KEYS % 2];
            float scores[GROUPS][2][4] = {};
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                const int column = (QUARTERS * u + quarter) * UNIT + 16 * t;
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    if ((QUARTERS * u + quarter) * UNIT >= latent) {
                        continue;
                    }
                    u32 pairs[8];
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        pairs[i] = Key::pair(loaded.columns[r][u], i);
                    }
                    bf16* to = &values[16 * half + 8 * r + g][column];
                    store_shared(to, pairs[0], pairs[1], pairs[2], pairs[3]);
                    store_shared(to + 8, pairs[4], pairs[5], pairs[6], pairs[7]);
#pragma unroll
                    for (int step = 0; step < 4; ++step) {
#pragma unroll
                        for (int m = 0; m < GROUPS; ++m) {
                            mma(scores[m][r], query[u][m][step], pairs[2 * step], pairs[2 * step + 1]);
                        }
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                if constexpr (Key::ROPE_CODES) {
                    // Two scales: both multiply here, those of the keys 2t and 2t + 1 that this lane has sums of.
                    const u32 a = bf16_of_e4m3(loaded.rope[r].x << 8), b = bf16_of_e4m3(loaded.rope[r].x);
                    const u32 scales[2] = {__shfl_sync(0xffffffffu, loaded.scales[r], 8 * t),
                                           __shfl_sync(0xffffffffu, loaded.scales[r], 8 * t + 4)};
#pragma unroll
                    for (int m = 0; m < GROUPS; ++m) {
                        float rope_scores[4] = {};
                        mma(rope_scores, rope_query[m], a, b);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const float latent_score = scores[m][r][i] * scale_of(scales[i % 2] & 0xffu);
                            scores[m][r][i] = __fmaf_rn(rope_scores[i], scale_of(scales[i % 2] >> 8), latent_score);
                        }
                    }
                } else {
                    u32 a = loaded.rope[r].x, b = loaded.rope[r].y;
                    if constexpr (Key::SCALED) {
                        // Divided by the latent's scale, which multiplies the score: 2^-n has the exponent 254 - n.
                        const u32 inverse = (254 - loaded.scales[r]) * 0x00800080u;
                        a = multiply2(a, inverse), b = multiply2(b, inverse);
                    }
#pragma unroll
                    for (int m = 0; m < GROUPS; ++m) {
                        mma(scores[m][r], rope_query[m], a, b);
                    }
                }
                if (Key::SCALED && quarter == 0 && t == 0) {
                    shared.scales[16 * half + 8 * r + g] = scale_of(loaded.scales[r] & 0xffu);
                }
#pragma unroll
                for (int m = 0; m < GROUPS; ++m) {
                    float* to = &shared.scores[quarter][16 * m + g][16 * half + 8 * r + 2 * t];
                    *reinterpret_cast<float2*>(to) = make_float2(scores[m][r][0], scores[m][r][1]);
                    *reinterpret_cast<float2*>(to + 8 * SCORE_PITCH) = make_float2(scores[m][r][2], scores[m][r][3]);
                }
            }
            if (tile + KEYS < num_keys) {
                load(tile + KEYS);
            }
            __syncthreads();

            {
                float4 parts[QUARTERS];
#pragma unroll
                for (int q = 0; q < QUARTERS; ++q) {
                    parts[q] = *reinterpret_cast<const float4*>(&shared.scores[q][softmax_head][4 * softmax_part]);
                }
                float4 scales = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
                if constexpr (Key::SCALED) {
                    scales = *reinterpret_cast<const float4*>(&shared.scales[4 * softmax_part]);
                }
                const float scale = params.scale * LOG2_E;
                const float factors[4] = {scales.x, scales.y, scales.z, scales.w};
                const float added[4] = {
                    (parts[0].x + parts[1].x) + (parts[2].x + parts[3].x), (parts[0].y + parts[1].y) + (parts[2].y + parts[3].y),
                    (parts[0].z + parts[1].z) + (parts[2].z + parts[3].z), (parts[0].w + parts[1].w) + (parts[2].w + parts[3].w)};
                float weights[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float score = added[i] * (Key::ROPE_CODES ? scale : scale * factors[i]);
                    weights[i] = tile + 4 * softmax_part + i < num_keys ? score : -infinity;
                }
                const float before = largest;
                largest = fmaxf(before, group_max<8>(fmaxf(fmaxf(weights[0], weights[1]), fmaxf(weights[2], weights[3]))));
                const float shrink = exp2_of(before - largest);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    weights[i] = exp2_of(weights[i] - largest);
                }
                total = __fmaf_rn(total, shrink, (weights[0] + weights[1]) + (weights[2] + weights[3]));
                if (has_softmax) {
                    probabilities[0] = pair_of(weights[0] * factors[0], weights[1] * factors[1]);
                    probabilities[4] = pair_of(weights[2] * factors[2], weights[3] * factors[3]);
                    if (softmax_part == 0) {
                        shared.shrink[softmax_head] = shrink;
                    }
                }
            }
            __syncthreads();

            bool changes = false;
            float shrink[GROUPS][2];
            u32 weights[GROUPS][KEYS / 16][4];
#pragma unroll
            for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
                for (int upper = 0; upper < 2; ++upper) {
                    shrink[m][upper] = shared.shrink[16 * m + 8 * upper + g];
                    changes |= shrink[m][upper] != 1.0f;
                }
#pragma unroll
                for (int step = 0; step < KEYS / 16; ++step) {
                    const uint4 words =
                        *reinterpret_cast<const uint4*>(shared.weights + m * GROUP_PITCH + step * STEP_PITCH + 4 * lane);
                    weights[m][step][0] = words.x, weights[m][step][1] = words.y;
                    weights[m][step][2] = words.z, weights[m][step][3] = words.w;
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
                const int column = 16 * (WARPS * c + warp);
                if (column < latent) {
#pragma unroll
                    for (int step = 0; step < KEYS / 16; ++step) {
                        u32 b[4];
                        load_transposed(b, &values[16 * step + lane % 16][column + lane / 16 * 8]);
#pragma unroll
                        for (int m = 0; m < GROUPS; ++m) {
                            mma(sums[c][0][m], weights[m][step], b[0], b[1]);
                            mma(sums[c][1][m], weights[m][step], b[2], b[3]);
                        }
                    }
                }
            }
        }

        const i64 at = static_cast<i64>(item) * params.num_heads + first_head;
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) {
            const int column = 16 * (WARPS * c + warp);
            if (column < latent) {
#pragma unroll
                for (int m = 0; m < GROUPS; ++m) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int head = 16 * m + i / 2 * 8 + g, place = 2 * t + i % 2;
                        float* to = static_cast<float*>(params.latents) + (at + head) * latent + column + place / 4 * 4 +
                                    column_at<Key::SCALED>(place % 4);
                        if (first_head + head < params.num_heads) {
                            to[0] = sums[c][0][m][i];
                            to[8] = sums[c][1][m][i];
                        }
                    }
                }
            }
        }
        const float sum = group_sum<8>(total);
        if (has_softmax && softmax_part == 0 && first_head + softmax_head < params.num_heads) {
            // In base e, as the merge reads it.
            params.statistics[2 * (at + softmax_head)] = largest / LOG2_E;
            params.statistics[2 * (at + softmax_head) + 1] = sum;
        }
    }
}

#define KERNEL(name, Key, groups)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ MlaDecodeParams params) { \
        begin_kernel();                                                                                          \
        decode<Key, groups>(params);                                                                             \
    }
#define KERNELS(name, Key) KERNEL(name##_16, Key, 1) KERNEL(name##_32, Key, 2)

KERNELS(tiled_mla_decode_bf16, KeyBf16)
KERNELS(tiled_mla_decode_fp8, KeyFp8<false>)
KERNELS(tiled_mla_decode_fp8_rope, KeyFp8<true>)
