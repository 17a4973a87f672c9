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
// Order:   in order of N by steps of 16, of each the three terms, largest first. A row's result depends on its query alone.

#include "mla_pass.cuh"
#include "mma.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
// Rows of a tile; columns of a block.
constexpr int ROWS = 8;
constexpr int COLUMNS = 16 * WARPS;
// Bound of N.
constexpr int MAX_NOPE = 128;
constexpr int STEPS = MAX_NOPE / 16;
constexpr int TERMS = 3;
// Rows of shared memory begin four banks apart.
constexpr int COLUMN_PITCH = COLUMNS + 8;
constexpr int NOPE_PITCH = MAX_NOPE + 8;

// N is a multiple of 16 and at most MAX_NOPE, C a multiple of 16.
extern "C" __global__ void __launch_bounds__(THREADS, 4) tiled_mla_absorb(const __grid_constant__ MlaDecodeParams params) {
    begin_kernel();
    __shared__ alignas(16) bf16 weights[MAX_NOPE][COLUMN_PITCH];
    __shared__ alignas(16) bf16 queries[TERMS][ROWS][NOPE_PITCH];
    const int nope = params.nope, latent = params.latent, width = params.nope + params.rope;
    const int head = blockIdx.y, first_column = blockIdx.z * COLUMNS, num_rows = params.pass->num_rows;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int begin = blockIdx.x * ROWS;
    if (begin >= num_rows) {
        return;
    }
    const bf16* up = static_cast<const bf16*>(params.kv_up) + static_cast<i64>(head) * (nope + params.value) * latent + first_column;
    constexpr int CHUNKS = COLUMNS / 8;
    for (int i = threadIdx.x; i < nope * CHUNKS; i += THREADS) {
        const int n = i / CHUNKS, column = 8 * (i % CHUNKS);
        const bool present = first_column + column < latent;
        copy16_if(&weights[n][column], up + static_cast<i64>(n) * latent + (present ? column : 0), present);
    }
    commit_copies();
    u32 a[STEPS][4];
    for (int first = begin; first < num_rows; first += gridDim.x * ROWS) {
        const auto absorbed_of = [&](int r) {
            return params.latent_queries + (static_cast<i64>(first + r) * params.num_heads + head) * (latent + params.rope);
        };
        __syncthreads();
        for (int i = 4 * threadIdx.x; i < ROWS * width; i += 4 * THREADS) {
            const int r = i / width, at = i % width;
            float4 four;
            const bool present = query_of(params, first + r, num_rows, head, at, four);
            if (at < nope) {
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    *reinterpret_cast<uint2*>(&queries[term][r][at]) = take_term(four);
                }
            } else if (present && blockIdx.z == 0) {
                store_four(absorbed_of(r) + latent + at - nope, four);
            }
        }
        if (first == begin) {
            wait_copies<0>();
        }
        __syncthreads();
        if (first == begin) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                if (16 * step < nope) {
                    load_transposed(a[step], &weights[16 * step + lane / 16 * 8 + lane % 8][16 * warp + lane / 8 % 2 * 8]);
                }
            }
        }
        float sums[4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (16 * step < nope) {
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    const bf16* from = &queries[term][g][16 * step + 2 * t];
                    mma(sums, a[step], *reinterpret_cast<const u32*>(from), *reinterpret_cast<const u32*>(from + 8));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = 2 * t + i % 2, column = first_column + 16 * warp + g + i / 2 * 8;
            if (first + r < num_rows && column < latent) {
                absorbed_of(r)[column] = sums[i];
            }
        }
    }
}
