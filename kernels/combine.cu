// combine: hidden += sum_k weight[k] * routed[k] + shared, then normed = norm(hidden). Of a rank hidden = its part of the sum.
// Source:  DeepSeek-V3, arXiv 2412.19437, equation 12; norm as in rms_norm.cu. Twin: src/cuda/kernels/combine.rs.
// Spec:    the end of ops/backend.rs `moe` and `dense`; host/reference.rs `experts`.
// Legend:  T rows (tokens), K experts per token, D hidden size.
// Shapes:  routed [T*K, D] f32; chosen, weights [T, K]; shared [T, D] f32; hidden, normed [T, D] f32; gain [D] f32.
// Traffic: 4*T*D*(K+4) bytes.
// Floor:   D=7168, K=8: T=2048 is 705 MB -> 164 us at 4.3 TB/s (H200); T=1 is 344 KB, from L2: latency.
// Grid:    a block for each row, with a thread for each eight columns, so D <= 8192; and some blocks that fetch ahead.
// Order:   sums in order of k, then the shared expert; squares of a thread in order of the columns, then over the warps in their order.
// Tried:   H100, four steps of 256 threads, unrolled: T=1 11 us, T=2048 252 us. With one row it waits for what a load waits for: those took
//          16 loads one behind the other, of which 3 are left: the choice, and two times four experts. This form has not run on a GPU.

#include "ahead.cuh"
#include "types.cuh"
#include "reduce.cuh"

// Experts whose rows a thread loads at once.
constexpr int AT_ONCE = 4;
constexpr int VALUES = 8;
constexpr int MOST_THREADS = 1024;

struct CombineParams {
    float* hidden;         // [T, D]
    const float* routed;   // [T*K, D]
    const u32* chosen;     // [T, K]; of experts that are not on this device the row of `routed` is not read
    const float* weights;  // [T, K]
    const float* shared;   // [T, D], or null
    const float* gain;     // [D], or null: normed is left alone
    float* normed;         // [T, D]
    bf16* rounded;         // [T, D], normed in bf16, or null
    int columns;           // D, a multiple of 8, at most 8192
    int top_k;             // K, or 0
    float eps;
    int adds;              // 1: hidden += sum; 0: hidden = sum
    u32 first_expert;      // number of the first expert of this device
    u32 num_experts;       // and how many it has
};

struct CombineLaunch {
    CombineParams params;
    Ahead ahead[2];
    int num_rows;  // T; the blocks behind them fetch ahead
    int padding;
};

// sum = sum_k weight[k] * routed[k] of the columns from `column` on. A warp loads the choice of 32 experts at once.
__device__ __forceinline__ void add_routed(const CombineParams& params, i64 row, int column, bool has_columns, float (&sum)[VALUES]) {
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    for (int first = 0; first < params.top_k; first += WARP) {
        const i64 slot = row * params.top_k + min(first + lane, params.top_k - 1);
        const u32 chosen = params.chosen[slot];
        const float weight = params.weights[slot];
        const int count = min(params.top_k - first, WARP);
#pragma unroll 1
        for (int from = 0; from < count; from += AT_ONCE) {
            // All loads are on their way before the first sum.
            float added[AT_ONCE][VALUES];
            bool present[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const u32 expert = __shfl_sync(0xffffffffu, chosen, from + k);
                present[k] = from + k < count && has_columns && expert - params.first_expert < params.num_experts;
                if (present[k]) {
                    load8(added[k], params.routed + (row * params.top_k + first + from + k) * params.columns + column);
                }
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const float factor = __shfl_sync(0xffffffffu, weight, from + k);
                if (present[k]) {
#pragma unroll
                    for (int i = 0; i < VALUES; ++i) {
                        sum[i] = __fadd_rn(sum[i], __fmul_rn(factor, added[k][i]));
                    }
                }
            }
        }
    }
}

// Lets what a thread will load wait in the first cache meanwhile: registers are short.
__device__ __forceinline__ void fetch_soon(const float* from) { asm volatile("prefetch.global.L1 [%0];" :: "l"(from)); }

// Sum over the warps of the block, in their order; the same bits in every thread.
__device__ __forceinline__ float sum_of_warps(float value) {
    __shared__ float warp_sums[MOST_THREADS / WARP];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) {
        warp_sums[threadIdx.x / WARP] = value;
    }
    __syncthreads();
    float sum = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / WARP; ++warp) {
        sum += warp_sums[warp];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) combine(const __grid_constant__ CombineLaunch launch) {
    begin_kernel();
    const CombineParams& params = launch.params;
    if (static_cast<int>(blockIdx.x) >= launch.num_rows) {
        if (threadIdx.x < 2) {
            fetch_ahead(launch.ahead[threadIdx.x], blockIdx.x - launch.num_rows, gridDim.x - launch.num_rows);
        }
        return;
    }
    const i64 row = blockIdx.x, first = row * params.columns;
    const int column = static_cast<int>(threadIdx.x) * VALUES;
    const bool has_columns = column < params.columns;
    if (has_columns) {
        fetch_soon(params.hidden + first + column);
        if (params.shared != nullptr) {
            fetch_soon(params.shared + first + column);
        }
        if (params.gain != nullptr) {
            fetch_soon(params.gain + column);
        }
    }
    float values[VALUES] = {};
    add_routed(params, row, column, has_columns, values);
    float squares = 0.0f;
    if (has_columns) {
        float own[VALUES] = {};
        if (params.adds) {
            load8(own, params.hidden + first + column);
        }
        if (params.shared != nullptr) {
            float added[VALUES];
            load8(added, params.shared + first + column);
#pragma unroll
            for (int i = 0; i < VALUES; ++i) {
                values[i] += added[i];
            }
        }
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            values[i] = own[i] + values[i];
            squares = __fmaf_rn(values[i], values[i], squares);
        }
        store8(params.hidden + first + column, values);
    }
    if (params.gain == nullptr) {
        return;
    }
    const float mean_square = __fdiv_rn(sum_of_warps(squares), static_cast<float>(params.columns));
    const float inverse = __frcp_rn(__fsqrt_rn(mean_square + params.eps));
    if (has_columns) {
        float gain[VALUES];
        load8(gain, params.gain + column);
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
            gain[i] *= values[i] * inverse;
        }
        store8(params.normed + first + column, gain);
        if (params.rounded != nullptr) {
            store8(params.rounded + first + column, gain);
        }
    }
}
