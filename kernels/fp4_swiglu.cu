// fp4_swiglu: y = silu(x G^T) * x U^T with x, G, U and y in 4-bit floats, the first product of experts.
// Source:  as fp4_linear.cu; SwiGLU: Shazeer, arXiv 2002.05202. Twin: src/cuda/kernels/fp4.rs.
// Spec:    ops `moe` with `ExpertMatrices.input` and `inner`.
// Legend:  S slots, I units, K inputs, T terms of a row.
// Shapes:  x [rows, T, K], y [S, T, I] in 4-bit floats (fp4_rows.cuh); G, U [E, I, K] in panels of both (fp4_panel.cuh).
// Traffic: 1.125 I K bytes (MXFP4 1.0625) for each tile of slots of an expert; 0.5625 T (rows K + S I) of rows.
// Work:    4 S T I K FLOP in FP4, f32 sums.
// Floor:   T = 3, one row of 8 experts, 7168 -> 2 * 2048 on 4 GPUs: 33 MB -> 22 us at 1.5 TB/s (RTX PRO 6000).
// Grid:    (tiles of slots, panels of 64 units, parts), 9 warps.

#include "fp4_mma.cuh"
#include "fp4_units.cuh"

template <typename Format, int TERMS>
struct SwiGlu {
    // Units of all slots meet in shared memory, where the stages were, so that a thread has the values of one scale.
    template <int SLOTS>
    static __device__ __forceinline__ void run(
        const Fp4Params& params, const float (&sums)[SLOTS / 8][4], const u32* slots, u8* memory, int panel, int count) {
        static_assert(SLOTS * UNITS_PITCH * 4 <= 2 * (PANEL_CODES + 2 * SCALE_BLOCK), "values lie where the weights were");
        const int thread = static_cast<int>(threadIdx.x), warp = thread / WARP, lane = thread % WARP;
        float* values = reinterpret_cast<float*>(memory);
        // All warps have multiplied the last stage.
        meet<WARPS * WARP>(1);
#pragma unroll
        for (int eight = 0; eight < SLOTS / 8; ++eight) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int at = 8 * eight + lane % 4 * 2 + i;
                if (at < count) {
                    const float gate = sums[eight][i], silu = __fdiv_rn(gate, 1.0f + expf(-gate));
                    values[at * UNITS_PITCH + 8 * warp + lane / 4] = silu * sums[eight][i + 2];
                }
            }
        }
        meet<WARPS * WARP>(1);
        write_units<RowsOf<Format, TERMS>>(params, values, slots, panel, count, thread, WARPS * WARP);
    }
};

FP4_FUNCTIONS(fp4_swiglu, SwiGlu)
