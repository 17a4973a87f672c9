//! IEEE binary16: 1 sign, 5 exponent and 10 mantissa bits.

use super::round::{Rounding, magnitude, odd_f32_sum, overflow_is_infinite};
use super::sixteen::Sixteen;

/// PTX type `.f16`.
#[derive(Clone, Copy, Debug)]
pub struct F16;

impl Sixteen for F16 {
    const INFINITY: u16 = 0x7c00;
    const MIN_NORMAL: u16 = 0x0400;

    #[inline(always)]
    fn to_f32(x: u16) -> f32 {
        let sign = u32::from(x & 0x8000) << 16;
        let abs = u32::from(x & 0x7fff);
        let normal = (abs << 13) + (112 << 23);
        let subnormal = (abs as i32 as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
        let finite = if abs < 0x0400 { subnormal } else { normal } | sign;
        let special = if abs == 0x7c00 { sign | 0x7f80_0000 } else { 0x7fff_ffff };
        f32::from_bits(if abs < 0x7c00 { finite } else { special })
    }

    #[inline(always)]
    fn from_f32(x: f32, rounding: Rounding) -> u16 {
        let bits = x.to_bits();
        let negative = bits >> 31 != 0;
        let abs = bits & 0x7fff_ffff;
        let limit = if overflow_is_infinite(negative, rounding) { 0x7c00 } else { 0x7bff };
        let finite = magnitude(x, 10, 15, rounding).min(limit);
        let number = if abs == 0x7f80_0000 { 0x7c00 } else { finite } | (bits >> 16 & 0x8000);
        (if abs > 0x7f80_0000 { 0x7fff } else { number }) as u16
    }

    /// Exact: 22 significant bits and exponents from -48 to 31.
    #[inline(always)]
    fn product(a: u16, b: u16) -> f32 {
        Self::to_f32(a) * Self::to_f32(b)
    }

    #[inline(always)]
    fn fused(a: u16, b: u16, c: u16) -> f32 {
        odd_f32_sum(Self::product(a, b), Self::to_f32(c))
    }
}
