// Parts that both forms of latent attention share: four values at a time, the rotation of a query.

#include "types.cuh"

// Four consecutive values, at a multiple of 16 bytes (f32) or 8 bytes (bf16, f16).
__device__ __forceinline__ float4 four_of(const float* from) { return *reinterpret_cast<const float4*>(from); }

__device__ __forceinline__ float4 four_of(const bf16* from) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(from);
    return make_float4(low_half(pairs.x), high_half(pairs.x), low_half(pairs.y), high_half(pairs.y));
}

__device__ __forceinline__ float4 four_of(const f16* from) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(from);
    const float2 low = floats_of_f16(pairs.x), high = floats_of_f16(pairs.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ void store_four(float* to, float4 values) { *reinterpret_cast<float4*>(to) = values; }

// sum + a . b, in order of the components.
__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    return __fmaf_rn(a.w, b.w, sum);
}

// sum + factor * values.
__device__ __forceinline__ float4 fma4(float factor, float4 values, float4 sum) {
    return make_float4(__fmaf_rn(factor, values.x, sum.x), __fmaf_rn(factor, values.y, sum.y),
                       __fmaf_rn(factor, values.z, sum.z), __fmaf_rn(factor, values.w, sum.w));
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float4 scale4(float factor, float4 values) {
    return make_float4(factor * values.x, factor * values.y, factor * values.z, factor * values.w);
}

__device__ __forceinline__ float4 divide4(float4 values, float divisor) {
    return make_float4(__fdiv_rn(values.x, divisor), __fdiv_rn(values.y, divisor), __fdiv_rn(values.z, divisor),
                       __fdiv_rn(values.w, divisor));
}

// Takes the nearest bf16 off each of four values.
__device__ __forceinline__ uint2 take_term(float4& four) {
    const uint2 term = make_uint2(pair_of(four.x, four.y), pair_of(four.z, four.w));
    four.x -= low_half(term.x), four.y -= high_half(term.x);
    four.z -= low_half(term.y), four.w -= high_half(term.y);
    return term;
}

// Values i .. i + 3 of a query head [N + R] as attention reads them: the pairs (2j, 2j + 1) of the last R rotated.
// `rotation` [R]: R/2 cosines, then R/2 sines. i is a multiple of 4.
__device__ __forceinline__ float4 query_four(const float* head, const float* rotation, int nope, int rope, int i) {
    const float4 x = four_of(head + i);
    if (i < nope) {
        return x;
    }
    const float* cosines = rotation + (i - nope) / 2;
    const float* sines = cosines + rope / 2;
    return make_float4(x.x * cosines[0] - x.y * sines[0], x.y * cosines[0] + x.x * sines[0],
                       x.z * cosines[1] - x.w * sines[1], x.w * cosines[1] + x.z * sines[1]);
}

// Largest value of the LANES lanes of a group within a warp. A NaN is left out: its exponential carries it on.
template <int LANES>
__device__ __forceinline__ float group_max(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
}

// Sum over the LANES lanes of a group within a warp, by a butterfly; the same bits in every lane of the group.
template <int LANES>
__device__ __forceinline__ float group_sum(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}

constexpr float LOG2_E = 1.44269504f;

// 2^x, off by up to 2^-22 of the result (PTX ISA, ex2).
__device__ __forceinline__ float exp2_of(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
