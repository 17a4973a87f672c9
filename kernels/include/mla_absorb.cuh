// Queries in the latent space on tensor cores, with queries in f32 precision: as three terms of bf16, which together hold 24 bits.
//
// Legend as in tiled_mla_absorb.cu. Grid: (shares of the row tiles, H, tiles of 128 columns), 8 warps: a warp has 16 columns, whose weights stay
// in registers while tiles of 8 rows go by. Order: of N by steps of 16, of each the three terms, largest first.

#include "mla_pass.cuh"
#include "mma.cuh"

constexpr int ABSORB_WARPS = 8;
constexpr int ABSORB_THREADS = 32 * ABSORB_WARPS;
// Rows of a tile; columns of a block.
constexpr int ABSORB_ROWS = 8;
constexpr int ABSORB_COLUMNS = 16 * ABSORB_WARPS;
// Bound of N.
constexpr int MAX_NOPE = 128;
constexpr int ABSORB_STEPS = MAX_NOPE / 16;
constexpr int TERMS = 3;

// N is a multiple of 16 and at most MAX_NOPE, C a multiple of 16. `sink` takes rotated rope keys of rows that are there, and attend to
// something, four values at a time by one thread of the blocks of the first columns, and then, by all threads, the sums of a tile: of rows
// 2t and 2t + 1, columns 16w + g and 16w + g + 8.
template <typename Sink>
__device__ __forceinline__ void absorb(const MlaDecodeParams& params, Sink& sink) {
    // Rows of shared memory begin four banks apart.
    __shared__ alignas(16) bf16 weights[MAX_NOPE][ABSORB_COLUMNS + 8];
    __shared__ alignas(16) bf16 queries[TERMS][ABSORB_ROWS][MAX_NOPE + 8];
    const int nope = params.nope, latent = params.latent, width = params.nope + params.rope;
    const int head = blockIdx.y, first_column = blockIdx.z * ABSORB_COLUMNS, num_rows = params.pass->num_rows;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int begin = blockIdx.x * ABSORB_ROWS;
    if (begin >= num_rows) {
        return;
    }
    const bf16* up = static_cast<const bf16*>(params.kv_up) + static_cast<i64>(head) * (nope + params.value) * latent + first_column;
    constexpr int CHUNKS = ABSORB_COLUMNS / 8;
    for (int i = threadIdx.x; i < nope * CHUNKS; i += ABSORB_THREADS) {
        const int n = i / CHUNKS, column = 8 * (i % CHUNKS);
        const bool present = first_column + column < latent;
        copy16_if(&weights[n][column], up + static_cast<i64>(n) * latent + (present ? column : 0), present);
    }
    commit_copies();
    u32 a[ABSORB_STEPS][4];
    for (int first = begin; first < num_rows; first += gridDim.x * ABSORB_ROWS) {
        __syncthreads();
        for (int i = 4 * threadIdx.x; i < ABSORB_ROWS * width; i += 4 * ABSORB_THREADS) {
            const int r = i / width, at = i % width;
            float4 four;
            const bool present = query_of(params, first + r, num_rows, head, at, four);
            if (at < nope) {
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    *reinterpret_cast<uint2*>(&queries[term][r][at]) = take_term(four);
                }
            } else if (blockIdx.z == 0) {
                sink.take_rope(params, first, r, at - nope, four, present);
            }
        }
        if (first == begin) {
            wait_copies<0>();
        }
        __syncthreads();
        if (first == begin) {
#pragma unroll
            for (int step = 0; step < ABSORB_STEPS; ++step) {
                if (16 * step < nope) {
                    load_transposed(a[step], &weights[16 * step + lane / 16 * 8 + lane % 8][16 * warp + lane / 8 % 2 * 8]);
                }
            }
        }
        float sums[4] = {};
#pragma unroll
        for (int step = 0; step < ABSORB_STEPS; ++step) {
            if (16 * step < nope) {
#pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    const bf16* from = &queries[term][g][16 * step + 2 * t];
                    mma(sums, a[step], *reinterpret_cast<const u32*>(from), *reinterpret_cast<const u32*>(from + 8));
                }
            }
        }
        sink.take_sums(params, first, num_rows, sums);
    }
}
