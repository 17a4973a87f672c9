// Tensor cores on bf16 (PTX ISA, "Warp-level matrix instructions"; sm_80), and what prepares their operands.
//
// Fragments of m16n8k16, lane 4g + t: A holds (row g, k 2t 2t+1), (row g + 8, the same), (row g, k 2t+8 2t+9), (row g + 8,
// the same); B holds (k 2t 2t+1, column g), (k 2t+8 2t+9, column g); the sums (row g, columns 2t 2t+1), (row g + 8, the same).

#include "types.cuh"

// sums += A B.
__device__ __forceinline__ void mma(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// Four 8x8 matrices of bf16 from shared memory; lane l gives the address of row l % 8 of matrix l / 8, a multiple of 16.
// A lane gets (row g, columns 2t 2t+1) of each.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same transposed: a lane gets (rows 2t 2t+1, column g) of each.
__device__ __forceinline__ void load_transposed(u32 (&to)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Four bytes to an address of shared memory, a multiple of 4, where the statement stands: its address is made there, and waits in no register.
__device__ __forceinline__ void store_shared(u32 to, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" : : "r"(to), "r"(word) : "memory");
}

// 16 bytes to an address of shared memory, a multiple of 16, in one store whatever the compiler knows of it.
__device__ __forceinline__ void store_shared(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" : : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_shared(bf16* to, u32 a, u32 b, u32 c, u32 d) {
    store_shared(shared_address(to), a, b, c, d);
}

// 4 bytes to an address of shared memory, on their way until `wait_copies`.
__device__ __forceinline__ void copy4(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

// 16 bytes to shared memory, on their way until `wait_copies`.
__device__ __forceinline__ void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from))
                 : "memory");
}

// The same, or zeros.
__device__ __forceinline__ void copy16_if(void* to, const void* from, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of this thread but the last `LEFT`.
template <int LEFT>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Two products of bf16, each rounded once.
__device__ __forceinline__ u32 multiply2(u32 a, u32 b) {
    u32 product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

// The E4M3 codes in the upper bytes of both halves, exactly: exponent and mantissa as those of a bf16 are 2^-120 too small.
__device__ __forceinline__ u32 bf16_of_e4m3(u32 codes) {
    return multiply2((codes & 0x7f007f00u) >> 4 | (codes & 0x80008000u), 0x7b807b80u);
}

// Two E4M3 codes, the lower 16 bits, in order to f16, exactly (PTX ISA, cvt; sm_89).
__device__ __forceinline__ u32 f16_of_e4m3(u32 codes) {
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<u16>(codes)));
    return pair;
}

__device__ __forceinline__ u32 word_of(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}
