// tcgen05_swiglu: y = silu(x G^T) * x U^T with x, G, U and y in 4-bit floats, the first product of experts, on B200 and B300.
// Source:  as tcgen05_linear.cu; SwiGLU: Shazeer, arXiv 2002.05202. Twin: src/cuda/kernels/tcgen05_swiglu.rs.
// Spec:    ops `moe` with `ExpertMatrices.input` and `inner`.
// Legend:  S slots, I units, K inputs, T terms of a row.
// Shapes:  x [rows, T, K], y [S, T, I] in 4-bit floats (fp4_rows.cuh); G, U [E, I, K] in panels of both (fp4_panel.cuh).
// Traffic: 1.125 I K bytes (MXFP4 1.0625) for each tile of slots of an expert; 0.5625 T (rows K + S I) of rows.
// Work:    4 S T I K FLOP in FP4, f32 sums.
// Floor:   one row of 8 experts, 7168 -> 2 * 2048: 132 MB -> 18 us at 7.2 TB/s (B200).
// Grid:    (tiles of slots, panels of 64 units, parts), 6 warps; with many slots two panels are a cluster.

#include "fp4_tcgen05.cuh"
#include "fp4_units.cuh"

template <typename Format, int TERMS>
struct SwiGlu {
    // Gate of a unit is eight lanes in front of up. Units of all slots meet in shared memory, where the weights were: all products are done.
    static __device__ __forceinline__ void run(
        const Fp4Params&, const float (&totals)[8], const u32*, u8* memory, int, int first, int count) {
        const int thread = static_cast<int>(threadIdx.x);
        float* values = reinterpret_cast<float*>(memory);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float up = __shfl_xor_sync(0xffffffffu, totals[i], 8);
            if (thread / 8 % 2 == 0 && first + i < count) {
                values[(first + i) * UNITS_PITCH + thread / 16 * 8 + thread % 8] = swiglu_of(totals[i], up);
            }
        }
    }
    static __device__ __forceinline__ void finish(const Fp4Params& params, const u32* slots, u8* memory, int panel, int count) {
        meet<READERS>(1);
        write_units<RowsOf<Format, TERMS>>(
            params, reinterpret_cast<const float*>(memory), slots, panel, count, static_cast<int>(threadIdx.x), READERS);
    }
};

FP4_PAIR_FUNCTIONS(tcgen05_swiglu, SwiGlu)
