// Element types and the loads and stores that move eight values at once. Needs no header of CUDA.
//
// Addresses are multiples of 16 bytes (bf16) or 32 bytes (f32); a thread moves 16 bytes per instruction.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// Lanes of a warp.
constexpr int WARP = 32;

// Most devices that share a model.
constexpr u32 MAX_RANKS = 8;

// A bf16 value as it is stored.
struct bf16 {
    u16 bits;
};

// An f16 value as it is stored.
struct f16 {
    u16 bits;
};

// Both f16 of a word to f32, exactly.
__device__ __forceinline__ float2 floats_of_f16(u32 pair) {
    float2 values;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
        : "=f"(values.x), "=f"(values.y)
        : "r"(pair));
    return values;
}

// bf16 to f32 is exact: the upper half of the word.
__device__ __forceinline__ float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Two f32 to bf16, rounded to the nearest, ties to even (PTX ISA, cvt; sm_80).
__device__ __forceinline__ u32 pair_of(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The same to f16.
__device__ __forceinline__ u32 f16_pair_of(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// One f32 to bf16, rounded as above.
__device__ __forceinline__ bf16 bf16_of(float value) { return {static_cast<u16>(pair_of(value, 0.0f))}; }

__device__ __forceinline__ void load8(float (&values)[8], const float* from) {
    const float4 a = reinterpret_cast<const float4*>(from)[0];
    const float4 b = reinterpret_cast<const float4*>(from)[1];
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
}

// Values that other blocks of this launch wrote: from the second cache, since the first is not kept coherent.
__device__ __forceinline__ void load8_fresh(float (&values)[8], const float* from) {
    const float4 a = __ldcg(reinterpret_cast<const float4*>(from));
    const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
}

__device__ __forceinline__ void load8(float (&values)[8], const bf16* from) {
    const uint4 a = *reinterpret_cast<const uint4*>(from);
    values[0] = low_half(a.x), values[1] = high_half(a.x), values[2] = low_half(a.y), values[3] = high_half(a.y);
    values[4] = low_half(a.z), values[5] = high_half(a.z), values[6] = low_half(a.w), values[7] = high_half(a.w);
}

__device__ __forceinline__ void store8(float* to, const float (&values)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
}

__device__ __forceinline__ void store8(bf16* to, const float (&values)[8]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(
        pair_of(values[0], values[1]), pair_of(values[2], values[3]),
        pair_of(values[4], values[5]), pair_of(values[6], values[7]));
}

// The first statement of every kernel, but for loads of what no kernel writes. Where the launch may begin before the one in front
// of it has ended (an attribute of the launch; PTX ISA, griddepcontrol), what that one and all before it wrote is there when this
// returns. The launch behind may begin from here on: it waits for all of this one.
//
// First the wait, then the trigger. So a launch begins when the one in front of it has passed its own wait, and whatever came before
// that one has ended: what the launch before the last wrote (worklists, block tables, weights) may be read in front of the wait. With
// the trigger first such reads would be stale now and then, on a device alone. tests/kernels.rs checks every kernel's PTX.
__device__ __forceinline__ void begin_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
