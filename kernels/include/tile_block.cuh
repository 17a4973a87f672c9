// The schedule of many rows, which the warps of a block share: block (tile.cuh).

#include "tile_slots.cuh"
#include "tile_steps.cuh"

// Block: tiles of a warp, and the shared memory of blocks of ROWS rows.
constexpr int BLOCK_TILES = 2;
constexpr int PARTS = UNIT / 8;
template <int ROWS>
struct BlockShared {
    uint4 rows[2][ROWS][PARTS];  // of one unit each, in places by `place_of`
    float totals[BLOCK_TILES * ROWS / 8 * 4][WARPS * WARP];
    u32 slots[ROWS];  // of the rows
    u32 first[ROWS];  // where rows of x begin, in 8 values
};

// Where the 16 bytes `part` of a row are: the eight lanes that read at once, parts 4t + pair of two rows, reach all banks.
__device__ __forceinline__ int place_of(int row, int part) { return part ^ (part / 8 | (row & 1) << 1); }

// sums += the codes of unit u times rows in shared memory; `place` is that of the lane's 16 bytes of steps 0 and 1. Words are
// loaded a unit before they are needed, or half of one where registers are short; `next` is the unit behind u, if any.
template <typename Format, int TOKENS>
__device__ __forceinline__ void add_block_steps(
    float (&sums)[BLOCK_TILES][TOKENS][4], typename Format::Unit (&units)[BLOCK_TILES],
    const TileRow (&tiles)[BLOCK_TILES], u32 u, u32 next, const uint4 (*rows)[PARTS], int place) {
#pragma unroll
    for (int pair = 0; pair < STEPS / 2; ++pair) {
        u32 a[BLOCK_TILES][2][4];
#pragma unroll
        for (int m = 0; m < BLOCK_TILES; ++m) {
            Format::fragment(a[m][0], units[m], 2 * pair);
            Format::fragment(a[m][1], units[m], 2 * pair + 1);
        }
#pragma unroll
        for (int n = 0; n < TOKENS; ++n) {
            const uint4 x = rows[8 * n][place ^ pair];
#pragma unroll
            for (int m = 0; m < BLOCK_TILES; ++m) {
                mma(sums[m][n], a[m][0], x.x, x.y);
            }
#pragma unroll
            for (int m = 0; m < BLOCK_TILES; ++m) {
                mma(sums[m][n], a[m][1], x.z, x.w);
            }
        }
#pragma unroll
        for (int m = 0; m < BLOCK_TILES; ++m) {
            constexpr int PAIRS = STEPS / 2, AHEAD = Format::UNIT_SCALES || (Format::BY_HALVES && TOKENS > 8) ? PAIRS / 2 : PAIRS;
            Format::template load_words<true>(units[m], tiles[m], pair + AHEAD < PAIRS ? u : next, (pair + AHEAD) % PAIRS);
        }
    }
}

// Each warp has two tiles, whose words go straight to its registers, and all rows of the block, which copies bring to shared
// memory for all warps, a unit ahead. Blocks of the same tiles follow each other, so that they find the weights in L2.
template <typename Format, typename Write, int ROWS, int TOKENS, int BLOCKS>
__device__ __forceinline__ void tiled_block(const TiledParams& params, const SlotTile& slots, int block_tile) {
    extern __shared__ uint4 memory[];
    auto& shared = *reinterpret_cast<BlockShared<ROWS>*>(memory);
    const TiledWeight& weight = params.weight;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / WARP, lane = thread % WARP;
    // A thread copies one part of every sixteenth row.
    constexpr int COPY_ROWS = WARPS * WARP / PARTS, COPIES = 8 * TOKENS / COPY_ROWS;
    const int part = thread % PARTS;
    const uint4* x = reinterpret_cast<const uint4*>(params.x);
    if (thread < 8 * TOKENS) {
        const int slot = slot_of(params, slots, thread);
        shared.slots[thread] = static_cast<u32>(slot);
        shared.first[thread] = static_cast<u32>(x_row_of(params, slot) * params.x_stride / 8);
    }
    __syncthreads();
    const auto copy = [&](u32 u) {
        // Beyond K weights are zero, and any input of the row will do.
        const u32 at = u * PARTS + static_cast<u32>(part);
        const u32 from = at < static_cast<u32>(weight.columns) / 8 ? at : 0;
#pragma unroll (ROWS > 64 ? 2 : COPIES)
        for (int i = 0; i < COPIES; ++i) {
            const int row = thread / PARTS + i * COPY_ROWS;
            copy16(&shared.rows[u % 2][row][place_of(row, part)], x + shared.first[row] + from);
        }
        commit_copies();
    };
    copy(0);
    const int first_tile = block_tile + warp * BLOCK_TILES;
    const bool has_tiles = first_tile < weight.tiles;
    TileRow tiles[BLOCK_TILES];
    typename Format::Unit units[BLOCK_TILES];
#pragma unroll
    for (int m = 0; m < BLOCK_TILES; ++m) {
        tiles[m] = tile_row<Format>(weight, slots.expert, first_tile + m, lane);
        load_unit<Format, true>(units[m], tiles[m], 0);
    }
    // One of the four scales of the outputs of four lanes, which hand them to each other.
    const float* lower_scales = lane % 4 < 2 ? tiles[0].lower_scales : tiles[1].lower_scales;
    const float* upper_scales = lane % 4 < 2 ? tiles[0].upper_scales : tiles[1].upper_scales;
    const float* own_scales = lane % 2 == 0 ? lower_scales : upper_scales;
#pragma unroll
    for (int i = 0; i < BLOCK_TILES * TOKENS * 4; ++i) {
        shared.totals[i][thread] = 0.0f;
    }
    const int place = place_of(lane / 4, lane % 4 * 4);
    const u32 num_units = static_cast<u32>(weight.units), chunk_units = (num_units + CHUNKS - 1) / CHUNKS;
    u32 chunk_end = chunk_units;
    float sums[BLOCK_TILES][TOKENS][4];
    clear(sums);
#pragma unroll 1
    for (u32 u = 0; u < num_units; ++u) {
        wait_copies<0>();
        // The rows of this unit are there, and every warp has left those of the unit before.
        __syncthreads();
        if (u + 1 < num_units) {
            copy(u + 1);
        }
        if (!has_tiles) {
            continue;
        }
        const u32 next = min(u + 1, num_units - 1);
        const auto* rows = &shared.rows[u % 2][lane / 4];
        if constexpr (Format::UNIT_SCALES) {
            const float scale = own_scales[u * static_cast<u32>(tiles[0].scale_step)];
            float products[BLOCK_TILES][TOKENS][4];
            clear(products);
            add_block_steps<Format, TOKENS>(products, units, tiles, u, next, rows, place);
            float scales[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scales[i] = __shfl_sync(0xffffffffu, scale, lane / 4 * 4 + i);
            }
#pragma unroll
            for (int i = 0; i < BLOCK_TILES * TOKENS * 4; ++i) {
                const int m = i / (TOKENS * 4), n = i / 4 % TOKENS, j = i % 4;
                sums[m][n][j] = __fmaf_rn(scales[2 * m + j / 2], products[m][n][j], sums[m][n][j]);
            }
        } else {
            // Beside another block on the SM registers are short, and the other one has work while these scales are on their way.
            constexpr bool EARLY = BLOCKS == 1;
            typename Format::Scales scales[BLOCK_TILES];
            if constexpr (EARLY) {
#pragma unroll
                for (int m = 0; m < BLOCK_TILES; ++m) {
                    Format::template load_scales<true>(scales[m], tiles[m], next);
                }
            }
            add_block_steps<Format, TOKENS>(sums, units, tiles, u, next, rows, place);
#pragma unroll
            for (int m = 0; m < BLOCK_TILES; ++m) {
                if constexpr (EARLY) {
                    units[m].scales = scales[m];
                } else {
                    Format::template load_scales<true>(units[m].scales, tiles[m], next);
                }
            }
        }
        if (u + 1 == chunk_end || u + 1 == num_units) {
#pragma unroll
            for (int i = 0; i < BLOCK_TILES * TOKENS * 4; ++i) {
                shared.totals[i][thread] += sums[i / (TOKENS * 4)][i / 4 % TOKENS][i % 4];
            }
            clear(sums);
            chunk_end += chunk_units;
        }
    }
    if (has_tiles) {
        // Read again: the products have the registers for something else.
        SlotTile again;
        slot_tile(params, static_cast<int>(blockIdx.x), ROWS, again);
        const int writer = thread_again();
        // Two blocks leave no registers.
        write_totals<Write, BLOCK_TILES, TOKENS, 1, (BLOCKS > 1 ? 1 : 4)>(
            params, again, shared.slots, block_tile + writer / WARP * BLOCK_TILES, 0,
            [&](int i) { return shared.totals[i][writer]; });
    }
}

// Few rows of an expert are left to fewer products.
template <typename Format, typename Write, int ROWS, int BLOCKS>
__device__ __forceinline__ void tiled_block(const TiledParams& params) {
    SlotTile slots;
    const int block_tile = static_cast<int>(blockIdx.y) * WARPS * BLOCK_TILES;
    if (block_tile >= params.weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.x), ROWS, slots)) {
        return;
    }
    if constexpr (BLOCKS > 1) {
        tiled_block<Format, Write, ROWS, ROWS / 8, BLOCKS>(params, slots, block_tile);
    } else if constexpr (ROWS > 64) {
        if (slots.count <= ROWS / 2) {
            tiled_block<Format, Write, ROWS, ROWS / 16, BLOCKS>(params, slots, block_tile);
        } else {
            tiled_block<Format, Write, ROWS, ROWS / 8, BLOCKS>(params, slots, block_tile);
        }
    } else if (slots.count <= 32) {
        tiled_block<Format, Write, ROWS, 4, BLOCKS>(params, slots, block_tile);
    } else if (ROWS == 48 || slots.count <= 48) {
        tiled_block<Format, Write, ROWS, 6, BLOCKS>(params, slots, block_tile);
    } else {
        tiled_block<Format, Write, ROWS, ROWS / 8, BLOCKS>(params, slots, block_tile);
    }
}
