// Queries in the latent space as wgmma_mla_decode.cu has them in shared memory: of latents of 512 values and rope keys of 64, in 16 bits.
//
// The rows of a group (mla_pass.cuh) with their heads are the rows of a tile, row by row. A tile is 9 panels [rows, 64], swizzled as in
// wgmma.cuh, at the place of its first row among all rows of the pass. Latents are f16 where the cache has codes, else bf16, as rope keys
// are; in f16 they and the rope keys of a head are divided by a power of two, which is behind all tiles: [A, H] f32.

#include "mla_pass.cuh"

constexpr int QUERY_PANELS = 9;
// Bytes of a row of a panel, and of one in all panels.
constexpr int QUERY_PITCH = 128;
constexpr int QUERY_BYTES = QUERY_PANELS * QUERY_PITCH;

// The tile of the group with this first row.
__device__ __forceinline__ u8* query_tile(const MlaDecodeParams& params, int row) {
    return reinterpret_cast<u8*>(params.latent_queries) + static_cast<i64>(row) * params.num_heads * QUERY_BYTES;
}

__device__ __forceinline__ float* query_powers(const MlaDecodeParams& params) {
    return reinterpret_cast<float*>(query_tile(params, params.pass->num_rows));
}

// Of the exponent byte of a head's largest value what both powers of two are made of: the bound keeps them normal.
__device__ __forceinline__ u32 query_exponent(float largest) { return max(__float_as_uint(largest) >> 23, 15u); }
// What the head is multiplied by, so that its largest value is 2^14 or above, and what it was divided by.
__device__ __forceinline__ float query_factor(u32 exponent) { return __uint_as_float((127 + 14 + 127 - exponent) << 23); }
__device__ __forceinline__ float query_power(u32 exponent) { return __uint_as_float((exponent - 14) << 23); }
