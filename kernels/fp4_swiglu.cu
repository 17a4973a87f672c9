// fp4_swiglu: y = silu(x G^T) * x U^T with x, G, U and y in 4-bit floats, the first product of experts.
// Source:  as fp4_linear.cu; SwiGLU: Shazeer, arXiv 2002.05202. Twin: src/cuda/kernels/fp4.rs.
// Spec:    ops `moe` with `ExpertMatrices.input` and `inner`.
// Legend:  S slots, I units, K inputs, T terms of a row.
// Shapes:  x [rows, T, K], y [S, T, I] in 4-bit floats (fp4_rows.cuh); G, U [E, I, K] in panels of both (fp4_panel.cuh).
// Traffic: 1.125 I K bytes (MXFP4 1.0625) for each tile of slots of an expert; 0.5625 T (rows K + S I) of rows.
// Work:    4 S T I K FLOP in FP4, f32 sums.
// Floor:   T = 3, one row of 8 experts, 7168 -> 2 * 2048 on 4 GPUs: 33 MB -> 22 us at 1.5 TB/s (RTX PRO 6000).
// Grid:    (tiles of slots, panels of 64 units), 9 warps.

#include "fp4_encode.cuh"
#include "fp4_panel.cuh"

constexpr int UNITS = PANEL_ROWS / 2;

template <typename Rows>
struct SwiGlu {
    // Units of all slots meet in shared memory, where the stages were, so that a thread has the values of one scale.
    template <int SLOTS>
    static __device__ __forceinline__ void run(
        const Fp4Params& params, const float (&sums)[SLOTS / 8][4], const u32* slots, u8* memory, int panel, int count) {
        // Values of a slot, and one for the banks.
        constexpr int PITCH = UNITS + 1;
        static_assert(SLOTS * PITCH * 4 <= 2 * (PANEL_CODES + 2 * SCALE_BLOCK), "values lie where the weights were");
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
                    values[at * PITCH + 8 * warp + lane / 4] = silu * sums[eight][i + 2];
                }
            }
        }
        meet<WARPS * WARP>(1);
        // The last panel fills the rest of its stage with zeros.
        constexpr int BLOCK = Rows::BLOCK, BLOCKS = UNITS / BLOCK;
        const bool is_last = panel + 1 == params.weight.num_panels;
        const int blocks = is_last ? params.y_stages * (STAGE / BLOCK) - panel * BLOCKS : BLOCKS;
        for (int i = thread; i < count * blocks; i += WARPS * WARP) {
            const int at = i / blocks, block = i % blocks;
            float own[BLOCK];
#pragma unroll
            for (int k = 0; k < BLOCK; ++k) {
                own[k] = block < BLOCKS ? values[at * PITCH + block * BLOCK + k] : 0.0f;
            }
            u8* row = static_cast<u8*>(params.y) + static_cast<i64>(slots[at]) * params.y_stride;
            Rows::write(row, params.y_stages, panel * BLOCKS + block, own, params.y_scales);
        }
    }
};

#define SWIGLU(name, format, terms, slots, rows)                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ Fp4Params params) { \
        fp4_block<format, terms, slots, SwiGlu<rows>>(params);                                            \
    }

SWIGLU(fp4_swiglu_nvfp4_8, Nvfp4Panel, 1, 8, Nvfp4Rows<1>)
SWIGLU(fp4_swiglu_nvfp4_128, Nvfp4Panel, 1, 128, Nvfp4Rows<1>)
SWIGLU(fp4_swiglu_nvfp4x2_8, Nvfp4Panel, 2, 8, Nvfp4Rows<2>)
SWIGLU(fp4_swiglu_nvfp4x2_64, Nvfp4Panel, 2, 64, Nvfp4Rows<2>)
SWIGLU(fp4_swiglu_nvfp4x3_8, Nvfp4Panel, 3, 8, Nvfp4Rows<3>)
SWIGLU(fp4_swiglu_nvfp4x3_32, Nvfp4Panel, 3, 32, Nvfp4Rows<3>)
SWIGLU(fp4_swiglu_mxfp4_8, Mxfp4Panel, 1, 8, Mxfp4Rows)
SWIGLU(fp4_swiglu_mxfp4_128, Mxfp4Panel, 1, 128, Mxfp4Rows)
