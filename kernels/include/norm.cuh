// The root mean square norm of a row that a block holds in registers.

constexpr int THREADS = 256;
constexpr int VALUES = 8;
// A thread holds at most STEPS * VALUES columns.
constexpr int STEPS = 4;

__device__ __forceinline__ int column_of(int step) {
    return (step * THREADS + static_cast<int>(threadIdx.x)) * VALUES;
}

// normed = gain * values / sqrt(mean(values^2) + eps), and `rounded` the same in bf16 unless it is null. A thread adds its squares in order of the columns, then
// block_sum: the order is fixed by the number of columns.
__device__ __forceinline__ void write_norm(
    float* normed, bf16* rounded, const float (&values)[STEPS][VALUES], const float* gains, int columns, float eps,
    float (&warp_sums)[THREADS / 32]) {
    float squares = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        if (column_of(step) < columns) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i) {
                squares = __fmaf_rn(values[step][i], values[step][i], squares);
            }
        }
    }
    const float mean_square = __fdiv_rn(block_sum(squares, warp_sums), static_cast<float>(columns));
    const float inverse = __frcp_rn(__fsqrt_rn(mean_square + eps));
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int column = column_of(step);
        if (column < columns) {
            float gain[VALUES];
            load8(gain, gains + column);
#pragma unroll
            for (int i = 0; i < VALUES; ++i) {
                gain[i] *= values[step][i] * inverse;
            }
            store8(normed + column, gain);
            if (rounded != nullptr) {
                store8(rounded + column, gain);
            }
        }
    }
}
