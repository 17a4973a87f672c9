// Work of the block that ends last, on what all blocks of a launch wrote.

#include "types.cuh"

// Whether the calling block is the last of the grid to get here; what the others wrote before is then visible from the
// second cache. All threads of all blocks call it once. `blocks_done` is 0 before and after a launch.
__device__ __forceinline__ bool is_last_block(u32* blocks_done) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 blocks = gridDim.x * gridDim.y * gridDim.z;
        // Both fences stand in the thread that counts: the first covers what the barrier has told it of the block's writes, and what
        // the second one learns the next barrier tells the block (PTX ISA, memory consistency model, cumulativity).
        __threadfence();
        // Begins at 0 again when the last block has been counted.
        is_last = atomicInc(blocks_done, blocks - 1) == blocks - 1;
        __threadfence();
    }
    __syncthreads();
    return is_last;
}
