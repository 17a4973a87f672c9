// rms_norm: normed = gain * hidden / sqrt(mean(hidden^2) + eps).
// Source:  Zhang and Sennrich, arXiv 1910.07467, section 3. Twin: src/cuda/kernels/rms_norm.rs.
// Spec:    ops/backend.rs `norm`; host/reference.rs `normalise`.
// Legend:  T rows (tokens), D columns (hidden size).
// Shapes:  hidden [T, D] f32; gain [D] f32; normed [T, D] f32.
// Traffic: 8*T*D bytes; gain 4*D, from L2 after the first rows.
// Work:    about 4 FLOP per value: bandwidth-bound at large T, latency-bound below some hundred rows.
// Floor:   D=7168: T=2048 is 117 MB -> 27 us at 4.3 TB/s (H200); T=32 is 1.8 MB -> 0.43 us, less than a launch.
// Grid:    one block of 256 threads per row; shared memory: 8 floats. A thread holds its part of the row in registers
//          (32 values at most, so D <= 8192), so that hidden is read once.
// Order:   see write_norm; fixed by D, so a row's result does not depend on T or on the other rows.
// Tried:   one version; no timing yet.

#include "norm.cuh"

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rms_norm(const __grid_constant__ RmsNormParams params) {
    begin_kernel();
    __shared__ float warp_sums[NORM_THREADS / 32];
    norm_row<false>(params, static_cast<int>(blockIdx.x), warp_sums);
}
