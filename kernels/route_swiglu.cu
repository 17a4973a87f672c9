// route_swiglu: route_bf16 (route.cu), and beside it y = silu(gate x) * up x of an expert that every row has, of up to 8 rows.
// Source:  DeepSeek-V3, arXiv 2412.19437, section 2.1.2. Twin: src/cuda/kernels/route_swiglu.rs.
// Spec:    ops/backend.rs `moe`.
// Legend:  T rows, E routed experts, K experts per token, D hidden size, I inner units of the shared expert.
// Shapes:  those of route_bf16; gate, up [I, D] in tiles of 8 rows of gate and 8 of up; x [T, D] f32 and bf16; y [T, I] bf16.
// Traffic: 2*E*D + 2*I*D*B bytes.
// Floor:   bf16, D=7168, I=2048, E=384: 5.5 + 58.7 MB -> 14.9 us at 4.3 TB/s (H200).
// Grid:    blocks of route_bf16, then a block for each tile of outputs, 8 warps; the choice, a chain of some 10 us that reads nothing,
//          runs while the others read weights.
// Order:   those of route.cu and of include/tile.cuh.

#include "route.cuh"
#include "swiglu_write.cuh"

struct RouteSwigluParams {
    LinearRouteParams route;
    TiledParams shared;  // without a worklist, and at most 8 slots
    u32 route_blocks;
    int padding;
};

// Blocks on a multiprocessor: all of the shared expert of Kimi K2 and of its router are there at once.
constexpr int ROUTE_SWIGLU_BLOCKS = 3;

#define ROUTE_SWIGLU(name, Format)                                                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, ROUTE_SWIGLU_BLOCKS)                                     \
        name(const __grid_constant__ RouteSwigluParams params) {                                                         \
        if (blockIdx.x < params.route_blocks) {                                                                          \
            begin_kernel();                                                                                              \
            linear_route<Bf16>(params.route, params.route_blocks);                                                       \
            return;                                                                                                      \
        }                                                                                                                \
        if constexpr (!loads_early<Format>(1, 1)) {                                                                         \
            begin_kernel();                                                                                              \
        }                                                                                                                \
        tiled<Format, SwiGlu, 1, 1>(params.shared, static_cast<int>(blockIdx.x - params.route_blocks));                  \
    }

ROUTE_SWIGLU(route_swiglu_bf16, TileBf16)
ROUTE_SWIGLU(route_swiglu_nvfp4, TileNvfp4)
ROUTE_SWIGLU(route_swiglu_mxfp4, TileMxfp4)
ROUTE_SWIGLU(route_swiglu_int4, TileInt4)
ROUTE_SWIGLU(route_swiglu_fp8, TileFp8)
