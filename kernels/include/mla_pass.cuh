// Attention in absorbed form as the host lists it: passes of rows, and items of one or more splits of a row.
//
// Legend as in mla_decode.cu. A row has ceil(num_keys / split_of(num_keys, splits)) splits, of which `splits` together are an item, and the rows of a
// pass have their items one after another.

#include "ahead.cuh"
#include "mla.cuh"
#include "types.cuh"

// Most keys of a split.
constexpr int SPLIT = 512;
// Keys of a split of a row with so many, of which so many are an item; the splits of a row begin at its multiples. It depends on the row
// alone, and so do the bits of its result. Short contexts are latency: more splits at once. Long ones fill the device, and items cost
// traffic.
__device__ __forceinline__ int split_of(u32 num_keys, int splits) {
    return num_keys <= 2048 ? 128 : num_keys <= 4096 * splits ? 256 : SPLIT;
}
// Bound of C.
constexpr int MAX_LATENT = 512;

// A row of a pass.
struct RowEntry {
    u32 row;         // of the step
    u32 first_item;  // of the pass; the row has `items_of` of them, `group_rows` apart
    u32 num_keys;    // keys it attends to; 0: its result is 0
    u32 table;       // index of its sequence's first block id
    u32 group;       // rows of its group, and from the 16th bit on its place among them

    // Rows of one sequence that follow each other, with one key more each, may be a group: their items, as many as those of the last one, lie
    // side by side. Their splits begin at the same keys.
    __device__ __forceinline__ u32 group_rows() const { return group & 0xffff; }
    __device__ __forceinline__ u32 place_in_group() const { return group >> 16; }
};

// A pass as the host wrote it, followed by its rows.
struct Pass {
    u32 num_rows;
    u32 num_items;
};

// Whose keys and heads a launch has, where ranks hold a part of every block each.
enum class Part : int {
    WHOLE,    // all keys: query and attended have the rows of the step
    HEADS,    // this rank's keys and the heads of all ranks: query and attended have the rows of the pass
    LATENTS,  // this rank's heads, whose keys lie on all ranks: rows without keys here have some elsewhere
};

// All sizes are multiples of 4 and positive, and at most the bounds above. Arrays begin at multiples of 16 bytes, lists
// and tables at multiples of 4.
struct MlaDecodeParams {
    const float* query;       // [T, H * (N + R)]
    const float* rotations;   // [T, R]: R/2 cosines, then R/2 sines
    const void* kv_up;        // [H * (N + V), C] of the function's type: per head N rows of W_UK, then V of W_UV
    const u8* cache;          // [slots, row_bytes], one layer
    const u32* block_tables;  // block ids of all sequences
    const Pass* pass;         // the pass and its rows
    float* latent_queries;    // [A, H, C + R], from absorb to decode
    float* statistics;        // [I, H, 2]: largest score and sum of exponentials, from decode to combine; see `mla_merge.cuh`
    void* latents;            // [I, H, C]: weighted sum of latents, from decode to combine; f32 or f16
    float* attended;          // [T, H * V]
    bf16* rounded;            // [T, H * V], attended in bf16, or null
    float* row_statistics;    // [A, H, 2]: those of a row, of HEADS and of merge
    int num_heads;            // H
    int nope;                 // N
    int rope;                 // R
    int value;                // V
    int latent;               // C
    int block_size;           // tokens of a block
    int row_bytes;            // bytes of a cached row
    float scale;              // factor on scores
    Part part;                // of the keys and heads
    int splits;               // of an item
    int queries_are_ready;    // latent_queries are as in mla_queries.cuh
    int padding;
    Ahead ahead;              // fetched by the decode kernels of Hopper and B200
};

__device__ __forceinline__ const RowEntry* rows_of(const Pass* pass) {
    return reinterpret_cast<const RowEntry*>(pass + 1);
}

// Values at .. at + 3 of a head of row `index` of the pass, rotated. False, and zeros, where the row is not there or attends to nothing.
__device__ __forceinline__ bool query_of(const MlaDecodeParams& params, int index, int num_rows, int head, int at, float4& four) {
    four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (index >= num_rows || (rows_of(params.pass)[index].num_keys == 0 && params.part != Part::LATENTS)) {
        return false;
    }
    const i64 row = rows_of(params.pass)[index].row;
    const i64 place = params.part == Part::HEADS ? index : row;
    four = query_four(params.query + (place * params.num_heads + head) * (params.nope + params.rope),
                      params.rotations + row * params.rope, params.nope, params.rope, at);
    return true;
}

// Keys of an item of a row with so many.
__device__ __forceinline__ int keys_of_item(const MlaDecodeParams& params, u32 num_keys) { return params.splits * split_of(num_keys, params.splits); }

__device__ __forceinline__ int items_of(const MlaDecodeParams& params, const RowEntry& entry) {
    const int keys = keys_of_item(params, entry.num_keys);
    return (static_cast<int>(entry.num_keys) + keys - 1) / keys;
}

// The last row that begins at it or before. Rows without items begin where the next one does. A call of whole warps,
// whose lanes look at 32 rows at once: a search by halves would wait for the memory at each of its steps.
__device__ __forceinline__ int row_of_item(const Pass* pass, u32 item) {
    const int lane = threadIdx.x % 32, num_rows = pass->num_rows;
    int begun = 0;
    for (int first = 0; first < num_rows; first += 32) {
        const int row = first + lane;
        const bool begins = row < num_rows && rows_of(pass)[row].first_item <= item;
        begun += __popc(__ballot_sync(0xffffffffu, begins));
    }
    return begun - 1;
}

// Of whose row an item is, and its number among the row's, which has as many or fewer.
struct ItemPlace {
    int row;  // of the pass
    int number;
    RowEntry entry;
};

// As `row_of_item`.
__device__ __forceinline__ ItemPlace item_at(const MlaDecodeParams& params, u32 item) {
    ItemPlace place;
    place.row = row_of_item(params.pass, item);
    place.entry = rows_of(params.pass)[place.row];
    const u32 rows = place.entry.group_rows(), first = place.entry.first_item - place.entry.place_in_group();
    place.row += static_cast<int>((item - first) % rows) - static_cast<int>(place.entry.place_in_group());
    place.entry = rows_of(params.pass)[place.row];
    place.number = static_cast<int>((item - first) / rows);
    return place;
}
