// vision: everything of a vision tower between its products: patches, positions, layer norms, rotation, attention, GELU.
// Source:  MoonViT, arXiv 2504.07491, section 2.1; running maximum: Milakov and Gimelshein, arXiv 1805.02867. Twin: src/cuda/kernels/vision.rs.
// Spec:    ops/tower.rs `TowerOps`; host/tower.rs; host/reference.rs `layer_norm`, `bias_gelu`, `attend_patches`.
// Legend:  P patches, W width of the tower, H heads, E = W / H values of a head, F inner units, D width of the network.
// Shapes:  pixels u8 [rows*14, cols*14, 3] of each picture; hidden [P, W], qkv [P, 3*W], attended [P, W] f32.
// Traffic: norms and GELU 8 bytes a value and 2 more in bf16; attention reads qkv 3*4*P*W bytes once per 16 queries, from L2.
// Work:    attention 4*P*P*W FLOP in f32: the generic variant, right for every shape. 448x448 (P=1024, W=1152): 4.8 GFLOP a block,
//          130 in all of 27; 4000x3000 (P=16800): 1.3 TFLOP a block.
// Floor:   attention at 50 TFLOP/s in f32: 0.1 ms a block at P=1024, 26 ms at P=16800.
// Grid:    vision_attend: (P / 16 of one picture, H), 4 warps of 4 queries; keys and values of 32 patches in shared memory. The others:
//          one block of 256 threads per row.
// Order:   a lane scores every 32nd key in the order of the values; sums over keys go from the picture's first to its last: a patch's
//          bits depend on its own picture alone.
// Tried:   one version; no timing yet.

#include "types.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256;
constexpr int PATCH_SIDE = 14;
constexpr int PATCH_AREA = PATCH_SIDE * PATCH_SIDE;
constexpr u32 NO_ROW = 0xffffffffu;

// -- patches: rows of the first product, [count, columns], zero behind the 588 values --

struct VisionPatchesParams {
    const u8* pixels;     // of one picture
    const float* levels;  // [3, 256]
    float* to;            // [count, columns]
    bf16* rounded;        // the same in bf16, or null
    int first;            // patch of the first row
    int cols;             // patches of a row of the picture
    int columns;          // at least 588
    int padding;
};

extern "C" __global__ void __launch_bounds__(THREADS) vision_patches(const __grid_constant__ VisionPatchesParams params) {
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x), patch = params.first + row;
    const int top = patch / params.cols * PATCH_SIDE, left = patch % params.cols * PATCH_SIDE;
    for (int i = static_cast<int>(threadIdx.x); i < params.columns; i += THREADS) {
        const int channel = i / PATCH_AREA, y = i % PATCH_AREA / PATCH_SIDE, x = i % PATCH_SIDE;
        float value = 0.0f;
        if (channel < 3) {
            const i64 at = (static_cast<i64>(top + y) * params.cols * PATCH_SIDE + left + x) * 3 + channel;
            value = params.levels[channel * 256 + params.pixels[at]];
        }
        const i64 to = static_cast<i64>(row) * params.columns + i;
        params.to[to] = value;
        if (params.rounded != nullptr) {
            params.rounded[to] = bf16_of(value);
        }
    }
}

// -- positions of a grid of patches: the table, interpolated --

struct VisionPositionsParams {
    const float* table;  // [table_rows, table_cols, W]
    float* positions;    // [rows * cols, W]
    int rows;            // patches of a column of the grid
    int cols;            // patches of a row of the grid
    int table_rows;
    int table_cols;
    int width;  // W
    int padding;
};

struct Taps {
    int cells[4];
    float weights[4];
};

// Cubic interpolation of `len` cells at place `i` of `size`, a = -0.75, centres of cells, borders repeated.
__device__ __forceinline__ Taps taps_of(int len, int size, int i) {
    constexpr float A = -0.75f;
    const float scale = __fdiv_rn(static_cast<float>(len), static_cast<float>(size));
    const float place = __fsub_rn(__fmul_rn(static_cast<float>(i) + 0.5f, scale), 0.5f);
    const float base = floorf(place);
    const float t = __fsub_rn(place, base);
    const auto near = [](float t) { return ((A + 2.0f) * t - (A + 3.0f)) * t * t + 1.0f; };
    const auto far = [](float t) { return ((A * t - 5.0f * A) * t + 8.0f * A) * t - 4.0f * A; };
    Taps taps;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int cell = static_cast<int>(base) - 1 + k;
        taps.cells[k] = cell < 0 ? 0 : cell >= len ? len - 1 : cell;
    }
    taps.weights[0] = far(t + 1.0f), taps.weights[1] = near(t);
    taps.weights[2] = near(1.0f - t), taps.weights[3] = far(2.0f - t);
    return taps;
}

extern "C" __global__ void __launch_bounds__(THREADS)
vision_positions(const __grid_constant__ VisionPositionsParams params) {
    begin_kernel();
    const int patch = static_cast<int>(blockIdx.x);
    const Taps down = taps_of(params.table_rows, params.rows, patch / params.cols);
    const Taps across = taps_of(params.table_cols, params.cols, patch % params.cols);
    for (int i = static_cast<int>(threadIdx.x); i < params.width; i += THREADS) {
        float position = 0.0f;
#pragma unroll
        for (int y = 0; y < 4; ++y) {
            float line = 0.0f;
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const i64 cell = static_cast<i64>(down.cells[y]) * params.table_cols + across.cells[x];
                line = __fmaf_rn(params.table[cell * params.width + i], across.weights[x], line);
            }
            position = __fmaf_rn(down.weights[y], line, position);
        }
        params.positions[static_cast<i64>(patch) * params.width + i] = position;
    }
}

// -- layer norm of rows, picked by a list or in order --

struct VisionNormParams {
    const float* source;  // [., W]
    const u32* rows;      // [count], row of the source; null: 0, 1, ...
    const float* gain;    // [W]
    const float* bias;    // [W]
    float* to;            // [count, W]
    bf16* rounded;        // the same in bf16, or null
    int width;            // W
    float eps;            // added to the variance
};

extern "C" __global__ void __launch_bounds__(THREADS) vision_norm(const __grid_constant__ VisionNormParams params) {
    begin_kernel();
    __shared__ float warp_sums[THREADS / 32];
    const i64 row = blockIdx.x;
    const float* source = params.source + (params.rows == nullptr ? row : params.rows[row]) * params.width;
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < params.width; i += THREADS) {
        sum += source[i];
    }
    const float mean = __fdiv_rn(block_sum(sum, warp_sums), static_cast<float>(params.width));
    __syncthreads();
    float squares = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < params.width; i += THREADS) {
        const float distance = source[i] - mean;
        squares = __fmaf_rn(distance, distance, squares);
    }
    const float variance = __fdiv_rn(block_sum(squares, warp_sums), static_cast<float>(params.width));
    const float inverse = __frcp_rn(__fsqrt_rn(variance + params.eps));
    for (int i = static_cast<int>(threadIdx.x); i < params.width; i += THREADS) {
        const float value = __fmaf_rn(params.gain[i], (source[i] - mean) * inverse, params.bias[i]);
        params.to[row * params.width + i] = value;
        if (params.rounded != nullptr) {
            params.rounded[row * params.width + i] = bf16_of(value);
        }
    }
}

// -- queries, keys and values: bias, then rotation of queries and keys by pairs --

struct VisionQkvParams {
    const float* x;          // [count, 3*W]
    const float* bias;       // [3*W]
    const float* rotations;  // [count, E]: cosines, then sines
    float* qkv;              // [count, 3*W]
    int width;               // W
    int head_dim;            // E
};

extern "C" __global__ void __launch_bounds__(THREADS) vision_qkv(const __grid_constant__ VisionQkvParams params) {
    begin_kernel();
    const i64 row = blockIdx.x;
    const float* rotation = params.rotations + row * params.head_dim;
    const int half = params.head_dim / 2;
    for (int pair = static_cast<int>(threadIdx.x); pair < 3 * params.width / 2; pair += THREADS) {
        const i64 at = row * 3 * params.width + 2 * pair;
        const float even = params.x[at] + params.bias[2 * pair], odd = params.x[at + 1] + params.bias[2 * pair + 1];
        const bool turns = 2 * pair < 2 * params.width;
        const int place = 2 * pair % params.head_dim / 2;
        const float cosine = turns ? rotation[place] : 1.0f, sine = turns ? rotation[half + place] : 0.0f;
        params.qkv[at] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, sine));
        params.qkv[at + 1] = __fadd_rn(__fmul_rn(even, sine), __fmul_rn(odd, cosine));
    }
}

// -- attention of the patches of one picture --

constexpr int QUERIES = 16;
constexpr int KEYS = 32;
constexpr int ATTEND_WARPS = 4;
constexpr int WARP_QUERIES = QUERIES / ATTEND_WARPS;
constexpr int MAX_HEAD = 128;
constexpr int LANE_VALUES = MAX_HEAD / 32;
// A row of keys is one longer than its values: the lanes' keys are then in different banks.
constexpr int KEY_STRIDE = MAX_HEAD + 1;

struct VisionAttendParams {
    const float* qkv;  // [P, 3*W], at the picture's first patch
    float* attended;   // [P, W], there
    bf16* rounded;     // the same in bf16, or null
    int patches;       // of the picture
    int num_heads;     // H
    int head_dim;      // E, even, at most 128
    float scale;       // of the scores
};

extern "C" __global__ void __launch_bounds__(ATTEND_WARPS * 32)
vision_attend(const __grid_constant__ VisionAttendParams params) {
    begin_kernel();
    __shared__ float query[QUERIES][MAX_HEAD];
    __shared__ float keys[KEYS][KEY_STRIDE];
    __shared__ float values[KEYS][MAX_HEAD];
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int head_dim = params.head_dim, head = static_cast<int>(blockIdx.y);
    const i64 width = static_cast<i64>(params.num_heads) * head_dim;
    const int first = static_cast<int>(blockIdx.x) * QUERIES;
    const int queries = params.patches - first < QUERIES ? params.patches - first : QUERIES;
    const float* qkv = params.qkv + static_cast<i64>(head) * head_dim;
    for (int i = thread; i < queries * head_dim; i += ATTEND_WARPS * 32) {
        query[i / head_dim][i % head_dim] = qkv[(first + i / head_dim) * 3 * width + i % head_dim];
    }
    float sum[WARP_QUERIES][LANE_VALUES], largest[WARP_QUERIES], total[WARP_QUERIES];
#pragma unroll
    for (int q = 0; q < WARP_QUERIES; ++q) {
        largest[q] = __int_as_float(0xff800000), total[q] = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; ++i) {
            sum[q][i] = 0.0f;
        }
    }
    for (int key = 0; key < params.patches; key += KEYS) {
        const int count = params.patches - key < KEYS ? params.patches - key : KEYS;
        __syncthreads();
        for (int i = thread; i < count * head_dim; i += ATTEND_WARPS * 32) {
            const float* patch = qkv + (key + i / head_dim) * 3 * width + i % head_dim;
            keys[i / head_dim][i % head_dim] = patch[width];
            values[i / head_dim][i % head_dim] = patch[2 * width];
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < WARP_QUERIES; ++q) {
            const int row = warp * WARP_QUERIES + q;
            if (row >= queries) {
                break;
            }
            float score = __int_as_float(0xff800000);
            if (lane < count) {
                float product = 0.0f;
                for (int i = 0; i < head_dim; ++i) {
                    product = __fmaf_rn(query[row][i], keys[lane][i], product);
                }
                score = __fmul_rn(params.scale, product);
            }
            float next = score;
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) {
                next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, distance));
            }
            next = fmaxf(largest[q], next);
            const float kept = expf(largest[q] - next), weight = lane < count ? expf(score - next) : 0.0f;
            largest[q] = next;
            total[q] = __fmaf_rn(total[q], kept, warp_sum(weight));
#pragma unroll
            for (int i = 0; i < LANE_VALUES; ++i) {
                sum[q][i] = __fmul_rn(sum[q][i], kept);
            }
            for (int k = 0; k < count; ++k) {
                const float share = __shfl_sync(0xffffffffu, weight, k);
#pragma unroll
                for (int i = 0; i < LANE_VALUES; ++i) {
                    if (i * 32 + lane < head_dim) {
                        sum[q][i] = __fmaf_rn(share, values[k][i * 32 + lane], sum[q][i]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int q = 0; q < WARP_QUERIES; ++q) {
        const int row = warp * WARP_QUERIES + q;
        if (row >= queries) {
            break;
        }
#pragma unroll
        for (int i = 0; i < LANE_VALUES; ++i) {
            if (i * 32 + lane < head_dim) {
                const i64 at = (first + row) * width + static_cast<i64>(head) * head_dim + i * 32 + lane;
                const float value = __fdiv_rn(sum[q][i], total[q]);
                params.attended[at] = value;
                if (params.rounded != nullptr) {
                    params.rounded[at] = bf16_of(value);
                }
            }
        }
    }
}

// -- bias behind a product, and what follows it --

constexpr int TANH = 0;   // to = gelu(x + bias), by its tanh form
constexpr int EXACT = 1;  // to = gelu(x + bias)
constexpr int ADD = 2;    // to = added + x + bias
constexpr int SET = 3;    // to = x + bias

struct VisionBiasParams {
    const float* x;     // [count, columns]
    const float* bias;  // [columns]
    const float* added; // [count, columns], read by ADD alone; may be `to`
    float* to;          // [., columns]
    bf16* rounded;      // [count, columns] bf16, or null
    const u32* rows;    // [count], row of `to`; null: 0, 1, ...
    int columns;
    int mode;
};

extern "C" __global__ void __launch_bounds__(THREADS) vision_bias(const __grid_constant__ VisionBiasParams params) {
    begin_kernel();
    const i64 row = blockIdx.x;
    const i64 to = (params.rows == nullptr ? row : params.rows[row]) * params.columns;
    for (int i = static_cast<int>(threadIdx.x); i < params.columns; i += THREADS) {
        const float x = params.x[row * params.columns + i] + params.bias[i];
        float value = x;
        if (params.mode == TANH) {
            value = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        } else if (params.mode == EXACT) {
            value = 0.5f * x * (1.0f + erff(x * 0.70710678f));
        } else if (params.mode == ADD) {
            value = params.added[row * params.columns + i] + x;
        }
        params.to[to + i] = value;
        if (params.rounded != nullptr) {
            params.rounded[row * params.columns + i] = bf16_of(value);
        }
    }
}

// -- rows of pictures over the embeddings of their tokens --

struct VisionPlaceParams {
    const u32* media;   // [T], kept row, or NO_ROW
    const float* kept;  // [., D]
    float* hidden;      // [T, D]
    i64 columns;        // D
};

extern "C" __global__ void __launch_bounds__(THREADS) vision_place(const __grid_constant__ VisionPlaceParams params) {
    begin_kernel();
    const u32 row = params.media[blockIdx.x];
    if (row == NO_ROW) {
        return;
    }
    const float* from = params.kept + row * params.columns;
    float* to = params.hidden + blockIdx.x * params.columns;
    for (i64 i = threadIdx.x; i < params.columns; i += THREADS) {
        to[i] = from[i];
    }
}
