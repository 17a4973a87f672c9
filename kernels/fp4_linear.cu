// fp4_linear: y = x W^T with x and W in 4-bit floats, the second product of experts.
// Source:  NVFP4 (NVIDIA, "Introducing NVFP4"), OCP Microscaling Formats 1.0; PTX ISA, mma with block scaling. Twin: src/cuda/kernels/fp4.rs.
// Spec:    ops `moe` with `ExpertMatrices.inner`.
// Legend:  S slots, N outputs, K inputs, T terms of a row.
// Shapes:  x [S, T, K] in 4-bit floats (fp4_rows.cuh); W [E, N, K] in panels (fp4_panel.cuh); y [S, N] f32.
// Traffic: 0.5625 N K bytes (MXFP4 0.53125) for each tile of slots of an expert; 0.5625 S T K + 4 S N of rows.
// Work:    2 S T N K FLOP in FP4, f32 sums.
// Floor:   T = 3, 8 slots of 8 experts, 2048 -> 7168 on 4 GPUs: 16.5 MB -> 11 us at 1.5 TB/s (RTX PRO 6000).
// Grid:    (tiles of slots, panels of 128 outputs, parts), 9 warps.

#include "fp4_mma.cuh"

template <typename, int>
struct Linear {
    template <int SLOTS>
    static __device__ __forceinline__ void run(
        const Fp4Params& params, const float (&sums)[SLOTS / 8][4], const u32* slots, u8*, int panel, int count) {
        const int warp = static_cast<int>(threadIdx.x) / WARP, lane = static_cast<int>(threadIdx.x) % WARP;
        float* y = static_cast<float*>(params.y);
#pragma unroll
        for (int eight = 0; eight < SLOTS / 8; ++eight) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 8 * eight + lane % 4 * 2 + i % 2;
                const int n = PANEL_ROWS * panel + 16 * warp + lane / 4 + i / 2 * 8;
                if (at < count && n < params.weight.rows) {
                    y[static_cast<i64>(slots[at]) * params.y_stride + n] = sums[eight][i];
                }
            }
        }
    }
};

FP4_FUNCTIONS(fp4_linear, Linear)
