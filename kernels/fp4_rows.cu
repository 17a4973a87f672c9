// fp4_rows: rows of f32 in 4-bit floats, in front of the first product of experts.
// Source:  as fp4_linear.cu. Twin: src/cuda/kernels/fp4.rs.
// Spec:    quant/activation.rs `ActivationForm::encode`, byte for byte.
// Shapes:  x [R, K] f32; y [R, T, K] in 4-bit floats (fp4_rows.cuh); T terms.
// Traffic: 4 R K in, 0.5625 R T K out.
// Grid:    (blocks of a row's scales, R, one or two scales of the tensor), 128 threads; a thread has the values of one scale.

#include "fp4_encode.cuh"

constexpr int THREADS = 128;

struct RowsParams {
    const float* x;
    u8* y[2];
    i64 x_stride;  // values
    i64 y_stride;  // bytes
    int columns;   // K, a multiple of 16
    int stages;
    RowTerms terms;
    Fp4Scales scales[2];
};

template <typename Rows>
__device__ __forceinline__ void write_block(const RowsParams& params) {
    begin_kernel();
    constexpr int BLOCK = Rows::BLOCK;
    const int block = static_cast<int>(blockIdx.x) * THREADS + static_cast<int>(threadIdx.x);
    if (block >= params.stages * (STAGE / BLOCK)) {
        return;
    }
    const float* x = params.x + static_cast<i64>(blockIdx.y) * params.x_stride + block * BLOCK;
    float values[BLOCK] = {};
#pragma unroll
    for (int i = 0; i < BLOCK; i += 4) {
        if (block * BLOCK + i < params.columns) {
            const float4 four = *reinterpret_cast<const float4*>(x + i);
            values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
        }
    }
    u8* row = params.y[blockIdx.z] + static_cast<i64>(blockIdx.y) * params.y_stride;
    const int terms = terms_of(params.terms, static_cast<int>(blockIdx.y));
    Rows::write(row, params.stages, block, values, params.scales[blockIdx.z], terms);
}

#define ROWS(name, rows)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ RowsParams params) { \
        write_block<rows>(params);                                                                         \
    }

ROWS(fp4_rows_nvfp4, Nvfp4Rows<1>)
ROWS(fp4_rows_nvfp4x2, Nvfp4Rows<2>)
ROWS(fp4_rows_nvfp4x3, Nvfp4Rows<3>)
ROWS(fp4_rows_mxfp4, Mxfp4Rows)
