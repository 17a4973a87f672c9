// tcgen05_bf16_swiglu: tiled_swiglu of tiled_swiglu.cu on the tensor cores of B200 and B300, for products of rows of prompts: the dense FFN and
// the shared expert.
// Source:  tiles: include/tile.cuh; products: include/tcgen05_tile.cuh. Twin: src/cuda/kernels/tiled.rs.
// Spec:    as tiled_swiglu.cu; legend, shapes and floor too. Traffic, work and grid as tcgen05_bf16_linear.cu.
// Floor:   2,048 rows, D=7168, I=2048: 120 GFLOP -> 53 us at 2.25 PFLOP/s (B200).
// Order:   see tile.cuh: the same bits as its variants.
// Tried:   not run on a GPU.

#include "swiglu_write.cuh"
#include "tcgen05_tile.cuh"

TCGEN05_FORMATS(tcgen05_bf16_swiglu, SwiGlu)
