// exchange_queries, exchange_attended, exchange_meet: attention of ranks that hold a part of every block each. Every rank takes the queries
// of all heads to its own keys; what comes of them goes back to the ranks whose heads they are, and is merged there.
// Source:  softmax in parts: Milakov, Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867, section 3.1; parts of a
//          sequence on ranks: Liu et al., "Ring Attention", arXiv 2310.01889. Twin: src/cuda/kernels/exchange.rs.
// Spec:    ops/host/ranks/rank.rs `attend_absorbed`, `attend_absorbed_by_heads`.
// Legend:  A rows of a pass, C most rows of one, H heads of all ranks, h those of a rank, n ranks, W values of a query head or V of a value;
//          of latents W is their width with the rope key, V without, and T is A.
// Shapes:  query [T, h*W] f32; queries [A, H*W] f32; partial [A, H*V] f32 with statistics [A, H, 2]; attended [T, h*V] f32.
//          Areas: [n, C, h*W] f32 for queries, [n, C, h*(V+4)] f32 for parts.
// Traffic: bytes that come in for a row: 4*(H-h)*W, then 4*(n-1)*h*(V+4).
// Floor:   H=64 n=4: heads, W=192 V=128, 36.9 + 25.3 KB a row -> 1.2 us at 53 GB/s (PCIe 5); latents, W=576 V=512, 110.6 + 99.1 KB -> 4.0 us;
//          and the latency of a store to a peer, twice.
// Grid:    blocks of 256 threads, no more than are resident at once: blocks wait for those of other ranks.
// Order:   parts are merged by rank: largest score, then the weights of the ranks, then the values, each in the order of the ranks.
// Reuse:   a place is emptied by who has read it. Behind each exchange of queries comes one of parts before the next: a peer that gives
//          queries again has seen this rank there, which this rank began after the emptying launch, and the other way round. Fences as in
//          all_reduce.cu, with which these share the count of exchanges. A pass without rows is none.
// Tried:   not measured on a device; runs on 2, 4 and 8 emulated ones.

#include "peer.cuh"
#include "mla.cuh"
#include "mla_pass.cuh"

struct ExchangeParams {
    Link link;
    const Pass* pass;         // the pass and its rows
    const float* from;        // query [T, h*W]; partial [A, H*V], divided by its sums
    const float* statistics;  // [A, H, 2]: largest score and sum of exponentials on this rank
    float* to;                // queries [A, H*W]; attended [T, h*V]
    bf16* rounded;            // [T, h*V], attended in bf16, or null
    u64 places;               // offset in an area
    int num_heads;            // H
    int width;                // W or V, a multiple of 4
    int capacity;             // C
    u32 operation;            // for the report of a wait that did not end
    u32 is_latent;            // 1: heads are latents, and also `from` of queries and `to` of attended have the rows of the pass
    u32 padding;
};

constexpr int THREADS = 256;
// Values behind those of a head: its largest score, its sum, and two that are 0.
constexpr int BEHIND = 4;
// Ranks whose values a thread looks at together.
constexpr u32 AT_ONCE = 4;
constexpr u32 ALL_LANES = 0xffffffffu;

// First head of a rank.
__device__ __forceinline__ int first_head(const ExchangeParams& params, u32 rank) {
    return static_cast<int>(params.num_heads * rank / params.link.world);
}

__device__ __forceinline__ int heads_of(const ExchangeParams& params, u32 rank) {
    return first_head(params, rank + 1) - first_head(params, rank);
}

// Where this rank has a row of the pass.
__device__ __forceinline__ i64 own_row(const ExchangeParams& params, int row) {
    return params.is_latent ? row : rows_of(params.pass)[row].row;
}

// Most heads of a rank.
__device__ __forceinline__ int most_heads(const ExchangeParams& params) {
    return static_cast<int>((params.num_heads + params.link.world - 1) / params.link.world);
}

// Where rank `there` has what `source` gives it of a row, which is `row_values` at most.
__device__ __forceinline__ u8* place(const ExchangeParams& params, u32 there, u32 source, int row, int row_values) {
    const i64 first = static_cast<i64>(source * params.capacity + row) * row_values;
    return params.link.areas[there] + params.places + static_cast<u64>(first) * sizeof(float);
}

__device__ __forceinline__ void put4(u8* to, float4 four) {
    put(to, make_uint4(filled(four.x), filled(four.y), filled(four.z), filled(four.w)));
}

__device__ __forceinline__ float4 values_of(uint4 words) {
    return make_float4(__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w));
}

// A thread takes what the same thread of another rank has put.
extern "C" __global__ void __launch_bounds__(THREADS, 1) exchange_queries(const __grid_constant__ ExchangeParams params) {
    begin_kernel();
    const Link& link = params.link;
    const int num_rows = params.pass->num_rows;
    if (num_rows == 0) {
        return;
    }
    const Exchange exchange = begin_exchange(link);
    const int row_values = most_heads(params) * params.width;
    const int thread = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    const auto queries_of = [&](int row, u32 rank) {
        return params.to + (static_cast<i64>(row) * params.num_heads + first_head(params, rank)) * params.width;
    };
    const int own = heads_of(params, link.rank) * params.width, own_fours = own / 4;
    for (int i = thread; i < num_rows * own_fours; i += step) {
        const int row = i / own_fours, at = 4 * (i % own_fours);
        const float4 four = four_of(params.from + own_row(params, row) * own + at);
        for (u32 other = 1; other < link.world; ++other) {
            const u32 there = (link.rank + other) % link.world;
            put4(place(params, there, link.rank, row, row_values) + at * sizeof(float), four);
        }
        store_four(queries_of(row, link.rank) + at, four);
    }
    for (u32 other = 1; other < link.world; ++other) {
        const u32 source = (link.rank + other) % link.world;
        const int fours = heads_of(params, source) * params.width / 4;
        for (int i = thread; i < num_rows * fours; i += step) {
            const int row = i / fours, at = 4 * (i % fours);
            u8* here = place(params, link.rank, source, row, row_values) + at * sizeof(float);
            uint4 words = look(here);
            take(words, here, link, params.operation, source, exchange.epoch);
            store_four(queries_of(row, source) + at, values_of(words));
        }
    }
    end_exchange(link, exchange);
}

// Merges what the ranks have of a row and one of this rank's heads. A warp has a head, a lane the values 4 * lane .. + 3 and every
// 128th behind them.
__device__ __forceinline__ void merge_ranks(const ExchangeParams& params, int row, int head, u32 epoch, int row_values) {
    const Link& link = params.link;
    const u32 lane = threadIdx.x % 32;
    const i64 own = static_cast<i64>(row) * params.num_heads + first_head(params, link.rank) + head;
    const auto here = [&](u32 source) {
        return place(params, link.rank, source, row, row_values) + head * (params.width + BEHIND) * sizeof(float);
    };
    float largest = -__uint_as_float(0x7f800000u), sum = 0.0f;
    if (lane == link.rank) {
        largest = params.statistics[2 * own];
        sum = params.statistics[2 * own + 1];
    } else if (lane < link.world) {
        u8* at = here(lane) + params.width * sizeof(float);
        uint4 words = look(at);
        take(words, at, link, params.operation, lane, epoch);
        largest = __uint_as_float(words.x);
        sum = __uint_as_float(words.y);
    }
    __syncwarp();
    const float peak = group_max<MAX_RANKS>(largest);
    // A rank without keys of the row has no part in it.
    const float weight = sum == 0.0f ? 0.0f : sum * expf(largest - peak);
    float total = 0.0f;
#pragma unroll
    for (u32 rank = 0; rank < MAX_RANKS; ++rank) {
        total = __fadd_rn(total, __shfl_sync(ALL_LANES, weight, rank));
    }
    const i64 to = (own_row(params, row) * heads_of(params, link.rank) + head) * params.width;
#pragma unroll 1
    for (int first = 0; first < params.width; first += 128) {
        const int column = first + 4 * lane;
        const bool has_values = column < params.width;
        float4 merged = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
        for (u32 begin = 0; begin < link.world; begin += AT_ONCE) {
            // These are looked at before the first one is waited for.
            uint4 words[AT_ONCE] = {};
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 rank = begin + i;
                if (has_values && rank == link.rank) {
                    words[i] = *reinterpret_cast<const uint4*>(params.from + own * params.width + column);
                } else if (has_values && rank < link.world) {
                    words[i] = look(here(rank) + column * sizeof(float));
                }
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const u32 rank = begin + i;
                if (has_values && rank < link.world && rank != link.rank) {
                    take(words[i], here(rank) + column * sizeof(float), link, params.operation, rank, epoch);
                }
                __syncwarp();
                const float factor = __shfl_sync(ALL_LANES, weight, rank);
                if (rank < link.world) {
                    merged = fma4(factor, values_of(words[i]), merged);
                }
            }
        }
        if (has_values) {
            // A row without keys is 0.
            const float4 four = total == 0.0f ? merged : divide4(merged, total);
            store_four(params.to + to + column, four);
            if (params.rounded != nullptr) {
                *reinterpret_cast<uint2*>(params.rounded + to + column) =
                    make_uint2(pair_of(four.x, four.y), pair_of(four.z, four.w));
            }
        }
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) exchange_attended(const __grid_constant__ ExchangeParams params) {
    begin_kernel();
    const Link& link = params.link;
    const int num_rows = params.pass->num_rows;
    if (num_rows == 0) {
        return;
    }
    const Exchange exchange = begin_exchange(link);
    const int row_values = most_heads(params) * (params.width + BEHIND);
    const int warp = (blockIdx.x * THREADS + threadIdx.x) / 32, warps = gridDim.x * THREADS / 32, lane = threadIdx.x % 32;
    for (u32 other = 1; other < link.world; ++other) {
        const u32 there = (link.rank + other) % link.world;
        const int heads = heads_of(params, there);
        for (int i = warp; i < num_rows * heads; i += warps) {
            const int row = i / heads, head = i % heads;
            const i64 from = static_cast<i64>(row) * params.num_heads + first_head(params, there) + head;
            u8* to = place(params, there, link.rank, row, row_values) + head * (params.width + BEHIND) * sizeof(float);
            for (int column = 4 * lane; column < params.width + BEHIND; column += 128) {
                const float4 four = column < params.width
                                        ? four_of(params.from + from * params.width + column)
                                        : make_float4(params.statistics[2 * from], params.statistics[2 * from + 1], 0.0f, 0.0f);
                put4(to + column * sizeof(float), four);
            }
        }
    }
    const int heads = heads_of(params, link.rank);
    for (int i = warp; i < num_rows * heads; i += warps) {
        merge_ranks(params, i / heads, i % heads, exchange.epoch, row_values);
    }
    end_exchange(link, exchange);
}

struct MeetParams {
    Link link;
    u64 places;     // offset in an area of n pairs of words, 0 at first
    u32* meetings;  // so many of them so far
    u32 operation;
    u32 padding;
};

// What all ranks wrote before is there for the launches behind.
extern "C" __global__ void __launch_bounds__(32) exchange_meet(const __grid_constant__ MeetParams params) {
    begin_kernel();
    const Link& link = params.link;
    const u32 meeting = *params.meetings + 1, other = threadIdx.x;
    __syncwarp();
    if (other < link.world && other != link.rank) {
        system_fence();
        put_pair(link.areas[other] + params.places + 8 * link.rank, 0, meeting);
        const u8* here = link.areas[link.rank] + params.places + 8 * other;
        Wait wait;
        // A peer can be ahead.
        while (static_cast<int>(static_cast<u32>(look_pair(here) >> 32) - meeting) < 0) {
            if (!wait.goes_on(link, params.operation, other, meeting)) {
                break;
            }
        }
        system_fence();
    }
    __syncwarp();
    if (threadIdx.x == 0) {
        *params.meetings = meeting;
    }
}
