// The root mean square norm of a row by a block.

#include "types.cuh"
#include "reduce.cuh"

constexpr int NORM_THREADS = 256;
constexpr int NORM_VALUES = 8;
// A thread holds at most NORM_STEPS * NORM_VALUES columns.
constexpr int NORM_STEPS = 4;

// Rows are contiguous and begin at multiples of 32 bytes.
struct RmsNormParams {
    const float* hidden;  // [T, D], the residual stream
    const float* gain;    // [D]
    float* normed;        // [T, D]
    bf16* rounded;        // [T, D], normed in bf16, or null
    int columns;          // D, a multiple of 8, at most 8192
    float eps;            // added to the mean square
};

__device__ __forceinline__ int norm_column(int step) {
    return (step * NORM_THREADS + static_cast<int>(threadIdx.x)) * NORM_VALUES;
}

// normed = gain * values / sqrt(mean(values^2) + eps), and `rounded` the same in bf16 unless it is null. A thread adds its
// squares in order of the columns, then block_sum: the order is fixed by the number of columns.
__device__ __forceinline__ void write_norm(
    float* normed, bf16* rounded, const float (&values)[NORM_STEPS][NORM_VALUES], const float* gains, int columns, float eps,
    float (&warp_sums)[NORM_THREADS / 32]) {
    float squares = 0.0f;
#pragma unroll
    for (int step = 0; step < NORM_STEPS; ++step) {
        if (norm_column(step) < columns) {
#pragma unroll
            for (int i = 0; i < NORM_VALUES; ++i) {
                squares = __fmaf_rn(values[step][i], values[step][i], squares);
            }
        }
    }
    const float mean_square = __fdiv_rn(block_sum(squares, warp_sums), static_cast<float>(columns));
    const float inverse = __frcp_rn(__fsqrt_rn(mean_square + eps));
#pragma unroll
    for (int step = 0; step < NORM_STEPS; ++step) {
        const int column = norm_column(step);
        if (column < columns) {
            float gain[NORM_VALUES];
            load8(gain, gains + column);
#pragma unroll
            for (int i = 0; i < NORM_VALUES; ++i) {
                gain[i] *= values[step][i] * inverse;
            }
            store8(normed + column, gain);
            if (rounded != nullptr) {
                store8(rounded + column, gain);
            }
        }
    }
}

// The norm of row `row`. FRESH: other blocks of this launch wrote it, so it is read from the second cache.
template <bool FRESH>
__device__ __forceinline__ void norm_row(
    const RmsNormParams& params, int row, float (&warp_sums)[NORM_THREADS / 32]) {
    const i64 first = static_cast<i64>(row) * params.columns;
    float values[NORM_STEPS][NORM_VALUES];
#pragma unroll
    for (int step = 0; step < NORM_STEPS; ++step) {
        const int column = norm_column(step);
        if (column < params.columns) {
            if constexpr (FRESH) {
                load8_fresh(values[step], params.hidden + first + column);
            } else {
                load8(values[step], params.hidden + first + column);
            }
        }
    }
    bf16* rounded = params.rounded == nullptr ? nullptr : params.rounded + first;
    write_norm(params.normed + first, rounded, values, params.gain, params.columns, params.eps, warp_sums);
}
