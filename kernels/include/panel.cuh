// Panels: tiles of shared memory as the tensor cores of Hopper and of B200 read them (swizzle of 128 bytes, K-major; PTX ISA, "Asynchronous
// warpgroup level matrix instructions" and "tcgen05"). A panel has rows of 64 values of bf16, 128 bytes, in which the chunk c of 16 bytes of row
// r is at the place c ^ (r % 8), and begins at a multiple of 1024 bytes.

#include "types.cuh"

// Bytes of a row of a panel, and of eight rows, after which the swizzle repeats.
constexpr int PANEL_PITCH = 128;
constexpr int PANEL_EIGHT = 8 * PANEL_PITCH;
// Columns of a panel; bytes of one of 64 rows.
constexpr int PANEL = 64;
constexpr int PANEL_BYTES = 64 * PANEL_PITCH;
// Products of 16 of k in a panel; bytes from one to the next where k is along a row, and where it is along the rows.
constexpr int PANEL_STEPS = PANEL / 16;
constexpr int PANEL_STEP_COLUMNS = 2 * 16;
constexpr int PANEL_STEP_ROWS = 16 * PANEL_PITCH;

// Byte of chunk `chunk` of row `row` in a panel.
__device__ __forceinline__ int panel_byte(int row, int chunk) { return row * PANEL_PITCH + ((chunk ^ (row & 7)) << 4); }
