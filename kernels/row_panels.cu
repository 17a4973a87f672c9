// row_panels: rows of bf16 as the panels that wgmma_tile.cuh and tcgen05_tile.cuh multiply, for prompts.
// Source:  include/panel.cuh. Twin: src/cuda/kernels/row_panels.rs.
// Legend:  T rows, K columns, U = ceil(K / 128) units.
// Shapes:  x [T, K] bf16; panels [ceil(T / 128), U, 2, 128, 64] bf16: the rows of a tile, a unit, its steps 0 to 3 and 4 to 7; of step j % 4 of a panel
//          chunk 2j + h of a row has inputs 32c + 4j + 2h and the next of c = 0 to 3, k in the order of the weights (include/tile_format.cuh); chunks
//          swizzled. Rows and columns that are not there are 0.
// Traffic: 4*T*K bytes.
// Floor:   T=2048 K=7168: 59 MB -> 14 us at 4.3 TB/s (H200), less where x is in the second cache.
// Grid:    (U, tiles of rows), 256 threads.

#include "panel.cuh"
#include "tile_format.cuh"

constexpr int PANEL_ROWS = 128;
constexpr int THREADS = 256;
// Chunks of 16 bytes of a row and a unit.
constexpr int CHUNKS_OF_ROW = UNIT / 8;

struct PanelsParams {
    const bf16* x;  // rows of x_stride values
    uint4* panels;
    i64 x_stride;   // a multiple of 8
    int rows;       // T
    int columns;    // K, a multiple of 8
};

extern "C" __global__ void __launch_bounds__(THREADS) row_panels(const __grid_constant__ PanelsParams params) {
    begin_kernel();
    const int unit = blockIdx.x, tile = blockIdx.y;
    uint4* to = params.panels + (static_cast<i64>(tile) * gridDim.x + unit) * (PANEL_ROWS * CHUNKS_OF_ROW);
#pragma unroll
    for (int i = 0; i < PANEL_ROWS * CHUNKS_OF_ROW / THREADS; ++i) {
        const int at = i * THREADS + static_cast<int>(threadIdx.x), r = at / CHUNKS_OF_ROW, chunk = at % CHUNKS_OF_ROW;
        const int row = tile * PANEL_ROWS + r;
        // Pairs of inputs 32c + 2 chunk, of c = 0 to 3.
        u32 pairs[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int column = unit * UNIT + 32 * c + 2 * chunk;
            pairs[c] = row < params.rows && column < params.columns
                           ? __ldg(reinterpret_cast<const u32*>(params.x + row * params.x_stride + column))
                           : 0;
        }
        const int byte = chunk / 8 * PANEL_ROWS * PANEL_PITCH + panel_byte(r, chunk % 8);
        to[byte / 16] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}
