// fp4_pack: weights in 4-bit floats from the checkpoint's rows into panels, at load. Bytes stay what they are.
// Source:  panels: include/fp4_panel.cuh; formats: quant/packed.rs. Twin: src/cuda/kernels/fp4.rs.
// Shapes:  codes [R, K / 2], scales [R, K / 16] (MXFP4 [R, K / 32]) of a slice of one matrix or of two, gate and up; out: [P, U] stages.
// Traffic: the weights once in, once out.
// Grid:    (stages, panels), 256 threads.

#include "fp4_panel.cuh"

constexpr int PACK_THREADS = 256;

struct PackParams {
    const u8* codes[2];   // of one matrix, or of gate and up
    const u8* scales[2];
    u8* panels;           // [P, U] stages
    int halves;           // 1, or 2: eight rows of each in turn
    int rows;             // of a matrix; others are 0
    int columns;          // K
    int stages;           // U
};

template <typename Format>
__device__ __forceinline__ void pack_stage(const PackParams& params) {
    begin_kernel();
    constexpr int SCALES = STEPS / Format::SCALE_STEPS * 4;  // bytes of an output
    constexpr int INPUTS = STAGE / SCALES;                   // of a scale
    const int stage = static_cast<int>(blockIdx.x), panel = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    u8* out = params.panels + (static_cast<i64>(panel) * params.stages + stage) * (PANEL_CODES + PANEL_ROWS * SCALES);
    const auto row_of = [&](int r, int& half) {
        half = params.halves == 2 ? r / 8 % 2 : 0;
        return params.halves == 2 ? panel * (PANEL_ROWS / 2) + r / 16 * 8 + r % 8 : panel * PANEL_ROWS + r;
    };
    // Eight bytes at a time: K is a multiple of 16.
    for (int i = thread; i < PANEL_CODES / 8; i += PACK_THREADS) {
        const int r = i / 16, eight = i % 16, k = stage * STAGE + 16 * eight;
        int half;
        const int row = row_of(r, half);
        uint2 codes = make_uint2(0, 0);
        if (row < params.rows && k < params.columns) {
            codes = *reinterpret_cast<const uint2*>(params.codes[half] + (static_cast<i64>(row) * params.columns + k) / 2);
        }
        *reinterpret_cast<uint2*>(out + r * STAGE_CODES + ((eight / 2 ^ r % 8) << 4) + eight % 2 * 8) = codes;
    }
    for (int i = thread; i < PANEL_ROWS * SCALES; i += PACK_THREADS) {
        const int r = i / SCALES, s = i % SCALES, k = stage * STAGE + INPUTS * s;
        int half;
        const int row = row_of(r, half);
        u8 scale = 0;
        if (row < params.rows && k < params.columns) {
            scale = params.scales[half][static_cast<i64>(row) * (params.columns / INPUTS) + k / INPUTS];
        }
        out[PANEL_CODES + s / 4 * SCALE_BLOCK + r % 32 * 16 + r / 32 * 4 + s % 4] = scale;
    }
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) fp4_pack_nvfp4(const __grid_constant__ PackParams params) {
    pack_stage<Nvfp4>(params);
}
extern "C" __global__ void __launch_bounds__(PACK_THREADS) fp4_pack_mxfp4(const __grid_constant__ PackParams params) {
    pack_stage<Mxfp4>(params);
}
