// latent: the norm of the query's latent; norm, rotation and storage of the key's latent.
// Source:  DeepSeek-V2, arXiv 2405.04434, section 2.1; rope: Su et al., arXiv 2104.09864. Twin: src/cuda/kernels/latent.rs.
// Spec:    ops/backend.rs `attention_in`; host/reference.rs `write_latent`; row formats: quant/cached_row.rs.
// Legend:  T rows (tokens), Q q_lora_rank, C kv_lora_rank, R qk_rope_head_dim.
// Shapes:  q_latent [T, Q] f32; kv_a [T, C+R] f32; rotations [T, R] f32, R/2 cosines then R/2 sines; cache [slots, row].
// Traffic: T*(8Q + 4(C+R) + bytes of a cached row) bytes.
// Floor:   Q=1536, C=512, R=64, FP8 rows: T=2048 is 31 MB -> 7 us at 4.3 TB/s (H200); T=1 is latency.
// Grid:    (T, 2): y = 0 stores the key's latent, y = 1 normalises the query's; 256 threads. z > 0 fetches ahead.
// Order:   a thread adds its squares in order of the columns, then block_sum.
// Tried:   H100, T=1: 6 us; T=2048: 22 us, with gains that were loaded behind the sum. All loads of a row are on their way before it now,
//          which has not run on a GPU.

#include "ahead.cuh"
#include "latent.cuh"

struct LatentLaunch {
    LatentParams params;
    Ahead ahead;
};

#define KERNEL(name, KIND)                                                                           \
    extern "C" __global__ void __launch_bounds__(LATENT_THREADS) name(const __grid_constant__ LatentLaunch launch) { \
        begin_kernel();                                                                              \
        if (blockIdx.z == 0) {                                                                       \
            if (blockIdx.y == 1) {                                                                   \
                normalise_query<false>(launch.params, blockIdx.x);                                   \
            } else {                                                                                 \
                __shared__ float values[MAX_COLUMNS];                                                \
                store_latent<KIND, false>(launch.params, blockIdx.x, values);                        \
            }                                                                                        \
        } else if (threadIdx.x == 0) {                                                               \
            const u32 blocks = gridDim.x * gridDim.y;                                                \
            fetch_ahead(launch.ahead, (blockIdx.z - 1) * blocks + blockIdx.y * gridDim.x + blockIdx.x, \
                        (gridDim.z - 1) * blocks);                                                   \
        }                                                                                            \
    }

KERNEL(latent_f32, ROW_F32)
KERNEL(latent_bf16, ROW_BF16)
KERNEL(latent_fp8, ROW_FP8)
KERNEL(latent_fp8_rope, ROW_FP8_ROPE)
