// tcgen05_mla_prefill: tiled_mla_prefill of tiled_mla_prefill.cu on the tensor memory of B200 and B300, for heads of 128 and 64 rotated
// values, and 128 values of a value head.
// Source:  DeepSeek-V2, arXiv 2405.04434, equations 9-19; two halves of rows in turn, and sums that are scaled seldom, as in Zadouri et al.,
//          "FlashAttention-4", 2025.
// Twin:    src/cuda/kernels/tcgen05_mla_prefill.rs. Spec: host/reference.rs `attend_expanded`; gather and expand, before it, are in
//          tiled_mla_prefill.cu.
// Legend:  Q rows of a segment, K keys of a slab, H heads, N, R, V as in ops/shapes.rs `MlaShape`.
// Shapes:  query [T, H*(N+R)] f32, not rotated; keys_values [K, H*(N+V)], rope_keys [K, R] bf16; attended [T, H*V] f32.
// Traffic: 2*K*H*(N+R+V) bytes of keys and values for every 256 rows, from L2 as long as the heads at work fit there.
// Work:    2*H*(N+R+V) FLOP per row and visible key.
// Floor:   Q=2048 K=32768 H=64: 2.66 TFLOP -> 1.18 ms at 2.25 PFLOP/s (B200). A tile of 128 keys and 256 rows on one of 148 multiprocessors at
//          1.85 GHz: 2,560 clocks of the tensor cores (scores 1,536, values 1,024); 2,690 of shared memory at 128 bytes (queries and keys read
//          192 KB, values 64, written 80); 2,050 of exponentials at 16 a clock; 1,170 of 80 KB from L2 at 70 bytes.
// Grid:    (256 rows, the last ones first; H), 12 warps: 4 for each half of 128 rows, a thread a row; two copy, one begins products.
//          Shared memory: 224 KB, queries and a ring of 8 units; one block on a multiprocessor. Registers: 208 of a thread with a row.
// Tensor memory, columns of 128 lanes: sums of values 2 * 128, scores 2 * 128.
// Order:   scores in steps of 16; softmax: tiles of 128 keys at absolute positions, a row's exponentials in four chains, then the chains, then
//          tiles; values in steps of 16, tile by tile. Slabs begin at multiples of a tile: a row's result depends on its query, its position and
//          its keys alone.
// Tried:   on paper. 128 rows a block, queries in tensor memory: 64 bytes of L2 a clock, which is all there is. Tiles of 64 keys with two places of
//          scores for each half: 1,730 clocks of shared memory beside 1,280 of the tensor cores. Sums in registers of warps of their own, as on
//          Hopper: no reason left where sums are scaled seldom.
//
// The halves take turns on the tensor cores: while probabilities of one are made, values of the other are multiplied with those it has, then the
// scores of its next tile. Probabilities come to where the scores were, in bf16 and in two parts: the values of the first 64 keys are multiplied
// while exponentials of the others are made. So a half may take 1,280 clocks from its scores to its last probabilities, of which exponentials
// are 1,024.
//
// What exponentials are taken against, the largest score so far, is changed, and sums with it, only where a later one is above it by 2^8: seldom
// behind the first tile. Weights are then up to 2^8, which bf16 and f32 hold as exactly.

#include "mla.cuh"
#include "mla_slab.cuh"
#include "panel.cuh"
#include "tcgen05.cuh"
#include "warpgroup.cuh"

constexpr int THREADS = 3 * WARPGROUP;
// Rows of a half and of a block, keys of a tile.
constexpr int ROWS = 128, HALVES = 2;
constexpr int QUERIES = HALVES * ROWS;
constexpr int KEYS = 128;
constexpr int NOPE = 128;
constexpr int ROPE = 64;
constexpr int VALUE = 128;
constexpr int WIDTH = NOPE + ROPE;
// Panels of 64 columns of queries and keys; one of 128 rows, of which half a one is 64 columns of the values of half a tile.
constexpr int KEY_PANELS = WIDTH / PANEL;
constexpr int UNIT_BYTES = KEYS * PANEL_PITCH, VALUE_PANEL_BYTES = UNIT_BYTES / 2;
// Parts of a tile whose values are multiplied at once, and what is copied of a tile: panels of its keys, then values of its parts.
constexpr int PARTS = 2;
constexpr int UNITS = KEY_PANELS + PARTS;
constexpr int STAGES = 8;
// Warps of the third group: two copy, one begins products.
constexpr int COPY_WARP = HALVES * WARPGROUP_WARPS, COPY_WARPS = 2, PRODUCT_WARP = COPY_WARP + COPY_WARPS;
constexpr int COPY_THREADS = COPY_WARPS * WARP;
// Registers of a thread: 65,536 of all.
constexpr int ROW_REGISTERS = 208, OTHER_REGISTERS = 80;
// Columns of tensor memory: sums of both halves, then their scores, in whose place probabilities come.
constexpr u32 TENSOR_COLUMNS = 512, SCORE_COLUMNS = HALVES * VALUE;
static_assert(SCORE_COLUMNS + HALVES * KEYS == TENSOR_COLUMNS);
// A score of a later tile may be above what exponentials are taken against by 2 to that.
constexpr float LAG = 8.0f;

using Params = MlaPrefillParams<bf16>;

struct Shared {
    u8 queries[HALVES][KEY_PANELS][UNIT_BYTES];  // and at last sums on their way out
    u8 units[STAGES][UNIT_BYTES];
    u64 filled[STAGES];          // a unit is there
    u64 emptied[STAGES];         // all halves have been multiplied with it
    u64 asked[HALVES];           // queries are there
    u64 scored[HALVES];          // scores of a tile are there, and the values of the one before were added
    u64 weighed[HALVES][PARTS];  // probabilities of a part of a tile are there
    u64 summed[HALVES];          // all values were added
    u32 tensor_memory;
};

// A unit's place in the ring, and the parity of its turn there.
struct Turn {
    int stage;
    u32 parity;
    __device__ __forceinline__ Turn(int tile, int unit) {
        const u32 count = tile * UNITS + unit;
        stage = count % STAGES, parity = count / STAGES & 1;
    }
};

// Copies tiles by two warps; keys behind the slab are zeros.
__device__ __forceinline__ void load(const Params& params, Shared& shared, int head, int tiles) {
    constexpr int STEP = COPY_THREADS / 8;
    const int thread = threadIdx.x - COPY_WARP * WARP, chunk = thread % 8, first = thread / 8;
    const i64 columns = static_cast<i64>(params.num_heads) * (NOPE + VALUE);
    const bf16* keys_values = params.keys_values + static_cast<i64>(head) * (NOPE + VALUE) + 8 * chunk;
    const bf16* rope_keys = params.rope_keys + 8 * chunk;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            const Turn turn(tile, unit);
            const int part = max(unit - KEY_PANELS, 0), begin = tile * KEYS + part * (KEYS / PARTS);
            wait(&shared.emptied[turn.stage], turn.parity ^ 1);
            u8* const to = shared.units[turn.stage];
#pragma unroll
            for (int i = 0; i < KEYS / STEP; ++i) {
                // Of values two panels, one behind the other.
                const int panel = unit < KEY_PANELS ? 0 : i / (KEYS / PARTS / STEP);
                const int row = first + (unit < KEY_PANELS ? i : i % (KEYS / PARTS / STEP)) * STEP, key = begin + row;
                const i64 at = min(key, params.num_keys - 1);
                const bf16* from = unit == KEY_PANELS - 1 ? rope_keys + at * ROPE
                                   : unit < KEY_PANELS    ? keys_values + at * columns + PANEL * unit
                                                          : keys_values + at * columns + NOPE + PANEL * panel;
                copy16_if(to + panel * VALUE_PANEL_BYTES + panel_byte(row, chunk), from, key < params.num_keys);
            }
            arrive_with_copies(&shared.filled[turn.stage]);
        }
    }
    // No thread ends before its copies.
    commit_copies();
    wait_copies<0>();
}

// Waits for a unit, by the thread that begins products. Copies were made by others, behind whose arrival it is.
__device__ __forceinline__ void wait_for_unit(Shared& shared, const Turn& turn) {
    wait(&shared.filled[turn.stage], turn.parity);
    publish_stores();
}

// Begins all products of a block, by one thread: of each half in turn the values of a tile, then the scores of the next one.
__device__ __forceinline__ void multiply(Shared& shared, bool has_sums, int halves, int first_tiles, int tiles) {
    constexpr u32 SCORES = product_descriptor(BF16, BF16, ROWS, KEYS), VALUES = product_descriptor(BF16, BF16, ROWS, VALUE) | ALONG_COLUMNS_OF_B;
    const u32 memory = shared.tensor_memory;
#pragma unroll 1
    for (int tile = 0; tile <= tiles; ++tile) {
#pragma unroll 1
        for (int half = 0; half < halves; ++half) {
            // The last half has the last keys.
            const bool is_last = half + 1 == halves;
            const int own_tiles = is_last ? tiles : first_tiles;
            const u32 sums = memory + half * VALUE, scores = memory + SCORE_COLUMNS + half * KEYS;
            if (tile > 0 && tile <= own_tiles) {
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const Turn turn(tile - 1, KEY_PANELS + part);
                    if (half == 0 || tile > first_tiles) {
                        wait_for_unit(shared, turn);
                    }
                    wait(&shared.weighed[half][part], (tile - 1) & 1);
                    after_meeting();
                    const u64 values = columns_descriptor(shared_address(shared.units[turn.stage]), VALUE_PANEL_BYTES);
#pragma unroll
                    for (int step = 0; step < KEYS / PARTS / 16; ++step) {
                        const bool add = has_sums || tile > 1 || part + step > 0;
                        multiply_bf16(
                            sums, scores + part * (KEYS / PARTS / 2) + 8 * step, values + (step * PANEL_STEP_ROWS >> 4), VALUES, add);
                    }
                    if (is_last) {
                        arrive_with_products(&shared.emptied[turn.stage]);
                    }
                }
                if (tile == own_tiles) {
                    arrive_with_products(&shared.summed[half]);
                }
            }
            if (tile < own_tiles) {
                // Scores of the tile before were read where its probabilities were made.
                wait(&shared.asked[half], 0);
                after_meeting();
#pragma unroll
                for (int panel = 0; panel < KEY_PANELS; ++panel) {
                    const Turn turn(tile, panel);
                    if (half == 0 || tile >= first_tiles) {
                        wait_for_unit(shared, turn);
                    }
                    const u64 queries = rows_descriptor(shared_address(shared.queries[half][panel]));
                    const u64 keys = rows_descriptor(shared_address(shared.units[turn.stage]));
#pragma unroll
                    for (int step = 0; step < PANEL_STEPS; ++step) {
                        const u32 at = step * PANEL_STEP_COLUMNS >> 4;
                        multiply_shared(scores, queries + at, keys + at, SCORES, panel + step > 0);
                    }
                    if (is_last) {
                        arrive_with_products(&shared.emptied[turn.stage]);
                    }
                }
                arrive_with_products(&shared.scored[half]);
            }
        }
    }
}

// Queries of a half, from row `first` on, to shared memory: chunks of eight values, BATCH of which a thread has on their way at once. Rows behind
// the last one are that one: no result of theirs is written.
template <bool ROTATED, int BATCH>
__device__ __forceinline__ void load_chunks(const Params& params, Shared& shared, int head, int half, int first) {
    constexpr int BEGIN = ROTATED ? NOPE / 8 : 0, CHUNKS = (ROTATED ? ROPE : NOPE) / 8;
#pragma unroll 1
    for (int begin = threadIdx.x % WARPGROUP; begin < ROWS * CHUNKS; begin += BATCH * WARPGROUP) {
        float4 fours[BATCH][2];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int row = (begin + i * WARPGROUP) / CHUNKS, chunk = BEGIN + begin % CHUNKS;
            const i64 at = params.first_row + min(first + row, params.num_rows - 1);
            const float* from = params.query + (at * params.num_heads + head) * WIDTH;
            const float* rotation = params.rotations + at * ROPE;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                fours[i][j] = ROTATED ? query_four(from, rotation, NOPE, ROPE, 8 * chunk + 4 * j) : four_of(from + 8 * chunk + 4 * j);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int row = (begin + i * WARPGROUP) / CHUNKS, chunk = BEGIN + begin % CHUNKS;
            const float4 low = fours[i][0], high = fours[i][1];
            store_shared(shared_address(shared.queries[half][chunk / 8]) + panel_byte(row, chunk % 8), pair_of(low.x, low.y),
                         pair_of(low.z, low.w), pair_of(high.x, high.y), pair_of(high.z, high.w));
        }
    }
}

// Multiplies the sums of a lane.
__device__ __forceinline__ void scale_sums(u32 address, float factor) {
#pragma unroll 1
    for (int first = 0; first < VALUE; first += 16) {
        float sums[16];
        load_columns(sums, address + first);
        u32 words[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            words[i] = __float_as_uint(sums[i] * factor);
        }
        store_columns(address + first, words);
    }
    finish_stores();
}

// What earlier slabs left of a row, to its lane.
__device__ __forceinline__ void load_sums_of_row(const float* from, u32 address) {
    constexpr int BATCH = 64;
#pragma unroll 1
    for (int first = 0; first < VALUE; first += BATCH) {
        float4 fours[BATCH / 4];
#pragma unroll
        for (int i = 0; i < BATCH / 4; ++i) {
            fours[i] = four_of(from + first + 4 * i);
        }
#pragma unroll
        for (int sixteen = 0; sixteen < BATCH / 16; ++sixteen) {
            u32 words[16];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 four = fours[4 * sixteen + i];
                words[4 * i] = __float_as_uint(four.x), words[4 * i + 1] = __float_as_uint(four.y);
                words[4 * i + 2] = __float_as_uint(four.z), words[4 * i + 3] = __float_as_uint(four.w);
            }
            store_columns(address + first + 16 * sixteen, words);
        }
    }
    finish_stores();
}

// Writes the rows of a warp, from row `first` on, whose sums are multiplied by their lane's factor: through shared memory, so that lanes side by
// side write what is side by side.
__device__ __forceinline__ void write_rows(
    const Params& params, Shared& shared, int head, int half, int first, u32 address, float factor, int num_done) {
    constexpr int COLUMNS = 32;
    const int lane = threadIdx.x % WARP, own = threadIdx.x % WARPGROUP, begin = own - lane;
#pragma unroll 1
    for (int part = 0; part < VALUE / COLUMNS; ++part) {
        // A row of a panel is 32 sums of a lane; the other panel is read meanwhile.
        u8* const panel = shared.queries[half][part % 2];
        const u32 to = shared_address(panel);
        float sums[COLUMNS];
        load_columns(sums, address + part * COLUMNS);
#pragma unroll
        for (int chunk = 0; chunk < COLUMNS / 4; ++chunk) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                words[i] = __float_as_uint(sums[4 * chunk + i] * factor);
            }
            store_shared(to + panel_byte(own, chunk), words[0], words[1], words[2], words[3]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < WARP / 4; ++i) {
            const int row = 4 * i + lane / 8, chunk = lane % 8;
            const float4 four = *reinterpret_cast<const float4*>(panel + panel_byte(begin + row, chunk));
            if (first + row < params.num_rows) {
                const i64 at = (static_cast<i64>(params.first_row + first + row) * params.num_heads + head) * VALUE + part * COLUMNS + 4 * chunk;
                store_four(params.attended + at, four);
                if (first + row < num_done && params.rounded != nullptr) {
                    *reinterpret_cast<uint2*>(params.rounded + at) = make_uint2(pair_of(four.x, four.y), pair_of(four.z, four.w));
                }
            }
        }
    }
}

// Probabilities of a half of rows, from row `first` on, and their results: a thread has a row.
__device__ __forceinline__ void attend(const Params& params, Shared& shared, int head, int half, int first, int tiles) {
    const int thread = threadIdx.x % WARPGROUP, warp = thread / WARP, lane = thread % WARP, row = first + thread;
    const u32 lane_address = shared.tensor_memory + (static_cast<u32>(warp * WARP) << 16);
    const u32 sums = lane_address + half * VALUE, scores = lane_address + SCORE_COLUMNS + half * KEYS;
    const float infinity = __uint_as_float(0x7f800000u), scale = params.scale * LOG2_E;
    // A row behind the last one has what that one has.
    const i64 at = static_cast<i64>(params.first_row + min(row, params.num_rows - 1)) * params.num_heads + head;
    load_chunks<false, 8>(params, shared, head, half, first);
    load_chunks<true, 4>(params, shared, head, half, first);
    publish_stores();
    arrive(&shared.asked[half]);
    // In base 2.
    float reference = -infinity, total = 0.0f;
    if (params.first_key > 0) {
        reference = params.statistics[2 * at], total = params.statistics[2 * at + 1];
        load_sums_of_row(params.attended + at * VALUE, sums);
    }
    // Keys of the slab that the row sees.
    const int seen = min(params.num_keys, params.first_position + row + 1 - params.first_key);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        // A bit of each key that is not finite.
        u32 faulty[KEYS / WARP];
#pragma unroll
        for (int i = 0; i < KEYS / WARP; ++i) {
            const int key = tile * KEYS + i * WARP + lane;
            const float fault = key < params.num_keys ? params.faults[key] : 0.0f;
            faulty[i] = __ballot_sync(0xffffffffu, fault != fault);
        }
        const int visible = seen - tile * KEYS;
        wait(&shared.scored[half], tile & 1);
        after_meeting();
        float values[KEYS];
        load_columns(values, scores);
        if (__any_sync(0xffffffffu, visible < KEYS) || (faulty[0] | faulty[1] | faulty[2] | faulty[3]) != 0) {
#pragma unroll
            for (int i = 0; i < KEYS; ++i) {
                const float score = (faulty[i / WARP] >> i % WARP & 1) != 0 ? __uint_as_float(0x7fc00000u) : values[i];
                values[i] = i < visible ? score : -infinity;
            }
        }
        float peaks[4] = {values[0], values[1], values[2], values[3]};
#pragma unroll
        for (int i = 4; i < KEYS; ++i) {
            peaks[i % 4] = fmaxf(peaks[i % 4], values[i]);
        }
        const float peak = fmaxf(fmaxf(peaks[0], peaks[1]), fmaxf(peaks[2], peaks[3])) * scale;
        const float before = reference;
        const bool raises = peak > before + LAG;
        reference = raises ? peak : before;
        const float shrink = raises ? exp2_of(before - reference) : 1.0f;
        // Scores have been waited for, and so the values of the tile before.
        if (__any_sync(0xffffffffu, raises) && (tile > 0 || params.first_key > 0)) {
            scale_sums(sums, shrink);
        }
        float added[4] = {};
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int sixteen = 0; sixteen < KEYS / PARTS / 32; ++sixteen) {
                const int word = part * (KEYS / PARTS / 2) + 16 * sixteen;
                u32 words[16];
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    const float a = exp2_of(__fmaf_rn(values[2 * (word + i)], scale, -reference));
                    const float b = exp2_of(__fmaf_rn(values[2 * (word + i) + 1], scale, -reference));
                    added[i % 2 * 2] += a;
                    added[i % 2 * 2 + 1] += b;
                    words[i] = pair_of(a, b);
                }
                store_columns(scores + word, words);
            }
            finish_stores();
            before_meeting();
            arrive(&shared.weighed[half][part]);
        }
        total = __fmaf_rn(total, shrink, (added[0] + added[1]) + (added[2] + added[3]));
    }
    wait(&shared.summed[half], 0);
    after_meeting();
    // Rows that see no later key have their result.
    const int num_done = params.first_key + params.num_keys - params.first_position;
    if (row < params.num_rows && row >= num_done) {
        params.statistics[2 * at] = reference;
        params.statistics[2 * at + 1] = total;
    }
    write_rows(params, shared, head, half, first + warp * WARP, sums, row < num_done ? __fdiv_rn(1.0f, total) : 1.0f, num_done);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tcgen05_mla_prefill(const __grid_constant__ Params params) {
    begin_kernel();
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int warp = threadIdx.x / WARP, group = threadIdx.x / WARPGROUP, head = blockIdx.y;
    // The last rows see most keys: they begin first.
    const int first = (gridDim.x - 1 - blockIdx.x) * QUERIES;
    const int halves = params.num_rows - first > ROWS ? HALVES : 1;
    // Tiles of the slab that the rows of a half see, the last row at most.
    const auto tiles_of = [&](int half) {
        const int last = min(first + (half + 1) * ROWS, params.num_rows) - 1;
        return (min(params.num_keys, params.first_position + last + 1 - params.first_key) + KEYS - 1) / KEYS;
    };
    const int tiles = tiles_of(halves - 1);
    if (warp == PRODUCT_WARP) {
        take_tensor_memory<1, TENSOR_COLUMNS>(&shared.tensor_memory);
    }
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            create_barrier(&shared.filled[stage], COPY_THREADS);
            create_barrier(&shared.emptied[stage], 1);
        }
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            create_barrier(&shared.asked[half], WARPGROUP_WARPS);
            create_barrier(&shared.scored[half], 1);
            create_barrier(&shared.summed[half], 1);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                create_barrier(&shared.weighed[half][part], WARPGROUP_WARPS);
            }
        }
    }
    before_meeting();
    __syncwarp();
    __syncthreads();
    after_meeting();
    if (group < HALVES) {
        take_registers<ROW_REGISTERS>();
        if (group < halves) {
            attend(params, shared, head, group, first + group * ROWS, tiles_of(group));
        }
    } else {
        leave_registers<OTHER_REGISTERS>();
        if (warp < PRODUCT_WARP) {
            load(params, shared, head, tiles);
        } else if (warp == PRODUCT_WARP && is_elected()) {
            multiply(shared, params.first_key > 0, halves, tiles_of(0), tiles);
        }
    }
    before_meeting();
    __syncwarp();
    __syncthreads();
    if (warp == PRODUCT_WARP) {
        after_meeting();
        leave_tensor_memory<1, TENSOR_COLUMNS>(shared.tensor_memory);
    }
}
