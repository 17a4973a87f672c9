// tcgen05_linear: y = x W^T with x and W in 4-bit floats, the second product of experts, on B200 and B300.
// Source:  NVFP4 (NVIDIA, "Introducing NVFP4"), OCP Microscaling Formats 1.0; PTX ISA, tcgen05. Twin: src/cuda/kernels/tcgen05_linear.rs.
// Spec:    ops `moe` with `ExpertMatrices.inner`.
// Legend:  S slots, N outputs, K inputs, T terms of a row.
// Shapes:  x [S, T, K] in 4-bit floats (fp4_rows.cuh); W [E, N, K] in panels (fp4_panel.cuh); y [S, N] f32.
// Traffic: 0.5625 N K bytes (MXFP4 0.53125) for each tile of slots of an expert; 0.5625 S T K + 4 S N of rows.
// Work:    2 S T N K FLOP in FP4, f32 sums.
// Floor:   one row of 8 experts, 2048 -> 7168: 66 MB -> 9.2 us at 7.2 TB/s (B200).
// Grid:    (tiles of slots, panels of 128 outputs, parts), 6 warps; with many slots two panels are a cluster.

#include "fp4_tcgen05.cuh"

template <typename, int>
struct Linear {
    static __device__ __forceinline__ void run(
        const Fp4Params& params, const float (&totals)[8], const u32* slots, u8*, int panel, int first, int count) {
        const int n = PANEL_ROWS * panel + static_cast<int>(threadIdx.x);
        if (n >= params.weight.rows) {
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (first + i < count) {
                static_cast<float*>(params.y)[static_cast<i64>(slots[first + i]) * params.y_stride + n] = totals[i];
            }
        }
    }
    static __device__ __forceinline__ void finish(const Fp4Params&, const u32*, u8*, int, int) {}
};

FP4_PAIR_FUNCTIONS(tcgen05_linear, Linear)
