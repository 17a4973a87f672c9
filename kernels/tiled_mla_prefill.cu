// tiled_mla_gather, tiled_mla_expand, tiled_mla_prefill: mla_prefill.cu on the tensor cores: queries, keys, values and
// probabilities in bf16, sums in f32.
// Source:  DeepSeek-V2, arXiv 2405.04434, equations 9-19; Dao, "FlashAttention-2", arXiv 2307.08691, section 3.1.
// Twin:    src/cuda/kernels/tiled_mla_prefill.rs. Spec: host/reference.rs `attend_expanded`.
// Legend:  Q rows of a segment, K keys of a slab, H heads, N, R, V, C as in ops/shapes.rs `MlaShape`, B bytes of a row.
// Shapes:  query [T, H*(N+R)] f32, not rotated; kv_up [H*(N+V), C] bf16; cache [slots, B] bf16 or FP8; attended [T, H*V] f32.
// Traffic: per slab K*B bytes of cache; 2*K*H*(N+V) bytes of scratch, written once and read once per 128 rows (from L2 as
//          long as a head's part fits there); 4*Q*H*(N+R+2V).
// Work:    2*K*H*(N+V)*C for the expansion, 2*H*(N+R+V) per row and visible key.
// Floor:   Q=K=8192 H=64 N=V=128 R=64 C=512: 137 + 1374 GFLOP -> 1.9 ms at 790 TFLOP/s (H200); exponentials 2.1e9 ->
//          0.56 ms at 16 per cycle and multiprocessor.
// Grid:    gather: K/8 blocks; expand: 128x128 tiles of [K, H*(N+V)]; prefill: (128 rows, H). 256 threads.
//          Shared memory: expand 40 KB, prefill 87 KB.
// Order:   expansion: in order of C by steps of 16; scores: in order of N + R by steps of 16; softmax: tiles of 64 keys at
//          absolute positions, a slab being a multiple of them; values in order of the keys by steps of 16. Between slabs a
//          row's largest score and sum are kept in scratch and its sum of values in `attended`, unrounded: slabs and chunks
//          of a prompt do not change a row's bits.
// Tried:   H100, 2,048 rows of 32,768 keys: 27.2 ms, 118 TFLOP/s, expansion included; expand of 2,048 keys 197 us.
//          Hopper has wgmma_mla_prefill.cu, B200 tcgen05_mla_prefill.cu.
//
// A key that is not finite is expanded as 0, because a probability of 0 times NaN would reach the rows before it; its NaN
// is added to the scores of the rows that see it.

#include "cached_row.cuh"
#include "mla.cuh"
#include "mla_slab.cuh"
#include "mma.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
// Rows of a block of prefill, 16 of each warp, and keys that it takes at once.
constexpr int QUERIES = 16 * WARPS;
constexpr int KEYS = 64;
// Bounds of N + R and of V.
constexpr int MAX_HEAD = 192;
constexpr int MAX_VALUE = 128;
constexpr int STEPS = MAX_HEAD / 16;
constexpr int VALUE_TILES = MAX_VALUE / 8;
// Rows of shared memory begin four banks apart.
constexpr int KEY_PITCH = MAX_HEAD + 8;
constexpr int VALUE_PITCH = MAX_VALUE + 8;
// Tile of expand, and its columns of C at once.
constexpr int EXPAND = 128;
constexpr int DEPTH = 32;
constexpr int DEPTH_PITCH = DEPTH + 8;

// All sizes are multiples of 16, N + R and V at most the bounds above; kv_up is bf16.
using Params = MlaPrefillParams<bf16>;

// Cached rows of the slab in bf16, which holds them exactly. A warp has one key.
template <typename Row>
__device__ __forceinline__ void gather(const Params& params) {
    const int key = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (key >= params.num_keys) {
        return;
    }
    const u8* row = cached_row(params.cache, params.block_table, params.first_key + key, params.row_bytes);
    bf16* latent = params.latents + static_cast<i64>(key) * params.latent;
    bf16* rope_key = params.rope_keys + static_cast<i64>(key) * params.rope;
    // Magnitudes order as their bits do, with infinity and NaN above every number.
    u32 peak = 0;
    for (int i = 4 * lane; i < params.latent; i += 128) {
        const float4 four = Row::load(row, params.latent, params.rope, i);
        peak = max(peak, __float_as_uint(four.x) & 0x7fffffffu);
        peak = max(peak, __float_as_uint(four.y) & 0x7fffffffu);
        peak = max(peak, __float_as_uint(four.z) & 0x7fffffffu);
        peak = max(peak, __float_as_uint(four.w) & 0x7fffffffu);
    }
    const bool finite = __reduce_max_sync(0xffffffffu, peak) < 0x7f800000u;
    for (int i = 4 * lane; i < params.latent + params.rope; i += 128) {
        const float4 four = Row::load(row, params.latent, params.rope, i);
        uint2 pairs = make_uint2(pair_of(four.x, four.y), pair_of(four.z, four.w));
        if (i < params.latent && !finite) {
            pairs = make_uint2(0, 0);
        }
        *reinterpret_cast<uint2*>(i < params.latent ? latent + i : rope_key + i - params.latent) = pairs;
    }
    if (lane == 0) {
        params.faults[key] = finite ? 0.0f : __uint_as_float(0x7fc00000u);
    }
}

// keys_values = latents kv_up^T. A block has a tile of 128 keys and 128 columns, a warp 64 keys and 32 columns of it.
__device__ __forceinline__ void expand(const Params& params) {
    // Dynamic, as in prefill: the most dynamic memory of any launch is declared for all functions of the file, and a block of some
    // chips has no room for static memory beside it.
    extern __shared__ uint4 memory[];
    auto* staged = reinterpret_cast<uint4(*)[2][EXPAND][DEPTH_PITCH / 8]>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int latent = params.latent, columns = params.num_heads * (params.nope + params.value);
    const int first_column = blockIdx.x * EXPAND, first_key = blockIdx.y * EXPAND;
    const int warp_key = warp % 2 * 64, warp_column = warp / 2 * 32;
    const bf16* kv_up = static_cast<const bf16*>(params.kv_up);

    // A thread stages eight values of two keys and of two columns.
    constexpr int PARTS = DEPTH / 8, ROWS = THREADS / PARTS;
    const int row = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    uint4 next[2][2];
    const auto load = [&](int begin) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int key = first_key + row + r * ROWS, column = first_column + row + r * ROWS, at = begin + 8 * part;
            next[0][r] = next[1][r] = make_uint4(0, 0, 0, 0);
            if (at < latent && key < params.num_keys) {
                next[0][r] = *reinterpret_cast<const uint4*>(params.latents + static_cast<i64>(key) * latent + at);
            }
            if (at < latent && column < columns) {
                next[1][r] = *reinterpret_cast<const uint4*>(kv_up + static_cast<i64>(column) * latent + at);
            }
        }
    };
    load(0);

    float sums[4][4][4] = {};
    for (int begin = 0; begin < latent; begin += DEPTH) {
        auto& tiles = staged[begin / DEPTH % 2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            tiles[0][row + r * ROWS][part] = next[0][r];
            tiles[1][row + r * ROWS][part] = next[1][r];
        }
        __syncthreads();
        if (begin + DEPTH < latent) {
            load(begin + DEPTH);
        }
#pragma unroll
        for (int step = 0; step < DEPTH / 16; ++step) {
            u32 a[4][4], b[2][4];
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                load_matrices(a[m], reinterpret_cast<const bf16*>(&tiles[0][warp_key + 16 * m + lane % 16][2 * step + lane / 16]));
            }
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int at = warp_column + 16 * n + lane / 16 * 8 + lane % 8;
                load_matrices(b[n], reinterpret_cast<const bf16*>(&tiles[1][at][2 * step + lane / 8 % 2]));
            }
#pragma unroll
            for (int m = 0; m < 4; ++m) {
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    mma(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int key = first_key + warp_key + 16 * m + 8 * r + g;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int column = first_column + warp_column + 8 * n + 2 * t;
                if (key < params.num_keys && column < columns) {
                    *reinterpret_cast<u32*>(params.keys_values + static_cast<i64>(key) * columns + column) =
                        pair_of(sums[m][n][2 * r], sums[m][n][2 * r + 1]);
                }
            }
        }
    }
}

// Values i and i + 1 of a query head as attention reads them; i is even.
__device__ __forceinline__ u32 query_two(const float* head, const float* rotation, int nope, int rope, int i) {
    const float2 x = *reinterpret_cast<const float2*>(head + i);
    if (i < nope) {
        return pair_of(x.x, x.y);
    }
    const float cosine = rotation[(i - nope) / 2], sine = rotation[(i - nope + rope) / 2];
    return pair_of(x.x * cosine - x.y * sine, x.y * cosine + x.x * sine);
}

struct Shared {
    bf16 keys[2][KEYS][KEY_PITCH];
    bf16 values[2][KEYS][VALUE_PITCH];
    float faults[2][KEYS];
};

// Attention of 128 rows of one head to a slab. A warp has 16 rows, a lane two of them: g and g + 8.
__device__ __forceinline__ void prefill(const Params& params) {
    extern __shared__ uint4 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, head = blockIdx.y;
    const int nope = params.nope, value = params.value, width = params.nope + params.rope;
    const i64 columns = static_cast<i64>(params.num_heads) * (nope + value);
    const bf16* from = params.keys_values + static_cast<i64>(head) * (nope + value);
    const float infinity = __uint_as_float(0x7f800000u), scale = params.scale * LOG2_E;
    const int first = blockIdx.x * QUERIES, warp_first = first + 16 * warp;  // rows of the launch

    // Keys and values of a tile; rows behind the slab are zeros.
    const auto load = [&](int tile) {
        const int buffer = tile / KEYS % 2, parts = (width + value) / 8;
        for (int i = threadIdx.x; i < KEYS * parts; i += THREADS) {
            const int key = i / parts, column = i % parts * 8;
            const i64 at = tile + key;
            bf16* to = column < width ? &shared.keys[buffer][key][column] : &shared.values[buffer][key][column - width];
            if (tile + key >= params.num_keys) {
                *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
            } else if (column < nope) {
                copy16(to, from + at * columns + column);
            } else if (column < width) {
                copy16(to, params.rope_keys + at * params.rope + column - nope);
            } else {
                copy16(to, from + at * columns + nope + column - width);
            }
        }
        for (int key = threadIdx.x; key < KEYS; key += THREADS) {
            shared.faults[buffer][key] = tile + key < params.num_keys ? params.faults[tile + key] : 0.0f;
        }
        commit_copies();
    };
    // Keys of the slab that the last row of the block sees, and that of the warp.
    const auto seen_by = [&](int row) {
        return min(params.num_keys, params.first_position + min(row, params.num_rows - 1) + 1 - params.first_key);
    };
    const int end = seen_by(first + QUERIES - 1);
    const int warp_end = warp_first < params.num_rows ? seen_by(warp_first + 15) : 0;
    load(0);

    u32 query[STEPS][4] = {};
    float largest[2], total[2];
    float sums[VALUE_TILES][4] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        largest[r] = -infinity, total[r] = 0.0f;
        if (warp_first + 8 * r + g < params.num_rows) {
            const i64 row = params.first_row + warp_first + 8 * r + g, at = row * params.num_heads + head;
            const float* rotation = params.rotations + row * params.rope;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                if (16 * step < width) {
                    const int column = 16 * step + 2 * t;
                    query[step][r] = query_two(params.query + at * width, rotation, nope, params.rope, column);
                    query[step][r + 2] = query_two(params.query + at * width, rotation, nope, params.rope, column + 8);
                }
            }
            if (params.first_key > 0) {
                largest[r] = params.statistics[2 * at], total[r] = params.statistics[2 * at + 1];
#pragma unroll
                for (int n = 0; n < VALUE_TILES; ++n) {
                    if (8 * n < value) {
                        const float2 two = *reinterpret_cast<const float2*>(params.attended + at * value + 8 * n + 2 * t);
                        sums[n][2 * r] = two.x, sums[n][2 * r + 1] = two.y;
                    }
                }
            }
        }
    }

    for (int tile = 0; tile < end; tile += KEYS) {
        const int buffer = tile / KEYS % 2;
        if (tile + KEYS < end) {
            load(tile + KEYS);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        __syncthreads();
        if (tile < warp_end) {
            float scores[KEYS / 8][4] = {};
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                if (16 * step < width) {
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n += 2) {
                        u32 b[4];
                        load_matrices(b, &shared.keys[buffer][8 * n + lane / 16 * 8 + lane % 8][16 * step + lane / 8 % 2 * 8]);
                        mma(scores[n], query[step], b[0], b[1]);
                        mma(scores[n + 1], query[step], b[2], b[3]);
                    }
                }
            }
            float peaks[2] = {-infinity, -infinity};
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                const float2 fault = *reinterpret_cast<const float2*>(&shared.faults[buffer][8 * n + 2 * t]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    // Position of the row less that of the key.
                    const int ahead = params.first_position + warp_first + i / 2 * 8 + g - params.first_key - tile - 8 * n -
                                      2 * t - i % 2;
                    const float score = __fmaf_rn(scores[n][i], scale, i % 2 ? fault.y : fault.x);
                    scores[n][i] = ahead >= 0 ? score : -infinity;
                    peaks[i / 2] = fmaxf(peaks[i / 2], scores[n][i]);
                }
            }
            float shrink[2], added[2] = {};
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float before = largest[r];
                largest[r] = fmaxf(before, group_max<4>(peaks[r]));
                shrink[r] = exp2_of(before - largest[r]);
            }
            u32 weights[KEYS / 16][4];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float a = exp2_of(scores[n][2 * r] - largest[r]), b = exp2_of(scores[n][2 * r + 1] - largest[r]);
                    added[r] += a;
                    added[r] += b;
                    weights[n / 2][n % 2 * 2 + r] = pair_of(a, b);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                total[r] = __fmaf_rn(total[r], shrink[r], group_sum<4>(added[r]));
            }
#pragma unroll
            for (int n = 0; n < VALUE_TILES; ++n) {
                sums[n][0] *= shrink[0], sums[n][1] *= shrink[0], sums[n][2] *= shrink[1], sums[n][3] *= shrink[1];
            }
#pragma unroll
            for (int step = 0; step < KEYS / 16; ++step) {
#pragma unroll
                for (int n = 0; n < VALUE_TILES; n += 2) {
                    if (8 * n < value) {
                        u32 b[4];
                        load_transposed(b, &shared.values[buffer][16 * step + lane % 16][8 * n + lane / 16 * 8]);
                        mma(sums[n], weights[step], b[0], b[1]);
                        mma(sums[n + 1], weights[step], b[2], b[3]);
                    }
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = warp_first + 8 * r + g;
        if (row >= params.num_rows) {
            continue;
        }
        const bool done = params.first_position + row < params.first_key + params.num_keys;
        const i64 at = static_cast<i64>(params.first_row + row) * params.num_heads + head;
#pragma unroll
        for (int n = 0; n < VALUE_TILES; ++n) {
            if (8 * n < value) {
                float2 two = make_float2(sums[n][2 * r], sums[n][2 * r + 1]);
                if (done) {
                    two = make_float2(__fdiv_rn(two.x, total[r]), __fdiv_rn(two.y, total[r]));
                    if (params.rounded != nullptr) {
                        *reinterpret_cast<u32*>(params.rounded + at * value + 8 * n + 2 * t) = pair_of(two.x, two.y);
                    }
                }
                *reinterpret_cast<float2*>(params.attended + at * value + 8 * n + 2 * t) = two;
            }
        }
        if (!done && t == 0) {
            params.statistics[2 * at] = largest[r];
            params.statistics[2 * at + 1] = total[r];
        }
    }
}

#define KERNEL(name, body)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ Params params) { \
        begin_kernel();                                                                                                \
        body(params);                                                                                                  \
    }

KERNEL(tiled_mla_gather_bf16, gather<RowBf16>)
KERNEL(tiled_mla_gather_fp8, gather<RowFp8<false>>)
KERNEL(tiled_mla_gather_fp8_rope, gather<RowFp8<true>>)
KERNEL(tiled_mla_expand, expand)
KERNEL(tiled_mla_prefill, prefill)
