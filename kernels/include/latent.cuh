// Latents of attention's inputs: the norm of the query's, and the norm, rotation and storage of the key's.
//
// Legend as in latent.cu. FRESH: other blocks of this launch wrote the rows, so they are read from the second cache.

#include "types.cuh"
#include "reduce.cuh"

constexpr int LATENT_THREADS = 256;
constexpr int LATENT_WARPS = LATENT_THREADS / 32;
// No place in the cache.
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

__device__ __forceinline__ float inverse_root(float squares, int columns, float eps, float (&warp_sums)[LATENT_WARPS]) {
    const float mean_square = __fdiv_rn(block_sum(squares, warp_sums), static_cast<float>(columns));
    return __frcp_rn(__fsqrt_rn(mean_square + eps));
}

template <bool FRESH>
__device__ __forceinline__ float value_at(const float* from) {
    if constexpr (FRESH) {
        return __ldcg(from);
    } else {
        return *from;
    }
}

// A thread's columns of a row and of its norm's gain, every 256th from its own on: what is needed of both is on its way before the sum of
// squares. LATENT_STEPS of them are in registers; longer rows are read again.
constexpr int LATENT_STEPS = 8;

template <bool FRESH>
struct LatentRow {
    const float* from;
    const float* gain;
    int columns;
    float values[LATENT_STEPS], gains[LATENT_STEPS];

    __device__ __forceinline__ LatentRow(const float* from, const float* gain, int columns) : from(from), gain(gain), columns(columns) {
#pragma unroll
        for (int step = 0; step < LATENT_STEPS; ++step) {
            const int column = step * LATENT_THREADS + static_cast<int>(threadIdx.x);
            const bool is_there = column < columns;
            values[step] = is_there ? value_at<FRESH>(from + column) : 0.0f;
            gains[step] = is_there ? gain[column] : 0.0f;
        }
    }

    __device__ __forceinline__ float squares() const {
        float squares = 0.0f;
#pragma unroll
        for (int step = 0; step < LATENT_STEPS; ++step) {
            squares = __fmaf_rn(values[step], values[step], squares);
        }
        for (int i = LATENT_STEPS * LATENT_THREADS + static_cast<int>(threadIdx.x); i < columns; i += LATENT_THREADS) {
            const float value = value_at<FRESH>(from + i);
            squares = __fmaf_rn(value, value, squares);
        }
        return squares;
    }

    // Calls `with` with each column and its normalised value.
    template <typename With>
    __device__ __forceinline__ void normalised(float inverse, const With& with) const {
#pragma unroll
        for (int step = 0; step < LATENT_STEPS; ++step) {
            const int column = step * LATENT_THREADS + static_cast<int>(threadIdx.x);
            if (column < columns) {
                with(column, gains[step] * (values[step] * inverse));
            }
        }
        for (int i = LATENT_STEPS * LATENT_THREADS + static_cast<int>(threadIdx.x); i < columns; i += LATENT_THREADS) {
            with(i, gain[i] * (value_at<FRESH>(from + i) * inverse));
        }
    }
};

template <bool FRESH>
__device__ __forceinline__ void normalise_query(const LatentParams& params, int row_index) {
    __shared__ float warp_sums[LATENT_WARPS];
    const i64 first = static_cast<i64>(row_index) * params.q_columns;
    float* to = params.q_latent + first;
    const LatentRow<FRESH> row(to, params.q_gain, params.q_columns);
    const float inverse = inverse_root(row.squares(), params.q_columns, params.eps, warp_sums);
    row.normalised(inverse, [&](int column, float value) {
        to[column] = value;
        if (params.q_rounded != nullptr) {
            params.q_rounded[first + column] = bf16_of(value);
        }
    });
}

// Puts the normalised latent and the rotated rope key of a row into `values` [C+R].
template <bool FRESH>
__device__ __forceinline__ void compute_row(const LatentParams& params, int row_index, float* values) {
    __shared__ float warp_sums[LATENT_WARPS];
    const int thread = static_cast<int>(threadIdx.x);
    const float* from = params.kv_a + static_cast<i64>(row_index) * (params.columns + params.rope);
    const LatentRow<FRESH> row(from, params.kv_gain, params.columns);
    const float* rotation = params.rotations + static_cast<i64>(row_index) * params.rope;
    const int half = params.rope / 2;
    for (int i = thread; i < half; i += LATENT_THREADS) {
        const float cosine = rotation[i], sine = rotation[half + i];
        const float a = value_at<FRESH>(from + params.columns + 2 * i), b = value_at<FRESH>(from + params.columns + 2 * i + 1);
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
    __shared__ u32 peaks[LATENT_WARPS];
    const int thread = static_cast<int>(threadIdx.x);
    // Magnitudes order as their bits do, with infinity and NaN above every number.
    u32 peak = 0;
    for (int i = thread; i < count; i += LATENT_THREADS) {
        peak = max(peak, __float_as_uint(values[i]) & 0x7fffffffu);
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
    __syncthreads();
    if (thread % 32 == 0) {
        peaks[thread / 32] = peak;
    }
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < LATENT_WARPS; ++warp) {
        peak = max(peak, peaks[warp]);
    }
    if (peak >= 0x7f800000u) {
        for (int i = thread; i < count; i += LATENT_THREADS) {
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
    for (int i = thread; i < count; i += LATENT_THREADS) {
        codes[i] = e4m3_of(values[i] * inverse);
    }
    return static_cast<u8>(SCALE_ONE + exponent);
}

enum RowKind { ROW_F32, ROW_BF16, ROW_FP8, ROW_FP8_ROPE };

template <RowKind KIND, bool FRESH>
__device__ __forceinline__ void store_latent(const LatentParams& params, int row_index, float (&values)[MAX_COLUMNS]) {
    const int thread = static_cast<int>(threadIdx.x);
    const u32 slot = params.slots[row_index];
    if (slot == PAD) {
        return;
    }
    compute_row<FRESH>(params, row_index, values);
    u8* row = params.cache + static_cast<i64>(slot) * params.row_bytes;
    const int all = params.columns + params.rope;
    if constexpr (KIND == ROW_F32) {
        for (int i = thread; i < all; i += LATENT_THREADS) {
            reinterpret_cast<float*>(row)[i] = values[i];
        }
    } else if constexpr (KIND == ROW_BF16) {
        for (int i = 2 * thread; i < all; i += 2 * LATENT_THREADS) {
            reinterpret_cast<u32*>(row)[i / 2] = pair_of(values[i], values[i + 1]);
        }
    } else {
        const u8 scale = store_codes(params, values, params.columns, row);
        u8* rope = row + params.columns;
        u8* scales = rope + (KIND == ROW_FP8 ? 2 : 1) * params.rope;
        if constexpr (KIND == ROW_FP8) {
            for (int i = 2 * thread; i < params.rope; i += 2 * LATENT_THREADS) {
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
