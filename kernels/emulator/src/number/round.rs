//! Rounding modes and the bit-level rounding that every conversion shares.

/// Direction of a rounding to a narrower floating-point type or to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rounding {
    /// `.rn`, `.rni`: nearest, ties to even.
    #[default]
    NearestEven,
    /// `.rna`: nearest, ties away from zero.
    NearestAway,
    /// `.rz`, `.rzi`: towards zero.
    Zero,
    /// `.rm`, `.rmi`: towards minus infinity.
    Down,
    /// `.rp`, `.rpi`: towards plus infinity.
    Up,
}

/// `x` rounded to an integral value: `cvt.rni.f32.f32` and its relatives. Keeps the sign of a zero result.
#[inline(always)]
pub fn integral_f32(x: f32, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::NearestEven => x.round_ties_even(),
        Rounding::NearestAway => x.round(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// [`integral_f32`] for f64.
#[inline(always)]
pub fn integral_f64(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => x.round_ties_even(),
        Rounding::NearestAway => x.round(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// The modifiers of a floating-point instruction that change its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mode {
    /// Rounding of the result.
    pub rounding: Rounding,
    /// `.ftz`: subnormal inputs and results become zero of the same sign.
    pub ftz: bool,
    /// `.sat`: the result is clamped to [0, 1], NaN becomes +0.
    pub sat: bool,
    /// `.relu`: a negative result becomes +0, NaN stays NaN.
    pub relu: bool,
    /// `.satfinite`: a result beyond the largest finite value becomes that value.
    pub satfinite: bool,
}

impl Mode {
    /// No modifier but a rounding.
    #[inline(always)]
    pub const fn new(rounding: Rounding) -> Mode {
        Mode { rounding, ftz: false, sat: false, relu: false, satfinite: false }
    }

    /// Round to nearest even, no other modifier.
    pub const RN: Mode = Mode::new(Rounding::NearestEven);
    /// Round towards zero, no other modifier.
    pub const RZ: Mode = Mode::new(Rounding::Zero);
    /// Round towards minus infinity, no other modifier.
    pub const RM: Mode = Mode::new(Rounding::Down);
    /// Round towards plus infinity, no other modifier.
    pub const RP: Mode = Mode::new(Rounding::Up);

    /// Adds `.ftz`.
    #[inline(always)]
    pub const fn ftz(self) -> Mode {
        Mode { ftz: true, ..self }
    }

    /// Adds `.sat`.
    #[inline(always)]
    pub const fn sat(self) -> Mode {
        Mode { sat: true, ..self }
    }

    /// Adds `.relu`.
    #[inline(always)]
    pub const fn relu(self) -> Mode {
        Mode { relu: true, ..self }
    }

    /// Adds `.satfinite`.
    #[inline(always)]
    pub const fn satfinite(self) -> Mode {
        Mode { satfinite: true, ..self }
    }

    /// An f32 operand: flushed under `.ftz`.
    #[inline(always)]
    pub fn input(self, x: f32) -> f32 {
        if self.ftz { flush(x) } else { x }
    }

    /// An f32 result, already rounded: flushed under `.ftz`, clamped under `.sat` and `.relu`.
    #[inline(always)]
    pub fn output(self, x: f32) -> f32 {
        self.clamp(if self.ftz { flush(x) } else { x })
    }

    /// `.sat` and `.relu` of a value. Both limits are representable in every format, so clamping before a
    /// rounding equals clamping after it.
    #[inline(always)]
    pub(super) fn clamp(self, x: f32) -> f32 {
        if self.sat {
            let low = if x > 0.0 { x } else { 0.0 };
            if low < 1.0 { low } else { 1.0 }
        } else if self.relu {
            if x <= 0.0 { 0.0 } else { x }
        } else {
            x
        }
    }
}

/// Subnormal to zero of the same sign.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if x.abs() < f32::MIN_POSITIVE { bits & 0x8000_0000 } else { bits })
}

/// Whether a magnitude with quotient `q` and remainder `rest` (of `2 * half`) rounds up to `q + 1`.
macro_rules! rounds_up {
    ($q:expr, $rest:expr, $half:expr, $negative:expr, $rounding:expr) => {
        match $rounding {
            Rounding::NearestEven => $rest + ($q & 1) > $half,
            Rounding::NearestAway => $rest >= $half,
            Rounding::Zero => false,
            Rounding::Down => $negative && $rest != 0,
            Rounding::Up => !$negative && $rest != 0,
        }
    };
}

/// `w / 2^shift`, rounded as the magnitude of a number with the given sign. `shift` in 1..=31.
#[inline(always)]
pub(super) fn shift_right(w: u32, shift: u32, negative: bool, rounding: Rounding) -> u32 {
    let q = w >> shift;
    let rest = w & ((1 << shift) - 1);
    let half = (1 << shift) >> 1;
    q + rounds_up!(q, rest, half, negative, rounding) as u32
}

/// [`shift_right`] for 128 bits. `shift` in 1..=127.
#[inline(always)]
pub(super) fn shift_right_wide(w: u128, shift: u32, negative: bool, rounding: Rounding) -> u128 {
    let q = w >> shift;
    let rest = w & ((1 << shift) - 1);
    let half = (1 << shift) >> 1;
    q + rounds_up!(q, rest, half, negative, rounding) as u128
}

/// Code of the finite magnitude `|x|` in a format with `mantissa` stored bits and exponent bias `bias`, without
/// the sign and without an upper limit: codes from the first one above the largest finite value mean overflow.
/// Subnormals of the format are rounded once, at their own quantum.
#[inline(always)]
pub(super) fn magnitude(x: f32, mantissa: u32, bias: u32, rounding: Rounding) -> u32 {
    let bits = x.to_bits();
    let negative = bits >> 31 != 0;
    let abs = bits & 0x7fff_ffff;
    let exponent = abs >> 23;
    let lowest = 128 - bias;
    let narrower = 23 - mantissa;
    let normal = abs.wrapping_sub((127 - bias) << 23);
    let fraction = (abs & 0x7f_ffff) | if exponent != 0 { 0x80_0000 } else { 0 };
    // A fraction has 24 bits: beyond a shift of 25 only the sticky bit counts.
    let depth = lowest.saturating_sub(exponent.max(1)).min(31 - narrower);
    shift_right(if exponent >= lowest { normal } else { fraction }, narrower + depth, negative, rounding)
}

/// The code that a finite magnitude beyond the largest finite value takes: that value or infinity.
#[inline(always)]
pub(super) fn overflow_is_infinite(negative: bool, rounding: Rounding) -> bool {
    match rounding {
        Rounding::NearestEven | Rounding::NearestAway => true,
        Rounding::Zero => false,
        Rounding::Down => negative,
        Rounding::Up => !negative,
    }
}

/// `s + e` rounded to f32 by "round to odd": exact, or the neighbour whose last bit is 1.
///
/// `e` is the exact error of `s`, at most half its ulp. Rounding the result once more to a format with at most
/// 22 significant bits, in any mode, equals rounding `s + e` directly (Boldo, Melquiond, "Emulation of FMA and
/// correctly rounded sums", 2008, theorem 3).
#[inline(always)]
pub(super) fn odd_f32(s: f64, e: f64) -> f32 {
    let t = s as f32;
    // Where s differs from t it does so by at least one ulp of s: e cannot change the sign of the sum.
    let rest = (s - f64::from(t)) + e;
    to_odd(t, rest.abs() > 0.0, rest > 0.0)
}

/// `a + b` rounded to odd in f32, for sums whose terms are far from the limits of f32.
#[inline(always)]
pub(super) fn odd_f32_sum(a: f32, b: f32) -> f32 {
    let s = a + b;
    let high = s - a;
    let rest = (a - (s - high)) + (b - high);
    to_odd(s, rest.abs() > 0.0, rest > 0.0)
}

/// The odd one of the two f32 around an inexact value, of which `t` is the nearer; `above`: the value exceeds `t`.
#[inline(always)]
fn to_odd(t: f32, inexact: bool, above: bool) -> f32 {
    let bits = t.to_bits();
    let outward = above == (bits >> 31 == 0);
    let stepped = if outward { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if inexact && bits & 1 == 0 { stepped } else { bits })
}

/// `a + b` in f64 and its exact error (Knuth, TAOCP 2, 4.2.2, theorem B). The error is NaN where the sum is not
/// finite.
#[inline(always)]
pub(super) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let high = s - a;
    (s, (a - (s - high)) + (b - high))
}

/// `s + e` rounded to f32; `e` is the exact error of `s`, at most half its ulp, and zero for a rounding to
/// nearest. Overflow and subnormal results are covered: the comparison is made in f64, which has neither here.
/// An exact zero keeps the sign of `s`.
#[inline(always)]
pub(super) fn pair_to_f32(s: f64, e: f64, rounding: Rounding) -> f32 {
    let t = s as f32;
    let bits = t.to_bits();
    let rest = (s - f64::from(t)) + e;
    let negative = bits >> 31 != 0;
    let moved = match rounding {
        Rounding::NearestEven | Rounding::NearestAway => return t,
        Rounding::Zero => rest != 0.0 && (rest > 0.0) == negative,
        Rounding::Down => rest < 0.0,
        Rounding::Up => rest > 0.0,
    };
    // Towards zero always steps inwards; otherwise outwards when the step has the sign of the value.
    let outward = rounding != Rounding::Zero && negative == (rounding == Rounding::Down);
    let stepped = if outward { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if moved && !rest.is_nan() { stepped } else { bits })
}
