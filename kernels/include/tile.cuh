// Products of weights in tiles with rows of bf16 on the tensor cores: weights are the A operand (16 outputs), rows the B
// operand (8 rows), sums f32. Packed weights become bf16 in registers, exactly but for INT4, whose product with its scale
// is rounded as the checkpoint's own library rounds it.
//
// A tile is 16 outputs by a unit of 128 inputs, and 32 lanes hold it in the order in which mma.sync m16n8k16 takes it.
// Lane 4g + c has outputs g ("lower") and g + 8 ("upper") and inputs 32c .. 32c + 31; step j of 8 multiplies inputs
// 32c + 4j .. + 3 of every c. Inputs of a step need not be neighbours, only the same in A and B: so a lane reads its
// rows 16 bytes at a time and needs one or two scales of each output. cuda/kernels/repack.rs writes tiles.
//
// Order: a sum is cut into at most 8 chunks of whole units; a chunk is a chain of steps from 0, and chunks are added in
// their order from 0. It depends on K and the format alone: every schedule below gives the same bits.

#include "mma.cuh"
#include "norm.cuh"

constexpr int WARP = 32;
constexpr int TILE = 16;
constexpr int UNIT = 128;
constexpr int STEPS = 8;
constexpr int CHUNKS = 8;
constexpr int WARPS = 8;

// Device side of cuda/weights/tiles.rs `TiledWeight`: the matrices of all experts.
struct TiledWeight {
    const u8* codes;         // [E, tiles, units] tiles
    const u8* scales;        // as codes; fp8: f32 of the lower outputs, [rows / scale_rows, scale_groups] each expert
    const u8* upper_scales;  // fp8: of the upper outputs
    const float* factors;    // [E, 2] of the lower and the upper outputs
    i64 codes_stride;        // bytes of an expert
    i64 scales_stride;       // bytes of an expert
    int tiles;
    int units;
    int columns;             // K, a multiple of 8; units beyond it hold zeros
    int rows;                // outputs of a matrix: N
    int tile_rows;           // outputs from a tile to the next: 16, or 8 where upper and lower are two matrices
    int upper_row;           // first upper output of tile 0: 8, or 0 where it is another matrix
    int scale_rows;          // fp8
    int scale_groups;        // fp8
};

// Value number `at` behind the lane's first: read once, or AGAIN by the blocks of other rows.
template <typename T, bool AGAIN>
__device__ __forceinline__ T stream(const u8* first, u32 at) {
    const T* from = reinterpret_cast<const T*>(first) + at;
    return AGAIN ? __ldg(from) : __ldcs(from);
}

// The tiles of one row of tiles of an expert, and what a lane needs to find its scales.
struct TileRow {
    const u8* codes;            // of the lane
    const u8* scales;           // of the lane
    const float* lower_scales;  // fp8
    const float* upper_scales;  // fp8
    int scale_step;             // fp8: scales from a unit to the next, 0 where a row has one
};

// A lane's part of a tile, as loaded: `Unit`. `load_words` loads what two steps are the last to need. `fragment` is the A
// operand of a step.

struct TileBf16 {
    static constexpr int DEPTH = 1;
    static constexpr int BLOCKS_16 = 2, BLOCKS_32 = 1, BLOCKS_48 = 1;
    static constexpr bool UNIT_SCALES = false, BY_HALVES = true, EARLY = true;
    static constexpr int CODE_BYTES = 4096;
    static constexpr int SCALE_BYTES = 0;
    struct Scales {};
    struct Unit {
        uint4 words[8];
        Scales scales;
    };
    template <bool AGAIN>
    static __device__ __forceinline__ void load_words(Unit& unit, const TileRow& row, u32 u, int pair) {
#pragma unroll
        for (int i = 2 * pair; i < 2 * pair + 2; ++i) {
            unit.words[i] = stream<uint4, AGAIN>(row.codes, u * (CODE_BYTES / 16) + 32 * i);
        }
    }
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales&, const TileRow&, u32) {}
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        a[0] = unit.words[step].x, a[1] = unit.words[step].y, a[2] = unit.words[step].z, a[3] = unit.words[step].w;
    }
};

struct TileFp8 {
    static constexpr int DEPTH = 1;
    static constexpr int BLOCKS_16 = 2, BLOCKS_32 = 1, BLOCKS_48 = 1;
    static constexpr bool UNIT_SCALES = true, BY_HALVES = false, EARLY = true;
    static constexpr int CODE_BYTES = 2048;
    static constexpr int SCALE_BYTES = 0;
    struct Scales {
        float lower, upper;
    };
    struct Unit {
        uint4 words[4];
        Scales scales;
    };
    template <bool AGAIN>
    static __device__ __forceinline__ void load_words(Unit& unit, const TileRow& row, u32 u, int pair) {
        unit.words[pair] = stream<uint4, AGAIN>(row.codes, u * (CODE_BYTES / 16) + 32 * pair);
    }
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales.lower = row.lower_scales[u * row.scale_step];
        scales.upper = row.upper_scales[u * row.scale_step];
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        const u32 lower = word_of(unit.words[step / 2], step % 2 * 2);
        const u32 upper = word_of(unit.words[step / 2], step % 2 * 2 + 1);
        a[0] = bf16_of_e4m3(lower), a[1] = bf16_of_e4m3(upper);
        a[2] = bf16_of_e4m3(lower << 8), a[3] = bf16_of_e4m3(upper << 8);
    }
};

// Formats of four bits: two loads of 16 bytes, a word of eight codes for each step.
struct TileNibbles {
    static constexpr int BLOCKS_16 = 3, BLOCKS_32 = 2;
    // Two blocks take all registers of an SM to the last: where the compiler finds a use for one more, it is one.
#if __CUDA_ARCH__ == 900
    static constexpr int BLOCKS_48 = 2;
#else
    static constexpr int BLOCKS_48 = 1;
#endif
    // Experts are not known early, and registers are short.
    static constexpr bool UNIT_SCALES = false, BY_HALVES = false, EARLY = false;
    static constexpr int DEPTH = 2;
    static constexpr int CODE_BYTES = 1024;
    using Scales = u32;
    struct Unit {
        uint4 words[2];
        Scales scales;
    };
    template <bool AGAIN>
    static __device__ __forceinline__ void load_words(Unit& unit, const TileRow& row, u32 u, int pair) {
        if (pair % 2 == 1) {
            unit.words[pair / 2] = stream<uint4, AGAIN>(row.codes, u * (CODE_BYTES / 16) + 32 * (pair / 2));
        }
    }
    // Eight E2M1 codes to bf16, 2^-126 too small. The first of four values of a half has its bits in their places
    // (sign 15, exponent 8 and 7, mantissa 6), the second 3 and the third 6 bits to the right; the last takes the rest.
    static __device__ __forceinline__ void decode_e2m1(u32 (&a)[4], u32 word) {
        constexpr u32 PLACES = 0x81c081c0u;
        a[0] = word & PLACES;
        a[1] = word << 3 & PLACES;
        a[2] = word << 6 & PLACES;
        a[3] = (word << 1 & 0x80008000u) | (word >> 5 & 0x01000100u) | (word >> 4 & 0x00c000c0u);
    }
    static __device__ __forceinline__ void scale(u32 (&a)[4], u32 lower, u32 upper) {
        a[0] = multiply2(a[0], lower), a[1] = multiply2(a[1], upper);
        a[2] = multiply2(a[2], lower), a[3] = multiply2(a[3], upper);
    }
};

// Scales: 5 bits of exponent and 3 of mantissa, in bytes of lower and upper of inputs 32c .. + 15, then of the others.
struct TileNvfp4 : TileNibbles {
#if __CUDA_ARCH__ < 1000
    static constexpr int BLOCKS_16 = 4, BLOCKS_32 = 3;
#endif
    static constexpr int SCALE_BYTES = 128;
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales = stream<u32, AGAIN>(row.scales, u * WARP);
    }
    // A byte as a bf16 in both halves, 2^119 times the scale.
    static __device__ __forceinline__ u32 bf16_of(u32 scales, int i) {
        return (scales >> 8 * i & 0xffu) * 0x00100010u + 0x70007000u;
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        decode_e2m1(a, word_of(unit.words[step / 4], step % 4));
        scale(a, bf16_of(unit.scales, step / 4 * 2), bf16_of(unit.scales, step / 4 * 2 + 1));
    }
};

// Scales: exponent bits of a bf16, a byte each of lower and upper.
struct TileMxfp4 : TileNibbles {
    static constexpr int SCALE_BYTES = 64;
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales = stream<u16, AGAIN>(row.scales, u * WARP);
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        decode_e2m1(a, word_of(unit.words[step / 4], step % 4));
        scale(a, (unit.scales & 0xffu) * 0x00800080u, (unit.scales >> 8) * 0x00800080u);
    }
};

// Scales: bf16, of lower and upper.
struct TileInt4 : TileNibbles {
    static constexpr int BLOCKS_48 = 1;
    static constexpr int SCALE_BYTES = 128;
    template <bool AGAIN>
    static __device__ __forceinline__ void load_scales(Scales& scales, const TileRow& row, u32 u) {
        scales = stream<u32, AGAIN>(row.scales, u * WARP);
    }
    // 128 + code, less 136: both are exact.
    static __device__ __forceinline__ u32 decode(u32 codes) {
        u32 values;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(values)
            : "r"((codes & 0x000f000fu) | 0x43004300u), "r"(0x3f803f80u), "r"(0xc308c308u));
        return values;
    }
    static __device__ __forceinline__ void fragment(u32 (&a)[4], const Unit& unit, int step) {
        const u32 word = word_of(unit.words[step / 4], step % 4);
        a[0] = decode(word), a[1] = decode(word >> 4), a[2] = decode(word >> 8), a[3] = decode(word >> 12);
        scale(a, __byte_perm(unit.scales, 0, 0x1010), __byte_perm(unit.scales, 0, 0x3232));
    }
};

template <typename Format, bool AGAIN>
__device__ __forceinline__ void load_unit(typename Format::Unit& unit, const TileRow& row, u32 u) {
#pragma unroll
    for (int pair = 0; pair < STEPS / 2; ++pair) {
        Format::template load_words<AGAIN>(unit, row, u, pair);
    }
    Format::template load_scales<AGAIN>(unit.scales, row, u);
}

// The row of tiles `tile` of expert `expert`; one past the end is the last, so that loads stay inside.
template <typename Format>
__device__ __forceinline__ TileRow tile_row(const TiledWeight& weight, int expert, int tile, int lane) {
    tile = min(tile, weight.tiles - 1);
    const i64 first = static_cast<i64>(tile) * weight.units;
    TileRow row;
    row.codes = weight.codes + expert * weight.codes_stride + first * Format::CODE_BYTES + 16 * lane;
    row.scales = weight.scales + expert * weight.scales_stride + first * Format::SCALE_BYTES + Format::SCALE_BYTES / WARP * lane;
    if constexpr (Format::UNIT_SCALES) {
        const int lower = min(tile * weight.tile_rows + lane / 4, weight.rows - 1);
        const int upper = min(lower + weight.upper_row, weight.rows - 1);
        const i64 stride = expert * weight.scales_stride;
        row.scale_step = weight.scale_groups > 1;
        row.lower_scales = reinterpret_cast<const float*>(weight.scales + stride) + lower / weight.scale_rows * weight.scale_groups;
        row.upper_scales = reinterpret_cast<const float*>(weight.upper_scales + stride) + upper / weight.scale_rows * weight.scale_groups;
    }
    return row;
}

// Rows of bf16: where those of a lane begin, in 8 values. Row 8n + g of a block is column g of its n-th B operand.
template <int TOKENS>
struct TokenRows {
    const uint4* x;
    u32 at[TOKENS];
    __device__ __forceinline__ u32 of(int n) const { return at[n]; }
};

// Of many rows in shared memory, since sums take the registers: `first` is the lane's of its first operand.
template <>
struct TokenRows<8> {
    const uint4* x;
    const u32* first;
    __device__ __forceinline__ u32 of(int n) const { return first[8 * n]; }
};

// sums += the codes of one unit times the rows of the operands from FIRST on.
template <typename Format, int FIRST, int TILES, int COUNT, int TOKENS>
__device__ __forceinline__ void add_steps(
    float (&sums)[TILES][COUNT][4], const typename Format::Unit* units, const TokenRows<TOKENS>& rows, int u,
    int columns, int lane) {
#pragma unroll
    for (int pair = 0; pair < STEPS / 2; ++pair) {
        u32 a[TILES][2][4];
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            Format::fragment(a[m][0], units[m], 2 * pair);
            Format::fragment(a[m][1], units[m], 2 * pair + 1);
        }
        // Beyond K weights are zero, and any input of the row will do.
        const int k = u * UNIT + lane % 4 * 32 + pair * 8;
        const u32 part = k < columns ? static_cast<u32>(k) / 8 : 0;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            const uint4 x = rows.x[rows.of(FIRST + n) + part];
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                mma(sums[m][n], a[m][0], x.x, x.y);
                mma(sums[m][n], a[m][1], x.z, x.w);
            }
        }
    }
}

// sums += the products of one unit of tile M, whose scales multiply them, for COUNT operands from FIRST on.
template <typename Format, int M, int FIRST, int COUNT, int TILES, int TOKENS>
__device__ __forceinline__ void add_scaled(
    float (&sums)[TILES][TOKENS][4], const typename Format::Unit (&units)[TILES], const TokenRows<TOKENS>& rows, int u,
    int columns, int lane) {
    float products[1][COUNT][4] = {};
    add_steps<Format, FIRST>(products, &units[M], rows, u, columns, lane);
#pragma unroll
    for (int n = 0; n < COUNT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float scale = i < 2 ? units[M].scales.lower : units[M].scales.upper;
            sums[M][FIRST + n][i] = __fmaf_rn(scale, products[0][n][i], sums[M][FIRST + n][i]);
        }
    }
}

// sums += the products of one unit.
template <typename Format, int TILES, int TOKENS>
__device__ __forceinline__ void add_unit(
    float (&sums)[TILES][TOKENS][4], const typename Format::Unit (&units)[TILES], const TokenRows<TOKENS>& rows, int u,
    int columns, int lane) {
    if constexpr (Format::UNIT_SCALES) {
        // A tile at a time, and four operands: the sums of a unit need registers of their own.
        constexpr int COUNT = TOKENS < 4 ? TOKENS : 4;
        add_scaled<Format, 0, 0, COUNT>(sums, units, rows, u, columns, lane);
        if constexpr (TOKENS > COUNT) {
            add_scaled<Format, 0, COUNT, TOKENS - COUNT>(sums, units, rows, u, columns, lane);
        }
        if constexpr (TILES > 1) {
            static_assert(TILES == 2 && TOKENS <= COUNT);
            add_scaled<Format, 1, 0, COUNT>(sums, units, rows, u, columns, lane);
        }
    } else {
        add_steps<Format, 0>(sums, units, rows, u, columns, lane);
    }
}

template <int TILES, int TOKENS>
__device__ __forceinline__ void clear(float (&sums)[TILES][TOKENS][4]) {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int n = 0; n < TOKENS; ++n) {
            sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0.0f;
        }
    }
}

// sums = one chunk of units of bf16 and many rows: what a step has used makes room for what is half a unit ahead.
template <typename Format, int TILES, int TOKENS>
__device__ __forceinline__ void sum_chunk_by_halves(
    float (&sums)[TILES][TOKENS][4], const TileRow (&tiles)[TILES], const TokenRows<TOKENS>& rows, int first, int last,
    int columns, int lane) {
    constexpr int PAIRS = STEPS / 2, AHEAD = PAIRS / 2;
    clear(sums);
    typename Format::Unit units[TILES];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int pair = 0; pair < AHEAD; ++pair) {
            Format::template load_words<false>(units[m], tiles[m], static_cast<u32>(first), pair);
        }
    }
#pragma unroll 1
    for (int u = first; u < last; ++u) {
        const int next = min(u + 1, last - 1);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            u32 a[TILES][2][4];
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                Format::fragment(a[m][0], units[m], 2 * pair);
                Format::fragment(a[m][1], units[m], 2 * pair + 1);
                const int from = pair + AHEAD < PAIRS ? u : next;
                Format::template load_words<false>(units[m], tiles[m], static_cast<u32>(from), (pair + AHEAD) % PAIRS);
            }
            // Beyond K weights are zero, and any input of the row will do.
            const int k = u * UNIT + lane % 4 * 32 + pair * 8;
            const u32 part = k < columns ? static_cast<u32>(k) / 8 : 0;
#pragma unroll
            for (int n = 0; n < TOKENS; ++n) {
                const uint4 x = rows.x[rows.of(n) + part];
#pragma unroll
                for (int m = 0; m < TILES; ++m) {
                    mma(sums[m][n], a[m][0], x.x, x.y);
                    mma(sums[m][n], a[m][1], x.z, x.w);
                }
            }
        }
    }
}

// The first units of a chunk of each tile.
template <typename Format, int TILES, int DEPTH>
__device__ __forceinline__ void load_first(
    typename Format::Unit (&units)[DEPTH][TILES], const TileRow (&tiles)[TILES], int first, int last) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        if (first + d < last) {
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                load_unit<Format, false>(units[d][m], tiles[m], static_cast<u32>(first + d));
            }
        }
    }
}

// sums = one chunk of units, of which `load_first` has begun to load DEPTH of each tile: so many are in flight.
template <typename Format, int TILES, int TOKENS, int DEPTH>
__device__ __forceinline__ void sum_chunk(
    float (&sums)[TILES][TOKENS][4], typename Format::Unit (&units)[DEPTH][TILES], const TileRow (&tiles)[TILES],
    const TokenRows<TOKENS>& rows, int first, int last, int columns, int lane) {
    clear(sums);
#pragma unroll 1
    for (int u = first; u < last; u += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (u + d < last) {
                add_unit<Format, TILES, TOKENS>(sums, units[d], rows, u + d, columns, lane);
                if (u + d + DEPTH < last) {
#pragma unroll
                    for (int m = 0; m < TILES; ++m) {
                        load_unit<Format, false>(units[d][m], tiles[m], static_cast<u32>(u + d + DEPTH));
                    }
                }
            }
        }
    }
}

// A run of slots of one expert; device side of cuda/kernels/route.rs.
struct SlotTile {
    int expert;
    int first;  // index into `slots`
    int count;  // at most the rows of a block
};

// Operands of a product.
struct TiledParams {
    TiledWeight weight;
    const bf16* x;          // rows of x_stride values
    void* y;                // rows of y_stride values
    const int* num_tiles;   // [1], or null: slot t is row t, of expert 0
    const SlotTile* tiles;
    const u32* slots;       // slots ordered by expert
    const u32* x_rows;      // without tiles: row of x of slot t, or null: t
    i64 x_stride;           // values, a multiple of 8
    i64 y_stride;           // values
    int slots_per_row;      // slots of a row of x
    int num_slots;          // without tiles
    int add;                // whether y is added to
    int padding;
};

// One product, or two of one format: blockIdx.z says which.
struct TiledLaunch {
    TiledParams parts[2];
    RmsNormParams norm;  // of the rows that a product was added to, by the last block; `gain` null: none
    u32* blocks_done;    // [1], 0 before and after a launch
    int norm_rows;       // at most 8
    int padding;
};

// The slots of block `index` of rows; false without any.
__device__ __forceinline__ bool slot_tile(const TiledParams& params, int index, int rows, SlotTile& tile) {
    if (params.num_tiles == nullptr) {
        tile = {0, index * rows, min(rows, params.num_slots - index * rows)};
        return tile.count > 0;
    }
    if (index >= *params.num_tiles) {
        return false;
    }
    tile = params.tiles[index];
    return true;
}

// The i-th slot of a tile, the last one for those that are not there.
__device__ __forceinline__ int slot_of(const TiledParams& params, const SlotTile& tile, int i) {
    const int at = tile.first + min(i, tile.count - 1);
    return params.num_tiles == nullptr ? at : static_cast<int>(params.slots[at]);
}

__device__ __forceinline__ int x_row_of(const TiledParams& params, int slot) {
    return params.x_rows != nullptr ? static_cast<int>(params.x_rows[slot]) : slot / params.slots_per_row;
}

// The thread's number, read here: what else is made of it does not wait in registers for this.
__device__ __forceinline__ int thread_again() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Writes what a thread has summed of TILES tiles from `first_tile` on and 8 * TOKENS rows, whose slots are in shared memory: `total_of(i)`
// is total i of them, in the order of sums. `Write::run(params, tile, g, slot, lower, upper)` gets those of outputs g and g + 8 of a tile. With
// RANKS only every RANKS-th pair of a tile and eight rows, from `rank` on. AT_ONCE of these are unrolled, so that what is added to is loaded
// early, and no more: a product writes once, and has as much code elsewhere.
template <typename Write, int TILES, int TOKENS, int RANKS, int AT_ONCE, typename TotalOf>
__device__ __forceinline__ void write_totals(
    const TiledParams& params, const SlotTile& tile, const u32* slots, int first_tile, int rank, const TotalOf& total_of) {
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const float lower_factor = params.weight.factors[2 * tile.expert];
    const float upper_factor = params.weight.factors[2 * tile.expert + 1];
#pragma unroll AT_ONCE
    for (int at = rank; at < TILES * TOKENS; at += RANKS) {
        const int m = at % TILES, n = at / TILES;
        if (first_tile + m >= params.weight.tiles) {
            continue;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = 8 * n + lane % 4 * 2 + i, first = (m * TOKENS + n) * 4 + i;
            if (row < tile.count) {
                Write::run(
                    params, first_tile + m, lane / 4, static_cast<int>(slots[row]), total_of(first) * lower_factor,
                    total_of(first + 2) * upper_factor);
            }
        }
    }
}

// Whether a kernel of this many operands begins by itself, behind its first loads of weights where it knows them.
template <typename Format>
__device__ constexpr bool loads_early(int tokens) { return tokens == 1 && Format::EARLY; }

// Three schedules of one product. Their shared memory is dynamic: the most of any launch is declared for all functions of a
// file, and on some chips leaves no room for static memory beside it.
//
// Split: the warps of a block take the chunks of TILES tiles and 8 * TOKENS rows; weights are read once for all rows of a block.
// Wide:  each warp takes all chunks of tiles of its own and up to 8 rows: nothing is shared and nothing waits; for few units.
// Block: the same of many rows, which the warps share. See `tiled_block`.
template <typename Format, typename Write, int TILES, int TOKENS>
__device__ __forceinline__ void tiled(const TiledParams& params, int first_tile) {
    constexpr int ROWS = 8 * TOKENS;
    SlotTile slots;
    const TiledWeight& weight = params.weight;
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    // Weights of one matrix are known, and written by none but repack, behind which no launch begins early (kernels/repack.rs): the
    // first ones are loaded before the kernel in front has ended.
    constexpr bool CAN_BE_EARLY = loads_early<Format>(TOKENS);
    const bool early = CAN_BE_EARLY && params.num_tiles == nullptr;
    if (CAN_BE_EARLY && !early) {
        begin_kernel();
    }
    // The grid is that of the larger of two parts.
    if (first_tile >= weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.y), ROWS, slots)) {
        if (early) {
            begin_kernel();
        }
        return;
    }
    TileRow tiles[TILES];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        tiles[m] = tile_row<Format>(weight, slots.expert, first_tile + m, lane);
    }
    const int chunk_units = (weight.units + CHUNKS - 1) / CHUNKS;
    const int first_unit = warp * chunk_units;
    const int last_unit = min(first_unit + chunk_units, weight.units);
    constexpr bool BY_HALVES = TOKENS == 8 && Format::BY_HALVES;
    constexpr int DEPTH = TOKENS < 8 ? Format::DEPTH : 1;
    typename Format::Unit units[DEPTH][TILES];
    if constexpr (CAN_BE_EARLY) {
        load_first<Format, TILES, DEPTH>(units, tiles, first_unit, last_unit);
        if (early) {
            begin_kernel();
        }
    }
    extern __shared__ uint4 memory[];
    // 4 more than the outputs: a warp's stores go to all banks.
    auto* partial = reinterpret_cast<float(*)[ROWS][TILES * TILE + 4]>(memory);
    const auto begin_of = [&](int row) {
        return static_cast<u32>(x_row_of(params, slot_of(params, slots, row)) * params.x_stride / 8);
    };
    TokenRows<TOKENS> rows;
    rows.x = reinterpret_cast<const uint4*>(params.x);
    if constexpr (TOKENS < 8) {
#pragma unroll
        for (int n = 0; n < TOKENS; ++n) {
            rows.at[n] = begin_of(8 * n + lane / 4);
        }
    } else {
        u32* first = reinterpret_cast<u32*>(partial + CHUNKS);
        for (int row = static_cast<int>(threadIdx.x); row < ROWS; row += WARPS * WARP) {
            first[row] = begin_of(row);
        }
        __syncthreads();
        rows.first = first + lane / 4;
    }
    float sums[TILES][TOKENS][4];
    const int num_chunks = (weight.units + chunk_units - 1) / chunk_units;
    if (warp < num_chunks) {
        if constexpr (BY_HALVES) {
            sum_chunk_by_halves<Format, TILES, TOKENS>(
                sums, tiles, rows, first_unit, last_unit, weight.columns, lane);
        } else {
            if constexpr (!CAN_BE_EARLY) {
                load_first<Format, TILES, DEPTH>(units, tiles, first_unit, last_unit);
            }
            sum_chunk<Format, TILES, TOKENS, DEPTH>(
                sums, units, tiles, rows, first_unit, last_unit, weight.columns, lane);
        }
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int n = 0; n < TOKENS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    partial[warp][8 * n + lane % 4 * 2 + i % 2][m * TILE + lane / 4 + i / 2 * 8] = sums[m][n][i];
                }
            }
        }
    }
    __syncthreads();
    const float lower_factor = weight.factors[2 * slots.expert];
    const float upper_factor = weight.factors[2 * slots.expert + 1];
    for (int i = static_cast<int>(threadIdx.x); i < slots.count * TILES * 8; i += WARPS * WARP) {
        const int row = i / (TILES * 8), m = i / 8 % TILES, g = i % 8;
        if (first_tile + m < weight.tiles) {
            float lower = 0.0f, upper = 0.0f;
            for (int chunk = 0; chunk < num_chunks; ++chunk) {
                lower += partial[chunk][row][m * TILE + g];
                upper += partial[chunk][row][m * TILE + g + 8];
            }
            Write::run(
                params, first_tile + m, g, slot_of(params, slots, row), lower * lower_factor, upper * upper_factor);
        }
    }
}

// Of many rows whose units have scales, a tile at a time: sums of a unit need registers of their own.
template <typename Format, typename Write, int TILES, int TOKENS>
__device__ __forceinline__ void tiled_split(const TiledParams& params) {
    constexpr int AT_ONCE = Format::UNIT_SCALES && TOKENS == 8 ? 1 : TILES;
#pragma unroll 1
    for (int m = 0; m < TILES; m += AT_ONCE) {
        if (m > 0) {
            __syncthreads();
        }
        tiled<Format, Write, AT_ONCE, TOKENS>(params, static_cast<int>(blockIdx.x) * TILES + m);
    }
}

// Up to 8 rows of tiles of a warp: chunks are added in registers, in their order.
template <typename Format, typename Write, int TILES, int DEPTH>
__device__ __forceinline__ void tiled_wide(const TiledParams& params) {
    SlotTile slots;
    const TiledWeight& weight = params.weight;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const int first_tile = (static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / WARP) * TILES;
    if (first_tile >= weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.y), 8, slots)) {
        return;
    }
    TileRow tiles[TILES];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        tiles[m] = tile_row<Format>(weight, slots.expert, first_tile + m, lane);
    }
    typename Format::Unit units[DEPTH][TILES];
    load_first<Format, TILES, DEPTH>(units, tiles, 0, weight.units);
    TokenRows<1> rows;
    rows.x = reinterpret_cast<const uint4*>(params.x);
    rows.at[0] = static_cast<u32>(x_row_of(params, slot_of(params, slots, lane / 4)) * params.x_stride / 8);
    const int chunk_units = (weight.units + CHUNKS - 1) / CHUNKS;
    int chunk_end = chunk_units;
    float sums[TILES][1][4], totals[TILES][1][4];
    clear(sums);
    clear(totals);
#pragma unroll 1
    for (int u = 0; u < weight.units; u += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (u + d < weight.units) {
                add_unit<Format, TILES, 1>(sums, units[d], rows, u + d, weight.columns, lane);
                if (u + d + DEPTH < weight.units) {
#pragma unroll
                    for (int m = 0; m < TILES; ++m) {
                        load_unit<Format, false>(units[d][m], tiles[m], static_cast<u32>(u + d + DEPTH));
                    }
                }
                if (u + d + 1 == chunk_end || u + d + 1 == weight.units) {
#pragma unroll
                    for (int m = 0; m < TILES; ++m) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            totals[m][0][i] += sums[m][0][i];
                        }
                    }
                    clear(sums);
                    chunk_end += chunk_units;
                }
            }
        }
    }
    const float lower_factor = weight.factors[2 * slots.expert];
    const float upper_factor = weight.factors[2 * slots.expert + 1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = lane % 4 * 2 + i;
        if (row < slots.count) {
            const int slot = slot_of(params, slots, row);
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                if (first_tile + m < weight.tiles) {
                    Write::run(
                        params, first_tile + m, lane / 4, slot, totals[m][0][i] * lower_factor,
                        totals[m][0][2 + i] * upper_factor);
                }
            }
        }
    }
}

// Block: tiles of a warp, and the shared memory of blocks of ROWS rows.
constexpr int BLOCK_TILES = 2;
constexpr int PARTS = UNIT / 8;
template <int ROWS>
struct BlockShared {
    uint4 rows[2][ROWS][PARTS];  // of one unit each, in places by `place_of`
    float totals[BLOCK_TILES * ROWS / 8 * 4][WARPS * WARP];
    u32 slots[ROWS];  // of the rows
    u32 first[ROWS];  // where rows of x begin, in 8 values
};

// Where the 16 bytes `part` of a row are: the eight lanes that read at once, parts 4t + pair of two rows, reach all banks.
__device__ __forceinline__ int place_of(int row, int part) { return part ^ (part / 8 | (row & 1) << 1); }

// sums += the codes of unit u times rows in shared memory; `place` is that of the lane's 16 bytes of steps 0 and 1. Words are
// loaded a unit before they are needed, or half of one where registers are short; `next` is the unit behind u, if any.
template <typename Format, int TOKENS>
__device__ __forceinline__ void add_block_steps(
    float (&sums)[BLOCK_TILES][TOKENS][4], typename Format::Unit (&units)[BLOCK_TILES],
    const TileRow (&tiles)[BLOCK_TILES], u32 u, u32 next, const uint4 (*rows)[PARTS], int place) {
#pragma unroll
    for (int pair = 0; pair < STEPS / 2; ++pair) {
        u32 a[BLOCK_TILES][2][4];
#pragma unroll
        for (int m = 0; m < BLOCK_TILES; ++m) {
            Format::fragment(a[m][0], units[m], 2 * pair);
            Format::fragment(a[m][1], units[m], 2 * pair + 1);
        }
#pragma unroll
        for (int n = 0; n < TOKENS; ++n) {
            const uint4 x = rows[8 * n][place ^ pair];
#pragma unroll
            for (int m = 0; m < BLOCK_TILES; ++m) {
                mma(sums[m][n], a[m][0], x.x, x.y);
            }
#pragma unroll
            for (int m = 0; m < BLOCK_TILES; ++m) {
                mma(sums[m][n], a[m][1], x.z, x.w);
            }
        }
#pragma unroll
        for (int m = 0; m < BLOCK_TILES; ++m) {
            constexpr int PAIRS = STEPS / 2, AHEAD = Format::UNIT_SCALES || (Format::BY_HALVES && TOKENS > 8) ? PAIRS / 2 : PAIRS;
            Format::template load_words<true>(units[m], tiles[m], pair + AHEAD < PAIRS ? u : next, (pair + AHEAD) % PAIRS);
        }
    }
}

// Each warp has two tiles, whose words go straight to its registers, and all rows of the block, which copies bring to shared
// memory for all warps, a unit ahead. Blocks of the same tiles follow each other, so that they find the weights in L2.
template <typename Format, typename Write, int ROWS, int TOKENS, int BLOCKS>
__device__ __forceinline__ void tiled_block(const TiledParams& params, const SlotTile& slots, int block_tile) {
    extern __shared__ uint4 memory[];
    auto& shared = *reinterpret_cast<BlockShared<ROWS>*>(memory);
    const TiledWeight& weight = params.weight;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / WARP, lane = thread % WARP;
    // A thread copies one part of every sixteenth row.
    constexpr int COPY_ROWS = WARPS * WARP / PARTS, COPIES = 8 * TOKENS / COPY_ROWS;
    const int part = thread % PARTS;
    const uint4* x = reinterpret_cast<const uint4*>(params.x);
    if (thread < 8 * TOKENS) {
        const int slot = slot_of(params, slots, thread);
        shared.slots[thread] = static_cast<u32>(slot);
        shared.first[thread] = static_cast<u32>(x_row_of(params, slot) * params.x_stride / 8);
    }
    __syncthreads();
    const auto copy = [&](u32 u) {
        // Beyond K weights are zero, and any input of the row will do.
        const u32 at = u * PARTS + static_cast<u32>(part);
        const u32 from = at < static_cast<u32>(weight.columns) / 8 ? at : 0;
#pragma unroll (ROWS > 64 ? 2 : COPIES)
        for (int i = 0; i < COPIES; ++i) {
            const int row = thread / PARTS + i * COPY_ROWS;
            copy16(&shared.rows[u % 2][row][place_of(row, part)], x + shared.first[row] + from);
        }
        commit_copies();
    };
    copy(0);
    const int first_tile = block_tile + warp * BLOCK_TILES;
    const bool has_tiles = first_tile < weight.tiles;
    TileRow tiles[BLOCK_TILES];
    typename Format::Unit units[BLOCK_TILES];
#pragma unroll
    for (int m = 0; m < BLOCK_TILES; ++m) {
        tiles[m] = tile_row<Format>(weight, slots.expert, first_tile + m, lane);
        load_unit<Format, true>(units[m], tiles[m], 0);
    }
    // One of the four scales of the outputs of four lanes, which hand them to each other.
    const float* lower_scales = lane % 4 < 2 ? tiles[0].lower_scales : tiles[1].lower_scales;
    const float* upper_scales = lane % 4 < 2 ? tiles[0].upper_scales : tiles[1].upper_scales;
    const float* own_scales = lane % 2 == 0 ? lower_scales : upper_scales;
#pragma unroll
    for (int i = 0; i < BLOCK_TILES * TOKENS * 4; ++i) {
        shared.totals[i][thread] = 0.0f;
    }
    const int place = place_of(lane / 4, lane % 4 * 4);
    const u32 num_units = static_cast<u32>(weight.units), chunk_units = (num_units + CHUNKS - 1) / CHUNKS;
    u32 chunk_end = chunk_units;
    float sums[BLOCK_TILES][TOKENS][4];
    clear(sums);
#pragma unroll 1
    for (u32 u = 0; u < num_units; ++u) {
        wait_copies<0>();
        // The rows of this unit are there, and every warp has left those of the unit before.
        __syncthreads();
        if (u + 1 < num_units) {
            copy(u + 1);
        }
        if (!has_tiles) {
            continue;
        }
        const u32 next = min(u + 1, num_units - 1);
        const auto* rows = &shared.rows[u % 2][lane / 4];
        if constexpr (Format::UNIT_SCALES) {
            const float scale = own_scales[u * static_cast<u32>(tiles[0].scale_step)];
            float products[BLOCK_TILES][TOKENS][4];
            clear(products);
            add_block_steps<Format, TOKENS>(products, units, tiles, u, next, rows, place);
            float scales[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scales[i] = __shfl_sync(0xffffffffu, scale, lane / 4 * 4 + i);
            }
#pragma unroll
            for (int i = 0; i < BLOCK_TILES * TOKENS * 4; ++i) {
                const int m = i / (TOKENS * 4), n = i / 4 % TOKENS, j = i % 4;
                sums[m][n][j] = __fmaf_rn(scales[2 * m + j / 2], products[m][n][j], sums[m][n][j]);
            }
        } else {
            // Beside another block on the SM registers are short, and the other one has work while these scales are on their way.
            constexpr bool EARLY = BLOCKS == 1;
            typename Format::Scales scales[BLOCK_TILES];
            if constexpr (EARLY) {
#pragma unroll
                for (int m = 0; m < BLOCK_TILES; ++m) {
                    Format::template load_scales<true>(scales[m], tiles[m], next);
                }
            }
            add_block_steps<Format, TOKENS>(sums, units, tiles, u, next, rows, place);
#pragma unroll
            for (int m = 0; m < BLOCK_TILES; ++m) {
                if constexpr (EARLY) {
                    units[m].scales = scales[m];
                } else {
                    Format::template load_scales<true>(units[m].scales, tiles[m], next);
                }
            }
        }
        if (u + 1 == chunk_end || u + 1 == num_units) {
#pragma unroll
            for (int i = 0; i < BLOCK_TILES * TOKENS * 4; ++i) {
                shared.totals[i][thread] += sums[i / (TOKENS * 4)][i / 4 % TOKENS][i % 4];
            }
            clear(sums);
            chunk_end += chunk_units;
        }
    }
    if (has_tiles) {
        // Read again: the products have the registers for something else.
        SlotTile again;
        slot_tile(params, static_cast<int>(blockIdx.x), ROWS, again);
        const int writer = thread_again();
        // Two blocks leave no registers.
        write_totals<Write, BLOCK_TILES, TOKENS, 1, (BLOCKS > 1 ? 1 : 4)>(
            params, again, shared.slots, block_tile + writer / WARP * BLOCK_TILES, 0,
            [&](int i) { return shared.totals[i][writer]; });
    }
}

// Few rows of an expert are left to fewer products.
template <typename Format, typename Write, int ROWS, int BLOCKS>
__device__ __forceinline__ void tiled_block(const TiledParams& params) {
    SlotTile slots;
    const int block_tile = static_cast<int>(blockIdx.y) * WARPS * BLOCK_TILES;
    if (block_tile >= params.weight.tiles || !slot_tile(params, static_cast<int>(blockIdx.x), ROWS, slots)) {
        return;
    }
    if constexpr (BLOCKS > 1) {
        tiled_block<Format, Write, ROWS, ROWS / 8, BLOCKS>(params, slots, block_tile);
    } else if constexpr (ROWS > 64) {
        if (slots.count <= ROWS / 2) {
            tiled_block<Format, Write, ROWS, ROWS / 16, BLOCKS>(params, slots, block_tile);
        } else {
            tiled_block<Format, Write, ROWS, ROWS / 8, BLOCKS>(params, slots, block_tile);
        }
    } else if (slots.count <= 32) {
        tiled_block<Format, Write, ROWS, 4, BLOCKS>(params, slots, block_tile);
    } else if (ROWS == 48 || slots.count <= 48) {
        tiled_block<Format, Write, ROWS, 6, BLOCKS>(params, slots, block_tile);
    } else {
        tiled_block<Format, Write, ROWS, ROWS / 8, BLOCKS>(params, slots, block_tile);
    }
}

#define TILED(name, Format, Write, TILES, TOKENS, BLOCKS)                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                               \
        name(const __grid_constant__ TiledLaunch launch) {                                           \
        if constexpr (!loads_early<Format>(TOKENS)) {                                                \
            begin_kernel();                                                                          \
        }                                                                                            \
        const TiledParams params = blockIdx.z == 0 ? launch.parts[0] : launch.parts[1];              \
        tiled_split<Format, Write, TILES, TOKENS>(params);                                           \
        if constexpr (TOKENS == 1) {                                                                 \
            Write::finish(launch);                                                                   \
        }                                                                                            \
    }

#define TILED_WIDE(name, Format, Write, TILES)                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, 2)                                    \
        name(const __grid_constant__ TiledLaunch launch) {                                           \
        begin_kernel();                                                                              \
        const TiledParams& params = launch.parts[blockIdx.z];                                        \
        tiled_wide<Format, Write, TILES, Format::DEPTH + 1>(params);                                 \
    }

#define TILED_BLOCK(name, Format, Write, ROWS, BLOCKS)                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                               \
        name(const __grid_constant__ TiledLaunch launch) {                                           \
        begin_kernel();                                                                              \
        const TiledParams& params = launch.parts[blockIdx.z];                                        \
        tiled_block<Format, Write, ROWS, BLOCKS>(params);                                            \
    }

// A kernel of each variant, by outputs of a warp and rows of a block; the variants of cuda/kernels/tiled.rs. The last
// number is that of the blocks whose registers an SM must hold.
#define VARIANTS(name, Format, Write)                                                                \
    TILED(name##_split16x8, Format, Write, 1, 1, Format::BLOCKS_16)                                  \
    TILED(name##_split32x8, Format, Write, 2, 1, Format::BLOCKS_32)                                  \
    TILED(name##_split32x16, Format, Write, 2, 2, 1)                                                 \
    TILED(name##_split16x32, Format, Write, 1, 4, 1)                                                 \
    TILED(name##_split32x64, Format, Write, 2, 8, 1)                                                 \
    TILED_WIDE(name##_wide16x8, Format, Write, 1)                                                    \
    TILED_BLOCK(name##_block32x48, Format, Write, 48, Format::BLOCKS_48)                             \
    TILED_BLOCK(name##_block32x64, Format, Write, 64, 1)

// More rows for the same weights: in prompts blocks of 64 rows read at the speed of L2. For what has a block of so much shared memory.
// Units with scales of their own need more registers than there are.
#define LARGE(name, Format, Write) TILED_BLOCK(name##_block32x96, Format, Write, 96, 1)

#define FORMATS(name, Write)                                                                         \
    VARIANTS(name##_bf16, TileBf16, Write)                                                           \
    VARIANTS(name##_fp8, TileFp8, Write)                                                             \
    VARIANTS(name##_nvfp4, TileNvfp4, Write)                                                         \
    VARIANTS(name##_mxfp4, TileMxfp4, Write)                                                         \
    VARIANTS(name##_int4, TileInt4, Write)                                                           \
    LARGE(name##_bf16, TileBf16, Write)                                                              \
    LARGE(name##_nvfp4, TileNvfp4, Write)                                                            \
    LARGE(name##_mxfp4, TileMxfp4, Write)                                                            \
    LARGE(name##_int4, TileInt4, Write)
