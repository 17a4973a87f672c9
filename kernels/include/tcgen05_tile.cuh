// The products of tile.cuh on the tensor cores of B200 and B300 (tcgen05.cuh; sm_100a, sm_103a), for rows of prompts, which come as panels
// (row_panels.cu).
//
// A block has 128 outputs and up to 256 rows, in halves of 128: their sums are 128 lanes of tensor memory, an output each, and a column for each
// row. Weights are in tensor memory too: the fragments that `mma` takes from the registers of a warp are, word for word, what a store of 16 lanes
// takes from them. So a warp makes bf16 of its two tiles as in the other schedules and stores a unit of each by one instruction; no weight goes
// through shared memory, whose bandwidth products and copies of rows need.
//
// Roles: four warps store weights, four more for each half add sums of chunks to totals in registers, one thread has rows copied, and one begins
// products. The halves take turns: while the sums of one are read, the other one is multiplied. SHARE blocks of a cluster, with other outputs of
// the same rows, bring a part of each unit of rows to all of them: a stage is written again when all blocks have multiplied it.
//
// Order: that of tile.cuh. Sums of a step are those of `mma`: 16 products and what was there before, added at once, a step behind the other;
// the first step of a chunk adds to nothing, which is 0. So the bits are those of the other variants, as far as a published model of both tensor
// cores says (arXiv 2511.10909, the emulator's), and the tuner compares them on the device before it chooses.
//
// Not of FP8, whose units have scales of their own: sums would be read behind each unit.

#include "cluster.cuh"
#include "panel.cuh"
#include "tcgen05.cuh"
#include "tile_slots.cuh"
#include "warpgroup.cuh"

constexpr int UNIT_PANELS = UNIT / PANEL;
// Rows: of a half, whose unit is as row_panels.cu writes it, and of a block.
constexpr int HALF = 128, HALVES = 2;
constexpr int BLOCK_ROWS = HALVES * HALF;
constexpr int HALF_BYTES = UNIT_PANELS * HALF * PANEL_PITCH;
constexpr int WARP_TILES = 2;
// Warps of each role; those of a number that is the same modulo 4 reach the same lanes of tensor memory.
constexpr int WEIGHT_WARPS = WARPGROUP_WARPS, TOTAL_WARPS = HALVES * WEIGHT_WARPS;
constexpr int COPY_WARP = WEIGHT_WARPS + TOTAL_WARPS, PRODUCT_WARP = COPY_WARP + 1;
constexpr int OUTPUT_TILES = WEIGHT_WARPS * WARP_TILES;
// A warpgroup is whole: two warps of the last one do nothing.
constexpr int THREADS = (COPY_WARP + WARPGROUP_WARPS) * WARP;
// Registers of a thread: 65,536 of all.
constexpr int OTHER_REGISTERS = 32, WORK_REGISTERS = 160;
// Blocks of a cluster, and the part of a half's unit that each brings.
constexpr int SHARE = 2, PART = HALF_BYTES / SHARE;

struct Tcgen05Shared {
    static constexpr int STAGES = 6;
    static constexpr int WEIGHT_STAGES = 4;
    u8 rows[STAGES][HALF_BYTES];
    u64 filled[STAGES];           // a half's unit of rows is there
    u64 multiplied[STAGES];       // this block has multiplied it
    u64 emptied[STAGES];          // all blocks of the cluster have
    u64 stored[WEIGHT_STAGES];    // a unit of weights is there
    u64 taken[WEIGHT_STAGES];     // all halves have been multiplied with it
    u64 summed[HALVES];           // a chunk has been multiplied
    u64 added[HALVES];            // its sums have been read
    u32 tensor_memory;
};

// Columns of tensor memory: sums of both halves, then units of weights, two values a column.
constexpr u32 WEIGHTS = BLOCK_ROWS, UNIT_COLUMNS = UNIT / 2, TENSOR_COLUMNS = WEIGHTS + Tcgen05Shared::WEIGHT_STAGES * UNIT_COLUMNS;
static_assert(TENSOR_COLUMNS == 512);

// A place in a ring, and how often it has come round.
template <int STAGES>
struct Turn {
    int stage = 0;
    u32 round = 0;
    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        round ^= stage == 0;
    }
};

// Units of a chunk.
__device__ __forceinline__ int chunk_units_of(const TiledParams& params) { return (params.weight.units + CHUNKS - 1) / CHUNKS; }

// The lanes of tensor memory of the calling warp, at a column.
__device__ __forceinline__ u32 lanes_at(const Tcgen05Shared& shared, u32 column) {
    return shared.tensor_memory + (threadIdx.x / WARP % WEIGHT_WARPS * WARP << 16) + column;
}

// Those of its second tile begin here behind the first one's.
constexpr u32 TILE_LANES = TILE << 16;

// Stores weights, a warp those of two tiles; loads are two units ahead.
template <typename Format>
__device__ __forceinline__ void store_weights(const TiledParams& params, Tcgen05Shared& shared, int first_tile) {
    constexpr int AHEAD = 2;
    const int num_units = params.weight.units;
    TileRow tiles[WARP_TILES];
    typename Format::Unit units[AHEAD][WARP_TILES];
#pragma unroll
    for (int m = 0; m < WARP_TILES; ++m) {
        tiles[m] = tile_row<Format>(params.weight, 0, first_tile + m, static_cast<int>(threadIdx.x) % WARP);
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            load_unit<Format, true>(units[d][m], tiles[m], static_cast<u32>(min(d, num_units - 1)));
        }
    }
    Turn<Tcgen05Shared::WEIGHT_STAGES> turn;
#pragma unroll 1
    for (int first = 0; first < num_units; first += AHEAD) {
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            const int u = first + d;
            if (u >= num_units) {
                break;
            }
            wait(&shared.taken[turn.stage], turn.round ^ 1);
            after_meeting();
            const u32 to = lanes_at(shared, WEIGHTS + turn.stage * UNIT_COLUMNS);
#pragma unroll
            for (int m = 0; m < WARP_TILES; ++m) {
                u32 words[4 * STEPS];
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    u32 a[4];
                    Format::fragment(a, units[d][m], step);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        words[4 * step + i] = a[i];
                    }
                }
                store_fragments(to + m * TILE_LANES, words);
                if (u + AHEAD < num_units) {
                    load_unit<Format, true>(units[d][m], tiles[m], static_cast<u32>(u + AHEAD));
                }
            }
            finish_stores();
            before_meeting();
            arrive(&shared.stored[turn.stage]);
            turn.next();
        }
    }
}

// Brings this block's part of each unit of rows to all blocks of the cluster. One thread of each block calls it.
__device__ __forceinline__ void copy_rows(const TiledParams& params, Tcgen05Shared& shared, int row_tile, int halves, int rank) {
    const i64 half_bytes = static_cast<i64>(params.weight.units) * HALF_BYTES;
    const u8* from = reinterpret_cast<const u8*>(params.x) + HALVES * row_tile * half_bytes + rank * PART;
    Turn<Tcgen05Shared::STAGES> turn;
    bool again = false;
#pragma unroll 1
    for (int u = 0; u < params.weight.units; ++u) {
#pragma unroll 1
        for (int half = 0; half < halves; ++half) {
            u64* filled = &shared.filled[turn.stage];
            if (again) {
                wait(&shared.multiplied[turn.stage], turn.round ^ 1);
                const u32 emptied = shared_address(&shared.emptied[turn.stage]);
#pragma unroll
                for (int block = 0; block < SHARE; ++block) {
                    arrive_in_cluster(address_in_block(emptied, block));
                }
                wait_for_cluster(emptied, turn.round ^ 1);
            }
            expect_bytes(filled, HALF_BYTES);
            copy_bytes_to_blocks(
                shared.rows[turn.stage] + rank * PART, from + half * half_bytes + static_cast<i64>(u) * HALF_BYTES, PART, filled,
                (1 << SHARE) - 1);
            turn.next();
            again |= turn.stage == 0;
        }
    }
}

// Rows of a half, of `count` of a block.
__device__ __forceinline__ int rows_of(int count, int half) { return min(count - half * HALF, HALF); }

// Begins the products of `count` rows. One thread calls it.
__device__ __forceinline__ void multiply_units(const TiledParams& params, Tcgen05Shared& shared, int count, int halves) {
    const u32 sums = shared.tensor_memory;
    const int chunk_units = chunk_units_of(params);
    int left = 0;
    u32 chunk_parity = 1;
    Turn<Tcgen05Shared::STAGES> turn;
    Turn<Tcgen05Shared::WEIGHT_STAGES> weight_turn;
#pragma unroll 1
    for (int u = 0; u < params.weight.units; ++u) {
        const bool begins = left == 0;
        if (begins) {
            left = chunk_units;
            chunk_parity ^= 1;
        }
        --left;
        const bool ends = left == 0 || u + 1 == params.weight.units;
        wait(&shared.stored[weight_turn.stage], weight_turn.round);
        after_meeting();
        const u32 weights = sums + WEIGHTS + weight_turn.stage * UNIT_COLUMNS;
#pragma unroll 1
        for (int half = 0; half < halves; ++half) {
            wait(&shared.filled[turn.stage], turn.round);
            if (begins) {
                // The sums of the chunk before have been read.
                wait(&shared.added[half], chunk_parity ^ 1);
                after_meeting();
            }
            // Rows behind the last one are 0 up to the 32 that are read at once.
            const u32 instruction = bf16_descriptor(static_cast<u32>((rows_of(count, half) + 31) / 32 * 32));
            const u64 rows = rows_descriptor(shared_address(shared.rows[turn.stage]));
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const u32 at = (step / PANEL_STEPS * HALF * PANEL_PITCH + step % PANEL_STEPS * PANEL_STEP_COLUMNS) >> 4;
                multiply_bf16(sums + half * HALF, weights + 8 * step, rows + at, instruction, step > 0 || !begins);
            }
            arrive_with_products(&shared.multiplied[turn.stage]);
            if (ends) {
                arrive_with_products(&shared.summed[half]);
            }
            turn.next();
        }
        arrive_with_products(&shared.taken[weight_turn.stage]);
        weight_turn.next();
    }
}

// Adds the sums of chunks of a half and two tiles, and writes the totals of its `count` rows.
template <typename Write>
__device__ __forceinline__ void add_chunks(
    const TiledParams& params, Tcgen05Shared& shared, int first_tile, int first_row, int half, int count) {
    constexpr int PARTS = 4, PART_COLUMNS = HALF / PARTS;
    const int num_units = params.weight.units, chunk_units = chunk_units_of(params);
    const u32 at = lanes_at(shared, half * HALF);
    float totals[PARTS][WARP_TILES][16] = {};
    u32 parity = 0;
#pragma unroll 1
    for (int first = 0; first < num_units; first += chunk_units) {
        wait(&shared.summed[half], parity);
        after_meeting();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            if (part * PART_COLUMNS < count) {
#pragma unroll
                for (int m = 0; m < WARP_TILES; ++m) {
                    float sums[16];
                    load_sums(sums, at + m * TILE_LANES + part * PART_COLUMNS);
#pragma unroll
                    for (int i = 0; i < 16; ++i) {
                        totals[part][m][i] += sums[i];
                    }
                }
            }
        }
        before_meeting();
        arrive(&shared.added[half]);
        parity ^= 1;
    }
    // Back to where the sums were, so that the loop over rows is one.
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * PART_COLUMNS < count) {
#pragma unroll
            for (int m = 0; m < WARP_TILES; ++m) {
                store_sums(at + m * TILE_LANES + part * PART_COLUMNS, totals[part][m]);
            }
        }
    }
    finish_stores();
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const float lower_factor = params.weight.factors[0], upper_factor = params.weight.factors[1];
#pragma unroll 1
    for (int eight = 0; 8 * eight < count; ++eight) {
#pragma unroll
        for (int m = 0; m < WARP_TILES; ++m) {
            float values[4];
            load_sums(values, at + m * TILE_LANES + 8 * eight);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = 8 * eight + lane % 4 * 2 + i;
                if (row < count && first_tile + m < params.weight.tiles) {
                    Write::run(
                        params, first_tile + m, lane / 4, first_row + row, values[i] * lower_factor, values[i + 2] * upper_factor);
                }
            }
        }
    }
}

template <typename Format, typename Write>
__device__ __forceinline__ void tcgen05_block(const TiledParams& params) {
    static_assert(!Format::UNIT_SCALES);
    extern __shared__ __align__(1024) u8 memory[];
    Tcgen05Shared& shared = *reinterpret_cast<Tcgen05Shared*>(memory);
    const int thread = static_cast<int>(threadIdx.x), warp = thread / WARP, quarter = warp % WEIGHT_WARPS;
    const int rank = static_cast<int>(blockIdx.y) % SHARE, block_tile = static_cast<int>(blockIdx.y) * OUTPUT_TILES;
    const int first_row = static_cast<int>(blockIdx.x) * BLOCK_ROWS, count = min(params.num_slots - first_row, BLOCK_ROWS);
    // The same for all blocks of a cluster.
    if (block_tile - rank * OUTPUT_TILES >= params.weight.tiles || count <= 0) {
        return;
    }
    const int halves = count > HALF ? HALVES : 1;
    const bool has_tiles = block_tile < params.weight.tiles;
    if (warp == PRODUCT_WARP) {
        take_tensor_memory<1, TENSOR_COLUMNS>(&shared.tensor_memory);
    }
    if (thread == 0) {
#pragma unroll
        for (int stage = 0; stage < Tcgen05Shared::STAGES; ++stage) {
            create_barrier(&shared.filled[stage], 1);
            create_barrier(&shared.multiplied[stage], 1);
            create_barrier(&shared.emptied[stage], SHARE);
        }
#pragma unroll
        for (int stage = 0; stage < Tcgen05Shared::WEIGHT_STAGES; ++stage) {
            create_barrier(&shared.stored[stage], WEIGHT_WARPS);
            create_barrier(&shared.taken[stage], 1);
        }
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            create_barrier(&shared.summed[half], 1);
            create_barrier(&shared.added[half], WEIGHT_WARPS);
        }
    }
    before_meeting();
    meet_cluster();
    after_meeting();
    const int first_tile = block_tile + quarter * WARP_TILES;
    if (warp < WEIGHT_WARPS) {
        take_registers<WORK_REGISTERS>();
        if (has_tiles) {
            store_weights<Format>(params, shared, first_tile);
        }
    } else if (warp < COPY_WARP) {
        take_registers<WORK_REGISTERS>();
        const int half = warp / WEIGHT_WARPS - 1;
        if (has_tiles && half < halves) {
            add_chunks<Write>(params, shared, first_tile, first_row + half * HALF, half, rows_of(count, half));
            before_meeting();
        }
    } else {
        leave_registers<OTHER_REGISTERS>();
        if (warp == COPY_WARP) {
            if (is_elected()) {
                copy_rows(params, shared, static_cast<int>(blockIdx.x), halves, rank);
            }
        } else if (warp == PRODUCT_WARP && has_tiles) {
            if (is_elected()) {
                multiply_units(params, shared, count, halves);
            }
        } else if (warp == PRODUCT_WARP) {
            // A block without outputs sees units go by.
            Turn<Tcgen05Shared::STAGES> turn;
#pragma unroll 1
            for (int u = 0; u < halves * params.weight.units; ++u) {
                wait(&shared.filled[turn.stage], turn.round);
                arrive(&shared.multiplied[turn.stage]);
                turn.next();
            }
        }
        __syncwarp();
    }
    // Others write to this block's memory and arrive at its barriers until they have ended.
    meet_cluster();
    if (warp == PRODUCT_WARP) {
        after_meeting();
        leave_tensor_memory<1, TENSOR_COLUMNS>(shared.tensor_memory);
    }
}

#define TCGEN05_PANELS(name, Format, Write)                                                                     \
    extern "C" __global__ void __cluster_dims__(1, SHARE, 1) __launch_bounds__(THREADS, 1)                      \
        name(const __grid_constant__ TiledLaunch launch) {                                                      \
        begin_kernel();                                                                                         \
        const TiledParams& params = launch.parts[blockIdx.z];                                                   \
        tcgen05_block<Format, Write>(params);                                                                   \
    }

// A kernel of each format.
#define TCGEN05_FORMATS(name, Write)               \
    TCGEN05_PANELS(name##_bf16, TileBf16, Write)   \
    TCGEN05_PANELS(name##_nvfp4, TileNvfp4, Write) \
    TCGEN05_PANELS(name##_mxfp4, TileMxfp4, Write) \
    TCGEN05_PANELS(name##_int4, TileInt4, Write)
