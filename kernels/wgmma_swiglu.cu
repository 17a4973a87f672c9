// wgmma_swiglu: tiled_swiglu of tiled_swiglu.cu on the tensor cores of Hopper, for products of many rows.
// Source:  tiles: include/tile.cuh; products: include/wgmma_tile.cuh. Twin: src/cuda/kernels/tiled.rs.
// Spec:    as tiled_swiglu.cu; legend, shapes and floor too. Traffic, work and grid as wgmma_linear.cu.
// Floor:   a prompt's 2,048 rows, 8 of 384 experts each, NVFP4, D=7168, I=2048: 6.3 GB -> 1.5 ms at 4.3 TB/s, 0.96 TFLOP -> 1.2 ms at
//          790 TFLOP/s; 43 rows of an expert are multiplied as 48.
// Order:   see tile.cuh: the same bits as its variants.
// Tried:   not run on a GPU yet.

#include "swiglu_write.cuh"
#include "wgmma_tile.cuh"

WGMMA_FORMATS(wgmma_swiglu, SwiGlu)
