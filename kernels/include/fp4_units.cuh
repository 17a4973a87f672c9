// What becomes of the sums of the first product of experts: units of a panel of gate and up, in 4-bit floats.

#include "fp4_encode.cuh"
#include "fp4_panel.cuh"

// Rows in the form of a function.
template <typename Format, int TERMS>
struct FormOf {
    using Rows = Nvfp4Rows<TERMS>;
};
template <>
struct FormOf<Mxfp4, 1> {
    using Rows = Mxfp4Rows;
};
template <typename Format, int TERMS>
using RowsOf = typename FormOf<Format, TERMS>::Rows;

constexpr int UNITS = PANEL_ROWS / 2;
// Values of a slot in shared memory, and one for the banks.
constexpr int UNITS_PITCH = UNITS + 1;

__device__ __forceinline__ float swiglu_of(float gate, float up) { return __fdiv_rn(gate, 1.0f + expf(-gate)) * up; }

// Writes the units of a panel of all slots of a block, which are in shared memory, by `threads` threads: one has the values of a scale.
template <typename Rows>
__device__ __forceinline__ void write_units(
    const Fp4Params& params, const float* values, const u32* slots, int panel, int count, int thread, int threads) {
    // The last panel fills the rest of its stage with zeros.
    constexpr int BLOCK = Rows::BLOCK, BLOCKS = UNITS / BLOCK;
    const bool is_last = panel + 1 == params.weight.num_panels;
    const int blocks = is_last ? params.y_stages * (STAGE / BLOCK) - panel * BLOCKS : BLOCKS;
    for (int i = thread; i < count * blocks; i += threads) {
        const int at = i / blocks, block = i % blocks;
        float own[BLOCK];
#pragma unroll
        for (int k = 0; k < BLOCK; ++k) {
            own[k] = block < BLOCKS ? values[at * UNITS_PITCH + block * BLOCK + k] : 0.0f;
        }
        u8* row = static_cast<u8*>(params.y) + static_cast<i64>(slots[at]) * params.y_stride;
        const int terms = terms_of(params.y_terms, static_cast<int>(slots[at]) / params.slots_per_row);
        Rows::write(row, params.y_stages, panel * BLOCKS + block, own, params.y_scales, terms);
    }
}
