// tiled_down: the second products of routed experts in one format and of a shared expert in bf16, y = x W^T on the tensor cores, of up to 8
// rows, in one launch.
// Source:  DeepSeek-V3, arXiv 2412.19437, section 2.1.2; tiles: include/tile.cuh. Twin: src/cuda/kernels/tiled_down.rs.
// Spec:    ops/backend.rs `moe`.
// Legend:  S slots of routed experts, T rows, N outputs, K inner units, B bytes of a weight (NVFP4 and INT4 0.5625, MXFP4 0.53125).
// Shapes:  x [S, K] and [T, K] bf16; W [N, K] in tiles; y [S, N] and [T, N] f32.
// Traffic: N*K*B bytes for each expert that is chosen, 2*N*K of the shared one.
// Floor:   N=7168 K=2048, one row of 8 experts in NVFP4: 66.1 + 29.4 MB -> 22 us at 4.3 TB/s (H200).
// Grid:    (tiles of outputs, runs of slots of one expert, 2), 8 warps; z = 1 is the shared expert.
// Order:   see tile.cuh: K and the format alone.

#include "linear_write.cuh"

#define TILED_DOWN(format, Format)                                                                                              \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, Format::BLOCKS_16)                                               \
        tiled_down_##format##_split16x8(const __grid_constant__ TiledLaunch launch) {                                           \
        if (blockIdx.z == 0) {                                                                                                  \
            tiled<Format, Linear, 1, 1>(launch.parts[0], static_cast<int>(blockIdx.x));                                         \
        } else {                                                                                                                \
            tiled<TileBf16, Linear, 1, 1>(launch.parts[1], static_cast<int>(blockIdx.x));                                 \
        }                                                                                                                       \
    }                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, 2)                                                               \
        tiled_down_##format##_wide16x8(const __grid_constant__ TiledLaunch launch) {                                            \
        if (blockIdx.z == 0) {                                                                                                  \
            tiled_wide<Format, Linear, 1, Format::DEPTH + 1>(launch.parts[0]);                                                  \
        } else {                                                                                                                \
            tiled_wide<TileBf16, Linear, 1, TileBf16::DEPTH + 1>(launch.parts[1]);                                              \
        }                                                                                                                       \
    }

TILED_DOWN(nvfp4, TileNvfp4)
TILED_DOWN(mxfp4, TileMxfp4)
TILED_DOWN(int4, TileInt4)
