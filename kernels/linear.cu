// linear: y = x W^T or y += x W^T, weights in their stored format.
// Source:  Vaswani et al., arXiv 1706.03762 (projections); formats as in quant/packed.rs. Twin: src/cuda/kernels/linear.rs.
// Spec:    host/ops.rs `project`, `project_add`, `logits`.
// Legend:  T rows (tokens), N outputs, K inputs, B bytes of a weight (bf16 2, NVFP4 and INT4 0.5625, MXFP4 0.53125).
// Shapes:  x [T, K] f32; W [N, K]; y [T, N] f32. `rows` may select rows of x.
// Traffic: N*K*B bytes for each 8 rows, 4*T*(K+N) of activations (from L2).     Work: 2*T*N*K FLOP in f32.
// Floor:   T=1, bf16: q_a 7168->1536 22.0 MB -> 5.1 us at 4.3 TB/s (H200), o_proj 8192->7168 117.4 MB -> 27.3 us,
//          lm_head 7168->163840 2349 MB -> 546 us. T=2048, o_proj: 240 GFLOP -> 3.6 ms at 67 TFLOP/s without tensor
//          cores: the generic variant, right for every shape and exact to f32.
// Grid:    (N / 16, T / 8); 8 warps, each computes 2 outputs of up to 8 rows. `_of_many`: (N / 24, T / 8), 3 outputs.
// Order:   see warp_products: fixed by K and the format.
// Tried:   H200, the router's 384 outputs: 880 us for 2,048 rows and 69 for 64 with two outputs of a warp, bound by loads of x.

#include "linear.cuh"

#define KERNEL(name, Format)                                                                         \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * WARP) name(const __grid_constant__ LinearParams params) { \
        begin_kernel();                                                                                 \
        linear<Format, 2>(params);                                                                      \
    }

// Of the router, whose weights are bf16, for many rows: rows of x come from the first cache once for three outputs.
#define KERNEL_OF_MANY(name, Format)                                                                 \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * WARP) name(const __grid_constant__ LinearParams params) { \
        begin_kernel();                                                                                 \
        linear<Format, 3, true>(params);                                                                \
    }

KERNEL(linear_f32, F32)
KERNEL(linear_bf16, Bf16)
KERNEL(linear_nvfp4, Nvfp4)
KERNEL(linear_mxfp4, Mxfp4)
KERNEL(linear_int4, Int4)
KERNEL(linear_fp8, Fp8)
KERNEL_OF_MANY(linear_bf16_of_many, Bf16)
