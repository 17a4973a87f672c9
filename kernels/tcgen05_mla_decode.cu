// tcgen05_mla_decode: the items of mla_decode.cu on the tensor memory of B200 and B300: codes of cached rows as they are, queries and
// probabilities as two terms of 8 bits each, rope keys in bf16; sums in f32. For latents of 512 codes and rope keys of 64.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; splits as in Dao et al., "Flash-Decoding", 2023; sums that are scaled seldom as in
//          Zadouri et al., "FlashAttention-4", 2025.
// Twin:    src/cuda/kernels/tcgen05_mla_decode.rs. Spec: host/reference.rs `attend_absorbed`; before it is tiled_mla_absorb.cu, behind it
//          tiled_mla_combine.cu.
// Legend:  A rows of a pass, I items, H heads, L keys of a row, C = 512, R = 64, B bytes of a row.
// Shapes:  latent_queries [A, H, C+R] f32; cache [slots, B] FP8; statistics [I, H, 2] f32, latents [I, H, C] f16.
// Traffic: A*L*B bytes of cache for each 64 heads; 2*I*H*(C+4) bytes of results.
// Work:    4*A*H*L*(2C+R) FLOP: each product of two terms.
// Floor:   A=64 L=32768 H=64 (656 bytes): 1376 MB -> 191 us at 7.2 TB/s (B200); 584 GFLOP -> 130 us at 4.5 PFLOP/s; results of items 67 MB,
//          written and read. A tile of 64 keys and 64 heads on one of 148 multiprocessors at 1.85 GHz: 1,600 clocks of memory; 1,150 of the
//          tensor cores (scores 640, of which rope keys 128, and values 512); 1,160 of shared memory at 128 bytes (scores read 40 KB,
//          values 64, keys written 41; 2,190 if queries were there too, and panels of values were read for each term).
// Grid:    (blocks in clusters of 4, groups of 64 heads), 9 warps; clusters as in wgmma_mla_decode.cu, items and splits in
//          include/mla_items.cuh. Shared memory: 204 KB, three tiles of keys, the sums of a split, probabilities; one block on a
//          multiprocessor.
// Tensor memory, columns of 128 lanes: queries 160, scores 64, sums of values 256.
// Order:   scores: latents in steps of 32 and rope keys in steps of 16, one chain for each term; softmax: tiles of 64 keys at absolute
//          positions, a lane's sum of exponentials over tiles in two chains, then a butterfly; values: tiles in their order, of each 32
//          keys the first terms, then the second; then splits in theirs. A row's result depends on its query, its position and its keys alone.
// Tried:   on paper. Terms of probabilities as lanes, as those of queries are: 512 columns of sums, so that two blocks would share the values
//          and exchange probabilities, and would read 128 keys in 2,000 clocks of shared memory, of 1,600 of memory. Products of 64 rows
//          with the terms behind each other in k: half the rate, 2,180 clocks of a tile. f16 as on Hopper: the same rate. A second term of
//          probabilities under a scale of its own: no columns are left for its sums.
//
// A tile has 64 keys. Two warps have it copied, two make rope keys and scales of what has come, one thread begins products, and four
// warps have a lane of tensor memory for each thread.
//
// Scores have the two terms of 64 queries as rows of A: x = a + b / 32, of a head in the lanes i and i + 16 of a warp, whose sums come
// together in registers. Queries stay in tensor memory. Sums of values are transposed: 128 values of a panel of keys are the rows of A, and
// heads the columns. Both terms of probabilities are added to the same sums, so the second one has the scale of the first: that is E5M2,
// whose range is 2^31, and the second E4M3, the rest of it. The error of a weight w is 2^-7 of it at most, 1.2e-3 on average (bf16:
// 1.7e-3), down to 2^-20 of the largest one, and a weight down to 2^-25 is not lost. The sum of exponentials is that of both terms: the
// error of a weight that is almost all of it is in both sums.
//
// The scale 2^n of a key's latent multiplies its score s, and as a value its probability: 2^(s + n), as on Hopper. What exponentials are
// taken against, m, is the largest s + n of a head, but it is changed, and sums with it, only where a later one is above it by 2^4: seldom
// behind the first tile.

#include "cached_row.cuh"
#include "cluster.cuh"
#include "mla_items.cuh"
#include "tcgen05.cuh"

constexpr int HEADS = 64;
constexpr int KEYS = 64;
// Heads of a block whose sums it merges.
constexpr int MERGED_HEADS = HEADS / BLOCKS;

using Item = ItemOf<KEYS>;
using Walk = WalkOf<KEYS>;

// Warps by role: lanes of tensor memory, copies, rope keys and scales, products.
constexpr int LANE_WARPS = 4, COPY_WARPS = 2, ROPE_WARPS = 2;
constexpr int LANES = LANE_WARPS * WARP;
constexpr int ROPE_THREADS = ROPE_WARPS * WARP;
constexpr int THREADS = (LANE_WARPS + COPY_WARPS + ROPE_WARPS + 1) * WARP;
constexpr int STAGES = 3;
// Panels of 64 keys: rows of 128 bytes, in which the chunk c of 16 bytes of row r is at the place c ^ (r % 8).
constexpr int PITCH = 128;
constexpr int PANEL_BYTES = KEYS * PITCH;
// Panels of a tile: 128 codes of the latent each, and rope keys in bf16.
constexpr int LATENT_PANELS = LATENT / PITCH;
constexpr int ROPE_PANEL = LATENT_PANELS;
constexpr int PANELS = LATENT_PANELS + 1;
// Bytes of a step of k.
constexpr int STEP_BYTES = 32;
// Columns of tensor memory: codes of queries, their rope keys, scores, and sums of four times 128 values of 64 heads.
constexpr u32 TENSOR_COLUMNS = 512;
constexpr u32 QUERY_COLUMNS = 0;
constexpr u32 ROPE_COLUMNS = QUERY_COLUMNS + LATENT / 4;
constexpr u32 SCORE_COLUMNS = ROPE_COLUMNS + ROPE / 2;
constexpr u32 SUM_COLUMNS = SCORE_COLUMNS + KEYS;
static_assert(SUM_COLUMNS + LATENT_PANELS * HEADS <= TENSOR_COLUMNS);
// The second term of a query is that many times the rest.
constexpr float SECOND_TERM = 32.0f;
// The weight of a key at the reference is 2 to this, and one of a later tile may be above it by 2 to that.
constexpr int WEIGHT_EXPONENT = 8;
constexpr float LAG = 4.0f;
// Sums of weights of 1 at the reference are divided by 2 to this, and those of an item by the number of its splits: so they are in the
// range of f16.
constexpr int SUM_EXPONENT = SPLIT <= 512 ? 6 : 7;
static_assert((SPLIT * 16 * 448 >> SUM_EXPONENT) < 65504);
// Keys of a thread.
constexpr int OWN_KEYS = KEYS / 2;
// Number of the named barrier of the threads with a lane.
constexpr int LANE_GROUP = 1;

struct Shared {
    u8 keys[STAGES][PANELS][PANEL_BYTES];
    u8 weights[2][PANEL_BYTES];          // of a head 64 first terms, then 64 second ones
    u8 sums[LATENT][PITCH];              // of a value those of 64 heads in f16, chunk c at c ^ (value % 8)
    u32 ends[STAGES][KEYS];              // of cached rows: scales in the lower bytes
    float2 scales[STAGES][KEYS];         // 2^n and n
    float2 of_split[HEADS];              // reference in base 2 and sum of exponentials, of the sums here
    float4 of_blocks[MERGED_HEADS];      // factors of the splits of a head
    float shrink[2][HEADS];
    u32 raised[2][LANE_WARPS];           // whether a head of the warp has another reference
    u64 landed[STAGES];                  // copies are there: rope keys and scales
    u64 filled[STAGES];                  // they are there too: scores
    u64 emptied[STAGES];                 // all were read: copies
    u64 asked;                           // queries are there: scores
    u64 scored;                          // scores are there: weights
    u64 seen;                            // scores are in registers: those of the next tile
    u64 weighed[2];                      // weights are there, in turn: values
    u64 added[2];                        // values were added, in turn: sums
    u64 given;                           // sums of an item's splits are there, in all blocks: their merge
    u64 merged;                          // they were read by all blocks: those of the next item
    u32 tensor_memory;
};

__device__ __forceinline__ int panel_byte(int row, int chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

// Two values to E4M3 or E5M2, rounded to the nearest, the first one in the lower byte (PTX ISA, cvt; sm_89).
__device__ __forceinline__ u32 e4m3_of(float low, float high) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ u32 e5m2_of(float low, float high) {
    u16 pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

// The nearest value with so many bits behind the first one; NaN may become 0.
template <int BITS>
__device__ __forceinline__ float rounded_to(float x) {
    constexpr u32 UNIT = 1u << (23 - BITS);
    return __uint_as_float((__float_as_uint(x) + UNIT / 2) & ~(UNIT - 1));
}

// Where the key of this lane begins in the cache, in units of 16 bytes. A key behind the last one is the last one again: its weight is 0.
__device__ __forceinline__ u32 place_of(const MlaDecodeParams& params, const Item& tile, int at) {
    const int key = tile.first_key + min(at, tile.num_keys - 1);
    return cached_slot(params.block_tables + tile.table, key, params.block_size) * (static_cast<u32>(params.row_bytes) / 16);
}

// Copies of cached rows to where products read them, by two warps with half of a tile's keys each. Rope keys of codes are at first in every
// second chunk.
template <bool CODES>
__device__ __forceinline__ void copy_keys(const MlaDecodeParams& params, Shared& shared, Item item, u32 end) {
    constexpr int WARP_KEYS = KEYS / COPY_WARPS, ROPE_CHUNKS = CODES ? ROPE / 16 : ROPE / 8;
    static_assert(WARP_KEYS == WARP);
    const int lane = threadIdx.x % WARP, first = (threadIdx.x / WARP - LANE_WARPS) * WARP_KEYS;
    const uint4* cache = reinterpret_cast<const uint4*>(params.cache);
    Walk walk = {item, end};
    u32 count = 0;
    for (bool more = walk.begin(params); more; ++count) {
        const u32 stage = count % STAGES, place = place_of(params, walk.left, first + lane);
        more = walk.go_on(params);
        auto& keys = shared.keys[stage];
        wait(&shared.emptied[stage], (count / STAGES & 1) ^ 1);
#pragma unroll 8
        for (int key = 0; key < WARP_KEYS; ++key) {
            copy16(keys[lane / 8] + panel_byte(first + key, lane % 8), &cache[__shfl_sync(0xffffffffu, place, key) + lane]);
        }
#pragma unroll
        for (int i = 0; i < ROPE_CHUNKS; ++i) {
            const int key = (i * WARP + lane) / ROPE_CHUNKS, part = lane % ROPE_CHUNKS;
            copy16(keys[ROPE_PANEL] + panel_byte(first + key, CODES ? 2 * part : part),
                   &cache[__shfl_sync(0xffffffffu, place, key) + LATENT / 16 + part]);
        }
        copy4(shared_address(&shared.ends[stage][first + lane]), &cache[place + LATENT / 16 + ROPE_CHUNKS]);
        arrive_with_copies(&shared.landed[stage]);
    }
    // No thread ends before its copies.
    commit_copies();
    wait_copies<0>();
}

// Eight codes to bf16, each times a power of two; 16 bytes at an address of shared memory.
__device__ __forceinline__ void store_codes(u32 to, u32 low, u32 high, u32 factors) {
    const u32 a = bf16_of_e4m3(__byte_perm(low, 0, 0x1404)), b = bf16_of_e4m3(__byte_perm(low, 0, 0x3424));
    const u32 c = bf16_of_e4m3(__byte_perm(high, 0, 0x1404)), d = bf16_of_e4m3(__byte_perm(high, 0, 0x3424));
    store_shared(to, multiply2(a, factors), multiply2(b, factors), multiply2(c, factors), multiply2(d, factors));
}

// What makes the rope keys of a row those of codes under the latent's scale, which multiplies the score, twice: 2^-n has the exponent
// 254 - n. A part that is not finite stays so, and codes of 2^127 times the latent's become infinite.
template <bool CODES>
__device__ __forceinline__ u32 rope_factors(u32 scales) {
    const u32 latent = scales & 0xffu, other = scales >> 8 & 0xffu;
    const int exponent = CODES ? max(static_cast<int>(other - latent) + 127, 0) : 254 - static_cast<int>(latent);
    return (CODES && other == NOT_FINITE ? 0x7fc0u : min(exponent, 255) << 7) * 0x00010001u;
}

// Rope keys in bf16 in place of those that came, and scales, by two warps.
template <bool CODES>
__device__ __forceinline__ void make_rope_keys(const MlaDecodeParams& params, Shared& shared, Item item, u32 end) {
    constexpr int PARTS = CODES ? ROPE / 16 : ROPE / 8;
    const int thread = threadIdx.x % ROPE_THREADS;
    static_assert(ROPE_THREADS == KEYS && (LANE_WARPS + COPY_WARPS) % ROPE_WARPS == 0);
    Walk walk = {item, end};
    u32 count = 0;
    for (bool more = walk.begin(params); more; ++count, more = walk.go_on(params)) {
        const u32 stage = count % STAGES;
        const u32 panel = shared_address(shared.keys[stage][ROPE_PANEL]);
        wait(&shared.landed[stage], count / STAGES & 1);
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const int key = (i * ROPE_THREADS + thread) / PARTS, part = thread % PARTS;
            const u32 factors = rope_factors<CODES>(shared.ends[stage][key]);
            const u32 at = panel + panel_byte(key, CODES ? 2 * part : part);
            const uint4 word = *reinterpret_cast<const uint4*>(shared.keys[stage][ROPE_PANEL] + panel_byte(key, CODES ? 2 * part : part));
            if constexpr (CODES) {
                store_codes(at, word.x, word.y, factors);
                store_codes(at ^ 16, word.z, word.w, factors);
            } else {
                store_shared(at, multiply2(word.x, factors), multiply2(word.y, factors), multiply2(word.z, factors),
                             multiply2(word.w, factors));
            }
        }
        const u32 latent = shared.ends[stage][thread] & 0xffu;
        shared.scales[stage][thread] = latent == NOT_FINITE
                                           ? make_float2(__uint_as_float(0x7fc00000u), __uint_as_float(0x7fc00000u))
                                           : make_float2(__uint_as_float(latent << 23), static_cast<float>(static_cast<int>(latent) - 127));
        publish_stores();
        arrive(&shared.filled[stage]);
    }
}

// Adds the weighed values of tile `count`: to nothing where it is the first one of a split.
__device__ __forceinline__ void multiply_values(Shared& shared, u32 sums, u32 count, bool first) {
    constexpr u32 ROWS = 128;
    constexpr u32 SECOND = product_descriptor(E4M3, E4M3, ROWS, HEADS) | ALONG_ROWS_OF_A, FIRST = SECOND | E5M2 << 10;
    const u32 stage = count % STAGES, buffer = count % 2;
    wait(&shared.weighed[buffer], count / 2 & 1);
    after_meeting();
    const u64 weights = rows_descriptor(shared_address(shared.weights[buffer]));
#pragma unroll
    for (int panel = 0; panel < LATENT_PANELS; ++panel) {
        const u64 values = rows_descriptor(shared_address(shared.keys[stage][panel]));
#pragma unroll
        for (int step = 0; step < KEYS / STEP_BYTES; ++step) {
            const u64 a = values + (step * STEP_BYTES * PITCH >> 4), b = weights + (step * STEP_BYTES >> 4);
            const u32 to = sums + panel * HEADS;
            multiply_codes_first(to, a, b, FIRST, !first || step > 0);
            multiply_codes_again(to, a, b + (KEYS >> 4), SECOND);
        }
    }
    arrive_with_products(&shared.emptied[stage]);
    arrive_with_products(&shared.added[buffer]);
}

// Begins all products of a block, by one thread: scores of a tile, then the values of the one before.
__device__ __forceinline__ void multiply(const MlaDecodeParams& params, Shared& shared, Item item, u32 end) {
    constexpr u32 ROWS = 128;
    constexpr u32 CODES = product_descriptor(E4M3, E4M3, ROWS, KEYS), ROPES = product_descriptor(BF16, BF16, ROWS, KEYS);
    const u32 memory = shared.tensor_memory, sums = memory + SUM_COLUMNS, scores = memory + SCORE_COLUMNS;
    // The first of the rows whose queries are in tensor memory.
    int loaded = -1;
    u32 phase = 0, count = 0;
    do {
        if (item.num_keys > 0 && item.index != loaded) {
            loaded = item.index;
            wait(&shared.asked, phase);
            phase ^= 1;
        }
        const int tiles = item.tiles();
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, ++count) {
            const u32 stage = count % STAGES;
            wait(&shared.filled[stage], count / STAGES & 1);
            if (count > 0) {
                wait(&shared.seen, (count - 1) & 1);
            }
            // Copies were made by other threads, behind whose arrival this one is.
            publish_stores();
            after_meeting();
#pragma unroll
            for (int panel = 0; panel < LATENT_PANELS; ++panel) {
                const u64 keys = rows_descriptor(shared_address(shared.keys[stage][panel]));
#pragma unroll
                for (int step = 0; step < PITCH / STEP_BYTES; ++step) {
                    const u32 queries = memory + QUERY_COLUMNS + panel * (PITCH / 4) + step * (STEP_BYTES / 4);
                    multiply_codes(scores, queries, keys + (step * STEP_BYTES >> 4), CODES, panel + step > 0);
                }
            }
            const u64 keys = rows_descriptor(shared_address(shared.keys[stage][ROPE_PANEL]));
#pragma unroll
            for (int step = 0; step < PITCH / STEP_BYTES; ++step) {
                multiply_halves(scores, memory + ROPE_COLUMNS + step * (STEP_BYTES / 4), keys + (step * STEP_BYTES >> 4), ROPES);
            }
            arrive_with_products(&shared.scored);
            if (tile > 0) {
                multiply_values(shared, sums, count - 1, tile == 1);
            }
        }
        if (tiles > 0) {
            multiply_values(shared, sums, count - 1, tiles == 1);
        }
    } while (item.go_on(params, end));
}

// The row of the tiles of queries and sums that a lane of tensor memory has a term of.
__device__ __forceinline__ int row_of_lane() { return threadIdx.x / WARP * 16 + threadIdx.x % 16; }

// The terms of this lane of a query, which is divided by a power of two that brings the largest value to 2^7 and above, to tensor memory:
// that power, or NaN of a query that is not finite.
__device__ __forceinline__ float load_query(const MlaDecodeParams& params, u32 lane_address, const Item& item, int first_head) {
    const int row = row_of_lane(), second = threadIdx.x % WARP / 16;
    const bool present = row < item.rows * params.num_heads - first_head;
    const float* from =
        params.latent_queries + (static_cast<i64>(item.index) * params.num_heads + first_head + (present ? row : 0)) * WIDTH;
    // Both lanes of a head look at half of it. As integers, so that NaN is the largest.
    u32 peak = 0;
#pragma unroll 8
    for (int i = 0; i < WIDTH / 8; ++i) {
        const float4 four = four_of(from + 8 * i + 4 * second);
        peak = max(peak, max(max(__float_as_uint(four.x) & 0x7fffffffu, __float_as_uint(four.y) & 0x7fffffffu),
                             max(__float_as_uint(four.z) & 0x7fffffffu, __float_as_uint(four.w) & 0x7fffffffu)));
    }
    peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, 16));
    // The bound keeps both powers normal.
    const u32 exponent = max(peak >> 23, 15u);
    const float factor = present ? __uint_as_float((127 + 7 + 127 - exponent) << 23) : 0.0f;
    // Two codes in the lower half.
    const auto codes_of = [&](float x, float y) {
        const u32 first = e4m3_of(x, y);
        const float2 exact = floats_of_f16(f16_of_e4m3(first));
        return second ? e4m3_of(SECOND_TERM * (x - exact.x), SECOND_TERM * (y - exact.y)) : first;
    };
#pragma unroll 1
    for (int i = 0; i < LATENT / 32; ++i) {
        u32 words[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float4 four = scale4(factor, four_of(from + 32 * i + 4 * j));
            words[j] = codes_of(four.x, four.y) | codes_of(four.z, four.w) << 16;
        }
        store_columns(lane_address + QUERY_COLUMNS + 8 * i, words);
    }
#pragma unroll 1
    for (int i = 0; i < ROPE / 16; ++i) {
        u32 words[8];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float4 four = scale4(factor, four_of(from + LATENT + 16 * i + 4 * j));
            const uint2 first = take_term(four);
            four = scale4(SECOND_TERM, four);
            words[2 * j] = second ? pair_of(four.x, four.y) : first.x;
            words[2 * j + 1] = second ? pair_of(four.z, four.w) : first.y;
        }
        store_columns(lane_address + ROPE_COLUMNS + 8 * i, words);
    }
    finish_stores();
    return __uint_as_float(!present ? 127 << 23 : exponent == 255 ? 0x7fc00000u : (exponent - 7) << 23);
}

// Multiplies the sums of values by the heads' factors.
__device__ __forceinline__ void scale_sums(u32 lane_address, const float (&shrink)[HEADS]) {
#pragma unroll 1
    for (int first = 0; first < LATENT_PANELS * HEADS; first += 16) {
        float sums[16];
        load_columns(sums, lane_address + SUM_COLUMNS + first);
        u32 words[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            words[i] = __float_as_uint(sums[i] * shrink[first % HEADS + i]);
        }
        store_columns(lane_address + SUM_COLUMNS + first, words);
    }
    finish_stores();
}

// Leaves the sums of a split in shared memory in f16.
__device__ __forceinline__ void give_sums(Shared& shared, u32 lane_address) {
    constexpr float FACTOR = 1.0f / (1 << (WEIGHT_EXPONENT + SUM_EXPONENT));
    const u32 to = shared_address(shared.sums);
#pragma unroll 1
    for (int panel = 0; panel < LATENT_PANELS; ++panel) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            float sums[HEADS / 2];
            load_columns(sums, lane_address + SUM_COLUMNS + panel * HEADS + part * (HEADS / 2));
#pragma unroll
            for (int chunk = 0; chunk < HEADS / 16; ++chunk) {
                const float* eight = sums + 8 * chunk;
                store_shared(to + panel_byte(panel * LANES + threadIdx.x, part * (HEADS / 16) + chunk),
                             f16_pair_of(eight[0] * FACTOR, eight[1] * FACTOR), f16_pair_of(eight[2] * FACTOR, eight[3] * FACTOR),
                             f16_pair_of(eight[4] * FACTOR, eight[5] * FACTOR), f16_pair_of(eight[6] * FACTOR, eight[7] * FACTOR));
            }
        }
    }
}

// Merges the splits of an item, in their order, of this block's share of the heads. By the threads with a lane.
__device__ __forceinline__ void merge(const MlaDecodeParams& params, Shared& shared, const Item& item, int first_head) {
    const int thread = threadIdx.x, first_row = rank_of_block() * MERGED_HEADS;
    const int split = item.split(), left = item.row_keys - item.begin();
    // Heads lie side by side, whatever rows of the group they are of. Rows that have ended before the item get results that are not read.
    const int rows = min(item.rows * params.num_heads - first_head, HEADS) - first_row;
    const i64 place = static_cast<i64>(item.place) * params.num_heads + first_head + first_row;
    if (thread < MERGED_HEADS) {
        const int row = first_row + thread;
        // Splits that the row has keys of: one before the last row of a group may have ended before.
        const HeadOfRow own = head_of(params, item.rows, first_head, row);
        const int own_left = left - max(item.rows - 1 - own.row, 0);
        float2 statistics[BLOCKS];
        float factors[BLOCKS], largest = -__uint_as_float(0x7f800000u), total = 0.0f;
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            statistics[r] = make_float2(largest, 0.0f);
        }
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            if (r * split < own_left) {
                statistics[r] = float2_in_cluster(address_in_block(shared_address(&shared.of_split[row]), r));
            }
        }
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            largest = fmaxf(largest, statistics[r].x);
        }
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            factors[r] = r * split < own_left ? exp2_of(statistics[r].x - largest) * (1.0f / BLOCKS) : 0.0f;
            total = __fmaf_rn(factors[r], statistics[r].y, total);
        }
        shared.of_blocks[thread] = make_float4(factors[0], factors[1], factors[2], factors[3]);
        if (thread < rows) {
            // In base e, as the merge of items reads it.
            reinterpret_cast<float2*>(params.statistics)[place + thread] = make_float2((largest + MERGED_EXPONENT) / LOG2_E, total);
        }
    }
    meet<LANES>(LANE_GROUP);
    const int splits = min((left + split - 1) / split, BLOCKS);
    u16* const latents = static_cast<u16*>(params.latents) + place * LATENT + thread;
    // A chunk has eight heads of a value.
#pragma unroll 1
    for (int chunk = 0; chunk < MERGED_HEADS / 8; ++chunk) {
        float4 factors[8];
#pragma unroll
        for (int head = 0; head < 8; ++head) {
            factors[head] = shared.of_blocks[8 * chunk + head];
        }
#pragma unroll 1
        for (int first = 0; first < LATENT; first += LANES) {
            const u32 at = shared_address(shared.sums) + panel_byte(first + thread, first_row / 8 + chunk);
            // Of blocks without a split, 0: what is there may be of an item before.
            uint4 parts[BLOCKS] = {};
#pragma unroll
            for (int r = 0; r < BLOCKS; ++r) {
                if (r < splits) {
                    parts[r] = uint4_in_cluster(address_in_block(at, r));
                }
            }
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                float sums[2] = {};
#pragma unroll
                for (int r = 0; r < BLOCKS; ++r) {
                    const float2 values = floats_of_f16(word_of(parts[r], pair));
                    const float4 a = factors[2 * pair], b = factors[2 * pair + 1];
                    sums[0] = __fmaf_rn(r == 0 ? a.x : r == 1 ? a.y : r == 2 ? a.z : a.w, values.x, sums[0]);
                    sums[1] = __fmaf_rn(r == 0 ? b.x : r == 1 ? b.y : r == 2 ? b.z : b.w, values.y, sums[1]);
                }
                const u32 halves = f16_pair_of(sums[0], sums[1]);
#pragma unroll
                for (int upper = 0; upper < 2; ++upper) {
                    const int head = 8 * chunk + 2 * pair + upper;
                    if (head < rows) {
                        latents[head * LATENT + first] = static_cast<u16>(halves >> 16 * upper);
                    }
                }
            }
        }
    }
}

// Weights of the keys of a block's tiles, and its part of the merges: a thread has a head, half of the keys of a tile, and 4 values.
__device__ __forceinline__ void weigh(const MlaDecodeParams& params, Shared& shared, Item item, u32 end, int first_head) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, half = lane / 16, row = row_of_lane();
    const u32 lane_address = shared.tensor_memory + (static_cast<u32>(warp * WARP) << 16);
    const float infinity = __uint_as_float(0x7f800000u);
    int loaded = -1;
    u32 count = 0, items = 0;
    float factor = 0.0f;
    do {
        if (item.num_keys > 0 && item.index != loaded) {
            // All products with the queries before have been waited for.
            loaded = item.index;
            factor = params.scale * LOG2_E * load_query(params, lane_address, item, first_head);
            before_meeting();
            arrive(&shared.asked);
        }
        // Keys of the split that the row has.
        const int own_keys = own_keys_of(params, item, first_head, row);
        // In base 2; the sum is this thread's part.
        float reference = -infinity, total = 0.0f;
        const int tiles = item.tiles();
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, ++count) {
            const u32 stage = count % STAGES, buffer = count % 2;
            wait(&shared.filled[stage], count / STAGES & 1);
            wait(&shared.scored, count & 1);
            after_meeting();
            float scores[OWN_KEYS], rest[OWN_KEYS];
            load_halves(scores, rest, lane_address + SCORE_COLUMNS);
            before_meeting();
            arrive(&shared.seen);

            const float4* scales = reinterpret_cast<const float4*>(shared.scales[stage] + OWN_KEYS * half);
            const int first = tile * KEYS + OWN_KEYS * half;
            float peak = -infinity;
#pragma unroll
            for (int i = 0; i < OWN_KEYS; ++i) {
                const float4 two = scales[i / 2];
                const float score = __fmaf_rn(rest[i], 1.0f / SECOND_TERM, scores[i]) * factor;
                const float weighed = __fmaf_rn(score, i % 2 ? two.z : two.x, i % 2 ? two.w : two.y);
                scores[i] = first + i < own_keys ? weighed : -infinity;
                peak = fmaxf(peak, scores[i]);
            }
            peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 16));
            const float before = reference;
            const bool raises = peak > before + LAG;
            reference = raises ? peak : before;
            const float shrink = raises ? exp2_of(before - reference) : 1.0f;
            bool any = false;
            if (tile > 0) {
                if (half == 0) {
                    shared.shrink[buffer][row] = shrink;
                }
                const bool in_warp = __any_sync(0xffffffffu, raises);
                if (lane == 0) {
                    shared.raised[buffer][warp] = in_warp;
                }
                meet<LANES>(LANE_GROUP);
                const uint4 raised = *reinterpret_cast<const uint4*>(shared.raised[buffer]);
                any = (raised.x | raised.y | raised.z | raised.w) != 0;
            }

            // What is in the place of the weights was multiplied in front of these scores, and `scored` has waited for it. Of the values of
            // the tile before nothing is known: so `added` has two barriers, of which each is at most a phase behind.
            float added[2] = {};
            u32 terms[2][OWN_KEYS / 4];
            // A row of a group without keys here has weights of 0.
            const float against = reference == -infinity ? 0.0f : reference - WEIGHT_EXPONENT;
#pragma unroll
            for (int word = 0; word < OWN_KEYS / 4; ++word) {
                u32 pairs[2][2];
#pragma unroll
                for (int pair = 0; pair < 2; ++pair) {
                    const int i = 4 * word + 2 * pair;
                    const float4 two = scales[i / 2];
                    const float a = exp2_of(scores[i] - against), b = exp2_of(scores[i + 1] - against);
                    const float a_first = rounded_to<2>(a), b_first = rounded_to<2>(b);
                    const float a_second = rounded_to<3>(a - a_first), b_second = rounded_to<3>(b - b_first);
                    // The weight of a key that is not finite is NaN in the second term, which is rounded where it becomes codes.
                    pairs[0][pair] = e5m2_of(a_first, b_first);
                    pairs[1][pair] = e4m3_of(a - a_first, b - b_first);
                    added[0] = __fmaf_rn(a_first + a_second, inverse_of_power(two.x), added[0]);
                    added[1] = __fmaf_rn(b_first + b_second, inverse_of_power(two.z), added[1]);
                }
                terms[0][word] = pairs[0][0] | pairs[0][1] << 16;
                terms[1][word] = pairs[1][0] | pairs[1][1] << 16;
            }
            total = __fmaf_rn(total, shrink, added[0] + added[1]);
            const u32 weights = shared_address(shared.weights[buffer]);
#pragma unroll
            for (int chunk = 0; chunk < 4; ++chunk) {
                const u32* four = &terms[chunk / 2][chunk % 2 * 4];
                store_shared(weights + panel_byte(row, chunk / 2 * 4 + 2 * half + chunk % 2), four[0], four[1], four[2], four[3]);
            }
            if (any) {
                wait(&shared.added[buffer ^ 1], (count - 1) / 2 & 1);
                after_meeting();
                scale_sums(lane_address, shared.shrink[buffer]);
            }
            before_meeting();
            publish_stores();
            arrive(&shared.weighed[buffer]);
        }
        wait_for_cluster(shared_address(&shared.merged), (items & 1) ^ 1);
        if (tiles > 0) {
            wait(&shared.added[(count - 1) % 2], (count - 1) / 2 & 1);
            after_meeting();
            give_sums(shared, lane_address);
            before_meeting();
            const float sum = total + __shfl_xor_sync(0xffffffffu, total, 16);
            if (half == 0) {
                shared.of_split[row] = make_float2(reference + SUM_EXPONENT, sum * (1.0f / (1 << (WEIGHT_EXPONENT + SUM_EXPONENT))));
            }
        }
        __syncwarp();
        if (lane < BLOCKS) {
            arrive_in_cluster(address_in_block(shared_address(&shared.given), lane));
        }
        wait_for_cluster(shared_address(&shared.given), items & 1);
        merge(params, shared, item, first_head);
        __syncwarp();
        if (lane < BLOCKS) {
            arrive_in_cluster(address_in_block(shared_address(&shared.merged), lane));
        }
        ++items;
    } while (item.go_on(params, end));
}

template <bool CODES>
__device__ __forceinline__ void decode(const MlaDecodeParams& params) {
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const u32 cluster = blockIdx.x / BLOCKS, end = share_of(params, cluster + 1);
    const int warp = threadIdx.x / WARP, first_head = blockIdx.y * HEADS;
    constexpr int ROPE_WARP = LANE_WARPS + COPY_WARPS, PRODUCT_WARP = ROPE_WARP + ROPE_WARPS;
    const Item item = Item::from(params, share_of(params, cluster), end);
    if (threadIdx.x == THREADS - 1) {
        fetch_ahead(params.ahead, blockIdx.y * gridDim.x + blockIdx.x, gridDim.x * gridDim.y);
    }
    if (item.place >= end) {
        return;
    }
    if (warp == PRODUCT_WARP) {
        take_tensor_memory<1, TENSOR_COLUMNS>(&shared.tensor_memory);
    }
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            create_barrier(&shared.landed[stage], COPY_WARPS * WARP);
            create_barrier(&shared.filled[stage], ROPE_WARPS);
            create_barrier(&shared.emptied[stage], 1);
        }
        create_barrier(&shared.asked, LANE_WARPS);
        create_barrier(&shared.scored, 1);
        create_barrier(&shared.seen, LANE_WARPS);
#pragma unroll
        for (int buffer = 0; buffer < 2; ++buffer) {
            create_barrier(&shared.weighed[buffer], LANE_WARPS);
            create_barrier(&shared.added[buffer], 1);
        }
        create_barrier(&shared.given, BLOCKS * LANE_WARPS);
        create_barrier(&shared.merged, BLOCKS * LANE_WARPS);
    }
    before_meeting();
    __syncwarp();
    meet_cluster();
    after_meeting();
    if (warp < LANE_WARPS) {
        weigh(params, shared, item, end, first_head);
    } else if (warp < ROPE_WARP) {
        copy_keys<CODES>(params, shared, item, end);
    } else if (warp < PRODUCT_WARP) {
        make_rope_keys<CODES>(params, shared, item, end);
    } else if (is_elected()) {
        multiply(params, shared, item, end);
    }
    // A block stays until the others have read its sums.
    before_meeting();
    __syncwarp();
    meet_cluster();
    if (warp == PRODUCT_WARP) {
        after_meeting();
        leave_tensor_memory<1, TENSOR_COLUMNS>(shared.tensor_memory);
    }
}

#define KERNEL(name, CODES)                                                                                      \
    extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)                      \
        name(const __grid_constant__ MlaDecodeParams params) {                                                   \
        begin_kernel();                                                                                          \
        decode<CODES>(params);                                                                                   \
    }

KERNEL(tcgen05_mla_decode_fp8, false)
KERNEL(tcgen05_mla_decode_fp8_rope, true)
