// tiled_latent: the two projections in front of attention, y = x W^T, and behind them what latent.cu does, for up to 4 rows: by the block
// that ends last.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1. Twin: src/cuda/kernels/tiled_latent.rs. Spec: ops/backend.rs `attention_in`.
// Legend:  T rows, D hidden size; others as in latent.cu.
// Shapes:  x [T, D] bf16; both W in tiles; q_latent [T, Q], or the query, and kv_a [T, C+R] f32; others as in latent.cu.
// Traffic: that of the projections; T*(8Q + 4(C+R)) bytes more from the second cache.
// Floor:   bf16, D=7168, Q=1536, C+R=576: 30.3 MB -> 7 us at 4.3 TB/s (H200).
// Grid:    (tiles of outputs, 1, 2), 8 warps.
// Order:   those of tile.cuh and of latent.cu, whose bits it has.

#include "last_block.cuh"
#include "latent.cuh"
#include "linear_write.cuh"

struct TiledLatentParams {
    TiledParams parts[2];
    LatentParams latent;
    u32* blocks_done;  // [1], 0 before and after a launch
    int num_rows;      // at most 4: one block takes them one after another
    int kind;          // RowKind
};

static_assert(LATENT_THREADS == WARPS * WARP);

__device__ __forceinline__ void latents(const TiledLatentParams& params) {
    if (!is_last_block(params.blocks_done)) {
        return;
    }
    __shared__ float values[MAX_COLUMNS];
    for (int row = 0; row < params.num_rows; ++row) {
        if (params.latent.q_latent != nullptr) {
            normalise_query<true>(params.latent, row);
        }
        switch (params.kind) {
            case ROW_F32: store_latent<ROW_F32, true>(params.latent, row, values); break;
            case ROW_BF16: store_latent<ROW_BF16, true>(params.latent, row, values); break;
            case ROW_FP8: store_latent<ROW_FP8, true>(params.latent, row, values); break;
            default: store_latent<ROW_FP8_ROPE, true>(params.latent, row, values);
        }
        __syncthreads();
    }
}

#define TILED_LATENT(name, Format, TILES, BLOCKS)                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                               \
        name(const __grid_constant__ TiledLatentParams params) {                                     \
        if constexpr (!loads_early<Format>(1, TILES)) {                                                     \
            begin_kernel();                                                                          \
        }                                                                                            \
        const TiledParams part = blockIdx.z == 0 ? params.parts[0] : params.parts[1];                \
        tiled_split<Format, Linear, TILES, 1>(part);                                                 \
        latents(params);                                                                             \
    }

TILED_LATENT(tiled_latent_bf16_split16x8, TileBf16, 1, TileBf16::BLOCKS_16)
TILED_LATENT(tiled_latent_bf16_split32x8, TileBf16, 2, TileBf16::BLOCKS_32)
TILED_LATENT(tiled_latent_fp8_split16x8, TileFp8, 1, TileFp8::BLOCKS_16)
TILED_LATENT(tiled_latent_fp8_split32x8, TileFp8, 2, TileFp8::BLOCKS_32)
