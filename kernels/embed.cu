// embed: hidden[t] = table[min(token[t], V - 1)]; where a rank has a part of the table, 0 for the ids of others.
// Source:  the model's first operation. Twin: src/cuda/kernels/embed.rs. Spec: ops/backend.rs `embed`.
// Legend:  T rows (tokens), D hidden size, V ids, R rows of the table, from id F on, B bytes of a table value (bf16 2, f32 4).
// Shapes:  tokens [T] u32; table [R, D] bf16 or f32; hidden [T, D] f32.
// Traffic: T*D*(B+4) bytes.
// Floor:   bf16, D=7168: T=2048 is 88 MB -> 20 us at 4.3 TB/s (H200); T=1 is latency.
// Grid:    one block of 256 threads per row.
// Bounds:  a token beyond the table reads its last row. The host never sends one, but a slot's last token can be one: a mask that allows
//          no id of the vocabulary leads to its first id (sampler.cu), which the host has not seen when the next step is enqueued.
// Tried:   one version; no timing yet.

#include "types.cuh"

constexpr int THREADS = 256;
constexpr int VALUES = 8;
// Set in a token's word: the rest is a slot, whose last sampled token it is.
constexpr u32 LAST_SAMPLED = 0x80000000u;

struct EmbedParams {
    const u32* tokens;       // [T]
    const u32* last_tokens;  // [slots]
    const void* table;       // [R, D]
    float* hidden;           // [T, D]
    i64 columns;             // D, a multiple of 8
    i64 rows;                // R
    i64 first;               // F
    i64 vocab;               // V, at least 1
};

template <typename Value>
__device__ __forceinline__ void embed(const EmbedParams& params) {
    const u32 word = params.tokens[blockIdx.x];
    const i64 token = word & LAST_SAMPLED ? params.last_tokens[word & ~LAST_SAMPLED] : word;
    const i64 place = min(token, params.vocab - 1) - params.first;
    const bool held = place >= 0 && place < params.rows;
    const Value* row = static_cast<const Value*>(params.table) + (held ? place : 0) * params.columns;
    float* hidden = params.hidden + blockIdx.x * params.columns;
    for (int column = static_cast<int>(threadIdx.x) * VALUES; column < params.columns; column += THREADS * VALUES) {
        float values[VALUES] = {};
        if (held) {
            load8(values, row + column);
        }
        store8(hidden + column, values);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) embed_f32(const __grid_constant__ EmbedParams params) {
    begin_kernel();
    embed<float>(params);
}

extern "C" __global__ void __launch_bounds__(THREADS) embed_bf16(const __grid_constant__ EmbedParams params) {
    begin_kernel();
    embed<bf16>(params);
}
