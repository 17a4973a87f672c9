// Weights in tiles: how they lie in memory, and their fragments in bf16. `TileBf16` to `TileInt4` are the stored formats.
//
// A tile is 16 outputs by a unit of 128 inputs, and 32 lanes hold it in the order in which mma.sync m16n8k16 takes it.
// Lane 4g + c has outputs g ("lower") and g + 8 ("upper") and inputs 32c .. 32c + 31; step j of 8 multiplies inputs
// 32c + 4j .. + 3 of every c. Inputs of a step need not be neighbours, only the same in A and B: so a lane reads its
// rows 16 bytes at a time and needs one or two scales of each output. cuda/kernels/repack.rs writes tiles.

#include "mma.cuh"

constexpr int TILE = 16;
constexpr int UNIT = 128;
constexpr int STEPS = 8;
constexpr int CHUNKS = 8;
constexpr int WARPS = 8;

// Device side of cuda/weights/tiles.rs `TiledWeight`: the matrices of all experts.
struct TiledWeight {
    const u8* codes;         // [E, tiles, units] tiles
    const u8* scales;        // as codes; fp8: f32 of the lower outputs, [rows / scale_rows, scale_groups] each expert
    const u8* upper_scales;  // fp8: of the upper outputs
    const float* factors;    // [E, 2] of the lower and the upper outputs
    i64 codes_stride;        // bytes of an expert
    i64 scales_stride;       // bytes of an expert
    int tiles;
    int units;
    int columns;             // K, a multiple of 8; units beyond it hold zeros
    int rows;                // outputs of a matrix: N
    int tile_rows;           // outputs from a tile to the next: 16, or 8 where upper and lower are two matrices
    int upper_row;           // first upper output of tile 0: 8, or 0 where it is another matrix
    int scale_rows;          // fp8
    int scale_groups;        // fp8
};

// Value number `at` behind the lane's first: read once, or AGAIN by the blocks of other rows.
template <typename T, bool AGAIN>
__device__ __forceinline__ T stream(const u8* first, u32 at) {
    const T* from = reinterpret_cast<const T*>(first) + at;
    return AGAIN ? __ldg(from) : __ldcs(from);
}

// The tiles of one row of tiles of an expert, and what a lane needs to find its scales.
struct TileRow {
    const u8* codes;            // of the lane
    const u8* scales;           // of the lane
    const float* lower_scales;  // fp8
    const float* upper_scales;  // fp8
    int scale_step;             // fp8: scales from a unit to the next, 0 where a row has one
};

// A lane's part of a tile, as loaded: `Unit`. Of a RUN of inputs all are in a row or none. `load_words` loads what two steps are the last to need. `fragment` is the A
// operand of a step.

struct TileBf16 {
    static constexpr int DEPTH = 1, RUN = 8;
    static constexpr int BLOCKS_16 = 2, BLOCKS_32 = 1, BLOCKS_48 = 1;
    static constexpr bool UNIT_SCALES = false, BY_HALVES = true;
    static constexpr int EARLY = 2;
    static constexpr int CODE_BYTES = 4096;
    static constexpr int SCALE_BYTES = 0;
    struct Scales {};
    struct Unit {
        uint4 words[8];
        Scales scales;
    };
    template <bool AGAIN>
    static __device__ __forceinline__ void load_words(Unit& unit, const TileRow& row, u32 u, int pair) {
#pragma unroll
        for (int i = 2 * pair; i < 2 * pair + 2; ++i) {
            unit.words[i] = stream<uint4, AGAIN>(row.codes, u * (CODE_BYTES / 16) + 32 * i);
        }
    }
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales&, const TileRow&, u32) {}
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        a[0] = unit.words[step].x, a[1] = unit.words[step].y, a[2] = unit.words[step].z, a[3] = unit.words[step].w;
    }
};

struct TileFp8 {
    static constexpr int DEPTH = 1, RUN = 8;
    static constexpr int BLOCKS_16 = 2, BLOCKS_32 = 1, BLOCKS_48 = 1;
    static constexpr bool UNIT_SCALES = true, BY_HALVES = false;
    static constexpr int EARLY = 2;
    static constexpr int CODE_BYTES = 2048;
    static constexpr int SCALE_BYTES = 0;
    struct Scales {
        float lower, upper;
    };
    struct Unit {
        uint4 words[4];
        Scales scales;
    };
    template <bool AGAIN>
    static __device__ __forceinline__ void load_words(Unit& unit, const TileRow& row, u32 u, int pair) {
        unit.words[pair] = stream<uint4, AGAIN>(row.codes, u * (CODE_BYTES / 16) + 32 * pair);
    }
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales.lower = row.lower_scales[u * row.scale_step];
        scales.upper = row.upper_scales[u * row.scale_step];
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        const u32 lower = word_of(unit.words[step / 2], step % 2 * 2);
        const u32 upper = word_of(unit.words[step / 2], step % 2 * 2 + 1);
        a[0] = bf16_of_e4m3(lower), a[1] = bf16_of_e4m3(upper);
        a[2] = bf16_of_e4m3(lower << 8), a[3] = bf16_of_e4m3(upper << 8);
    }
};

// Formats of four bits: two loads of 16 bytes, a word of eight codes for each step.
struct TileNibbles {
    static constexpr int BLOCKS_16 = 3, BLOCKS_32 = 2;
    // Two blocks take all registers of an SM to the last: where the compiler finds a use for one more, as of NVFP4, it is one.
#if __CUDA_ARCH__ == 900
    static constexpr int BLOCKS_48 = 2;
#else
    static constexpr int BLOCKS_48 = 1;
#endif
    static constexpr bool UNIT_SCALES = false, BY_HALVES = false;
    // Of two tiles there are no registers for it.
    static constexpr int EARLY = 1;
    static constexpr int DEPTH = 2;
    // K is a multiple of the inputs of a scale, of which there are 16 or 32.
    static constexpr int RUN = 16;
    static constexpr int CODE_BYTES = 1024;
    using Scales = u32;
    struct Unit {
        uint4 words[2];
        Scales scales;
    };
    template <bool AGAIN>
    static __device__ __forceinline__ void load_words(Unit& unit, const TileRow& row, u32 u, int pair) {
        if (pair % 2 == 1) {
            unit.words[pair / 2] = stream<uint4, AGAIN>(row.codes, u * (CODE_BYTES / 16) + 32 * (pair / 2));
        }
    }
    // Eight E2M1 codes to bf16, 2^-126 too small, in nine operations: every bit of a code moves with others by one shift. The first of
    // four values of a half has its bits in their places (sign 15, exponent 8 and 7, mantissa 6), the second six to the right; of the third
    // they are six to the left, where the sign leaves the half, so that it lies in the other one; the fourth has the bits that are left.
    static __device__ __forceinline__ void decode_e2m1(u32 (&a)[4], u32 word) {
        constexpr u32 PLACES = 0x81c081c0u;
        a[0] = word & PLACES;
        a[1] = word << 6 & PLACES;
        a[2] = __funnelshift_r(word, word, 6) & PLACES;
        a[3] = (word << 4 & 0x81808180u) | (word >> 4 & 0x00400040u);
    }
    static __device__ __forceinline__ void scale(u32 (&a)[4], u32 lower, u32 upper) {
        a[0] = multiply2(a[0], lower), a[1] = multiply2(a[1], upper);
        a[2] = multiply2(a[2], lower), a[3] = multiply2(a[3], upper);
    }
};

// Scales: 5 bits of exponent and 3 of mantissa, in bytes of lower and upper of inputs 32c .. + 15, then of the others.
struct TileNvfp4 : TileNibbles {
    static constexpr int BLOCKS_48 = 1;
#if __CUDA_ARCH__ < 1000
    static constexpr int BLOCKS_16 = 4, BLOCKS_32 = 3;
#endif
    static constexpr int SCALE_BYTES = 128;
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales = stream<u32, AGAIN>(row.scales, u * WARP);
    }
    // A byte as a bf16 in both halves, 2^119 times the scale.
    static __device__ __forceinline__ u32 bf16_of(u32 scales, int i) {
        return (scales >> 8 * i & 0xffu) * 0x00100010u + 0x70007000u;
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        decode_e2m1(a, word_of(unit.words[step / 4], step % 4));
        scale(a, bf16_of(unit.scales, step / 4 * 2), bf16_of(unit.scales, step / 4 * 2 + 1));
    }
};

// Scales: exponent bits of a bf16, a byte each of lower and upper.
struct TileMxfp4 : TileNibbles {
    static constexpr int SCALE_BYTES = 64;
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales = stream<u16, AGAIN>(row.scales, u * WARP);
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        decode_e2m1(a, word_of(unit.words[step / 4], step % 4));
        scale(a, (unit.scales & 0xffu) * 0x00800080u, (unit.scales >> 8) * 0x00800080u);
    }
};

// Scales: bf16, of lower and upper.
struct TileInt4 : TileNibbles {
    static constexpr int BLOCKS_48 = 1;
    static constexpr int SCALE_BYTES = 128;
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales = stream<u32, AGAIN>(row.scales, u * WARP);
    }
    // 128 + code, less 136: both are exact.
    static __device__ __forceinline__ u32 decode(u32 codes) {
        u32 values;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(values)
            : "r"((codes & 0x000f000fu) | 0x43004300u), "r"(0x3f803f80u), "r"(0xc308c308u));
        return values;
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        const u32 word = word_of(unit.words[step / 4], step % 4);
        a[0] = decode(word), a[1] = decode(word >> 4), a[2] = decode(word >> 8), a[3] = decode(word >> 12);
        scale(a, __byte_perm(unit.scales, 0, 0x1010), __byte_perm(unit.scales, 0, 0x3232));
    }
};

template <typename Format, bool AGAIN>
__device__ __forceinline__ void load_unit(typename Format::Unit& unit, const TileRow& row, u32 u) {
#pragma unroll
    for (int pair = 0; pair < STEPS / 2; ++pair) {
        Format::template load_words<AGAIN>(unit, row, u, pair);
    }
    Format::template load_scales<AGAIN>(unit.scales, row, u);
}

// The row of tiles `tile` of expert `expert`; one past the end is the last, so that loads stay inside.
template <typename Format>
__device__ __forceinline__ TileRow tile_row(const TiledWeight& weight, int expert, int tile, int lane) {
    tile = min(tile, weight.tiles - 1);
    const i64 first = static_cast<i64>(tile) * weight.units;
    TileRow row;
    row.codes = weight.codes + expert * weight.codes_stride + first * Format::CODE_BYTES + 16 * lane;
    row.scales = weight.scales + expert * weight.scales_stride + first * Format::SCALE_BYTES + Format::SCALE_BYTES / WARP * lane;
    if constexpr (Format::UNIT_SCALES) {
        const int lower = min(tile * weight.tile_rows + lane / 4, weight.rows - 1);
        const int upper = min(lower + weight.upper_row, weight.rows - 1);
        const i64 stride = expert * weight.scales_stride;
        row.scale_step = weight.scale_groups > 1;
        row.lower_scales = reinterpret_cast<const float*>(weight.scales + stride) + lower / weight.scale_rows * weight.scale_groups;
        row.upper_scales = reinterpret_cast<const float*>(weight.upper_scales + stride) + upper / weight.scale_rows * weight.scale_groups;
    }
    return row;
}

// Goes on by so many units.
template <typename Format>
__device__ __forceinline__ void advance(TileRow& row, int units) {
    row.codes += static_cast<i64>(units) * Format::CODE_BYTES;
    row.scales += static_cast<i64>(units) * Format::SCALE_BYTES;
    if constexpr (Format::UNIT_SCALES) {
        row.lower_scales += units * row.scale_step;
        row.upper_scales += units * row.scale_step;
    }
}

// Loads unit `u`, which is the next one. Where a loop is bound by its instructions, an address that goes along takes a third of those that
// are computed for each unit; it takes registers too, of which a warp of several tiles has none.
template <typename Format, int TILES>
__device__ __forceinline__ void load_next(typename Format::Unit& unit, TileRow& row, int u) {
    if constexpr (TILES == 1) {
        load_unit<Format, false>(unit, row, 0);
        advance<Format>(row, 1);
    } else {
        load_unit<Format, false>(unit, row, static_cast<u32>(u));
    }
}
