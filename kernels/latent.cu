// latent: the norm of the query's latent; norm, rotation and storage of the key's latent.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; rope: Su et al., arXiv 2104.09864. Twin: src/cuda/kernels/latent.rs.
// Spec:    ops/backend.rs `attention_in`; host/reference.rs `write_latent`; row formats: quant/cached_row.rs.
// Legend:  T rows (tokens), Q q_lora_rank, C kv_lora_rank, R qk_rope_head_dim.
// Shapes:  q_latent [T, Q] f32; kv_a [T, C+R] f32; rotations [T, R] f32, R/2 cosines then R/2 sines; cache [slots, row].
// Traffic: T*(8Q + 4(C+R) + bytes of a cached row) bytes.
// Floor:   Q=1536, C=512, R=64, FP8 rows: T=2048 is 31 MB -> 7 us at 4.3 TB/s (H200); T=1 is latency.
// Grid:    (T, 2): y = 0 stores the key's latent, y = 1 normalises the query's; 256 threads. z > 0 fetches ahead.
// Order:   a thread adds its squares in order of the columns, then block_sum.
// Tried:   H100, T=1: 6 us; T=2048: 22 us, with gains that were loaded behind the sum. All loads of a row are on their way before it now,
//          which has not run on a GPU.

#include "ahead.cuh"
#include "types.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr u32 PAD = 0xffffffffu;
// Most columns of a latent with its rope key, which shared memory holds.
constexpr int MAX_COLUMNS = 2048;

// Scales of FP8 rows: the byte of 1, of a row that is not finite, and the bound of the others around 1.
constexpr int SCALE_ONE = 127;
constexpr u8 SCALE_NOT_FINITE = 0xff;
constexpr int SCALE_BOUND = 100;

struct LatentParams {
    float* q_latent;         // [T, Q], normalised in place; null: no query latent
    bf16* q_rounded;         // [T, Q], the same in bf16, or null
    const float* q_gain;     // [Q]
    const float* kv_a;       // [T, C+R]
    const float* kv_gain;    // [C]
    const float* rotations;  // [T, R]
    const u32* slots;        // [T], place in the cache, or PAD
    u8* cache;               // the layer
    int q_columns;           // Q
    int columns;             // C
    int rope;                // R
    int row_bytes;           // of a cached row
    int row_scales;          // FP8: whether a row has scales of its own
    int exponent;            // FP8: else the scale is 2^exponent
    float eps;
    int padding;
};

struct LatentLaunch {
    LatentParams params;
    Ahead ahead;
};

__device__ __forceinline__ float inverse_root(float squares, int columns, float eps, float (&warp_sums)[WARPS]) {
    const float mean_square = __fdiv_rn(block_sum(squares, warp_sums), static_cast<float>(columns));
    return __frcp_rn(__fsqrt_rn(mean_square + eps));
}

// A thread's columns of a row and of its norm's gain, every 256th from its own on: what is needed of both is on its way before the sum of
// squares. STEPS of them are in registers; longer rows are read again.
constexpr int STEPS = 8;

struct Row {
    const float* from;
    const float* gain;
    int columns;
    float values[STEPS], gains[STEPS];

    __device__ __forceinline__ Row(const float* from, const float* gain, int columns) : from(from), gain(gain), columns(columns) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int column = step * THREADS + static_cast<int>(threadIdx.x);
            const bool is_there = column < columns;
            values[step] = is_there ? from[column] : 0.0f;
            gains[step] = is_there ? gain[column] : 0.0f;
        }
    }

    __device__ __forceinline__ float squares() const {
        float squares = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            squares = __fmaf_rn(values[step], values[step], squares);
        }
        for (int i = STEPS * THREADS + static_cast<int>(threadIdx.x); i < columns; i += THREADS) {
            squares = __fmaf_rn(from[i], from[i], squares);
        }
        return squares;
    }

    // Calls `with` with each column and its normalised value.
    template <typename With>
    __device__ __forceinline__ void normalised(float inverse, const With& with) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int column = step * THREADS + static_cast<int>(threadIdx.x);
            if (column < columns) {
                with(column, gains[step] * (values[step] * inverse));
            }
        }
        for (int i = STEPS * THREADS + static_cast<int>(threadIdx.x); i < columns; i += THREADS) {
            with(i, gain[i] * (from[i] * inverse));
        }
    }
};

__device__ __forceinline__ void normalise_query(const LatentParams& params) {
    __shared__ float warp_sums[WARPS];
    const i64 first = static_cast<i64>(blockIdx.x) * params.q_columns;
    float* to = params.q_latent + first;
    const Row row(to, params.q_gain, params.q_columns);
    const float inverse = inverse_root(row.squares(), params.q_columns, params.eps, warp_sums);
    row.normalised(inverse, [&](int column, float value) {
        to[column] = value;
        if (params.q_rounded != nullptr) {
            params.q_rounded[first + column] = bf16_of(value);
        }
    });
}

// Puts the normalised latent and the rotated rope key of this block's row into `values` [C+R].
__device__ __forceinline__ void compute_row(const LatentParams& params, float* values) {
    __shared__ float warp_sums[WARPS];
    const int thread = static_cast<int>(threadIdx.x);
    const float* from = params.kv_a + static_cast<i64>(blockIdx.x) * (params.columns + params.rope);
    const Row row(from, params.kv_gain, params.columns);
    const float* rotation = params.rotations + static_cast<i64>(blockIdx.x) * params.rope;
    const int half = params.rope / 2;
    for (int i = thread; i < half; i += THREADS) {
        const float cosine = rotation[i], sine = rotation[half + i];
        const float a = from[params.columns + 2 * i], b = from[params.columns + 2 * i + 1];
        values[params.columns + 2 * i] = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
        values[params.columns + 2 * i + 1] = __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine));
    }
    const float inverse = inverse_root(row.squares(), params.columns, params.eps, warp_sums);
    row.normalised(inverse, [&](int column, float value) { values[column] = value; });
    __syncthreads();
}

// 2^n for n in -126..=127.
__device__ __forceinline__ float power_of_two(int n) { return __uint_as_float(static_cast<u32>(127 + n) << 23); }

// The nearest E4M3 code, ties to even, saturating at 448; x is finite.
__device__ __forceinline__ u8 e4m3_of(float x) {
    const u32 sign = __float_as_uint(x) >> 31 << 7;
    const float magnitude = fminf(fabsf(x), 448.0f);
    if (magnitude < 0.015625f) {
        // Multiples of 2^-9.
        return static_cast<u8>(sign | __float2uint_rn(magnitude * 512.0f));
    }
    const u32 bits = __float_as_uint(magnitude);
    return static_cast<u8>(sign | (((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3)));
}

// Stores `count` values as codes and returns their scale byte, in every thread. A block-wide call.
__device__ __forceinline__ u8 store_codes(const LatentParams& params, const float* values, int count, u8* codes) {
    __shared__ u32 peaks[WARPS];
    const int thread = static_cast<int>(threadIdx.x);
    // Magnitudes order as their bits do, with infinity and NaN above every number.
    u32 peak = 0;
    for (int i = thread; i < count; i += THREADS) {
        peak = max(peak, __float_as_uint(values[i]) & 0x7fffffffu);
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
    __syncthreads();
    if (thread % 32 == 0) {
        peaks[thread / 32] = peak;
    }
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        peak = max(peak, peaks[warp]);
    }
    if (peak >= 0x7f800000u) {
        for (int i = thread; i < count; i += THREADS) {
            codes[i] = 0;
        }
        return SCALE_NOT_FINITE;
    }
    int exponent = params.exponent;
    if (params.row_scales) {
        // 448 is 1.75 * 2^8: the peak's exponent less 8, or one more if its mantissa is above 1.75.
        exponent = peak == 0 ? 0 : static_cast<int>(peak >> 23) - 127 - 8 + ((peak & 0x007fffffu) > 0x00600000u);
    }
    exponent = max(-SCALE_BOUND, min(SCALE_BOUND, exponent));
    const float inverse = power_of_two(-exponent);
    for (int i = thread; i < count; i += THREADS) {
        codes[i] = e4m3_of(values[i] * inverse);
    }
    return static_cast<u8>(SCALE_ONE + exponent);
}

enum RowKind { ROW_F32, ROW_BF16, ROW_FP8, ROW_FP8_ROPE };

template <RowKind KIND>
__device__ __forceinline__ void latent(const LatentParams& params) {
    if (blockIdx.y == 1) {
        normalise_query(params);
        return;
    }
    __shared__ float values[MAX_COLUMNS];
    const int thread = static_cast<int>(threadIdx.x);
    const u32 slot = params.slots[blockIdx.x];
    if (slot == PAD) {
        return;
    }
    compute_row(params, values);
    u8* row = params.cache + static_cast<i64>(slot) * params.row_bytes;
    const int all = params.columns + params.rope;
    if constexpr (KIND == ROW_F32) {
        for (int i = thread; i < all; i += THREADS) {
            reinterpret_cast<float*>(row)[i] = values[i];
        }
    } else if constexpr (KIND == ROW_BF16) {
        for (int i = 2 * thread; i < all; i += 2 * THREADS) {
            reinterpret_cast<u32*>(row)[i / 2] = pair_of(values[i], values[i + 1]);
        }
    } else {
        const u8 scale = store_codes(params, values, params.columns, row);
        u8* rope = row + params.columns;
        u8* scales = rope + (KIND == ROW_FP8 ? 2 : 1) * params.rope;
        if constexpr (KIND == ROW_FP8) {
            for (int i = 2 * thread; i < params.rope; i += 2 * THREADS) {
                reinterpret_cast<u32*>(rope)[i / 2] = pair_of(values[params.columns + i], values[params.columns + i + 1]);
            }
        } else {
            const u8 rope_scale = store_codes(params, values + params.columns, params.rope, rope);
            if (thread == 0) {
                scales[1] = rope_scale;
            }
        }
        if (thread == 0) {
            scales[0] = scale;
        }
    }
}

#define KERNEL(name, KIND)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ LatentLaunch launch) { \
        begin_kernel();                                                                              \
        if (blockIdx.z == 0) {                                                                       \
            latent<KIND>(launch.params);                                                             \
        } else if (threadIdx.x == 0) {                                                               \
            const u32 blocks = gridDim.x * gridDim.y;                                                \
            fetch_ahead(launch.ahead, (blockIdx.z - 1) * blocks + blockIdx.y * gridDim.x + blockIdx.x, \
                        (gridDim.z - 1) * blocks);                                                   \
        }                                                                                            \
    }

KERNEL(latent_f32, ROW_F32)
KERNEL(latent_bf16, ROW_BF16)
KERNEL(latent_fp8, ROW_FP8)
KERNEL(latent_fp8_rope, ROW_FP8_ROPE)
