// wgmma_mla_absorb: tiled_mla_absorb.cu with its results as the operands of wgmma_mla_decode.cu, in f16 or bf16.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1. Twin: src/cuda/kernels/wgmma_mla_absorb.rs. Spec: host/reference.rs
//          `attend_absorbed`.
// Legend:  A rows of a pass, H heads, N, R, V, C as in ops/shapes.rs `MlaShape`; C = 512, R = 64.
// Shapes:  query [T, H*(N+R)] f32, not rotated; kv_up [H*(N+V), C] bf16; latent_queries as in include/mla_queries.cuh.
// Traffic: 2*H*N*C bytes of W_UK, once for each block in x; 4*A*H*(N+R) bytes read and 2*A*H*(C+R) written.
// Work:    3 * 2*A*H*N*C FLOP.
// Floor:   H=64 N=128: 8.4 MB -> 2 us at 4.3 TB/s (H200); A=64: 4.7 MB written, 3.2 GFLOP -> 4 us.
// Grid:    that of tiled_mla_absorb.cu; the four blocks with columns of the same rows are a cluster, for the largest value of a head.
// Order:   that of include/mla_absorb.cuh.

#include "cluster.cuh"
#include "mla_absorb.cuh"
#include "mla_queries.cuh"
#include "wgmma.cuh"

constexpr int ROPE = 64;
// Blocks of a cluster: all columns.
constexpr int BLOCKS = 4;
// Chunks of eight columns of a row of a block, and of its rope key.
constexpr int CHUNKS = ABSORB_COLUMNS / 8;
constexpr int ROPE_CHUNKS = ROPE / 8;

struct Shared {
    float sums[ABSORB_ROWS][ABSORB_COLUMNS + 4];
    float rope[ABSORB_ROWS][ROPE + 4];
    float warp_peaks[ABSORB_WARPS][ABSORB_ROWS];
    float peaks[ABSORB_ROWS];  // of this block's columns
};

template <Element ELEMENT>
struct Panels {
    Shared& shared;

    __device__ __forceinline__ void take_rope(const MlaDecodeParams&, int, int r, int at, float4 four, bool) {
        *reinterpret_cast<float4*>(&shared.rope[r][at]) = four;
    }

    // A chunk of a row of the tile of its group. `half`: f16.
    static __device__ __forceinline__ void store(
        const MlaDecodeParams& params, int row, int panel, int chunk, const float* from, float factor, bool half) {
        const RowEntry entry = rows_of(params.pass)[row];
        const int place = static_cast<int>(entry.place_in_group()), rows = static_cast<int>(entry.group_rows()) * params.num_heads;
        u8* to = query_tile(params, row - place) + static_cast<i64>(panel) * rows * QUERY_PITCH;
        const float4 low = four_of(from), high = four_of(from + 4);
        const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        u32 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float a = values[2 * i] * factor, b = values[2 * i + 1] * factor;
            pairs[i] = half ? f16_pair_of(a, b) : pair_of(a, b);
        }
        *reinterpret_cast<uint4*>(to + panel_byte(place * params.num_heads + static_cast<int>(blockIdx.y), chunk)) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }

    __device__ __forceinline__ void take_sums(const MlaDecodeParams& params, int first, int num_rows, const float (&sums)[4]) {
        const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
        const bool has_rope = blockIdx.z == 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            shared.sums[2 * t + i % 2][16 * warp + g + i / 2 * 8] = sums[i];
        }
        if constexpr (ELEMENT == Element::F16) {
            float peaks[2] = {fmaxf(fabsf(sums[0]), fabsf(sums[2])), fmaxf(fabsf(sums[1]), fabsf(sums[3]))};
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2) {
                peaks[0] = fmaxf(peaks[0], __shfl_xor_sync(0xffffffffu, peaks[0], distance));
                peaks[1] = fmaxf(peaks[1], __shfl_xor_sync(0xffffffffu, peaks[1], distance));
            }
            if (g == 0) {
                shared.warp_peaks[warp][2 * t] = peaks[0];
                shared.warp_peaks[warp][2 * t + 1] = peaks[1];
            }
            __syncthreads();
            // A warp for each row.
            static_assert(ABSORB_WARPS == ABSORB_ROWS);
            float peak = lane < ABSORB_WARPS ? shared.warp_peaks[lane][warp] : 0.0f;
            if (has_rope) {
                peak = fmaxf(peak, fmaxf(fabsf(shared.rope[warp][lane]), fabsf(shared.rope[warp][32 + lane])));
            }
            peak = group_max<32>(peak);
            if (lane == 0) {
                shared.peaks[warp] = peak;
            }
            meet_cluster();
        } else {
            __syncthreads();
        }
        const bool is_rope = thread >= ABSORB_ROWS * CHUNKS;
        const int at = is_rope ? thread - ABSORB_ROWS * CHUNKS : thread, chunks = is_rope ? ROPE_CHUNKS : CHUNKS;
        const int r = at / chunks, chunk = at % chunks;
        if (r < ABSORB_ROWS && first + r < num_rows && (has_rope || !is_rope)) {
            u32 exponent = 0;
            float factor = 1.0f;
            if constexpr (ELEMENT == Element::F16) {
                float largest = 0.0f;
#pragma unroll
                for (int block = 0; block < BLOCKS; ++block) {
                    largest = fmaxf(largest, float_in_cluster(address_in_block(shared_address(&shared.peaks[r]), block)));
                }
                exponent = query_exponent(largest);
                factor = query_factor(exponent);
            }
            if (is_rope) {
                store(params, first + r, QUERY_PANELS - 1, chunk, &shared.rope[r][8 * chunk], factor, false);
                if (ELEMENT == Element::F16 && chunk == 0) {
                    query_powers(params)[static_cast<i64>(first + r) * params.num_heads + blockIdx.y] = query_power(exponent);
                }
            } else {
                const int panel = blockIdx.z * (ABSORB_COLUMNS / PANEL) + chunk / 8;
                store(params, first + r, panel, chunk % 8, &shared.sums[r][8 * chunk], factor, ELEMENT == Element::F16);
            }
        }
        if constexpr (ELEMENT == Element::F16) {
            // The largest values stay until all have read them.
            meet_cluster();
        }
    }
};

#define KERNEL(name, ELEMENT)                                                                                  \
    extern "C" __global__ void __cluster_dims__(1, 1, BLOCKS) __launch_bounds__(ABSORB_THREADS, 4)             \
        name(const __grid_constant__ MlaDecodeParams params) {                                                 \
        begin_kernel();                                                                                        \
        __shared__ alignas(16) Shared shared;                                                                  \
        Panels<ELEMENT> panels = {shared};                                                                     \
        absorb(params, panels);                                                                                \
    }

KERNEL(wgmma_mla_absorb_f16, Element::F16)
KERNEL(wgmma_mla_absorb_bf16, Element::Bf16)
