// Products of rows in 4-bit floats with panels (fp4_panel.cuh) by `tcgen05.mma` (kind::mxf4nvf4; sm_100a, sm_103a).
//
// Weights are the M side, a panel's output a lane of tensor memory; rows of x are columns, one for each term, whose sums are added in the
// end. Four warps bring columns and at last read the sums, one thread of a fifth has weights copied, and one of a sixth scales and products.
// With many slots a block has two panels, which share the columns: what it loads of them, and the second cache with it, bounds prompts.
//
// Order: that of fp4_mma.cuh. Sums of an instruction are those of block-scaled `mma`.

#include "fp4_panel.cuh"
#include "tcgen05.cuh"

constexpr int READERS = 4 * WARP;
constexpr int THREADS = READERS + 2 * WARP;

template <typename Format, int TERMS, int SLOTS>
struct Tcgen05Shared {
    static constexpr int STAGES = 4;
    static constexpr int PANELS = SLOTS > 8 ? 2 : 1;
    static constexpr int COLUMNS = TERMS * SLOTS;
    static constexpr int WORDS = STEPS / Format::SCALE_STEPS;
    // Two blocks with one panel fit on a multiprocessor.
    static constexpr u32 TENSOR_COLUMNS = 256 * PANELS;
    u8 weights[STAGES][PANELS][WEIGHT_BYTES<Format>];
    u8 columns[STAGES][COLUMNS * STAGE_CODES];
    u8 scales[STAGES][WORDS * SCALE_BLOCK];  // of columns, as those of a panel
    u64 filled[STAGES];
    u64 emptied[STAGES];
    u64 done;
    u64 rows[SLOTS];  // where rows of x begin
    u32 slots[SLOTS];
    u32 tensor_memory;
};

// Brings columns and their scales, by READERS threads: eight lanes copy the codes of a column.
template <typename Format, int TERMS, int SLOTS>
__device__ __forceinline__ void copy_columns(
    const Fp4Params& params, Tcgen05Shared<Format, TERMS, SLOTS>& shared, int count) {
    using Shared = Tcgen05Shared<Format, TERMS, SLOTS>;
    constexpr int CHUNKS = STAGE_CODES / 16;
    const int thread = static_cast<int>(threadIdx.x), stages = params.weight.stages;
#pragma unroll 1
    for (int u = 0; u < stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.emptied[stage], (u / Shared::STAGES & 1) ^ 1);
        const auto column_of = [&](int i, int term) {
            return reinterpret_cast<const u8*>(shared.rows[i]) + fp4_column(stages, term, u);
        };
        for (int at = thread; at < count * TERMS * CHUNKS; at += READERS) {
            const int chunk = at % CHUNKS, i = at / CHUNKS % count, term = at / CHUNKS / count, column = term * SLOTS + i;
            copy16(
                &shared.columns[stage][column * STAGE_CODES + ((chunk ^ (column & 7)) << 4)], column_of(i, term) + 16 * chunk);
        }
        for (int at = thread; at < count * TERMS * Shared::WORDS; at += READERS) {
            const int word = at % Shared::WORDS, i = at / Shared::WORDS % count, term = at / Shared::WORDS / count;
            const int column = term * SLOTS + i;
            u8* to = &shared.scales[stage][word * SCALE_BLOCK + column % 32 * 16 + column / 32 * 4];
            copy4(shared_address(to), column_of(i, term) + STAGE_CODES + 4 * word);
        }
        arrive_with_copies(&shared.filled[stage]);
    }
    // No thread goes on before its copies.
    commit_copies();
    wait_copies<0>();
}

template <typename Format, int TERMS, int SLOTS>
__device__ __forceinline__ void copy_weights(
    const Fp4Params& params, Tcgen05Shared<Format, TERMS, SLOTS>& shared, const u8* panel, int panels) {
    using Shared = Tcgen05Shared<Format, TERMS, SLOTS>;
    constexpr int BYTES = WEIGHT_BYTES<Format>;
#pragma unroll 1
    for (int u = 0; u < params.weight.stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.emptied[stage], (u / Shared::STAGES & 1) ^ 1);
        expect_bytes(&shared.filled[stage], static_cast<u32>(panels * BYTES));
        for (int p = 0; p < panels; ++p) {
            const i64 at = static_cast<i64>(p) * params.weight.stages + u;
            copy_bytes(shared.weights[stage][p], panel + at * BYTES, BYTES, &shared.filled[stage]);
        }
    }
}

// Columns of tensor memory: sums of each panel, then for each stage scales of weights and of columns. Those of a stage are written when the products that
// read them before are done, as its place in shared memory is.
template <typename Format, int TERMS, int SLOTS>
__device__ __forceinline__ void multiply_stages(
    const Fp4Params& params, Tcgen05Shared<Format, TERMS, SLOTS>& shared, int count, int panels) {
    using Shared = Tcgen05Shared<Format, TERMS, SLOTS>;
    constexpr int EACH = Format::SCALE_STEPS, BLOCK = 16 * EACH;
    constexpr u32 SCALES = 4 * Shared::WORDS, SUMS = Shared::PANELS * Shared::COLUMNS;
    static_assert(SUMS + Shared::STAGES * (Shared::PANELS + 1) * SCALES <= Shared::TENSOR_COLUMNS);
    const u32 sums = shared.tensor_memory;
    // Of one term columns behind the last slot's eight are left out.
    const u32 columns = TERMS == 1 ? static_cast<u32>((count + 7) / 8 * 8) : static_cast<u32>(Shared::COLUMNS);
    u32 instructions[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        instructions[i] = fp4_descriptor(columns, EACH == 2, 2 * i);
    }
#pragma unroll 1
    for (int u = 0; u < params.weight.stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.filled[stage], u / Shared::STAGES & 1);
        // The copies of columns were made by other threads, behind whose arrival this one is.
        publish_stores();
        after_meeting();
        const u32 b_scales = sums + SUMS + stage * (Shared::PANELS + 1) * SCALES;
        const u64 b = rows_descriptor(shared_address(shared.columns[stage]));
#pragma unroll
        for (int word = 0; word < Shared::WORDS; ++word) {
            copy_scales(b_scales + 4 * word, scales_descriptor(shared_address(shared.scales[stage]) + word * SCALE_BLOCK));
        }
#pragma unroll
        for (int p = 0; p < Shared::PANELS; ++p) {
            if (p >= panels) {
                break;
            }
            const u32 weights = shared_address(shared.weights[stage][p]), a_scales = b_scales + (p + 1) * SCALES;
            const u64 a = rows_descriptor(weights);
#pragma unroll
            for (int word = 0; word < Shared::WORDS; ++word) {
                copy_scales(a_scales + 4 * word, scales_descriptor(weights + PANEL_CODES + word * SCALE_BLOCK));
            }
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const u32 word = 4 * (step / EACH);
                multiply_fp4<BLOCK>(
                    sums + p * Shared::COLUMNS, a + 2 * step, b + 2 * step, instructions[step % EACH], a_scales + word,
                    b_scales + word, u > 0 || step > 0);
            }
        }
        arrive_with_products(&shared.emptied[stage]);
    }
    arrive_with_products(&shared.done);
}

// One block: a panel or two times the slots of a tile. `Write::run` gets the sums of eight slots and a lane's output; `Write::finish` is called
// behind all of them, by all readers.
template <typename Format, int TERMS, int SLOTS, typename Write>
__device__ __forceinline__ void fp4_block(const Fp4Params& params) {
    extern __shared__ __align__(1024) u8 memory[];
    using Shared = Tcgen05Shared<Format, TERMS, SLOTS>;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    begin_kernel();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / WARP;
    const int panel = static_cast<int>(blockIdx.y) * Shared::PANELS, panels = min(Shared::PANELS, params.weight.num_panels - panel);
    SlotTile tile;
    if (panels <= 0 || !slot_tile(params, static_cast<int>(blockIdx.x), SLOTS, tile)) {
        return;
    }
    if (warp == 5) {
        take_tensor_memory<Shared::TENSOR_COLUMNS>(&shared.tensor_memory);
    }
    if (thread < tile.count) {
        const int slot = slot_of(params, tile, thread);
        shared.slots[thread] = static_cast<u32>(slot);
        shared.rows[thread] = x_row_of(params, slot);
    }
    if (thread == 0) {
#pragma unroll
        for (int stage = 0; stage < Shared::STAGES; ++stage) {
            create_barrier(&shared.filled[stage], READERS + 1);
            create_barrier(&shared.emptied[stage], 1);
        }
        create_barrier(&shared.done, 1);
    }
    // Columns beside the last slot are multiplied with it, and scales are copied whole.
    const int missing = TERMS == 1 ? (8 - tile.count % 8) % 8 : SLOTS - tile.count;
    constexpr int CHUNKS = STAGE_CODES / 16;
    for (int i = thread; i < missing * TERMS * CHUNKS; i += THREADS) {
        const int chunk = i % CHUNKS, column = i / CHUNKS % TERMS * SLOTS + tile.count + i / (CHUNKS * TERMS);
#pragma unroll
        for (int stage = 0; stage < Shared::STAGES; ++stage) {
            reinterpret_cast<uint4*>(shared.columns[stage])[column * CHUNKS + chunk] = make_uint4(0, 0, 0, 0);
        }
    }
    for (int i = thread; i < Shared::STAGES * Shared::WORDS * SCALE_BLOCK / 16; i += THREADS) {
        reinterpret_cast<uint4*>(shared.scales)[i] = make_uint4(0, 0, 0, 0);
    }
    publish_stores();
    before_meeting();
    __syncthreads();
    after_meeting();
    if (warp == 5) {
        if (is_elected()) {
            multiply_stages(params, shared, tile.count, panels);
        }
        __syncwarp();
    } else if (warp == 4) {
        if (is_elected()) {
            copy_weights(params, shared, panel_of<Format>(params.weight, tile.expert, panel), panels);
        }
        __syncwarp();
    } else {
        copy_columns(params, shared, tile.count);
        wait(&shared.done, 0);
        after_meeting();
        // A lane's output: the row of the panel of this number.
        const float factor = params.weight.factors[2 * tile.expert + thread / 8 % 2];
        const u32 lane = shared.tensor_memory + (static_cast<u32>(warp * WARP) << 16);
#pragma unroll 1
        for (int p = 0; p < panels; ++p) {
            // What a panel leaves in shared memory lies where weights of two stages were.
            u8* room = memory + 2 * p * WEIGHT_BYTES<Format>;
#pragma unroll 1
            for (int first = 0; first < tile.count; first += 8) {
                float totals[8] = {};
#pragma unroll
                for (int term = TERMS - 1; term >= 0; --term) {
                    float sums[8];
                    load_sums(sums, lane + p * Shared::COLUMNS + term * SLOTS + first);
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        totals[i] = __fmaf_rn(sums[i], params.x_scales.tensor[term], totals[i]);
                    }
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    totals[i] *= factor;
                }
                Write::run(params, totals, shared.slots, room, panel + p, first, tile.count);
            }
            Write::finish(params, shared.slots, room, panel + p, tile.count);
        }
        before_meeting();
    }
    __syncthreads();
    if (warp == 5) {
        after_meeting();
        leave_tensor_memory<Shared::TENSOR_COLUMNS>(shared.tensor_memory);
    }
}
