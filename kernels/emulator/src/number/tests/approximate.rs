//! Error bounds of the approximations over all exponents, against f64, and their special cases.

use super::super::approximate::*;
use super::super::bf16::Bf16;
use super::super::half::F16;
use super::super::round::Mode;
use super::super::sixteen::Sixteen;

type Function = fn(f32, Mode) -> f32;

/// The distance of `got` from `want` in units of the last place of an f32 of that size.
fn ulps(got: f32, want: f64) -> f64 {
    if f64::from(got) == want || (got.is_nan() && want.is_nan()) || got == want as f32 {
        return 0.0;
    }
    let exponent = (want.abs().log2().floor() as i32).clamp(-126, 127);
    (f64::from(got) - want).abs() / 2_f64.powi(exponent - 23)
}

/// Over a sample of all bit patterns that `domain` admits.
fn check(bound: f64, domain: impl Fn(f32) -> bool, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
    let (mut worst, mut at, mut count) = (0.0, 0.0, 0);
    for bits in (0..=u32::MAX).step_by(2039) {
        let x = f32::from_bits(bits);
        if domain(x) {
            let error = ulps(f(x), exact(x.into()));
            count += 1;
            if error > worst || error.is_nan() {
                (worst, at) = (error, x);
            }
        }
    }
    assert!(count > 1000, "{count} values");
    assert!(worst <= bound, "{worst} ulp at {at:e}: {:e}, exact {:e}", f(at), exact(at.into()));
}

#[test]
fn errors_in_ulp() {
    let any = |_| true;
    check(1.0, any, |x| ex2(x, Mode::RN), f64::exp2);
    check(2.0, any, |x| lg2(x, Mode::RN), f64::log2);
    check(2.0, any, tanh, f64::tanh);
    check(0.5, any, |x| rcp(x, Mode::RN), |x| 1.0 / x);
    check(0.5, any, |x| sqrt(x, Mode::RN), f64::sqrt);
    check(1.5, any, |x| rsqrt(x, Mode::RN), |x| 1.0 / x.sqrt());
    check(0.6, |x| x.abs() < 1024.0, |x| sin(x, Mode::RN), f64::sin);
    check(0.6, |x| x.abs() < 1024.0, |x| cos(x, Mode::RN), f64::cos);
}

#[test]
fn densely_sampled_intervals() {
    for i in 0..2_000_000 {
        let x = (i - 1_000_000) as f32 / 31_000.0;
        assert!(ulps(ex2(x, Mode::RN), f64::from(x).exp2()) <= 1.0, "{x}");
        let y = x.abs() / 16.0;
        assert!(ulps(lg2(y, Mode::RN), f64::from(y).log2()) <= 2.0, "{y}");
        assert!(ulps(tanh(x / 4.0), f64::from(x / 4.0).tanh()) <= 2.0, "{x}");
    }
}

#[test]
fn waves_of_large_operands() {
    for bits in (0..0x7f80_0000).step_by(1021) {
        let x = f32::from_bits(bits);
        for (got, want) in [
            (sin(x, Mode::RN), f64::from(x).sin()),
            (cos(x, Mode::RN), f64::from(x).cos()),
            (sin(-x, Mode::RN), -f64::from(x).sin()),
        ] {
            assert!(got.abs() <= 1.0, "{x:e}: {got}");
            if x <= 1_073_741_824.0 {
                assert!((f64::from(got) - want).abs() < 1.0 / 16_777_216.0, "{x:e}: {got} {want}");
            }
        }
    }
}

#[test]
fn special_values() {
    let inf = f32::INFINITY;
    let tiny = f32::from_bits(1);
    let (plain, ftz) = (Mode::RN, Mode::RN.ftz());
    // (function, operand, result)
    let cases: &[(Function, f32, Mode, f32)] = &[
        (ex2, -inf, plain, 0.0),
        (ex2, inf, plain, inf),
        (ex2, 0.0, plain, 1.0),
        (ex2, -0.0, plain, 1.0),
        (ex2, 128.0, plain, inf),
        (ex2, -149.0, plain, tiny),
        (ex2, -150.0, plain, 0.0),
        (ex2, -127.0, ftz, 0.0),
        (ex2, tiny, ftz, 1.0),
        (lg2, 0.0, plain, -inf),
        (lg2, -0.0, plain, -inf),
        (lg2, inf, plain, inf),
        (lg2, 1.0, plain, 0.0),
        (lg2, tiny, plain, -149.0),
        (lg2, tiny, ftz, -inf),
        (rcp, 0.0, plain, inf),
        (rcp, -0.0, plain, -inf),
        (rcp, -inf, plain, -0.0),
        (rcp, tiny, ftz, inf),
        (rcp, f32::MAX, ftz, 0.0),
        (sqrt, -0.0, plain, -0.0),
        (sqrt, inf, plain, inf),
        (rsqrt, 0.0, plain, inf),
        (rsqrt, -0.0, plain, -inf),
        (rsqrt, inf, plain, 0.0),
        (sin, -0.0, plain, -0.0),
        (sin, 0.0, plain, 0.0),
        (sin, -tiny, ftz, -0.0),
        (cos, 0.0, plain, 1.0),
    ];
    for (f, x, mode, want) in cases {
        assert_eq!(f(*x, *mode).to_bits(), want.to_bits(), "{x:e} {mode:?}: {:e}", f(*x, *mode));
    }
    let nans: &[(Function, f32)] =
        &[(lg2, -1.0), (lg2, -inf), (sqrt, -1.0), (rsqrt, -1.0), (sin, inf), (cos, -inf)];
    for (f, x) in
        nans.iter().copied().chain([ex2, lg2, rcp, sqrt, rsqrt, sin, cos].map(|f| (f as _, f32::NAN)))
    {
        assert!(f(x, plain).is_nan(), "{x}");
    }
    assert!(tanh(f32::NAN).is_nan());
    assert_eq!((tanh(inf), tanh(-inf), tanh(-0.0).to_bits()), (1.0, -1.0, 0x8000_0000));
}

#[test]
fn quotients_by_huge_divisors_vanish() {
    let inf = f32::INFINITY;
    let huge = f32::from_bits(0x7e80_0001);
    assert_eq!(div(1e38, f32::from_bits(0x7e80_0000), Mode::RN), 1e38 / f32::from_bits(0x7e80_0000));
    assert_eq!(div(1e38, huge, Mode::RN).to_bits(), 0);
    assert_eq!(div(1e38, -huge, Mode::RN).to_bits(), 0x8000_0000);
    assert!(div(inf, huge, Mode::RN).is_nan());
    assert_eq!(div(1.0, inf, Mode::RN), 0.0);
    assert_eq!(div(6.0, -3.0, Mode::RN.ftz()), -2.0);
    assert!(div(0.0, 0.0, Mode::RN).is_nan());
}

#[test]
fn f64_forms_keep_the_upper_half() {
    for x in [3.0, -1e300, 1e-300, 0.1] {
        let got = rcp_f64(x);
        assert_eq!(got.to_bits() as u32, 0);
        assert!((got * x - 1.0).abs() < 1e-6, "{x}");
        assert!((rsqrt_f64(x.abs()) * x.abs().sqrt() - 1.0).abs() < 1e-15, "{x}");
        assert!((rsqrt_ftz_f64(x.abs()) * x.abs().sqrt() - 1.0).abs() < 1e-6, "{x}");
    }
    assert_eq!(rcp_f64(f64::from_bits(1)), f64::INFINITY);
    assert_eq!(rsqrt_ftz_f64(-f64::from_bits(1)), f64::NEG_INFINITY);
    assert!(rcp_f64(f64::NAN).is_nan() && rsqrt_f64(-1.0).is_nan());
}

#[test]
fn sixteen_bit_forms() {
    for code in 0..0x7c00_u16 {
        let x = F16::to_f64(code);
        let error = (F16::to_f64(F16::ex2(code | 0x8000, Mode::RN)) - (-x).exp2()).abs();
        assert!(error <= 0.000_251, "{x}");
        assert!((F16::to_f64(F16::tanh(code)) - x.tanh()).abs() <= 0.000_251, "{x}");
    }
    assert_eq!(F16::ex2(0xfc00, Mode::RN), 0);
    assert_eq!(F16::ex2(0x4c00, Mode::RN), 0x7c00);
    assert_eq!(Bf16::ex2(0x4000, Mode::RN.ftz()), 0x4080);
    assert_eq!(Bf16::ex2(0x8001, Mode::RN.ftz()), 0x3f80);
    assert_eq!(Bf16::tanh(0xff80), 0xbf80);
    assert_eq!(Bf16::tanh(0x7fc0), 0x7fff);
}
