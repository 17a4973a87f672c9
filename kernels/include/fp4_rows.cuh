// Rows in 4-bit floats as products read them: for each term, then for each stage of 256 inputs, 128 bytes of codes (two inputs a byte, the
// even one low) and 16 of scales: NVFP4 one for each 16 inputs, MXFP4 one for each 32 and 8 bytes of zeros. Beyond K all of it is 0.
// Device side of cuda/weights/panels.rs.

#include "types.cuh"

constexpr int STAGE = 256;
constexpr int STAGE_CODES = STAGE / 2;
// Bytes of a row in a stage: of any eight rows in shared memory, 16 bytes at one place of each lie in different banks.
constexpr int COLUMN = STAGE_CODES + 16;
constexpr int MAX_TERMS = 3;

// Scales of the terms of rows (quant/activation.rs `TermScales`).
struct Fp4Scales {
    float tensor[MAX_TERMS];  // what codes times block scales are multiplied by
    float global[MAX_TERMS];  // the reciprocal of it
    float back[MAX_TERMS];    // the reciprocal of that
};

// How many terms rows have that are not all of one kind: others than the first ones are 0.
struct RowTerms {
    const u32* prompt_bits;  // [rows / 32], a bit of each, or null: all rows have all terms
    int reply;
    int prompt;
};

__device__ __forceinline__ int terms_of(const RowTerms& terms, int row) {
    return terms.prompt_bits == nullptr                       ? MAX_TERMS
           : (terms.prompt_bits[row / 32] >> row % 32 & 1u) != 0 ? terms.prompt
                                                              : terms.reply;
}

// Where a stage of a term begins in a row.
__device__ __forceinline__ i64 fp4_column(int stages, int term, int stage) {
    return static_cast<i64>(term * stages + stage) * COLUMN;
}
