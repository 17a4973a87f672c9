// The choice of each row's experts, and its worklist (route.cu, route_swiglu.cu).

#include "ahead.cuh"
#include "last_block.cuh"
#include "linear.cuh"

constexpr int ROUTE_WARPS = 4;
constexpr int MAX_EXPERTS = 1024;
// Keys of a lane, of up to 384 experts: what is not unrolled further is not fetched.
constexpr int SMALL_LANE = 12;
constexpr u32 ALL_LANES = 0xffffffffu;
// Choice of a row that is not there.
constexpr u32 NO_EXPERT = 0xffffffffu;

struct TilesParams {
    const u32* chosen;          // [num_slots]
    u32* slots;                 // [num_slots], by expert
    int* tiles;                 // triples of expert, first, count
    int* num_tiles;             // [1]
    int num_slots;              // T * K
    int num_experts;            // experts of this device
    int tile_rows;              // slots of a tile at most
    u32 first_expert;           // number of the first one; slots of others are left out, and tiles count from it
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

// A chosen expert by its place on this device; NO_EXPERT where it is on another one.
__device__ __forceinline__ u32 held_expert(const TilesParams& params, u32 chosen) {
    const u32 expert = chosen - params.first_expert;
    return expert < static_cast<u32>(params.num_experts) ? expert : NO_EXPERT;
}

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

// Scores and keys of the rows from `first` on, ROUTE_WARPS at most, by a block of THREADS threads.
template <int THREADS>
__device__ __forceinline__ void score(
    const RouteParams& params, int first, float (&scores)[ROUTE_WARPS][MAX_EXPERTS], u32 (&keys)[ROUTE_WARPS][MAX_EXPERTS]) {
    const int rows = min(ROUTE_WARPS, params.padded_rows - first);
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
        const float* logits = params.logits + static_cast<i64>(first + row) * params.num_experts;
#pragma unroll 1
        for (int e = static_cast<int>(threadIdx.x); e < params.num_experts; e += THREADS) {
            // Other blocks of this launch may have written the logits.
            const float logit = __ldcg(logits + e);
            const float bias = params.bias[e];
            const float score = __fdiv_rn(1.0f, 1.0f + expf(-logit));
            scores[row][e] = score;
            keys[row][e] = ordered(score + bias);
        }
    }
}

// Leaves the keys of the best groups of a row, by a warp; those of other groups become the key of -inf.
__device__ __forceinline__ void keep_groups(const RouteParams& params, u32 (&keys)[MAX_EXPERTS]) {
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    // Lane g scores group g by its two best choices, which the keys order.
    const int size = params.num_experts / params.n_group;
    u32 first = 0, second = 0;
    if (lane < params.n_group) {
#pragma unroll 1
        for (int e = lane * size; e < (lane + 1) * size; ++e) {
            const u32 key = keys[e];
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
#pragma unroll 1
    for (int i = 0; i < params.topk_group; ++i) {
        const int best = best_of_warp(group, lane);
        kept |= 1u << best;
        group = lane == best ? 0 : group;
    }
#pragma unroll 1
    for (int e = lane; e < params.num_experts; e += WARP) {
        if (!(kept >> (e / size) & 1u)) {
            keys[e] = ordered(__uint_as_float(0xff800000u));
        }
    }
    __syncwarp();
}

// The K largest keys of a row by a warp, in falling order, the lowest index on ties; each lane has PER_LANE keys in registers.
// Their indices take the place of the first keys. Returns the sum of their scores.
template <int PER_LANE>
__device__ __forceinline__ float take_best(
    const RouteParams& params, const float (&scores)[MAX_EXPERTS], u32 (&keys)[MAX_EXPERTS]) {
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    u32 own[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int e = lane + i * WARP;
        // Below the key of -inf: not chosen.
        own[i] = e < params.num_experts ? keys[e] : 0;
    }
    __syncwarp();
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < params.top_k; ++k) {
        u32 largest = own[0];
#pragma unroll
        for (int i = 1; i < PER_LANE; ++i) {
            largest = max(largest, own[i]);
        }
        largest = __reduce_max_sync(ALL_LANES, largest);
        u32 index = NO_EXPERT;
#pragma unroll
        for (int i = PER_LANE - 1; i >= 0; --i) {
            index = own[i] == largest ? static_cast<u32>(lane + i * WARP) : index;
        }
        const u32 best = __reduce_min_sync(ALL_LANES, index);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            own[i] = best == static_cast<u32>(lane + i * WARP) ? 0 : own[i];
        }
        sum += scores[best];
        if (lane == 0) {
            keys[k] = best;
        }
    }
    __syncwarp();
    return sum;
}

// The choice of row `row` by a warp, from its scores and keys, which it overwrites; also into `experts` [K], unless it is null.
__device__ __forceinline__ void choose(
    const RouteParams& params, int row, const float (&scores)[MAX_EXPERTS], u32 (&keys)[MAX_EXPERTS], u32* experts) {
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const i64 first = static_cast<i64>(row) * params.top_k;
    const bool there = row < static_cast<int>(*params.num_rows);
    float divisor = 1.0f;
    if (there) {
        if (params.topk_group < params.n_group) {
            keep_groups(params, keys);
        }
        const float sum = params.num_experts <= SMALL_LANE * WARP ? take_best<SMALL_LANE>(params, scores, keys)
                                                                  : take_best<MAX_EXPERTS / WARP>(params, scores, keys);
        divisor = params.normalise ? sum + 1e-20f : 1.0f;
    }
#pragma unroll 1
    for (int k = lane; k < params.top_k; k += WARP) {
        const u32 best = there ? keys[k] : NO_EXPERT;
        params.chosen[first + k] = best;
        params.weights[first + k] = there ? __fdiv_rn(scores[best], divisor) * params.scaling_factor : 0.0f;
        if (experts != nullptr) {
            experts[k] = best;
        }
    }
}

// Writes the worklist of at most THREADS slots, the slots of an expert in their order. `experts` [THREADS] has the choices of the
// block, NO_EXPERT behind the last slot; it is overwritten. A call of a block of THREADS threads, one for each slot: it counts the slots in front.
template <int THREADS>
__device__ __forceinline__ void write_short_list(const TilesParams& params, u32 (&experts)[THREADS]) {
    __shared__ alignas(16) u32 begins[THREADS];
    const int slot = static_cast<int>(threadIdx.x);
    const u32 expert = held_expert(params, experts[slot]);
    experts[slot] = expert;
    __syncthreads();
    int lower = 0, earlier = 0, same = 0;
#pragma unroll 1
    for (int other = 0; other < params.num_slots; other += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(experts + other);
        const u32 of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            lower += of[i] < expert;
            same += of[i] == expert;
            earlier += of[i] == expert && other + i < slot;
        }
    }
    const bool there = expert != NO_EXPERT;
    const int full = earlier / params.tile_rows;
    const bool first_of_tile = there && earlier == full * params.tile_rows;
    begins[slot] = first_of_tile ? expert : NO_EXPERT;
    const int num_tiles = __syncthreads_count(first_of_tile);
    if (slot == 0) {
        *params.num_tiles = num_tiles;
    }
    if (there) {
        params.slots[lower + earlier] = static_cast<u32>(slot);
    }
    if (first_of_tile) {
        int tile = full;
#pragma unroll 1
        for (int other = 0; other < params.num_slots; other += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(begins + other);
            tile += (four.x < expert) + (four.y < expert) + (four.z < expert) + (four.w < expert);
        }
        int* entry = params.tiles + 3 * tile;
        entry[0] = static_cast<int>(expert);
        entry[1] = lower + earlier;
        entry[2] = min(params.tile_rows, same - earlier);
    }
}

struct LinearRouteParams {
    LinearParams linear;  // its y is the logits of `route`
    RouteParams route;    // with a worklist
    Ahead ahead;
};

// linear<Format, 1> of one row, with the same sums: the loads of four steps are under way at once.
template <typename Format>
__device__ __forceinline__ void logits_of_one_row(const LinearParams& params) {
    constexpr int VALUES = Format::VALUES;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const int column = static_cast<int>(blockIdx.x) * LINEAR_WARPS + static_cast<int>(threadIdx.x) / WARP;
    if (column >= params.weight.rows) {
        return;
    }
    const WeightRow row = row_of<Format>(params.weight, 0, column);
    float sum = 0.0f;
#pragma unroll 4
    for (int k = lane * VALUES; k < params.weight.columns; k += WARP * VALUES) {
        float w[VALUES];
        Format::load(w, row, k);
#pragma unroll
        for (int part = 0; part < VALUES; part += 8) {
            float values[8];
            load8(values, params.x + k + part);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                sum = __fmaf_rn(values[i], w[part + i], sum);
            }
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        params.y[column] = sum;
    }
}

// The choice of rows by a block of LINEAR_WARPS warps; also into `experts` [rows, K], unless it is null.
__device__ __forceinline__ void choose_rows(
    const RouteParams& params, int begin, int end, float (&scores)[ROUTE_WARPS][MAX_EXPERTS], u32 (&keys)[ROUTE_WARPS][MAX_EXPERTS],
    u32* experts) {
    const int warp = static_cast<int>(threadIdx.x) / WARP;
#pragma unroll 1
    for (int first = begin; first < end; first += ROUTE_WARPS) {
        score<LINEAR_WARPS * WARP>(params, first, scores, keys);
        __syncthreads();
        const int row = first + warp;
        if (warp < ROUTE_WARPS && row < end) {
            choose(params, row, scores[warp], keys[warp], experts == nullptr ? nullptr : experts + (row - begin) * params.top_k);
        }
        __syncthreads();
    }
}

// Logits of up to ROWS rows and what is chosen of them, by the first `blocks` blocks of a launch.
template <typename Format>
__device__ __forceinline__ void linear_route(const LinearRouteParams& params, u32 blocks) {
    __shared__ float scores[ROUTE_WARPS][MAX_EXPERTS];
    __shared__ u32 keys[ROUTE_WARPS][MAX_EXPERTS];
    __shared__ alignas(16) u32 experts[LINEAR_WARPS * WARP];
    if (params.linear.num_rows == 1) {
        logits_of_one_row<Format>(params.linear);
    } else {
        linear<Format, 1>(params.linear);
    }
    // Behind the loads that the choice waits for.
    if (threadIdx.x == 0) {
        fetch_ahead(params.ahead, blockIdx.x, blocks);
    }
    if (!is_last_block(params.route.blocks_done, blocks)) {
        return;
    }
    experts[threadIdx.x] = NO_EXPERT;
    choose_rows(params.route, 0, params.route.padded_rows, scores, keys, experts);
    write_short_list<LINEAR_WARPS * WARP>(params.route.list, experts);
}
