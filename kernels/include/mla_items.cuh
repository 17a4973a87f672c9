// Items of absorbed attention as clusters take them: a block has one of the splits of an item, in tiles of 64 keys, and 64 heads of a row or of
// several rows. Latents of 512 values and rope keys of 64.

#include "mla.cuh"
#include "mla_pass.cuh"

constexpr int HEADS = 64;
constexpr int KEYS = 64;
constexpr int LATENT = 512;
constexpr int ROPE = 64;
constexpr int WIDTH = LATENT + ROPE;
// Blocks of a cluster: each has one of the splits of an item.
constexpr int BLOCKS = 4;
// Heads of a block whose sums it merges.
constexpr int MERGED_HEADS = HEADS / BLOCKS;
// Sums of an item are divided by the number of its splits, 2 to this.
constexpr int MERGED_EXPONENT = 2;
static_assert(BLOCKS == 1 << MERGED_EXPONENT);

// Keys of a split of a row with so many. Of the shortest rows, which are one item, all blocks have some.
__device__ __forceinline__ int keys_of_split(int row_keys) { return row_keys <= BLOCKS * KEYS ? KEYS : split_of(row_keys, BLOCKS); }

__device__ __forceinline__ int rank_of_block() { return blockIdx.x % BLOCKS; }

// Items of the rows of a group with the same keys, as one block of a cluster has them: the keys of their split.
struct Item {
    u32 place;      // of the first row's in the pass; those of the others are behind it
    int index;      // of the first row in the pass
    int rows;       // of the group: with their heads at most those of a block
    int row_keys;   // of the last row; each row before it has one key less
    u32 table;      // of the sequence
    int first_key;  // of the split, of what is left of it
    int num_keys;   // not positive: the last row has ended before it
    __device__ __forceinline__ int tiles() const { return max(num_keys + KEYS - 1, 0) / KEYS; }
    // First key of the item.
    __device__ __forceinline__ int begin() const { return first_key & ~(BLOCKS * keys_of_split(row_keys) - 1); }
    __device__ __forceinline__ void begin_at(int key) {
        const int split = keys_of_split(row_keys);
        first_key = key + rank_of_block() * split;
        num_keys = min(row_keys - first_key, split);
    }
};

// Takes the group of the row `index` of the pass.
__device__ __forceinline__ void take_group(const MlaDecodeParams& params, Item& item, int index) {
    const RowEntry entry = rows_of(params.pass)[index];
    item.index = index;
    item.rows = static_cast<int>(entry.group_rows());
    item.table = entry.table;
    item.row_keys = static_cast<int>(entry.num_keys) + item.rows - 1;
}

// From an item to the next one of the pass: of the same group, or of the next one with keys. False: its place is not before `end`.
__device__ __forceinline__ bool go_on(const MlaDecodeParams& params, Item& item, u32 end) {
    item.place += item.rows;
    if (item.place >= end) {
        return false;
    }
    int next = item.begin() + BLOCKS * keys_of_split(item.row_keys);
    if (next >= item.row_keys) {
        int index = item.index + item.rows;
        while (rows_of(params.pass)[index].num_keys == 0) {
            ++index;
        }
        take_group(params, item, index);
        next = 0;
    }
    item.begin_at(next);
    return true;
}

// The first item whose place is this one or behind it; there is none if its place is not before `end`.
__device__ __forceinline__ Item item_from(const MlaDecodeParams& params, u32 place, u32 end) {
    Item item = {};
    item.place = end;
    if (place < end) {
        const int index = row_of_item(params.pass, place);
        const RowEntry entry = rows_of(params.pass)[index];
        take_group(params, item, index - static_cast<int>(entry.place_in_group()));
        const u32 first = entry.first_item - entry.place_in_group(), number = (place - first + item.rows - 1) / item.rows;
        item.place = first + number * item.rows;
        const int begin = static_cast<int>(number) * BLOCKS * keys_of_split(item.row_keys);
        item.begin_at(begin);
        if (begin >= item.row_keys && item.place < end) {
            // Behind the last item of the group.
            item.place -= item.rows;
            item.begin_at(begin - BLOCKS * keys_of_split(item.row_keys));
            go_on(params, item, end);
        }
    }
    return item;
}

// The tiles of this block in a number of items, one after another.
struct Walk {
    Item left;  // of the current item, from the current tile on
    u32 end;    // no place of them
    // Goes to the first tile from here on; whether there is one.
    __device__ __forceinline__ bool begin(const MlaDecodeParams& params) {
        while (left.num_keys <= 0) {
            if (!::go_on(params, left, end)) {
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

// 1 / x of a power of two from 2^-126 to 2^126.
__device__ __forceinline__ float inverse_of_power(float x) { return __uint_as_float((254u << 23) - __float_as_uint(x)); }
