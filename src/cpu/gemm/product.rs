//! Which kernel multiplies a tile: by the product of the two formats, then by the instruction set.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `TileArgs`.

#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::codes::dot_codes;
#[cfg(target_arch = "x86_64")]
use super::tile::dot;
use super::{codes, int8, tile};
use crate::layout::{Ahead, CodeFormat, LANES, Product, TileArgs};
use crate::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx512::{Avx512, Avx512Bf16, has_vnni};
use crate::simd::portable::Portable;

/// Multiplies `rows` rows (at most what the product's tile takes) with `panels` panels.
///
/// # Safety
/// `args` is valid for these counts; runs inside a launch of `S`; `Dot` only where the instruction set has it.
#[inline(always)]
pub(crate) unsafe fn multiply_tile<S: Simd>(product: Product, rows: usize, panels: usize, args: TileArgs) {
    match product {
        Product::Dot => S::dot_tile(rows, panels, args),
        #[cfg(target_arch = "x86_64")]
        Product::Blocks => amx::tile(rows, panels, args),
        #[cfg(not(target_arch = "x86_64"))]
        Product::Blocks => unreachable!("there is no matrix unit"),
        Product::Wide => tile::fma_tiles::<S, true>(rows, panels, args),
        Product::Full => tile::fma_tiles::<S, false>(rows, panels, args),
        Product::DotCodes(format) => S::dot_codes_tile(format, rows, panels, args),
        Product::WideCodes(format) => codes::wide_tiles::<S>(format, rows, panels, args),
        Product::Int8Codes(format) => S::int8_tile(format, rows, panels, args),
    }
}

/// Steps per block of [`multiply_lanes`]: four panels of 4 KiB each stay in the first-level cache.
const LANE_STEPS: usize = 64;

/// Rows per tile of [`multiply_lanes`]; every product's tile takes 4, and 16 is a multiple.
const LANE_ROWS: usize = 4;

/// Multiplies panels with panels: the lanes of the first operand's panels (`group_words` apart, 16 rows each) are the rows. Rows are
/// rounded up to 4. Same bits as tile by tile over all steps.
///
/// # Safety
/// As [`multiply_tile`], with `args.a` the first panel of rows and `args.a_stride` 16.
#[inline(always)]
pub(crate) unsafe fn multiply_lanes<S: Simd>(
    product: Product,
    rows: usize,
    group_words: usize,
    panels: usize,
    args: TileArgs,
) {
    let words_per_step = if product == Product::Wide { 2 * LANES } else { LANES };
    for panel in (0..panels).step_by(4) {
        let wide = 4.min(panels - panel);
        for step in (0..args.steps).step_by(LANE_STEPS) {
            for row in (0..rows).step_by(LANE_ROWS) {
                let a = row / LANES * group_words + row % LANES + step * words_per_step;
                let w = args.w.wrapping_add(panel * args.panel_stride + step * LANES);
                let tile = TileArgs {
                    a: args.a.wrapping_add(a),
                    w,
                    steps: LANE_STEPS.min(args.steps - step),
                    c: args.c.wrapping_add(row * args.c_stride + panel * LANES),
                    load: step > 0,
                    ahead: Ahead::Other(w.wrapping_add(LANE_STEPS * LANES)),
                    ..args
                };
                multiply_tile::<S>(product, LANE_ROWS, wide, tile);
            }
        }
    }
}

// SAFETY: plain Rust; the requirements on the operands are the caller's.
unsafe impl Simd for Portable {
    #[inline(always)]
    unsafe fn int8_tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        int8::portable_tile::<Self>(format, rows, panels, args);
    }
}

#[cfg(target_arch = "x86_64")]
// SAFETY: the kernels need what `Avx2` stands for.
unsafe impl Simd for Avx2 {
    #[inline(always)]
    unsafe fn int8_tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        int8::avx2::tile(format, rows, panels, args);
    }
}

#[cfg(target_arch = "x86_64")]
// SAFETY: the kernels need what `Avx512` stands for, and VNNI only where it was found.
unsafe impl Simd for Avx512 {
    #[inline(always)]
    unsafe fn int8_tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        if has_vnni() {
            int8::vnni::tile(format, rows, panels, args);
        } else {
            int8::avx2::tile(format, rows, panels, args);
        }
    }
}

#[cfg(target_arch = "x86_64")]
// SAFETY: as for `Avx512`; the dot product is what `Avx512Bf16` stands for.
unsafe impl Simd for Avx512Bf16 {
    #[inline(always)]
    unsafe fn dot_tile(rows: usize, panels: usize, args: TileArgs) {
        dot::tile(rows, panels, args);
    }
    #[inline(always)]
    unsafe fn dot_codes_tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        dot_codes::tile(format, rows, panels, args);
    }
    #[inline(always)]
    unsafe fn int8_tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        Avx512::int8_tile(format, rows, panels, args);
    }
}
