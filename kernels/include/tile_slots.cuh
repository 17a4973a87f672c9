// Operands of a launch of products, and where totals are written.

#include "norm.cuh"
#include "slots.cuh"
#include "tile_format.cuh"

// Operands of a product.
struct TiledParams {
    TiledWeight weight;
    const bf16* x;          // rows of x_stride values
    void* y;                // rows of y_stride values
    const int* num_tiles;   // [1], or null: slot t is row t, of expert 0
    const SlotTile* tiles;
    const u32* slots;       // slots ordered by expert
    const u32* x_rows;      // without tiles: row of x of slot t, or null: t
    i64 x_stride;           // values, a multiple of 8
    i64 y_stride;           // values
    int slots_per_row;      // slots of a row of x
    int num_slots;          // without tiles
    int add;                // whether y is added to
    int tiles_are_old;      // a launch before the last one wrote the tiles
};

// One product, or two of one format: blockIdx.z says which.
struct TiledLaunch {
    TiledParams parts[2];
    RmsNormParams norm;  // of the rows that a product was added to, by the last block; `gain` null: none
    u32* blocks_done;    // [1], 0 before and after a launch
    int norm_rows;       // at most 8
    int padding;
};

__device__ __forceinline__ int x_row_of(const TiledParams& params, int slot) {
    return params.x_rows != nullptr ? static_cast<int>(params.x_rows[slot]) : slot / params.slots_per_row;
}

// The thread's number, read here: what else is made of it does not wait in registers for this.
__device__ __forceinline__ int thread_again() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Writes what a thread has summed of TILES tiles from `first_tile` on and 8 * TOKENS rows, whose slots are in shared memory: `total_of(i)`
// is total i of them, in the order of sums. `Write::run(params, tile, g, slot, lower, upper)` gets those of outputs g and g + 8 of a tile. With
// RANKS only every RANKS-th pair of a tile and eight rows, from `rank` on. AT_ONCE of these are unrolled, so that what is added to is loaded
// early, and no more: a product writes once, and has as much code elsewhere.
template <typename Write, int TILES, int TOKENS, int RANKS, int AT_ONCE, typename TotalOf>
__device__ __forceinline__ void write_totals(
    const TiledParams& params, const SlotTile& tile, const u32* slots, int first_tile, int rank, const TotalOf& total_of) {
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const float lower_factor = params.weight.factors[2 * tile.expert];
    const float upper_factor = params.weight.factors[2 * tile.expert + 1];
#pragma unroll AT_ONCE
    for (int at = rank; at < TILES * TOKENS; at += RANKS) {
        const int m = at % TILES, n = at / TILES;
        if (first_tile + m >= params.weight.tiles) {
            continue;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = 8 * n + lane % 4 * 2 + i, first = (m * TOKENS + n) * 4 + i;
            if (row < tile.count) {
                Write::run(
                    params, first_tile + m, lane / 4, static_cast<int>(slots[row]), total_of(first) * lower_factor,
                    total_of(first + 2) * upper_factor);
            }
        }
    }
}
