// linear: y = x W^T or y += x W^T, weights in their stored format.
// Source:  Vaswani et al., arXiv 1706.03762 (projections); formats as in quant/packed.rs. Twin: src/cuda/kernels/linear.rs.
// Spec:    ops/host_ops.rs `project`, `project_add`, `logits`.
// Legend:  T rows (tokens), N outputs, K inputs, B bytes of a weight (bf16 2, NVFP4 and INT4 0.5625, MXFP4 0.53125).
// Shapes:  x [T, K] f32; W [N, K]; y [T, N] f32. `rows` may select rows of x.
// Traffic: N*K*B bytes for each 8 rows, 4*T*(K+N) of activations (from L2).     Work: 2*T*N*K FLOP in f32.
// Floor:   T=1, bf16: q_a 7168->1536 22.0 MB -> 5.1 us at 4.3 TB/s (H200), o_proj 8192->7168 117.4 MB -> 27.3 us,
//          lm_head 7168->163840 2349 MB -> 546 us. T=2048, o_proj: 240 GFLOP -> 3.6 ms at 67 TFLOP/s without tensor
//          cores: the generic variant, right for every shape and exact to f32.
// Grid:    (N / 16, T / 8); 8 warps, each computes 2 outputs of up to 8 rows.
// Order:   see warp_products: fixed by K and the format.
// Tried:   one version; no timing yet.

#include "types.cuh"
#include "reduce.cuh"
#include "weight.cuh"

constexpr int WARPS = 8;
constexpr int COLUMNS = 2;

struct LinearParams {
    Weight weight;     // one expert
    const float* x;    // rows of x_stride values
    const u32* rows;   // [T] rows of x, or null: 0, 1, ...
    float* y;          // [T, y_stride]
    i64 x_stride;      // values, a multiple of 8
    i64 y_stride;      // values
    int num_rows;      // T
    int add;           // whether y is added to
};

template <typename Format>
__device__ __forceinline__ void linear(const LinearParams& params) {
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const int column = (static_cast<int>(blockIdx.x) * WARPS + warp) * COLUMNS;
    const int first = static_cast<int>(blockIdx.y) * ROWS;
    if (column >= params.weight.rows) {
        return;
    }
    const int num_rows = min(ROWS, params.num_rows - first);
    const float* x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int t = min(first + r, params.num_rows - 1);
        x[r] = params.x + (params.rows != nullptr ? params.rows[t] : t) * params.x_stride;
    }
    const WeightRow rows[COLUMNS] = {
        row_of<Format>(params.weight, 0, column), row_of<Format>(params.weight, 0, column + 1)};
    float sums[COLUMNS][ROWS];
    warp_products<Format, COLUMNS>(sums, rows, x, num_rows, params.weight.columns);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            if (lane == r * COLUMNS + c && r < num_rows && column + c < params.weight.rows) {
                float* y = params.y + (first + r) * params.y_stride + column + c;
                *y = params.add ? *y + sums[c][r] : sums[c][r];
            }
        }
    }
}

#define KERNEL(name, Format)                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP) name(const __grid_constant__ LinearParams params) { \
        linear<Format>(params);                                                                      \
    }

KERNEL(linear_f32, F32)
KERNEL(linear_bf16, Bf16)
KERNEL(linear_nvfp4, Nvfp4)
KERNEL(linear_mxfp4, Mxfp4)
KERNEL(linear_int4, Int4)
KERNEL(linear_fp8, Fp8)
