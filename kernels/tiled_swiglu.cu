// tiled_swiglu: y = silu(gate x) * up x on the tensor cores, gate and up in the same tiles, x and y in bf16.
// Source:  Shazeer, arXiv 2002.05202 (SwiGLU); DeepSeek-V3, arXiv 2412.19437, section 2.1.2; tiles: include/tile.cuh.
//          Twin: src/cuda/kernels/tiled.rs.
// Spec:    the first product of host/ops.rs `experts`.
// Legend:  T rows, K experts per token, D hidden size, I inner units, slot t*K+k of the k-th expert of row t.
// Shapes:  x [T, D] bf16; gate, up [E, I, D] in tiles of 8 rows of gate and 8 of up; y [T*K, I] bf16.
// Traffic: 2*I*D*B bytes of each expert with slots for each block of its slots.    Work: 4*D*I FLOP each slot.
// Floor:   NVFP4, D=7168, I=2048, T=1, K=8: 132.1 MB -> 30.7 us at 4.3 TB/s (H200).
// Grid:    (tiles of outputs, most tiles of slots), 8 warps; blocks without slots end at once, so that the grid does not
//          depend on the choice of experts; see `tiled`.
// Order:   see tile.cuh. Gate and up of a unit meet in one thread.
// Tried:   H100: 84, 99 and 102 % of the floor at 1, 8 and 64 rows of NVFP4. With registers for 4 blocks of 16 outputs on a
//          multiprocessor 55.3 us at one row, for 2 blocks 57.7.

#include "swiglu_write.cuh"

FORMATS(tiled_swiglu, SwiGlu)
