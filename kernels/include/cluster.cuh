// Blocks of a cluster (PTX ISA, "Distributed shared memory" and "mbarrier"; sm_90): each reaches the shared memory of all.

#include "types.cuh"

// The blocks of a cluster meet; what they wrote to shared memory before is there for all of them. Threads that have ended are not waited for.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where the block `rank` of the cluster has what is at this address of shared memory here.
__device__ __forceinline__ u32 address_in_block(u32 address, u32 rank) {
    u32 there;
    // Where it stands: in front of a loop it would wait in a register.
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Values at an address in the cluster.
__device__ __forceinline__ float float_in_cluster(u32 at) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
}

__device__ __forceinline__ float2 float2_in_cluster(u32 at) {
    float2 pair;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
    return pair;
}

__device__ __forceinline__ uint4 uint4_in_cluster(u32 at) {
    uint4 words;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(at)
                 : "memory");
    return words;
}

__device__ __forceinline__ u32 u32_in_cluster(u32 at) {
    u32 value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}

__device__ __forceinline__ void store_in_cluster(u32 at, u32 value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

// One arrival of the calling thread at a barrier in the cluster, behind what it did before.
__device__ __forceinline__ void arrive_in_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the phase of this parity of a barrier of this block, at which threads of all blocks arrive.
__device__ __forceinline__ void wait_for_cluster(u32 barrier, u32 parity) {
    u32 ended;
    do {
        asm volatile(
            "{\n.reg .pred ended;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], %2;\nselp.u32 %0, 1, 0, ended;\n}"
            : "=r"(ended)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (ended == 0);
}
