// rms_norm: normed = gain * hidden / sqrt(mean(hidden^2) + eps).
// Source:  Zhang and Sennrich, arXiv 1910.07467, section 3. Twin: src/cuda/kernels/rms_norm.rs.
// Spec:    ops/backend.rs `norm`; ops/reference.rs `normalise`.
// Legend:  T rows (tokens), D columns (hidden size).
// Shapes:  hidden [T, D] f32; gain [D] f32; normed [T, D] f32.
// Traffic: 8*T*D bytes; gain 4*D, from L2 after the first rows.
// Work:    about 4 FLOP per value: bandwidth-bound at large T, latency-bound below some hundred rows.
// Floor:   D=7168: T=2048 is 117 MB -> 27 us at 4.3 TB/s (H200); T=32 is 1.8 MB -> 0.43 us, less than a launch.
// Grid:    one block of 256 threads per row; shared memory: 8 floats. A thread holds its part of the row in registers
//          (32 values at most, so D <= 8192), so that hidden is read once.
// Order:   see write_norm; fixed by D, so a row's result does not depend on T or on the other rows.
// Tried:   one version; no timing yet.

#include "types.cuh"
#include "reduce.cuh"
#include "norm.cuh"

// Rows are contiguous and begin at multiples of 32 bytes.
struct RmsNormParams {
    const float* hidden;  // [T, D], the residual stream
    const float* gain;    // [D]
    float* normed;        // [T, D]
    bf16* rounded;        // [T, D], normed in bf16, or null
    int columns;          // D, a multiple of 8, at most 8192
    float eps;            // added to the mean square
};

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(const __grid_constant__ RmsNormParams params) {
    __shared__ float warp_sums[THREADS / 32];
    const i64 row = static_cast<i64>(blockIdx.x) * params.columns;
    float values[STEPS][VALUES];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int column = column_of(step);
        if (column < params.columns) {
            load8(values[step], params.hidden + row + column);
        }
    }
    bf16* rounded = params.rounded == nullptr ? nullptr : params.rounded + row;
    write_norm(params.normed + row, rounded, values, params.gain, params.columns, params.eps, warp_sums);
}
