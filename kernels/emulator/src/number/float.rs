//! f32 arithmetic. Rounding to nearest is the host's own operation, whose NaN has an unspecified payload.
//!
//! Directed roundings use f64, in which sums and products of f32 are exact or have a known error.

use super::round::{Mode, Rounding, pair_to_f32, two_sum};

/// `a + b` of exact f64 terms, rounded once. A zero sum of terms with different signs is -0 towards minus
/// infinity (IEEE 754-2019, 6.3).
#[inline(always)]
fn sum(a: f64, b: f64, rounding: Rounding) -> f32 {
    let (s, e) = two_sum(a, b);
    let differ = a.is_sign_negative() != b.is_sign_negative();
    let zero = s == 0.0 && differ && rounding == Rounding::Down;
    pair_to_f32(if zero { -0.0 } else { s }, e, rounding)
}

/// `add`.
#[inline(always)]
pub fn add(a: f32, b: f32, mode: Mode) -> f32 {
    let (a, b) = (mode.input(a), mode.input(b));
    mode.output(match mode.rounding {
        Rounding::NearestEven => a + b,
        rounding => sum(a.into(), b.into(), rounding),
    })
}

/// `sub`.
#[inline(always)]
pub fn sub(a: f32, b: f32, mode: Mode) -> f32 {
    add(a, -b, mode)
}

/// `mul`.
#[inline(always)]
pub fn mul(a: f32, b: f32, mode: Mode) -> f32 {
    let (a, b) = (mode.input(a), mode.input(b));
    mode.output(match mode.rounding {
        Rounding::NearestEven => a * b,
        rounding => pair_to_f32(f64::from(a) * f64::from(b), 0.0, rounding),
    })
}

/// `fma`: `a * b + c`, rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32, mode: Mode) -> f32 {
    let (a, b, c) = (mode.input(a), mode.input(b), mode.input(c));
    mode.output(match mode.rounding {
        Rounding::NearestEven => a.mul_add(b, c),
        rounding => sum(f64::from(a) * f64::from(b), c.into(), rounding),
    })
}

/// `div.rn`, `.rz`, `.rm`, `.rp`, and `div.full`, here rounded to nearest.
///
/// A quotient of two f32 that is not itself an f32 differs from every f32 by more than 2^-48 of its size, so
/// the f64 quotient lies on the right side of its f32 neighbour. The same holds for square roots.
#[inline(always)]
pub fn div(a: f32, b: f32, mode: Mode) -> f32 {
    let (a, b) = (mode.input(a), mode.input(b));
    mode.output(match mode.rounding {
        Rounding::NearestEven => a / b,
        rounding => pair_to_f32(f64::from(a) / f64::from(b), 0.0, rounding),
    })
}

/// `rcp.rn`, `.rz`, `.rm`, `.rp`.
#[inline(always)]
pub fn rcp(x: f32, mode: Mode) -> f32 {
    div(1.0, x, mode)
}

/// `sqrt.rn`, `.rz`, `.rm`, `.rp`: -0 for -0, NaN below it.
#[inline(always)]
pub fn sqrt(x: f32, mode: Mode) -> f32 {
    let x = mode.input(x);
    mode.output(match mode.rounding {
        Rounding::NearestEven => x.sqrt(),
        rounding => pair_to_f32(f64::from(x).sqrt(), 0.0, rounding),
    })
}

/// `neg`: the sign bit alone, NaN included.
#[inline(always)]
pub fn neg(x: f32, mode: Mode) -> f32 {
    f32::from_bits(mode.input(x).to_bits() ^ 0x8000_0000)
}

/// `abs`: the sign bit alone, NaN included.
#[inline(always)]
pub fn abs(x: f32, mode: Mode) -> f32 {
    f32::from_bits(mode.input(x).to_bits() & 0x7fff_ffff)
}

/// `copysign`: the sign of `a` with the magnitude of `b`.
#[inline(always)]
pub fn copysign(a: f32, b: f32) -> f32 {
    f32::from_bits(a.to_bits() & 0x8000_0000 | b.to_bits() & 0x7fff_ffff)
}
