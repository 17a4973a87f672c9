// Weights as checkpoints store them, decoded to f32 in registers, and their products with rows of f32.
//
// A weight is `[experts, N, K]`, row-major; a plain linear is a list of one. Its value is scale * code in f32 with one
// rounding, as quant/packed.rs decodes it. K is a multiple of VALUES.

// Rows of activations that a warp multiplies with a decoded weight.
constexpr int ROWS = 8;

// Device side of cuda/weights/matrix.rs `WeightParams`.
struct Weight {
    const u8* codes;             // [experts, N, K] values or codes
    const u8* scales;            // scales of the format, f32 where the checkpoint has f32 or bf16 (fp8)
    const float* tensor_scales;  // [experts] f32
    i64 codes_stride;            // bytes of an expert's codes
    i64 scales_stride;           // bytes of an expert's scales
    int rows;                    // N
    int columns;                 // K
    int divide;                  // whether block scales are divided by the tensor scale, else multiplied
    int scale_rows;              // fp8: rows that share a scale
    int scale_columns;           // fp8: columns that share a scale
    int scale_groups;            // fp8: scales of a row
};

// One row of a weight.
struct WeightRow {
    const u8* codes;
    const u8* scales;
    float tensor_scale;
    int divide;
    int scale_columns;
};

__device__ __forceinline__ float with_tensor_scale(const WeightRow& row, float block) {
    return row.divide ? __fdiv_rn(block, row.tensor_scale) : block * row.tensor_scale;
}

// E4M3 to f32: exponent and mantissa taken as those of an f32 are 2^-120 too small; 0x7f is NaN.
__device__ __forceinline__ float e4m3(u32 code) {
    const float magnitude = __uint_as_float((code & 0x7fu) << 20) * __uint_as_float((127u + 120u) << 23);
    const u32 bits = (code & 0x7fu) == 0x7fu ? 0x7fc00000u : __float_as_uint(magnitude);
    return __uint_as_float(bits | (code & 0x80u) << 24);
}

// E8M0 to f32: 2^(code - 127), a subnormal number for 0; 0xff is NaN.
__device__ __forceinline__ float e8m0(u32 code) {
    const u32 bits = code == 0 ? 0x00400000u : code << 23;
    return __uint_as_float(code == 0xffu ? 0x7fc00000u : bits);
}

// E2M1 to f32: as E4M3 above, 2^-126 too small. `code` has the nibble in its low bits.
__device__ __forceinline__ float e2m1(u32 code) {
    return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * __uint_as_float((127u + 126u) << 23);
}

struct F32 {
    static constexpr int VALUES = 8;
    static __device__ __forceinline__ void load(float (&w)[VALUES], const WeightRow& row, int k) {
        load8(w, reinterpret_cast<const float*>(row.codes) + k);
    }
};

struct Bf16 {
    static constexpr int VALUES = 8;
    static __device__ __forceinline__ void load(float (&w)[VALUES], const WeightRow& row, int k) {
        load8(w, reinterpret_cast<const bf16*>(row.codes) + k);
    }
};

// 16 codes of four bits, the even one in the low nibble.
struct Nibbles {
    static constexpr int VALUES = 16;
    static __device__ __forceinline__ uint2 load(const WeightRow& row, int k) {
        return *reinterpret_cast<const uint2*>(row.codes + k / 2);
    }
    static __device__ __forceinline__ u32 at(uint2 pair, int i) {
        return (i < 8 ? pair.x : pair.y) >> (i % 8 * 4) & 15u;
    }
};

struct Nvfp4 : Nibbles {
    static __device__ __forceinline__ void load(float (&w)[VALUES], const WeightRow& row, int k) {
        const uint2 codes = Nibbles::load(row, k);
        const float scale = with_tensor_scale(row, e4m3(row.scales[k / 16]));
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            w[i] = scale * e2m1(at(codes, i));
        }
    }
};

struct Mxfp4 : Nibbles {
    static __device__ __forceinline__ void load(float (&w)[VALUES], const WeightRow& row, int k) {
        const uint2 codes = Nibbles::load(row, k);
        const float scale = e8m0(row.scales[k / 32]);
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            w[i] = scale * e2m1(at(codes, i));
        }
    }
};

struct Int4 : Nibbles {
    static __device__ __forceinline__ void load(float (&w)[VALUES], const WeightRow& row, int k) {
        const uint2 codes = Nibbles::load(row, k);
        const float scale = low_half(reinterpret_cast<const u16*>(row.scales)[k / 32]);
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            // 2^23 + code, less 2^23 + 8.
            w[i] = scale * (__uint_as_float(0x4b000000u | at(codes, i)) - 8388616.0f);
        }
    }
};

struct Fp8 {
    static constexpr int VALUES = 16;
    static __device__ __forceinline__ void load(float (&w)[VALUES], const WeightRow& row, int k) {
        const uint4 codes = *reinterpret_cast<const uint4*>(row.codes + k);
        const float scale = reinterpret_cast<const float*>(row.scales)[k / row.scale_columns];
        const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            w[i] = scale * e4m3(words[i / 4] >> (i % 4 * 8));
        }
    }
};

// Bytes before row `n` of codes and scales, by format.
template <typename Format>
struct RowBytes;
template <>
struct RowBytes<F32> {
    static __device__ __forceinline__ i64 codes(int columns) { return 4ll * columns; }
    static __device__ __forceinline__ i64 scales(const Weight&, int) { return 0; }
};
template <>
struct RowBytes<Bf16> {
    static __device__ __forceinline__ i64 codes(int columns) { return 2ll * columns; }
    static __device__ __forceinline__ i64 scales(const Weight&, int) { return 0; }
};
template <>
struct RowBytes<Nvfp4> {
    static __device__ __forceinline__ i64 codes(int columns) { return columns / 2; }
    static __device__ __forceinline__ i64 scales(const Weight& w, int n) { return static_cast<i64>(n) * (w.columns / 16); }
};
template <>
struct RowBytes<Mxfp4> {
    static __device__ __forceinline__ i64 codes(int columns) { return columns / 2; }
    static __device__ __forceinline__ i64 scales(const Weight& w, int n) { return static_cast<i64>(n) * (w.columns / 32); }
};
template <>
struct RowBytes<Int4> {
    static __device__ __forceinline__ i64 codes(int columns) { return columns / 2; }
    static __device__ __forceinline__ i64 scales(const Weight& w, int n) { return static_cast<i64>(n) * (w.columns / 16); }
};
template <>
struct RowBytes<Fp8> {
    static __device__ __forceinline__ i64 codes(int columns) { return columns; }
    static __device__ __forceinline__ i64 scales(const Weight& w, int n) {
        return 4ll * (n / w.scale_rows) * w.scale_groups;
    }
};

// Row `n` of expert `e`; a row past the end is the last one, so that loads stay inside.
template <typename Format>
__device__ __forceinline__ WeightRow row_of(const Weight& weight, int e, int n) {
    n = min(n, weight.rows - 1);
    const u8* codes = weight.codes + e * weight.codes_stride + n * RowBytes<Format>::codes(weight.columns);
    const u8* scales = weight.scales + e * weight.scales_stride + RowBytes<Format>::scales(weight, n);
    return {codes, scales, weight.tensor_scales[e], weight.divide, weight.scale_columns};
}

// Rows of x anywhere, and of one buffer, where they take less registers.
struct RowPointers {
    const float* at[ROWS];
    __device__ __forceinline__ const float* operator[](int r) const { return at[r]; }
};
struct RowOffsets {
    const float* x;
    u32 at[ROWS];  // values
    __device__ __forceinline__ const float* operator[](int r) const { return x + at[r]; }
};

// sums[c][r] = rows[c] . x[r] for r < num_rows, the same bits in every lane; x are rows of f32 at multiples of 32 bytes.
//
// A lane adds the products of its columns in their order, then the lanes are added by warp_sum: the order depends on K
// and the format alone. ALL: also of the rows that are not there, which x repeats: no branch keeps loads from being on their way at once.
template <typename Format, int COLUMNS, bool ALL = false, typename X>
__device__ __forceinline__ void warp_products(
    float (&sums)[COLUMNS][ROWS], const WeightRow (&rows)[COLUMNS], const X& x, int num_rows, int columns) {
    constexpr int VALUES = Format::VALUES;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            sums[c][r] = 0.0f;
        }
    }
    for (int k = lane * VALUES; k < columns; k += WARP * VALUES) {
        float w[COLUMNS][VALUES];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            Format::load(w[c], rows[c], k);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            // The same for the whole warp: rows that are not there cost no loads.
            if (ALL || r < num_rows) {
#pragma unroll
                for (int part = 0; part < VALUES; part += 8) {
                    float values[8];
                    load8(values, x[r] + k + part);
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
#pragma unroll
                        for (int c = 0; c < COLUMNS; ++c) {
                            sums[c][r] = __fmaf_rn(values[i], w[c][part + i], sums[c][r]);
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (ALL || r < num_rows) {
                sums[c][r] = warp_sum(sums[c][r]);
            }
        }
    }
}
