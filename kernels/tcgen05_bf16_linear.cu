// tcgen05_bf16_linear: tiled_linear of tiled_linear.cu on the tensor cores of B200 and B300, for products of rows of prompts.
// Source:  tiles: include/tile.cuh; products: include/tcgen05_tile.cuh. Twin: src/cuda/kernels/tiled.rs.
// Spec:    as tiled_linear.cu; legend, shapes and floor too; x in panels (row_panels.cu).
// Traffic: for each block 128*K*B bytes of weights and 256*K of rows, half of its 256, from L2: with bf16 128 FLOP a byte; 200 with NVFP4.
// Work:    a unit of 128 outputs and 256 rows is 16 products of 64 clocks. Beside these 1,024 clocks it is 64 KB from L2 (41 KB with NVFP4), 940
//          clocks at 70 bytes a clock, and in shared memory 64 KB of rows written and as many read, with the 32 KB that warps load of weights
//          (9 KB) 1,280 clocks (1,100) at 128 bytes a clock. A warp of weights has 80 instructions a unit, of NVFP4 270; the thread that
//          begins products 60 for each half (SASS of NVRTC 13.5).
// Floor:   o_proj of 2,048 rows, 8192->7168: 240 GFLOP -> 107 us at 2.25 PFLOP/s (B200).
// Grid:    (tiles of 256 rows, tiles of 128 outputs in clusters of two), 16 warps. Shared memory: 192 KB, 6 units of 128 rows. Registers: 160 of
//          each thread of 12 warps, 32 of the others.
// Order:   see tile.cuh: the same bits as its variants.
// Tried:   not run on a GPU. 256 outputs by 128 rows would read less of shared memory and make twice as many weights bf16 for the same work;
//          weights in shared memory would need 1,790 clocks of it or more.

#include "linear_write.cuh"
#include "tcgen05_tile.cuh"

TCGEN05_FORMATS(tcgen05_bf16_linear, Linear)
