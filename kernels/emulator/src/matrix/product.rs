//! Dense products of one 16 x 8 or 8 x 8 tile, and the layout of such tiles in registers.
//!
//! The loops run over whole rows of eight columns, so that they vectorise in a caller compiled with
//! `avx2,fma`; everything here is inlined for that reason.

use super::decode::{f16_to_f32, f32_to_f16};
use super::element::join;
use crate::Lanes;
use std::ops::Range;

/// A row of an output tile: its eight columns.
pub(super) type Row<T> = [T; 8];

/// Numbers that a product sums.
pub(super) trait Number: Copy + Default {
    /// `self * b + sum` with one rounding.
    fn multiply_add(self, b: Self, sum: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn multiply_add(self, b: Self, sum: Self) -> Self {
        self.mul_add(b, sum)
    }
}

impl Number for f64 {
    #[inline(always)]
    fn multiply_add(self, b: Self, sum: Self) -> Self {
        self.mul_add(b, sum)
    }
}

/// B by rows of k from B by columns.
#[inline(always)]
pub(super) fn transpose<T: Copy + Default, const K: usize>(columns: &[[T; K]; 8]) -> [Row<T>; K] {
    let mut rows = [[T::default(); 8]; K];
    for k in 0..K {
        for n in 0..8 {
            rows[k][n] = columns[n][k];
        }
    }
    rows
}

/// `sums += a[.., ks] b[ks, ..]`, k ascending. Eight rows advance together: one row alone would
/// wait for the latency of each addition.
#[inline(always)]
pub(super) fn accumulate<T: Number, const M: usize, const K: usize>(
    a: &[[T; K]; M],
    b: &[Row<T>; K],
    ks: Range<usize>,
    sums: &mut [Row<T>; M],
) {
    for first in (0..M).step_by(8) {
        let mut tile = [[T::default(); 8]; 8];
        tile.copy_from_slice(&sums[first..first + 8]);
        for k in ks.clone() {
            let b_row = b[k];
            for r in 0..8 {
                let factor = a[first + r][k];
                for n in 0..8 {
                    tile[r][n] = factor.multiply_add(b_row[n], tile[r][n]);
                }
            }
        }
        sums[first..first + 8].copy_from_slice(&tile);
    }
}

/// Type of float accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatSum {
    /// Rounded once for each fused sum.
    F16,
    F32,
}

impl FloatSum {
    /// Exponent of the least normal value.
    #[inline(always)]
    pub(super) fn least_exponent(self) -> i32 {
        if self == Self::F16 { -14 } else { -126 }
    }

    /// Registers of a tile of `rows` x 8.
    pub(super) fn num_registers(self, rows: usize) -> usize {
        if self == Self::F16 { rows / 8 } else { rows / 4 }
    }

    #[inline(always)]
    pub(super) fn gather<const M: usize>(self, registers: &[Lanes]) -> [Row<f32>; M] {
        match self {
            Self::F16 => gather_f16(registers),
            Self::F32 => gather_f32(registers),
        }
    }

    #[inline(always)]
    pub(super) fn scatter<const M: usize>(self, tile: &[Row<f32>; M], registers: &mut [Lanes]) {
        match self {
            Self::F16 => scatter_f16(tile, registers),
            Self::F32 => scatter_f32(tile, registers),
        }
    }

    /// Values of accumulators in words of their own, f16 in the low half.
    #[inline(always)]
    pub(super) fn decode_words<const M: usize>(self, words: &[Row<u32>; M]) -> [Row<f32>; M] {
        match self {
            Self::F16 => words.map(|row| row.map(|word| f16_to_f32(word & 0xffff))),
            Self::F32 => words.map(|row| row.map(f32::from_bits)),
        }
    }

    /// Inverse of [`FloatSum::decode_words`]; the upper half of an f16 word is zero.
    #[inline(always)]
    pub(super) fn encode_words<const M: usize>(self, tile: &[Row<f32>; M]) -> [Row<u32>; M] {
        match self {
            Self::F16 => tile.map(|row| row.map(f32_to_f16)),
            Self::F32 => f32_words(tile),
        }
    }
}

/// `tile += products` in s32, where the products are exact integers; sums wrap or, with `saturate`,
/// clamp.
#[inline(always)]
pub(super) fn add_s32<const M: usize>(products: &[Row<f32>; M], saturate: bool, tile: &mut [Row<u32>; M]) {
    for (row, products) in tile.iter_mut().zip(products) {
        for (word, &product) in row.iter_mut().zip(products) {
            let (sum, product) = (*word as i32, product as i32);
            *word = if saturate { sum.saturating_add(product) } else { sum.wrapping_add(product) } as u32;
        }
    }
}

/// Accumulators of 32 bits: register i holds row g + 8 (i div 2), column 2c + i mod 2.
#[inline(always)]
pub(super) fn gather_words<const M: usize>(registers: &[Lanes]) -> [Row<u32>; M] {
    let mut tile = [[0; 8]; M];
    for (i, lanes) in registers[..M / 4].iter().enumerate() {
        for g in 0..8 {
            for c in 0..4 {
                tile[g + 8 * (i / 2)][2 * c + i % 2] = lanes[4 * g + c];
            }
        }
    }
    tile
}

/// Inverse of [`gather_words`].
#[inline(always)]
pub(super) fn scatter_words<const M: usize>(tile: &[Row<u32>; M], registers: &mut [Lanes]) {
    for (i, lanes) in registers[..M / 4].iter_mut().enumerate() {
        for g in 0..8 {
            for c in 0..4 {
                lanes[4 * g + c] = tile[g + 8 * (i / 2)][2 * c + i % 2];
            }
        }
    }
}

/// Float accumulators as f32.
#[inline(always)]
pub(super) fn gather_f32<const M: usize>(registers: &[Lanes]) -> [Row<f32>; M] {
    // Loops, which are inlined for certain: `map` of arrays is not.
    let words = gather_words::<M>(registers);
    let mut tile = [[0.0; 8]; M];
    for (row, words) in tile.iter_mut().zip(&words) {
        for (value, word) in row.iter_mut().zip(words) {
            *value = f32::from_bits(*word);
        }
    }
    tile
}

/// Writes f32 accumulators; every NaN becomes 0x7fffffff.
#[inline(always)]
pub(super) fn scatter_f32<const M: usize>(tile: &[Row<f32>; M], registers: &mut [Lanes]) {
    scatter_words(&f32_words(tile), registers);
}

#[inline(always)]
fn f32_words<const M: usize>(tile: &[Row<f32>; M]) -> [Row<u32>; M] {
    let mut words = [[0; 8]; M];
    for (row, out) in tile.iter().zip(&mut words) {
        for (value, word) in row.iter().zip(out) {
            *word = if value.is_nan() { 0x7fff_ffff } else { value.to_bits() };
        }
    }
    words
}

/// f16 accumulators: register i holds row g + 8i, columns 2c (low half) and 2c + 1.
#[inline(always)]
fn gather_f16<const M: usize>(registers: &[Lanes]) -> [Row<f32>; M] {
    let mut tile = [[0.0; 8]; M];
    for (i, lanes) in registers[..M / 8].iter().enumerate() {
        for g in 0..8 {
            for c in 0..4 {
                tile[g + 8 * i][2 * c] = f16_to_f32(lanes[4 * g + c] & 0xffff);
                tile[g + 8 * i][2 * c + 1] = f16_to_f32(lanes[4 * g + c] >> 16);
            }
        }
    }
    tile
}

/// Inverse of [`gather_f16`]; rounds to nearest even.
#[inline(always)]
fn scatter_f16<const M: usize>(tile: &[Row<f32>; M], registers: &mut [Lanes]) {
    for (i, lanes) in registers[..M / 8].iter_mut().enumerate() {
        for g in 0..8 {
            for c in 0..4 {
                let row = &tile[g + 8 * i];
                lanes[4 * g + c] = f32_to_f16(row[2 * c]) | f32_to_f16(row[2 * c + 1]) << 16;
            }
        }
    }
}

/// f64 accumulators: the layout of [`gather_words`] over pairs of registers, low half first.
#[inline(always)]
pub(super) fn gather_sums_f64<const M: usize>(registers: &[Lanes]) -> [Row<f64>; M] {
    let mut tile = [[0.0; 8]; M];
    for (i, pair) in registers[..M / 2].chunks_exact(2).enumerate() {
        for lane in 0..32 {
            tile[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = join(pair, lane);
        }
    }
    tile
}

/// Inverse of [`gather_sums_f64`]; every NaN becomes the canonical 0x7fffffffffffffff.
#[inline(always)]
pub(super) fn scatter_sums_f64<const M: usize>(tile: &[Row<f64>; M], registers: &mut [Lanes]) {
    for (i, pair) in registers[..M / 2].chunks_exact_mut(2).enumerate() {
        for lane in 0..32 {
            let value = tile[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
            let bits = if value.is_nan() { i64::MAX as u64 } else { value.to_bits() };
            pair[0][lane] = bits as u32;
            pair[1][lane] = (bits >> 32) as u32;
        }
    }
}
