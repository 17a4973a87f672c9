// tiled_mla_combine, tiled_mla_project: mla_combine and mla_project of mla_decode.cu with the products with W_UV on the tensor cores, of
// merged latents in f32 precision: as three terms of bf16, which together hold 24 bits.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1. Twin: src/cuda/kernels/tiled_mla_combine.rs. Spec: host/reference.rs
//          `attend_absorbed`.
// Legend:  A rows of a pass, I items of it, H heads, V, C as in ops/shapes.rs `MlaShape`.
// Shapes:  kv_up [H*(N+V), C] bf16; attended [T, H*V] f32; sums of items as mla_decode.cu has them.
// Traffic: 2 or 4*I*H*C bytes of sums; 2*H*V*C bytes of W_UV, once for every 8 rows (from L2 but for the first); 6*A*H*V written.
// Work:    3 * 2*A*H*V*C FLOP.
// Floor:   H=64 V=128 C=512, A=64 of 2 items in f16: 8.4 + 8.4 MB -> 4 us at 4.3 TB/s (H200); from L2 75 MB -> 14 us.
// Grid:    (row tiles, H, shares of V), 8 warps. A tile has one row or 8. A warp has 16 values of a head and one, two or all of the four
//          parts of C, so that a share of V keeps every warp at work.
//          Shared memory: 45 KB.
// Order:   of a part of C in order by steps of 16, of each the three terms, largest first; then the parts. A row's result depends on its
//          items alone.

#include "mla_merge.cuh"
#include "mma.cuh"

constexpr int WARPS = COMBINE_THREADS / 32;
// Rows of a tile of many, and of those those that are merged at once.
constexpr int ROWS = 8;
constexpr int MERGED_ROWS = 4;
constexpr int TERMS = 3;
// Parts of C, and columns of one that a lane group reads at once: eight of each lane.
constexpr int PARTS = 4;
constexpr int STEP = 32;
// Values of a warp, and bound of V.
constexpr int VALUES = 16;
constexpr int MAX_VALUES = 128;
// Two rows of terms reach all banks.
constexpr int TERM_PITCH = MAX_LATENT + 32;

union Scratch {
    float4 merged[ROWS][MAX_LATENT / 4];
    float sums[PARTS][ROWS][MAX_VALUES];
};

// V is a multiple of 64 and at most MAX_VALUES, C a multiple of 128. COUNT: rows of a tile, 1 or ROWS.
template <typename Sum, int COUNT>
__device__ __forceinline__ void combine(const MlaDecodeParams& params) {
    __shared__ Scratch scratch;
    __shared__ alignas(16) bf16 terms[TERMS][COUNT][TERM_PITCH];
    __shared__ float2 of_rows[COUNT];
    const int latent = params.latent, head = blockIdx.y, num_rows = params.pass->num_rows;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int share = params.value / gridDim.z, first_value = blockIdx.z * share;
    const int tiles = share / VALUES, workers = min(WARPS / tiles, PARTS), part_columns = latent / PARTS;
    const int tile = warp % tiles, worker = warp / tiles;
    const bf16* weights = static_cast<const bf16*>(params.kv_up) +
                          (static_cast<i64>(head) * (params.nope + params.value) + params.nope + first_value + VALUES * tile + g) * latent + 8 * t;

    for (int first = blockIdx.x * COUNT; first < num_rows; first += gridDim.x * COUNT) {
        if constexpr (IS_MERGED<Sum>) {
            read_rows(params, first, head, num_rows, *reinterpret_cast<float4(*)[COUNT][MAX_LATENT / 4]>(scratch.merged));
        } else if constexpr (COUNT == 1) {
            merge_row<Sum>(params, first, head, num_rows, *reinterpret_cast<float4(*)[1][MAX_LATENT / 4]>(scratch.merged), of_rows);
        } else {
#pragma unroll 1
            for (int r = 0; r < COUNT; r += MERGED_ROWS) {
                merge_row<Sum>(
                    params, first + r, head, num_rows, *reinterpret_cast<float4(*)[MERGED_ROWS][MAX_LATENT / 4]>(scratch.merged + r),
                    *reinterpret_cast<float2(*)[MERGED_ROWS]>(of_rows + r));
            }
        }
        __syncthreads();
        if (!IS_MERGED<Sum> && params.part == Part::HEADS && blockIdx.z == 0 && threadIdx.x < min(COUNT, num_rows - first)) {
            store_statistics(params, first + threadIdx.x, head, of_rows[threadIdx.x]);
        }
        for (int i = threadIdx.x; i < COUNT * latent / 4; i += COMBINE_THREADS) {
            const int r = i / (latent / 4), at = i % (latent / 4);
            float4 four = scratch.merged[r][at];
#pragma unroll
            for (int term = 0; term < TERMS; ++term) {
                *reinterpret_cast<uint2*>(&terms[term][r][4 * at]) = take_term(four);
            }
        }
        __syncthreads();
        // The merged rows have been read: their place is that of the sums.
        for (int part = worker; worker < workers && part < PARTS; part += workers) {
            float sums[4] = {};
#pragma unroll 4
            for (int column = part * part_columns; column < (part + 1) * part_columns; column += STEP) {
                const uint4 low = *reinterpret_cast<const uint4*>(weights + column);
                const uint4 high = *reinterpret_cast<const uint4*>(weights + 8 * latent + column);
                const u32 a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
                uint4 b[TERMS];
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    b[term] = g < COUNT ? *reinterpret_cast<const uint4*>(&terms[term][g % COUNT][column + 8 * t]) : make_uint4(0, 0, 0, 0);
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
#pragma unroll
                    for (int term = 0; term < TERMS; ++term) {
                        mma(sums, a[half], half == 0 ? b[term].x : b[term].z, half == 0 ? b[term].y : b[term].w);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scratch.sums[part][2 * t + i % 2][VALUES * tile + g + i / 2 * 8] = sums[i];
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < COUNT * share; i += COMBINE_THREADS) {
            const int r = i / share, v = i % share;
            if (first + r < num_rows) {
                float sum = scratch.sums[0][r][v];
#pragma unroll
                for (int part = 1; part < PARTS; ++part) {
                    sum += scratch.sums[part][r][v];
                }
                store_value(params, first + r, head, first_value + v, sum);
            }
        }
        __syncthreads();
    }
}

#define KERNEL(name, Sum, COUNT)                                                                                           \
    extern "C" __global__ void __launch_bounds__(COMBINE_THREADS, 2) name(const __grid_constant__ MlaDecodeParams params) { \
        begin_kernel();                                                                                                    \
        combine<Sum, COUNT>(params);                                                                                       \
    }

KERNEL(tiled_mla_combine, float, ROWS)
KERNEL(tiled_mla_combine_f16, f16, ROWS)
KERNEL(tiled_mla_combine_row, float, 1)
KERNEL(tiled_mla_combine_row_f16, f16, 1)
KERNEL(tiled_mla_project, Merged, ROWS)
KERNEL(tiled_mla_project_row, Merged, 1)
