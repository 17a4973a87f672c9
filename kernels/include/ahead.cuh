// Weights of launches behind this one, brought into the second cache while this one leaves the memory idle. A hint: no result
// depends on it.

#include "types.cuh"

struct Ahead {
    const u8* from;  // a multiple of 16
    u32 bytes;       // a multiple of 16; 0: nothing
    u32 padding;
};

// Fetches the share of part `part` of `parts` (PTX ISA, cp.async.bulk.prefetch; sm_90). One thread of each part calls it. An SM
// brings some 200 GB/s: it takes a score of parts on as many SMs.
__device__ __forceinline__ void fetch_ahead(const Ahead& ahead, u32 part, u32 parts) {
#if __CUDA_ARCH__ >= 900
    constexpr u32 PIECE = 16384;
#pragma unroll 1
    for (u32 at = part * PIECE; at < ahead.bytes; at += parts * PIECE) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                     :
                     : "l"(__cvta_generic_to_global(ahead.from + at)), "r"(min(PIECE, ahead.bytes - at))
                     : "memory");
    }
#endif
}
