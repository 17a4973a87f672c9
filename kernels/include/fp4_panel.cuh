// Weights in 4-bit floats as block-scaled tensor cores read them, and the operands of a launch of their products. No weight is ever decoded.
//
// A panel is 128 outputs, and each stage of 256 of its inputs is one run of bytes: 128 rows of 128 bytes of codes, in which chunk c of 16
// bytes of row r is at the place c ^ (r % 8), then blocks of 512 bytes of scales, 4 bytes of each output: output r has those at
// r % 32 * 16 + r / 32 * 4 (the layout of scale factors of tcgen05.cp and CUTLASS). A block of scales is 64 inputs of NVFP4 or 128 of MXFP4.
// Where gate and up are multiplied together, rows 16i .. 16i + 7 of a panel are outputs of gate, rows 16i + 8 .. 16i + 15 the same of up.

#include "fp4_rows.cuh"
#include "slots.cuh"

constexpr int PANEL_ROWS = 128;
constexpr int PANEL_CODES = PANEL_ROWS * STAGE_CODES;
constexpr int SCALE_BLOCK = 512;
constexpr int STEPS = STAGE / 64;

// Device side of cuda/weights/panels.rs `PanelWeight`: the matrices of all experts.
struct PanelWeight {
    const u8* panels;      // [E, panels, stages] runs of bytes
    const float* factors;  // [E, 2] scale of the tensor: of gate and up, or twice the same
    i64 expert_bytes;
    int num_panels;
    int stages;  // of K
    int rows;    // outputs of a matrix: N
    int padding;
};

struct Fp4Params {
    PanelWeight weight;
    const u8* x;           // rows of x_stride bytes: fp4_rows.cuh
    void* y;               // rows of y_stride values, or bytes
    const int* num_tiles;  // [1], or null: slot t is row t, of expert 0
    const SlotTile* tiles;
    const u32* slots;      // slots ordered by expert
    i64 x_stride;
    i64 y_stride;
    int slots_per_row;     // slots of a row of x
    int num_slots;         // without tiles
    int y_stages;          // of rows that are written in 4-bit floats
    int padding;
    Fp4Scales x_scales;
    Fp4Scales y_scales;    // of rows that are written in 4-bit floats
    RowTerms y_terms;      // of the rows of x
};

// One product, or two of one form that do not depend on each other: blockIdx.z says which.
struct Fp4Launch {
    Fp4Params parts[2];
};

// Steps of 64 inputs whose scales are in one word.
struct Nvfp4 {
    static constexpr int SCALE_STEPS = 1;
};
struct Mxfp4 {
    static constexpr int SCALE_STEPS = 2;
};

// The functions of a product: of each form of rows, for few slots of a block and for many. `Write<Format, TERMS>` gets the sums.
#define FP4_FUNCTION(name, format, terms, slots, Write)                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ Fp4Launch launch) { \
        fp4_block<format, terms, slots, Write<format, terms>>(launch.parts[blockIdx.z]);                   \
    }
#define FP4_FUNCTIONS(kernel, Write)                            \
    FP4_FUNCTION(kernel##_nvfp4_8, Nvfp4, 1, 8, Write)          \
    FP4_FUNCTION(kernel##_nvfp4_128, Nvfp4, 1, 128, Write)      \
    FP4_FUNCTION(kernel##_nvfp4x2_8, Nvfp4, 2, 8, Write)        \
    FP4_FUNCTION(kernel##_nvfp4x2_64, Nvfp4, 2, 64, Write)      \
    FP4_FUNCTION(kernel##_nvfp4x3_8, Nvfp4, 3, 8, Write)        \
    FP4_FUNCTION(kernel##_nvfp4x3_32, Nvfp4, 3, 32, Write)      \
    FP4_FUNCTION(kernel##_mxfp4_8, Mxfp4, 1, 8, Write)          \
    FP4_FUNCTION(kernel##_mxfp4_128, Mxfp4, 1, 128, Write)

// Bytes of a panel's stage.
template <typename Format>
constexpr int WEIGHT_BYTES = PANEL_CODES + STEPS / Format::SCALE_STEPS * SCALE_BLOCK;

// Where a panel of an expert begins.
template <typename Format>
__device__ __forceinline__ const u8* panel_of(const PanelWeight& weight, int expert, int panel) {
    return weight.panels + expert * weight.expert_bytes + static_cast<i64>(panel) * weight.stages * WEIGHT_BYTES<Format>;
}

// Where the row of x of a slot begins.
__device__ __forceinline__ u64 x_row_of(const Fp4Params& params, int slot) {
    return reinterpret_cast<u64>(params.x) + static_cast<u64>(slot / params.slots_per_row) * params.x_stride;
}
