// The slots of a block of rows of a product. Its parameters have `num_tiles`, `tiles`, `slots` and `num_slots` (tile_slots.cuh).

#include "types.cuh"

// A run of slots of one expert; device side of cuda/kernels/route.rs.
struct SlotTile {
    int expert;
    int first;  // index into `slots`
    int count;  // at most the rows of a block
};

// The slots of block `index` of rows; false without any.
template <typename Params>
__device__ __forceinline__ bool slot_tile(const Params& params, int index, int rows, SlotTile& tile) {
    if (params.num_tiles == nullptr) {
        tile = {0, index * rows, min(rows, params.num_slots - index * rows)};
        return tile.count > 0;
    }
    // Before the kernel has begun, where they are old: from the second cache.
    if (index >= __ldcg(params.num_tiles)) {
        return false;
    }
    const int* from = &params.tiles[index].expert;
    tile = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
    return true;
}

// The i-th slot of a tile, the last one for those that are not there.
template <typename Params>
__device__ __forceinline__ int slot_of(const Params& params, const SlotTile& tile, int i) {
    const int at = tile.first + min(i, tile.count - 1);
    return params.num_tiles == nullptr ? at : static_cast<int>(params.slots[at]);
}
