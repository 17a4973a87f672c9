// mla_absorb, mla_decode, mla_combine: attended = W_UV softmax(scale (W_UK^T q) c^T) c, over a paged cache of latents.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; splits as in Dao et al., "Flash-Decoding", 2023.
// Twin:    src/cuda/kernels/mla_decode.rs. Spec: host/reference.rs `attend_absorbed`.
// Legend:  A rows of a pass, I items of it (a row and up to `keys_of_item` of its keys), H heads, L keys of a row, N, R, V, C as in
//          ops/shapes.rs `MlaShape`, B bytes of a cached row.
// Shapes:  query [T, H*(N+R)] f32, not rotated; kv_up [H*(N+V), C] bf16 or f32; cache [slots, B]; attended [T, H*V] f32.
// Traffic: A*L*B bytes of cache, once per 16 heads (from L2 but for the first); kv_up; 4*A*H*(C+R) and 4*I*H*(C+2)
//          bytes of scratch, written and read.
// Work:    2*A*H*(L*(2C+R) + C*(N+V)) FLOP, by f32 FMA.
// Floor:   A=32 L=8192 H=64 C=512 R=64, bf16: 302 MB -> 63 us at 4.8 TB/s (H200), 36.5 GFLOP -> 545 us at 67 TFLOPS:
//          bound by FMA, which tensor cores would lift.
// Grid:    absorb: (row tiles, H, tiles of 128 columns), combine: (row tiles, H, shares of V), decode: (items,
//          groups of 16 heads). The first dimension is any number: blocks step through what the lists in device memory hold,
//          so that a captured launch serves other plans.
//          Shared memory: absorb 20 KB, decode 42 KB, combine 12 KB.
// Order:   scores: a lane adds four columns of every 128, then a butterfly over lanes; softmax: tiles of 16 keys, then
//          splits, both at absolute positions; products with kv_up: in order of N, or as scores of C. A row's
//          result depends on its query, its position and its keys alone.
// Tried:   H100, one row of Kimi K2, 3 items: absorb 7 us; combine 22.5 us with four rows to a block, 8.4 with one.
//          H200, 64 rows of 2 items: combine 127 us with the four rows of a block merged one after another and read from shared memory
//          for each value; what it takes now has not been measured.

#include "cached_row.cuh"
#include "mla_merge.cuh"
#include "reduce.cuh"

// Keys that a block holds at once.
constexpr int TILE = 16;
// Rows of absorb and combine that share the reads of kv_up.
constexpr int ROWS = 4;
// Heads of a warp of decode, which share the reads of a tile; with the keys they are the 32 scores of a warp.
constexpr int WARP_HEADS = 2;
// Bounds of the sizes: N + R and V, C + R.
constexpr int MAX_HEAD = 256;
constexpr int MAX_WIDTH = 640;

// Columns of a block of absorb, and threads that share each.
constexpr int ABSORB_COLUMNS = 128;
constexpr int GROUPS = 8;
constexpr int ABSORB_THREADS = GROUPS * ABSORB_COLUMNS / 4;
constexpr int DECODE_THREADS = 256;
constexpr int BLOCK_HEADS = DECODE_THREADS / 32 * WARP_HEADS;

// latent_queries[a, h] = (W_UK^T q_nope, rotated q_rope). A block has one head of ROWS rows and ABSORB_COLUMNS columns; a
// thread four of these, and every GROUPS-th value of the query, so that all loads of a block are on their way at once.
template <typename Weight>
__device__ __forceinline__ void absorb(const MlaDecodeParams& params) {
    __shared__ float queries[ROWS][MAX_HEAD];
    __shared__ float4 parts[GROUPS][ROWS][ABSORB_COLUMNS / 4];
    const int nope = params.nope, latent = params.latent, width = params.nope + params.rope;
    const int head = blockIdx.y, num_rows = params.pass->num_rows;
    const int group = threadIdx.x / (ABSORB_COLUMNS / 4), lane = threadIdx.x % (ABSORB_COLUMNS / 4);
    const int column = blockIdx.z * ABSORB_COLUMNS + 4 * lane;
    const Weight* weights =
        static_cast<const Weight*>(params.kv_up) + static_cast<i64>(head) * (nope + params.value) * latent + column;

    for (int first = blockIdx.x * ROWS; first < num_rows; first += gridDim.x * ROWS) {
        const auto absorbed_of = [&](int r) {
            return params.latent_queries +
                   (static_cast<i64>(first + r) * params.num_heads + head) * (latent + params.rope);
        };
        __syncthreads();
        for (int i = 4 * threadIdx.x; i < ROWS * width; i += 4 * ABSORB_THREADS) {
            const int r = i / width, at = i % width;
            float4 four;
            const bool present = query_of(params, first + r, num_rows, head, at, four);
            if (at < nope) {
                queries[r][at] = four.x, queries[r][at + 1] = four.y;
                queries[r][at + 2] = four.z, queries[r][at + 3] = four.w;
            } else if (present && blockIdx.z == 0) {
                store_four(absorbed_of(r) + latent + at - nope, four);
            }
        }
        __syncthreads();
        float4 sums[ROWS] = {};
        if (column < latent) {
#pragma unroll 8
            for (int i = group; i < nope; i += GROUPS) {
                const float4 weight = four_of(weights + static_cast<i64>(i) * latent);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    sums[r] = fma4(queries[r][i], weight, sums[r]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            parts[group][r][lane] = sums[r];
        }
        __syncthreads();
        // A warp has the sums of one row.
        for (int r = group; r < ROWS; r += GROUPS) {
            if (column < latent && first + r < num_rows) {
                float4 sum = parts[0][r][lane];
#pragma unroll
                for (int i = 1; i < GROUPS; ++i) {
                    sum = add4(sum, parts[i][r][lane]);
                }
                store_four(absorbed_of(r) + column, sum);
            }
        }
    }
}

// Halves the values of a lane: those of its side of HALF, with the partner's part added.
template <int HALF>
__device__ __forceinline__ void add_halves(float (&values)[32]) {
    const bool upper = threadIdx.x & HALF;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
        const float sent = upper ? values[i] : values[i + HALF];
        const float kept = upper ? values[i + HALF] : values[i];
        values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, HALF);
    }
}

// Sums of 32 values over the lanes of a warp; lane l gets that of values[l]. Every value has the same tree of additions.
__device__ __forceinline__ float transposed_sums(float (&values)[32]) {
    add_halves<16>(values);
    add_halves<8>(values);
    add_halves<4>(values);
    add_halves<2>(values);
    add_halves<1>(values);
    return values[0];
}

// Attention of one item's row to its keys, not yet divided by the sum. A block has 16 heads and decodes each key once; a
// warp has two heads, and a lane the columns 4 * (lane + 32 step) .. + 3.
template <typename Row>
__device__ __forceinline__ void decode(const MlaDecodeParams& params) {
    constexpr int STEPS = MAX_WIDTH / 128, LATENT_STEPS = MAX_LATENT / 128;
    __shared__ float4 keys[TILE][MAX_WIDTH / 4];
    __shared__ u32 slots[SPLIT];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int width = params.latent + params.rope, fours = width / 4;
    const int first_head = blockIdx.y * BLOCK_HEADS + warp * WARP_HEADS;
    const bool has_heads = first_head < params.num_heads;
    const float infinity = __uint_as_float(0x7f800000u);

    // The columns behind a row stay 0: steps are taken by whole warps.
    for (int key = warp; key < TILE; key += DECODE_THREADS / 32) {
        for (int i = fours + lane; i < (fours + 31) / 32 * 32; i += 32) {
            keys[key][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }

    const u32 num_items = params.pass->num_items;
    for (u32 item = blockIdx.x; item < num_items; item += gridDim.x) {
        const ItemPlace place = item_at(params, item);
        const int index = place.row, keys_of_all = keys_of_item(params, place.entry.num_keys);
        const int first_key = place.number * keys_of_all;
        const int num_keys = min(static_cast<int>(place.entry.num_keys) - first_key, keys_of_all);

        // A head beyond the last one computes the last one again and stores nothing.
        float4 query[WARP_HEADS][STEPS] = {};
        float4 sums[WARP_HEADS][LATENT_STEPS] = {};
        if (has_heads) {
#pragma unroll
            for (int h = 0; h < WARP_HEADS; ++h) {
                const int head = min(first_head + h, params.num_heads - 1);
                const float* from = params.latent_queries + (static_cast<i64>(index) * params.num_heads + head) * width;
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    if (32 * step + lane < fours) {
                        query[h][step] = four_of(from + 4 * (32 * step + lane));
                    }
                }
            }
        }
        // Of the head of this half of the warp.
        float largest = -infinity, total = 0.0f;

        for (int tile = 0; tile < num_keys; tile += TILE) {
            if (tile % SPLIT == 0) {
                for (int key = threadIdx.x; key < min(num_keys - tile, SPLIT); key += DECODE_THREADS) {
                    const u32* table = params.block_tables + place.entry.table;
                    slots[key] = cached_slot(table, first_key + tile + key, params.block_size);
                }
                __syncthreads();
            }
            for (int key = warp; key < TILE; key += DECODE_THREADS / 32) {
                const bool present = tile + key < num_keys;
                const u8* row = params.cache + (present ? static_cast<i64>(slots[(tile + key) % SPLIT]) * params.row_bytes : 0);
                for (int i = lane; i < fours; i += 32) {
                    keys[key][i] = present ? Row::load(row, params.latent, params.rope, 4 * i)
                                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
            }
            __syncthreads();
            if (has_heads) {
                float scores[WARP_HEADS * TILE] = {};
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    if (32 * step < fours) {
#pragma unroll
                        for (int key = 0; key < TILE; ++key) {
                            const float4 four = keys[key][32 * step + lane];
#pragma unroll
                            for (int h = 0; h < WARP_HEADS; ++h) {
                                scores[h * TILE + key] = dot4(query[h][step], four, scores[h * TILE + key]);
                            }
                        }
                    }
                }
                float score = params.scale * transposed_sums(scores);
                if (tile + lane % TILE >= num_keys) {
                    score = -infinity;
                }
                const float before = largest;
                largest = fmaxf(before, group_max<TILE>(score));
                const float shrink = expf(before - largest);
                const float weight = expf(score - largest);
                total = __fmaf_rn(total, shrink, group_sum<TILE>(weight));
#pragma unroll
                for (int h = 0; h < WARP_HEADS; ++h) {
                    const float factor = __shfl_sync(0xffffffffu, shrink, h * TILE);
#pragma unroll
                    for (int step = 0; step < LATENT_STEPS; ++step) {
                        sums[h][step] = scale4(factor, sums[h][step]);
                    }
                }
#pragma unroll
                for (int key = 0; key < TILE; ++key) {
                    float weights[WARP_HEADS];
#pragma unroll
                    for (int h = 0; h < WARP_HEADS; ++h) {
                        weights[h] = __shfl_sync(0xffffffffu, weight, h * TILE + key);
                    }
#pragma unroll
                    for (int step = 0; step < LATENT_STEPS; ++step) {
                        if (128 * step < params.latent) {
                            const float4 four = keys[key][32 * step + lane];
#pragma unroll
                            for (int h = 0; h < WARP_HEADS; ++h) {
                                sums[h][step] = fma4(weights[h], four, sums[h][step]);
                            }
                        }
                    }
                }
            }
            __syncthreads();
        }

#pragma unroll
        for (int h = 0; h < WARP_HEADS; ++h) {
            if (first_head + h < params.num_heads) {
                const i64 at = static_cast<i64>(item) * params.num_heads + first_head + h;
#pragma unroll
                for (int step = 0; step < LATENT_STEPS; ++step) {
                    const int column = 4 * (32 * step + lane);
                    if (column < params.latent) {
                        store_four(static_cast<float*>(params.latents) + at * params.latent + column, sums[h][step]);
                    }
                }
                if (lane == h * TILE) {
                    params.statistics[2 * at] = largest;
                    params.statistics[2 * at + 1] = total;
                }
            }
        }
    }
}

// Merges the items of a row into latents [A, H, C] of f32 at `attended`, divided by the sum, with their statistics. A block has one head of
// a row.
template <typename Sum>
__device__ __forceinline__ void merge(const MlaDecodeParams& params) {
    __shared__ float4 merged[1][MAX_LATENT / 4];
    __shared__ float2 of_rows[1];
    const int head = blockIdx.y, num_rows = params.pass->num_rows, fours = params.latent / 4;
    for (int index = blockIdx.x; index < num_rows; index += gridDim.x) {
        merge_row<Sum>(params, index, head, num_rows, merged, of_rows);
        __syncthreads();
        float* to = params.attended + (static_cast<i64>(index) * params.num_heads + head) * params.latent;
        for (int i = threadIdx.x; i < fours; i += COMBINE_THREADS) {
            store_four(to + 4 * i, merged[0][i]);
        }
        if (threadIdx.x == 0) {
            store_statistics(params, index, head, of_rows[0]);
        }
        __syncthreads();
    }
}

// Merges the items of a row, divides, multiplies by W_UV. A block has one head of COUNT rows, and its share of the V values of
// a head (blockIdx.z).
template <typename Weight, typename Sum, int COUNT>
__device__ __forceinline__ void combine(const MlaDecodeParams& params) {
    constexpr int LATENT_STEPS = MAX_LATENT / 128;
    __shared__ float4 merged[COUNT][MAX_LATENT / 4];
    __shared__ float2 of_rows[COUNT];  // largest score, and sum of exponentials
    const int latent = params.latent, head = blockIdx.y, num_rows = params.pass->num_rows;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Weight* weights = static_cast<const Weight*>(params.kv_up) +
                            (static_cast<i64>(head) * (params.nope + params.value) + params.nope) * latent;
    const int share = (params.value + gridDim.z - 1) / gridDim.z;
    const int first_value = blockIdx.z * share, last_value = min(first_value + share, params.value);

    for (int first = blockIdx.x * COUNT; first < num_rows; first += gridDim.x * COUNT) {
        if constexpr (IS_MERGED<Sum>) {
            read_rows(params, first, head, num_rows, merged);
        } else {
            merge_row<Sum>(params, first, head, num_rows, merged, of_rows);
        }
        __syncthreads();
        if (!IS_MERGED<Sum> && params.part == Part::HEADS && blockIdx.z == 0 && threadIdx.x < min(COUNT, num_rows - first)) {
            store_statistics(params, first + threadIdx.x, head, of_rows[threadIdx.x]);
        }
        // A lane's columns of every row.
        float4 own[COUNT][LATENT_STEPS];
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
#pragma unroll
            for (int step = 0; step < LATENT_STEPS; ++step) {
                if (4 * (32 * step + lane) < latent) {
                    own[r][step] = merged[r][32 * step + lane];
                }
            }
        }
#pragma unroll 2
        for (int v = first_value + warp; v < last_value; v += COMBINE_THREADS / 32) {
            float products[COUNT] = {};
#pragma unroll
            for (int step = 0; step < LATENT_STEPS; ++step) {
                const int at = 4 * (32 * step + lane);
                if (at < latent) {
                    const float4 weight = four_of(weights + static_cast<i64>(v) * latent + at);
#pragma unroll
                    for (int r = 0; r < COUNT; ++r) {
                        products[r] = dot4(own[r][step], weight, products[r]);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < COUNT; ++r) {
                const float product = warp_sum(products[r]);
                if (lane == 0 && first + r < num_rows) {
                    store_value(params, first + r, head, v, product);
                }
            }
        }
        __syncthreads();
    }
}

#define KERNEL(name, threads, body)                                                                              \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ MlaDecodeParams params) { \
        begin_kernel();                                                                                          \
        body(params);                                                                                            \
    }

KERNEL(mla_absorb_f32, ABSORB_THREADS, absorb<float>)
KERNEL(mla_absorb_bf16, ABSORB_THREADS, absorb<bf16>)
KERNEL(mla_decode_f32, DECODE_THREADS, decode<RowF32>)
KERNEL(mla_decode_bf16, DECODE_THREADS, decode<RowBf16>)
KERNEL(mla_decode_fp8, DECODE_THREADS, decode<RowFp8<false>>)
KERNEL(mla_decode_fp8_rope, DECODE_THREADS, decode<RowFp8<true>>)
KERNEL(mla_combine_f32, COMBINE_THREADS, (combine<float, float, ROWS>))
KERNEL(mla_combine_bf16, COMBINE_THREADS, (combine<bf16, float, ROWS>))
KERNEL(mla_combine_bf16_f16, COMBINE_THREADS, (combine<bf16, f16, ROWS>))
KERNEL(mla_combine_row_f32, COMBINE_THREADS, (combine<float, float, 1>))
KERNEL(mla_combine_row_bf16, COMBINE_THREADS, (combine<bf16, float, 1>))
KERNEL(mla_combine_row_bf16_f16, COMBINE_THREADS, (combine<bf16, f16, 1>))
KERNEL(mla_merge_f32, COMBINE_THREADS, merge<float>)
KERNEL(mla_merge_f16, COMBINE_THREADS, merge<f16>)
KERNEL(mla_project_f32, COMBINE_THREADS, (combine<float, Merged, ROWS>))
KERNEL(mla_project_bf16, COMBINE_THREADS, (combine<bf16, Merged, ROWS>))
KERNEL(mla_project_row_f32, COMBINE_THREADS, (combine<float, Merged, 1>))
KERNEL(mla_project_row_bf16, COMBINE_THREADS, (combine<bf16, Merged, 1>))
