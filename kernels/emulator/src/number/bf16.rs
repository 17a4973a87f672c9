//! bfloat16: the upper half of an f32.

use super::round::{Rounding, odd_f32, shift_right, two_sum};
use super::sixteen::Sixteen;

/// PTX type `.bf16`.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

impl Sixteen for Bf16 {
    const INFINITY: u16 = 0x7f80;
    const MIN_NORMAL: u16 = 0x0080;

    #[inline(always)]
    fn to_f32(x: u16) -> f32 {
        f32::from_bits(u32::from(x) << 16)
    }

    /// The exponent range is that of f32: overflow is a carry into the exponent, and infinity has no
    /// remainder to round.
    #[inline(always)]
    fn from_f32(x: f32, rounding: Rounding) -> u16 {
        let bits = x.to_bits();
        let abs = bits & 0x7fff_ffff;
        let number = shift_right(abs, 16, bits >> 31 != 0, rounding) | (bits >> 16 & 0x8000);
        (if abs > 0x7f80_0000 { 0x7fff } else { number }) as u16
    }

    /// The product has 16 bits, exact in f64; f32 would round products below its normal range.
    #[inline(always)]
    fn product(a: u16, b: u16) -> f32 {
        odd_f32(Self::to_f64(a) * Self::to_f64(b), 0.0)
    }

    /// The sum can have any distance between its two terms: its f64 error decides how f32 rounds to odd.
    #[inline(always)]
    fn fused(a: u16, b: u16, c: u16) -> f32 {
        let (s, e) = two_sum(Self::to_f64(a) * Self::to_f64(b), Self::to_f64(c));
        odd_f32(s, e)
    }
}
