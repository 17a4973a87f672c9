//! The two 16-bit floating-point formats. Values are bit patterns; the arithmetic is written once, over the
//! conversions to and from f32. Each operation rounds once to its type, and every NaN result is 0x7fff.

use super::approximate;
use super::extremum::{self, Selection};
use super::round::{Mode, Rounding, integral_f32, odd_f32};

/// A 16-bit format: [`F16`](super::half::F16) or [`Bf16`](super::bf16::Bf16).
pub trait Sixteen {
    /// Code of +infinity: all exponent bits.
    const INFINITY: u16;
    /// Code of the smallest positive normal value.
    const MIN_NORMAL: u16;
    /// Code of the largest finite value.
    const MAX: u16 = Self::INFINITY - 1;
    /// The NaN that every operation returns.
    const NAN: u16 = 0x7fff;

    /// Exact.
    fn to_f32(x: u16) -> f32;

    /// Rounds once. NaN becomes [`Sixteen::NAN`].
    fn from_f32(x: f32, rounding: Rounding) -> u16;

    /// `a * b` in f32, exact or rounded to odd.
    fn product(a: u16, b: u16) -> f32;

    /// `a * b + c` in f32, exact or rounded to odd.
    fn fused(a: u16, b: u16, c: u16) -> f32;

    /// Exact.
    #[inline(always)]
    fn to_f64(x: u16) -> f64 {
        f64::from(Self::to_f32(x))
    }

    /// Rounds once: the intermediate f32 is rounded to odd.
    #[inline(always)]
    fn from_f64(x: f64, rounding: Rounding) -> u16 {
        Self::from_f32(odd_f32(x, 0.0), rounding)
    }

    /// `cvt.RND{.ftz}{.relu}{.satfinite}{.sat}` from f32. `.ftz` concerns the f32 operand alone. Without `.relu`
    /// a NaN is NaN even under `.satfinite`.
    #[inline(always)]
    fn convert(x: f32, mode: Mode) -> u16 {
        let code = Self::from_f32(mode.clamp(mode.input(x)), mode.rounding);
        let infinite = code & 0x7fff == Self::INFINITY;
        if mode.satfinite && infinite { code - 1 } else { code }
    }

    /// Subnormal to zero of the same sign.
    #[inline(always)]
    fn flush(x: u16) -> u16 {
        if x & 0x7fff < Self::MIN_NORMAL { x & 0x8000 } else { x }
    }

    /// An operand: flushed under `.ftz`.
    #[inline(always)]
    fn input(x: u16, mode: Mode) -> u16 {
        if mode.ftz { Self::flush(x) } else { x }
    }

    /// Rounds an intermediate result to nearest even and applies `.ftz`, `.sat`, `.relu`.
    #[inline(always)]
    fn output(x: f32, mode: Mode) -> u16 {
        Self::input(Self::from_f32(mode.clamp(x), Rounding::NearestEven), mode)
    }

    /// `add`. f32 has 24 >= 2 * 11 + 2 bits and subnormal sums are exact, so rounding the f32 sum again rounds
    /// as if once (Figueroa, "When is double rounding innocuous?", 1995).
    #[inline(always)]
    fn add(a: u16, b: u16, mode: Mode) -> u16 {
        Self::output(Self::to_f32(Self::input(a, mode)) + Self::to_f32(Self::input(b, mode)), mode)
    }

    /// `sub`.
    #[inline(always)]
    fn sub(a: u16, b: u16, mode: Mode) -> u16 {
        Self::output(Self::to_f32(Self::input(a, mode)) - Self::to_f32(Self::input(b, mode)), mode)
    }

    /// `mul`.
    #[inline(always)]
    fn mul(a: u16, b: u16, mode: Mode) -> u16 {
        Self::output(Self::product(Self::input(a, mode), Self::input(b, mode)), mode)
    }

    /// `fma`: `a * b + c`, rounded once.
    #[inline(always)]
    fn fma(a: u16, b: u16, c: u16, mode: Mode) -> u16 {
        let sum = Self::fused(Self::input(a, mode), Self::input(b, mode), Self::input(c, mode));
        Self::output(sum, mode)
    }

    /// `neg`: the sign bit alone, NaN included.
    #[inline(always)]
    fn neg(x: u16, mode: Mode) -> u16 {
        Self::input(x, mode) ^ 0x8000
    }

    /// `abs`: the sign bit alone, NaN included.
    #[inline(always)]
    fn abs(x: u16, mode: Mode) -> u16 {
        Self::input(x, mode) & 0x7fff
    }

    /// `min`.
    #[inline(always)]
    fn min(a: u16, b: u16, selection: Selection) -> u16 {
        let (a, b) = if selection.ftz { (Self::flush(a), Self::flush(b)) } else { (a, b) };
        extremum::select_u16(a, b, Self::INFINITY, false, selection)
    }

    /// `max`.
    #[inline(always)]
    fn max(a: u16, b: u16, selection: Selection) -> u16 {
        let (a, b) = if selection.ftz { (Self::flush(a), Self::flush(b)) } else { (a, b) };
        extremum::select_u16(a, b, Self::INFINITY, true, selection)
    }

    /// `cvt.rni`, `.rzi`, `.rmi`, `.rpi` to the same type. Exact in f32 and in the type.
    #[inline(always)]
    fn integral(x: u16, rounding: Rounding) -> u16 {
        Self::from_f32(integral_f32(Self::to_f32(x), rounding), Rounding::NearestEven)
    }

    /// `ex2.approx`. bf16 has the form with `.ftz` alone.
    #[inline(always)]
    fn ex2(x: u16, mode: Mode) -> u16 {
        Self::output(approximate::ex2(Self::to_f32(Self::input(x, mode)), Mode::RN), mode)
    }

    /// `tanh.approx`.
    #[inline(always)]
    fn tanh(x: u16) -> u16 {
        Self::from_f32(approximate::tanh(Self::to_f32(x)), Rounding::NearestEven)
    }
}
