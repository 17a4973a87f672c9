// all_reduce_one_shot, all_reduce_two_shot: hidden += sum over ranks of their partial rows, then normed = norm(hidden).
// Source:  Megatron-LM, arXiv 1909.08053, section 3 (where the sums are); reduce-scatter and all-gather: Thakur, Rabenseifner, Gropp,
//          "Optimization of Collective Communication Operations in MPICH", 2005; norm as in rms_norm.cu.
//          Twin: src/cuda/kernels/all_reduce.rs.
// Spec:    the sums over ranks in ops/backend.rs; host/ranks/exchange.rs `sum`.
// Legend:  T rows (tokens), D hidden size, n ranks, C rows of an area.
// Shapes:  partial, hidden, normed [T, D] f32; gain [D] f32. Areas: one-shot [2, n, C, D] f32; two-shot [2, n, C/n, D] f32 for parts, then
//          [2, C, D] f32 for sums.
// Traffic: bytes that come in for a row: one-shot 4*D*(n-1); two-shot 8*D*(n-1)/n. Beside them 16*T*D of memory, and twice what comes in.
// Floor:   D=7168, n=4: T=1 one-shot 86 KB -> 1.6 us at 53 GB/s (PCIe 5), 0.2 us at 370 GB/s, and the latency of a store to a peer;
//          T=64 two-shot 2.75 MB -> 52 us, 7.4 us.
// Grid:    blocks of 256 threads, each with every so manieth row, no more than are resident at once: blocks wait for those of other
//          ranks. A thread puts, takes and normalises the same columns of a row, so that nothing but the norm needs a barrier.
// Order:   sums begin with +0 and go by rank, whichever rank computes them: all ranks, both kernels and any number of rows give the
//          same bits.
// Reuse:   a place is emptied by who has read it. The next but one sum of the same kind uses it again: a peer is there when it has
//          seen this rank in the next sum, which this rank begins after the emptying launch. Thread 0 of a block passes that order on,
//          with a fence in front of what it puts and one behind what it took.
// Tried:   not measured on a device; runs on 2, 4 and 8 emulated ones.

#include "peer.cuh"
#include "last_block.cuh"
#include "norm.cuh"

struct AllReduceParams {
    Link link;
    const float* partial;  // [T, D], this rank's
    float* hidden;         // [T, D]
    const float* gain;     // [D], or null: normed is left alone
    float* normed;         // [T, D]
    bf16* rounded;         // [T, D], normed in bf16, or null
    u64 parts;             // offset in an area of the parts, or of the whole rows of the one-shot kernel
    u64 sums;              // offset of the sums
    int num_rows;          // T, at most C
    int columns;           // D, a multiple of 8, at most 8192
    int capacity;          // C, a multiple of n
    float eps;
    u32 adds;              // 1: hidden += sum; 0: hidden = sum
    u32 operation;         // for the report of a wait that did not end
};

// Ranks whose values a thread looks at together: more of them do not fit in registers.
constexpr u32 AT_ONCE = 4;

// Values of a thread in a row.
using Values = float[NORM_STEPS][NORM_VALUES];

__device__ __forceinline__ u8* place(const AllReduceParams& params, u32 rank, u64 offset, i64 row) {
    return params.link.areas[rank] + offset + static_cast<u64>(row * params.columns) * sizeof(float);
}

// Calls `with` for each step of this thread that has columns.
template <typename With>
__device__ __forceinline__ void for_columns(const AllReduceParams& params, const With& with) {
#pragma unroll
    for (int step = 0; step < NORM_STEPS; ++step) {
        const int column = norm_column(step);
        if (column < params.columns) {
            with(step, column);
        }
    }
}

// Eight values of a row as they come.
struct Words {
    uint4 half[2];
};

__device__ __forceinline__ Words look_at(const u8* at) { return {look(at), look(at + 16)}; }

__device__ __forceinline__ void take_words(const AllReduceParams& params, Words& words, u8* at, u32 peer, u32 epoch) {
    take(words.half[0], at, params.link, params.operation, peer, epoch);
    take(words.half[1], at + 16, params.link, params.operation, peer, epoch);
}

__device__ __forceinline__ void add(float (&sums)[NORM_VALUES], const Words& words) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 four = words.half[half];
        float* to = sums + 4 * half;
        to[0] = __fadd_rn(to[0], __uint_as_float(four.x));
        to[1] = __fadd_rn(to[1], __uint_as_float(four.y));
        to[2] = __fadd_rn(to[2], __uint_as_float(four.z));
        to[3] = __fadd_rn(to[3], __uint_as_float(four.w));
    }
}

// sums = the values of all ranks in order, this one's from `partial`, the others' from their places. Of four ranks all are looked at
// before the first one is waited for.
template <typename PlaceOf>
__device__ __forceinline__ void add_up(
    const AllReduceParams& params, Values& sums, i64 row, u32 epoch, const PlaceOf& place_of) {
    const Link& link = params.link;
#pragma unroll 1
    for (int step = 0; step < NORM_STEPS; ++step) {
        const int column = norm_column(step);
        if (column >= params.columns) {
            break;
        }
        const auto at = [&](u32 rank) { return place_of(rank) + column * sizeof(float); };
        float sum[NORM_VALUES] = {};
#pragma unroll 1
        for (u32 first = 0; first < link.world; first += AT_ONCE) {
            Words words[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 rank = first + i;
                if (rank == link.rank) {
                    const uint4* own = reinterpret_cast<const uint4*>(params.partial + row * params.columns + column);
                    words[i] = {own[0], own[1]};
                } else if (rank < link.world) {
                    words[i] = look_at(at(rank));
                }
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 rank = first + i;
                if (rank < link.world) {
                    if (rank != link.rank) {
                        take_words(params, words[i], at(rank), rank, epoch);
                    }
                    add(sum, words[i]);
                }
            }
        }
#pragma unroll
        for (int other = 0; other < NORM_STEPS; ++other) {
#pragma unroll
            for (int i = 0; i < NORM_VALUES; ++i) {
                sums[other][i] = other == step ? sum[i] : sums[other][i];
            }
        }
    }
}

// hidden += sums, and its norm.
__device__ __forceinline__ void finish(
    const AllReduceParams& params, Values& sums, i64 row, float (&warp_sums)[NORM_THREADS / 32]) {
    float* hidden = params.hidden + row * params.columns;
    for_columns(params, [&](int step, int column) {
        if (params.adds) {
            float own[NORM_VALUES];
            load8(own, hidden + column);
#pragma unroll
            for (int i = 0; i < NORM_VALUES; ++i) {
                sums[step][i] = __fadd_rn(own[i], sums[step][i]);
            }
        }
        store8(hidden + column, sums[step]);
    });
    if (params.gain != nullptr) {
        bf16* rounded = params.rounded == nullptr ? nullptr : params.rounded + row * params.columns;
        __syncwarp();     // lanes have waited for different words
        __syncthreads();  // the row before
        write_norm(params.normed + row * params.columns, rounded, sums, params.gain, params.columns, params.eps, warp_sums);
    }
}

// The number of this sum; the order of what was emptied goes along with what follows.
__device__ __forceinline__ u32 begin_sum(const AllReduceParams& params) {
    if (threadIdx.x == 0) {
        system_fence();
    }
    return params.link.state->epoch;
}

__device__ __forceinline__ void end_sum(const AllReduceParams& params, u32 epoch) {
    __syncwarp();
    if (threadIdx.x == 0) {
        system_fence();
    }
    if (is_last_block(&params.link.state->blocks_done) && threadIdx.x == 0) {
        params.link.state->epoch = epoch + 1;
    }
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
all_reduce_one_shot(const __grid_constant__ AllReduceParams params) {
    begin_kernel();
    __shared__ float warp_sums[NORM_THREADS / 32];
    const Link& link = params.link;
    const u32 begun = exchange_begins();
    const u32 epoch = begin_sum(params);
    const auto first = [&](u32 source) { return static_cast<i64>((epoch % 2 * link.world + source) * params.capacity); };
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        for_columns(params, [&](int, int column) {
            float values[NORM_VALUES];
            load8(values, params.partial + static_cast<i64>(row) * params.columns + column);
            // Each rank begins with another one.
            for (u32 step = 1; step < link.world; ++step) {
                u8* there = place(params, (link.rank + step) % link.world, params.parts, first(link.rank) + row);
                put8(there + column * sizeof(float), values);
            }
        });
    }
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        Values sums = {};
        add_up(params, sums, row, epoch, [&](u32 source) {
            return place(params, link.rank, params.parts, first(source) + row);
        });
        finish(params, sums, row, warp_sums);
    }
    end_sum(params, epoch);
    exchange_ends(link, begun);
}

// Row t is summed by rank t % n, as its row t / n.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
all_reduce_two_shot(const __grid_constant__ AllReduceParams params) {
    begin_kernel();
    __shared__ float warp_sums[NORM_THREADS / 32];
    const Link& link = params.link;
    const int world = static_cast<int>(link.world);
    const u32 begun = exchange_begins();
    const u32 epoch = begin_sum(params);
    const i64 part = params.capacity / world;
    const auto first_part = [&](u32 source) { return (epoch % 2 * world + source) * part; };
    const i64 first_sum = static_cast<i64>(epoch % 2) * params.capacity;
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        const u32 owner = static_cast<u32>(row % world);
        if (owner == link.rank) {
            continue;
        }
        u8* there = place(params, owner, params.parts, first_part(link.rank) + row / world);
        for_columns(params, [&](int, int column) {
            float values[NORM_VALUES];
            load8(values, params.partial + static_cast<i64>(row) * params.columns + column);
            put8(there + column * sizeof(float), values);
        });
    }
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        if (static_cast<u32>(row % world) != link.rank) {
            continue;
        }
        Values sums = {};
        add_up(params, sums, row, epoch, [&](u32 source) {
            return place(params, link.rank, params.parts, first_part(source) + row / world);
        });
        for (int other = 1; other < world; ++other) {
            u8* there = place(params, (link.rank + other) % world, params.sums, first_sum + row);
            for_columns(params, [&](int step, int column) { put8(there + column * sizeof(float), sums[step]); });
        }
        finish(params, sums, row, warp_sums);
    }
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        const u32 owner = static_cast<u32>(row % world);
        if (owner == link.rank) {
            continue;
        }
        u8* here = place(params, link.rank, params.sums, first_sum + row);
        Words words[NORM_STEPS];
        for_columns(params, [&](int step, int column) { words[step] = look_at(here + column * sizeof(float)); });
        Values sums = {};
        for_columns(params, [&](int step, int column) {
            take_words(params, words[step], here + column * sizeof(float), owner, epoch);
            add(sums[step], words[step]);
        });
        finish(params, sums, row, warp_sums);
    }
    end_sum(params, epoch);
    exchange_ends(link, begun);
}
