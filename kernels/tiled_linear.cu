// tiled_linear: y = x W^T or y += x W^T on the tensor cores, weights in tiles of their stored format, x in bf16; for up to 8
// rows also the norm of y, the residual stream, by the block that ends last.
// Source:  Vaswani et al., arXiv 1706.03762 (projections); tiles: include/tile.cuh. Twin: src/cuda/kernels/tiled.rs.
// Spec:    host/ops.rs `project`, `project_add`, `logits`; experts: the second product of `experts`.
// Legend:  T rows (tokens or slots), N outputs, K inputs, B bytes of a weight (bf16 2, fp8 1, NVFP4 and INT4 0.5625,
//          MXFP4 0.53125).
// Shapes:  x [T, K] bf16; W [N, K] in tiles; y [T, N] f32.
// Traffic: N*K*B bytes for each block of rows, 2*T*K + 4*T*N of activations.    Work: 2*T*N*K FLOP, f32 sums.
// Floor:   T=1, bf16: o_proj 8192->7168 117.4 MB -> 27.3 us at 4.3 TB/s (H200); NVFP4 down of 8 experts 66.1 MB ->
//          15.4 us. T=2048, o_proj: 240 GFLOP -> 0.30 ms at 790 TFLOP/s.
// Grid:    (tiles of outputs, tiles of rows), 8 warps; see `tiled`.
// Order:   see tile.cuh: K and the format alone, whatever the variant.
// Tried:   H100 (docs/measurements/gpu.md): 69 to 104 % of the floor with one row, 270 to 330 TFLOP/s with 1,024
//          and more by block32x64. H200: as fast as cuBLASLt up to 8 rows, a third of it with 64 rows of block32x64 and two fifths with
//          1,024. That is the speed of L2: blocks of 64 rows and 256 outputs read 2.35 GB from it for 1,024 rows of o_proj, 5.5 TB/s, and
//          47 GB for the head, 6.2 TB/s. block32x96 reads 0.73 of it; split32x64 and wide16x8 have not run on a GPU either.

#include "linear_write.cuh"

FORMATS(tiled_linear, Linear)
