// Products of weights in tiles with rows of bf16 on the tensor cores: weights are the A operand (16 outputs), rows the B
// operand (8 rows), sums f32. Packed weights become bf16 in registers, exactly but for INT4, whose product with its scale
// is rounded as the checkpoint's own library rounds it.
//
// Order: a sum is cut into at most 8 chunks of whole units; a chunk is a chain of steps from 0, and chunks are added in
// their order from 0. It depends on K and the format alone: every schedule below gives the same bits.
//
// Three schedules of one product. Their shared memory is dynamic: the most of any launch is declared for all functions of a
// file, and on some chips leaves no room for static memory beside it.
//
// Split: the warps of a block take the chunks of TILES tiles and 8 * TOKENS rows; weights are read once for all rows of a block.
// Wide:  each warp takes all chunks of tiles of its own and up to 8 rows: nothing is shared and nothing waits; for few units.
// Block: the same of many rows, which the warps share. See `tiled_block`.

#include "tile_block.cuh"
#include "tile_split.cuh"

#define TILED(name, Format, Write, TILES, TOKENS, BLOCKS)                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                               \
        name(const __grid_constant__ TiledLaunch launch) {                                           \
        if constexpr (!loads_early<Format>(TOKENS, TILES)) {                                                \
            begin_kernel();                                                                          \
        }                                                                                            \
        const TiledParams params = blockIdx.z == 0 ? launch.parts[0] : launch.parts[1];              \
        tiled_split<Format, Write, TILES, TOKENS>(params);                                           \
        if constexpr (TOKENS == 1) {                                                                 \
            Write::finish(launch);                                                                   \
        }                                                                                            \
    }

#define TILED_WIDE(name, Format, Write, TILES)                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, 2)                                    \
        name(const __grid_constant__ TiledLaunch launch) {                                           \
        const TiledParams& params = launch.parts[blockIdx.z];                                        \
        tiled_wide<Format, Write, TILES, Format::DEPTH + 1>(params);                                 \
    }

#define TILED_BLOCK(name, Format, Write, ROWS, BLOCKS)                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                               \
        name(const __grid_constant__ TiledLaunch launch) {                                           \
        begin_kernel();                                                                              \
        const TiledParams& params = launch.parts[blockIdx.z];                                        \
        tiled_block<Format, Write, ROWS, BLOCKS>(params);                                            \
    }

// A kernel of each variant, by outputs of a warp and rows of a block; the variants of cuda/kernels/tiled.rs. The last
// number is that of the blocks whose registers an SM must hold.
#define VARIANTS(name, Format, Write)                                                                \
    TILED(name##_split16x8, Format, Write, 1, 1, Format::BLOCKS_16)                                  \
    TILED(name##_split32x8, Format, Write, 2, 1, Format::BLOCKS_32)                                  \
    TILED(name##_split32x16, Format, Write, 2, 2, 1)                                                 \
    TILED(name##_split16x32, Format, Write, 1, 4, 1)                                                 \
    TILED(name##_split32x64, Format, Write, 2, 8, 1)                                                 \
    TILED_WIDE(name##_wide16x8, Format, Write, 1)                                                    \
    TILED_BLOCK(name##_block32x48, Format, Write, 48, Format::BLOCKS_48)                             \
    TILED_BLOCK(name##_block32x64, Format, Write, 64, 1)

// More rows for the same weights: in prompts blocks of 64 rows read at the speed of L2. For what has a block of so much shared memory.
// Units with scales of their own need more registers than there are.
#define LARGE(name, Format, Write) TILED_BLOCK(name##_block32x96, Format, Write, 96, 1)

#define FORMATS(name, Write)                                                                         \
    VARIANTS(name##_bf16, TileBf16, Write)                                                           \
    VARIANTS(name##_fp8, TileFp8, Write)                                                             \
    VARIANTS(name##_nvfp4, TileNvfp4, Write)                                                         \
    VARIANTS(name##_mxfp4, TileMxfp4, Write)                                                         \
    VARIANTS(name##_int4, TileInt4, Write)                                                           \
    LARGE(name##_bf16, TileBf16, Write)                                                              \
    LARGE(name##_nvfp4, TileNvfp4, Write)                                                            \
    LARGE(name##_mxfp4, TileMxfp4, Write)                                                            \
    LARGE(name##_int4, TileInt4, Write)
