// Attention in expanded form to one slab of a sequence's context; scratch in f32, or in bf16 for tensor cores.
//
// Legend as in mla_prefill.cu.

#include "cached_row.cuh"
#include "types.cuh"

// KEYS: those of a tile of the kernel. Arrays begin at multiples of 16 bytes.
template <typename Value>
struct MlaPrefillParams {
    const float* query;      // [T, H * (N + R)]
    const float* rotations;  // [T, R]: R/2 cosines, then R/2 sines
    const void* kv_up;       // [H * (N + V), C] of the function's type: per head N rows of W_UK, then V of W_UV
    CacheParts cache;        // one layer
    const u32* block_table;  // block ids of the sequence, from position 0 on
    Value* latents;          // [K, C], from gather to expand
    Value* rope_keys;        // [K, R], from gather to prefill
    Value* keys_values;      // [K, H * (N + V)], from expand to prefill
    float* faults;           // [K]: 0, or NaN of a key whose latent is not finite, in bf16; from gather to prefill
    float* statistics;       // [T, H, 2]: what exponentials are taken against and their sum, from slab to slab
    float* attended;         // [T, H * V]
    bf16* rounded;           // [T, H * V], attended in bf16, or null
    int num_heads;           // H
    int nope;                // N
    int rope;                // R
    int value;               // V
    int latent;              // C
    int row_bytes;           // bytes of a cached row
    float scale;             // factor on scores
    int first_key;           // position of the slab's first key, a multiple of KEYS
    int num_keys;            // K, a multiple of KEYS if later keys follow
    int first_row;           // of the step
    int num_rows;            // rows of this launch, all of them at the slab's first key or behind it
    int first_position;      // position of first_row in its sequence
};
