// Tensor cores of Blackwell's data center chips (PTX ISA, "tcgen05"; sm_100a, sm_103a): one thread has tiles of shared memory multiplied onto
// sums in tensor memory, 128 lanes of 512 columns of 32 bits that threads of four warps read, a lane each.

// BLOCKS is one, or two for a pair of blocks (PTX ISA, "CTA pair"): then each has half of the rows of A and of D, half of the columns of B,
// scales of its own rows of A, and those of all columns of B. One thread of the pair begins copies of scales, which each block makes of its
// own memory, and products; all instructions of a kernel are of one kind.

#include "barrier.cuh"

// Allocates columns, a power of two of the 512, whose address is written to shared memory; all lanes of one warp call it, in each block of a
// pair, and later `leave_tensor_memory`. Of a block on the same multiprocessor that has too many it waits for the end.
template <int BLOCKS, u32 COLUMNS>
__device__ __forceinline__ void take_tensor_memory(u32* address) {
    asm volatile("tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;"
                 :
                 : "r"(shared_address(address)), "n"(COLUMNS), "n"(BLOCKS)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(BLOCKS));
}

template <int BLOCKS, u32 COLUMNS>
__device__ __forceinline__ void leave_tensor_memory(u32 address) {
    asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(COLUMNS), "n"(BLOCKS));
}

// Whether the calling thread is the one of its warp, all of which calls it, that begins products: where the compiler sees that one does, it
// makes no loop over the others of each instruction.
__device__ __forceinline__ bool is_elected() {
    u32 elected;
    asm volatile("{\n.reg .pred elected;\nelect.sync _|elected, 0xffffffff;\nselp.u32 %0, 1, 0, elected;\n}" : "=r"(elected));
    return elected != 0;
}

// Orders accesses of tensor memory with a barrier: in front of it, behind it.
__device__ __forceinline__ void before_meeting() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void after_meeting() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

constexpr u64 TCGEN05_VERSION = 1;

// Matrix descriptor of rows of 128 bytes, K-major, chunk c of 16 bytes of row r at c ^ (r % 8); rows begin at a multiple of 1024 bytes, k at one
// of 32.
__device__ __forceinline__ u64 rows_descriptor(u32 address) {
    constexpr u64 SWIZZLE_128 = 2, EIGHT_ROWS = 8 * 128;
    return static_cast<u64>((address & 0x3ffff) >> 4) | EIGHT_ROWS >> 4 << 32 | TCGEN05_VERSION << 46 | SWIZZLE_128 << 61;
}

// The same of 32 rows of 16 bytes, one behind the other.
__device__ __forceinline__ u64 scales_descriptor(u32 address) {
    constexpr u64 EIGHT_ROWS = 8 * 16;
    return static_cast<u64>((address & 0x3ffff) >> 4) | EIGHT_ROWS >> 4 << 32 | TCGEN05_VERSION << 46;
}

// A block of 512 bytes of scales to four columns, of all four warps.
template <int BLOCKS>
__device__ __forceinline__ void copy_scales(u32 columns, u64 scales) {
    asm volatile("tcgen05.cp.cta_group::%2.32x128b.warpx4 [%0], %1;" ::"r"(columns), "l"(scales), "n"(BLOCKS) : "memory");
}

// Instruction descriptor of E2M1 products of `rows` by `columns`, with scales in E8M0 or else in E4M3 that begin at a byte of their columns.
__device__ __forceinline__ u32 fp4_descriptor(u32 rows, u32 columns, bool e8m0, u32 byte) {
    constexpr u32 E2M1 = 1;
    return byte << 4 | E2M1 << 7 | E2M1 << 10 | columns >> 3 << 17 | static_cast<u32>(e8m0) << 23 | rows >> 4 << 24 | byte << 29;
}

#define MULTIPLY_FP4(block)                                                                                                  \
    asm volatile(                                                                                                            \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\n"                                                                     \
        "tcgen05.mma.cta_group::%7.kind::mxf4nvf4.block_scale." block " [%0], %1, %2, %3, [%4], [%5], add;\n}"              \
        :                                                                                                                    \
        : "r"(sums), "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(static_cast<u32>(add)), "n"(BLOCKS) \
        : "memory")

// sums = A B, or sums += A B: 64 of k in 4-bit floats with a scale per BLOCK of them.
template <int BLOCKS, int BLOCK>
__device__ __forceinline__ void multiply_fp4(u32 sums, u64 a, u64 b, u32 instruction, u32 a_scales, u32 b_scales, bool add) {
    if constexpr (BLOCK == 16) {
        MULTIPLY_FP4("block16");
    } else {
        MULTIPLY_FP4("block32");
    }
}

// One arrival at a barrier, of each block of a pair, once all products and copies that the thread has begun are done.
template <int BLOCKS>
__device__ __forceinline__ void arrive_with_products(u64* barrier) {
    if constexpr (BLOCKS == 1) {
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(barrier))
                     : "memory");
    } else {
        constexpr u16 BOTH = 3;
        asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                         shared_address(barrier)),
                     "h"(BOTH)
                     : "memory");
    }
}

// Eight columns of the calling thread's lane.
__device__ __forceinline__ void load_sums(float (&to)[8], u32 address) {
    u32 words[8];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];\ntcgen05.wait::ld.sync.aligned;"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]), "=r"(words[4]), "=r"(words[5]), "=r"(words[6]),
                   "=r"(words[7])
                 : "r"(address)
                 : "memory");
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        to[i] = __uint_as_float(words[i]);
    }
}
