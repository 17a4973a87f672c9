// wgmma_mla_decode: the items of mla_decode.cu on the tensor cores of Hopper: latents, their queries and probabilities in f16 where
// the cache has codes, else in bf16, as rope keys are; sums in f32. For latents of 512 values and rope keys of 64.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; splits as in Dao et al., "Flash-Decoding", 2023; roles of warps as in
//          Shah et al., "FlashAttention-3", arXiv 2407.08608.
// Twin:    src/cuda/kernels/wgmma_mla_decode.rs. Spec: host/reference.rs `attend_absorbed`; before it is wgmma_mla_absorb.cu, behind
//          it tiled_mla_combine.cu.
// Legend:  A rows of a pass, I items, H heads, L keys of a row, C = 512, R = 64, B bytes of a row.
// Shapes:  latent_queries as in mla_queries.cuh, or [A, H, C+R] f32; cache [slots, B] bf16 or FP8; statistics [I, H, 2] f32, latents [I, H, C] f16.
// Traffic: A*L*B bytes of cache for each 64 heads; 2*I*H*(C+4) bytes of results.
// Work:    2*A*H*L*(2C+R) FLOP.
// Floor:   A=64 L=32768 H=64, FP8 (656 bytes): 1376 MB -> 320 us at 4.3 TB/s (H200), 475 us at 2.9 TB/s (H100); 292 GFLOP ->
//          370 us at 790 TFLOP/s; results of items 67 MB, written and read. A tile of 64 keys and 64 heads: 2,200 clocks of memory
//          (H200), 2,180 of the tensor cores (scores 1,150, values 1,020), 2,300 of shared memory at 128 bytes.
// Grid:    (blocks in clusters of 4, groups of 64 heads), 4 warpgroups; a cluster has consecutive items, so that it loads the queries of a
//          row once, and each of its blocks one of the four splits of an item, 64 to 512 keys. Shared memory: 226 KB, queries and two
//          tiles of keys; one block on a multiprocessor.
// Order:   scores: columns in steps of 16, one chain; softmax: tiles of 64 keys at absolute positions, a lane's sum of
//          exponentials over tiles, then a butterfly; values: tiles in their order, then splits in theirs. A row's result depends on its
//          query, its position and its keys alone.
// Tried:   with all in bf16 and codes converted by integer instructions, some 40 for 16 codes in place of 8, A=64 L=32768 took 1,351
//          us on an H100 with absorb and combine (1,354 of bf16 rows), by mma.sync 2,578 and 2,824. One item took 35 us alone, of
//          which queries, in f32 then, 7; one after another 34, of which without loads 22: the loading warps needed 4.2 us for a tile. Leaving out
//          scores, softmax or values changed 1 us of it. What it takes since has not been measured. The fence between the proxies
//          is needed: without it sums differ. Products of 256 columns: ptxas wants 154 registers in all roles for them.
//          Scores of the next tile under the softmax of this one take 32 registers, which the loads alone could give: with half of a
//          tile, 16 KB, on its way, where 27 are needed for the bandwidth of an H200.
//
// A tile has 64 keys and goes through three roles, each a tile behind the one before: the first warpgroup brings keys from
// the cache into shared memory; the second multiplies them with the queries of 64 heads and leaves probabilities where the
// rope keys were, which are read once; the last two have 256 columns each of the sums of values.
//
// Codes of FP8 are f16 exactly, in one instruction for two, and f16 has three more bits than bf16 for queries and
// probabilities. What is not in its range is kept out of it. Queries of a head are divided by a power of two. The scale 2^n of a key's
// latent multiplies its score, and as a value its probability: 2^(s + n) there, so the largest of s + n is what exponentials are taken
// against, weights are up to 1, and 2^-n brings them back where the probabilities themselves are summed.
//
// Of fewer heads, as ranks have them, a block takes several rows of one sequence: 4 of 16 heads. The tokens of a verified draft share the
// keys, each with those up to its own. A row's sums do not depend on the rows beside it: their keys behind its own have the weight 0.
//
// The sums of a split stay in shared memory, in the place of its last keys: the blocks of a cluster merge 16 heads each of the four
// splits. So what goes through memory is a quarter, and a row of up to 512 keys has one item.

#include "cached_row.cuh"
#include "cluster.cuh"
#include "mla_items.cuh"
#include "mla_queries.cuh"
#include "mma.cuh"
#include "wgmma.cuh"

constexpr int THREADS = 4 * WARPGROUP;
// Columns of a warpgroup that adds values.
constexpr int HALF = LATENT / 2;
// Panels of 64 columns of 64 queries or keys; the last one is the rope key, and then the probabilities.
constexpr int PANELS = WIDTH / PANEL;
constexpr int ROPE_PANEL = LATENT / PANEL;
// Registers of a thread that adds values; with those of the two other roles, `Rows`, 512 in a lane of four warpgroups.
constexpr int VALUE_REGISTERS = 160;
// Chunks of 8 values of a head.
constexpr int CHUNKS = LATENT / 8;
// Sums of a split of codes, whose weights are up to 1, are divided by 2 to this, and those of an item of any rows by the number of its
// splits: so they are in the range of f16.
constexpr int CODES_EXPONENT = SPLIT <= 512 ? 2 : 3;
static_assert((SPLIT * 448 >> CODES_EXPONENT) < 65504);
// Numbers of named barriers.
constexpr int SCORE_GROUP = 1, VALUE_GROUPS = 2;

struct Shared {
    u8 queries[PANELS][PANEL_BYTES];
    u8 keys[2][PANELS][PANEL_BYTES];
    uint4 rope[4][WARPGROUP];    // rope keys on their way, of each thread its own
    union {
        float4 scales[2][KEYS / 2];  // of codes: of two keys, 2^n each, then their n
        float peaks[2][HEADS];       // of bf16: largest sum of values of a head, by half of the columns
    };
    float query_scales[HEADS];   // queries were divided by them
    float shrink[2][HEADS];
    float2 of_split[2][HEADS];  // largest score in base 2 and sum of exponentials, behind the last tile of a split, with its sums of values
    u64 filled[2];   // keys and scales are there: scores
    u64 weighed[2];  // probabilities and factors are there: values
    u64 emptied[2];  // all were read: loads
    u64 asked;       // queries are there: scores
    u64 given;       // sums of an item's splits are there, in all blocks: their merge
};

// Which of two tiles, and in which round.
struct Turn {
    u32 count = 0;
    __device__ __forceinline__ int buffer() const { return count & 1; }
    __device__ __forceinline__ u32 parity() const { return count >> 1 & 1; }
};

// Eight codes in order to eight f16, exactly; 16 bytes at an address of shared memory.
__device__ __forceinline__ void store_codes(u32 to, u32 low, u32 high) {
    store_shared(to, f16_of_e4m3(low), f16_of_e4m3(low >> 16), f16_of_e4m3(high), f16_of_e4m3(high >> 16));
}

// The same in bf16, each times a power of two.
__device__ __forceinline__ void store_codes(u32 to, u32 low, u32 high, u32 factors) {
    const u32 a = bf16_of_e4m3(__byte_perm(low, 0, 0x1404)), b = bf16_of_e4m3(__byte_perm(low, 0, 0x3424));
    const u32 c = bf16_of_e4m3(__byte_perm(high, 0, 0x1404)), d = bf16_of_e4m3(__byte_perm(high, 0, 0x3424));
    store_shared(to, multiply2(a, factors), multiply2(b, factors), multiply2(c, factors), multiply2(d, factors));
}

// Where the key of this lane begins in the cache, in units of 16 bytes: lane l has key l % 16 of its warp's 16 of the tile.
// A key behind the last one is the last one again: its probability is 0.
__device__ __forceinline__ u32 place_of(const MlaDecodeParams& params, const Item& tile, int warp, int lane) {
    const int key = tile.first_key + min(16 * warp + lane % 16, tile.num_keys - 1);
    const u32 slot = cached_slot(params.block_tables + tile.table, key, params.block_size);
    return slot * (static_cast<u32>(params.row_bytes) / 16);
}

// Rows of FP8, the rope key in bf16 or in codes too. A warp has 16 keys of a tile; those of the next tile are on their way while
// they are converted.
template <bool CODES>
struct RowsFp8 {
    static constexpr Element ELEMENT = Element::F16;
    static constexpr int LOAD_REGISTERS = 112, SCORE_REGISTERS = 80;
    static constexpr int FILLED = WARPGROUP_WARPS;  // arrivals, of warps
    static constexpr int WARP_KEYS = KEYS / WARPGROUP_WARPS;
    static constexpr int ROPE_CHUNKS = CODES ? ROPE / 16 : ROPE / 8;  // 16 bytes each of a row
    static constexpr int ROPE_LOADS = WARP_KEYS * ROPE_CHUNKS / 32;

    static __device__ __forceinline__ void load(const MlaDecodeParams& params, Shared& shared, Item item, u32 end) {
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        const uint4* cache = reinterpret_cast<const uint4*>(params.cache);
        // This lane has 16 columns, two chunks of a panel; half of the lanes store the second one first, so that stores of
        // eight lanes go to all banks.
        const int panel = lane / 4, chunk = lane % 4 * 2;
        const bool swapped = panel % 2;
        uint4 codes[WARP_KEYS];
        u32 scales;
        const auto load_tile = [&](u32 place) {
#pragma unroll
            for (int key = 0; key < WARP_KEYS; ++key) {
                codes[key] = __ldg(&cache[__shfl_sync(0xffffffffu, place, key) + lane]);
            }
#pragma unroll
            for (int i = 0; i < ROPE_LOADS; ++i) {
                const u32 row = __shfl_sync(0xffffffffu, place, i * (32 / ROPE_CHUNKS) + lane / ROPE_CHUNKS);
                copy16(&shared.rope[i][threadIdx.x % WARPGROUP], &cache[row + LATENT / 16 + lane % ROPE_CHUNKS]);
            }
            commit_copies();
            const u8* at = reinterpret_cast<const u8*>(cache + place) + LATENT + (CODES ? ROPE : 2 * ROPE);
            scales = CODES ? *reinterpret_cast<const u16*>(at) : *at;
        };
        Walk walk = {item, end};
        if (!walk.begin(params)) {
            return;
        }
        u32 place = place_of(params, walk.left, warp, lane);
        load_tile(place);
        for (Turn turn;; ++turn.count) {
            // Places of the first of this warp's keys; `panel_byte` of the others is made of them, so that no register holds it.
            const u32 tile_address = shared_address(shared.keys[turn.buffer()]) + WARP_KEYS * warp * PANEL_PITCH;
            const u32 to = tile_address + panel * PANEL_BYTES + 16 * (chunk + swapped);
            wait_for_cluster(shared_address(&shared.emptied[turn.buffer()]), turn.parity() ^ 1);
#pragma unroll
            for (int key = 0; key < WARP_KEYS; ++key) {
                const uint4 word = codes[key];
                const u32 at = (to ^ (key % 8 * 16)) + key * PANEL_PITCH;
                store_codes(at, swapped ? word.z : word.x, swapped ? word.w : word.y);
                // The other of two neighbours.
                store_codes(at ^ 16, swapped ? word.x : word.z, swapped ? word.y : word.w);
            }
            // Here, where registers are free.
            const bool more = walk.go_on(params);
            if (more) {
                place = place_of(params, walk.left, warp, lane);
            }
            // What makes rope keys those of codes without a scale, since the latent's multiplies the score: 2^-n has the exponent
            // 254 - n. A part that is not finite stays so, and codes of 2^127 times the latent's become infinite.
            const u32 latent = scales & 0xffu, other = scales >> 8;
            const int exponent = CODES ? max(static_cast<int>(other - latent) + 127, 0) : 254 - static_cast<int>(latent);
            const u32 factor = (CODES && other == NOT_FINITE ? 0x7fc0u : min(exponent, 255) << 7) * 0x00010001u;
            wait_copies<0>();
#pragma unroll
            for (int i = 0; i < ROPE_LOADS; ++i) {
                const int key = i * (32 / ROPE_CHUNKS) + lane / ROPE_CHUNKS, part = lane % ROPE_CHUNKS;
                const u32 row = tile_address + ROPE_PANEL * PANEL_BYTES, factors = __shfl_sync(0xffffffffu, factor, key);
                const uint4 word = shared.rope[i][threadIdx.x % WARPGROUP];
                if constexpr (CODES) {
                    const u32 at = row + panel_byte(key, 2 * part);
                    store_codes(at, word.x, word.y, factors);
                    store_codes(at ^ 16, word.z, word.w, factors);
                } else {
                    store_shared(row + panel_byte(key, part), multiply2(word.x, factors), multiply2(word.y, factors),
                                 multiply2(word.z, factors), multiply2(word.w, factors));
                }
            }
            if (lane < WARP_KEYS) {
                float* pair = &shared.scales[turn.buffer()][(WARP_KEYS * warp + lane) / 2].x;
                const bool finite = latent != NOT_FINITE;
                pair[lane % 2] = __uint_as_float(finite ? latent << 23 : 0x7fc00000u);
                pair[2 + lane % 2] = finite ? static_cast<float>(static_cast<int>(latent) - 127) : __uint_as_float(0x7fc00000u);
            }
            arrive(&shared.filled[turn.buffer()]);
            if (!more) {
                return;
            }
            load_tile(place);
        }
    }
};

// Rows of bf16, copied as they are.
struct RowsBf16 {
    static constexpr Element ELEMENT = Element::Bf16;
    static constexpr int LOAD_REGISTERS = 96, SCORE_REGISTERS = 96;
    static constexpr int FILLED = WARPGROUP;  // arrivals, of threads
    // Copies of a lane for each of its warp's keys: 72 chunks of a row, of four rows at once nine rounds.
    static __device__ __forceinline__ void load(const MlaDecodeParams& params, Shared& shared, Item item, u32 end) {
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        const uint4* cache = reinterpret_cast<const uint4*>(params.cache);
        Walk walk = {item, end};
        Turn turn;
        for (bool more = walk.begin(params); more; ++turn.count) {
            const u32 place = place_of(params, walk.left, warp, lane);
            more = walk.go_on(params);
            auto& keys = shared.keys[turn.buffer()];
            wait_for_cluster(shared_address(&shared.emptied[turn.buffer()]), turn.parity() ^ 1);
            // Lane l has chunk l % 8 of every panel of the keys l / 8, + 4, + 8 and + 12.
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = 4 * i + lane / 8;
                const uint4* row = cache + __shfl_sync(0xffffffffu, place, key) + lane % 8;
                const int to = panel_byte(16 * warp + key, lane % 8);
#pragma unroll
                for (int panel = 0; panel < PANELS; ++panel) {
                    copy16(keys[panel] + to, row + 8 * panel);
                }
            }
            arrive_with_copies(&shared.filled[turn.buffer()]);
        }
        commit_copies();
        wait_copies<0>();
    }
};

// Queries of 64 heads of a row, or of several rows of fewer. For keys in f16 those of a head are divided by a power of two that brings the largest to 2^14
// and above; the scores are multiplied by it. Rope keys and their queries are bf16 in any case. Those that ranks have given one another
// come in f32. By one warpgroup.
template <Element ELEMENT>
__device__ __forceinline__ void convert_queries(const MlaDecodeParams& params, Shared& shared, const Item& item, int first_head) {
    constexpr int AT_ONCE = 2;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = AT_ONCE * static_cast<int>(threadIdx.x % WARPGROUP / 32); i < HEADS; i += AT_ONCE * WARPGROUP_WARPS) {
        // Two columns of each panel.
        float2 values[AT_ONCE][PANELS];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            // Behind the last head it is read again, and its result is not written.
            const int at = min(i + j, item.rows * params.num_heads - first_head - 1);
            const float* from =
                params.latent_queries + (static_cast<i64>(item.index) * params.num_heads + first_head + at) * WIDTH + 2 * lane;
#pragma unroll
            for (int panel = 0; panel < PANELS; ++panel) {
                values[j][panel] = *reinterpret_cast<const float2*>(from + PANEL * panel);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const int row = i + j;
            if constexpr (ELEMENT == Element::F16) {
                float largest = 0.0f;
#pragma unroll
                for (int panel = 0; panel < PANELS; ++panel) {
                    largest = fmaxf(largest, fmaxf(fabsf(values[j][panel].x), fabsf(values[j][panel].y)));
                }
                const u32 exponent = query_exponent(group_max<32>(largest));
                const float inverse = query_factor(exponent);
#pragma unroll
                for (int panel = 0; panel < PANELS; ++panel) {
                    values[j][panel].x *= inverse;
                    values[j][panel].y *= inverse;
                }
                if (lane == 0) {
                    shared.query_scales[row] = query_power(exponent);
                }
            }
#pragma unroll
            for (int panel = 0; panel < PANELS; ++panel) {
                const float2 pair = values[j][panel];
                const bool half = ELEMENT == Element::F16 && panel != ROPE_PANEL;
                *reinterpret_cast<u32*>(shared.queries[panel] + panel_byte(row, lane / 4) + 4 * (lane % 4)) =
                    half ? f16_pair_of(pair.x, pair.y) : pair_of(pair.x, pair.y);
            }
        }
    }
}

// The queries of the tile of an item, by one warpgroup; `phase` of their barrier.
template <Element ELEMENT>
__device__ __forceinline__ void load_queries(
    const MlaDecodeParams& params, Shared& shared, const Item& item, int first_head, u32& phase) {
    if (!params.queries_are_ready) {
        convert_queries<ELEMENT>(params, shared, item, first_head);
        publish_stores();
        meet<WARPGROUP>(SCORE_GROUP);
        return;
    }
    const int thread = threadIdx.x % WARPGROUP, all = item.rows * params.num_heads, rows = min(all - first_head, HEADS);
    if (thread == 0) {
        const u8* from = query_tile(params, item.index) + first_head * QUERY_PITCH;
        expect_bytes(&shared.asked, rows * QUERY_BYTES);
#pragma unroll 1
        for (int panel = 0; panel < PANELS; ++panel) {
            copy_bytes(shared.queries[panel], from + static_cast<i64>(panel) * all * QUERY_PITCH, rows * QUERY_PITCH, &shared.asked);
        }
    }
    if (ELEMENT == Element::F16 && thread < HEADS) {
        const i64 first = static_cast<i64>(item.index) * params.num_heads + first_head;
        shared.query_scales[thread] = query_powers(params)[first + min(thread, rows - 1)];
    }
    meet<WARPGROUP>(SCORE_GROUP);
    wait(&shared.asked, phase);
    phase ^= 1;
}

// Rows of the tiles of queries that no head has: what is there is in no result, but is a number.
__device__ __forceinline__ void clear_queries(Shared& shared) {
    auto* queries = reinterpret_cast<uint4*>(shared.queries);
    for (int i = threadIdx.x % WARPGROUP; i < static_cast<int>(sizeof(shared.queries) / 16); i += WARPGROUP) {
        queries[i] = make_uint4(0, 0, 0, 0);
    }
    publish_stores();
    meet<WARPGROUP>(SCORE_GROUP);
}

// Of bf16 rows, the values of keys of a tile from `first` on whose score is no number: they are behind the first row of a group, and 0 times
// them would reach it. The rows that have them among their keys have no numbers as probabilities. By the lanes of the first head.
__device__ __forceinline__ void clear_values(Shared& shared, int buffer, const float (&scores)[32], int first) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int key = 8 * n + 2 * (threadIdx.x % 4) + i;
            if (key >= first && !(fabsf(scores[4 * n + i]) < __uint_as_float(0x7f800000u))) {
#pragma unroll 1
                for (int at = 0; at < CHUNKS; ++at) {
                    *reinterpret_cast<uint4*>(shared.keys[buffer][at / 8] + panel_byte(key, at % 8)) = make_uint4(0, 0, 0, 0);
                }
            }
        }
    }
}

// A lane has the heads 16w + g and 16w + g + 8, and of every eight keys 2t and 2t + 1.
template <typename Rows>
__device__ __forceinline__ void score(
    const MlaDecodeParams& params, Shared& shared, Item item, u32 end, int first_head) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr bool SCALED = Rows::ELEMENT == Element::F16;
    const float infinity = __uint_as_float(0x7f800000u);
    const int row = 16 * warp + g;
    float factors[2] = {params.scale * LOG2_E, params.scale * LOG2_E};
    const u64 queries = descriptor(shared_address(shared.queries), 0);
    Turn turn;
    if (params.num_heads % HEADS != 0) {
        clear_queries(shared);
    }
    // The first of the rows whose queries are in shared memory.
    int loaded = -1;
    u32 phase = 0;
    do {
        if (item.num_keys > 0 && item.index != loaded) {
            // All warps have waited for the products of the item before.
            loaded = item.index;
            load_queries<Rows::ELEMENT>(params, shared, item, first_head, phase);
        }
        if (SCALED && item.num_keys > 0) {
            factors[0] = params.scale * LOG2_E * shared.query_scales[row];
            factors[1] = params.scale * LOG2_E * shared.query_scales[row + 8];
        }
        // Keys of the split that the rows of both heads have.
        int own_keys[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            own_keys[r] = item.num_keys;
            if (item.rows > 1) {
                const int of_group = min(head_of(params, item.rows, first_head, row + 8 * r).row, item.rows - 1);
                own_keys[r] = min(item.row_keys - (item.rows - 1 - of_group) - item.first_key, item.num_keys);
            }
        }
        // In base 2; the sum is this lane's part.
        float largest[2] = {-infinity, -infinity}, total[2] = {};
        for (int tile = 0; tile < item.tiles(); ++tile, ++turn.count) {
            const int buffer = turn.buffer();
            const u64 keys = descriptor(shared_address(shared.keys[buffer]), 0);
            wait(&shared.filled[buffer], turn.parity());
            // Here and not where the keys were stored: it would wait there for the keys that are on their way.
            publish_stores();
            float scores[32];
            begin_products();
#pragma unroll
            for (int panel = 0; panel < ROPE_PANEL; ++panel) {
#pragma unroll
                for (int step = 0; step < PANEL_STEPS; ++step) {
                    const u32 at = (panel * PANEL_BYTES + step * PANEL_STEP_COLUMNS) >> 4;
                    wgmma_64<Rows::ELEMENT>(scores, queries + at, keys + at, panel + step > 0);
                }
            }
#pragma unroll
            for (int step = 0; step < PANEL_STEPS; ++step) {
                const u32 at = (ROPE_PANEL * PANEL_BYTES + step * PANEL_STEP_COLUMNS) >> 4;
                wgmma_64<Element::Bf16>(scores, queries + at, keys + at, true);
            }
            finish_products();
            // The rope keys were read by all warps: probabilities take their place.
            meet<WARPGROUP>(SCORE_GROUP);

            if constexpr (!SCALED) {
                if (item.rows > 1 && row == 0 && own_keys[0] < (tile + 1) * KEYS) {
                    clear_values(shared, buffer, scores, own_keys[0] - tile * KEYS);
                }
            }
            float peaks[2] = {-infinity, -infinity};
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                float4 scales;
                if constexpr (SCALED) {
                    scales = shared.scales[buffer][4 * n + t];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float weighed = scores[4 * n + i] * factors[i / 2];
                    if constexpr (SCALED) {
                        weighed = __fmaf_rn(weighed, i % 2 ? scales.y : scales.x, i % 2 ? scales.w : scales.z);
                    }
                    scores[4 * n + i] = tile * KEYS + 8 * n + 2 * t + i % 2 < own_keys[i / 2] ? weighed : -infinity;
                    peaks[i / 2] = fmaxf(peaks[i / 2], scores[4 * n + i]);
                }
            }
            float shrink[2], added[2] = {};
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float before = largest[r];
                largest[r] = fmaxf(before, group_max<4>(peaks[r]));
                shrink[r] = exp2_of(before - largest[r]);
                if (t == 0) {
                    shared.shrink[buffer][row + 8 * r] = shrink[r];
                }
            }
            u8* weights = shared.keys[buffer][ROPE_PANEL];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                float2 inverse = make_float2(1.0f, 1.0f);
                if constexpr (SCALED) {
                    const float4 scales = shared.scales[buffer][4 * n + t];
                    inverse = make_float2(inverse_of_power(scales.x), inverse_of_power(scales.y));
                }
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float a = exp2_of(scores[4 * n + 2 * r] - largest[r]), b = exp2_of(scores[4 * n + 2 * r + 1] - largest[r]);
                    added[r] += SCALED ? __fmaf_rn(a, inverse.x, b * inverse.y) : a + b;
                    *reinterpret_cast<u32*>(weights + panel_byte(row + 8 * r, n) + 4 * t) = SCALED ? f16_pair_of(a, b) : pair_of(a, b);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                total[r] = __fmaf_rn(total[r], shrink[r], added[r]);
            }
            if (tile + 1 == item.tiles()) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float sum = group_sum<4>(total[r]);
                    if (t == 0) {
                        shared.of_split[buffer][row + 8 * r] = make_float2(largest[r], sum);
                    }
                }
            }
            publish_stores();
            arrive(&shared.weighed[buffer]);
        }
    } while (go_on(params, item, end));
}

// 2^-exponent, of an exponent from -64 to 114, times which the largest of a head's sums is from 2^14 to below 2^15, or less.
__device__ __forceinline__ int exponent_of(float largest) {
    return max(static_cast<int>(__float_as_uint(largest) >> 23) - 127 - 14, -64);
}

// Leaves the sums of this warpgroup's half of the columns where the keys of the last tile were, in f16 at the places of `panel_byte`, and the
// statistics of the split as they are with them.
template <Element ELEMENT>
__device__ __forceinline__ void give_sums(Shared& shared, int buffer, const float (&sums)[2][HALF / 4], int half) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32, t = lane % 4;
    const int row = 16 * warp + lane / 4;
    if constexpr (ELEMENT == Element::Bf16) {
        float peaks[2] = {};
#pragma unroll
        for (int i = 0; i < HALF / 4; ++i) {
            peaks[i / 2 % 2] = fmaxf(peaks[i / 2 % 2], fmaxf(fabsf(sums[0][i]), fabsf(sums[1][i])));
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            peaks[r] = group_max<4>(peaks[r]);
            if (t == 0) {
                shared.peaks[half][row + 8 * r] = peaks[r];
            }
        }
    }
    // All warps have waited for their products, which read the keys.
    meet<2 * WARPGROUP>(VALUE_GROUPS);
    const u32 to = shared_address(shared.keys[buffer][half * (HALF / PANEL)]) + panel_byte(row, 0) + 4 * t;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int exponent = ELEMENT == Element::F16
                                 ? CODES_EXPONENT
                                 : exponent_of(fmaxf(shared.peaks[0][row + 8 * r], shared.peaks[1][row + 8 * r]));
        const float factor = __uint_as_float((127 - exponent) << 23);
        if (half == 0 && t == 0) {
            float2& of_split = shared.of_split[buffer][row + 8 * r];
            of_split.x += static_cast<float>(exponent);
            of_split.y *= factor;
        }
        // Chunk n % 8 of a panel, as `panel_byte` has it.
#pragma unroll
        for (int n = 0; n < HALF / 8; ++n) {
            const float* pair = &sums[n / 16][n % 16 * 4 + 2 * r];
            store_shared((to ^ n % 8 * 16) + n / 8 * PANEL_BYTES + r * PANEL_EIGHT, f16_pair_of(pair[0] * factor, pair[1] * factor));
        }
    }
}

// Merges the splits of an item, in their order, of this block's share of the heads; `buffers` has a bit for each block, the tile in
// whose place its sums are. By both warpgroups that add values.
__device__ __forceinline__ void merge(const MlaDecodeParams& params, Shared& shared, const Item& item, u32 buffers, int first_head) {
    constexpr int THREADS_OF_MERGE = 2 * WARPGROUP, HEADS_AT_ONCE = THREADS_OF_MERGE / CHUNKS;
    const int thread = threadIdx.x % THREADS_OF_MERGE, chunk = thread % CHUNKS;
#pragma unroll 1
    for (int i = 0; i < MERGED_HEADS; i += HEADS_AT_ONCE) {
        const int row = rank_of_block() * MERGED_HEADS + i + thread / CHUNKS;
        const HeadOfRow own = head_of(params, item.rows, first_head, row);
        // Rows before the last one may have ended before the item.
        const int split = keys_of_split(item.row_keys), left = item.row_keys - (item.rows - 1 - own.row) - item.begin();
        const int splits = min((left + split - 1) / split, BLOCKS);
        if (own.row >= item.rows || left <= 0) {
            continue;
        }
        // All are set, so that none waits in registers for the next item.
        float2 statistics[BLOCKS] = {};
        uint4 parts[BLOCKS] = {};
        float largest = -__uint_as_float(0x7f800000u);
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            if (r < splits) {
                const int buffer = buffers >> r & 1;
                statistics[r] = float2_in_cluster(address_in_block(shared_address(&shared.of_split[buffer][row]), r));
                const u8* at = shared.keys[buffer][chunk / 8] + panel_byte(row, chunk % 8);
                parts[r] = uint4_in_cluster(address_in_block(shared_address(at), r));
                largest = fmaxf(largest, statistics[r].x);
            }
        }
        float total = 0.0f, sums[8] = {};
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            if (r < splits) {
                const float weight = exp2_of(statistics[r].x - largest) * (1.0f / BLOCKS);
                total = __fmaf_rn(weight, statistics[r].y, total);
#pragma unroll
                for (int pair = 0; pair < 4; ++pair) {
                    const float2 values = floats_of_f16(word_of(parts[r], pair));
                    sums[2 * pair] = __fmaf_rn(weight, values.x, sums[2 * pair]);
                    sums[2 * pair + 1] = __fmaf_rn(weight, values.y, sums[2 * pair + 1]);
                }
            }
        }
        const i64 place = static_cast<i64>(item.place + own.row) * params.num_heads + own.head;
        *reinterpret_cast<uint4*>(static_cast<f16*>(params.latents) + place * LATENT + 8 * chunk) = make_uint4(
            f16_pair_of(sums[0], sums[1]), f16_pair_of(sums[2], sums[3]), f16_pair_of(sums[4], sums[5]), f16_pair_of(sums[6], sums[7]));
        if (chunk == 0) {
            // In base e, as the merge of items reads it.
            reinterpret_cast<float2*>(params.statistics)[place] = make_float2((largest + MERGED_EXPONENT) / LOG2_E, total);
        }
    }
}

// Sums of 256 columns, not yet divided by the sum of probabilities, and the merge of an item's splits.
template <Element ELEMENT>
__device__ __forceinline__ void add_values(
    const MlaDecodeParams& params, Shared& shared, Item item, u32 end, int first_head, int half) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
    const int row = 16 * warp + lane / 4;
    Turn turn;
    // Bit r: where block r has the first tile of its next split.
    u32 buffers = 0;
    u32 phase = 0;
    do {
        const int tiles = item.tiles();
        float sums[2][HALF / 4] = {};
        for (int tile = 0; tile < tiles; ++tile, ++turn.count) {
            const int buffer = turn.buffer();
            const u64 weights = descriptor(shared_address(shared.keys[buffer][ROPE_PANEL]), 0);
            const u64 values = descriptor(shared_address(shared.keys[buffer][half * (HALF / PANEL)]), PANEL_BYTES);
            wait(&shared.weighed[buffer], turn.parity());
            publish_stores();
            const float upper = shared.shrink[buffer][row], lower = shared.shrink[buffer][row + 8];
            // Most tiles have no larger score than those before; 1 changes no bits.
            if (__any_sync(0xffffffffu, upper != 1.0f || lower != 1.0f)) {
#pragma unroll
                for (int i = 0; i < HALF / 4; ++i) {
                    sums[0][i] *= i / 2 % 2 ? lower : upper;
                    sums[1][i] *= i / 2 % 2 ? lower : upper;
                }
            }
            begin_products();
#pragma unroll
            for (int step = 0; step < PANEL_STEPS; ++step) {
                const u64 a = weights + (step * PANEL_STEP_COLUMNS >> 4), b = values + (step * PANEL_STEP_ROWS >> 4);
                wgmma_128<ELEMENT>(sums[0], a, b);
                wgmma_128<ELEMENT>(sums[1], a, b + (2 * PANEL_BYTES >> 4));
            }
            finish_products();
            if (tile + 1 < tiles) {
                // For all blocks, which arrive behind the last tile of a split.
                arrive<BLOCKS>(&shared.emptied[buffer]);
            } else {
                give_sums<ELEMENT>(shared, buffer, sums, half);
            }
        }
        __syncwarp();
        if (lane < BLOCKS) {
            arrive_in_cluster(address_in_block(shared_address(&shared.given), lane));
        }
        const int split = keys_of_split(item.row_keys), left = item.row_keys - item.begin();
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            buffers ^= (min(max(left - r * split, 0), split) + KEYS - 1) / KEYS % 2 << r;
        }
        const int splits = min((left + split - 1) / split, BLOCKS);
        wait_for_cluster(shared_address(&shared.given), phase);
        phase ^= 1;
        merge(params, shared, item, ~buffers, first_head);
        __syncwarp();
        if (lane < splits) {
            arrive_in_cluster(address_in_block(shared_address(&shared.emptied[~buffers >> lane & 1]), lane));
        }
    } while (go_on(params, item, end));
}

template <typename Rows>
__device__ __forceinline__ void decode(const MlaDecodeParams& params) {
    static_assert(Rows::LOAD_REGISTERS + Rows::SCORE_REGISTERS + 2 * VALUE_REGISTERS == 512);
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const u32 cluster = blockIdx.x / BLOCKS, end = share_of(params, cluster + 1);
    const int role = threadIdx.x / WARPGROUP, first_head = blockIdx.y * HEADS;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int buffer = 0; buffer < 2; ++buffer) {
            create_barrier(&shared.filled[buffer], Rows::FILLED);
            create_barrier(&shared.weighed[buffer], WARPGROUP_WARPS);
            create_barrier(&shared.emptied[buffer], BLOCKS * 2 * WARPGROUP_WARPS);
        }
        create_barrier(&shared.asked, 1);
        create_barrier(&shared.given, BLOCKS * 2 * WARPGROUP_WARPS);
    }
    meet_cluster();
    if (threadIdx.x == THREADS - 1) {
        fetch_ahead(params.ahead, blockIdx.y * gridDim.x + blockIdx.x, gridDim.x * gridDim.y);
    }
    const Item item = item_from(params, share_of(params, cluster), end);
    if (item.place >= end) {
        return;
    }
    if (role == 0) {
        leave_registers<Rows::LOAD_REGISTERS>();
        Rows::load(params, shared, item, end);
    } else if (role == 1) {
        leave_registers<Rows::SCORE_REGISTERS>();
        score<Rows>(params, shared, item, end, first_head);
    } else {
        take_registers<VALUE_REGISTERS>();
        add_values<Rows::ELEMENT>(params, shared, item, end, first_head, role - 2);
    }
    // A block stays until the others have read its sums.
    __syncwarp();
    meet_cluster();
}

#define KERNEL(name, Rows)                                                                                       \
    extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)                      \
        name(const __grid_constant__ MlaDecodeParams params) {                                                   \
        begin_kernel();                                                                                          \
        decode<Rows>(params);                                                                                    \
    }

KERNEL(wgmma_mla_decode_bf16, RowsBf16)
KERNEL(wgmma_mla_decode_fp8, RowsFp8<false>)
KERNEL(wgmma_mla_decode_fp8_rope, RowsFp8<true>)
