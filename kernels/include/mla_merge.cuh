// Rows of absorbed attention from the sums of their items.
//
// Legend as in mla_decode.cu. An item of a head is a triple (m, s, v): e^m times s is its part of the sum of exponentials, e^m times v that of the
// weighted sum of latents. With (m + ln f, s / f, v / f) it is the same: so sums are kept in the range of f16.

#include "mla_pass.cuh"

constexpr int COMBINE_THREADS = 256;

// Merges the items of one row into `merged` [1][C], divided by the sum of exponentials, and their largest score with that sum into `of_rows` [1]. Half of the
// threads merge the items of even, half those of odd number, four columns each.
template <typename Sum>
__device__ __forceinline__ void merge_row(
    const MlaDecodeParams& params, int index, int head, int num_rows, float4 (&merged)[1][MAX_LATENT / 4], float2 (&of_rows)[1]) {
    constexpr int COLUMNS = MAX_LATENT / 4;
    static_assert(2 * COLUMNS == COMBINE_THREADS);
    __shared__ float2 items[COMBINE_THREADS];  // factor, and sum of exponentials
    __shared__ float peaks[COMBINE_THREADS / 32];
    __shared__ float4 odd_sums[COLUMNS];
    __shared__ float odd_total;
    const int latent = params.latent, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int odd = threadIdx.x / COLUMNS, column = 4 * (threadIdx.x % COLUMNS);
    const RowEntry entry = rows_of(params.pass)[index];
    const int num_items = items_of(params, entry);
    const i64 first_place = static_cast<i64>(entry.first_item) * params.num_heads + head;
    const int step = static_cast<int>(entry.group_rows()) * params.num_heads;
    const auto place_of = [&](int i) { return first_place + static_cast<i64>(i) * step; };
    const float2* statistics = reinterpret_cast<const float2*>(params.statistics);
    const Sum* latents = static_cast<const Sum*>(params.latents);
    float largest = -__uint_as_float(0x7f800000u);
    for (int i = threadIdx.x; i < num_items; i += COMBINE_THREADS) {
        largest = fmaxf(largest, statistics[place_of(i)].x);
    }
    largest = group_max<32>(largest);
    __syncthreads();
    if (lane == 0) {
        peaks[warp] = largest;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COMBINE_THREADS / 32; ++i) {
        largest = fmaxf(largest, peaks[i]);
    }
    float total = 0.0f;
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int begin = 0; begin < num_items; begin += COMBINE_THREADS) {
        const int count = min(num_items - begin, COMBINE_THREADS);
        __syncthreads();
        if (threadIdx.x < count) {
            const float2 item = statistics[place_of(begin + threadIdx.x)];
            items[threadIdx.x] = make_float2(expf(item.x - largest), item.y);
        }
        __syncthreads();
        if (column < latent) {
#pragma unroll 8
            for (int i = odd; i < count; i += 2) {
                total = __fmaf_rn(items[i].x, items[i].y, total);
                sums = fma4(items[i].x, four_of(latents + place_of(begin + i) * latent + column), sums);
            }
        }
    }
    if (odd) {
        odd_sums[column / 4] = sums;
        if (column == 0) {
            odd_total = total;
        }
    }
    __syncthreads();
    if (!odd && column < latent) {
        // A row without keys is 0.
        merged[0][column / 4] =
            num_items > 0 ? divide4(add4(sums, odd_sums[column / 4]), total + odd_total) : sums;
    }
    if (threadIdx.x == 0) {
        of_rows[0] = make_float2(largest, num_items > 0 ? total + odd_total : 0.0f);
    }
}

// The same of COUNT rows at once, the sums of each in the same order: its threads have eight columns each of the items of even and of
// odd number. Rows behind the last one are 0.
template <typename Sum, int COUNT>
__device__ __forceinline__ void merge_row(
    const MlaDecodeParams& params, int first, int head, int num_rows, float4 (&merged)[COUNT][MAX_LATENT / 4], float2 (&of_rows)[COUNT]) {
    constexpr int THREADS = COMBINE_THREADS / COUNT, WARPS_OF_ROW = THREADS / 32;
    static_assert(8 * THREADS >= MAX_LATENT && THREADS % 32 == 0);
    __shared__ float2 items[COUNT][THREADS];  // factor, and sum of exponentials
    __shared__ float peaks[COMBINE_THREADS / 32];
    __shared__ int counts[COUNT];
    const int latent = params.latent, row = threadIdx.x / THREADS, thread = threadIdx.x % THREADS, column = 8 * thread;
    RowEntry entry = {};
    if (first + row < num_rows) {
        entry = rows_of(params.pass)[first + row];
    }
    const int num_items = items_of(params, entry);
    const i64 first_place = static_cast<i64>(entry.first_item) * params.num_heads + head;
    const int step = static_cast<int>(entry.group_rows()) * params.num_heads;
    const auto place_of = [&](int i) { return first_place + static_cast<i64>(i) * step; };
    const float2* statistics = reinterpret_cast<const float2*>(params.statistics);
    const Sum* latents = static_cast<const Sum*>(params.latents);
    float largest = -__uint_as_float(0x7f800000u);
    for (int i = thread; i < num_items; i += THREADS) {
        largest = fmaxf(largest, statistics[place_of(i)].x);
    }
    largest = group_max<32>(largest);
    if (threadIdx.x % 32 == 0) {
        peaks[threadIdx.x / 32] = largest;
    }
    if (thread == 0) {
        counts[row] = num_items;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS_OF_ROW; ++i) {
        largest = fmaxf(largest, peaks[row * WARPS_OF_ROW + i]);
    }
    int most = 0;
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
        most = max(most, counts[r]);
    }
    float totals[2] = {};
    float4 sums[2][2] = {};
    for (int begin = 0; begin < most; begin += THREADS) {
        const int count = min(num_items - begin, THREADS);
        __syncthreads();
        if (thread < count) {
            const float2 item = statistics[place_of(begin + thread)];
            items[row][thread] = make_float2(expf(item.x - largest), item.y);
        }
        __syncthreads();
#pragma unroll 2
        for (int i = 0; i < count; i += 2) {
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                if (i + odd < count) {
                    const float2 item = items[row][i + odd];
                    const Sum* from = latents + place_of(begin + i + odd) * latent + column;
                    totals[odd] = __fmaf_rn(item.x, item.y, totals[odd]);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        if (column + 4 * half < latent) {
                            sums[odd][half] = fma4(item.x, four_of(from + 4 * half), sums[odd][half]);
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (column + 4 * half < latent) {
            merged[row][2 * thread + half] =
                num_items > 0 ? divide4(add4(sums[0][half], sums[1][half]), totals[0] + totals[1]) : sums[0][half];
        }
    }
    if (thread == 0) {
        of_rows[row] = make_float2(largest, totals[0] + totals[1]);
    }
}

// In place of the type of the items' sums: rows are merged already, as `latents` [A, H, C] f32.
struct Merged {};
template <typename Sum>
constexpr bool IS_MERGED = false;
template <>
constexpr bool IS_MERGED<Merged> = true;

// COUNT rows that are merged already. Rows behind the last one are 0.
template <int COUNT>
__device__ __forceinline__ void read_rows(
    const MlaDecodeParams& params, int first, int head, int num_rows, float4 (&merged)[COUNT][MAX_LATENT / 4]) {
    const int fours = params.latent / 4;
    for (int i = threadIdx.x; i < COUNT * fours; i += COMBINE_THREADS) {
        const int r = i / fours, at = i % fours;
        const i64 row = static_cast<i64>(first + r) * params.num_heads + head;
        merged[r][at] = first + r < num_rows ? four_of(static_cast<const float*>(params.latents) + row * params.latent + 4 * at)
                                             : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

__device__ __forceinline__ void store_statistics(const MlaDecodeParams& params, int index, int head, float2 of_row) {
    reinterpret_cast<float2*>(params.row_statistics)[static_cast<i64>(index) * params.num_heads + head] = of_row;
}

// Writes a value of a head of row `index` of the pass; 0 where the row attends to nothing.
__device__ __forceinline__ void store_value(const MlaDecodeParams& params, int index, int head, int v, float value) {
    const RowEntry entry = rows_of(params.pass)[index];
    const i64 row = params.part == Part::HEADS ? index : entry.row;
    const i64 at = (row * params.num_heads + head) * params.value + v;
    const float stored = entry.num_keys > 0 || params.part == Part::LATENTS ? value : 0.0f;
    params.attended[at] = stored;
    if (params.rounded != nullptr) {
        params.rounded[at] = bf16_of(stored);
    }
}
