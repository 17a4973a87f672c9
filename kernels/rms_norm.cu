// rms_norm: normed = gain * hidden / sqrt(mean(hidden^2) + eps); add_rms_norm: first hidden += delta.
// Source:  Zhang and Sennrich, arXiv 1910.07467, section 3. Twin: src/cuda/kernels/rms_norm.rs.
// Spec:    ops/backend.rs `norm`, and the end of `project_add_norm`, `moe` and `dense`; ops/reference.rs `normalise`.
// Legend:  T rows (tokens), D columns (hidden size), A bytes of an activation (bf16 2, f32 4).
// Shapes:  hidden [T, D] f32; delta [T, D] bf16 or f32; gain [D] f32; normed [T, D] bf16 or f32.
// Traffic: rms_norm T*D*(4+A) bytes, add_rms_norm T*D*(4+4+2A); gain 4D, from L2 after the first rows.
// Work:    about 4 FLOP per value: bandwidth-bound at large T, latency-bound below some hundred rows.
// Floor:   add_rms_norm bf16, D=7168: T=8192 is 705 MB -> 164 us at 4.3 TB/s (H200); T=32 is 2.8 MB -> 0.64 us, less
//          than a launch.
// Grid:    one block of 256 threads per row; shared memory: 8 floats. A thread holds its part of the row in registers
//          (32 values at most, so D <= 8192), so that hidden is read once.
// Order:   a thread adds its squares in order of the columns, then block_sum; both are fixed by D, so a row's result
//          does not depend on T or on the other rows.
// Tried:   one version; no timing yet.

#include "reduce.cuh"
#include "types.cuh"

constexpr int THREADS = 256;
constexpr int VALUES = 8;
constexpr int STEPS = 4;

// Rows are contiguous and begin at multiples of 32 bytes (f32) or 16 bytes (bf16).
struct RmsNormParams {
    float* hidden;      // [T, D] f32, the residual stream; written by add_rms_norm alone
    const void* delta;  // [T, D] of the activation's type; read by add_rms_norm alone
    const float* gain;  // [D] f32
    void* normed;       // [T, D] of the activation's type
    int columns;        // D, a multiple of 8, at most THREADS * VALUES * STEPS = 8192
    float eps;          // added to the mean square
};

template <typename Activation, bool ADD>
__device__ __forceinline__ void normalise(const RmsNormParams& params) {
    __shared__ float warp_sums[THREADS / 32];
    const i64 row = static_cast<i64>(blockIdx.x) * params.columns;
    float* hidden = params.hidden + row;
    const Activation* delta = static_cast<const Activation*>(params.delta) + row;
    Activation* normed = static_cast<Activation*>(params.normed) + row;
    const auto column_of = [](int step) { return (step * THREADS + static_cast<int>(threadIdx.x)) * VALUES; };

    // All loads are issued before the first store, which the compiler could not move them across.
    float values[STEPS][VALUES];
    float added[STEPS][VALUES];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int column = column_of(step);
        if (column < params.columns) {
            load8(values[step], hidden + column);
            if constexpr (ADD) {
                load8(added[step], delta + column);
            }
        }
    }

    float squares = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int column = column_of(step);
        if (column < params.columns) {
            if constexpr (ADD) {
#pragma unroll
                for (int i = 0; i < VALUES; ++i) {
                    values[step][i] += added[step][i];
                }
                store8(hidden + column, values[step]);
            }
#pragma unroll
            for (int i = 0; i < VALUES; ++i) {
                squares = __fmaf_rn(values[step][i], values[step][i], squares);
            }
        }
    }

    const float mean_square = __fdiv_rn(block_sum(squares, warp_sums), static_cast<float>(params.columns));
    const float inverse = __frcp_rn(__fsqrt_rn(mean_square + params.eps));
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int column = column_of(step);
        if (column < params.columns) {
            float gain[VALUES];
            load8(gain, params.gain + column);
#pragma unroll
            for (int i = 0; i < VALUES; ++i) {
                gain[i] *= values[step][i] * inverse;
            }
            store8(normed + column, gain);
        }
    }
}

#define KERNEL(name, Activation, ADD)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ RmsNormParams params) { \
        normalise<Activation, ADD>(params);                                                          \
    }

KERNEL(rms_norm_f32, float, false)
KERNEL(rms_norm_bf16, bf16, false)
KERNEL(add_rms_norm_f32, float, true)
KERNEL(add_rms_norm_bf16, bf16, true)
