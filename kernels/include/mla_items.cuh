// Items of absorbed attention as a cluster of four blocks has them: each block computes one of the four splits of an item, and all merge them.
//
// Legend as in mla_pass.cuh. A tile has KEYS keys; splits are tiles, and begin at their multiples.

#include "cluster.cuh"
#include "mla_pass.cuh"
#include "mma.cuh"

// Blocks of a cluster: each has one of the splits of an item.
constexpr int BLOCKS = 4;
constexpr int LATENT = 512;
constexpr int ROPE = 64;
constexpr int WIDTH = LATENT + ROPE;
// Chunks of 8 values of a head.
constexpr int CHUNKS = LATENT / 8;
// Sums of a split of codes, whose weights are up to 1, are divided by 2 to this, and those of an item of any rows by the number of its
// splits: so they are in the range of f16.
constexpr int CODES_EXPONENT = SPLIT <= 512 ? 2 : 3;
static_assert((SPLIT * 448 >> CODES_EXPONENT) < 65504);
constexpr int MERGED_EXPONENT = 2;
static_assert(BLOCKS == 1 << MERGED_EXPONENT);

// Keys of a split of a row with so many. Of the shortest rows, which are one item, all blocks have some.
template <int KEYS>
__device__ __forceinline__ int keys_of_split(int row_keys) {
    if (KEYS < 64 && row_keys <= BLOCKS * KEYS) {
        return KEYS;
    }
    return row_keys <= BLOCKS * 64 ? 64 : split_of(row_keys, BLOCKS);
}

__device__ __forceinline__ int rank_of_block() { return blockIdx.x % BLOCKS; }

// Items of the rows of a group with the same keys, as one block of a cluster has them: the keys of their split.
template <int KEYS>
struct ItemOf {
    u32 place;      // of the first row's in the pass; those of the others are behind it
    int index;      // of the first row in the pass
    int rows;       // of the group: with their heads at most those of a block
    int row_keys;   // of the last row; each row before it has one key less
    u32 table;      // of the sequence
    int first_key;  // of the split, of what is left of it
    int num_keys;   // not positive: the last row has ended before it
    __device__ __forceinline__ int tiles() const { return max(num_keys + KEYS - 1, 0) / KEYS; }
    __device__ __forceinline__ int split() const { return keys_of_split<KEYS>(row_keys); }
    // First key of the item.
    __device__ __forceinline__ int begin() const { return first_key & ~(BLOCKS * split() - 1); }
    // Tiles of a block's split.
    __device__ __forceinline__ int tiles_of(int block) const {
        const int left = row_keys - begin();
        return (min(max(left - block * split(), 0), split()) + KEYS - 1) / KEYS;
    }
    // Blocks that have a tile.
    __device__ __forceinline__ int splits() const { return min((row_keys - begin() + split() - 1) / split(), BLOCKS); }
    __device__ __forceinline__ void begin_at(int key) {
        first_key = key + rank_of_block() * split();
        num_keys = min(row_keys - first_key, split());
    }

    // Takes the group of the row `index` of the pass.
    __device__ __forceinline__ void take_group(const MlaDecodeParams& params, int of_row) {
        const RowEntry entry = rows_of(params.pass)[of_row];
        index = of_row;
        rows = static_cast<int>(entry.group_rows());
        table = entry.table;
        row_keys = static_cast<int>(entry.num_keys) + rows - 1;
    }

    // To the next item of the pass: of the same group, or of the next one with keys. False: its place is not before `end`.
    __device__ __forceinline__ bool go_on(const MlaDecodeParams& params, u32 end) {
        place += rows;
        if (place >= end) {
            return false;
        }
        int next = begin() + BLOCKS * split();
        if (next >= row_keys) {
            int row = index + rows;
            while (rows_of(params.pass)[row].num_keys == 0) {
                ++row;
            }
            take_group(params, row);
            next = 0;
        }
        begin_at(next);
        return true;
    }

    // The first item whose place is this one or behind it; there is none if its place is not before `end`.
    static __device__ __forceinline__ ItemOf from(const MlaDecodeParams& params, u32 place, u32 end) {
        ItemOf item = {};
        item.place = end;
        if (place < end) {
            const int row = row_of_item(params.pass, place);
            const RowEntry entry = rows_of(params.pass)[row];
            item.take_group(params, row - static_cast<int>(entry.place_in_group()));
            const u32 first = entry.first_item - entry.place_in_group(), number = (place - first + item.rows - 1) / item.rows;
            item.place = first + number * item.rows;
            const int begin = static_cast<int>(number) * BLOCKS * item.split();
            item.begin_at(begin);
            if (begin >= item.row_keys && item.place < end) {
                // Behind the last item of the group.
                item.place -= item.rows;
                item.begin_at(begin - BLOCKS * item.split());
                item.go_on(params, end);
            }
        }
        return item;
    }
};

// The tiles of this block in a number of items, one after another.
template <int KEYS>
struct WalkOf {
    ItemOf<KEYS> left;  // of the current item, from the current tile on
    u32 end;            // no place of them
    // Goes to the first tile from here on; whether there is one.
    __device__ __forceinline__ bool begin(const MlaDecodeParams& params) {
        while (left.num_keys <= 0) {
            if (!left.go_on(params, end)) {
                return false;
            }
        }
        return true;
    }
    // Whether there is another tile.
    __device__ __forceinline__ bool go_on(const MlaDecodeParams& params) {
        left.num_keys -= KEYS;
        if (left.num_keys > 0) {
            left.first_key += KEYS;
            return true;
        }
        return begin(params);
    }
};

// Of the places of a cluster's items the first: an equal share, one after another.
__device__ __forceinline__ u32 share_of(const MlaDecodeParams& params, u32 cluster) {
    return static_cast<u32>(static_cast<u64>(params.pass->num_items) * cluster / (gridDim.x / BLOCKS));
}

// 1 / x of a power of two from 2^-126 to 2^126.
__device__ __forceinline__ float inverse_of_power(float x) { return __uint_as_float((254u << 23) - __float_as_uint(x)); }

// The row of a group and the head that a row of the tiles of queries and sums has. `row` is beyond the group's where there is none.
struct HeadOfRow {
    int row;
    int head;
};

__device__ __forceinline__ HeadOfRow head_of(const MlaDecodeParams& params, int rows, int first_head, int at) {
    // More than one row have all heads in one block.
    const int row = rows > 1 ? at / params.num_heads : 0, head = first_head + at - row * params.num_heads;
    return {head < params.num_heads ? row : rows, head};
}

// Keys of the split that the row of the group of a row of the tiles has.
template <int KEYS>
__device__ __forceinline__ int own_keys_of(const MlaDecodeParams& params, const ItemOf<KEYS>& item, int first_head, int at) {
    if (item.rows == 1) {
        return item.num_keys;
    }
    const int row = min(head_of(params, item.rows, first_head, at).row, item.rows - 1);
    return min(item.row_keys - (item.rows - 1 - row) - item.first_key, item.num_keys);
}

// Merges eight values of a row of the tiles from the splits of an item, in their order. Split r's sums are f16 at the address `sums_at(r)` of
// block r, and beside them `statistics_at(r)` its largest score in base 2 and its sum of exponentials.
template <int KEYS, typename SumsAt, typename StatisticsAt>
__device__ __forceinline__ void merge_chunk(
    const MlaDecodeParams& params, const ItemOf<KEYS>& item, int first_head, int at, int chunk, SumsAt sums_at, StatisticsAt statistics_at) {
    const HeadOfRow own = head_of(params, item.rows, first_head, at);
    // Rows before the last one may have ended before the item.
    const int split = item.split(), left = item.row_keys - (item.rows - 1 - own.row) - item.begin();
    const int splits = min((left + split - 1) / split, BLOCKS);
    if (own.row >= item.rows || left <= 0) {
        return;
    }
    // All are set, so that none waits in registers for the next item.
    float2 statistics[BLOCKS] = {};
    uint4 parts[BLOCKS] = {};
    float largest = -__uint_as_float(0x7f800000u);
#pragma unroll
    for (int r = 0; r < BLOCKS; ++r) {
        if (r < splits) {
            statistics[r] = float2_in_cluster(address_in_block(statistics_at(r), r));
            parts[r] = uint4_in_cluster(address_in_block(sums_at(r), r));
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
