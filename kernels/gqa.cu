// gqa: keys and values into the cache, and grouped-query attention over it, for drafts with such a layer.
// Source:  Ainslie et al., arXiv 2305.13245; running maximum: Milakov and Gimelshein, arXiv 1805.02867. Twin: src/cuda/kernels/gqa.rs.
// Spec:    host/gqa.rs `rotate_halves`, `store`, `attend`.
// Legend:  T rows, H query heads, G key heads, E values of a head, L keys of a row, B bytes of a cached value.
// Shapes:  query [T, H*E], key and value [T, G*E] f32, not rotated; rotations [T, E] f32, E/2 cosines then E/2 sines;
//          cache [slots, 2, G, E], keys then values; attended [T, H*E] f32.
// Traffic: store 4*T*G*E*(2+B/2) bytes; attend 2*T*H*L*E*B bytes, of which the heads of a group share what L2 keeps.
// Work:    4*T*H*L*E FLOP in f32: the generic variant, right for every shape.
// Floor:   H=G=64, E=128, bf16: T=1, L=4096: 134 MB -> 31 us at 4.3 TB/s (H200).
// Grid:    store: one block of 256 threads per row; attend: (T, H), 8 warps, each takes every eighth key.
// Order:   a lane adds its products in their order, then warp_sum; a warp goes through its keys in their order; warps are
//          merged in theirs. A row's bits depend on its query and its keys alone.
// Tried:   one version; no timing yet.

#include "types.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int MAX_HEAD = 256;
constexpr int LANE_VALUES = MAX_HEAD / 32;
constexpr u32 PAD = 0xffffffffu;

struct GqaRow {
    u32 num_keys;
    u32 table;  // first block id of its sequence
};

struct GqaParams {
    const float* query;       // [T, H*E]
    const float* key;         // [T, G*E]
    const float* value;       // [T, G*E]
    const float* rotations;   // [T, E]
    const u32* slots;         // [T], place in the cache, or PAD
    void* cache;              // [slots, 2, G, E]
    const u32* block_tables;  // of all sequences
    const GqaRow* rows;       // [T]
    float* attended;          // [T, H*E]
    bf16* rounded;            // the same in bf16, or null
    int num_heads;            // H, a multiple of G
    int num_kv_heads;         // G
    int head_dim;             // E, even, at most 256
    int block_size;           // tokens
    float scale;              // of the scores
    int padding;
};

__device__ __forceinline__ void put(float* to, float value) { *to = value; }
__device__ __forceinline__ void put(bf16* to, float value) { *to = bf16_of(value); }
__device__ __forceinline__ float get(const float* from) { return *from; }
__device__ __forceinline__ float get(const bf16* from) { return low_half(from->bits); }

// Value `i` of a head, rotated: the halves of the head turn against each other.
__device__ __forceinline__ float rotated(const float* head, const float* rotation, int head_dim, int i) {
    const int half = head_dim / 2;
    const int pair = i < half ? i : i - half;
    const float cosine = rotation[pair], sine = rotation[half + pair];
    const float a = head[pair], b = head[half + pair];
    return i < half ? __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)) : __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine));
}

template <typename Value>
__device__ __forceinline__ void store(const GqaParams& params) {
    const i64 row = blockIdx.x;
    const u32 slot = params.slots[row];
    if (slot == PAD) {
        return;
    }
    const int width = params.num_kv_heads * params.head_dim;
    Value* cached = static_cast<Value*>(params.cache) + static_cast<i64>(slot) * 2 * width;
    const float* rotation = params.rotations + row * params.head_dim;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += THREADS) {
        const int in_head = i % params.head_dim;
        put(cached + i, rotated(params.key + row * width + (i - in_head), rotation, params.head_dim, in_head));
        put(cached + width + i, params.value[row * width + i]);
    }
}

template <typename Value>
__device__ __forceinline__ void attend(const GqaParams& params) {
    __shared__ float query[MAX_HEAD];
    __shared__ float sums[WARPS][MAX_HEAD];
    __shared__ float largest[WARPS], totals[WARPS];
    const i64 row = blockIdx.x;
    const int head = static_cast<int>(blockIdx.y), head_dim = params.head_dim;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int width = params.num_kv_heads * head_dim;
    const i64 first = (row * params.num_heads + head) * head_dim;
    for (int i = thread; i < head_dim; i += THREADS) {
        query[i] = rotated(params.query + first, params.rotations + row * head_dim, head_dim, i);
    }
    __syncthreads();
    const int key_head = head / (params.num_heads / params.num_kv_heads);
    const Value* cache = static_cast<const Value*>(params.cache) + key_head * head_dim;
    const u32* table = params.block_tables + params.rows[row].table;
    const int num_keys = static_cast<int>(params.rows[row].num_keys);
    float sum[LANE_VALUES];
#pragma unroll
    for (int i = 0; i < LANE_VALUES; ++i) {
        sum[i] = 0.0f;
    }
    float max = __int_as_float(0xff800000), total = 0.0f;
    for (int key = warp; key < num_keys; key += WARPS) {
        const i64 slot = static_cast<i64>(table[key / params.block_size]) * params.block_size + key % params.block_size;
        const Value* cached = cache + slot * 2 * width;
        float product = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; ++i) {
            if (i * 32 + lane < head_dim) {
                product = __fmaf_rn(query[i * 32 + lane], get(cached + i * 32 + lane), product);
            }
        }
        const float score = __fmul_rn(params.scale, warp_sum(product));
        const float next = fmaxf(max, score);
        const float kept = expf(max - next), weight = expf(score - next);
        total = __fmaf_rn(total, kept, weight);
        max = next;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; ++i) {
            if (i * 32 + lane < head_dim) {
                sum[i] = __fmaf_rn(weight, get(cached + width + i * 32 + lane), __fmul_rn(sum[i], kept));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < LANE_VALUES; ++i) {
        if (i * 32 + lane < head_dim) {
            sums[warp][i * 32 + lane] = sum[i];
        }
    }
    if (lane == 0) {
        largest[warp] = max;
        totals[warp] = total;
    }
    __syncthreads();
    // A row without keys is 0.
    float all = __int_as_float(0xff800000);
    for (int other = 0; other < WARPS; ++other) {
        all = fmaxf(all, largest[other]);
    }
    for (int i = thread; i < head_dim; i += THREADS) {
        float value = 0.0f, weights = 0.0f;
        for (int other = 0; other < WARPS && num_keys > 0; ++other) {
            const float weight = other < num_keys ? expf(largest[other] - all) : 0.0f;
            value = __fmaf_rn(weight, sums[other][i], value);
            weights = __fmaf_rn(weight, totals[other], weights);
        }
        const float result = num_keys > 0 ? __fdiv_rn(value, weights) : 0.0f;
        params.attended[first + i] = result;
        if (params.rounded != nullptr) {
            params.rounded[first + i] = bf16_of(result);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gqa_store_f32(const __grid_constant__ GqaParams params) {
    begin_kernel();
    store<float>(params);
}

extern "C" __global__ void __launch_bounds__(THREADS) gqa_store_bf16(const __grid_constant__ GqaParams params) {
    begin_kernel();
    store<bf16>(params);
}

extern "C" __global__ void __launch_bounds__(THREADS) gqa_attend_f32(const __grid_constant__ GqaParams params) {
    begin_kernel();
    attend<float>(params);
}

extern "C" __global__ void __launch_bounds__(THREADS) gqa_attend_bf16(const __grid_constant__ GqaParams params) {
    begin_kernel();
    attend<bf16>(params);
}
