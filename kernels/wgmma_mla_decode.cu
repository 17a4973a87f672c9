// wgmma_mla_decode: the items of mla_decode.cu on the tensor cores of Hopper: queries, keys and probabilities in bf16, sums
// in f32. For latents of 512 values and rope keys of 64.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; splits as in Dao et al., "Flash-Decoding", 2023; roles of warps as in
//          Shah et al., "FlashAttention-3", arXiv 2407.08608.
// Twin:    src/cuda/kernels/wgmma_mla_decode.rs. Spec: ops/reference.rs `attend_absorbed`; mla_absorb and mla_combine, before
//          and after it, are in mla_decode.cu.
// Legend:  A rows of a pass, I items, H heads, L keys of a row, C = 512, R = 64, B bytes of a row.
// Shapes:  latent_queries [A, H, C+R] f32; cache [slots, B] bf16 or FP8; statistics [I, H, 2], latents [I, H, C] f32.
// Traffic: A*L*B bytes of cache for each 64 heads; 4*I*H*(C+2) bytes of results.
// Work:    2*A*H*L*(2C+R) FLOP.
// Floor:   A=64 L=32768 H=64, FP8 (656 bytes): 1376 MB -> 320 us at 4.3 TB/s (H200), 475 us at 2.9 TB/s (H100); 292 GFLOP ->
//          370 us at 790 TFLOP/s; results of items 540 MB, written and read.
// Grid:    (blocks, groups of 64 heads), 4 warpgroups; a block has consecutive items, so that it loads the queries of a row
//          once. Shared memory: 218 KB, queries and two tiles of keys; one block on a multiprocessor.
// Order:   scores: columns in steps of 16, one chain; softmax: tiles of 64 keys at absolute positions, a lane's sum of
//          exponentials over tiles, then a butterfly; values: tiles in their order. A row's result depends on its query, its
//          position and its keys alone.
// Tried:   H100: A=64 L=32768 1,351 us of FP8 and 1,354 of bf16 with absorb and combine, by mma.sync 2,578 and 2,824. One item
//          takes 35 us alone, of which queries 7; one after another 34, of which without loads 22: keys bring 4.2 us a tile,
//          bf16 at the memory's speed, codes by the instructions of one warp for each scheduler. Leaving out scores, softmax
//          or values changes 1 us of it. Arrivals of single threads instead of warps: no difference. The fence between the
//          proxies is needed: without it sums differ.
//
// A tile has 64 keys and goes through three roles, each a tile behind the one before: the first warpgroup brings keys from
// the cache into shared memory, codes as bf16; the second multiplies them with the queries of 64 heads and leaves
// probabilities where the rope keys were, which are read once; the last two have 256 columns each of the sums of values.
// An E8M0 scale is a power of two: it multiplies scores and probabilities, so that codes become bf16 exactly and without it.

#include "cached_row.cuh"
#include "mla.cuh"
#include "mla_pass.cuh"
#include "mma.cuh"
#include "wgmma.cuh"

constexpr int THREADS = 4 * WARPGROUP;
constexpr int HEADS = 64;
constexpr int KEYS = 64;
constexpr int LATENT = 512;
constexpr int ROPE = 64;
constexpr int WIDTH = LATENT + ROPE;
// Panels of 64 columns of 64 queries or keys; the last one is the rope key, and then the probabilities.
constexpr int PANELS = WIDTH / PANEL;
constexpr int ROPE_PANEL = LATENT / PANEL;
// Registers of a thread that adds values; with those of the two other roles, `Rows`, 512 in a lane of four warpgroups.
constexpr int VALUE_REGISTERS = 160;
// Numbers of named barriers.
constexpr int SCORE_GROUP = 1;

struct Shared {
    u8 queries[PANELS][PANEL_BYTES];
    u8 keys[2][PANELS][PANEL_BYTES];
    float scales[2][2][KEYS];  // of latents and of rope keys in codes
    float shrink[2][HEADS];
    u64 filled[2];   // keys and scales are there: scores
    u64 weighed[2];  // probabilities and factors are there: values
    u64 emptied[2];  // all were read: loads
};

// Which of two tiles, and in which round.
struct Turn {
    u32 count = 0;
    __device__ __forceinline__ int buffer() const { return count & 1; }
    __device__ __forceinline__ u32 parity() const { return count >> 1 & 1; }
};

// A run of keys of one row.
struct Item {
    RowEntry entry;
    int index;  // of its row in the pass
    int first_key;
    int num_keys;
    __device__ __forceinline__ int tiles() const { return (num_keys + KEYS - 1) / KEYS; }
};

__device__ __forceinline__ Item item_of(const MlaDecodeParams& params, u32 number) {
    Item item;
    item.index = row_of_item(params.pass, number);
    item.entry = rows_of(params.pass)[item.index];
    const int split = split_of(item.entry.num_keys);
    item.first_key = (number - item.entry.first_item) * split;
    item.num_keys = min(static_cast<int>(item.entry.num_keys) - item.first_key, split);
    return item;
}

// The items of this block: an equal share, one after another.
__device__ __forceinline__ u32 share_of(const MlaDecodeParams& params, u32 block) {
    return static_cast<u32>(static_cast<u64>(params.pass->num_items) * block / gridDim.x);
}

// An E8M0 scale.
__device__ __forceinline__ float scale_of(u32 scale) {
    return __uint_as_float(scale == NOT_FINITE ? 0x7fc00000u : scale << 23);
}

// Eight codes in order to eight bf16, 16 bytes at an address of shared memory.
__device__ __forceinline__ void store_codes(u32 to, u32 low, u32 high) {
    const u32 a = bf16_of_e4m3(__byte_perm(low, 0, 0x1404)), b = bf16_of_e4m3(__byte_perm(low, 0, 0x3424));
    const u32 c = bf16_of_e4m3(__byte_perm(high, 0, 0x1404)), d = bf16_of_e4m3(__byte_perm(high, 0, 0x3424));
    store_shared(to, a, b, c, d);
}

// Where the key of this lane begins in the cache, in units of 16 bytes: lane l has key l % 16 of its warp's 16 of the tile.
// A key behind the last one is the last one again: its probability is 0.
__device__ __forceinline__ u32 place_of(const MlaDecodeParams& params, const Item& item, int tile, int warp, int lane) {
    const int key = item.first_key + min(tile * KEYS + 16 * warp + lane % 16, item.num_keys - 1);
    const u32 slot = cached_slot(params.block_tables + item.entry.table, key, params.block_size);
    return slot * (static_cast<u32>(params.row_bytes) / 16);
}

// Rows of FP8, the rope key in bf16 or in codes too. A warp has 16 keys of a tile; some are on their way while
// others are converted.
template <bool CODES>
struct RowsFp8 {
    static constexpr bool SCALED = true, ROPE_CODES = CODES;
    static constexpr int LOAD_REGISTERS = CODES ? 88 : 112, SCORE_REGISTERS = CODES ? 104 : 80;
    static constexpr int AHEAD = CODES ? 4 : 8;
    static constexpr int ROPE_CHUNKS = CODES ? ROPE / 16 : ROPE / 8;  // 16 bytes each of a row
    static constexpr int ROPE_LOADS = 16 * ROPE_CHUNKS / 32;

    static __device__ __forceinline__ void load(const MlaDecodeParams& params, Shared& shared, u32 first, u32 last) {
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        const uint4* cache = reinterpret_cast<const uint4*>(params.cache);
        // This lane has 16 columns, two chunks of a panel; half of the lanes store the second one first, so that stores of
        // eight lanes go to all banks.
        const int panel = lane / 4, chunk = lane % 4 * 2;
        const bool swapped = panel % 2;
        Turn turn;
        for (u32 number = first; number < last; ++number) {
            const Item item = item_of(params, number);
            u32 place = place_of(params, item, 0, warp, lane);
            uint4 codes[AHEAD], rope[ROPE_LOADS];
            u32 scales;
            const auto load_key = [&](int into, u32 place, int key) {
                codes[into] = __ldg(cache + __shfl_sync(0xffffffffu, place, key) + lane);
            };
            const auto load_rest = [&](u32 place) {
#pragma unroll
                for (int i = 0; i < ROPE_LOADS; ++i) {
                    const u32 row = __shfl_sync(0xffffffffu, place, i * (32 / ROPE_CHUNKS) + lane / ROPE_CHUNKS);
                    rope[i] = __ldg(cache + row + LATENT / 16 + lane % ROPE_CHUNKS);
                }
                const u8* at = reinterpret_cast<const u8*>(cache + place) + LATENT + (CODES ? ROPE : 2 * ROPE);
                scales = CODES ? *reinterpret_cast<const u16*>(at) : *at;
            };
#pragma unroll
            for (int key = 0; key < AHEAD; ++key) {
                load_key(key, place, key);
            }
            load_rest(place);
            for (int tile = 0; tile < item.tiles(); ++tile, ++turn.count) {
                const u32 next = tile + 1 < item.tiles() ? place_of(params, item, tile + 1, warp, lane) : place;
                // Places of the first of this warp's keys; `panel_byte` of the others is made of them, so that no register holds it.
                const u32 tile_address = shared_address(shared.keys[turn.buffer()]) + 16 * warp * PANEL_PITCH;
                const u32 to = tile_address + panel * PANEL_BYTES + 16 * chunk;
                wait(&shared.emptied[turn.buffer()], turn.parity() ^ 1);
#pragma unroll
                for (int key = 0; key < 16; ++key) {
                    const uint4 word = codes[key % AHEAD];
                    const u32 at = ((to + 16 * swapped) ^ (key % 8 * 16)) + key * PANEL_PITCH;
                    store_codes(at, swapped ? word.z : word.x, swapped ? word.w : word.y);
                    // The other of two neighbours.
                    store_codes(at ^ 16, swapped ? word.x : word.z, swapped ? word.y : word.w);
                    load_key(key % AHEAD, key + AHEAD < 16 ? place : next, (key + AHEAD) % 16);
                }
#pragma unroll
                for (int i = 0; i < ROPE_LOADS; ++i) {
                    const int key = i * (32 / ROPE_CHUNKS) + lane / ROPE_CHUNKS, part = lane % ROPE_CHUNKS;
                    const u32 row = tile_address + ROPE_PANEL * PANEL_BYTES;
                    uint4 word = rope[i];
                    if constexpr (CODES) {
                        const u32 at = row + panel_byte(key, 2 * part);
                        store_codes(at, word.x, word.y);
                        store_codes(at ^ 16, word.z, word.w);
                    } else {
                        // Divided by the latent's scale, which multiplies the score: 2^-n has the exponent 254 - n.
                        const u32 inverse = (254 - __shfl_sync(0xffffffffu, scales, key)) * 0x00800080u;
                        store_shared(row + panel_byte(key, part), multiply2(word.x, inverse), multiply2(word.y, inverse),
                                     multiply2(word.z, inverse), multiply2(word.w, inverse));
                    }
                }
                if (lane < 16) {
                    shared.scales[turn.buffer()][0][16 * warp + lane] = scale_of(scales & 0xffu);
                    if constexpr (CODES) {
                        shared.scales[turn.buffer()][1][16 * warp + lane] = scale_of(scales >> 8);
                    }
                }
                place = next;
                load_rest(place);
                arrive(&shared.filled[turn.buffer()]);
            }
        }
    }
};

// Rows of bf16, copied as they are.
struct RowsBf16 {
    static constexpr bool SCALED = false, ROPE_CODES = false;
    static constexpr int LOAD_REGISTERS = 96, SCORE_REGISTERS = 96;
    // Copies of a lane for each of its warp's keys: 72 chunks of a row, of four rows at once nine rounds.
    static __device__ __forceinline__ void load(const MlaDecodeParams& params, Shared& shared, u32 first, u32 last) {
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        const uint4* cache = reinterpret_cast<const uint4*>(params.cache);
        Turn turn;
        for (u32 number = first; number < last; ++number) {
            const Item item = item_of(params, number);
            for (int tile = 0; tile < item.tiles(); ++tile, ++turn.count) {
                const u32 place = place_of(params, item, tile, warp, lane);
                auto& keys = shared.keys[turn.buffer()];
                wait(&shared.emptied[turn.buffer()], turn.parity() ^ 1);
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
                commit_copies();
                wait_copies<0>();
                arrive(&shared.filled[turn.buffer()]);
            }
        }
    }
};

// Queries of 64 heads of a row in bf16; a head beyond the last one is zeros.
__device__ __forceinline__ void load_queries(const MlaDecodeParams& params, Shared& shared, int index, int first_head) {
    constexpr int CHUNKS = WIDTH / 8;
#pragma unroll 4
    for (int i = threadIdx.x % WARPGROUP; i < HEADS * CHUNKS; i += WARPGROUP) {
        const int head = i / CHUNKS, chunk = i % CHUNKS;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (first_head + head < params.num_heads) {
            const float* from =
                params.latent_queries + (static_cast<i64>(index) * params.num_heads + first_head + head) * WIDTH + 8 * chunk;
            const float4 low = four_of(from), high = four_of(from + 4);
            words = make_uint4(pair_of(low.x, low.y), pair_of(low.z, low.w), pair_of(high.x, high.y), pair_of(high.z, high.w));
        }
        *reinterpret_cast<uint4*>(shared.queries[chunk / 8] + panel_byte(head, chunk % 8)) = words;
    }
}

// A lane has the heads 16w + g and 16w + g + 8, and of every eight keys 2t and 2t + 1.
template <typename Rows>
__device__ __forceinline__ void score(const MlaDecodeParams& params, Shared& shared, u32 first, u32 last, int first_head) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float infinity = __uint_as_float(0x7f800000u), factor = params.scale * LOG2_E;
    const int row = 16 * warp + g;
    const u64 queries = descriptor(shared_address(shared.queries), 0);
    int loaded = -1;
    Turn turn;
    for (u32 number = first; number < last; ++number) {
        const Item item = item_of(params, number);
        if (item.index != loaded) {
            // All warps have waited for the products of the item before.
            loaded = item.index;
            load_queries(params, shared, loaded, first_head);
            publish_stores();
            meet(SCORE_GROUP);
        }
        // In base 2; the sum is this lane's part.
        float largest[2] = {-infinity, -infinity}, total[2] = {};
        for (int tile = 0; tile < item.tiles(); ++tile, ++turn.count) {
            const int buffer = turn.buffer();
            const u64 keys = descriptor(shared_address(shared.keys[buffer]), 0);
            wait(&shared.filled[buffer], turn.parity());
            // Here and not where the keys were stored: it would wait there for the keys that are on their way.
            publish_stores();
            float scores[32], rope_scores[Rows::ROPE_CODES ? 32 : 1];
            begin_products();
#pragma unroll
            for (int panel = 0; panel < ROPE_PANEL; ++panel) {
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    const u32 at = (panel * PANEL_BYTES + step * STEP_COLUMNS) >> 4;
                    wgmma_64(scores, queries + at, keys + at, panel + step > 0);
                }
            }
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const u32 at = (ROPE_PANEL * PANEL_BYTES + step * STEP_COLUMNS) >> 4;
                if constexpr (Rows::ROPE_CODES) {
                    wgmma_64(rope_scores, queries + at, keys + at, step > 0);
                } else {
                    wgmma_64(scores, queries + at, keys + at, true);
                }
            }
            finish_products();
            // The rope keys were read by all warps: probabilities take their place.
            meet(SCORE_GROUP);

            float peaks[2] = {-infinity, -infinity};
            const int left = item.num_keys - tile * KEYS;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                float2 scales = make_float2(1.0f, 1.0f), rope_scales;
                if constexpr (Rows::SCALED) {
                    scales = *reinterpret_cast<const float2*>(&shared.scales[buffer][0][8 * n + 2 * t]);
                }
                if constexpr (Rows::ROPE_CODES) {
                    rope_scales = *reinterpret_cast<const float2*>(&shared.scales[buffer][1][8 * n + 2 * t]);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float sum = scores[4 * n + i] * (i % 2 ? scales.y : scales.x);
                    if constexpr (Rows::ROPE_CODES) {
                        sum = __fmaf_rn(rope_scores[4 * n + i], i % 2 ? rope_scales.y : rope_scales.x, sum);
                    }
                    scores[4 * n + i] = 8 * n + 2 * t + i % 2 < left ? sum * factor : -infinity;
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
                float2 scales = make_float2(1.0f, 1.0f);
                if constexpr (Rows::SCALED) {
                    scales = *reinterpret_cast<const float2*>(&shared.scales[buffer][0][8 * n + 2 * t]);
                }
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float a = exp2_of(scores[4 * n + 2 * r] - largest[r]), b = exp2_of(scores[4 * n + 2 * r + 1] - largest[r]);
                    added[r] += a + b;
                    *reinterpret_cast<u32*>(weights + panel_byte(row + 8 * r, n) + 4 * t) = pair_of(a * scales.x, b * scales.y);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                total[r] = __fmaf_rn(total[r], shrink[r], added[r]);
            }
            publish_stores();
            arrive(&shared.weighed[buffer]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float sum = group_sum<4>(total[r]);
            const int head = first_head + row + 8 * r;
            if (t == 0 && head < params.num_heads) {
                // In base e, as the merge reads it.
                float* to = params.statistics + 2 * (static_cast<i64>(number) * params.num_heads + head);
                to[0] = largest[r] / LOG2_E;
                to[1] = sum;
            }
        }
    }
}

// Sums of 256 columns, not yet divided by the sum of probabilities.
__device__ __forceinline__ void add_values(
    const MlaDecodeParams& params, Shared& shared, u32 first, u32 last, int first_head, int half) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row = 16 * warp + g;
    Turn turn;
    for (u32 number = first; number < last; ++number) {
        const Item item = item_of(params, number);
        float sums[2][64] = {};
        for (int tile = 0; tile < item.tiles(); ++tile, ++turn.count) {
            const int buffer = turn.buffer();
            const u64 weights = descriptor(shared_address(shared.keys[buffer][ROPE_PANEL]), 0);
            const u64 values = descriptor(shared_address(shared.keys[buffer][4 * half]), PANEL_BYTES);
            wait(&shared.weighed[buffer], turn.parity());
            publish_stores();
            const float upper = shared.shrink[buffer][row], lower = shared.shrink[buffer][row + 8];
            // Most tiles have no larger score than those before; 1 changes no bits.
            if (__any_sync(0xffffffffu, upper != 1.0f || lower != 1.0f)) {
#pragma unroll
                for (int i = 0; i < 64; ++i) {
                    sums[0][i] *= i / 2 % 2 ? lower : upper;
                    sums[1][i] *= i / 2 % 2 ? lower : upper;
                }
            }
            begin_products();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const u64 a = weights + (step * STEP_COLUMNS >> 4), b = values + (step * STEP_ROWS >> 4);
                wgmma_128(sums[0], a, b);
                wgmma_128(sums[1], a, b + (2 * PANEL_BYTES >> 4));
            }
            finish_products();
            arrive(&shared.emptied[buffer]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int head = first_head + row + 8 * r;
            if (head < params.num_heads) {
                float* to = params.latents + (static_cast<i64>(number) * params.num_heads + head) * LATENT + 256 * half + 2 * t;
#pragma unroll
                for (int n = 0; n < 32; ++n) {
                    *reinterpret_cast<float2*>(to + 8 * n) = 
                        make_float2(sums[n / 16][n % 16 * 4 + 2 * r], sums[n / 16][n % 16 * 4 + 2 * r + 1]);
                }
            }
        }
    }
}

template <typename Rows>
__device__ __forceinline__ void decode(const MlaDecodeParams& params) {
    static_assert(Rows::LOAD_REGISTERS + Rows::SCORE_REGISTERS + 2 * VALUE_REGISTERS == 512);
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const u32 first = share_of(params, blockIdx.x), last = share_of(params, blockIdx.x + 1);
    const int role = threadIdx.x / WARPGROUP, first_head = blockIdx.y * HEADS;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int buffer = 0; buffer < 2; ++buffer) {
            create_barrier(&shared.filled[buffer], WARPGROUP_WARPS);
            create_barrier(&shared.weighed[buffer], WARPGROUP_WARPS);
            create_barrier(&shared.emptied[buffer], 2 * WARPGROUP_WARPS);
        }
    }
    __syncthreads();
    if (role == 0) {
        leave_registers<Rows::LOAD_REGISTERS>();
        Rows::load(params, shared, first, last);
    } else if (role == 1) {
        leave_registers<Rows::SCORE_REGISTERS>();
        score<Rows>(params, shared, first, last, first_head);
    } else {
        take_registers<VALUE_REGISTERS>();
        // These warps wait for the first keys.
        if (threadIdx.x == 2 * WARPGROUP) {
            fetch_ahead(params.ahead, blockIdx.y * gridDim.x + blockIdx.x, gridDim.x * gridDim.y);
        }
        add_values(params, shared, first, last, first_head, role - 2);
    }
}

#define KERNEL(name, Rows)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ MlaDecodeParams params) { \
        begin_kernel();                                                                                          \
        decode<Rows>(params);                                                                                    \
    }

KERNEL(wgmma_mla_decode_bf16, RowsBf16)
KERNEL(wgmma_mla_decode_fp8, RowsFp8<false>)
KERNEL(wgmma_mla_decode_fp8_rope, RowsFp8<true>)
