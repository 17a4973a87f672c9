// What becomes of the sums of a projection on tensor cores.

#include "last_block.cuh"
#include "tile.cuh"

struct Linear {
    static __device__ __forceinline__ void put(const TiledParams& params, int n, int slot, float value) {
        if (n < params.weight.rows) {
            float* y = static_cast<float*>(params.y) + slot * params.y_stride + n;
            *y = params.add ? *y + value : value;
        }
    }
    static __device__ __forceinline__ void run(
        const TiledParams& params, int tile, int g, int slot, float lower, float upper) {
        put(params, tile * TILE + g, slot, lower);
        put(params, tile * TILE + g + 8, slot, upper);
    }
    // One launch less in a decode step: with few rows the last block has them normalised before another launch begins.
    static __device__ __forceinline__ void finish(const TiledLaunch& launch) {
        __shared__ float warp_sums[NORM_THREADS / 32];
        if (launch.norm.gain == nullptr || !is_last_block(launch.blocks_done)) {
            return;
        }
        for (int row = 0; row < launch.norm_rows; ++row) {
            norm_row<true>(launch.norm, row, warp_sums);
            __syncthreads();
        }
    }
};
