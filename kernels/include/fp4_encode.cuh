// Values to 4-bit floats with a scale per block (E2M1 with E4M3 or E8M0, OCP MX and NVFP4), byte for byte as the host rounds them.
// Spec: quant/activation.rs `ActivationForm::encode`. Conversions: PTX ISA, cvt (sm_120a).

#include "fp4_rows.cuh"
#include "mma.cuh"

// Two values to E2M1 codes, the first one low. A zero has no sign, as on the host.
__device__ __forceinline__ u32 e2m1_pair_of(float low, float high) {
    u32 codes;
    asm("{\n.reg .b8 pair;\ncvt.rn.satfinite.e2m1x2.f32 pair, %1, %2;\ncvt.u32.u8 %0, pair;\n}"
        : "=r"(codes)
        : "f"(__fadd_rn(high, 0.0f)), "f"(__fadd_rn(low, 0.0f)));
    return codes;
}

// The values of two E2M1 codes, exactly.
__device__ __forceinline__ float2 floats_of_e2m1(u32 codes) {
    u32 pair;
    asm("{\n.reg .b8 pair;\ncvt.u8.u32 pair, %1;\ncvt.rn.f16x2.e2m1x2 %0, pair;\n}" : "=r"(pair) : "r"(codes));
    return floats_of_f16(pair);
}

// A value to E4M3, and the value of a code, exactly.
__device__ __forceinline__ u32 e4m3_of(float value) {
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(value));
    return codes & 0xffu;
}

__device__ __forceinline__ float float_of_e4m3(u32 code) { return floats_of_f16(f16_of_e4m3(code)).x; }

// The largest magnitude of a block, and whether all of it is finite.
template <int COUNT>
__device__ __forceinline__ float peak_of(const float (&values)[COUNT], bool& finite) {
    float peak = 0.0f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        peak = fmaxf(peak, fabsf(values[i]));
        sum += values[i] * 0.0f;
    }
    finite = sum == 0.0f;
    return peak;
}

// Codes of 16 values times `inverse`, two words.
__device__ __forceinline__ uint2 codes16_of(const float* values, float inverse) {
    u32 words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 pair = e2m1_pair_of(__fmul_rn(values[2 * i], inverse), __fmul_rn(values[2 * i + 1], inverse));
        words[i / 4] |= pair << (8 * (i % 4));
    }
    return make_uint2(words[0], words[1]);
}

// NVFP4 rows that are sums of TERMS rows: each block of 16 in an E4M3 scale and 8 bytes of codes a term.
template <int TERMS_>
struct Nvfp4Rows {
    static constexpr int TERMS = TERMS_, BLOCK = 16;
    // Writes block `block` of a row of `stages` stages that begins at `row`, of which `terms` are not 0.
    static __device__ __forceinline__ void write(
        u8* row, int stages, int block, float (&rest)[BLOCK], const Fp4Scales& scales, int terms) {
        constexpr u32 NOT_A_NUMBER = 0x7f;
#pragma unroll
        for (int term = 0; term < TERMS; ++term) {
            bool finite;
            const float peak = peak_of(rest, finite);
            const u32 rounded =
                finite ? e4m3_of(__fmul_rn(scales.global[term], __fmul_rn(peak, 1.0f / 6.0f))) : NOT_A_NUMBER;
            const u32 byte = term < terms ? rounded : 0u;
            const float scale = float_of_e4m3(byte);
            const float inverse = byte == 0 ? 0.0f : __frcp_rn(__fmul_rn(scale, scales.back[term]));
            const float unit = __fmul_rn(scale, scales.tensor[term]);
            const uint2 codes = codes16_of(rest, inverse);
            u8* to = row + fp4_column(stages, term, block / 16);
            *reinterpret_cast<uint2*>(to + block % 16 * 8) = codes;
            to[STAGE_CODES + block % 16] = static_cast<u8>(byte);
            if (term + 1 == TERMS) {
                break;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float2 pair = floats_of_e2m1((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)) & 0xffu);
                rest[2 * i] = __fsub_rn(rest[2 * i], __fmul_rn(pair.x, unit));
                rest[2 * i + 1] = __fsub_rn(rest[2 * i + 1], __fmul_rn(pair.y, unit));
            }
        }
    }
};

// MXFP4 rows: each block of 32 in an E8M0 scale and 16 bytes of codes.
struct Mxfp4Rows {
    static constexpr int TERMS = 1, BLOCK = 32;
    static __device__ __forceinline__ void write(
        u8* row, int stages, int block, const float (&values)[BLOCK], const Fp4Scales&, int) {
        constexpr u32 NOT_A_NUMBER = 0xff, BINADES = 2;
        bool finite;
        // The exponent of the peak, rounded up from a mantissa of 1.75 on, less the binades of E2M1.
        const u32 exponent = (__float_as_uint(peak_of(values, finite)) + 0x200000u) >> 23;
        const u32 byte = finite ? min(exponent > BINADES ? exponent - BINADES : 0u, 254u) : NOT_A_NUMBER;
        // 2^(127 - byte), of which that of 254 is no normal number.
        const float inverse = __uint_as_float(byte >= 254 ? 0x400000u : (254u - byte) << 23);
        const uint2 low = codes16_of(values, inverse), high = codes16_of(values + 16, inverse);
        u8* to = row + fp4_column(stages, 0, block / 8);
        *reinterpret_cast<uint4*>(to + block % 8 * 16) = make_uint4(low.x, low.y, high.x, high.y);
        to[STAGE_CODES + block % 8] = static_cast<u8>(byte);
        // What lies between scales and the next stage is copied with them.
        if (block % 8 == 7) {
            *reinterpret_cast<uint2*>(to + STAGE_CODES + 8) = make_uint2(0, 0);
        }
    }
};
