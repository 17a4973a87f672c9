// experts: the SwiGLU FFNs of chosen experts, weights in their stored format, in two products.
// Source:  Shazeer, arXiv 2002.05202 (SwiGLU); DeepSeek-V3, arXiv 2412.19437, section 2.1.2. Twin: src/cuda/kernels/experts.rs.
// Spec:    ops/backend.rs `moe`, `dense`; host/reference.rs `swiglu`.
// Legend:  T rows (tokens), K experts per token, D hidden size, I inner units, slot t*K+k of the k-th expert of row t.
// Shapes:  x [T, D] f32; gate, up [E, I, D]; down [E, D, I]; inner [T*K, I] f32; out [T*K, D] f32.
// Traffic: experts_up: gate and up once for each tile of 8 slots of one expert; experts_down: down likewise.
// Floor:   NVFP4, D=7168, I=2048, T=1, K=8: up 132.1 MB -> 30.7 us at 4.3 TB/s (H200), down 66.1 MB -> 15.4 us.
// Grid:    (outputs / outputs of a block, most tiles); blocks without a tile end at once, so that the grid does not depend
//          on the choice of experts. 8 warps; a warp of experts_up computes one unit (gate and up), of experts_down two
//          outputs.
// Order:   see warp_products: fixed by the shape and the format; a slot's result does not depend on its tile.
// Tried:   one version; no timing yet.

#include "types.cuh"
#include "reduce.cuh"
#include "weight.cuh"

constexpr int WARPS = 8;

// A run of slots of one expert; device side of cuda/kernels/route.rs.
struct Tile {
    int expert;
    int first;  // index into `slots`
    int count;  // at most ROWS
};

struct ExpertsUpParams {
    Weight gate;          // [E, I, D]
    Weight up;            // [E, I, D]
    const float* x;       // [T, D]
    const int* num_tiles; // [1], or null: slots are the rows, all of expert 0
    const Tile* tiles;
    const u32* slots;     // slots ordered by expert
    float* inner;         // [slots, I]
    int top_k;            // slots of a row of x
    int num_slots;        // without tiles: number of slots
};

struct ExpertsDownParams {
    Weight down;          // [E, D, I]
    const float* inner;   // [slots, I]
    const int* num_tiles; // as above
    const Tile* tiles;
    const u32* slots;
    float* out;           // [slots, D]
    int num_slots;
    int padding;
};

// The tile of this block and its slots; false without one.
template <typename Params>
__device__ __forceinline__ bool tile_of(const Params& params, Tile& tile, int (&slots)[ROWS]) {
    const int index = static_cast<int>(blockIdx.y);
    if (params.num_tiles == nullptr) {
        tile = {0, index * ROWS, min(ROWS, params.num_slots - index * ROWS)};
    } else if (index < *params.num_tiles) {
        tile = params.tiles[index];
    } else {
        return false;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int at = tile.first + min(r, tile.count - 1);
        slots[r] = params.num_tiles == nullptr ? at : static_cast<int>(params.slots[at]);
    }
    return true;
}

template <typename Format>
__device__ __forceinline__ void experts_up(const ExpertsUpParams& params) {
    const int unit = static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    Tile tile;
    int slots[ROWS];
    if (unit >= params.gate.rows || !tile_of(params, tile, slots)) {
        return;
    }
    const float* x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        x[r] = params.x + static_cast<i64>(slots[r] / params.top_k) * params.gate.columns;
    }
    const WeightRow rows[2] = {
        row_of<Format>(params.gate, tile.expert, unit), row_of<Format>(params.up, tile.expert, unit)};
    float sums[2][ROWS];
    warp_products<Format, 2>(sums, rows, x, tile.count, params.gate.columns);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (lane == r && r < tile.count) {
            const float gate = sums[0][r];
            const float silu = __fdiv_rn(gate, 1.0f + expf(-gate));
            params.inner[static_cast<i64>(slots[r]) * params.gate.rows + unit] = silu * sums[1][r];
        }
    }
}

template <typename Format>
__device__ __forceinline__ void experts_down(const ExpertsDownParams& params) {
    const int column = (static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / WARP) * 2;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    Tile tile;
    int slots[ROWS];
    if (column >= params.down.rows || !tile_of(params, tile, slots)) {
        return;
    }
    const float* x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        x[r] = params.inner + static_cast<i64>(slots[r]) * params.down.columns;
    }
    const WeightRow rows[2] = {
        row_of<Format>(params.down, tile.expert, column), row_of<Format>(params.down, tile.expert, column + 1)};
    float sums[2][ROWS];
    warp_products<Format, 2>(sums, rows, x, tile.count, params.down.columns);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (lane == 2 * r + c && r < tile.count && column + c < params.down.rows) {
                params.out[static_cast<i64>(slots[r]) * params.down.rows + column + c] = sums[c][r];
            }
        }
    }
}

#define KERNELS(format, Format)                                                                      \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                       \
        experts_up_##format(const __grid_constant__ ExpertsUpParams params) {                        \
        begin_kernel();                                                                              \
        experts_up<Format>(params);                                                                  \
    }                                                                                                \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                       \
        experts_down_##format(const __grid_constant__ ExpertsDownParams params) {                    \
        begin_kernel();                                                                              \
        experts_down<Format>(params);                                                                \
    }

KERNELS(f32, F32)
KERNELS(bf16, Bf16)
KERNELS(nvfp4, Nvfp4)
KERNELS(mxfp4, Mxfp4)
KERNELS(int4, Int4)
KERNELS(fp8, Fp8)
