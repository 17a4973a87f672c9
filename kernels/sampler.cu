// sampler_draw: a token per row of logits, its logprob and rank, and the most likely ids; sampler_commit: adds the tokens
// to the slots; sampler_count: counts tokens of a slot.
// Source:  exponential races: Maddison, Tarlow, Minka, "A* Sampling", arXiv 1411.0030. Radix selection: Alabi, Blanchard,
//          Gordon, Steinbach, "Fast k-Selection Algorithms for GPUs", 2012. Twin: src/cuda/kernels/sampler.rs.
// Spec:    ops/backend.rs `sample`, `open_slot`, `rewind_slot`; host/sampler.rs, and sampling/ for the arithmetic.
// Legend:  S rows, V vocabulary, I ids of this device, from id F on (alone: V and 0), Q slots, L passes over a row.
// Shapes:  logits [.., I] f32, work [S, I] f32, counts [Q, I] u32, last_tokens [Q] u32.
// Traffic: the logits once from memory, S*V*4 bytes; the work row stays in L2: 0.66 MB for V=163840. Greedy rows are read
//          or written 4 times (L), drawn ones 6 times, with top_k or top_p 3 more for each border, with logprobs once
//          more, with the most likely ids 3 more.
// Work:    about 20 operations per value and weighing, 15 per value and noise; a logarithm for the few ids that may win.
// Floor:   S=32 V=163840: 21 MB -> 4.9 us at 4.3 TB/s (H200). One block reads a row of 0.66 MB at what one
//          multiprocessor gets, some 50 GB/s to 100 GB/s: 7 us to 13 us per pass, whatever S is up to the number of
//          multiprocessors.
// Grid:    sampler_draw one block of 1024 threads per row; shared memory: struct Shared of include/sampler.cuh. sampler_commit one block.
//          sampler_count 256 threads per block, a token each.
// Order:   masses and counts are integers, so their sums do not depend on an order. The sum of the logprobs is a thread's
//          ids in ascending order, then a butterfly over lanes and warps: fixed by V, independent of S and other rows.
// Exact:   every operation that decides the token rounds as on the host (no contraction to FMA), except log1p, whose last
//          bit may differ: it decides between two times that agree in 52 bits.
// Tried:   H200: a greedy row 96 us, four passes of 160 loads one behind the other. Eight are on their way now, 20 turns a pass, which has
//          not run on a GPU. Where there are clusters, sampler_cluster.cu draws long rows.

constexpr unsigned THREADS = 1024;
#include "sampler.cuh"

struct SamplerCommitParams {
    const SamplerOutcome* outcomes;  // [S]
    u32* counts;                     // [Q, I]
    u32* last_tokens;                // [Q]
    u32 num_rows;                    // S
    u32 first;                       // F
    u32 ids;                         // I
    u32 padding;
};

struct SamplerCountParams {
    const u32* tokens;  // [num_tokens]; ids of others are skipped
    u32* counts;        // [I], of one slot
    u32 num_tokens;
    u32 first;          // F
    u32 ids;            // I
    u32 change;         // PROMPT, REPLY, REMOVED
};

// SamplerCountParams::change.
enum Change : u32 { PROMPT, REPLY, REMOVED };

// A device with all ids: what it has is what there is.
struct Alone {
    static constexpr bool IS_ALONE = true;
    static constexpr u32 FIRST_LOADS = 8;

    __device__ __forceinline__ bool writes() const { return true; }
};

extern "C" __global__ void __launch_bounds__(THREADS)
sampler_draw(const __grid_constant__ SamplerDrawParams params) {
    begin_kernel();
    __shared__ Shared shared;
    Alone alone;
    choose(params, blockIdx.x, params.work + static_cast<i64>(blockIdx.x) * params.stride, alone, shared);
}

// After all draws of a call, which read the counts as they were before it.
extern "C" __global__ void __launch_bounds__(THREADS)
sampler_commit(const __grid_constant__ SamplerCommitParams params) {
    begin_kernel();
    for (u32 row = threadIdx.x; row < params.num_rows; row += THREADS) {
        const SamplerOutcome& outcome = params.outcomes[row];
        if (outcome.commit & SETS_LAST) {
            params.last_tokens[outcome.slot] = outcome.token;
        }
        const u32 place = outcome.token - params.first;
        if (outcome.commit & COUNTS && place < params.ids) {
            atomicAdd(&params.counts[static_cast<i64>(outcome.slot) * params.ids + place], 1);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
sampler_count(const __grid_constant__ SamplerCountParams params) {
    begin_kernel();
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= params.num_tokens) {
        return;
    }
    const u32 place = params.tokens[index] - params.first;
    if (place >= params.ids) {
        return;
    }
    u32* counted = params.counts + place;
    if (params.change == PROMPT) {
        atomicOr(counted, IN_PROMPT);
    } else if (params.change == REPLY) {
        atomicAdd(counted, 1);
    } else {
        // A removal of a token that is not counted has no effect.
        u32 seen = atomicAdd(counted, 0);
        while (seen & IN_REPLY) {
            const u32 before = atomicCAS(counted, seen, seen - 1);
            if (before == seen) {
                break;
            }
            seen = before;
        }
    }
}
