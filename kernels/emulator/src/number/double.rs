//! f64 arithmetic. Rounding to nearest is the host's own operation; directed roundings, which kernels hardly use,
//! compute with integers.

use super::round::{Rounding, overflow_is_infinite, shift_right_wide};

/// A finite value `significand * 2^exponent` with its sign. Bit 0 of a significand that was cut is 1 if anything
/// was lost; at least 64 bits lie above it.
#[derive(Clone, Copy)]
struct Exact {
    negative: bool,
    significand: u128,
    exponent: i32,
}

impl Exact {
    fn of(x: f64) -> Exact {
        let bits = x.to_bits();
        let field = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let significand = if field == 0 { fraction } else { fraction | 1 << 52 };
        Exact { negative: bits >> 63 != 0, significand: significand.into(), exponent: field.max(1) - 1075 }
    }

    /// Moves the highest bit to `place`; bits below 0 go into bit 0.
    fn with_highest_bit(self, place: i32) -> Exact {
        let left = place - (127 - self.significand.leading_zeros() as i32);
        let significand =
            if left >= 0 { self.significand << left } else { jam(self.significand, -left as u32) };
        Exact { significand, exponent: self.exponent - left, ..self }
    }

    fn times(self, other: Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            significand: self.significand * other.significand,
            exponent: self.exponent + other.exponent,
        }
    }

    /// The sum of two values that are not zero. A zero sum has no sign: `None`.
    fn plus(self, other: Exact) -> Option<Exact> {
        let (a, b) = (self.with_highest_bit(125), other.with_highest_bit(125));
        let (large, small) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        // A shift that loses bits of a 106-bit product leaves it 20 bits below the larger term, so that no
        // cancellation brings the sticky bit near the place of rounding.
        let aligned = jam(small.significand, (large.exponent - small.exponent) as u32);
        let (significand, flipped) = if large.negative == small.negative {
            (large.significand + aligned, false)
        } else {
            (large.significand.abs_diff(aligned), aligned > large.significand)
        };
        (significand != 0).then_some(Exact { negative: large.negative != flipped, significand, ..large })
    }

    fn round(self, rounding: Rounding) -> f64 {
        let sign = u64::from(self.negative) << 63;
        let highest = self.exponent + 127 - self.significand.leading_zeros() as i32;
        let lowest = (highest - 52).max(-1074);
        let shift = lowest - self.exponent;
        let q = if shift <= 0 {
            self.significand << -shift
        } else {
            // Beyond 127 all of the significand lies below half a unit: two more zeros above it keep it there.
            let cut = self.significand >> 2 | self.significand & 3;
            match shift {
                1..=127 => shift_right_wide(self.significand, shift as u32, self.negative, rounding),
                _ => shift_right_wide(cut, 127, self.negative, rounding),
            }
        } as u64;
        // A carry out of the significand moves into the exponent field.
        let field = if lowest == -1074 { 0 } else { (lowest + 1074) as u64 };
        let bits = if field >= 2047 { u64::MAX >> 1 } else { (field << 52) + q };
        let infinity = f64::INFINITY.to_bits();
        let limit = if overflow_is_infinite(self.negative, rounding) { infinity } else { infinity - 1 };
        f64::from_bits(bits.min(limit) | sign)
    }
}

/// Shifts right; bits that are lost go into bit 0.
fn jam(x: u128, count: u32) -> u128 {
    match count {
        0 => x,
        1..=127 => x >> count | u128::from(x & ((1 << count) - 1) != 0),
        _ => u128::from(x != 0),
    }
}

/// `a * b + c` for a rounding that is not to nearest even.
fn directed_fma(a: f64, b: f64, c: f64, rounding: Rounding) -> f64 {
    let nearest = a.mul_add(b, c);
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return nearest;
    }
    let product = Exact::of(a).times(Exact::of(b));
    let addend = Exact::of(c);
    let zero = if rounding == Rounding::Down { -0.0 } else { 0.0 };
    match (product.significand, addend.significand) {
        (0, 0) if product.negative == addend.negative => c,
        (0, 0) => zero,
        (0, _) => c,
        (_, 0) => product.round(rounding),
        _ => product.plus(addend).map_or(zero, |sum| sum.round(rounding)),
    }
}

fn directed_div(a: f64, b: f64, rounding: Rounding) -> f64 {
    let nearest = a / b;
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return nearest;
    }
    // 127 bits by 53: the quotient has at least 74, and the remainder is its sticky bit.
    let (a, b) = (Exact::of(a).with_highest_bit(126), Exact::of(b));
    let quotient = a.significand / b.significand;
    let sticky = u128::from(a.significand % b.significand != 0);
    let negative = a.negative != b.negative;
    Exact { negative, significand: quotient << 1 | sticky, exponent: a.exponent - b.exponent - 1 }
        .round(rounding)
}

fn directed_sqrt(x: f64, rounding: Rounding) -> f64 {
    let nearest = x.sqrt();
    if !nearest.is_finite() || x == 0.0 {
        return nearest;
    }
    let mut x = Exact::of(x).with_highest_bit(126);
    if x.exponent % 2 != 0 {
        x = Exact { significand: x.significand >> 1, exponent: x.exponent + 1, ..x };
    }
    let root = x.significand.isqrt();
    let sticky = u128::from(root * root != x.significand);
    Exact { significand: root << 1 | sticky, exponent: x.exponent / 2 - 1, ..x }.round(rounding)
}

/// `add.f64`.
#[inline(always)]
pub fn add(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven { a + b } else { directed_fma(a, 1.0, b, rounding) }
}

/// `sub.f64`.
#[inline(always)]
pub fn sub(a: f64, b: f64, rounding: Rounding) -> f64 {
    add(a, -b, rounding)
}

/// `mul.f64`.
#[inline(always)]
pub fn mul(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven {
        a * b
    } else {
        // The addend is a zero with the sign of the product, which changes nothing.
        directed_fma(a, b, if a.is_sign_negative() == b.is_sign_negative() { 0.0 } else { -0.0 }, rounding)
    }
}

/// `fma.f64`: `a * b + c`, rounded once.
#[inline(always)]
pub fn fma(a: f64, b: f64, c: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven { a.mul_add(b, c) } else { directed_fma(a, b, c, rounding) }
}

/// `div.f64`.
#[inline(always)]
pub fn div(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven { a / b } else { directed_div(a, b, rounding) }
}

/// `rcp.f64`.
#[inline(always)]
pub fn rcp(x: f64, rounding: Rounding) -> f64 {
    div(1.0, x, rounding)
}

/// `sqrt.f64`: -0 for -0, NaN below it.
#[inline(always)]
pub fn sqrt(x: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven { x.sqrt() } else { directed_sqrt(x, rounding) }
}

/// `.sat` of a conversion to f64: clamped to [0, 1], NaN becomes +0.
#[inline(always)]
pub fn saturate(x: f64) -> f64 {
    let low = if x > 0.0 { x } else { 0.0 };
    if low < 1.0 { low } else { 1.0 }
}

/// `neg.f64`: the sign bit alone, NaN included.
#[inline(always)]
pub fn neg(x: f64) -> f64 {
    f64::from_bits(x.to_bits() ^ 1 << 63)
}

/// `abs.f64`: the sign bit alone, NaN included.
#[inline(always)]
pub fn abs(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & !(1 << 63))
}

/// `copysign.f64`: the sign of `a` with the magnitude of `b`.
#[inline(always)]
pub fn copysign(a: f64, b: f64) -> f64 {
    f64::from_bits(a.to_bits() & 1 << 63 | b.to_bits() & !(1 << 63))
}
