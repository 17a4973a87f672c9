// wgmma_mla_prefill: tiled_mla_prefill of tiled_mla_prefill.cu on the tensor cores of Hopper, for heads of 128 and 64 rotated
// values, and 128 values of a value head.
// Source:  DeepSeek-V2, arXiv 2405.04434, equations 9-19; Shah et al., "FlashAttention-3", arXiv 2407.08608, section 3.1.
// Twin:    src/cuda/kernels/wgmma_mla_prefill.rs. Spec: host/reference.rs `attend_expanded`; gather and expand, before it, are in
//          tiled_mla_prefill.cu.
// Legend:  Q rows of a segment, K keys of a slab, H heads, N, R, V as in ops/shapes.rs `MlaShape`.
// Shapes:  query [T, H*(N+R)] f32, not rotated; keys_values [K, H*(N+V)], rope_keys [K, R] bf16; attended [T, H*V] f32.
// Traffic: 2*K*H*(N+R+V) bytes of keys and values for every 128 rows, from L2 as long as the heads at work fit there.
// Work:    2*H*(N+R+V) FLOP per row and visible key.
// Floor:   Q=2048 K=32768 H=64: 2.66 TFLOP -> 3.4 ms at 790 TFLOP/s; from L2 40 KB for 128 rows and 64 keys, in the 1,280
//          clocks of their products.
// Grid:    (128 rows, the last ones first; H), 3 warpgroups: one brings keys and values, the others have 64 rows each.
//          Shared memory: 210 KB, queries and four tiles.
// Order:   as in tiled_mla_prefill.cu, with the products of a tile in steps of 16: slabs and chunks of a prompt do not change a
//          row's bits.
// Tried:   H100, Q=2048 K=32768: 8.3 ms with gather and expand, 386 TFLOP/s; by mma.sync 27.2 ms. Q=K=2048: 332 us alone.

#include "mla.cuh"
#include "mla_slab.cuh"
#include "mma.cuh"
#include "wgmma.cuh"

constexpr int THREADS = 3 * WARPGROUP;
// Rows of a warpgroup and of a block, keys of a tile.
constexpr int ROWS = 64;
constexpr int QUERIES = 2 * ROWS;
constexpr int KEYS = 64;
constexpr int NOPE = 128;
constexpr int ROPE = 64;
constexpr int VALUE = 128;
constexpr int WIDTH = NOPE + ROPE;
// Panels of 64 columns: those of a key, then those of its value.
constexpr int KEY_PANELS = WIDTH / PANEL;
constexpr int PANELS = KEY_PANELS + VALUE / PANEL;
constexpr int STAGES = 4;
// Tiles whose copies are on their way before the oldest is waited for.
constexpr int AHEAD = 2;

using Params = MlaPrefillParams<bf16>;

struct Shared {
    u8 queries[2][KEY_PANELS][PANEL_BYTES];
    u8 tiles[STAGES][PANELS][PANEL_BYTES];
    float faults[STAGES][KEYS];
    u64 filled[STAGES];   // a tile is there
    u64 emptied[STAGES];  // both warpgroups have read it
};

// Copies tiles up to `end` keys; keys behind the slab are zeros.
__device__ __forceinline__ void load(const Params& params, Shared& shared, int head, int end) {
    const int thread = threadIdx.x % WARPGROUP, chunk = thread % 8;
    const i64 columns = static_cast<i64>(params.num_heads) * (NOPE + VALUE);
    const bf16* keys_values = params.keys_values + static_cast<i64>(head) * (NOPE + VALUE) + 8 * chunk;
    const bf16* rope_keys = params.rope_keys + 8 * chunk;
    const int tiles = (end + KEYS - 1) / KEYS;
    for (int tile = 0; tile < tiles + AHEAD; ++tile) {
        if (tile < tiles) {
            const int stage = tile % STAGES;
            wait(&shared.emptied[stage], (tile / STAGES & 1) ^ 1);
#pragma unroll
            for (int i = 0; i < KEYS / (WARPGROUP / 8); ++i) {
                const int row = thread / 8 + i * (WARPGROUP / 8), key = tile * KEYS + row;
                const bool present = key < params.num_keys;
                const i64 at = present ? key : 0;
#pragma unroll
                for (int panel = 0; panel < PANELS; ++panel) {
                    const bf16* from = panel == KEY_PANELS - 1 ? rope_keys + at * ROPE
                                                               : keys_values + at * columns + 64 * (panel - (panel >= KEY_PANELS));
                    copy16_if(shared.tiles[stage][panel] + panel_byte(row, chunk), from, present);
                }
            }
            if (thread < KEYS) {
                const int key = tile * KEYS + thread;
                shared.faults[stage][thread] = key < params.num_keys ? params.faults[key] : 0.0f;
            }
        }
        commit_copies();
        if (tile >= AHEAD) {
            wait_copies<AHEAD>();
            arrive(&shared.filled[(tile - AHEAD) % STAGES]);
        }
    }
}

// 64 rows of one head from `first` on. A lane has the rows 16w + g and 16w + g + 8, and of every eight keys and values 2t and
// 2t + 1.
__device__ __forceinline__ void attend(const Params& params, Shared& shared, int head, int group, int first, int end, int my_end) {
    const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const float infinity = __uint_as_float(0x7f800000u), scale = params.scale * LOG2_E;
    constexpr int CHUNKS = WIDTH / 8;
#pragma unroll 2
    for (int i = thread; i < ROWS * CHUNKS; i += WARPGROUP) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (first + row < params.num_rows) {
            const i64 at = params.first_row + first + row;
            const float* from = params.query + (at * params.num_heads + head) * WIDTH;
            const float* rotation = params.rotations + at * ROPE;
            const float4 low = query_four(from, rotation, NOPE, ROPE, 8 * chunk);
            const float4 high = query_four(from, rotation, NOPE, ROPE, 8 * chunk + 4);
            words = make_uint4(pair_of(low.x, low.y), pair_of(low.z, low.w), pair_of(high.x, high.y), pair_of(high.z, high.w));
        }
        *reinterpret_cast<uint4*>(shared.queries[group][chunk / 8] + panel_byte(row, chunk % 8)) = words;
    }
    publish_stores();
    meet<WARPGROUP>(1 + group);

    float largest[2], total[2], sums[64] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        largest[r] = -infinity, total[r] = 0.0f;
        const int row = first + 16 * warp + 8 * r + g;
        if (params.first_key > 0 && row < params.num_rows) {
            const i64 at = static_cast<i64>(params.first_row + row) * params.num_heads + head;
            largest[r] = params.statistics[2 * at], total[r] = params.statistics[2 * at + 1];
#pragma unroll
            for (int n = 0; n < VALUE / 8; ++n) {
                const float2 two = *reinterpret_cast<const float2*>(params.attended + at * VALUE + 8 * n + 2 * t);
                sums[4 * n + 2 * r] = two.x, sums[4 * n + 2 * r + 1] = two.y;
            }
        }
    }

    const u64 queries = descriptor(shared_address(shared.queries[group]), 0);
    // Position of this lane's first row less that of its first key of the slab.
    const int lead = params.first_position + first + 16 * warp + g - params.first_key - 2 * t;
    const int tiles = (end + KEYS - 1) / KEYS;
    for (int tile = 0; tile < tiles; ++tile) {
        const int stage = tile % STAGES;
        wait(&shared.filled[stage], tile / STAGES & 1);
        // Here and not where the copies were made: it would wait there for those that are on their way.
        publish_stores();
        if (tile * KEYS < my_end) {
            const u64 keys = descriptor(shared_address(shared.tiles[stage]), 0);
            const u64 values = descriptor(shared_address(shared.tiles[stage][KEY_PANELS]), PANEL_BYTES);
            float scores[32];
            begin_products();
#pragma unroll
            for (int panel = 0; panel < KEY_PANELS; ++panel) {
#pragma unroll
                for (int step = 0; step < PANEL_STEPS; ++step) {
                    const u32 at = (panel * PANEL_BYTES + step * PANEL_STEP_COLUMNS) >> 4;
                    wgmma_64<Element::Bf16>(scores, queries + at, keys + at, panel + step > 0);
                }
            }
            finish_products();
            float peaks[2] = {-infinity, -infinity};
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                const float2 fault = *reinterpret_cast<const float2*>(&shared.faults[stage][8 * n + 2 * t]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float score = __fmaf_rn(scores[4 * n + i], scale, i % 2 ? fault.y : fault.x);
                    scores[4 * n + i] = lead + i / 2 * 8 - tile * KEYS - 8 * n - i % 2 >= 0 ? score : -infinity;
                    peaks[i / 2] = fmaxf(peaks[i / 2], scores[4 * n + i]);
                }
            }
            float shrink[2], added[2] = {};
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float before = largest[r];
                largest[r] = fmaxf(before, group_max<4>(peaks[r]));
                shrink[r] = exp2_of(before - largest[r]);
            }
            u32 weights[PANEL_STEPS][4];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float a = exp2_of(scores[4 * n + 2 * r] - largest[r]), b = exp2_of(scores[4 * n + 2 * r + 1] - largest[r]);
                    added[r] += a;
                    added[r] += b;
                    weights[n / 2][n % 2 * 2 + r] = pair_of(a, b);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                total[r] = __fmaf_rn(total[r], shrink[r], group_sum<4>(added[r]));
            }
            // Most tiles have no larger score than those before; 1 changes no bits.
            if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < 64; ++i) {
                    sums[i] *= shrink[i / 2 % 2];
                }
            }
            begin_products();
#pragma unroll
            for (int step = 0; step < PANEL_STEPS; ++step) {
                wgmma_128(sums, weights[step], values + (step * PANEL_STEP_ROWS >> 4));
            }
            finish_products();
        }
        arrive(&shared.emptied[stage]);
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = first + 16 * warp + 8 * r + g;
        if (row >= params.num_rows) {
            continue;
        }
        const bool done = params.first_position + row < params.first_key + params.num_keys;
        const i64 at = static_cast<i64>(params.first_row + row) * params.num_heads + head;
#pragma unroll
        for (int n = 0; n < VALUE / 8; ++n) {
            float2 two = make_float2(sums[4 * n + 2 * r], sums[4 * n + 2 * r + 1]);
            if (done) {
                two = make_float2(__fdiv_rn(two.x, total[r]), __fdiv_rn(two.y, total[r]));
                if (params.rounded != nullptr) {
                    *reinterpret_cast<u32*>(params.rounded + at * VALUE + 8 * n + 2 * t) = pair_of(two.x, two.y);
                }
            }
            *reinterpret_cast<float2*>(params.attended + at * VALUE + 8 * n + 2 * t) = two;
        }
        if (!done && t == 0) {
            params.statistics[2 * at] = largest[r];
            params.statistics[2 * at + 1] = total[r];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) wgmma_mla_prefill(const __grid_constant__ Params params) {
    begin_kernel();
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int role = threadIdx.x / WARPGROUP, head = blockIdx.y;
    // The last rows see most keys: they begin first.
    const int first = (gridDim.x - 1 - blockIdx.x) * QUERIES;
    // Keys of the slab that a row sees, the last row at most.
    const auto seen_by = [&](int row) {
        return min(params.num_keys, params.first_position + min(row, params.num_rows - 1) + 1 - params.first_key);
    };
    const int end = seen_by(first + QUERIES - 1);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            create_barrier(&shared.filled[stage], WARPGROUP_WARPS);
            create_barrier(&shared.emptied[stage], 2 * WARPGROUP_WARPS);
        }
    }
    __syncthreads();
    if (role == 2) {
        load(params, shared, head, end);
    } else {
        const int mine = first + role * ROWS;
        attend(params, shared, head, role, mine, end, mine < params.num_rows ? seen_by(mine + ROWS - 1) : 0);
    }
}
