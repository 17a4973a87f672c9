// Schedules of up to 64 rows without shared rows: split and wide (tile.cuh).

#include "tile_slots.cuh"
#include "tile_steps.cuh"

// Whether a kernel of this many operands begins by itself, behind its first loads of weights where it knows them: of as many tiles of a
// warp as `Format::EARLY` at most.
template <typename Format>
__device__ constexpr bool loads_early(int tokens, int tiles) { return tokens == 1 && tiles <= Format::EARLY; }

// Whether the first weights are known before the kernel in front has ended: those of one matrix, and of experts that were chosen before it.
// None but repack writes weights, behind which no launch begins early (kernels/repack.rs).
__device__ __forceinline__ bool knows_weights(const TiledParams& params) {
    return params.num_tiles == nullptr || params.tiles_are_old != 0;
}

template <typename Format, typename Write, int TILES, int TOKENS>
__device__ __forceinline__ void tiled(const TiledParams& params, int first_tile) {
    constexpr int ROWS = 8 * TOKENS;
    SlotTile slots;
    const TiledWeight& weight = params.weight;
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    constexpr bool CAN_BE_EARLY = loads_early<Format>(TOKENS, TILES);
    const bool early = CAN_BE_EARLY && knows_weights(params);
    if (CAN_BE_EARLY && !early) {
        begin_kernel();
    }
    // The grid is that of the larger of two parts.
    if (first_tile >= weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.y), ROWS, slots)) {
        if (early) {
            begin_kernel();
        }
        return;
    }
    TileRow tiles[TILES];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        tiles[m] = tile_row<Format>(weight, slots.expert, first_tile + m, lane);
    }
    const int chunk_units = (weight.units + CHUNKS - 1) / CHUNKS;
    const int first_unit = warp * chunk_units;
    const int last_unit = min(first_unit + chunk_units, weight.units);
    constexpr bool BY_HALVES = TOKENS == 8 && Format::BY_HALVES;
    constexpr int DEPTH = TOKENS < 8 ? Format::DEPTH : 1;
    typename Format::Unit units[DEPTH][TILES];
    if constexpr (CAN_BE_EARLY) {
        load_first<Format, TILES, DEPTH>(units, tiles, first_unit, last_unit);
        if (early) {
            begin_kernel();
        }
    }
    extern __shared__ uint4 memory[];
    // 4 more than the outputs: a warp's stores go to all banks.
    auto* partial = reinterpret_cast<float(*)[ROWS][TILES * TILE + 4]>(memory);
    const auto begin_of = [&](int row) {
        return static_cast<u32>(x_row_of(params, slot_of(params, slots, row)) * params.x_stride / 8);
    };
    TokenRows<TOKENS> rows;
    rows.x = reinterpret_cast<const uint4*>(params.x);
    if constexpr (TOKENS < 8) {
#pragma unroll
        for (int n = 0; n < TOKENS; ++n) {
            rows.at[n] = begin_of(8 * n + lane / 4);
        }
    } else {
        u32* first = reinterpret_cast<u32*>(partial + CHUNKS);
        for (int row = static_cast<int>(threadIdx.x); row < ROWS; row += WARPS * WARP) {
            first[row] = begin_of(row);
        }
        __syncthreads();
        rows.first = first + lane / 4;
    }
    float sums[TILES][TOKENS][4];
    const int num_chunks = (weight.units + chunk_units - 1) / chunk_units;
    if (warp < num_chunks) {
        if constexpr (BY_HALVES) {
            sum_chunk_by_halves<Format, TILES, TOKENS>(
                sums, tiles, rows, first_unit, last_unit, weight.columns, lane);
        } else {
            if constexpr (!CAN_BE_EARLY) {
                load_first<Format, TILES, DEPTH>(units, tiles, first_unit, last_unit);
            }
            sum_chunk<Format, TILES, TOKENS, DEPTH>(
                sums, units, tiles, rows, first_unit, last_unit, weight.columns, lane);
        }
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int n = 0; n < TOKENS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    partial[warp][8 * n + lane % 4 * 2 + i % 2][m * TILE + lane / 4 + i / 2 * 8] = sums[m][n][i];
                }
            }
        }
    }
    __syncthreads();
    const float lower_factor = weight.factors[2 * slots.expert];
    const float upper_factor = weight.factors[2 * slots.expert + 1];
    for (int i = static_cast<int>(threadIdx.x); i < slots.count * TILES * 8; i += WARPS * WARP) {
        const int row = i / (TILES * 8), m = i / 8 % TILES, g = i % 8;
        if (first_tile + m < weight.tiles) {
            float lower = 0.0f, upper = 0.0f;
            for (int chunk = 0; chunk < num_chunks; ++chunk) {
                lower += partial[chunk][row][m * TILE + g];
                upper += partial[chunk][row][m * TILE + g + 8];
            }
            Write::run(
                params, first_tile + m, g, slot_of(params, slots, row), lower * lower_factor, upper * upper_factor);
        }
    }
}

// Of many rows whose units have scales, a tile at a time: sums of a unit need registers of their own.
template <typename Format, typename Write, int TILES, int TOKENS>
__device__ __forceinline__ void tiled_split(const TiledParams& params) {
    constexpr int AT_ONCE = Format::UNIT_SCALES && TOKENS == 8 ? 1 : TILES;
#pragma unroll 1
    for (int m = 0; m < TILES; m += AT_ONCE) {
        if (m > 0) {
            __syncthreads();
        }
        tiled<Format, Write, AT_ONCE, TOKENS>(params, static_cast<int>(blockIdx.x) * TILES + m);
    }
}

// Up to 8 rows of tiles of a warp: chunks are added in registers, in their order. Begins the kernel, behind its first loads of weights where it
// knows them.
template <typename Format, typename Write, int TILES, int DEPTH>
__device__ __forceinline__ void tiled_wide(const TiledParams& params) {
    SlotTile slots;
    const TiledWeight& weight = params.weight;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const int first_tile = (static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / WARP) * TILES;
    const bool early = knows_weights(params);
    if (!early) {
        begin_kernel();
    }
    if (first_tile >= weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.y), 8, slots)) {
        if (early) {
            begin_kernel();
        }
        return;
    }
    TileRow tiles[TILES];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        tiles[m] = tile_row<Format>(weight, slots.expert, first_tile + m, lane);
    }
    typename Format::Unit units[DEPTH][TILES];
    load_first<Format, TILES, DEPTH>(units, tiles, 0, weight.units);
    if (early) {
        begin_kernel();
    }
    TokenRows<1> rows;
    rows.x = reinterpret_cast<const uint4*>(params.x);
    rows.at[0] = static_cast<u32>(x_row_of(params, slot_of(params, slots, lane / 4)) * params.x_stride / 8);
    const int chunk_units = (weight.units + CHUNKS - 1) / CHUNKS;
    int chunk_end = min(chunk_units, weight.units);
    float sums[TILES][1][4], totals[TILES][1][4];
    clear(sums);
    clear(totals);
#pragma unroll 1
    for (int u = 0; u < weight.units; u += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (u + d < weight.units) {
                add_unit<Format, TILES, 1>(sums, units[d], rows, u + d, weight.columns, lane);
                if (u + d + DEPTH < weight.units) {
#pragma unroll
                    for (int m = 0; m < TILES; ++m) {
                        load_next<Format, TILES>(units[d][m], tiles[m], u + d + DEPTH);
                    }
                }
                if (u + d + 1 == chunk_end) {
#pragma unroll
                    for (int m = 0; m < TILES; ++m) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            totals[m][0][i] += sums[m][0][i];
                        }
                    }
                    clear(sums);
                    chunk_end = min(chunk_end + chunk_units, weight.units);
                }
            }
        }
    }
    const float lower_factor = weight.factors[2 * slots.expert];
    const float upper_factor = weight.factors[2 * slots.expert + 1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = lane % 4 * 2 + i;
        if (row < slots.count) {
            const int slot = slot_of(params, slots, row);
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                if (first_tile + m < weight.tiles) {
                    Write::run(
                        params, first_tile + m, lane / 4, slot, totals[m][0][i] * lower_factor,
                        totals[m][0][2 + i] * upper_factor);
                }
            }
        }
    }
}
