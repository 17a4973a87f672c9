// The products of tile.cuh on the tensor cores of Hopper: the fragments of weights that `mma` takes from a warp's registers are
// those that `wgmma` takes from a warpgroup's, and rows of x come from shared memory, the rows of a block in one product.
//
// A block has three warpgroups. One brings rows of x, a unit of all rows a stage; the others have two tiles of each warp,
// whose words go straight to its registers and become bf16 there, two steps while the two before are multiplied.
//
// A stage is two panels of 64 values (wgmma.cuh), of steps 0 to 3 and 4 to 7. k of a step's B operand in the order of A's: chunk
// 2j + h of a panel's row has inputs 32c + 4j + 2h and the next of c = 0 to 3. So 4 bytes are copied at a time; a warp copies the
// 128 bytes of one row of a panel, which it finds in four pieces of 32 bytes, to all banks.
//
// Of prompts rows may come as panels already (row_panels.cu), and the SHARE blocks of a cluster, with other outputs of the same rows, bring a
// part of each unit to all of them: a stage is written when all blocks have multiplied it.
//
// With RANKS of 8 the blocks of a cluster have the chunks of the same outputs and rows: a product of few outputs is spread over more
// multiprocessors, and no rows are read twice for that. Each then adds the chunks of its share, from the shared memory of all.
//
// Order: that of tile.cuh. Sums of a step are those of `mma`, 16 products and what was there before, added at once.

#include "cluster.cuh"
#include "tile.cuh"
#include "wgmma.cuh"

constexpr int TILES = BLOCK_TILES;
constexpr int UNIT_PANELS = UNIT / PANEL;
// Threads: those that multiply, then those that copy.
constexpr int PRODUCT_THREADS = WARPS * WARP;
constexpr int THREADS = PRODUCT_THREADS + WARPGROUP;
// Registers of a thread: 65,536 of all.
constexpr int COPY_REGISTERS = 40;
constexpr int PRODUCT_REGISTERS = 232;

// Units of a block: all of them, or a chunk.
struct UnitRange {
    int first;
    int last;
};

template <int ROWS>
struct WgmmaShared {
    static constexpr int STAGES = ROWS > 64 ? 3 : 4;
    u8 rows[STAGES][UNIT_PANELS][ROWS * PANEL_PITCH];
    float totals[TILES * ROWS / 8 * 4][PRODUCT_THREADS];
    u64 filled[STAGES];   // a unit of the rows is there
    u64 emptied[STAGES];  // all warps have multiplied it
    u32 slots[ROWS];      // of the rows
    u32 first[ROWS];      // where rows of x begin, in 16 bytes: of more than 262,143 rows of 8,192 values bytes do not fit
};

// Blocks that share rows in panels.
constexpr int SHARE = 4;

// Brings this block's part of each unit of the panels of a tile of rows to all blocks of the cluster. One thread of each block calls it.
template <int ROWS>
__device__ __forceinline__ void copy_panels(const TiledParams& params, WgmmaShared<ROWS>& shared, int row_tile, int rank) {
    using Shared = WgmmaShared<ROWS>;
    constexpr u32 BYTES = UNIT_PANELS * ROWS * PANEL_PITCH, PART = BYTES / SHARE;
    const u8* from = reinterpret_cast<const u8*>(params.x) + static_cast<i64>(row_tile) * params.weight.units * BYTES + rank * PART;
#pragma unroll 1
    for (int u = 0; u < params.weight.units; ++u) {
        const int stage = u % Shared::STAGES;
        wait_for_cluster(shared_address(&shared.emptied[stage]), (u / Shared::STAGES & 1) ^ 1);
        expect_bytes(&shared.filled[stage], BYTES);
        copy_bytes_to_blocks(
            &shared.rows[stage][0][0] + rank * PART, from + static_cast<i64>(u) * BYTES, PART, &shared.filled[stage], (1 << SHARE) - 1);
    }
}

// The calling warp has multiplied a stage, which all blocks wait for where they share rows.
template <bool SHARED_ROWS>
__device__ __forceinline__ void empty(u64* emptied) {
    if constexpr (SHARED_ROWS) {
        __syncwarp();
        if (threadIdx.x % WARP < SHARE) {
            arrive_in_cluster(address_in_block(shared_address(emptied), threadIdx.x % WARP));
        }
    } else {
        arrive(emptied);
    }
}

// Copies COUNT rows of units.
template <int ROWS, int COUNT>
__device__ __forceinline__ void copy_rows(const TiledParams& params, WgmmaShared<ROWS>& shared, UnitRange units) {
    using Shared = WgmmaShared<ROWS>;
    const int thread = static_cast<int>(threadIdx.x) % WARPGROUP, warp = thread / WARP, lane = thread % WARP;
    const int c = lane / 8, chunk = lane % 8;
    const u32 words = static_cast<u32>(params.weight.columns) / 2;
    const u32* first = shared.first + warp;
    for (int u = units.first; u < units.last; ++u) {
        const int turn = u - units.first, stage = turn % Shared::STAGES;
        wait(&shared.emptied[stage], (turn / Shared::STAGES & 1) ^ 1);
        // Beyond K weights are zero, and any input of the row will do.
        const u32 word = static_cast<u32>(u * (UNIT / 2) + 16 * c + chunk);
        const u8* low = reinterpret_cast<const u8*>(params.x) + 4 * (word < words ? word : 0);
        const u8* high = reinterpret_cast<const u8*>(params.x) + 4 * (word + 8 < words ? word + 8 : 0);
        // As they are: the compiler would add the row's begin first, four times.
        asm volatile("" : "+l"(low), "+l"(high));
        // Of the rows of this warp in eight, warp and warp + 4.
        const u32 near = shared_address(shared.rows[stage][0]) + panel_byte(warp, chunk) + 4 * c;
        const u32 far = shared_address(shared.rows[stage][0]) + panel_byte(warp + 4, chunk) + 4 * c;
#pragma unroll 2
        for (int eight = 0; eight < COUNT / 8; ++eight) {
            const u64 a = 16ull * first[8 * eight], b = 16ull * first[8 * eight + 4];
            copy4(near + eight * PANEL_EIGHT, low + a);
            copy4(near + eight * PANEL_EIGHT + ROWS * PANEL_PITCH, high + a);
            copy4(far + eight * PANEL_EIGHT, low + b);
            copy4(far + eight * PANEL_EIGHT + ROWS * PANEL_PITCH, high + b);
        }
        arrive_with_copies(&shared.filled[stage]);
    }
    // No thread ends before its copies.
    commit_copies();
    wait_copies<0>();
}

// Sums of chunks: in registers, where there are enough.
template <int COUNT, bool IN_REGISTERS>
struct Totals {
    float values[TILES][COUNT] = {};
    __device__ __forceinline__ explicit Totals(float (*)[PRODUCT_THREADS]) {}
    __device__ __forceinline__ void add(int m, int i, float value) { values[m][i] += value; }
    __device__ __forceinline__ float of(int m, int i) const { return values[m][i]; }
};
template <int COUNT>
struct Totals<COUNT, false> {
    float (*values)[PRODUCT_THREADS];
    __device__ __forceinline__ explicit Totals(float (*shared)[PRODUCT_THREADS]) : values(shared) {
#pragma unroll
        for (int i = 0; i < TILES * COUNT; ++i) {
            values[i][threadIdx.x] = 0.0f;
        }
    }
    __device__ __forceinline__ void add(int m, int i, float value) { values[m * COUNT + i][threadIdx.x] += value; }
    __device__ __forceinline__ float of(int m, int i) const { return values[m * COUNT + i][threadIdx.x]; }
};

// A step's operand, moved: one that a load defines makes the compiler wait for each product by itself.
template <typename Format>
__device__ __forceinline__ void operand_of(u32 (&a)[4], const typename Format::Unit& unit, int step) {
    u32 words[4];
    Format::fragment(words, unit, step);
    asm volatile("mov.b32 %0, %4;\nmov.b32 %1, %5;\nmov.b32 %2, %6;\nmov.b32 %3, %7;"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]));
}

// The products of a warpgroup with COUNT rows; their totals, or with RANKS the sums of a chunk, are left in shared memory.
template <typename Format, int ROWS, int COUNT, int RANKS, bool SHARED_ROWS = false>
__device__ __forceinline__ void multiply(
    const TiledParams& params, WgmmaShared<ROWS>& shared, int expert, int first_tile, UnitRange range) {
    using Shared = WgmmaShared<ROWS>;
    static_assert(RANKS == 1 || !Format::UNIT_SCALES);
    constexpr int SUMS = COUNT / 2, PAIRS = STEPS / 2, AHEAD = Format::BY_HALVES || Format::UNIT_SCALES ? PAIRS / 2 : PAIRS;
    const TiledWeight& weight = params.weight;
    const int chunk_units = (weight.units + CHUNKS - 1) / CHUNKS;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    TileRow tiles[TILES];
    typename Format::Unit units[TILES];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        tiles[m] = tile_row<Format>(weight, expert, first_tile + m, lane);
        load_unit<Format, true>(units[m], tiles[m], static_cast<u32>(range.first));
    }
    // One of the four scales of the outputs of four lanes, which hand them to each other.
    const float* lower_scales = lane % 4 < 2 ? tiles[0].lower_scales : tiles[1].lower_scales;
    const float* upper_scales = lane % 4 < 2 ? tiles[0].upper_scales : tiles[1].upper_scales;
    const float* own_scales = lane % 2 == 0 ? lower_scales : upper_scales;
    // One chunk is its own total.
    constexpr bool IN_REGISTERS = COUNT <= (Format::BY_HALVES ? 48 : 64) && !Format::UNIT_SCALES;
    Totals<SUMS, (RANKS > 1 || IN_REGISTERS)> totals(shared.totals);
    int chunk_end = range.first + chunk_units;
    u32 a[TILES][2][4];
    // Makes the operands of two steps of unit u, and loads into the words that were the last to need for it what is next in them.
    const auto prepare = [&](int u, int pair) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                operand_of<Format>(a[m][i], units[m], 2 * pair + i);
            }
            const int from = min(pair + AHEAD < PAIRS ? u : u + 1, range.last - 1);
            Format::template load_words<true>(units[m], tiles[m], static_cast<u32>(from), (pair + AHEAD) % PAIRS);
        }
    };
    prepare(range.first, 0);
    float sums[TILES][SUMS] = {}, scaled[TILES][Format::UNIT_SCALES ? SUMS : 1] = {};
    bool add = false;
#pragma unroll 1
    for (int u = range.first; u < range.last; ++u) {
        const int turn = u - range.first, stage = turn % Shared::STAGES;
        const float scale = Format::UNIT_SCALES ? own_scales[u * tiles[0].scale_step] : 0.0f;
        typename Format::Scales scales[TILES];
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            if constexpr (!Format::UNIT_SCALES) {
                Format::template load_scales<true>(scales[m], tiles[m], static_cast<u32>(min(u + 1, range.last - 1)));
            }
        }
        wait(&shared.filled[stage], turn / Shared::STAGES & 1);
        // The copies were made by other threads, behind whose arrival this one is.
        publish_stores();
        const u64 rows = descriptor(shared_address(shared.rows[stage]), 0);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            begin_products();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int step = 2 * pair + i;
                const u32 at = (step / PANEL_STEPS * ROWS * PANEL_PITCH + step % PANEL_STEPS * PANEL_STEP_COLUMNS) >> 4;
#pragma unroll
                for (int m = 0; m < TILES; ++m) {
                    wgmma_rows<COUNT>(sums[m], a[m][i], rows + at, step > 0 || add);
                }
            }
            finish_products<1>();
            // The unit before has been multiplied.
            if (pair == 0 && turn > 0) {
                empty<SHARED_ROWS>(&shared.emptied[(turn - 1) % Shared::STAGES]);
            }
            if (pair + 1 < PAIRS) {
                prepare(u, pair + 1);
            } else {
#pragma unroll
                for (int m = 0; m < TILES; ++m) {
                    if constexpr (!Format::UNIT_SCALES) {
                        units[m].scales = scales[m];
                    }
                }
                // Beside the products that are still under way. Behind the last unit it is not multiplied.
                prepare(u + 1, 0);
            }
        }
        finish_products();
        add = !Format::UNIT_SCALES;
        if constexpr (Format::UNIT_SCALES) {
            float of[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                of[i] = __shfl_sync(0xffffffffu, scale, lane / 4 * 4 + i);
            }
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) {
                    scaled[m][i] = __fmaf_rn(of[2 * m + i % 4 / 2], sums[m][i], scaled[m][i]);
                }
            }
        }
        if (RANKS == 1 && (u + 1 == chunk_end || u + 1 == range.last)) {
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) {
                    totals.add(m, i, Format::UNIT_SCALES ? scaled[m][i] : sums[m][i]);
                    if constexpr (Format::UNIT_SCALES) {
                        scaled[m][i] = 0.0f;
                    }
                }
            }
            add = false;
            chunk_end += chunk_units;
        }
    }
    if constexpr (RANKS > 1 || IN_REGISTERS) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                shared.totals[m * SUMS + i][threadIdx.x] = RANKS > 1 ? sums[m][i] : totals.of(m, i);
            }
        }
    }
}

template <typename Format, typename Write, int ROWS, int COUNT, int RANKS>
__device__ __forceinline__ void wgmma_block(const TiledParams& params, const SlotTile& slots, int block_tile) {
    extern __shared__ __align__(1024) u8 memory[];
    using Shared = WgmmaShared<ROWS>;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int thread = static_cast<int>(threadIdx.x), group = thread / WARPGROUP, warp = thread / WARP;
    // A warpgroup without outputs has ended.
    const int groups = block_tile + WARPGROUP_WARPS * TILES < params.weight.tiles ? 2 : 1;
    if (thread < COUNT) {
        const int slot = slot_of(params, slots, thread);
        shared.slots[thread] = static_cast<u32>(slot);
        shared.first[thread] = static_cast<u32>(x_row_of(params, slot) * params.x_stride / 8);
    }
    if (thread == 0) {
#pragma unroll
        for (int stage = 0; stage < Shared::STAGES; ++stage) {
            create_barrier(&shared.filled[stage], WARPGROUP);
            create_barrier(&shared.emptied[stage], groups * WARPGROUP_WARPS);
        }
    }
    __syncthreads();
    UnitRange range = {0, params.weight.units};
    const int rank = static_cast<int>(blockIdx.x) % RANKS, chunk_units = (params.weight.units + CHUNKS - 1) / CHUNKS;
    if constexpr (RANKS > 1) {
        // A chunk that is not there is another unit, whose sums nobody reads.
        range.first = min(rank * chunk_units, params.weight.units - 1);
        range.last = min(range.first + chunk_units, params.weight.units);
    }
    if (group == 2) {
        leave_registers<COPY_REGISTERS>();
        copy_rows<ROWS, COUNT>(params, shared, range);
        return;
    }
    take_registers<PRODUCT_REGISTERS>();
    if (group >= groups) {
        return;
    }
    multiply<Format, ROWS, COUNT, RANKS>(params, shared, slots.expert, block_tile + warp * TILES, range);
    // Where this thread's outputs are, and the rows: again, since the products have the registers for something else.
    const int again = thread_again(), first_tile = static_cast<int>(blockIdx.y) * WARPS * TILES + again / WARP * TILES;
    SlotTile tile;
    slot_tile(params, static_cast<int>(blockIdx.x) / RANKS, ROWS, tile);
    if constexpr (RANKS > 1) {
        static_assert(RANKS == CHUNKS);
        meet_cluster();
        const int chunks = (params.weight.units + chunk_units - 1) / chunk_units;
        write_totals<Write, TILES, COUNT / 8, RANKS, 1>(params, tile, shared.slots, first_tile, rank, [&](int i) {
            float total = 0.0f;
            for (int chunk = 0; chunk < chunks; ++chunk) {
                total += float_in_cluster(address_in_block(shared_address(&shared.totals[i][again]), chunk));
            }
            return total;
        });
        // Sums stay until all have read them.
        meet_cluster();
    } else {
        write_totals<Write, TILES, COUNT / 8, 1, 4>(
            params, tile, shared.slots, first_tile, 0, [&](int i) { return shared.totals[i][again]; });
    }
}

// Few rows of an expert are left to narrower products.
template <typename Format, typename Write, int ROWS, int RANKS>
__device__ __forceinline__ void wgmma_block(const TiledParams& params) {
    SlotTile slots;
    const int block_tile = static_cast<int>(blockIdx.y) * WARPS * TILES;
    if (block_tile >= params.weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.x) / RANKS, ROWS, slots)) {
        return;
    }
    if (slots.count <= ROWS / 2) {
        wgmma_block<Format, Write, ROWS, ROWS / 2, RANKS>(params, slots, block_tile);
    } else if (RANKS == 1 && slots.count <= ROWS / 4 * 3) {
        wgmma_block<Format, Write, ROWS, ROWS / 4 * 3, RANKS>(params, slots, block_tile);
    } else {
        wgmma_block<Format, Write, ROWS, ROWS, RANKS>(params, slots, block_tile);
    }
}

// Rows in panels, of one matrix. A warp without outputs sees units go by.
template <typename Format, typename Write, int ROWS>
__device__ __forceinline__ void wgmma_panel_block(const TiledParams& params) {
    extern __shared__ __align__(1024) u8 memory[];
    using Shared = WgmmaShared<ROWS>;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    constexpr int BLOCK_OUTPUTS = WARPS * TILES;
    const int thread = static_cast<int>(threadIdx.x), group = thread / WARPGROUP, warp = thread / WARP;
    const int rank = static_cast<int>(blockIdx.y) % SHARE, block_tile = static_cast<int>(blockIdx.y) * BLOCK_OUTPUTS;
    SlotTile slots;
    // The same for all blocks of a cluster.
    if (block_tile - rank * BLOCK_OUTPUTS >= params.weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.x), ROWS, slots)) {
        return;
    }
    if (thread < ROWS) {
        shared.slots[thread] = static_cast<u32>(slot_of(params, slots, thread));
    }
    if (thread == 0) {
#pragma unroll
        for (int stage = 0; stage < Shared::STAGES; ++stage) {
            create_barrier(&shared.filled[stage], 1);
            create_barrier(&shared.emptied[stage], SHARE * WARPS);
        }
    }
    meet_cluster();
    if (group == 2) {
        leave_registers<COPY_REGISTERS>();
        if (thread % WARPGROUP == 0) {
            copy_panels<ROWS>(params, shared, static_cast<int>(blockIdx.x), rank);
        }
    } else {
        take_registers<PRODUCT_REGISTERS>();
        if (block_tile + group * WARPGROUP_WARPS * TILES < params.weight.tiles) {
            multiply<Format, ROWS, ROWS, 1, true>(params, shared, 0, block_tile + warp * TILES, {0, params.weight.units});
            const int again = thread_again(), first_tile = static_cast<int>(blockIdx.y) * BLOCK_OUTPUTS + again / WARP * TILES;
            SlotTile tile;
            slot_tile(params, static_cast<int>(blockIdx.x), ROWS, tile);
            write_totals<Write, TILES, ROWS / 8, 1, 4>(
                params, tile, shared.slots, first_tile, 0, [&](int i) { return shared.totals[i][again]; });
        } else {
#pragma unroll 1
            for (int u = 0; u < params.weight.units; ++u) {
                wait(&shared.filled[u % Shared::STAGES], u / Shared::STAGES & 1);
                empty<true>(&shared.emptied[u % Shared::STAGES]);
            }
        }
    }
    // Others arrive at this block's barriers until they have ended.
    __syncwarp();
    meet_cluster();
}

#define WGMMA_PANELS(name, Format, Write, ROWS)                                                                 \
    extern "C" __global__ void __cluster_dims__(1, SHARE, 1) __launch_bounds__(THREADS, 1)                      \
        name(const __grid_constant__ TiledLaunch launch) {                                                      \
        begin_kernel();                                                                                         \
        const TiledParams& params = launch.parts[blockIdx.z];                                                   \
        wgmma_panel_block<Format, Write, ROWS>(params);                                                         \
    }

#define WGMMA_BLOCK(name, Format, Write, ROWS)                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ TiledLaunch launch) { \
        begin_kernel();                                                                                         \
        const TiledParams& params = launch.parts[blockIdx.z];                                                   \
        wgmma_block<Format, Write, ROWS, 1>(params);                                                            \
    }

#define WGMMA_CLUSTER(name, Format, Write, ROWS)                                                                \
    extern "C" __global__ void __cluster_dims__(CHUNKS, 1, 1) __launch_bounds__(THREADS, 1)                     \
        name(const __grid_constant__ TiledLaunch launch) {                                                      \
        begin_kernel();                                                                                         \
        const TiledParams& params = launch.parts[blockIdx.z];                                                   \
        wgmma_block<Format, Write, ROWS, CHUNKS>(params);                                                       \
    }

// A kernel of each variant. Blocks of more rows read less of L2, which is what bounds products of bf16. The compiler finds no order for
// units with scales of their own in one chunk.
#define WGMMA_FORMATS(name, Write)                                   \
    WGMMA_BLOCK(name##_bf16_32x64, TileBf16, Write, 64)              \
    WGMMA_BLOCK(name##_nvfp4_32x64, TileNvfp4, Write, 64)            \
    WGMMA_BLOCK(name##_mxfp4_32x64, TileMxfp4, Write, 64)            \
    WGMMA_BLOCK(name##_int4_32x64, TileInt4, Write, 64)              \
    WGMMA_BLOCK(name##_fp8_32x64, TileFp8, Write, 64)                \
    WGMMA_CLUSTER(name##_bf16_cluster32x64, TileBf16, Write, 64)     \
    WGMMA_CLUSTER(name##_nvfp4_cluster32x64, TileNvfp4, Write, 64)   \
    WGMMA_CLUSTER(name##_mxfp4_cluster32x64, TileMxfp4, Write, 64)   \
    WGMMA_CLUSTER(name##_int4_cluster32x64, TileInt4, Write, 64)     \
    WGMMA_BLOCK(name##_bf16_32x128, TileBf16, Write, 128)            \
    WGMMA_PANELS(name##_bf16_panel32x128, TileBf16, Write, 128)
