//! The `.approx` instructions. The ISA gives error bounds; these functions stay within a few ulp of f32, which is
//! inside all of them, and have the special cases of the ISA exactly.
//!
//! Polynomials interpolate at Chebyshev nodes; errors are relative and exclude the rounding of the evaluation.

use super::round::Mode;

/// Coefficients from the constant up, by Horner's rule with fused steps.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum.mul_add(x, coefficients[i]);
    }
    sum
}

#[inline(always)]
fn polynomial_f64<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let mut sum = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum.mul_add(x, coefficients[i]);
    }
    sum
}

/// `x` limited to [-limit, limit]; NaN passes.
#[inline(always)]
fn limit(x: f32, limit: f32) -> f32 {
    let x = if x < -limit { -limit } else { x };
    if x > limit { limit } else { x }
}

/// 2^x for an unflushed operand.
#[inline(always)]
fn exp2(x: f32) -> f32 {
    // Beyond these limits the result is 0 or infinite.
    let x = limit(x, 151.0);
    // Adding 1.5 * 2^23 rounds to an integer, which stays in the low bits of the sum.
    const ROUNDER: f32 = 12_582_912.0;
    let shifted = x + ROUNDER;
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let f = x - (shifted - ROUNDER);
    // (2^f - 1) / f on [-1/2, 1/2]; error of 2^f: 2^-27.5.
    let slope = polynomial(
        f,
        [std::f32::consts::LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_083, 0.001_339_086_4, 0.000_154_531_63],
    );
    let fraction = slope.mul_add(f, 1.0);
    // Two factors: the first product is exact, so a subnormal result is rounded once.
    let low = n >> 1;
    let high = n - low;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    fraction * power(low) * power(high)
}

/// `ex2.approx`: +0 for -inf.
#[inline(always)]
pub fn ex2(x: f32, mode: Mode) -> f32 {
    mode.output(exp2(mode.input(x)))
}

/// `lg2.approx`: -inf for zeros, NaN below.
#[inline(always)]
pub fn lg2(x: f32, mode: Mode) -> f32 {
    let x = mode.input(x);
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    // The significand is taken from [sqrt(1/2), sqrt(2)), around 1.
    const LOWEST: u32 = 0x3f35_04f3;
    let bits = scaled.to_bits().wrapping_sub(LOWEST);
    let n = ((bits as i32) >> 23) - if subnormal { 23 } else { 0 };
    let f = f32::from_bits((bits & 0x7f_ffff).wrapping_add(LOWEST)) - 1.0;
    // log2(1 + f) / f; error 2^-30.3.
    let slope = polynomial(
        f,
        [
            std::f32::consts::LOG2_E,
            -0.721_347_5,
            0.480_897_9,
            -0.360_674_66,
            0.288_575_6,
            -0.240_447_57,
            0.205_040_02,
            -0.179_194_57,
            0.172_342_6,
            -0.167_650_52,
            0.094_818_64,
        ],
    );
    let value = slope.mul_add(f, n as f32);
    let special = if x == 0.0 { f32::NEG_INFINITY } else { f32::from_bits(0x7fff_ffff) };
    let positive = if x == f32::INFINITY { x } else { value };
    mode.output(if x > 0.0 { positive } else { special })
}

/// sin or cos: `quarter` is 0 or 1, the number of quarter turns that is added.
///
/// The reduction by pi/2 in two parts of f64 keeps an absolute error below 2^-24 up to |x| = 2^30. The ISA gives
/// no bound beyond 100 pi; for larger operands the result is some value in [-1, 1].
#[inline(always)]
fn wave(x: f32, quarter: u64) -> f32 {
    // Adding 1.5 * 2^52 rounds to an integer, which stays in the low bits of the sum.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    let wide = f64::from(x);
    let shifted = wide.mul_add(std::f64::consts::FRAC_2_PI, ROUNDER);
    let turns = shifted - ROUNDER;
    let n = shifted.to_bits().wrapping_add(quarter);
    let r = (-turns).mul_add(6.123_233_995_736_766e-17, (-turns).mul_add(std::f64::consts::FRAC_PI_2, wide));
    let r = if r < -0.8 { -0.8 } else { r };
    let r = if r > 0.8 { 0.8 } else { r };
    let z = r * r;
    // Errors on [-pi/4, pi/4]: 2^-35 and 2^-40.
    let sin = polynomial_f64(
        z,
        [
            -0.166_666_666_638_552_9,
            0.008_333_331_874_710_209,
            -0.000_198_400_867_353_848_4,
            2.724_992_590_305_93e-6,
        ],
    );
    let cos = polynomial_f64(
        z,
        [
            0.041_666_666_664_321_2,
            -0.001_388_888_767_201_679,
            0.000_024_800_600_377_156_724,
            -2.730_095_920_390_105_6e-7,
        ],
    );
    let sin = r * sin.mul_add(z, 1.0);
    let cos = (cos * z).mul_add(z, z.mul_add(-0.5, 1.0));
    let value = if n & 1 == 0 { sin } else { cos };
    (if n & 2 == 0 { value } else { -value }) as f32
}

/// `sin.approx`: NaN for infinities.
#[inline(always)]
pub fn sin(x: f32, mode: Mode) -> f32 {
    mode.output(wave(mode.input(x), 0))
}

/// `cos.approx`: NaN for infinities.
#[inline(always)]
pub fn cos(x: f32, mode: Mode) -> f32 {
    mode.output(wave(mode.input(x), 1))
}

/// `tanh.approx`.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let z = x * x;
    // (tanh(x) / x - 1) / x^2 up to 0.625; error of tanh(x): 2^-30.6.
    let slope = polynomial(
        z,
        [-0.333_333_33, 0.133_333_04, -0.053_959_26, 0.021_768_92, -0.008_343_946, 0.002_292_744_8],
    );
    let small = (slope * z).mul_add(x, x);
    // From 9.02 on the result rounds to 1.
    let power = exp2(limit(x.abs(), 16.0) * (2.0 * std::f32::consts::LOG2_E));
    let large = 1.0 - 2.0 / (power + 1.0);
    (if x.abs() < 0.625 { small } else { large }).copysign(x)
}

/// `rcp.approx`: infinities for zeros.
#[inline(always)]
pub fn rcp(x: f32, mode: Mode) -> f32 {
    mode.output(1.0 / mode.input(x))
}

/// `sqrt.approx`: -0 for -0, NaN below.
#[inline(always)]
pub fn sqrt(x: f32, mode: Mode) -> f32 {
    mode.output(mode.input(x).sqrt())
}

/// `rsqrt.approx`: infinities for zeros, NaN below.
#[inline(always)]
pub fn rsqrt(x: f32, mode: Mode) -> f32 {
    mode.output(1.0 / mode.input(x).sqrt())
}

/// `div.approx`: for 2^126 < |b| < 2^128 the ISA defines a zero, or NaN if `a` is infinite.
#[inline(always)]
pub fn div(a: f32, b: f32, mode: Mode) -> f32 {
    let (a, b) = (mode.input(a), mode.input(b));
    let large = b.abs() > f32::from_bits((127 + 126) << 23) && b.abs() < f32::INFINITY;
    let reciprocal_lost = a * 0.0_f32.copysign(b);
    mode.output(if large { reciprocal_lost } else { a / b })
}

/// `rcp.approx.ftz.f64`: subnormals are flushed; the low 32 bits of the result are 0 (ISA, `rcp.approx.ftz.f64`).
#[inline(always)]
pub fn rcp_f64(x: f64) -> f64 {
    upper_half(flush_f64(1.0 / flush_f64(x)))
}

/// `rsqrt.approx.f64`.
#[inline(always)]
pub fn rsqrt_f64(x: f64) -> f64 {
    1.0 / x.sqrt()
}

/// `rsqrt.approx.ftz.f64`: the low 32 bits of the result are 0.
#[inline(always)]
pub fn rsqrt_ftz_f64(x: f64) -> f64 {
    upper_half(rsqrt_f64(flush_f64(x)))
}

/// Clears the low 32 bits, but for a NaN, which stays one.
#[inline(always)]
fn upper_half(x: f64) -> f64 {
    if x.is_nan() { f64::NAN } else { f64::from_bits(x.to_bits() & !0xffff_ffff) }
}

#[inline(always)]
fn flush_f64(x: f64) -> f64 {
    if x.abs() < f64::MIN_POSITIVE { 0.0_f64.copysign(x) } else { x }
}
