// route: the experts of each row from the router's logits, and their worklist; route_f32, route_bf16: the same behind the
// logits, of up to 8 rows; tiles: the worklist alone.
// Source:  DeepSeek-V3, arXiv 2412.19437, section 2.1.2. Twin: src/cuda/kernels/route.rs.
// Spec:    ops/backend.rs `moe`; ops/reference.rs `choose`.
// Legend:  T rows (tokens), E routed experts, K experts per token, slot t*K+k.
// Shapes:  logits [T, E] f32; bias [E] f32; chosen [T, K] u32; weights [T, K] f32.
// Traffic: 4*T*(E+2K) bytes, of which a decode step has some kilobytes: latency-bound.
// Grid:    route: a warp for each row, 4 in a block; the block that ends last writes the worklist. route_*: a warp for each
//          logit of 8 rows, 8 in a block; the block that ends last chooses. tiles: one block of 1024 threads.
// Order:   a row's choice depends on its logits alone. The order of slots inside an expert's tiles depends on the order of
//          atomic additions; no result depends on it, since each slot's product is its own.
// Tried:   H100, T=1, E=384: route_bf16 29 us. Four steps of weights under way at once in the logits, and a scan of one lane
//          after each choice, made it 28; the former is left out, since it took 203 registers with NVRTC 13.0.

#include "last_block.cuh"
#include "linear.cuh"

constexpr int ROUTE_WARPS = 4;
constexpr int TILE_THREADS = 1024;
constexpr int MAX_EXPERTS = 1024;
constexpr u32 ALL_LANES = 0xffffffffu;
// Choice of a row that is not there.
constexpr u32 NO_EXPERT = 0xffffffffu;

struct TilesParams {
    const u32* chosen;          // [num_slots]
    u32* slots;                 // [num_slots], by expert
    int* tiles;                 // triples of expert, first, count
    int* num_tiles;             // [1]
    int num_slots;              // T * K
    int num_experts;            // E
    int tile_rows;              // slots of a tile at most
    int padding;
};

struct RouteParams {
    const float* logits;        // [T, E]
    const float* bias;          // [E]
    const u32* num_rows;        // [1]; rows from it on choose no expert
    u32* chosen;                // [T, K]
    float* weights;             // [T, K]
    u32* blocks_done;           // [1], 0 before and after a launch
    TilesParams list;           // of these rows; without `slots`: none is written
    int padded_rows;            // rows of the launch
    int num_experts;            // E, at most MAX_EXPERTS
    int top_k;                  // K
    int n_group;                // at most 32: one lane each
    int topk_group;
    int normalise;              // whether weights are divided by their sum
    float scaling_factor;
    int padding;
};

// Bits whose unsigned order is the order of the numbers, NaN as the smallest; -0 before +0.
__device__ __forceinline__ u32 ordered(float value) {
    const u32 bits = __float_as_uint(value != value ? __uint_as_float(0xff800000u) : value);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The index of the largest key of a warp, the lowest on ties; every lane gives its best key and that key's index.
__device__ __forceinline__ int best_of_warp(u32 key, int index) {
    const u32 largest = __reduce_max_sync(ALL_LANES, key);
    return static_cast<int>(__reduce_min_sync(ALL_LANES, key == largest ? static_cast<u32>(index) : NO_EXPERT));
}

// The choice of row `row` by a warp.
__device__ __forceinline__ void choose(
    const RouteParams& params, int row, float (&scores)[ROUTE_WARPS][MAX_EXPERTS], u32 (&keys)[ROUTE_WARPS][MAX_EXPERTS]) {
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    u32* chosen = params.chosen + static_cast<i64>(row) * params.top_k;
    float* weights = params.weights + static_cast<i64>(row) * params.top_k;
    if (row >= static_cast<int>(*params.num_rows)) {
        for (int k = lane; k < params.top_k; k += WARP) {
            chosen[k] = NO_EXPERT;
            weights[k] = 0.0f;
        }
        return;
    }
    const float* logits = params.logits + static_cast<i64>(row) * params.num_experts;
#pragma unroll 4
    for (int e = lane; e < params.num_experts; e += WARP) {
        // Other blocks of this launch may have written the logits.
        const float score = __fdiv_rn(1.0f, 1.0f + expf(-__ldcg(logits + e)));
        scores[warp][e] = score;
        keys[warp][e] = ordered(score + params.bias[e]);
    }
    __syncwarp();
    if (params.topk_group < params.n_group) {
        // Lane g scores group g by its two best choices, which the keys order.
        const int size = params.num_experts / params.n_group;
        u32 first = 0, second = 0;
        if (lane < params.n_group) {
            for (int e = lane * size; e < (lane + 1) * size; ++e) {
                const u32 key = keys[warp][e];
                second = key > first ? first : max(second, key);
                first = max(first, key);
            }
        }
        const auto value = [](u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); };
        u32 group = 0;
        if (lane < params.n_group) {
            group = ordered(size > 1 ? value(first) + value(second) : value(first));
        }
        u32 kept = 0;
        for (int i = 0; i < params.topk_group; ++i) {
            const int best = best_of_warp(group, lane);
            kept |= 1u << best;
            group = lane == best ? 0 : group;
        }
        for (int e = lane; e < params.num_experts; e += WARP) {
            if (!(kept >> (e / size) & 1u)) {
                keys[warp][e] = ordered(__uint_as_float(0xff800000u));
            }
        }
        __syncwarp();
    }
    // The best of this lane's experts.
    u32 key = 0;
    int index = 0;
    const auto look = [&] {
        key = 0, index = 0;
#pragma unroll 4
        for (int e = lane; e < params.num_experts; e += WARP) {
            const u32 other = keys[warp][e];
            index = other > key ? e : index;
            key = max(key, other);
        }
    };
    look();
    float sum = 0.0f;
    for (int k = 0; k < params.top_k; ++k) {
        const int best = best_of_warp(key, index);
        sum += scores[warp][best];
        if (lane == best % WARP) {
            // Below the key of -inf: not chosen again.
            keys[warp][best] = 0;
            look();
        }
        if (lane == 0) {
            chosen[k] = static_cast<u32>(best);
        }
        __syncwarp();
    }
    const float divisor = params.normalise ? sum + 1e-20f : 1.0f;
    for (int k = lane; k < params.top_k; k += WARP) {
        // Written by lane 0 above, ordered by the barrier.
        weights[k] = __fdiv_rn(scores[warp][chosen[k]], divisor) * params.scaling_factor;
    }
}

// Writes the worklist. A call of a block of THREADS threads, each with EXPERTS neighbouring experts.
template <int THREADS>
__device__ __forceinline__ void write_list(const TilesParams& params) {
    constexpr int EXPERTS = MAX_EXPERTS / THREADS;
    __shared__ int counts[MAX_EXPERTS];
    __shared__ int slot_ends[THREADS / WARP];
    __shared__ int tile_ends[THREADS / WARP];
    const int thread = static_cast<int>(threadIdx.x);
    const int warp = thread / WARP;
    const int lane = thread % WARP;
#pragma unroll
    for (int i = 0; i < EXPERTS; ++i) {
        counts[thread * EXPERTS + i] = 0;
    }
    __syncthreads();
    // Other blocks of this launch may have written the choices: they are read from the second cache.
    for (int slot = thread; slot < params.num_slots; slot += THREADS) {
        const u32 expert = __ldcg(params.chosen + slot);
        if (expert != NO_EXPERT) {
            atomicAdd(&counts[expert], 1);
        }
    }
    __syncthreads();
    // Exclusive sums of slots and of tiles over the experts: of the thread, in the warp, then over the warps.
    int num_slots = 0, num_tiles = 0;
#pragma unroll
    for (int i = 0; i < EXPERTS; ++i) {
        const int count = counts[thread * EXPERTS + i];
        num_slots += count;
        num_tiles += (count + params.tile_rows - 1) / params.tile_rows;
    }
    int slot_end = num_slots, tile_end = num_tiles;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        const int slots_before = __shfl_up_sync(ALL_LANES, slot_end, distance);
        const int tiles_before = __shfl_up_sync(ALL_LANES, tile_end, distance);
        slot_end += lane >= distance ? slots_before : 0;
        tile_end += lane >= distance ? tiles_before : 0;
    }
    if (lane == WARP - 1) {
        slot_ends[warp] = slot_end;
        tile_ends[warp] = tile_end;
    }
    __syncthreads();
    for (int w = 0; w < warp; ++w) {
        slot_end += slot_ends[w];
        tile_end += tile_ends[w];
    }
    int first = slot_end - num_slots;
    int* tile = params.tiles + 3 * (tile_end - num_tiles);
#pragma unroll
    for (int i = 0; i < EXPERTS; ++i) {
        const int expert = thread * EXPERTS + i;
        const int count = counts[expert];
        for (int done = 0; done < count; done += params.tile_rows, tile += 3) {
            tile[0] = expert;
            tile[1] = first + done;
            tile[2] = min(params.tile_rows, count - done);
        }
        // From here on the place of the expert's next slot.
        counts[expert] = first;
        first += count;
    }
    if (thread == THREADS - 1) {
        *params.num_tiles = tile_end;
    }
    __syncthreads();
    for (int slot = thread; slot < params.num_slots; slot += THREADS) {
        const u32 expert = __ldcg(params.chosen + slot);
        if (expert != NO_EXPERT) {
            params.slots[atomicAdd(&counts[expert], 1)] = static_cast<u32>(slot);
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROUTE_WARPS * WARP) route(const __grid_constant__ RouteParams params) {
    begin_kernel();
    __shared__ float scores[ROUTE_WARPS][MAX_EXPERTS];
    __shared__ u32 keys[ROUTE_WARPS][MAX_EXPERTS];
    const int row = static_cast<int>(blockIdx.x) * ROUTE_WARPS + static_cast<int>(threadIdx.x) / WARP;
    if (row < params.padded_rows) {
        choose(params, row, scores, keys);
    }
    if (params.list.slots != nullptr && is_last_block(params.blocks_done)) {
        write_list<ROUTE_WARPS * WARP>(params.list);
    }
}

struct LinearRouteParams {
    LinearParams linear;  // its y is the logits of `route`
    RouteParams route;    // with a worklist
};

template <typename Format>
__device__ __forceinline__ void linear_route(const LinearRouteParams& params) {
    __shared__ float scores[ROUTE_WARPS][MAX_EXPERTS];
    __shared__ u32 keys[ROUTE_WARPS][MAX_EXPERTS];
    linear<Format, 1>(params.linear);
    if (!is_last_block(params.route.blocks_done)) {
        return;
    }
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    if (warp < ROUTE_WARPS) {
        for (int row = warp; row < params.route.padded_rows; row += ROUTE_WARPS) {
            choose(params.route, row, scores, keys);
            __syncwarp();
        }
    }
    __threadfence();
    __syncthreads();
    write_list<LINEAR_WARPS * WARP>(params.route.list);
}

#define LINEAR_ROUTE(name, Format)                                                                                     \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * WARP, 1) name(const __grid_constant__ LinearRouteParams params) { \
        begin_kernel();                                                                                                \
        linear_route<Format>(params);                                                                                  \
    }

LINEAR_ROUTE(route_f32, F32)
LINEAR_ROUTE(route_bf16, Bf16)

extern "C" __global__ void __launch_bounds__(TILE_THREADS) tiles(const __grid_constant__ TilesParams params) {
    begin_kernel();
    write_list<TILE_THREADS>(params);
}
