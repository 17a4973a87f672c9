// Tensor cores of Hopper (PTX ISA, "Asynchronous warpgroup level matrix instructions"; sm_90a): products of tiles in shared
// memory by the four warps of a warpgroup.
//
// A tile is made of panels (panel.cuh). Sums of m64nN are those of m16n8 for every eight columns (mma.cuh), warp w of the group
// having rows 16w .. 16w + 15.

#include "barrier.cuh"
#include "panel.cuh"
#include "warpgroup.cuh"

// Matrix descriptor of a tile at this address of shared memory. Along k in a row (K-major): `panels` is not read. Along the
// rows (MN-major): k is the row of a panel, and the next 64 columns are `panels` bytes behind.
__device__ __forceinline__ u64 descriptor(u32 address, u32 panels) {
    constexpr u64 SWIZZLE_128 = 1;
    return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(panels >> 4) << 16 |
           static_cast<u64>(PANEL_EIGHT >> 4) << 32 | SWIZZLE_128 << 62;
}

// Registers of sums that were written by other instructions are seen by the products behind it.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Products begun since the last call become a group; waits for all groups but the last `LEFT`.
template <int LEFT>
__device__ __forceinline__ void finish_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Waits for all products that were begun.
__device__ __forceinline__ void finish_products() { finish_products<0>(); }

#define WGMMA_SUMS4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define WGMMA_SUMS8(d, i) WGMMA_SUMS4(d, i), WGMMA_SUMS4(d, (i) + 4)
#define WGMMA_SUMS16(d, i) WGMMA_SUMS8(d, i), WGMMA_SUMS8(d, (i) + 8)
#define WGMMA_SUMS24(d, i) WGMMA_SUMS16(d, i), WGMMA_SUMS8(d, (i) + 16)
#define WGMMA_SUMS32(d, i) WGMMA_SUMS16(d, i), WGMMA_SUMS16(d, (i) + 16)
#define WGMMA_SUMS48(d, i) WGMMA_SUMS32(d, i), WGMMA_SUMS16(d, (i) + 32)
#define WGMMA_SUMS64(d, i) WGMMA_SUMS32(d, i), WGMMA_SUMS32(d, (i) + 32)
#define WGMMA_SUMS128(d, i) WGMMA_SUMS64(d, i), WGMMA_SUMS64(d, (i) + 64)

// The first operands of a statement: its sums.
#define WGMMA_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES24 WGMMA_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES32 WGMMA_NAMES24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES48 \
    WGMMA_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES64 \
    WGMMA_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define WGMMA_NAMES128                                                                             \
    WGMMA_NAMES64                                                                                  \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"  \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"  \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"  \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// What 16 bits of a tile are.
enum class Element { Bf16, F16 };

#define WGMMA_64(element)                                                                        \
    asm volatile(                                                                                 \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                                          \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." element "." element " {" WGMMA_NAMES32 "}"  \
        ", %32, %33, add, 1, 1, 0, 0;\n}"                                                         \
        : WGMMA_SUMS32(sums, 0)                                                                   \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)))

// sums [64, 64] = or += A B, 16 of k; A and B along k in a row.
template <Element ELEMENT>
__device__ __forceinline__ void wgmma_64(float (&sums)[32], u64 a, u64 b, bool add) {
    if constexpr (ELEMENT == Element::F16) {
        WGMMA_64("f16");
    } else {
        WGMMA_64("bf16");
    }
}

// sums [64, 256] = or += A B, 16 of k, of bf16; A and B along k in a row.
__device__ __forceinline__ void wgmma_256(float (&sums)[128], u64 a, u64 b, bool add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" WGMMA_NAMES128 "}, %128, %129, add, 1, 1, 0, 0;\n}"
        : WGMMA_SUMS128(sums, 0)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

#define WGMMA_128(element)                                                                        \
    asm volatile(                                                                                  \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." element "." element " {" WGMMA_NAMES64 "}"  \
        ", %64, %65, 1, 1, 1, 0, 1;"                                                               \
        : WGMMA_SUMS64(sums, 0)                                                                    \
        : "l"(a), "l"(b))

// sums [64, 128] += A B, 16 of k; A along k in a row, B along its 128 columns.
template <Element ELEMENT>
__device__ __forceinline__ void wgmma_128(float (&sums)[64], u64 a, u64 b) {
    if constexpr (ELEMENT == Element::F16) {
        WGMMA_128("f16");
    } else {
        WGMMA_128("bf16");
    }
}

// The same of bf16 with A in registers, as in mma.cuh.
__device__ __forceinline__ void wgmma_128(float (&sums)[64], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_NAMES64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : WGMMA_SUMS64(sums, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The names are those of A, B and `add` behind the sums.
#define WGMMA_ROWS(n, count, outputs, a0, a1, a2, a3, rows, set)                               \
    asm volatile(                                                                              \
        "{\n.reg .pred add;\nsetp.ne.b32 add, " set ", 0;\n"                                   \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" WGMMA_NAMES##count "}, {"  \
        a0 ", " a1 ", " a2 ", " a3 "}, " rows ", add, 1, 1, 0;\n}"                             \
        : outputs                                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)))

// sums [64, N] = or += A B, 16 of k, of bf16; A in registers, as in mma.cuh, B along k in a row.
template <int N>
__device__ __forceinline__ void wgmma_rows(float (&sums)[N / 2], const u32 (&a)[4], u64 b, bool add) {
    static_assert(N == 32 || N == 48 || N == 64 || N == 96 || N == 128);
    if constexpr (N == 32) {
        WGMMA_ROWS(32, 16, WGMMA_SUMS16(sums, 0), "%16", "%17", "%18", "%19", "%20", "%21");
    } else if constexpr (N == 48) {
        WGMMA_ROWS(48, 24, WGMMA_SUMS24(sums, 0), "%24", "%25", "%26", "%27", "%28", "%29");
    } else if constexpr (N == 64) {
        WGMMA_ROWS(64, 32, WGMMA_SUMS32(sums, 0), "%32", "%33", "%34", "%35", "%36", "%37");
    } else if constexpr (N == 96) {
        WGMMA_ROWS(96, 48, WGMMA_SUMS48(sums, 0), "%48", "%49", "%50", "%51", "%52", "%53");
    } else {
        WGMMA_ROWS(128, 64, WGMMA_SUMS64(sums, 0), "%64", "%65", "%66", "%67", "%68", "%69");
    }
}
