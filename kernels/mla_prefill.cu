// mla_gather, mla_expand, mla_prefill: attended = softmax(scale q k^T) v, causal, keys and values expanded from a paged
// cache of latents, one sequence and one slab of its context at a time.
// Source:  DeepSeek-V2, arXiv 2405.04434, equations 9-19; Dao et al., "FlashAttention", arXiv 2205.14135, algorithm 1.
// Twin:    src/cuda/kernels/mla_prefill.rs. Spec: host/reference.rs `attend_expanded`.
// Legend:  Q rows of a segment, K keys of a slab, H heads, N, R, V, C as in ops/shapes.rs `MlaShape`, B bytes of a row.
// Shapes:  query [T, H*(N+R)] f32, not rotated; kv_up [H*(N+V), C] bf16 or f32; cache [slots, B]; attended [T, H*V] f32.
// Traffic: per slab K*B bytes of cache; 4*K*H*(N+V) bytes of scratch, written once and read once per 32 rows (from L2
//          as long as a head's part fits there); 4*Q*H*(N+R+2V).
// Work:    2*K*H*(N+V)*C for the expansion, 2*H*(N+R+V) per row and visible key, by f32 FMA.
// Floor:   Q=K=8192 H=64 N=V=128 R=64 C=512: 137 + 1374 GFLOP -> 22.6 ms at 67 TFLOPS (H200): bound by FMA, which
//          tensor cores would lift.
// Grid:    gather: K/8 blocks; expand: 64x64 tiles of [K, H*(N+V)]; prefill: (32 rows, H). 256 threads.
//          Shared memory: expand 8.5 KB, prefill 44.5 KB.
// Order:   expansion: in order of C; scores: in order of N + R; softmax: tiles of 32 keys at absolute positions, a
//          slab being a multiple of them; values in order of the keys. Between slabs a row's largest score and sum are
//          kept in scratch and its sum of values in `attended`, unrounded: slabs and chunks of a prompt do not change a
//          row's bits. Keys that a row does not see are skipped, not multiplied by 0: a NaN stays with the rows behind it.
// Tried:   one version; no timing yet.

#include "cached_row.cuh"
#include "mla.cuh"
#include "mla_slab.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
// Rows of a block of prefill, and keys that it takes at once: one per lane.
constexpr int QUERIES = 32;
constexpr int KEYS = 32;
constexpr int WARP_QUERIES = QUERIES / WARPS;
// Columns of the keys that are in shared memory at once.
constexpr int CHUNK = 64;
// Bound of N + R and of V.
constexpr int MAX_HEAD = 256;
constexpr int VALUE_STEPS = MAX_HEAD / 128;
// Tile of expand, and its columns of C at once.
constexpr int EXPAND = 64;
constexpr int DEPTH = 16;

// All sizes are multiples of 4 and positive, N + R and V at most MAX_HEAD.
using Params = MlaPrefillParams<float>;

// Cached rows of the slab in f32. A warp has one key.
template <typename Row>
__device__ __forceinline__ void gather(const Params& params) {
    const int key = blockIdx.x * WARPS + threadIdx.x / 32;
    if (key >= params.num_keys) {
        return;
    }
    const u8* row = cached_row(params.cache, params.block_table, params.first_key + key, params.row_bytes);
    float* latent = params.latents + static_cast<i64>(key) * params.latent;
    float* rope_key = params.rope_keys + static_cast<i64>(key) * params.rope;
    for (int i = 4 * (threadIdx.x % 32); i < params.latent + params.rope; i += 128) {
        const float4 four = Row::load(row, params.latent, params.rope, i);
        store_four(i < params.latent ? latent + i : rope_key + i - params.latent, four);
    }
}

// keys_values = latents kv_up^T. A block has a tile of 64 keys and 64 columns; a thread 4 of each.
template <typename Weight>
__device__ __forceinline__ void expand(const Params& params) {
    __shared__ float4 latents[DEPTH][EXPAND / 4 + 1];
    __shared__ float4 weights[DEPTH][EXPAND / 4 + 1];
    const int latent = params.latent, columns = params.num_heads * (params.nope + params.value);
    const int first_column = blockIdx.x * EXPAND, first_key = blockIdx.y * EXPAND;
    const int column = threadIdx.x % 16, key = threadIdx.x / 16;
    // What the thread stages: four values of one key and of one column.
    const int staged = threadIdx.x / 4, depth = 4 * (threadIdx.x % 4);
    const bool has_key = first_key + staged < params.num_keys, has_column = first_column + staged < columns;
    const float* from_key = params.latents + static_cast<i64>(first_key + staged) * latent;
    const Weight* from_column =
        static_cast<const Weight*>(params.kv_up) + static_cast<i64>(first_column + staged) * latent;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const auto stage = [&](float4 (&tile)[DEPTH][EXPAND / 4 + 1], float4 four) {
        float* to = reinterpret_cast<float*>(&tile[depth][0]) + staged;
        constexpr int ROW = EXPAND + 4;
        to[0] = four.x, to[ROW] = four.y, to[2 * ROW] = four.z, to[3 * ROW] = four.w;
    };

    float4 sums[4] = {};
    for (int begin = 0; begin < latent; begin += DEPTH) {
        const bool inside = begin + depth < latent;
        stage(latents, has_key && inside ? four_of(from_key + begin + depth) : zero);
        stage(weights, has_column && inside ? four_of(from_column + begin + depth) : zero);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const float4 x = latents[i][key];
            const float4 w = weights[i][column];
            sums[0] = fma4(x.x, w, sums[0]);
            sums[1] = fma4(x.y, w, sums[1]);
            sums[2] = fma4(x.z, w, sums[2]);
            sums[3] = fma4(x.w, w, sums[3]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int k = first_key + 4 * key + i, c = first_column + 4 * column;
        if (k < params.num_keys && c < columns) {
            store_four(params.keys_values + static_cast<i64>(k) * columns + c, sums[i]);
        }
    }
}

// Attention of 32 rows of one head to a slab. A warp has four rows; for scores a lane has one key of a tile, for values
// the columns 4 * (lane + 32 step) .. + 3.
__device__ __forceinline__ void prefill(const Params& params) {
    __shared__ float4 queries[QUERIES][MAX_HEAD / 4];
    // One more of four keeps lanes, each in a row of its own, on different banks.
    __shared__ float4 keys[KEYS][CHUNK / 4 + 1];
    __shared__ float4 weights[QUERIES][KEYS / 4];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    const int nope = params.nope, value = params.value, width = params.nope + params.rope;
    const i64 columns = static_cast<i64>(params.num_heads) * (nope + value);
    const float* nope_keys = params.keys_values + static_cast<i64>(head) * (nope + value);
    const float* values = nope_keys + nope;
    const float infinity = __uint_as_float(0x7f800000u);
    const int first = blockIdx.x * QUERIES;  // row of the launch
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    float largest[WARP_QUERIES], total[WARP_QUERIES];
    float4 sums[WARP_QUERIES][VALUE_STEPS] = {};
#pragma unroll
    for (int r = 0; r < WARP_QUERIES; ++r) {
        const int query = warp * WARP_QUERIES + r;
        const bool present = first + query < params.num_rows;
        const i64 row = params.first_row + first + query;
        for (int i = lane; i < width / 4; i += 32) {
            queries[query][i] = present ? query_four(params.query + (row * params.num_heads + head) * width,
                                                     params.rotations + row * params.rope, nope, params.rope, 4 * i)
                                        : zero;
        }
        largest[r] = -infinity;
        total[r] = 0.0f;
        if (present && params.first_key > 0) {
            const i64 at = row * params.num_heads + head;
            largest[r] = params.statistics[2 * at];
            total[r] = params.statistics[2 * at + 1];
#pragma unroll
            for (int step = 0; step < VALUE_STEPS; ++step) {
                const int column = 4 * (32 * step + lane);
                if (column < value) {
                    sums[r][step] = four_of(params.attended + at * value + column);
                }
            }
        }
    }

    // Keys of the slab that the last row of the block sees.
    const int last_row = min(first + QUERIES, params.num_rows) - 1;
    const int end = min(params.num_keys, params.first_position + last_row + 1 - params.first_key);
    for (int tile = 0; tile < end; tile += KEYS) {
        float scores[WARP_QUERIES] = {};
        for (int begin = 0; begin < width; begin += CHUNK) {
            __syncthreads();
            for (int i = threadIdx.x; i < KEYS * (CHUNK / 4); i += THREADS) {
                const int key = i / (CHUNK / 4), at = i % (CHUNK / 4), column = begin + 4 * at;
                if (column < width) {
                    float4 four = zero;
                    if (tile + key < params.num_keys) {
                        const i64 row = tile + key;
                        four = four_of(column < nope ? nope_keys + row * columns + column
                                                     : params.rope_keys + row * params.rope + column - nope);
                    }
                    keys[key][at] = four;
                }
            }
            __syncthreads();
            const int fours = min(CHUNK, width - begin) / 4;
#pragma unroll 4
            for (int i = 0; i < fours; ++i) {
                const float4 key = keys[lane][i];
#pragma unroll
                for (int r = 0; r < WARP_QUERIES; ++r) {
                    scores[r] = dot4(queries[warp * WARP_QUERIES + r][begin / 4 + i], key, scores[r]);
                }
            }
        }

        // Keys of the tile that each row sees; the same in every lane.
        int visible[WARP_QUERIES];
#pragma unroll
        for (int r = 0; r < WARP_QUERIES; ++r) {
            const int row = first + warp * WARP_QUERIES + r;
            const int seen = params.first_position + row + 1 - params.first_key - tile;
            visible[r] = row < params.num_rows ? max(0, min(seen, KEYS)) : 0;
            float weight = 0.0f;
            if (visible[r] > 0) {
                const float score = lane < visible[r] ? params.scale * scores[r] : -infinity;
                const float before = largest[r];
                largest[r] = fmaxf(before, group_max<32>(score));
                const float shrink = expf(before - largest[r]);
                weight = expf(score - largest[r]);
                total[r] = __fmaf_rn(total[r], shrink, group_sum<32>(weight));
#pragma unroll
                for (int step = 0; step < VALUE_STEPS; ++step) {
                    sums[r][step] = scale4(shrink, sums[r][step]);
                }
            }
            reinterpret_cast<float*>(&weights[warp * WARP_QUERIES + r][0])[lane] = weight;
        }
        __syncwarp();

        // Later rows see no fewer keys, but rows beyond the launch see none.
        int most = 0;
#pragma unroll
        for (int r = 0; r < WARP_QUERIES; ++r) {
            most = max(most, visible[r]);
        }
        for (int begin = 0; begin < most; begin += 4) {
            float4 weight[WARP_QUERIES];
#pragma unroll
            for (int r = 0; r < WARP_QUERIES; ++r) {
                weight[r] = weights[warp * WARP_QUERIES + r][begin / 4];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (begin + i < most) {
                    const float* from = values + (tile + begin + i) * columns;
#pragma unroll
                    for (int step = 0; step < VALUE_STEPS; ++step) {
                        const int column = 4 * (32 * step + lane);
                        if (column < value) {
                            const float4 four = four_of(from + column);
#pragma unroll
                            for (int r = 0; r < WARP_QUERIES; ++r) {
                                if (begin + i < visible[r]) {
                                    const float part[4] = {weight[r].x, weight[r].y, weight[r].z, weight[r].w};
                                    sums[r][step] = fma4(part[i], four, sums[r][step]);
                                }
                            }
                        }
                    }
                }
            }
        }
        __syncwarp();
    }

#pragma unroll
    for (int r = 0; r < WARP_QUERIES; ++r) {
        const int row = first + warp * WARP_QUERIES + r;
        if (row >= params.num_rows) {
            continue;
        }
        const bool done = params.first_position + row < params.first_key + params.num_keys;
        const i64 at = static_cast<i64>(params.first_row + row) * params.num_heads + head;
#pragma unroll
        for (int step = 0; step < VALUE_STEPS; ++step) {
            const int column = 4 * (32 * step + lane);
            if (column < value) {
                const float4 values = done ? divide4(sums[r][step], total[r]) : sums[r][step];
                store_four(params.attended + at * value + column, values);
                if (done && params.rounded != nullptr) {
                    *reinterpret_cast<uint2*>(params.rounded + at * value + column) =
                        make_uint2(pair_of(values.x, values.y), pair_of(values.z, values.w));
                }
            }
        }
        if (!done && lane == 0) {
            params.statistics[2 * at] = largest[r];
            params.statistics[2 * at + 1] = total[r];
        }
    }
}

#define KERNEL(name, body)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ Params params) { \
        begin_kernel();                                                                                           \
        body(params);                                                                                             \
    }

KERNEL(mla_gather_f32, gather<RowF32>)
KERNEL(mla_gather_bf16, gather<RowBf16>)
KERNEL(mla_gather_fp8, gather<RowFp8<false>>)
KERNEL(mla_gather_fp8_rope, gather<RowFp8<true>>)
KERNEL(mla_expand_f32, expand<float>)
KERNEL(mla_expand_bf16, expand<bf16>)
KERNEL(mla_prefill, prefill)
