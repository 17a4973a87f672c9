// y = x W^T or y += x W^T in f32, weights in their stored format.

#include "types.cuh"
#include "reduce.cuh"
#include "weight.cuh"

constexpr int LINEAR_WARPS = 8;

struct LinearParams {
    Weight weight;     // one expert
    const float* x;    // rows of x_stride values
    const u32* rows;   // [T] rows of x, or null: 0, 1, ...
    float* y;          // [T, y_stride]
    i64 x_stride;      // values, a multiple of 8
    i64 y_stride;      // values
    int num_rows;      // T
    int add;           // whether y is added to
};

// A warp has COLUMNS outputs of up to ROWS rows; ALL as in `warp_products`.
template <typename Format, int COLUMNS, bool ALL = false>
__device__ __forceinline__ void linear(const LinearParams& params) {
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const int column = (static_cast<int>(blockIdx.x) * LINEAR_WARPS + warp) * COLUMNS;
    const int first = static_cast<int>(blockIdx.y) * ROWS;
    if (column >= params.weight.rows) {
        return;
    }
    const int num_rows = min(ROWS, params.num_rows - first);
    const float* x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int t = min(first + r, params.num_rows - 1);
        x[r] = params.x + (params.rows != nullptr ? params.rows[t] : t) * params.x_stride;
    }
    WeightRow rows[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        rows[c] = row_of<Format>(params.weight, 0, column + c);
    }
    float sums[COLUMNS][ROWS];
    warp_products<Format, COLUMNS, ALL>(sums, rows, x, num_rows, params.weight.columns);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            if (lane == r * COLUMNS + c && r < num_rows && column + c < params.weight.rows) {
                float* y = params.y + (first + r) * params.y_stride + column + c;
                *y = params.add ? *y + sums[c][r] : sums[c][r];
            }
        }
    }
}
