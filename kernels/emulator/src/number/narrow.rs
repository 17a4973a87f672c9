//! The 8-, 6- and 4-bit formats of tensor cores, the scale format ue8m0, and tf32.
//!
//! A code lies in the low bits of a byte. PTX rounds to these formats to nearest even, except ue8m0 and tf32.

use super::round::{Mode, Rounding, magnitude, shift_right};

/// The sign of an f32 as the bit `place`, or 0 where `.relu` clamps the value. Also tells a clamped value.
#[inline(always)]
fn sign(x: f32, mode: Mode, place: u32) -> (u32, bool) {
    let negative = x.to_bits() >> 31;
    if mode.relu { (0, negative != 0) } else { (negative << place, false) }
}

/// `cvt.rn{.satfinite}{.relu}` to e4m3. There is no infinity: without `.satfinite` overflow is NaN, 0x7f.
#[inline(always)]
pub fn e4m3(x: f32, mode: Mode) -> u8 {
    let (sign, clamped) = sign(x, mode, 7);
    let finite = magnitude(x, 3, 7, Rounding::NearestEven).min(if mode.satfinite { 0x7e } else { 0x7f });
    let number = if clamped { 0 } else { finite | sign };
    (if x.is_nan() { 0x7f } else { number }) as u8
}

/// `cvt.rn{.satfinite}{.relu}` to e5m2: infinity is 0x7c, NaN 0x7f.
#[inline(always)]
pub fn e5m2(x: f32, mode: Mode) -> u8 {
    let (sign, clamped) = sign(x, mode, 7);
    let finite = magnitude(x, 2, 15, Rounding::NearestEven).min(if mode.satfinite { 0x7b } else { 0x7c });
    let number = if clamped { 0 } else { finite | sign };
    (if x.is_nan() { 0x7f } else { number }) as u8
}

/// A format without infinity and NaN: always saturating, NaN is the largest positive value.
#[inline(always)]
fn finite_only(x: f32, mode: Mode, mantissa: u32, bias: u32, max: u32, sign_place: u32) -> u8 {
    let (sign, clamped) = sign(x, mode, sign_place);
    let number = magnitude(x, mantissa, bias, Rounding::NearestEven).min(max) | sign;
    (if x.is_nan() {
        max
    } else if clamped {
        0
    } else {
        number
    }) as u8
}

/// `cvt.rn.satfinite{.relu}` to e2m1, a code of 4 bits: the largest value is 6.
#[inline(always)]
pub fn e2m1(x: f32, mode: Mode) -> u8 {
    finite_only(x, mode, 1, 1, 0x7, 3)
}

/// `cvt.rn.satfinite{.relu}` to e2m3, a code of 6 bits: the largest value is 7.5.
#[inline(always)]
pub fn e2m3(x: f32, mode: Mode) -> u8 {
    finite_only(x, mode, 3, 1, 0x1f, 5)
}

/// `cvt.rn.satfinite{.relu}` to e3m2, a code of 6 bits: the largest value is 28.
#[inline(always)]
pub fn e3m2(x: f32, mode: Mode) -> u8 {
    finite_only(x, mode, 2, 3, 0x1f, 5)
}

/// `cvt.rz` and `cvt.rp` `{.satfinite}` to ue8m0: the exponent of the magnitude, biased by 127; NaN is 0xff.
/// Values up to 2^-127, zero included, are code 0.
#[inline(always)]
pub fn ue8m0(x: f32, mode: Mode) -> u8 {
    let abs = x.to_bits() & 0x7fff_ffff;
    let exponent = abs >> 23;
    let fraction = abs & 0x7f_ffff;
    // Subnormals reach from 0 to just below 2^-126: half of them lie above 2^-127.
    let exact = if exponent == 0 { 0x40_0000 } else { 0 };
    let up = mode.rounding == Rounding::Up && fraction > exact;
    let code = exponent + up as u32;
    let finite = if mode.satfinite { code.min(0xfe) } else { code };
    (if x.is_nan() { 0xff } else { finite }) as u8
}

/// `cvt.rn`, `.rna`, `.rz` `{.relu}{.satfinite}` to tf32: an f32 whose low 13 bits are zero. NaN is 0x7fffffff.
#[inline(always)]
pub fn tf32(x: f32, mode: Mode) -> u32 {
    let x = mode.clamp(x);
    let bits = x.to_bits();
    let abs = bits & 0x7fff_ffff;
    let rounded = shift_right(abs, 13, bits >> 31 != 0, mode.rounding) << 13;
    let finite = if mode.satfinite { rounded.min(0x7f7f_e000) } else { rounded };
    if x.is_nan() { 0x7fff_ffff } else { finite | (bits & 0x8000_0000) }
}

/// Value of a code without sign, infinity or NaN. Subnormals are normalised by the product.
#[inline(always)]
fn value(code: u32, mantissa: u32, bias: u32, sign: u32) -> f32 {
    let scaled = f32::from_bits(code << (23 - mantissa)) * f32::from_bits((254 - bias) << 23);
    f32::from_bits(scaled.to_bits() | sign)
}

/// Exact. NaN is 0x7fffffff.
#[inline(always)]
pub fn e4m3_to_f32(code: u8) -> f32 {
    let code = u32::from(code);
    let number = value(code & 0x7f, 3, 7, (code & 0x80) << 24);
    if code & 0x7f == 0x7f { f32::from_bits(0x7fff_ffff) } else { number }
}

/// Exact. NaN is 0x7fffffff.
#[inline(always)]
pub fn e5m2_to_f32(code: u8) -> f32 {
    let code = u32::from(code);
    let sign = (code & 0x80) << 24;
    let number = value(code & 0x7f, 2, 15, sign);
    let special = if code & 0x7f == 0x7c { 0x7f80_0000 | sign } else { 0x7fff_ffff };
    if code & 0x7f < 0x7c { number } else { f32::from_bits(special) }
}

/// Exact. Bits above the 4 of the code are ignored.
#[inline(always)]
pub fn e2m1_to_f32(code: u8) -> f32 {
    let code = u32::from(code);
    value(code & 7, 1, 1, (code & 8) << 28)
}

/// Exact. Bits above the 6 of the code are ignored.
#[inline(always)]
pub fn e2m3_to_f32(code: u8) -> f32 {
    let code = u32::from(code);
    value(code & 0x1f, 3, 1, (code & 0x20) << 26)
}

/// Exact. Bits above the 6 of the code are ignored.
#[inline(always)]
pub fn e3m2_to_f32(code: u8) -> f32 {
    let code = u32::from(code);
    value(code & 0x1f, 2, 3, (code & 0x20) << 26)
}

/// Exact: code 0 is the subnormal 2^-127. NaN is 0x7fffffff.
#[inline(always)]
pub fn ue8m0_to_f32(code: u8) -> f32 {
    let number = if code == 0 { 0x40_0000 } else { u32::from(code) << 23 };
    f32::from_bits(if code == 0xff { 0x7fff_ffff } else { number })
}
