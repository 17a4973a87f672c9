// sampler_draw_cluster: a token per row of logits by the blocks of a cluster that have some ids each, as sampler_draw by one block that
// has all.
// Source:  as sampler.cu. Twin: src/cuda/kernels/sampler_cluster.rs.
// Spec:    ops/backend.rs `sample`; host/sampler.rs, and sampling/ for the arithmetic.
// Legend:  S rows, V vocabulary, Q slots.
// Shapes:  logits [.., V] f32, counts [Q, V] u32.
// Traffic: the logits once from memory, S*V*4 bytes; every pass behind the first reads shared memory, but those of logprobs and of the
//          most likely ids, which read the second cache. Between blocks 96 bytes a round; of a digit 21 KB read and 21 KB written a block.
// Work:    as sampler.cu, by eight times the multiprocessors.
// Floor:   as sampler.cu for many rows. One row of V=163840: 80 KB a multiprocessor, 0.8 us to 1.6 us at 50 GB/s to 100 GB/s; a
//          round is a barrier of the cluster and two or three of the block, about 0.5 us: a greedy row has 3 rounds, a drawn one 4, with
//          top_k or top_p 2 more and one and a barrier for each digit, with its logprob 3 more.
// Grid:    (BLOCKS, S), a cluster a row, 512 threads a block; shared memory: struct ClusterShared, with a place for each id of a block.
// Order:   as sampler.cu; the sum of the logprobs is that of each block, added in their order: fixed by V, independent of S and other rows.
// Exact:   as sampler.cu: the token is that of sampler_draw, to the bit.
// Tried:   not measured on a device; runs on emulated ones.

constexpr unsigned THREADS = 512;
#include "sampler.cuh"
#include "mma.cuh"
#include "cluster.cuh"

// Blocks of a cluster, the most that every device with clusters takes.
constexpr u32 BLOCKS = 8;
// Words that a block says in a round.
constexpr u32 MAX_WORDS = 3;

struct ClusterShared {
    Shared shared;
    // What the blocks have said in the last two rounds.
    u32 said[2][BLOCKS][MAX_WORDS];
    u32 padding[2];

    // Of the ids of this block, behind it.
    __device__ __forceinline__ float* work() { return reinterpret_cast<float*>(this + 1); }
};
static_assert(sizeof(ClusterShared) == 14768, "the twin's size, without work");

// A block of a row's cluster.
struct Cluster {
    static constexpr bool IS_ALONE = false;
    // Of a thread on their way at once in the pass that reads memory: the ids of Kimi K2 in two turns.
    static constexpr u32 FIRST_LOADS = 20;

    u32 (&said)[2][BLOCKS][MAX_WORDS];
    u32 rank;
    u32 half;

    __device__ __forceinline__ u32 world() const { return BLOCKS; }
    __device__ __forceinline__ bool writes() const { return rank == 0; }
    __device__ __forceinline__ const u32 (&heard() const)[BLOCKS][MAX_WORDS] { return said[half]; }

    // A round, the same in all threads: heard()[rank][i] = what each block says. It uses the half that the one before did not, so a
    // block that writes a half again has met all others since they read it.
    __device__ __forceinline__ void gather(u32 first, u32 second = 0, u32 third = 0) {
        half ^= 1;
        if (threadIdx.x < BLOCKS * MAX_WORDS) {
            const u32 word = threadIdx.x % MAX_WORDS, block = threadIdx.x / MAX_WORDS;
            const u32 there = address_in_block(shared_address(&said[half][rank][word]), block);
            store_in_cluster(there, word == 0 ? first : word == 1 ? second : third);
        }
        __syncwarp();
        meet_cluster();
    }

    // Adds the bins of all blocks: each block an eighth of them, for all.
    template <bool MASSES>
    __device__ __forceinline__ void add_bins(Bins& bins) {
        constexpr u32 OWN = BINS / BLOCKS;
        static_assert(OWN % WARP == 0 && OWN <= THREADS, "whole warps");
        meet_cluster();
        if (threadIdx.x < OWN) {
            const u32 bin = rank * OWN + threadIdx.x;
            const u32 count_at = shared_address(&bins.counts[bin]);
            const u32 low_at = shared_address(&bins.low[bin]), high_at = shared_address(&bins.high[bin]);
            u32 counts[BLOCKS], lows[BLOCKS], highs[BLOCKS];
#pragma unroll
            for (u32 block = 0; block < BLOCKS; ++block) {
                counts[block] = u32_in_cluster(address_in_block(count_at, block));
                lows[block] = MASSES ? u32_in_cluster(address_in_block(low_at, block)) : 0;
                highs[block] = MASSES ? u32_in_cluster(address_in_block(high_at, block)) : 0;
            }
            u32 count = 0;
            u64 mass = 0;
#pragma unroll
            for (u32 block = 0; block < BLOCKS; ++block) {
                count += counts[block];
                mass += static_cast<u64>(highs[block]) << 32 | lows[block];
            }
#pragma unroll
            for (u32 block = 0; block < BLOCKS; ++block) {
                store_in_cluster(address_in_block(count_at, block), count);
                if constexpr (MASSES) {
                    store_in_cluster(address_in_block(low_at, block), static_cast<u32>(mass));
                    store_in_cluster(address_in_block(high_at, block), static_cast<u32>(mass >> 32));
                }
            }
        }
        meet_cluster();
    }

    // Brings what all blocks list to the one that writes.
    __device__ __forceinline__ void add_listed(Shared& shared) {
        const u32 own = shared.num_listed;
        const u64 key = threadIdx.x < own ? shared.listed[threadIdx.x] : 0;
        gather(own);
        u32 place = threadIdx.x;
#pragma unroll 1
        for (u32 block = 0; block < rank; ++block) {
            place += heard()[block][0];
        }
        if (threadIdx.x < own && place < MAX_TOP) {
            const u32 there = address_in_block(shared_address(&shared.listed[place]), 0);
            store_in_cluster(there, static_cast<u32>(key));
            store_in_cluster(there + sizeof(u32), static_cast<u32>(key >> 32));
        }
        __syncwarp();
        meet_cluster();
    }
};

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
sampler_draw_cluster(const __grid_constant__ SamplerDrawParams params) {
    begin_kernel();
    extern __shared__ uint4 memory[];
    ClusterShared& shared = *reinterpret_cast<ClusterShared*>(memory);
    const u32 rank = blockIdx.x;
    // Rows of an aligned table stay so.
    const u32 most = ((params.ids + BLOCKS - 1) / BLOCKS + 3) / 4 * 4;
    const u32 start = rank * most;
    SamplerDrawParams own = params;
    own.logits += start;
    own.counts += start;
    own.first += start;
    own.ids = min(most, params.ids - start);
    Cluster cluster = {shared.said, rank, 0};
    // Nobody writes to a block that has not begun.
    meet_cluster();
    choose(own, blockIdx.y, shared.work(), cluster, shared.shared);
}
