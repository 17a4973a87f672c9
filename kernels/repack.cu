// repack: weights from the checkpoint's rows into tiles; unpack_bf16: those of bf16 back into rows.
// Source:  tiles: include/tile.cuh; formats: quant/packed.rs. Twin: src/cuda/kernels/repack.rs.
// Legend:  N outputs, K inputs, M rows of tiles, U units of 128 inputs.
// Shapes:  codes, scales: rows of a slice of one matrix (bf16) or of two, gate and up; out: M * U tiles.
// Traffic: the weights once in, once out, at load; of unpack in front of each product of a prompt by the vendor's library.
// Grid:    a warp for each tile, 8 warps in a block; a lane writes what it will read.

#include "types.cuh"

constexpr int WARPS = 8;
constexpr int UNIT = 128;

// Rows of a matrix from which the lower or the upper outputs of tiles come.
struct Half {
    const u8* codes;
    const u8* scales;
    int first;  // row of the first output of tile 0
    int rows;   // rows that are there; codes of others are zero
};

struct RepackParams {
    Half lower;
    Half upper;
    u8* codes;       // [M, U] tiles
    u8* scales;      // [M, U] scales of a tile
    int* not_numbers;// [1]: set if a code of eight bits is NaN
    int tile_rows;   // rows of a half from a tile to the next
    int tiles;       // M
    int columns;     // K
    int units;       // U
};

__device__ __forceinline__ const Half& half_of(const RepackParams& params, int h) {
    return h == 0 ? params.lower : params.upper;
}

// Where the lane's inputs begin in a row of the matrix, or null.
__device__ __forceinline__ const u8* row_of(const RepackParams& params, int h, int tile, int lane, i64 row_bytes) {
    const Half& half = half_of(params, h);
    const int row = half.first + tile * params.tile_rows + lane / 4;
    return row < half.rows ? half.codes + row * row_bytes : nullptr;
}

// The lane's scale `i` of its row of a half, or 0 without a row.
template <typename T>
__device__ __forceinline__ u32 scale_of(const RepackParams& params, int h, int tile, int lane, int per_row, int i) {
    const Half& half = half_of(params, h);
    const int row = half.first + tile * params.tile_rows + lane / 4;
    return row < half.rows && i < per_row ? reinterpret_cast<const T*>(half.scales)[static_cast<i64>(row) * per_row + i] : 0;
}

struct Place {
    int tile, unit, lane;
    i64 index;  // of the tile
};

__device__ __forceinline__ bool place_of(const RepackParams& params, Place& place) {
    place.index = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    place.tile = static_cast<int>(place.index / params.units);
    place.unit = static_cast<int>(place.index % params.units);
    place.lane = static_cast<int>(threadIdx.x) % WARP;
    return place.tile < params.tiles;
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP) repack_bf16(const __grid_constant__ RepackParams params) {
    begin_kernel();
    Place place;
    if (!place_of(params, place)) {
        return;
    }
    const u8* rows[2];
    for (int h = 0; h < 2; ++h) {
        rows[h] = row_of(params, h, place.tile, place.lane, 2ll * params.columns);
    }
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        const int k = place.unit * UNIT + place.lane % 4 * 32 + 4 * step;
        uint2 parts[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            parts[h] = make_uint2(0, 0);
            if (rows[h] != nullptr && k < params.columns) {
                parts[h] = *reinterpret_cast<const uint2*>(rows[h] + 2 * k);
            }
        }
        uint4* out = reinterpret_cast<uint4*>(params.codes + place.index * 4096 + 512 * step);
        out[place.lane] = make_uint4(parts[0].x, parts[1].x, parts[0].y, parts[1].y);
    }
}

// A byte of four becomes the upper byte of a half, and a lower one: values 0 and 1 of a step, then 2 and 3.
extern "C" __global__ void __launch_bounds__(WARPS * WARP) repack_fp8(const __grid_constant__ RepackParams params) {
    begin_kernel();
    Place place;
    if (!place_of(params, place)) {
        return;
    }
    const u8* rows[2];
    for (int h = 0; h < 2; ++h) {
        rows[h] = row_of(params, h, place.tile, place.lane, params.columns);
    }
    bool numbers = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        u32 words[4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int k = place.unit * UNIT + place.lane % 4 * 32 + 8 * i + part / 2 * 4;
            const u8* row = rows[part % 2];
            const u32 codes = row != nullptr && k < params.columns ? *reinterpret_cast<const u32*>(row + k) : 0u;
#pragma unroll
            for (int byte = 0; byte < 4; ++byte) {
                numbers = numbers && (codes >> 8 * byte & 0x7fu) != 0x7fu;
            }
            words[part] = __byte_perm(codes, 0, 0x1302);
        }
        uint4* out = reinterpret_cast<uint4*>(params.codes + place.index * 2048 + 512 * i);
        out[place.lane] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (!numbers) {
        *params.not_numbers = 1;
    }
}

// Code `n` as value i of four in the lower half of a word, with the sign of the third in the upper one; see tile_format.cuh.
__device__ __forceinline__ u32 e2m1_place(u32 n, int i) {
    return i == 0   ? (n & 8u) << 12 | (n & 7u) << 6
           : i == 1 ? (n & 8u) << 6 | (n & 7u)
           : i == 2 ? (n & 8u) << 18 | (n & 7u) << 12
                    : (n & 8u) << 8 | (n & 6u) << 2 | (n & 1u) << 10;
}

template <bool E2M1>
__device__ __forceinline__ u32 placed(u32 n, int i) {
    return E2M1 ? e2m1_place(n, i) : n << 4 * i;
}

// The halves of a word, exchanged.
__device__ __forceinline__ u32 other_half(u32 word) { return __byte_perm(word, 0, 0x1032); }

// 16 codes of a row, of which nothing is there beyond `columns`; K is a multiple of 16.
__device__ __forceinline__ uint2 codes16(const u8* row, int k, int columns) {
    return row != nullptr && k < columns ? *reinterpret_cast<const uint2*>(row + k / 2) : make_uint2(0, 0);
}

// Writes the lane's words of 16 inputs, from their codes of both halves.
template <bool E2M1>
__device__ __forceinline__ void write_words(const RepackParams& params, const Place& place, int block, const uint2 (&codes)[2]) {
    u32 words[4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        words[step] = 0;
#pragma unroll
        for (int value = 0; value < 4; ++value) {
            // Values 0 and 2 are lower, 1 and 3 upper; 0 and 1 inputs 4 step and + 1, 2 and 3 the next two.
            const uint2 from = codes[value % 2];
            const u32 four = (step < 2 ? from.x : from.y) >> (step % 2 * 16 + value / 2 * 8);
            words[step] |= placed<E2M1>(four & 15u, value) | other_half(placed<E2M1>(four >> 4 & 15u, value));
        }
    }
    uint4* out = reinterpret_cast<uint4*>(params.codes + place.index * 1024 + 512 * block);
    out[place.lane] = make_uint4(words[0], words[1], words[2], words[3]);
}

// Writes the lane's words of a tile whose codes stay as they are.
template <bool E2M1>
__device__ __forceinline__ void write_codes(const RepackParams& params, const Place& place) {
    const int first = place.unit * UNIT + place.lane % 4 * 32;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
        uint2 codes[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u8* row = row_of(params, h, place.tile, place.lane, params.columns / 2);
            codes[h] = codes16(row, first + 16 * block, params.columns);
        }
        write_words<E2M1>(params, place, block, codes);
    }
}

// An E4M3 scale without its sign as 5 bits of exponent and 3 of mantissa: 8 (e + 15) + m for 2^(e - 7) (1 + m / 8). A
// subnormal one is normalised; 0xff stays NaN.
__device__ __forceinline__ u32 wide_scale(u32 code) {
    const u32 exponent = code >> 3 & 15u, mantissa = code & 7u;
    if ((code & 0x7fu) == 0x7fu) {
        return 0xffu;
    }
    if (exponent != 0) {
        return (exponent + 15) * 8 + mantissa;
    }
    return mantissa >= 4 ? 15 * 8 + (mantissa - 4) * 2 : mantissa >= 2 ? 14 * 8 + (mantissa - 2) * 4 : 13 * 8;
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP) repack_nvfp4(const __grid_constant__ RepackParams params) {
    begin_kernel();
    Place place;
    if (!place_of(params, place)) {
        return;
    }
    u32 scales = 0;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
        const int k = place.unit * UNIT + place.lane % 4 * 32 + 16 * block;
        uint2 codes[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u8* row = row_of(params, h, place.tile, place.lane, params.columns / 2);
            codes[h] = codes16(row, k, params.columns);
            const u32 scale = scale_of<u8>(params, h, place.tile, place.lane, params.columns / 16, k / 16);
            // No scale of a tile is 0 or negative: the codes are, instead.
            if ((scale & 0x7fu) == 0) {
                codes[h] = make_uint2(0, 0);
            } else if ((scale & 0x80u) != 0) {
                codes[h] = make_uint2(codes[h].x ^ 0x88888888u, codes[h].y ^ 0x88888888u);
            }
            scales |= wide_scale(scale) << (16 * block + 8 * h);
        }
        write_words<true>(params, place, block, codes);
    }
    reinterpret_cast<u32*>(params.scales + place.index * 128)[place.lane] = scales;
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP) repack_mxfp4(const __grid_constant__ RepackParams params) {
    begin_kernel();
    Place place;
    if (!place_of(params, place)) {
        return;
    }
    const int first = place.unit * UNIT + place.lane % 4 * 32;
    u32 scales = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        // 2^112 times the scale; above 2^15 it is infinite, as is 0xff.
        const u32 scale = scale_of<u8>(params, h, place.tile, place.lane, params.columns / 32, first / 32);
        scales |= min(scale + 112u, 255u) << 8 * h;
    }
    reinterpret_cast<u16*>(params.scales + place.index * 64)[place.lane] = static_cast<u16>(scales);
    write_codes<true>(params, place);
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP) repack_int4(const __grid_constant__ RepackParams params) {
    begin_kernel();
    Place place;
    if (!place_of(params, place)) {
        return;
    }
    const int first = place.unit * UNIT + place.lane % 4 * 32;
    u32 scales = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        scales |= scale_of<u16>(params, h, place.tile, place.lane, params.columns / 32, first / 32) << 16 * h;
    }
    reinterpret_cast<u32*>(params.scales + place.index * 128)[place.lane] = scales;
    write_codes<false>(params, place);
}

struct UnpackParams {
    const u8* codes;  // [M, U] tiles of bf16
    u8* rows;         // [N, K] bf16
    int tiles;        // M
    int units;        // U
    int num_rows;     // N
    int columns;      // K
};

// A lane has 32 inputs of two outputs.
extern "C" __global__ void __launch_bounds__(WARPS * WARP) unpack_bf16(const __grid_constant__ UnpackParams params) {
    begin_kernel();
    const i64 index = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    const int tile = static_cast<int>(index / params.units), unit = static_cast<int>(index % params.units);
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    if (tile >= params.tiles) {
        return;
    }
    const uint4* in = reinterpret_cast<const uint4*>(params.codes + index * 4096) + lane;
    uint4 words[8];
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        words[step] = __ldcs(in + WARP * step);
    }
    const int row = tile * 16 + lane / 4, first = unit * UNIT + lane % 4 * 32;
    u8* out = params.rows + 2 * (static_cast<i64>(row) * params.columns + first);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (first + 8 * i < params.columns) {
            const uint4 a = words[2 * i], b = words[2 * i + 1];
            if (row < params.num_rows) {
                reinterpret_cast<uint4*>(out)[i] = make_uint4(a.x, a.z, b.x, b.z);
            }
            if (row + 8 < params.num_rows) {
                reinterpret_cast<uint4*>(out + 16ll * params.columns)[i] = make_uint4(a.y, a.w, b.y, b.w);
            }
        }
    }
}
