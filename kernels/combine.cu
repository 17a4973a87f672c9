// combine: hidden += sum_k weight[k] * routed[k] + shared, then normed = norm(hidden). Of a rank hidden = its part of the sum.
// Source:  DeepSeek-V3, arXiv 2412.19437, equation 12; norm as in rms_norm.cu. Twin: src/cuda/kernels/combine.rs.
// Spec:    the end of ops/backend.rs `moe` and `dense`; host/reference.rs `experts`.
// Legend:  T rows (tokens), K experts per token, D hidden size.
// Shapes:  routed [T*K, D] f32; chosen, weights [T, K]; shared [T, D] f32; hidden, normed [T, D] f32; gain [D] f32.
// Traffic: 4*T*D*(K+4) bytes.
// Floor:   D=7168, K=8: T=2048 is 705 MB -> 164 us at 4.3 TB/s (H200); T=1 is 344 KB, from L2: latency.
// Grid:    one block of 256 threads per row, and some that fetch ahead; a thread holds at most 32 values, so D <= 8192.
// Order:   sums in order of k, then the shared expert; the norm as in rms_norm.cu.
// Tried:   H100, with steps unrolled: T=1 11 us, T=2048 252 us. Rolled up, half of the instructions, it has not run on a GPU.

#include "ahead.cuh"
#include "types.cuh"
#include "reduce.cuh"
#include "norm.cuh"

// Experts whose rows a thread loads at once.
constexpr int AT_ONCE = 4;

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

extern "C" __global__ void __launch_bounds__(NORM_THREADS) combine(const __grid_constant__ CombineLaunch launch) {
    begin_kernel();
    const CombineParams& params = launch.params;
    if (static_cast<int>(blockIdx.x) >= launch.num_rows) {
        if (threadIdx.x < 2) {
            fetch_ahead(launch.ahead[threadIdx.x], blockIdx.x - launch.num_rows, gridDim.x - launch.num_rows);
        }
        return;
    }
    __shared__ float warp_sums[NORM_THREADS / 32];
    const i64 row = blockIdx.x;
    float* hidden = params.hidden + row * params.columns;
    float values[NORM_STEPS][NORM_VALUES] = {};
    // One row runs this code once: unrolled, it would be fetched four times as long. A step's values are put in their registers below.
#pragma unroll 1
    for (int step = 0; step < NORM_STEPS; ++step) {
        const int column = norm_column(step);
        if (column < params.columns) {
            float sum[NORM_VALUES] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
            for (int first = 0; first < params.top_k; first += AT_ONCE) {
                // All loads are on their way before the first sum.
                float added[AT_ONCE][NORM_VALUES];
                float weights[AT_ONCE];
                bool present[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const i64 slot = row * params.top_k + min(first + k, params.top_k - 1);
                    present[k] = first + k < params.top_k && params.chosen[slot] - params.first_expert < params.num_experts;
                    weights[k] = params.weights[slot];
                    if (present[k]) {
                        load8(added[k], params.routed + slot * params.columns + column);
                    }
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    if (present[k]) {
#pragma unroll
                        for (int i = 0; i < NORM_VALUES; ++i) {
                            sum[i] = __fadd_rn(sum[i], __fmul_rn(weights[k], added[k][i]));
                        }
                    }
                }
            }
            if (params.shared != nullptr) {
                float added[NORM_VALUES];
                load8(added, params.shared + row * params.columns + column);
#pragma unroll
                for (int i = 0; i < NORM_VALUES; ++i) {
                    sum[i] += added[i];
                }
            }
            float own[NORM_VALUES] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            if (params.adds) {
                load8(own, hidden + column);
            }
#pragma unroll
            for (int i = 0; i < NORM_VALUES; ++i) {
                own[i] += sum[i];
#pragma unroll
                for (int other = 0; other < NORM_STEPS; ++other) {
                    values[other][i] = other == step ? own[i] : values[other][i];
                }
            }
            store8(hidden + column, own);
        }
    }
    if (params.gain != nullptr) {
        bf16* rounded = params.rounded == nullptr ? nullptr : params.rounded + row * params.columns;
        write_norm(params.normed + row * params.columns, rounded, values, params.gain, params.columns, params.eps, warp_sums);
    }
}
