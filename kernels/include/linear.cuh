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

template <bool LISTED>
struct XRows;
template <>
struct XRows<true> : RowPointers {};
template <>
struct XRows<false> : RowOffsets {};

// Block (block_column, block_row) of a product: a warp has COLUMNS outputs of up to ROWS rows; ALL as in `warp_products`. LISTED:
// there may be a list of rows; without one x is less than 4 G values.
template <typename Format, int COLUMNS, bool ALL, bool LISTED>
__device__ __forceinline__ void linear(const LinearParams& params, int block_column, int block_row) {
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const int column = (block_column * LINEAR_WARPS + warp) * COLUMNS;
    const int first = block_row * ROWS;
    if (column >= params.weight.rows) {
        return;
    }
    const int num_rows = min(ROWS, params.num_rows - first);
    const int last = params.num_rows - 1;
    XRows<LISTED> x;
    if constexpr (!LISTED) {
        x.x = params.x;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int t = min(first + r, last);
        if constexpr (LISTED) {
            x.at[r] = params.x + (params.rows != nullptr ? params.rows[t] : t) * params.x_stride;
        } else {
            x.at[r] = static_cast<u32>(t * params.x_stride);
        }
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

// A block of the grid.
template <typename Format, int COLUMNS, bool ALL = false>
__device__ __forceinline__ void linear(const LinearParams& params) {
    linear<Format, COLUMNS, ALL, true>(params, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}
