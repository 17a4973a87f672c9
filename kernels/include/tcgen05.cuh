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

// The same where rows are k and have 64 columns of bf16 each: the next 64 columns are `panels` bytes behind.
__device__ __forceinline__ u64 columns_descriptor(u32 address, u32 panels) {
    return rows_descriptor(address) | static_cast<u64>(panels >> 4) << 16;
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

// Formats of the operands of products of kinds f8f6f4 and f16.
constexpr u32 E4M3 = 0, E5M2 = 1, BF16 = 1;
// Bit of a descriptor: k is along the rows of A in shared memory, which have 128 bytes of one k each.
constexpr u32 ALONG_ROWS_OF_A = 1u << 15;
// The same of the columns of B.
constexpr u32 ALONG_COLUMNS_OF_B = 1u << 16;

// Instruction descriptor of products of `rows` by `columns`, of elements of these formats, with sums in f32.
__device__ __forceinline__ constexpr u32 product_descriptor(u32 a, u32 b, u32 rows, u32 columns) {
    constexpr u32 F32 = 1;
    return F32 << 4 | a << 7 | b << 10 | columns >> 3 << 17 | rows >> 4 << 24;
}

#define MULTIPLY(kind, a_operand, a_type)                                            \
    asm volatile(                                                                    \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %4, 0;\n"                           \
        "tcgen05.mma.cta_group::1.kind::" kind " [%0], " a_operand ", %2, %3, add;\n}" \
        :                                                                            \
        : "r"(sums), a_type(a), "l"(b), "r"(instruction), "r"(static_cast<u32>(add)) \
        : "memory")

// sums = A B, or sums += A B: 32 of k in 8-bit floats, A in tensor memory, four of k in a column.
__device__ __forceinline__ void multiply_codes(u32 sums, u32 a, u64 b, u32 instruction, bool add) { MULTIPLY("f8f6f4", "[%1]", "r"); }

// The same with A in shared memory, which stays at hand for the product behind this one.
__device__ __forceinline__ void multiply_codes_first(u32 sums, u64 a, u64 b, u32 instruction, bool add) {
    MULTIPLY("f8f6f4.collector::a::fill", "%1", "l");
}

// sums += A B with the A of the product in front of this one.
__device__ __forceinline__ void multiply_codes_again(u32 sums, u64 a, u64 b, u32 instruction) {
    constexpr bool add = true;
    MULTIPLY("f8f6f4.collector::a::lastuse", "%1", "l");
}

// sums += A B: 16 of k in 16-bit floats, A in tensor memory, two of k in a column.
__device__ __forceinline__ void multiply_halves(u32 sums, u32 a, u64 b, u32 instruction) {
    constexpr bool add = true;
    MULTIPLY("f16", "[%1]", "r");
}

// sums = A B, or sums += A B: 16 of k in 16-bit floats, both in shared memory.
__device__ __forceinline__ void multiply_shared(u32 sums, u64 a, u64 b, u32 instruction, bool add) { MULTIPLY("f16", "%1", "l"); }

// One arrival at a barrier, of each block of a pair, once all products and copies that the thread has begun are done.
template <int BLOCKS = 1>
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

#define WORDS8(words, i) "r"(words[i]), "r"(words[(i) + 1]), "r"(words[(i) + 2]), "r"(words[(i) + 3]), "r"(words[(i) + 4]), \
                         "r"(words[(i) + 5]), "r"(words[(i) + 6]), "r"(words[(i) + 7])
#define FLOATS8(to, i) "=f"(to[i]), "=f"(to[(i) + 1]), "=f"(to[(i) + 2]), "=f"(to[(i) + 3]), "=f"(to[(i) + 4]), "=f"(to[(i) + 5]), \
                       "=f"(to[(i) + 6]), "=f"(to[(i) + 7])
#define NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"

// Sixteen columns of the calling thread's lane.
__device__ __forceinline__ void load_columns(float (&to)[16], u32 address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 {" NAMES16 "}, [%16];\ntcgen05.wait::ld.sync.aligned;"
                 : FLOATS8(to, 0), FLOATS8(to, 8)
                 : "r"(address)
                 : "memory");
}

#define NAMES_TO_31 NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_TO_63                                                                                                         \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
    "%56, %57, %58, %59, %60, %61, %62, %63"

// 32 columns of the calling thread's lane.
__device__ __forceinline__ void load_columns(float (&to)[32], u32 address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {" NAMES_TO_31 "}, [%32];\ntcgen05.wait::ld.sync.aligned;"
                 : FLOATS8(to, 0), FLOATS8(to, 8), FLOATS8(to, 16), FLOATS8(to, 24)
                 : "r"(address)
                 : "memory");
}

#define NAMES_TO_127                                                                                                             \
    NAMES_TO_31 ", " NAMES_TO_63 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "  \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, "   \
    "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, " \
    "%125, %126, %127"

// 128 columns of the calling thread's lane.
__device__ __forceinline__ void load_columns(float (&to)[128], u32 address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x128.b32 {" NAMES_TO_127 "}, [%128];\ntcgen05.wait::ld.sync.aligned;"
                 : FLOATS8(to, 0), FLOATS8(to, 8), FLOATS8(to, 16), FLOATS8(to, 24), FLOATS8(to, 32), FLOATS8(to, 40),
                   FLOATS8(to, 48), FLOATS8(to, 56), FLOATS8(to, 64), FLOATS8(to, 72), FLOATS8(to, 80), FLOATS8(to, 88),
                   FLOATS8(to, 96), FLOATS8(to, 104), FLOATS8(to, 112), FLOATS8(to, 120)
                 : "r"(address)
                 : "memory");
}

// 64 columns of lanes i and i + 16 of the warp for the threads i and i + 16, of which the second one gets the upper half of both.
__device__ __forceinline__ void load_halves(float (&low)[32], float (&high)[32], u32 address) {
    asm volatile("tcgen05.ld.sync.aligned.16x32bx2.x32.b32 {" NAMES_TO_31 "}, [%64], 32;\n"
                 "tcgen05.ld.sync.aligned.16x32bx2.x32.b32 {" NAMES_TO_63 "}, [%65], 32;\n"
                 "tcgen05.wait::ld.sync.aligned;"
                 : FLOATS8(low, 0), FLOATS8(low, 8), FLOATS8(low, 16), FLOATS8(low, 24), FLOATS8(high, 0), FLOATS8(high, 8),
                   FLOATS8(high, 16), FLOATS8(high, 24)
                 : "r"(address), "r"(address + (16u << 16))
                 : "memory");
}

// Columns of the calling thread's lane. They are there behind `finish_stores`.
__device__ __forceinline__ void store_columns(u32 address, const u32 (&words)[8]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7};"
                 :
                 : WORDS8(words, 0), "r"(address)
                 : "memory");
}
__device__ __forceinline__ void store_columns(u32 address, const u32 (&words)[16]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], {" NAMES16 "};"
                 :
                 : WORDS8(words, 0), WORDS8(words, 8), "r"(address)
                 : "memory");
}
__device__ __forceinline__ void finish_stores() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

// Instruction descriptor of bf16 products of 128 rows by `columns`, a multiple of 16, sums in f32; both operands along k.
__device__ __forceinline__ u32 bf16_descriptor(u32 columns) {
    constexpr u32 F32 = 1, BF16 = 1, ROWS = 128;
    return F32 << 4 | BF16 << 7 | BF16 << 10 | columns >> 3 << 17 | ROWS >> 4 << 24;
}

// sums = A B, or sums += A B: 16 of k in bf16, A in tensor memory, a row a lane and two of k a column.
__device__ __forceinline__ void multiply_bf16(u32 sums, u32 a, u64 b, u32 instruction, bool add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, add;\n}"
        :
        : "r"(sums), "r"(a), "l"(b), "r"(instruction), "r"(static_cast<u32>(add))
        : "memory");
}

// Fragments of A of eight steps as `mma` takes them (mma.cuh), which are 16 lanes of 64 columns: eight columns a step. On their way until
// `finish_stores`.
__device__ __forceinline__ void store_fragments(u32 address, const u32 (&words)[32]) {
    asm volatile(
        "tcgen05.st.sync.aligned.16x128b.x16.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32};"
        :
        : "r"(address), WORDS8(words, 0), WORDS8(words, 8), WORDS8(words, 16), WORDS8(words, 24)
        : "memory");
}

// 16 lanes of 32 columns, of every eight columns as `mma` has sums.
__device__ __forceinline__ void load_sums(float (&sums)[16], u32 address) {
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];\n"
        "tcgen05.wait::ld.sync.aligned;"
        : FLOATS8(sums, 0), FLOATS8(sums, 8)
        : "r"(address)
        : "memory");
}

// The same of eight columns.
__device__ __forceinline__ void load_sums(float (&sums)[4], u32 address) {
    asm volatile("tcgen05.ld.sync.aligned.16x256b.x1.b32 {%0, %1, %2, %3}, [%4];\ntcgen05.wait::ld.sync.aligned;"
                 : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
                 : "r"(address)
                 : "memory");
}

// The reverse of it.
__device__ __forceinline__ void store_sums(u32 address, const float (&sums)[16]) {
    u32 words[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        words[i] = __float_as_uint(sums[i]);
    }
    asm volatile(
        "tcgen05.st.sync.aligned.16x256b.x4.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16};"
        :
        : "r"(address), WORDS8(words, 0), WORDS8(words, 8)
        : "memory");
}
