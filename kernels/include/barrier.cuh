// Barriers in shared memory, and copies that report to them (PTX ISA, "mbarrier" and "cp.async.bulk"; sm_90): what orders threads of a block,
// and copies and products that no thread waits for, with other accesses.

#include "mma.cuh"

// Stores to shared memory that this thread made, or has waited for, are seen by products that begin behind it: a fence between
// the proxies (PTX ISA, "Async proxy"), somewhere on the way from the store to the product.
__device__ __forceinline__ void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The threads of one group meet; each group has a number of its own, from 1.
template <int THREADS>
__device__ __forceinline__ void meet(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group), "n"(THREADS) : "memory");
}

// A barrier in shared memory (PTX ISA, mbarrier) whose phase ends with `arrivals` arrivals.
__device__ __forceinline__ void create_barrier(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// One arrival of the calling warp, behind what all its lanes did: arrivals at one barrier are counted one after another.
__device__ __forceinline__ void arrive(u64* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_address(barrier)) : "memory");
    }
}

// So many arrivals of the calling warp at once.
template <int COUNT>
__device__ __forceinline__ void arrive(u64* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0], %1;\n}" ::"r"(shared_address(barrier)), "n"(COUNT)
                     : "memory");
    }
}

// One arrival of the calling thread, once the copies that it has begun are there (PTX ISA, cp.async.mbarrier.arrive).
__device__ __forceinline__ void arrive_with_copies(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival, and so many bytes that copies will bring before the phase can end.
__device__ __forceinline__ void expect_bytes(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Begins a copy of bytes, a multiple of 16, that reports to a barrier; both addresses are multiples of 16 (PTX ISA, cp.async.bulk).
__device__ __forceinline__ void copy_bytes(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// The same to this place of all blocks of the cluster that the mask has a bit for; it reports to the barrier at this place of each.
__device__ __forceinline__ void copy_bytes_to_blocks(void* to, const void* from, u32 bytes, u64* barrier, u32 mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
        :
        : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)),
          "h"(static_cast<u16>(mask))
        : "memory");
}

// Waits for the end of the phase of this parity; that of the phase before the first one, 1, has ended.
__device__ __forceinline__ void wait(u64* barrier, u32 parity) {
    u32 ended;
    do {
        asm volatile(
            "{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\nselp.u32 %0, 1, 0, ended;\n}"
            : "=r"(ended)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (ended == 0);
}
