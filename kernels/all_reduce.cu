// all_reduce_{push,pull}_{one,two}_shot: hidden += sum over ranks of their partial rows, then normed = norm(hidden); with _bf16 what
// crosses between ranks is rounded to bf16: the parts, and then their sum. Pushed, it is stored in the memory of who reads it; pulled, in
// that of who gives it, and read across.
// Source:  Megatron-LM, arXiv 1909.08053, section 3 (where the sums are); reduce-scatter and all-gather: Thakur, Rabenseifner, Gropp,
//          "Optimization of Collective Communication Operations in MPICH", 2005; norm as in rms_norm.cu.
//          Twin: src/cuda/kernels/all_reduce.rs.
// Spec:    the sums over ranks in ops/backend.rs; host/ranks/exchange.rs `sum`.
// Legend:  T rows (tokens), D hidden size, n ranks, C rows of an area.
// Shapes:  partial, hidden, normed [T, D] f32; gain [D] f32. Areas: one-shot [2, n, C, D] f32; two-shot [2, n, C/n, D] f32 for parts, then
//          [2, C, D] f32 for sums. Pulled: [2, C, D] f32 for parts and as many for sums, and [n, C] pairs of words as flags.
// Traffic: bytes that come in for a row: one-shot 4*D*(n-1); two-shot 8*D*(n-1)/n; in bf16 half of it. Beside them 16*T*D of memory, and twice what comes in.
// Floor:   D=7168, n=4: T=1 one-shot 86 KB -> 1.6 us at 53 GB/s (PCIe 5), 0.2 us at 370 GB/s, and the latency of a store to a peer;
//          T=64 two-shot 2.75 MB -> 52 us, 7.4 us. A pulled row comes in after a store and a load have crossed, a pushed one after a
//          store; some switches of PCIe carry stores to several devices at a twentieth of the rate of loads.
// Grid:    blocks of 256 threads, each with every so manieth row, no more than are resident at once: blocks wait for those of other
//          ranks. A thread puts, takes and normalises the same columns of a row, so that nothing but the norm needs a barrier.
// Order:   sums begin with +0 and go by rank, whichever rank computes them: all ranks, all kernels and any number of rows give the
//          same bits. In bf16 every rank rounds its own part too, and who keeps a sum rounds it as who gets it.
// Reuse:   a place is emptied by who has read it. The next but one sum of the same kind uses it again: a peer is there when it has
//          seen this rank in the next sum, which this rank begins after the emptying launch. Thread 0 of a block passes that order on,
//          with a fence in front of what it puts and one behind what it took. A pulled row is overwritten by the next but one sum,
//          with the same reason: who gives in a sum has read all of the sum before.
// Tried:   not measured on a device; runs on 2, 4 and 8 emulated ones.

#include "peer.cuh"
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
    u64 flags;             // offset of the flags of what is pulled
    int num_rows;          // T, at most C
    int columns;           // D, a multiple of 8, at most 8192
    int capacity;          // C, a multiple of n
    float eps;
    u32 adds;              // 1: hidden += sum; 0: hidden = sum
    u32 operation;         // for the report of a wait that did not end
};

// Ranks whose values a thread looks at together: more of them do not fit in registers.
constexpr u32 AT_ONCE = 4;

// Bytes of a value that crosses; a row has its place as in f32.
template <bool NARROW>
constexpr u32 VALUE_BYTES = NARROW ? 2 : 4;

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

// Eight values of a row as they cross: f32, or pairs of bf16.
template <bool NARROW>
struct Words {
    uint4 part[NARROW ? 1 : 2];
};

// Two values that cross as bf16. No word of them is empty: the upper one is not -0.
__device__ __forceinline__ u32 filled_pair(float low, float high) {
    const u32 pair = pair_of(low, high);
    return pair >> 16 == EMPTY >> 16 ? pair & 0xffffu : pair;
}

template <bool NARROW>
__device__ __forceinline__ Words<NARROW> words_of(const float (&values)[NORM_VALUES]) {
    Words<NARROW> words;
    if constexpr (NARROW) {
        words.part[0] = make_uint4(filled_pair(values[0], values[1]), filled_pair(values[2], values[3]),
                                   filled_pair(values[4], values[5]), filled_pair(values[6], values[7]));
    } else {
        words.part[0] = make_uint4(filled(values[0]), filled(values[1]), filled(values[2]), filled(values[3]));
        words.part[1] = make_uint4(filled(values[4]), filled(values[5]), filled(values[6]), filled(values[7]));
    }
    return words;
}

template <bool NARROW>
__device__ __forceinline__ void put_words(u8* to, const Words<NARROW>& words) {
    put(to, words.part[0]);
    if constexpr (!NARROW) {
        put(to + 16, words.part[1]);
    }
}

template <bool NARROW>
__device__ __forceinline__ Words<NARROW> look_at(const u8* at) {
    Words<NARROW> words;
    words.part[0] = look(at);
    if constexpr (!NARROW) {
        words.part[1] = look(at + 16);
    }
    return words;
}

template <bool NARROW>
__device__ __forceinline__ void take_words(const AllReduceParams& params, Words<NARROW>& words, u8* at, u32 peer, u32 epoch) {
    take(words.part[0], at, params.link, params.operation, peer, epoch);
    if constexpr (!NARROW) {
        take(words.part[1], at + 16, params.link, params.operation, peer, epoch);
    }
}

template <bool NARROW>
__device__ __forceinline__ void add(float (&sums)[NORM_VALUES], const Words<NARROW>& words) {
    if constexpr (NARROW) {
        const u32 pairs[4] = {words.part[0].x, words.part[0].y, words.part[0].z, words.part[0].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[2 * i] = __fadd_rn(sums[2 * i], low_half(pairs[i]));
            sums[2 * i + 1] = __fadd_rn(sums[2 * i + 1], high_half(pairs[i]));
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 four = words.part[half];
            float* to = sums + 4 * half;
            to[0] = __fadd_rn(to[0], __uint_as_float(four.x));
            to[1] = __fadd_rn(to[1], __uint_as_float(four.y));
            to[2] = __fadd_rn(to[2], __uint_as_float(four.z));
            to[3] = __fadd_rn(to[3], __uint_as_float(four.w));
        }
    }
}

// A sum as who gets it has it.
template <bool NARROW>
__device__ __forceinline__ void round(float (&sums)[NORM_VALUES]) {
    if constexpr (NARROW) {
#pragma unroll
        for (int i = 0; i < NORM_VALUES; i += 2) {
            const u32 pair = pair_of(sums[i], sums[i + 1]);
            // -0 arrives as +0.
            sums[i] = __fadd_rn(0.0f, low_half(pair));
            sums[i + 1] = __fadd_rn(0.0f, high_half(pair));
        }
    }
}

// sums = the values of all ranks in order, this one's from `partial`, the others' from their places. Of four ranks all are looked at
// before the first one is waited for.
template <bool NARROW, typename PlaceOf>
__device__ __forceinline__ void add_up(
    const AllReduceParams& params, Values& sums, i64 row, u32 epoch, const PlaceOf& place_of) {
    const Link& link = params.link;
#pragma unroll 1
    for (int step = 0; step < NORM_STEPS; ++step) {
        const int column = norm_column(step);
        if (column >= params.columns) {
            break;
        }
        const auto at = [&](u32 rank) { return place_of(rank) + column * VALUE_BYTES<NARROW>; };
        float sum[NORM_VALUES] = {};
#pragma unroll 1
        for (u32 first = 0; first < link.world; first += AT_ONCE) {
            Words<NARROW> words[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 rank = first + i;
                if (rank == link.rank) {
                    float own[NORM_VALUES];
                    load8(own, params.partial + row * params.columns + column);
                    words[i] = words_of<NARROW>(own);
                } else if (rank < link.world) {
                    words[i] = look_at<NARROW>(at(rank));
                }
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 rank = first + i;
                if (rank < link.world) {
                    if (rank != link.rank) {
                        take_words<NARROW>(params, words[i], at(rank), rank, epoch);
                    }
                    add<NARROW>(sum, words[i]);
                }
            }
        }
        round<NARROW>(sum);
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

template <bool NARROW>
__device__ __forceinline__ void push_one_shot(const AllReduceParams& params) {
    __shared__ float warp_sums[NORM_THREADS / 32];
    const Link& link = params.link;
    const Exchange exchange = begin_exchange(link);
    const u32 epoch = exchange.epoch;
    const auto first = [&](u32 source) { return static_cast<i64>((epoch % 2 * link.world + source) * params.capacity); };
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        for_columns(params, [&](int, int column) {
            float values[NORM_VALUES];
            load8(values, params.partial + static_cast<i64>(row) * params.columns + column);
            // Each rank begins with another one.
            for (u32 step = 1; step < link.world; ++step) {
                u8* there = place(params, (link.rank + step) % link.world, params.parts, first(link.rank) + row);
                put_words<NARROW>(there + column * VALUE_BYTES<NARROW>, words_of<NARROW>(values));
            }
        });
    }
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        Values sums = {};
        add_up<NARROW>(params, sums, row, epoch, [&](u32 source) {
            return place(params, link.rank, params.parts, first(source) + row);
        });
        finish(params, sums, row, warp_sums);
    }
    end_exchange(link, exchange);
}

// Row t is summed by rank t % n, as its row t / n.
template <bool NARROW>
__device__ __forceinline__ void push_two_shot(const AllReduceParams& params) {
    __shared__ float warp_sums[NORM_THREADS / 32];
    const Link& link = params.link;
    const int world = static_cast<int>(link.world);
    const Exchange exchange = begin_exchange(link);
    const u32 epoch = exchange.epoch;
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
            put_words<NARROW>(there + column * VALUE_BYTES<NARROW>, words_of<NARROW>(values));
        });
    }
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        if (static_cast<u32>(row % world) != link.rank) {
            continue;
        }
        Values sums = {};
        add_up<NARROW>(params, sums, row, epoch, [&](u32 source) {
            return place(params, link.rank, params.parts, first_part(source) + row / world);
        });
        for (int other = 1; other < world; ++other) {
            u8* there = place(params, (link.rank + other) % world, params.sums, first_sum + row);
            for_columns(params, [&](int step, int column) {
                put_words<NARROW>(there + column * VALUE_BYTES<NARROW>, words_of<NARROW>(sums[step]));
            });
        }
        finish(params, sums, row, warp_sums);
    }
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        const u32 owner = static_cast<u32>(row % world);
        if (owner == link.rank) {
            continue;
        }
        u8* here = place(params, link.rank, params.sums, first_sum + row);
        Words<NARROW> words[NORM_STEPS];
        for_columns(params, [&](int step, int column) { words[step] = look_at<NARROW>(here + column * VALUE_BYTES<NARROW>); });
        Values sums = {};
        for_columns(params, [&](int step, int column) {
            take_words<NARROW>(params, words[step], here + column * VALUE_BYTES<NARROW>, owner, epoch);
            add<NARROW>(sums[step], words[step]);
        });
        finish(params, sums, row, warp_sums);
    }
    end_exchange(link, exchange);
}

// The low word of a flag that a rank has put; the other one is the number of the exchange, plus 1.
constexpr u32 RAISED = 1;

__device__ __forceinline__ u8* flag(const AllReduceParams& params, u32 there, u32 source, int row) {
    return params.link.areas[there] + params.flags + 8 * static_cast<u64>(source * params.capacity + row);
}

// Words that are offered in a rank's own memory, and fetched there: a flag and fences order them.
template <bool NARROW>
__device__ __forceinline__ void keep_words(u8* to, const Words<NARROW>& words) {
    uint4* parts = reinterpret_cast<uint4*>(to);
    parts[0] = words.part[0];
    if constexpr (!NARROW) {
        parts[1] = words.part[1];
    }
}

template <bool NARROW>
__device__ __forceinline__ Words<NARROW> fetch(const u8* from) {
    const uint4* parts = reinterpret_cast<const uint4*>(from);
    Words<NARROW> words;
    words.part[0] = parts[0];
    if constexpr (!NARROW) {
        words.part[1] = parts[1];
    }
    return words;
}

// Puts this rank's part of a row into its own area.
template <bool NARROW>
__device__ __forceinline__ void offer(const AllReduceParams& params, i64 first, int row) {
    u8* here = place(params, params.link.rank, params.parts, first + row);
    for_columns(params, [&](int, int column) {
        float values[NORM_VALUES];
        load8(values, params.partial + static_cast<i64>(row) * params.columns + column);
        keep_words<NARROW>(here + column * VALUE_BYTES<NARROW>, words_of<NARROW>(values));
    });
}

// What the block has put before is there for who reads the flags that `raise` puts.
template <typename Raise>
__device__ __forceinline__ void raise_flags(const Raise& raise) {
    __syncwarp();
    __syncthreads();
    if (threadIdx.x == 0) {
        system_fence();
        raise();
    }
}

// Waits until the ranks that `gives` says have put the row. A peer can be one exchange ahead, and no further.
template <typename Gives>
__device__ __forceinline__ void await_row(const AllReduceParams& params, int row, u32 epoch, const Gives& gives) {
    const Link& link = params.link;
    const u32 source = threadIdx.x;
    if (source < link.world && source != link.rank && gives(source)) {
        const u8* here = flag(params, link.rank, source, row);
        Wait wait;
        for (;;) {
            const u64 pair = look_pair(here);
            if (static_cast<u32>(pair) == RAISED && static_cast<u32>(pair >> 32) - (epoch + 1) <= 1) {
                break;
            }
            if (!wait.goes_on(link, params.operation, source, epoch)) {
                break;
            }
        }
        system_fence();
    }
    __syncwarp();
    __syncthreads();
}

// sums = the values of all ranks in order, this one's from `partial`, the others' from their areas. Two ranks' are on their way at once.
template <bool NARROW>
__device__ __forceinline__ void pull(const AllReduceParams& params, Values& sums, i64 first, int row) {
    const Link& link = params.link;
#pragma unroll 1
    for (u32 pair = 0; pair < link.world; pair += 2) {
        Words<NARROW> words[2][NORM_STEPS];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 rank = pair + i;
            if (rank == link.rank) {
                for_columns(params, [&](int step, int column) {
                    float own[NORM_VALUES];
                    load8(own, params.partial + static_cast<i64>(row) * params.columns + column);
                    words[i][step] = words_of<NARROW>(own);
                });
            } else if (rank < link.world) {
                const u8* there = place(params, rank, params.parts, first + row);
                for_columns(params, [&](int step, int column) {
                    words[i][step] = fetch<NARROW>(there + column * VALUE_BYTES<NARROW>);
                });
            }
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            if (pair + i < link.world) {
                for_columns(params, [&](int step, int) { add<NARROW>(sums[step], words[i][step]); });
            }
        }
    }
    for_columns(params, [&](int step, int) { round<NARROW>(sums[step]); });
}

template <bool NARROW>
__device__ __forceinline__ void pull_one_shot(const AllReduceParams& params) {
    __shared__ float warp_sums[NORM_THREADS / 32];
    const Link& link = params.link;
    const Exchange exchange = begin_exchange(link);
    const u32 epoch = exchange.epoch;
    const i64 first = static_cast<i64>(epoch % 2) * params.capacity;
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        offer<NARROW>(params, first, row);
    }
    raise_flags([&] {
        for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
            for (u32 step = 1; step < link.world; ++step) {
                put_pair(flag(params, (link.rank + step) % link.world, link.rank, row), RAISED, epoch + 1);
            }
        }
    });
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        await_row(params, row, epoch, [](u32) { return true; });
        Values sums = {};
        pull<NARROW>(params, sums, first, row);
        finish(params, sums, row, warp_sums);
    }
    end_exchange(link, exchange);
}

// Row t is summed by rank t % n.
template <bool NARROW>
__device__ __forceinline__ void pull_two_shot(const AllReduceParams& params) {
    __shared__ float warp_sums[NORM_THREADS / 32];
    const Link& link = params.link;
    const Exchange exchange = begin_exchange(link);
    const u32 epoch = exchange.epoch;
    const i64 first = static_cast<i64>(epoch % 2) * params.capacity;
    const auto owner = [&](int row) { return static_cast<u32>(row) % link.world; };
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        if (owner(row) != link.rank) {
            offer<NARROW>(params, first, row);
        }
    }
    raise_flags([&] {
        for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
            if (owner(row) != link.rank) {
                put_pair(flag(params, owner(row), link.rank, row), RAISED, epoch + 1);
            }
        }
    });
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        if (owner(row) != link.rank) {
            continue;
        }
        await_row(params, row, epoch, [](u32) { return true; });
        Values sums = {};
        pull<NARROW>(params, sums, first, row);
        u8* here = place(params, link.rank, params.sums, first + row);
        for_columns(params, [&](int step, int column) {
            keep_words<NARROW>(here + column * VALUE_BYTES<NARROW>, words_of<NARROW>(sums[step]));
        });
        raise_flags([&] {
            for (u32 step = 1; step < link.world; ++step) {
                put_pair(flag(params, (link.rank + step) % link.world, link.rank, row), RAISED, epoch + 1);
            }
        });
        finish(params, sums, row, warp_sums);
    }
    for (int row = blockIdx.x; row < params.num_rows; row += gridDim.x) {
        if (owner(row) == link.rank) {
            continue;
        }
        await_row(params, row, epoch, [&](u32 source) { return source == owner(row); });
        const u8* there = place(params, owner(row), params.sums, first + row);
        Words<NARROW> words[NORM_STEPS];
        for_columns(params, [&](int step, int column) { words[step] = fetch<NARROW>(there + column * VALUE_BYTES<NARROW>); });
        Values sums = {};
        for_columns(params, [&](int step, int) { add<NARROW>(sums[step], words[step]); });
        finish(params, sums, row, warp_sums);
    }
    end_exchange(link, exchange);
}

#define KERNEL(name, body)                                                            \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS, 1)                     \
    name(const __grid_constant__ AllReduceParams params) {                            \
        begin_kernel();                                                               \
        body(params);                                                                 \
    }

KERNEL(all_reduce_push_one_shot, push_one_shot<false>)
KERNEL(all_reduce_push_two_shot, push_two_shot<false>)
KERNEL(all_reduce_pull_one_shot, pull_one_shot<false>)
KERNEL(all_reduce_pull_two_shot, pull_two_shot<false>)
KERNEL(all_reduce_push_one_shot_bf16, push_one_shot<true>)
KERNEL(all_reduce_push_two_shot_bf16, push_two_shot<true>)
KERNEL(all_reduce_pull_one_shot_bf16, pull_one_shot<true>)
KERNEL(all_reduce_pull_two_shot_bf16, pull_two_shot<true>)
