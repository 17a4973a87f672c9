// wgmma_mla_expand: tiled_mla_expand of tiled_mla_prefill.cu on the tensor cores of Hopper, for heads of 128 values not rotated and 128 of
// the value head, and latents of 512.
// Source:  DeepSeek-V2, arXiv 2405.04434, equations 9-19. Twin: src/cuda/kernels/wgmma_mla_expand.rs. Spec: host/reference.rs
//          `attend_expanded`; gather, before it, is in tiled_mla_prefill.cu.
// Legend:  K keys of a slab, H heads, N, V, C as in ops/shapes.rs `MlaShape`.
// Shapes:  latents [K, C] bf16; kv_up [H*(N+V), C] bf16; keys_values [K, H*(N+V)] bf16.
// Traffic: C*2 bytes a key, once for each block of its heads; 2*C*(N+V) bytes of a head for every 128 keys, from L2; 2*(N+V) bytes written a
//          key and head.
// Work:    2*K*H*(N+V)*C FLOP.
// Floor:   K=2048 H=64: 34.4 GFLOP -> 44 us at 790 TFLOP/s (H200); from L2 262 KB for 33.6 MFLOP, 128 FLOP a byte -> 704 TFLOP/s.
// Grid:    (runs of heads, 128 keys), 3 warpgroups: one brings latents, which stay, and of head after head 64 columns of kv_up at a time;
//          the others have 64 keys each. Shared memory: 225 KB, latents and three stages.
// Order:   in order of C by steps of 16, as in tiled_mla_expand, whose bits these are where both tensor cores add alike.
// Count:   of a stage a warpgroup reads 4 x (2 + 8) KB of shared memory in 1,024 clocks of products of both; with what the copies write 112
//          bytes a clock of 128.

#include "mla_slab.cuh"
#include "wgmma.cuh"

constexpr int THREADS = 3 * WARPGROUP;
// Keys of a warpgroup and of a block.
constexpr int ROWS = 64;
constexpr int KEYS = 2 * ROWS;
// Columns of a head: N, then V.
constexpr int COLUMNS = 128 + 128;
constexpr int LATENT = 512;
// Panels of 64 values of C.
constexpr int PANELS = LATENT / PANEL;
constexpr int STAGES = 3;
// Stages whose copies are on their way before the oldest is waited for.
constexpr int AHEAD = 2;

struct Shared {
    u8 latents[PANELS][2][PANEL_BYTES];
    u8 columns[STAGES][COLUMNS / ROWS][PANEL_BYTES];
    u64 filled[STAGES];   // columns are there; in the first round latents of the same panel too
    u64 emptied[STAGES];  // both warpgroups have read them
};

struct ExpandParams {
    MlaPrefillParams<bf16> slab;
    int block_heads;  // heads of a block, at most
    int padding;
};

// Copies a panel of rows of C values, `ROWS_` of them, into panels of 64 rows each; rows behind `end` are zeros.
template <int ROWS_>
__device__ __forceinline__ void copy_panel(u8 (*to)[PANEL_BYTES], const bf16* from, int panel, int end) {
    const int thread = threadIdx.x % WARPGROUP, chunk = thread % 8;
#pragma unroll
    for (int i = 0; i < ROWS_ / (WARPGROUP / 8); ++i) {
        const int row = thread / 8 + i * (WARPGROUP / 8);
        const bool present = row < end;
        const bf16* at = from + static_cast<i64>(present ? row : 0) * LATENT + panel * PANEL + 8 * chunk;
        copy16_if(to[row / ROWS] + panel_byte(row % ROWS, chunk), at, present);
    }
}

// Brings the panels of the block's heads.
__device__ __forceinline__ void load(const ExpandParams& params, Shared& shared, int first_key, int first_head, int num_heads) {
    const bf16* latents = params.slab.latents + static_cast<i64>(first_key) * LATENT;
    const bf16* kv_up = static_cast<const bf16*>(params.slab.kv_up) + static_cast<i64>(first_head) * COLUMNS * LATENT;
    const int keys = params.slab.num_keys - first_key, steps = num_heads * PANELS;
    for (int step = 0; step < steps + AHEAD; ++step) {
        if (step < steps) {
            const int stage = step % STAGES, panel = step % PANELS;
            if (step < PANELS) {
                copy_panel<KEYS>(shared.latents[panel], latents, panel, keys);
            }
            wait(&shared.emptied[stage], (step / STAGES & 1) ^ 1);
            copy_panel<COLUMNS>(shared.columns[stage], kv_up + static_cast<i64>(step / PANELS) * COLUMNS * LATENT, panel, COLUMNS);
        }
        commit_copies();
        if (step >= AHEAD) {
            wait_copies<AHEAD>();
            arrive(&shared.filled[(step - AHEAD) % STAGES]);
        }
    }
}

// Writes the sums of 64 keys and 256 columns. A lane has of every eight columns 2t and 2t + 1 of two keys; two lanes that exchange
// halves of two such eights have four neighbouring columns of one, and four lanes write 32 bytes.
__device__ __forceinline__ void store(const ExpandParams& params, const float (&sums)[COLUMNS / 2], int first_key, int head) {
    const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const bool odd = t % 2 != 0;
    const i64 columns = static_cast<i64>(params.slab.num_heads) * COLUMNS;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int key = first_key + 16 * warp + 8 * r + g;
        bf16* row = params.slab.keys_values + static_cast<i64>(key) * columns + head * COLUMNS + (odd ? 8 : 0) + t / 2 * 4;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n += 2) {
            const u32 first = pair_of(sums[4 * n + 2 * r], sums[4 * n + 2 * r + 1]);
            const u32 second = pair_of(sums[4 * n + 4 + 2 * r], sums[4 * n + 5 + 2 * r]);
            const u32 given = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
            if (key < params.slab.num_keys) {
                *reinterpret_cast<uint2*>(row + 8 * n) = odd ? make_uint2(given, second) : make_uint2(first, given);
            }
        }
    }
}

__device__ __forceinline__ void multiply(
    const ExpandParams& params, Shared& shared, int group, int first_key, int first_head, int num_heads) {
    for (int step = 0, head = 0; head < num_heads; ++head) {
        float sums[COLUMNS / 2];
#pragma unroll 1
        for (int panel = 0; panel < PANELS; ++panel, ++step) {
            const int stage = step % STAGES;
            wait(&shared.filled[stage], step / STAGES & 1);
            // Here and not where the copies were made: it would wait there for those that are on their way.
            publish_stores();
            const u64 latents = descriptor(shared_address(shared.latents[panel][group]), 0);
            const u64 columns = descriptor(shared_address(shared.columns[stage]), 0);
            begin_products();
#pragma unroll
            for (int k = 0; k < PANEL_STEPS; ++k) {
                const u64 along = k * PANEL_STEP_COLUMNS >> 4;
                wgmma_256(sums, latents + along, columns + along, panel > 0 || k > 0);
            }
            finish_products();
            arrive(&shared.emptied[stage]);
        }
        store(params, sums, first_key + ROWS * group, first_head + head);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) wgmma_mla_expand(const __grid_constant__ ExpandParams params) {
    begin_kernel();
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int group = threadIdx.x / WARPGROUP;
    const int first_head = blockIdx.x * params.block_heads, first_key = blockIdx.y * KEYS;
    const int num_heads = min(params.block_heads, params.slab.num_heads - first_head);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            create_barrier(&shared.filled[stage], WARPGROUP_WARPS);
            create_barrier(&shared.emptied[stage], 2 * WARPGROUP_WARPS);
        }
    }
    __syncthreads();
    if (group == 2) {
        load(params, shared, first_key, first_head, num_heads);
    } else {
        multiply(params, shared, group, first_key, first_head, num_heads);
    }
}
