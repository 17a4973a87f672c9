// What becomes of the sums of the first product of experts on tensor cores.

#include "tile.cuh"

struct SwiGlu {
    static __device__ __forceinline__ void run(
        const TiledParams& params, int tile, int g, int slot, float gate, float up) {
        const int unit = tile * 8 + g;
        if (unit < params.weight.rows) {
            const float silu = __fdiv_rn(gate, 1.0f + expf(-gate));
            static_cast<bf16*>(params.y)[slot * params.y_stride + unit] = bf16_of(silu * up);
        }
    }
    static __device__ __forceinline__ void finish(const TiledLaunch&) {}
};
