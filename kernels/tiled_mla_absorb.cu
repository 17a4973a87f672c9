// tiled_mla_absorb: mla_absorb of mla_decode.cu on the tensor cores, with queries in f32 precision: as three terms of bf16, which
// together hold 24 bits.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1. Twin: src/cuda/kernels/tiled_mla_absorb.rs. Spec: host/reference.rs
//          `attend_absorbed`.
// Legend:  A rows of a pass, H heads, N, R, V, C as in ops/shapes.rs `MlaShape`.
// Shapes:  query [T, H*(N+R)] f32, not rotated; kv_up [H*(N+V), C] bf16; latent_queries [A, H, C+R] f32.
// Traffic: 2*H*N*C bytes of W_UK, once for each block in x; 4*A*H*(N+R) bytes read and 4*A*H*(C+R) written.
// Work:    3 * 2*A*H*N*C FLOP.
// Floor:   H=64 N=128 C=512: 8.4 MB -> 2 us at 4.3 TB/s (H200); A=64: 8.4 MB written, 3.2 GFLOP -> 4 us.
// Grid:    (shares of the row tiles, H, tiles of 128 columns), 8 warps: a warp has 16 columns, whose weights stay in registers while
//          tiles of 8 rows go by.
// Order:   that of include/mla_absorb.cuh. A row's result depends on its query alone.

#include "mla_absorb.cuh"

// [A, H, C+R] f32.
struct Rows {
    static __device__ __forceinline__ float* absorbed_of(const MlaDecodeParams& params, int row) {
        const int width = params.latent + params.rope;
        return params.latent_queries + (static_cast<i64>(row) * params.num_heads + blockIdx.y) * width;
    }
    __device__ __forceinline__ void take_rope(const MlaDecodeParams& params, int first, int r, int at, float4 four, bool present) {
        if (present) {
            store_four(absorbed_of(params, first + r) + params.latent + at, four);
        }
    }
    __device__ __forceinline__ void take_sums(const MlaDecodeParams& params, int first, int num_rows, const float (&sums)[4]) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = 2 * t + i % 2, column = static_cast<int>(blockIdx.z) * ABSORB_COLUMNS + 16 * warp + g + i / 2 * 8;
            if (first + r < num_rows && column < params.latent) {
                absorbed_of(params, first + r)[column] = sums[i];
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(ABSORB_THREADS, 4) tiled_mla_absorb(const __grid_constant__ MlaDecodeParams params) {
    begin_kernel();
    Rows rows;
    absorb(params, rows);
}
