// wgmma_linear: tiled_linear of tiled_linear.cu on the tensor cores of Hopper, for products of many rows.
// Source:  tiles: include/tile.cuh; products: include/wgmma_tile.cuh. Twin: src/cuda/kernels/tiled.rs.
// Spec:    as tiled_linear.cu; legend, shapes and floor too.
// Traffic: for each block 256*K*B bytes of weights and 2*R*K of its R rows, from L2 where blocks share them: 85 FLOP a byte with 128 rows of
//          bf16, where block32x64 has 51 and runs at the speed of L2 (H200, 5.5 TB/s); 120 with 64 rows of 4-bit weights.
//          cluster32x64, whose blocks have an eighth of K: o_proj of 64 rows is 224 blocks of 0.5 MB of weights and reads 146 MB from L2,
//          where split32x64, whose blocks have 32 outputs, reads 352 MB.
// Work:    a unit of 256 outputs and 48 rows is 768 clocks of the tensor cores. Of NVFP4 it is some 370 instructions of each of 8 warps,
//          and 170 of each of 4 that copy rows: 910 clocks of a scheduler (SASS of NVRTC 13.5).
// Grid:    (tiles of rows, tiles of outputs), 3 warpgroups; see include/wgmma_tile.cuh. Shared memory: 131 KB, 225 KB with 128 rows.
// Order:   see tile.cuh: the same bits as its variants.
// Tried:   not run on a GPU yet.

#include "linear_write.cuh"
#include "wgmma_tile.cuh"

WGMMA_FORMATS(wgmma_linear, Linear)
