// Work of a block on what other blocks of its launch wrote.

#include "types.cuh"

// Whether the calling block is the last of so many to get here; what the others wrote before is then visible from the
// second cache. All threads of these blocks call it once. `blocks_done` is 0 before and after a launch.
__device__ __forceinline__ bool is_last_block(u32* blocks_done, u32 blocks) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
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

// The same of all blocks of the grid.
__device__ __forceinline__ bool is_last_block(u32* blocks_done) {
    return is_last_block(blocks_done, gridDim.x * gridDim.y * gridDim.z);
}

// The calling block's turn: blocks that wait for others take turns, and wait for those of earlier ones only, which run already. All
// threads call it once. `turns` is 0 before a launch; who knows that all have one sets it to 0.
__device__ __forceinline__ int take_turn(u32* turns) {
    __shared__ u32 turn;
    if (threadIdx.x == 0) {
        turn = atomicAdd(turns, 1);
    }
    __syncthreads();
    return static_cast<int>(turn);
}

// Counts the calling block, whose writes are visible to who waits for the count. All threads call it.
__device__ __forceinline__ void count_block(u32* blocks_done) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(blocks_done, 1);
    }
}

// Waits for so many counts of blocks with an earlier turn. All threads call it.
__device__ __forceinline__ void wait_for_blocks(u32* blocks_done, u32 blocks) {
    if (threadIdx.x == 0) {
        while (*static_cast<volatile u32*>(blocks_done) < blocks) {
        }
        __threadfence();
    }
    __syncthreads();
}
