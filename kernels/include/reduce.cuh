// Sums over a warp and a block in an order fixed by the thread indices alone.

// Sum over the 32 lanes of a warp by a butterfly; every lane gets the same bits, since both lanes of a pair add the
// same two values.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}

// Sum over a block of WARPS full warps, the same bits in every thread: the sums of the warps, added in order of the
// warps. `warp_sums` [WARPS] is shared memory; a second call needs a __syncthreads() before it.
template <int WARPS>
__device__ __forceinline__ float block_sum(float value, float (&warp_sums)[WARPS]) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) {
        warp_sums[threadIdx.x / 32] = value;
    }
    __syncthreads();
    float sum = warp_sums[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) {
        sum += warp_sums[warp];
    }
    return sum;
}
