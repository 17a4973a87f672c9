// Sums of tiles and rows by `mma`: steps, units with scales of their own, chunks with loads ahead.

#include "tile_format.cuh"

// Rows of bf16: where those of a lane begin, in 8 values. Row 8n + g of a block is column g of its n-th B operand.
template <int TOKENS>
struct TokenRows {
    const uint4* x;
    u32 at[TOKENS];
    // From input 8 * part on.
    __device__ __forceinline__ const uint4* of(int n, u32 part) const { return x + (at[n] + part); }
};

// Of many rows in shared memory, since sums take the registers: `first` is the lane's of its first operand.
template <>
struct TokenRows<8> {
    const uint4* x;
    const u32* first;
    __device__ __forceinline__ const uint4* of(int n, u32 part) const { return x + (first[8 * n] + part); }
};

// sums += the codes of one unit times the rows of the operands from FIRST on.
template <typename Format, int FIRST, int TILES, int COUNT, int TOKENS>
__device__ __forceinline__ void add_steps(
    float (&sums)[TILES][COUNT][4], const typename Format::Unit* units, const TokenRows<TOKENS>& rows, int u,
    int columns, int lane) {
    const u32 first = static_cast<u32>(u) * (UNIT / 8) + lane % 4 * 4;
#pragma unroll
    for (u32 pair = 0; pair < STEPS / 2; ++pair) {
        u32 a[TILES][2][4];
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            Format::fragment(a[m][0], units[m], 2 * pair);
            Format::fragment(a[m][1], units[m], 2 * pair + 1);
        }
        // Beyond K weights are zero, and any input of the row will do. Inputs of a run are there or not together: one address for them.
        constexpr u32 PAIRS = Format::RUN / 8;
        const u32 run = first + pair / PAIRS * PAIRS;
        const u32 part = 8 * run < static_cast<u32>(columns) ? run : 0;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            const uint4 x = rows.of(FIRST + n, part)[pair % PAIRS];
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
                const uint4 x = *rows.of(n, part);
#pragma unroll
                for (int m = 0; m < TILES; ++m) {
                    mma(sums[m][n], a[m][0], x.x, x.y);
                    mma(sums[m][n], a[m][1], x.z, x.w);
                }
            }
        }
    }
}

// The first units of a chunk of each tile, which `tiles` then stand behind.
template <typename Format, int TILES, int DEPTH>
__device__ __forceinline__ void load_first(
    typename Format::Unit (&units)[DEPTH][TILES], TileRow (&tiles)[TILES], int first, int last) {
    if constexpr (TILES == 1) {
        advance<Format>(tiles[0], first);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        if (first + d < last) {
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                load_next<Format, TILES>(units[d][m], tiles[m], first + d);
            }
        }
    }
}

// sums = one chunk of units, of which `load_first` has begun to load DEPTH of each tile: so many are in flight.
template <typename Format, int TILES, int TOKENS, int DEPTH>
__device__ __forceinline__ void sum_chunk(
    float (&sums)[TILES][TOKENS][4], typename Format::Unit (&units)[DEPTH][TILES], TileRow (&tiles)[TILES],
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
                        load_next<Format, TILES>(units[d][m], tiles[m], u + d + DEPTH);
                    }
                }
            }
        }
    }
}
