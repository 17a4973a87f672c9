// Work of the block that ends last, on what all blocks of a launch wrote.

#include "types.cuh"

// Whether the calling block is the last of the grid to get here; what the others wrote before is then visible from the
// second cache. All threads of all blocks call it once. `blocks_done` is 0 before and after a launch.
__device__ __forceinline__ bool is_last_block(u32* blocks_done) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 blocks = gridDim.x * gridDim.y * gridDim.z;
        // Begins at 0 again when the last block has been counted.
        is_last = atomicInc(blocks_done, blocks - 1) == blocks - 1;
    }
    __syncthreads();
    if (is_last) {
        __threadfence();
    }
    return is_last;
}
