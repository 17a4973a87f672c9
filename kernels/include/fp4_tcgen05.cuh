// Products of rows in 4-bit floats with panels (fp4_panel.cuh) by `tcgen05.mma` (kind::mxf4nvf4; sm_100a, sm_103a).
//
// Weights are the M side, a panel's output a lane of tensor memory; rows of x are columns, one for each term, whose sums are added in the
// end. Four warps bring columns and at last read the sums, one thread of a fifth has weights copied, and one of a sixth scales and products.
//
// With many slots two blocks are a pair (`cta_group::2`): each has a panel, and half of the columns' codes, which both multiply. What blocks
// load of both, and the second cache with it, bounds prompts: of a stage with 256 columns 18,432 bytes of weights, 16,384 of codes and 4,096
// of scales, where a block alone, whose tensor memory holds as many sums, has one panel and 128 columns more of both kinds: 0.70 of what two
// panels with 128 columns load for as many products. The even block begins all products. In the other block the thread in its place tells it
// when a stage is there.
//
// Order: that of fp4_mma.cuh. Sums of an instruction are those of block-scaled `mma`.
//
// Not done: blocks that stay for several tiles. The first stages of the next tile would come beside the last sums of this one: some 1,500
// clocks of 19,000 (28 stages of 256 columns) or of 8,000 (8 stages). Sums of two tiles do not fit beside each other in tensor memory.

#include "cluster.cuh"
#include "fp4_panel.cuh"
#include "tcgen05.cuh"

constexpr int READERS = 4 * WARP;
constexpr int THREADS = READERS + 2 * WARP;

template <typename Format, int TERMS, int SLOTS>
struct Tcgen05Shared {
    static constexpr int STAGES = 4;
    // Blocks that multiply together, a panel each.
    static constexpr int BLOCKS = SLOTS > 8 ? 2 : 1;
    static constexpr int COLUMNS = TERMS * SLOTS;
    static constexpr int WORDS = STEPS / Format::SCALE_STEPS;
    // Blocks of scales of a word: of 128 columns each.
    static constexpr int SCALE_BLOCKS = (COLUMNS + PANEL_ROWS - 1) / PANEL_ROWS;
    // Two blocks alone fit on a multiprocessor.
    static constexpr u32 TENSOR_COLUMNS = 256 * BLOCKS;
    u8 weights[STAGES][WEIGHT_BYTES<Format>];
    u8 columns[STAGES][COLUMNS / BLOCKS * STAGE_CODES];            // of this block
    u8 scales[STAGES][WORDS * SCALE_BLOCKS * SCALE_BLOCK];         // of all columns, as those of a panel
    u64 filled[STAGES];
    u64 emptied[STAGES];
    u64 done;
    u64 places[COLUMNS];  // where the first stage of a column is in x, or 0: a column beside the last slot
    u32 slots[SLOTS];
    u32 tensor_memory;
};

// The columns of a tile: of each term, as many as slots, and of a pair so many more that its halves are multiples of eight.
template <typename Shared, int TERMS>
struct Columns {
    int pitch;  // of a term
    int count;
    int half;   // of a block
    int first;  // of this block

    __device__ __forceinline__ Columns(int slots, int rank) {
        pitch = Shared::BLOCKS == 1 ? Shared::COLUMNS / TERMS : (slots + 15) / 16 * 16;
        count = TERMS * pitch;
        half = count / Shared::BLOCKS;
        first = rank * half;
    }
};

// Brings columns and their scales, by READERS threads: eight lanes copy the codes of a column.
template <typename Shared, int TERMS>
__device__ __forceinline__ void copy_columns(const Fp4Params& params, Shared& shared, const Columns<Shared, TERMS>& columns) {
    constexpr int CHUNKS = STAGE_CODES / 16;
    const int thread = static_cast<int>(threadIdx.x), chunk = thread % CHUNKS;
#pragma unroll 1
    for (int u = 0; u < params.weight.stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.emptied[stage], (u / Shared::STAGES & 1) ^ 1);
        const u64 at = static_cast<u64>(u) * COLUMN;
        for (int i = thread / CHUNKS; i < columns.half; i += READERS / CHUNKS) {
            const u64 place = shared.places[columns.first + i];
            if (place != 0) {
                u8* to = &shared.columns[stage][i * STAGE_CODES + ((chunk ^ (i & 7)) << 4)];
                copy16(to, reinterpret_cast<const u8*>(place + at) + 16 * chunk);
            }
        }
        for (int column = thread; column < columns.count; column += READERS) {
            const u64 place = shared.places[column];
            if (place != 0) {
                const u8* from = reinterpret_cast<const u8*>(place + at) + STAGE_CODES;
                const u32 to = shared_address(shared.scales[stage]) + column / PANEL_ROWS * SCALE_BLOCK + column % 32 * 16 +
                               column / 32 % 4 * 4;
#pragma unroll
                for (int word = 0; word < Shared::WORDS; ++word) {
                    copy4(to + word * Shared::SCALE_BLOCKS * SCALE_BLOCK, from + 4 * word);
                }
            }
        }
        arrive_with_copies(&shared.filled[stage]);
    }
    // No thread goes on before its copies.
    commit_copies();
    wait_copies<0>();
}

template <typename Format, typename Shared>
__device__ __forceinline__ void copy_weights(const Fp4Params& params, Shared& shared, const u8* panel) {
    constexpr int BYTES = WEIGHT_BYTES<Format>;
#pragma unroll 1
    for (int u = 0; u < params.weight.stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.emptied[stage], (u / Shared::STAGES & 1) ^ 1);
        expect_bytes(&shared.filled[stage], BYTES);
        copy_bytes(shared.weights[stage], panel + static_cast<i64>(u) * BYTES, BYTES, &shared.filled[stage]);
    }
}

// Tells the even block of a pair when a stage of this one is there.
template <typename Shared>
__device__ __forceinline__ void tell_stages(const Fp4Params& params, Shared& shared) {
#pragma unroll 1
    for (int u = 0; u < params.weight.stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.filled[stage], u / Shared::STAGES & 1);
        // Copies of columns were made by other threads, behind whose arrival this one is.
        publish_stores();
        arrive_in_cluster(address_in_block(shared_address(&shared.filled[stage]), 0));
    }
}

// Columns of tensor memory: sums, then for each stage scales of weights and of columns. Those of a stage are written when the products that
// read them before are done, as its place in shared memory is.
template <typename Format, typename Shared>
__device__ __forceinline__ void multiply_stages(const Fp4Params& params, Shared& shared, int columns) {
    constexpr int EACH = Format::SCALE_STEPS, BLOCK = 16 * EACH, BLOCKS = Shared::BLOCKS;
    constexpr u32 OF_WORD = 4 * Shared::SCALE_BLOCKS, SCALES = (4 + OF_WORD) * Shared::WORDS;
    static_assert(Shared::COLUMNS + Shared::STAGES * SCALES <= Shared::TENSOR_COLUMNS);
    const u32 sums = shared.tensor_memory;
    u32 instructions[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        instructions[i] = fp4_descriptor(BLOCKS * PANEL_ROWS, static_cast<u32>(columns), EACH == 2, 2 * i);
    }
#pragma unroll 1
    for (int u = 0; u < params.weight.stages; ++u) {
        const int stage = u % Shared::STAGES;
        if constexpr (BLOCKS == 1) {
            wait(&shared.filled[stage], u / Shared::STAGES & 1);
        } else {
            wait_for_cluster(shared_address(&shared.filled[stage]), u / Shared::STAGES & 1);
        }
        // Copies of columns were made by other threads, behind whose arrival this one is.
        publish_stores();
        after_meeting();
        const u32 a_scales = sums + Shared::COLUMNS + stage * SCALES, b_scales = a_scales + 4 * Shared::WORDS;
        const u32 weights = shared_address(shared.weights[stage]), scales = shared_address(shared.scales[stage]);
        const u64 a = rows_descriptor(weights), b = rows_descriptor(shared_address(shared.columns[stage]));
#pragma unroll
        for (int word = 0; word < Shared::WORDS; ++word) {
            copy_scales<BLOCKS>(a_scales + 4 * word, scales_descriptor(weights + PANEL_CODES + word * SCALE_BLOCK));
#pragma unroll
            for (int i = 0; i < Shared::SCALE_BLOCKS; ++i) {
                copy_scales<BLOCKS>(
                    b_scales + OF_WORD * word + 4 * i,
                    scales_descriptor(scales + (word * Shared::SCALE_BLOCKS + i) * SCALE_BLOCK));
            }
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const u32 word = step / EACH;
            multiply_fp4<BLOCKS, BLOCK>(
                sums, a + 2 * step, b + 2 * step, instructions[step % EACH], a_scales + 4 * word, b_scales + OF_WORD * word,
                u > 0 || step > 0);
        }
        arrive_with_products<BLOCKS>(&shared.emptied[stage]);
    }
    arrive_with_products<BLOCKS>(&shared.done);
}

// All threads of a block, or of a pair, meet.
template <int BLOCKS>
__device__ __forceinline__ void meet_blocks() {
    if constexpr (BLOCKS == 1) {
        __syncthreads();
    } else {
        __syncwarp();
        meet_cluster();
    }
}

// One block: a panel times the slots of a tile, or half of a pair, whose blocks follow each other in y. `Write::run` gets the sums of eight
// slots and a lane's output; `Write::finish` is called behind all of them, by all readers.
template <typename Format, int TERMS, int SLOTS, typename Write>
__device__ __forceinline__ void fp4_block(const Fp4Params& params) {
    extern __shared__ __align__(1024) u8 memory[];
    using Shared = Tcgen05Shared<Format, TERMS, SLOTS>;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    begin_kernel();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / WARP;
    const int panel = static_cast<int>(blockIdx.y), rank = panel % Shared::BLOCKS, last = params.weight.num_panels - 1;
    SlotTile tile;
    if (panel - rank > last || !slot_tile(params, static_cast<int>(blockIdx.x), SLOTS, tile)) {
        return;
    }
    const Columns<Shared, TERMS> columns(tile.count, rank);
    if (warp == 5) {
        take_tensor_memory<Shared::BLOCKS, Shared::TENSOR_COLUMNS>(&shared.tensor_memory);
    }
    for (int i = thread; i < tile.count; i += THREADS) {
        shared.slots[i] = static_cast<u32>(slot_of(params, tile, i));
    }
    for (int i = thread; i < columns.count; i += THREADS) {
        const int term = i / columns.pitch, at = i % columns.pitch;
        const u64 row = x_row_of(params, slot_of(params, tile, at));
        shared.places[i] = at < tile.count ? row + static_cast<u64>(fp4_column(params.weight.stages, term, 0)) : 0;
    }
    if (thread == 0) {
        // The even block of a pair also waits for the other one.
        const int arrivals = READERS + (rank == 0 ? Shared::BLOCKS : 1);
#pragma unroll
        for (int stage = 0; stage < Shared::STAGES; ++stage) {
            create_barrier(&shared.filled[stage], arrivals);
            create_barrier(&shared.emptied[stage], 1);
        }
        create_barrier(&shared.done, 1);
    }
    // Columns beside the last slot are multiplied with it, and scales are copied whole.
    constexpr int CHUNKS = STAGE_CODES / 16;
    for (int i = thread; i < columns.half * CHUNKS; i += THREADS) {
        if ((columns.first + i / CHUNKS) % columns.pitch >= tile.count) {
#pragma unroll
            for (int stage = 0; stage < Shared::STAGES; ++stage) {
                reinterpret_cast<uint4*>(shared.columns[stage])[i] = make_uint4(0, 0, 0, 0);
            }
        }
    }
    for (int i = thread; i < static_cast<int>(sizeof(shared.scales)) / 16; i += THREADS) {
        reinterpret_cast<uint4*>(shared.scales)[i] = make_uint4(0, 0, 0, 0);
    }
    publish_stores();
    before_meeting();
    meet_blocks<Shared::BLOCKS>();
    after_meeting();
    if (warp == 5) {
        if (is_elected()) {
            if (rank == 0) {
                multiply_stages<Format>(params, shared, columns.count);
            } else {
                tell_stages(params, shared);
            }
        }
        __syncwarp();
    } else if (warp == 4) {
        if (is_elected()) {
            // A block of a pair that has no panel multiplies the last one again, and writes nothing.
            copy_weights<Format>(params, shared, panel_of<Format>(params.weight, tile.expert, min(panel, last)));
        }
        __syncwarp();
    } else {
        copy_columns(params, shared, columns);
        wait(&shared.done, 0);
        after_meeting();
        if (panel <= last) {
            // A lane's output: the row of the panel of this number.
            const float factor = params.weight.factors[2 * tile.expert + thread / 8 % 2];
            const u32 lane = shared.tensor_memory + (static_cast<u32>(warp * WARP) << 16);
#pragma unroll 1
            for (int first = 0; first < tile.count; first += 8) {
                float totals[8] = {};
#pragma unroll
                for (int term = TERMS - 1; term >= 0; --term) {
                    float sums[8];
                    load_sums(sums, lane + static_cast<u32>(term * columns.pitch + first));
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        totals[i] = __fmaf_rn(sums[i], params.x_scales.tensor[term], totals[i]);
                    }
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    totals[i] *= factor;
                }
                // What is left in shared memory lies where weights were.
                Write::run(params, totals, shared.slots, memory, panel, first, tile.count);
            }
            Write::finish(params, shared.slots, memory, panel, tile.count);
        }
        before_meeting();
    }
    // Nor does a block end before the other one of its pair, whose memory it may still reach.
    meet_blocks<Shared::BLOCKS>();
    if (warp == 5) {
        after_meeting();
        leave_tensor_memory<Shared::BLOCKS, Shared::TENSOR_COLUMNS>(shared.tensor_memory);
    }
}

// A function of a pair of blocks.
#define FP4_PAIR(name, format, terms, slots, Write)                                                                    \
    extern "C" __global__ void __cluster_dims__(1, 2, 1) __launch_bounds__(THREADS, 1)                                \
        name(const __grid_constant__ Fp4Launch launch) {                                                              \
        fp4_block<format, terms, slots, Write<format, terms>>(launch.parts[blockIdx.z]);                               \
    }
// The functions of a product: of each form of rows, for few slots of a block and for many of a pair.
#define FP4_PAIR_FUNCTIONS(kernel, Write)                 \
    FP4_FUNCTION(kernel##_nvfp4_8, Nvfp4, 1, 8, Write)    \
    FP4_PAIR(kernel##_nvfp4_256, Nvfp4, 1, 256, Write)    \
    FP4_FUNCTION(kernel##_nvfp4x2_8, Nvfp4, 2, 8, Write)  \
    FP4_PAIR(kernel##_nvfp4x2_128, Nvfp4, 2, 128, Write)  \
    FP4_FUNCTION(kernel##_nvfp4x3_8, Nvfp4, 3, 8, Write)  \
    FP4_PAIR(kernel##_nvfp4x3_64, Nvfp4, 3, 64, Write)    \
    FP4_FUNCTION(kernel##_mxfp4_8, Mxfp4, 1, 8, Write)    \
    FP4_PAIR(kernel##_mxfp4_256, Mxfp4, 1, 256, Write)
