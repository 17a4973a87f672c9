// route: the experts of each row from the router's logits, and their worklist; route_f32, route_bf16: the same behind the
// logits, of up to 8 rows; norm_route_f32, norm_route_bf16: behind the norm of the rows too, of more of them; tiles: the worklist
// alone.
// Source:  DeepSeek-V3, arXiv 2412.19437, section 2.1.2. Twin: src/cuda/kernels/route.rs.
// Spec:    ops/backend.rs `moe`; host/reference.rs `choose`.
// Legend:  T rows (tokens), E routed experts, K experts per token, slot t*K+k.
// Shapes:  logits [T, E] f32; bias [E] f32; chosen [T, K] u32; weights [T, K] f32.
// Traffic: 4*T*(E+2K) bytes, of which a decode step has some kilobytes: latency-bound.
// Grid:    route: a warp for each row, 4 in a block; the block that ends last writes the worklist. route_*: a warp for each
//          logit of 8 rows, 8 in a block; the block that ends last chooses. norm_route_*: a block for each row's norm, and for the
//          logits of 8 rows and 16 or 24 experts, which waits for their norms; the last one of 8 rows chooses for them, the last
//          of all writes the worklist. tiles: one block of 1024 threads.
// Order:   a row's choice depends on its logits alone. The order of slots inside an expert's tiles depends, but for route_*, on the
//          order of atomic additions; no result depends on it, since each slot's product is its own.
// Code:    what the last block runs it runs once, and fetches it from the second cache: loops are not unrolled but where they
//          keep keys in registers.
// Tried:   H100, T=1, E=384: route_bf16 29 us with loops unrolled, 3,160 instructions, and one step of weights after the other. The
//          code below, 2,296 and four steps under way, has not run on a GPU.

#include "norm.cuh"
#include "route.cuh"

constexpr int TILE_THREADS = 1024;

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
        const u32 expert = held_expert(params, __ldcg(params.chosen + slot));
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
        const u32 expert = held_expert(params, __ldcg(params.chosen + slot));
        if (expert != NO_EXPERT) {
            params.slots[atomicAdd(&counts[expert], 1)] = static_cast<u32>(slot);
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROUTE_WARPS * WARP) route(const __grid_constant__ RouteParams params) {
    begin_kernel();
    __shared__ float scores[ROUTE_WARPS][MAX_EXPERTS];
    __shared__ u32 keys[ROUTE_WARPS][MAX_EXPERTS];
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int first = static_cast<int>(blockIdx.x) * ROUTE_WARPS;
    score<ROUTE_WARPS * WARP>(params, first, scores, keys);
    __syncthreads();
    if (first + warp < params.padded_rows) {
        choose(params, first + warp, scores[warp], keys[warp], nullptr);
    }
    if (params.list.slots != nullptr && is_last_block(params.blocks_done)) {
        write_list<ROUTE_WARPS * WARP>(params.list);
    }
}

#define LINEAR_ROUTE(name, Format)                                                                                     \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * WARP, 1) name(const __grid_constant__ LinearRouteParams params) { \
        begin_kernel();                                                                                                \
        linear_route<Format>(params, gridDim.x);                                                                                  \
    }

LINEAR_ROUTE(route_f32, F32)
LINEAR_ROUTE(route_bf16, Bf16)

constexpr int MANY_TILES = 64;

// How far the blocks of a launch are: 0 before and after it.
struct RouteProgress {
    u32 turns;
    u32 tiles_done;
    u32 rows_normed[MANY_TILES];  // of ROWS rows each
    u32 blocks_done[MANY_TILES];  // with logits of these rows
};

struct NormRouteParams {
    RmsNormParams norm;       // of all rows, which are those of `linear` then
    LinearParams linear;      // its y is the logits of `route`
    RouteParams route;        // with a worklist, and at most MANY_TILES * ROWS rows; its `blocks_done` is null
    RouteProgress* progress;  // [1]
};

template <typename Format, int COLUMNS, bool ALL>
__device__ __forceinline__ void norm_route(const NormRouteParams& params) {
    __shared__ float scores[ROUTE_WARPS][MAX_EXPERTS];
    __shared__ u32 keys[ROUTE_WARPS][MAX_EXPERTS];
    __shared__ float warp_sums[NORM_THREADS / WARP];
    static_assert(NORM_THREADS == LINEAR_WARPS * WARP);
    RouteProgress& progress = *params.progress;
    const int rows = params.route.padded_rows, turn = take_turn(&progress.turns);
    if (turn < rows) {
        norm_row<false>(params.norm, turn, warp_sums);
        count_block(&progress.rows_normed[turn / ROWS]);
        return;
    }
    const int columns = (params.route.num_experts + LINEAR_WARPS * COLUMNS - 1) / (LINEAR_WARPS * COLUMNS);
    const int tile = (turn - rows) / columns, first = tile * ROWS, end = min(first + ROWS, rows);
    wait_for_blocks(&progress.rows_normed[tile], static_cast<u32>(end - first));
    linear<Format, COLUMNS, ALL, false>(params.linear, (turn - rows) % columns, tile);
    if (!is_last_block(&progress.blocks_done[tile], static_cast<u32>(columns))) {
        return;
    }
    choose_rows(params.route, first, end, scores, keys, nullptr);
    if (threadIdx.x == 0) {
        atomicExch(&progress.rows_normed[tile], 0);
    }
    if (is_last_block(&progress.tiles_done, static_cast<u32>((rows + ROWS - 1) / ROWS))) {
        if (threadIdx.x == 0) {
            atomicExch(&progress.turns, 0);
        }
        write_list<LINEAR_WARPS * WARP>(params.route.list);
    }
}

#define NORM_ROUTE(name, Format, COLUMNS, ALL)                                                                         \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * WARP, 2) name(const __grid_constant__ NormRouteParams params) { \
        begin_kernel();                                                                                                \
        norm_route<Format, COLUMNS, ALL>(params);                                                                      \
    }

NORM_ROUTE(norm_route_f32, F32, 2, false)
NORM_ROUTE(norm_route_bf16, Bf16, 3, true)

extern "C" __global__ void __launch_bounds__(TILE_THREADS) tiles(const __grid_constant__ TilesParams params) {
    begin_kernel();
    write_list<TILE_THREADS>(params);
}
