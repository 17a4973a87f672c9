//! How tensor cores add products of floats.
//!
//! A group of products and the accumulator are one fused sum: every term is aligned to the largest exponent and loses the bits below a fixed
//! place, the terms that are left are added exactly, and the total is cut to f32 (Xie et al., "MMA-Sim", arXiv 2511.10909, which found it on
//! the devices). An exponent is that of the factors as they are stored: of a subnormal the least one of its format, of zero that of f32, and of
//! a product the sum of both, whatever its significands give.

use std::ops::Range;

use super::block_scale::ScaleFormat;
use super::decode::{f16_to_f32, f32_to_f16};
use super::product::{FloatSum, Row, accumulate};

/// Exponent of zero, and the least of bf16, tf32 and f32.
const MIN_EXPONENT: i32 = -126;
/// Largest magnitude of an exponent of the tile's sums, up to which f32 holds every step of a fused sum.
const MAX_EXPONENT: i32 = 100;
/// Exponent of infinities and NaN: above every sum of exponents.
const NOT_FINITE: i32 = 4096;
/// Terms of less than 2^27 whose sum an i32 holds.
const TERMS: usize = 8;

/// The fused sums of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FusedSum {
    /// Bits of a term below the largest exponent.
    pub(super) fraction_bits: i32,
    /// Products that are added at once.
    pub(super) products: usize,
    /// Fraction bits of the result.
    pub(super) result_bits: u32,
}

/// Exponents of the least normal values of A and B.
pub(super) type LeastExponents = [i32; 2];

impl FusedSum {
    /// Of `mma.sync` with `k` products of elements of `bits` bits on an architecture, 80 for sm_80.
    pub(super) fn of_mma(sm: u32, k: usize, bits: usize) -> Self {
        let fraction_bits = match sm {
            ..90 => 24,
            _ => 25,
        };
        // Ampere and Ada take the largest shapes in two steps.
        let products = if sm < 90 && k * bits == 256 { k / 2 } else { k };
        match (sm, bits) {
            (89, 8) => Self { fraction_bits: 13, products, result_bits: 13 },
            _ => Self { fraction_bits, products, result_bits: 23 },
        }
    }

    /// Of `wgmma` with `k` products.
    pub(super) fn of_wgmma(k: usize) -> Self {
        match k {
            32 => Self { fraction_bits: 13, products: k, result_bits: 13 },
            _ => Self { fraction_bits: 25, products: k, result_bits: 23 },
        }
    }

    /// Of `tcgen05.mma` with `k` products, and of block-scaled ones of 8 bits.
    pub(super) fn of_tcgen05(k: usize) -> Self {
        Self { fraction_bits: 25, products: k, result_bits: 23 }
    }

    /// `sums += a b`, in groups of products, k ascending.
    #[inline(always)]
    pub(super) fn add<const M: usize, const K: usize>(
        self,
        a: &[[f32; K]; M],
        b: &[Row<f32>; K],
        least: LeastExponents,
        result: FloatSum,
        sums: &mut [Row<f32>; M],
    ) {
        let mut b_exponents = [[0; 8]; K];
        for (exponents, row) in b_exponents.iter_mut().zip(b) {
            for n in 0..8 {
                exponents[n] = exponent(row[n], least[1]);
            }
        }
        for first in (0..K).step_by(self.products) {
            let ks = first..first + self.products;
            let mut is_column_zero = [true; 8];
            for k in ks.clone() {
                for n in 0..8 {
                    is_column_zero[n] &= b[k][n] == 0.0;
                }
            }
            for (a, sums) in a.iter().zip(&mut *sums) {
                let mut a_exponents = [0; K];
                let mut is_row_zero = true;
                for k in ks.clone() {
                    a_exponents[k] = exponent(a[k], least[0]);
                    is_row_zero &= a[k] == 0.0;
                }
                let mut top = [0; 8];
                for n in 0..8 {
                    top[n] = exponent(sums[n], result.least_exponent());
                }
                for k in ks.clone() {
                    for n in 0..8 {
                        top[n] = top[n].max(a_exponents[k] + b_exponents[k][n]);
                    }
                }
                // Nothing but zeros, as of rows and columns that are not there, has no exponent that counts.
                let mut fits = true;
                for n in 0..8 {
                    let zero = sums[n] == 0.0 && (is_row_zero || is_column_zero[n]);
                    fits &= top[n].abs() <= MAX_EXPONENT || zero && top[n] <= MAX_EXPONENT;
                }
                if fits {
                    self.add_row(a, b, ks.clone(), &top, result, sums);
                } else {
                    for n in 0..8 {
                        let factors = ks.clone().map(|k| {
                            (f64::from(a[k]) * f64::from(b[k][n]), a_exponents[k] + b_exponents[k][n])
                        });
                        sums[n] = self.add_any(factors, sums[n], result);
                    }
                }
            }
        }
    }

    /// `sums += factor_a factor_b (a b)`; `codes` are those of the factors of rows of A and of columns of B.
    pub(super) fn add_scaled<const M: usize, const K: usize>(
        self,
        a: &[[f32; K]; M],
        b: &[Row<f32>; K],
        least: LeastExponents,
        format: ScaleFormat,
        [a_codes, b_codes]: [&[u8]; 2],
        sums: &mut [Row<f32>; M],
    ) {
        for m in 0..M {
            for n in 0..8 {
                let [(first, first_exponent), (second, second_exponent)] =
                    [a_codes[m], b_codes[n]].map(|code| format.parts(code));
                let scale = first_exponent + second_exponent;
                let factor = first * second * 2f64.powi(scale);
                let products = (0..K).map(|k| {
                    let exponent = exponent(a[m][k], least[0]) + exponent(b[k][n], least[1]);
                    (f64::from(a[m][k]) * f64::from(b[k][n]) * factor, exponent + scale)
                });
                sums[m][n] = self.add_any(products, sums[m][n], FloatSum::F32);
            }
        }
    }

    /// A group of products onto a row, where f32 holds every aligned term; `top` is the largest exponent of each column.
    #[inline(always)]
    fn add_row<const K: usize>(
        self,
        a: &[f32; K],
        b: &[Row<f32>; K],
        ks: Range<usize>,
        top: &[i32; 8],
        result: FloatSum,
        sums: &mut Row<f32>,
    ) {
        let (mut scale, mut unit, mut total) = ([0.0; 8], [0.0; 8], [0.0; 8]);
        for n in 0..8 {
            let top = top[n].max(-MAX_EXPONENT);
            scale[n] = f32::from_bits(((127 + self.fraction_bits - top) as u32) << 23);
            unit[n] = f64::from_bits(((1023 + top - self.fraction_bits) as u64) << 52);
            total[n] = f64::from(truncated(sums[n] * scale[n]));
        }
        for first in ks.clone().step_by(TERMS) {
            let mut terms = [0i32; 8];
            for k in first..(first + TERMS).min(ks.end) {
                for n in 0..8 {
                    // Exact, or so small that nothing is left of it: a product of less than 2^-126 is below the last place.
                    terms[n] += truncated(a[k] * b[k][n] * scale[n]);
                }
            }
            for n in 0..8 {
                total[n] += f64::from(terms[n]);
            }
        }
        for n in 0..8 {
            sums[n] = self.result(total[n] * unit[n], result);
        }
    }

    /// One sum of any values: of products with the exponents of their factors, and an accumulator.
    #[inline(never)]
    fn add_any(
        self,
        products: impl Iterator<Item = (f64, i32)> + Clone,
        accumulator: f32,
        result: FloatSum,
    ) -> f32 {
        let all = products.clone().fold(f64::from(accumulator), |sum, (product, _)| sum + product);
        if !all.is_finite() {
            return all as f32;
        }
        let terms =
            products.chain([(f64::from(accumulator), exponent(accumulator, result.least_exponent()))]);
        let top = terms.clone().map(|(_, exponent)| exponent).max().unwrap_or(0);
        let unit = 2f64.powi(top - self.fraction_bits);
        self.result(terms.map(|(value, _)| (value / unit).trunc()).sum::<f64>() * unit, result)
    }

    /// A total as the instruction's result: cut to f32, or rounded to the nearest f16. `value` has at most 36 bits.
    #[inline(always)]
    fn result(self, value: f64, result: FloatSum) -> f32 {
        let bits = value.to_bits();
        let dropped = (1u64 << (52 - self.result_bits)) - 1;
        let mut cut = f64::from_bits(bits & !dropped) as f32;
        // What an f32 below its least exponent cannot hold is dropped too.
        if f64::from(cut).abs() > value.abs() && cut.is_finite() {
            cut = f32::from_bits(cut.to_bits() - 1);
        }
        match result {
            FloatSum::F32 => cut,
            // A dropped rest is shown in the last bit, which is far below an f16's.
            FloatSum::F16 => {
                let rest = u32::from(bits & dropped != 0);
                f16_to_f32(f32_to_f16(f32::from_bits(cut.to_bits() | rest)))
            }
        }
    }
}

/// Values of 4 bits that are added without rounding.
const EXACT: usize = 16;
/// Fraction bits of the terms of products of 4 bits.
const BLOCK_BITS: i32 = 35;

/// `sums += factor_a factor_b (a b)` of e2m1, with a pair of factors for each block of k, whose codes `codes(index)` gives for rows of A and columns
/// of B: sixteen products are added without rounding, and such sums with the accumulator are one fused sum, in which a term has the
/// exponent of its factors.
pub(super) fn add_blocks<const M: usize, const K: usize>(
    a: &[[f32; K]; M],
    b: &[Row<f32>; K],
    block: usize,
    format: ScaleFormat,
    codes: impl Fn(usize) -> ([u8; M], [u8; 8]),
    sums: &mut [Row<f32>; M],
) {
    let fused = FusedSum { fraction_bits: BLOCK_BITS, products: K / EXACT, result_bits: 23 };
    let exact: Vec<_> = (0..K / EXACT)
        .map(|group| {
            let mut products = [[0.0; 8]; M];
            accumulate(a, b, group * EXACT..(group + 1) * EXACT, &mut products);
            let (a_codes, b_codes) = codes(group * EXACT / block);
            (products, a_codes.map(|code| format.parts(code)), b_codes.map(|code| format.parts(code)))
        })
        .collect();
    for m in 0..M {
        for n in 0..8 {
            let terms = exact.iter().map(|(products, a_factors, b_factors)| {
                let (a_factor, b_factor) = (a_factors[m], b_factors[n]);
                let scale = a_factor.1 + b_factor.1;
                (f64::from(products[m][n]) * a_factor.0 * b_factor.0 * 2f64.powi(scale), scale)
            });
            sums[m][n] = fused.add_any(terms, sums[m][n], FloatSum::F32);
        }
    }
}

/// The exponent of a value of a format.
#[inline(always)]
pub(super) fn exponent(value: f32, least: i32) -> i32 {
    let biased = (value.to_bits() >> 23 & 0xff) as i32;
    let exponent = if value == 0.0 { MIN_EXPONENT } else { (biased - 127).max(least) };
    if biased == 0xff { NOT_FINITE } else { exponent }
}

#[inline(always)]
fn truncated(value: f32) -> i32 {
    debug_assert!(value.abs() < 2f32.powi(30), "{value}");
    // SAFETY: `FusedSum::add_row` aligns terms to less than 2^27.
    unsafe { value.to_int_unchecked() }
}

#[cfg(test)]
mod tests;
