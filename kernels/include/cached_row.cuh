// Rows of the latent cache, read four values at a time. Spec: ops/shapes.rs `CacheShape`, quant/cached_row.rs.
//
// A row holds the latent [C] and the rope key [R]; C and R are multiples of 4, so that four values never straddle them.
// `load(row, C, R, i)` is values i .. i + 3 of the row, exact in f32; i is a multiple of 4. Rows begin at multiples of
// 16 (f32, eight bits) or 8 bytes (bf16).

#include "types.cuh"

using u8 = unsigned char;

struct RowF32 {
    static __device__ __forceinline__ float4 load(const u8* row, int, int, int i) {
        return *reinterpret_cast<const float4*>(row + 4 * i);
    }
};

struct RowBf16 {
    static __device__ __forceinline__ float4 load(const u8* row, int, int, int i) {
        const uint2 pairs = *reinterpret_cast<const uint2*>(row + 2 * i);
        return make_float4(low_half(pairs.x), high_half(pairs.x), low_half(pairs.y), high_half(pairs.y));
    }
};

// The scale byte of a part with a value that was not finite: the part reads as NaN.
constexpr u32 NOT_FINITE = 0xff;

// One E4M3 code in the upper byte of `word` times a scale, given as its second factor. Exponent and mantissa of a code,
// taken as those of an f32, are 2^-120 too small; two exact steps, because one f32 cannot hold 2^120 times a large
// scale.
__device__ __forceinline__ float decode_code(u32 word, float second) {
    const float magnitude = __uint_as_float((word & 0x7f000000u) >> 4) * 0x1p100f * second;
    return __uint_as_float(__float_as_uint(magnitude) | (word & 0x80000000u));
}

// Four codes, lowest byte first, under an E8M0 scale.
__device__ __forceinline__ float4 decode_codes(u32 codes, u32 scale) {
    if (scale == NOT_FINITE) {
        const float nan = __uint_as_float(0x7fc00000u);
        return make_float4(nan, nan, nan, nan);
    }
    // 2^(scale - 127 + 20). Stored scales are 27 to 227.
    const float second = __uint_as_float(min(scale + 20, 255u) << 23);
    return make_float4(decode_code(codes << 24, second), decode_code(codes << 16, second),
                       decode_code(codes << 8, second), decode_code(codes, second));
}

// Codes of the latent; the rope key in bf16 (ROPE_CODES false) or in codes; one scale byte per part in codes.
template <bool ROPE_CODES>
struct RowFp8 {
    static __device__ __forceinline__ float4 load(const u8* row, int latent, int rope, int i) {
        const u8* scales = row + latent + (ROPE_CODES ? rope : 2 * rope);
        if (i < latent || ROPE_CODES) {
            return decode_codes(*reinterpret_cast<const u32*>(row + i), scales[i < latent ? 0 : 1]);
        }
        const u32* pairs = reinterpret_cast<const u32*>(row + latent + 2 * (i - latent));
        return make_float4(low_half(pairs[0]), high_half(pairs[0]), low_half(pairs[1]), high_half(pairs[1]));
    }
};

// Slot of a position in a layer, by the sequence's block table.
__device__ __forceinline__ u32 cached_slot(const u32* block_table, int position, int block_size) {
    return block_table[position / block_size] * static_cast<u32>(block_size) + position % block_size;
}

// One layer of a cache of which every rank has a part of each block.
struct CacheParts {
    const u8* of_rank[MAX_RANKS];  // [slots, row_bytes] each
    int block_size;                // tokens of a block
    int part;                      // of which each rank has so many; of one rank all
};

// The row of a position, by the sequence's block table.
__device__ __forceinline__ const u8* cached_row(
    const CacheParts& cache, const u32* block_table, int position, int row_bytes) {
    const int offset = position % cache.block_size;
    const i64 slot = static_cast<i64>(block_table[position / cache.block_size]) * cache.part + offset % cache.part;
    return cache.of_rank[offset / cache.part] + slot * row_bytes;
}
