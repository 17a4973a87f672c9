// Products of rows in 4-bit floats with panels (fp4_panel.cuh) by `mma.sync` (PTX ISA, "mma with block scaling", kind::mxf4nvf4; sm_120a).
//
// Weights are the M side, rows of x are columns, one for each term: a term has sums of its own, which are added in the end. Eight warps have 16
// outputs each and all columns; a ninth copies weights and columns, a stage ahead, and nobody else waits for memory.
//
// Order: stages of K in their order, 64 inputs an instruction, whatever the launch; terms from the last to the first. A row's sums depend on
// that row alone.

#include "barrier.cuh"
#include "fp4_panel.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = (WARPS + 1) * WARP;

#define MMA_FP4(vector, type)                                                                                            \
    asm volatile(                                                                                                        \
        "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::" vector ".m16n8k64.row.col.f32.e2m1.e2m1.f32." type      \
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%11, 0}, {%12}, {%13, 0};"             \
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(a_scales), "n"(BYTE), "r"(b_scales), "n"(BYTE))

// The product of one step, whose scales begin at a byte of these words.
template <typename Format, int BYTE>
__device__ __forceinline__ void multiply_fp4(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 a_scales, u32 b_scales) {
    if constexpr (Format::SCALE_STEPS == 1) {
        MMA_FP4("4X", "ue4m3");
    } else {
        MMA_FP4("2X", "ue8m0");
    }
}

template <typename Format, int TERMS, int SLOTS>
struct Fp4Shared {
    static constexpr int STAGES = 2;
    static constexpr int COLUMNS = TERMS * SLOTS;
    u8 weights[STAGES][WEIGHT_BYTES<Format>];
    u8 columns[STAGES][COLUMNS * COLUMN];
    u64 filled[STAGES];
    u64 emptied[STAGES];
    u32 slots[SLOTS];
    u64 rows[SLOTS];  // where rows of x begin
};

// Brings the stages of a panel and of the columns, for the calling warp.
template <typename Format, int TERMS, int SLOTS>
__device__ __forceinline__ void copy_stages(
    const Fp4Params& params, Fp4Shared<Format, TERMS, SLOTS>& shared, const u8* panel, int count) {
    using Shared = Fp4Shared<Format, TERMS, SLOTS>;
    constexpr int BYTES = WEIGHT_BYTES<Format>;
    const int lane = static_cast<int>(threadIdx.x) % WARP, stages = params.weight.stages;
#pragma unroll 1
    for (int u = 0; u < stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.emptied[stage], (u / Shared::STAGES & 1) ^ 1);
        if (lane == 0) {
            expect_bytes(&shared.filled[stage], static_cast<u32>(BYTES + count * TERMS * COLUMN));
            copy_bytes(shared.weights[stage], panel + static_cast<i64>(u) * BYTES, BYTES, &shared.filled[stage]);
        }
        __syncwarp();
        for (int i = lane; i < count; i += WARP) {
            const u8* row = reinterpret_cast<const u8*>(shared.rows[i]);
#pragma unroll
            for (int term = 0; term < TERMS; ++term) {
                copy_bytes(
                    &shared.columns[stage][(term * SLOTS + i) * COLUMN], row + fp4_column(stages, term, u), COLUMN,
                    &shared.filled[stage]);
            }
        }
    }
}

__device__ __forceinline__ u32 load_shared(u32 at) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}

__device__ __forceinline__ void load_shared4(u32 (&to)[4], u32 at) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_at(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

// Sums of the calling warp's 16 outputs and all columns: of term, eight slots, and place in the fragment.
template <typename Format, int TERMS, int SLOTS>
__device__ __forceinline__ void multiply_stages(
    const Fp4Params& params, Fp4Shared<Format, TERMS, SLOTS>& shared, int count, float (&sums)[TERMS][SLOTS / 8][4]) {
    using Shared = Fp4Shared<Format, TERMS, SLOTS>;
    constexpr int EACH = Format::SCALE_STEPS, WORDS = STEPS / EACH, SECOND = EACH == 1 ? 0 : 2;
    const int warp = static_cast<int>(threadIdx.x) / WARP, lane = static_cast<int>(threadIdx.x) % WARP;
    // Addresses of matrices: of A rows 0 to 7, 8 to 15, and the same 32 inputs further; of B one chunk of 32 inputs each.
    const int row = 16 * warp + lane % 16, column = lane % 8;
    const u32 a_row = static_cast<u32>(row * STAGE_CODES), a_half = static_cast<u32>(lane / 16);
    const u32 b_row = static_cast<u32>(column * COLUMN + lane / 8 * 16);
    // Scales: of output g from lane 4g, of g + 8 from lane 4g + 1; of column g from lane 4g.
    const int output = 16 * warp + lane / 4 + lane % 2 * 8;
    const u32 a_scale = static_cast<u32>(PANEL_CODES + output % 32 * 16 + output / 32 * 4);
    const u32 b_scale = static_cast<u32>(lane / 4 * COLUMN + STAGE_CODES);
#pragma unroll 1
    for (int u = 0; u < params.weight.stages; ++u) {
        const int stage = u % Shared::STAGES;
        wait(&shared.filled[stage], u / Shared::STAGES & 1);
        const u32 weights = shared_address(shared.weights[stage]), columns = shared_address(shared.columns[stage]);
        u32 a[STEPS][4], a_scales[WORDS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            load_matrices_at(a[step], weights + a_row + (((2 * step + a_half) ^ (row & 7)) << 4));
        }
#pragma unroll
        for (int word = 0; word < WORDS; ++word) {
            a_scales[word] = load_shared(weights + a_scale + word * SCALE_BLOCK);
        }
#pragma unroll
        for (int eight = 0; eight < SLOTS / 8; ++eight) {
            if (8 * eight >= count) {
                break;
            }
#pragma unroll
            for (int term = 0; term < TERMS; ++term) {
                const u32 at = columns + static_cast<u32>((term * SLOTS + 8 * eight) * COLUMN);
                u32 b[2][4], b_scales[4];
                load_matrices_at(b[0], at + b_row);
                load_matrices_at(b[1], at + b_row + STAGE_CODES / 2);
                load_shared4(b_scales, at + b_scale);
                float(&own)[4] = sums[term][eight];
                multiply_fp4<Format, 0>(own, a[0], b[0][0], b[0][1], a_scales[0], b_scales[0]);
                multiply_fp4<Format, SECOND>(own, a[1], b[0][2], b[0][3], a_scales[1 / EACH], b_scales[1 / EACH]);
                multiply_fp4<Format, 0>(own, a[2], b[1][0], b[1][1], a_scales[2 / EACH], b_scales[2 / EACH]);
                multiply_fp4<Format, SECOND>(own, a[3], b[1][2], b[1][3], a_scales[3 / EACH], b_scales[3 / EACH]);
            }
        }
        arrive(&shared.emptied[stage]);
    }
}

// One block: a panel times the slots of a tile. `Write::run` gets the sums.
template <typename Format, int TERMS, int SLOTS, typename Write>
__device__ __forceinline__ void fp4_block(const Fp4Params& params) {
    extern __shared__ __align__(1024) u8 memory[];
    using Shared = Fp4Shared<Format, TERMS, SLOTS>;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    begin_kernel();
    const int thread = static_cast<int>(threadIdx.x), panel = static_cast<int>(blockIdx.y);
    SlotTile tile;
    if (panel >= params.weight.num_panels || !slot_tile(params, static_cast<int>(blockIdx.x), SLOTS, tile)) {
        return;
    }
    if (thread < tile.count) {
        const int slot = slot_of(params, tile, thread);
        shared.slots[thread] = static_cast<u32>(slot);
        shared.rows[thread] = x_row_of(params, slot);
    }
    if (thread == 0) {
#pragma unroll
        for (int stage = 0; stage < Shared::STAGES; ++stage) {
            create_barrier(&shared.filled[stage], 1);
            create_barrier(&shared.emptied[stage], WARPS);
        }
        // Copies report to them.
        publish_stores();
    }
    // Columns beside the last slot are multiplied with its eight.
    const int missing = (8 - tile.count % 8) % 8;
    constexpr int WORDS = COLUMN / 16;
    for (int i = thread; i < missing * TERMS * WORDS; i += THREADS) {
        const int word = i % WORDS, column = i / WORDS % TERMS * SLOTS + tile.count + i / (WORDS * TERMS);
#pragma unroll
        for (int stage = 0; stage < Shared::STAGES; ++stage) {
            reinterpret_cast<uint4*>(shared.columns[stage])[column * WORDS + word] = make_uint4(0, 0, 0, 0);
        }
    }
    __syncthreads();
    if (thread / WARP == WARPS) {
        copy_stages(params, shared, panel_of<Format>(params.weight, tile.expert, panel), tile.count);
        return;
    }
    float sums[TERMS][SLOTS / 8][4] = {};
    multiply_stages<Format, TERMS, SLOTS>(params, shared, tile.count, sums);
    // The terms, the smallest first.
    const float factors[2] = {params.weight.factors[2 * tile.expert], params.weight.factors[2 * tile.expert + 1]};
#pragma unroll
    for (int eight = 0; eight < SLOTS / 8; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float total = 0.0f;
#pragma unroll
            for (int term = TERMS - 1; term >= 0; --term) {
                total = __fmaf_rn(sums[term][eight][i], params.x_scales.tensor[term], total);
            }
            sums[0][eight][i] = total * factors[i / 2];
        }
    }
    Write::template run<SLOTS>(params, sums[0], shared.slots, memory, panel, tile.count);
}
