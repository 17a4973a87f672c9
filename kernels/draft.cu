// draft: rows for an Eagle3 layer, picked and normalised side by side; its logits over the target's vocabulary.
// Source:  EAGLE-3, Li et al., arXiv 2503.01840; norm: Zhang and Sennrich, arXiv 1910.07467. Twin: src/cuda/kernels/draft.rs.
// Spec:    ops/draft.rs `capture`, `draft_step`, `draft_logits`; host/draft.rs.
// Legend:  T rows (slots), D columns, S rows with logits, V vocabulary of the target, F rows of the draft's head.
// Shapes:  draft_rows: source [., D] f32, a row every source_stride values; to [T, D] f32, a row every to_stride values.
//          draft_spread: drafted [S, F] f32; logits [S, V] f32.
// Traffic: draft_rows 8*T*D bytes, 4 more per value for each further copy, read twice where it is normalised (from L2);
//          draft_spread 4*S*(F + V) bytes and 4*V for the map.
// Floor:   D=7168, T=1: 57 KB, latency; T=2048: 117 MB -> 27 us at 4.3 TB/s (H200). V=163840, S=4: 5 MB -> 1.2 us.
// Grid:    draft_rows: one block of 256 threads per row, any D that is a multiple of 8; draft_spread: (V / 1024, S).
// Order:   a thread adds the squares of its columns in their order, then block_sum: fixed by D. In place is allowed where
//          row t is made of row t, because a thread writes the columns that it alone reads.
// Tried:   one version; no timing yet.

#include "types.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256;
constexpr int VALUES = 8;
constexpr int SPREAD_VALUES = 4;
constexpr u32 NO_ROW = 0xffffffffu;

struct DraftRowsParams {
    const float* source;  // rows to pick from
    const u32* rows;      // [T], row of the source; null: 0, 1, ...
    const float* gain;    // [D], or null: no norm
    float* to;            // first row, at its first column
    bf16* rounded;        // the same in bf16, or null
    float* residual;      // [T, D], what was picked, or null
    i64 source_stride;    // values, a multiple of 8
    i64 to_stride;        // values, a multiple of 8
    int columns;          // D, a multiple of 8
    int normed_residual;  // whether `residual` gets the normalised row instead
    float eps;            // added to the mean square
    int padding;
};

extern "C" __global__ void __launch_bounds__(THREADS) draft_rows(const __grid_constant__ DraftRowsParams params) {
    begin_kernel();
    __shared__ float warp_sums[THREADS / 32];
    const i64 row = blockIdx.x;
    const i64 from = params.rows == nullptr ? row : params.rows[row];
    const float* source = params.source + from * params.source_stride;
    const int first = static_cast<int>(threadIdx.x) * VALUES;
    float values[VALUES], gain[VALUES];
    float inverse = 0.0f;
    if (params.gain != nullptr) {
        float squares = 0.0f;
        for (int column = first; column < params.columns; column += THREADS * VALUES) {
            load8(values, source + column);
#pragma unroll
            for (int i = 0; i < VALUES; ++i) {
                squares = __fmaf_rn(values[i], values[i], squares);
            }
        }
        const float mean_square = __fdiv_rn(block_sum(squares, warp_sums), static_cast<float>(params.columns));
        inverse = __frcp_rn(__fsqrt_rn(mean_square + params.eps));
    }
    for (int column = first; column < params.columns; column += THREADS * VALUES) {
        load8(values, source + column);
        float* residual = params.residual == nullptr ? nullptr : params.residual + row * params.columns + column;
        if (residual != nullptr && !params.normed_residual) {
            store8(residual, values);
        }
        if (params.gain != nullptr) {
            load8(gain, params.gain + column);
#pragma unroll
            for (int i = 0; i < VALUES; ++i) {
                values[i] = gain[i] * (values[i] * inverse);
            }
        }
        if (residual != nullptr && params.normed_residual) {
            store8(residual, values);
        }
        const i64 to = row * params.to_stride + column;
        store8(params.to + to, values);
        if (params.rounded != nullptr) {
            store8(params.rounded + to, values);
        }
    }
}

struct DraftSpreadParams {
    const float* drafted;  // [S, F]
    const u32* rows;       // [V], row of the head, or NO_ROW
    float* logits;         // [S, V]
    i64 drafted_stride;    // F
    i64 vocab;             // V
    float scale;           // factor on every logit
    int padding;
};

extern "C" __global__ void __launch_bounds__(THREADS) draft_spread(const __grid_constant__ DraftSpreadParams params) {
    begin_kernel();
    const float* drafted = params.drafted + blockIdx.y * params.drafted_stride;
    float* logits = params.logits + blockIdx.y * params.vocab;
#pragma unroll
    for (int i = 0; i < SPREAD_VALUES; ++i) {
        const i64 id = (static_cast<i64>(blockIdx.x) * SPREAD_VALUES + i) * THREADS + threadIdx.x;
        if (id < params.vocab) {
            const u32 row = params.rows[id];
            logits[id] = row == NO_ROW ? __int_as_float(0xff800000) : __fmul_rn(params.scale, drafted[row]);
        }
    }
}
