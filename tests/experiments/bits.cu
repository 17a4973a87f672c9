// Sums of the same products by mma.sync and by wgmma: whether they round alike.
//
// Twin: tests/experiments/bits.rs. A block has a tile of 64 rows of A and 64 columns of B, K 64, in shared memory, and multiplies it
// with A from there, and with A from registers as wgmma_tile.cuh does. Block 0 stores its tiles and sums.

#include "wgmma.cuh"

constexpr int SIDE = 64;

struct BitsParams {
    u8* panels;      // [2, PANEL_BYTES], A and B of block 0
    float* sums;     // [SIDE, SIDE] of block 0, by mma.sync
    u32* differing;  // [2] sums that differ by wgmma with A in shared memory, and in registers
    u32 seed;
    u32 spread;      // powers of two over which values spread
};

// The elements k and k + 1 of a row of a panel.
__device__ __forceinline__ u32 pair_at(const u8* panel, int row, int k) {
    return *reinterpret_cast<const u32*>(panel + panel_byte(row, k / 8) + 2 * (k % 8));
}

__device__ __forceinline__ u32 mixed(u32 x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

template <Element ELEMENT>
__device__ __forceinline__ u32 random_element(u32 bits, u32 spread) {
    const u32 power = (bits >> 16) % spread;
    return ELEMENT == Element::F16 ? (bits & 0x8000u) | (15 - spread / 2 + power) << 10 | (bits & 0x3ffu)
                                   : (bits & 0x8000u) | (127 - spread / 2 + power) << 7 | (bits & 0x7fu);
}

template <Element ELEMENT>
__device__ __forceinline__ void mma_of(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (ELEMENT == Element::F16) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        mma(sums, a, b0, b1);
    }
}

template <Element ELEMENT>
__device__ __forceinline__ void compare(const BitsParams& params) {
    extern __shared__ __align__(1024) u8 memory[];
    u8 *a_panel = memory, *b_panel = memory + PANEL_BYTES;
    for (u32 word = threadIdx.x; word < 2 * PANEL_BYTES / 4; word += WARPGROUP) {
        const u32 own = mixed(params.seed + mixed(blockIdx.x * (2 * PANEL_BYTES / 4) + word));
        const u32 low = random_element<ELEMENT>(own, params.spread), high = random_element<ELEMENT>(mixed(own), params.spread);
        reinterpret_cast<u32*>(memory)[word] = low | high << 16;
    }
    publish_stores();
    __syncthreads();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = 16 * warp + g;
    u32 a[PANEL_STEPS][4];
#pragma unroll
    for (int step = 0; step < PANEL_STEPS; ++step) {
        const int k = 16 * step + 2 * t;
        a[step][0] = pair_at(a_panel, row, k), a[step][1] = pair_at(a_panel, row + 8, k);
        a[step][2] = pair_at(a_panel, row, k + 8), a[step][3] = pair_at(a_panel, row + 8, k + 8);
    }
    float by_mma[SIDE / 2];
#pragma unroll
    for (int n = 0; n < SIDE / 8; ++n) {
        float sums[4] = {};
#pragma unroll
        for (int step = 0; step < PANEL_STEPS; ++step) {
            const int k = 16 * step + 2 * t;
            mma_of<ELEMENT>(sums, a[step], pair_at(b_panel, 8 * n + g, k), pair_at(b_panel, 8 * n + g, k + 8));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            by_mma[4 * n + i] = sums[i];
        }
    }

    const u64 rows = descriptor(shared_address(a_panel), 0), columns = descriptor(shared_address(b_panel), 0);
    float sums[SIDE / 2] = {};
    u32 differing[2] = {};
    begin_products();
#pragma unroll
    for (int step = 0; step < PANEL_STEPS; ++step) {
        const u32 at = step * PANEL_STEP_COLUMNS >> 4;
        wgmma_64<ELEMENT>(sums, rows + at, columns + at, step > 0);
    }
    finish_products();
#pragma unroll
    for (int i = 0; i < SIDE / 2; ++i) {
        differing[0] += __float_as_uint(sums[i]) != __float_as_uint(by_mma[i]);
    }
    if constexpr (ELEMENT == Element::Bf16) {
        begin_products();
#pragma unroll
        for (int step = 0; step < PANEL_STEPS; ++step) {
            wgmma_rows<SIDE>(sums, a[step], columns + (step * PANEL_STEP_COLUMNS >> 4), step > 0);
        }
        finish_products();
#pragma unroll
        for (int i = 0; i < SIDE / 2; ++i) {
            differing[1] += __float_as_uint(sums[i]) != __float_as_uint(by_mma[i]);
        }
    }
#pragma unroll
    for (int form = 0; form < 2; ++form) {
        if (differing[form] > 0) {
            atomicAdd(&params.differing[form], differing[form]);
        }
    }
    if (blockIdx.x == 0) {
        for (u32 word = threadIdx.x; word < 2 * PANEL_BYTES / 4; word += WARPGROUP) {
            reinterpret_cast<u32*>(params.panels)[word] = reinterpret_cast<const u32*>(memory)[word];
        }
#pragma unroll
        for (int n = 0; n < SIDE / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                params.sums[(row + i / 2 * 8) * SIDE + 8 * n + 2 * t + i % 2] = by_mma[4 * n + i];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPGROUP) experiment_bits_bf16(const __grid_constant__ BitsParams params) {
    begin_kernel();
    compare<Element::Bf16>(params);
}

extern "C" __global__ void __launch_bounds__(WARPGROUP) experiment_bits_f16(const __grid_constant__ BitsParams params) {
    begin_kernel();
    compare<Element::F16>(params);
}
