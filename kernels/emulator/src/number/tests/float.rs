use super::super::bf16::Bf16;
use super::super::comparison::{Comparison, Property, compare, test, test_f64};
use super::super::extremum::{self, Selection};
use super::super::half::F16;
use super::super::round::{Mode, Rounding};
use super::super::sixteen::Sixteen;
use super::super::{double, float};
use super::exact::{self, Exact, F32, F64, Format, Random};

const ROUNDINGS: [Rounding; 4] = [Rounding::NearestEven, Rounding::Zero, Rounding::Down, Rounding::Up];
const DIRECTED: [Rounding; 3] = [Rounding::Zero, Rounding::Down, Rounding::Up];

/// Asserts that `got` is `exact` rounded; a zero sum of terms with signs `a` and `b` has its own rule.
fn check(format: Format, got: u64, exact: &Exact, signs: (bool, bool), rounding: Rounding, what: &str) {
    assert!(format.is_rounded(got, exact, rounding), "{what} {rounding:?}: {got:#x}");
    if exact.is_zero() {
        let negative = if signs.0 == signs.1 { signs.0 } else { rounding == Rounding::Down };
        let zero = u64::from(negative) << (format.exponent_bits + format.mantissa_bits);
        assert_eq!(got, zero, "{what} {rounding:?}: sign of zero");
    }
}

#[test]
fn f32_sums_and_products_are_rounded_once() {
    let mut random = Random(1);
    for _ in 0..60_000 {
        let [a, b, c] = std::array::from_fn(|_| f32::from_bits(random.code(F32) as u32));
        let c = if random.below(4) == 0 { -(a * b) } else { c };
        let c = if c.is_finite() { c } else { 1.0 };
        let (wa, wb, wc) = (f64::from(a), f64::from(b), f64::from(c));
        let product = Exact::product(wa, wb);
        let negative = a.is_sign_negative() != b.is_sign_negative();
        for rounding in ROUNDINGS {
            let mode = Mode::new(rounding);
            let sum = Exact::of(wa).plus(Exact::of(wc));
            let signs = (a.is_sign_negative(), c.is_sign_negative());
            let what = format!("{a:e} {b:e} {c:e}");
            check(
                F32,
                float::add(a, c, mode).to_bits().into(),
                &sum,
                signs,
                rounding,
                &format!("add {what}"),
            );
            let difference = float::sub(a, -c, mode);
            check(F32, difference.to_bits().into(), &sum, signs, rounding, &format!("sub {what}"));
            let got = float::mul(a, b, mode).to_bits().into();
            check(F32, got, &product, (negative, negative), rounding, &format!("mul {what}"));
            let sum = product.plus(Exact::of(wc));
            let got = float::fma(a, b, c, mode).to_bits().into();
            check(F32, got, &sum, (negative, c.is_sign_negative()), rounding, &format!("fma {what}"));
        }
    }
}

#[test]
fn f64_sums_and_products_are_rounded_once() {
    let mut random = Random(2);
    for _ in 0..40_000 {
        let [a, b, c] = std::array::from_fn(|_| f64::from_bits(random.code(F64)));
        let c = if random.below(4) == 0 { -(a * b) } else { c };
        let c = if c.is_finite() { c } else { 1.0 };
        let product = Exact::product(a, b);
        let negative = a.is_sign_negative() != b.is_sign_negative();
        for rounding in ROUNDINGS {
            let sum = Exact::of(a).plus(Exact::of(c));
            let signs = (a.is_sign_negative(), c.is_sign_negative());
            let what = format!("{a:e} {b:e} {c:e}");
            check(F64, double::add(a, c, rounding).to_bits(), &sum, signs, rounding, &format!("add {what}"));
            check(F64, double::sub(a, -c, rounding).to_bits(), &sum, signs, rounding, &format!("sub {what}"));
            let got = double::mul(a, b, rounding).to_bits();
            check(F64, got, &product, (negative, negative), rounding, &format!("mul {what}"));
            let sum = product.plus(Exact::of(c));
            let got = double::fma(a, b, c, rounding).to_bits();
            check(F64, got, &sum, (negative, c.is_sign_negative()), rounding, &format!("fma {what}"));
        }
    }
}

#[test]
fn directed_quotients_and_roots() {
    let mut random = Random(3);
    for _ in 0..40_000 {
        let [a, b] = std::array::from_fn(|_| f32::from_bits(random.code(F32) as u32));
        let [x, y] = std::array::from_fn(|_| f64::from_bits(random.code(F64)));
        // A square: the root is exact. Products that are f32 make exact quotients.
        let a = if random.below(3) == 0 && (b * b).is_normal() { b * b } else { a };
        for rounding in DIRECTED {
            let mode = Mode::new(rounding);
            if b != 0.0 {
                let got = float::div(a, b, mode);
                quotient(F32, got.to_bits().into(), a.into(), b.into(), rounding);
                assert_eq!(float::rcp(b, mode).to_bits(), float::div(1.0, b, mode).to_bits());
            }
            let got = float::sqrt(a.abs(), mode);
            root(F32, got.to_bits().into(), a.abs().into(), rounding);
            if y != 0.0 {
                quotient(F64, double::div(x, y, rounding).to_bits(), x, y, rounding);
                assert_eq!(double::rcp(y, rounding).to_bits(), double::div(1.0, y, rounding).to_bits());
            }
            root(F64, double::sqrt(x.abs(), rounding).to_bits(), x.abs(), rounding);
        }
    }
}

/// `q` against `a / b` as `q * b` against `a`.
fn quotient(format: Format, code: u64, a: f64, b: f64, rounding: Rounding) {
    let negative = a.is_sign_negative() != b.is_sign_negative();
    let target = Exact::of(a.abs());
    let correct = format.is_directed(code, negative, rounding, |q| {
        let (q_negative, product) = q.times_magnitude(b);
        let ordering = product.compare(&target);
        match (q_negative && !q.is_zero(), negative && a != 0.0) {
            (false, false) => ordering,
            (true, true) => ordering.reverse(),
            (false, true) => std::cmp::Ordering::Greater,
            (true, false) => std::cmp::Ordering::Less,
        }
    });
    let signed = (code >> (format.exponent_bits + format.mantissa_bits) != 0) == negative;
    assert!(correct && signed, "{a:e} / {b:e} {rounding:?}: {code:#x}");
}

fn root(format: Format, code: u64, x: f64, rounding: Rounding) {
    let target = Exact::of(x);
    let correct = format.is_directed(code, false, rounding, |q| {
        let (negative, square) = q.square();
        if negative { std::cmp::Ordering::Less } else { square.compare(&target) }
    });
    assert!(correct, "sqrt {x:e} {rounding:?}: {code:#x}");
}

#[test]
fn special_operands() {
    for rounding in ROUNDINGS {
        let mode = Mode::new(rounding);
        let inf = f32::INFINITY;
        let nan = |x: f32| x.is_nan();
        assert!(nan(float::add(inf, -inf, mode)) && nan(float::mul(0.0, inf, mode)));
        assert!(nan(float::fma(inf, 0.0, 1.0, mode)) && nan(float::div(0.0, 0.0, mode)));
        assert!(nan(float::sqrt(-1.0, mode)) && nan(float::add(f32::NAN, 1.0, mode)));
        assert_eq!(float::add(inf, 1.0, mode), inf);
        assert_eq!(float::mul(-inf, 2.0, mode), -inf);
        assert_eq!(float::fma(inf, 1.0, 1.0, mode), inf);
        assert_eq!(float::rcp(-0.0, mode), -inf);
        assert_eq!(float::sqrt(-0.0, mode).to_bits(), 0x8000_0000);
        let inf = f64::INFINITY;
        let nan = |x: f64| x.is_nan();
        assert!(nan(double::add(inf, -inf, rounding)) && nan(double::mul(0.0, inf, rounding)));
        assert!(nan(double::div(inf, inf, rounding)) && nan(double::sqrt(-1.0, rounding)));
        assert_eq!(double::fma(inf, 1.0, 1.0, rounding), inf);
        assert_eq!(double::rcp(-0.0, rounding), -inf);
        assert_eq!(double::sqrt(-0.0, rounding).to_bits(), 1 << 63);
    }
}

#[test]
fn flushing_and_clamping() {
    let tiny = f32::from_bits(0x0040_0000);
    let ftz = Mode::RN.ftz();
    assert_eq!(float::add(tiny, -0.0, ftz).to_bits(), 0);
    assert_eq!(float::mul(-f32::MIN_POSITIVE, 0.5, ftz).to_bits(), 0x8000_0000);
    assert_eq!(float::mul(-f32::MIN_POSITIVE, 0.5, Mode::RN).to_bits(), 0x8040_0000);
    assert_eq!(float::fma(tiny, 1e10, 1.0, ftz), 1.0);
    assert_eq!(float::abs(-tiny, ftz).to_bits(), 0);
    assert_eq!(float::neg(tiny, ftz).to_bits(), 0x8000_0000);
    assert_eq!(float::neg(f32::from_bits(0x7fff_ffff), ftz).to_bits(), 0xffff_ffff);
    let sat = Mode::RN.sat();
    for (x, want) in
        [(f32::NAN, 0.0), (-1.0, 0.0), (-0.0, 0.0), (0.25, 0.25), (2.0, 1.0), (f32::INFINITY, 1.0)]
    {
        assert_eq!(float::mul(x, 1.0, sat).to_bits(), f32::to_bits(want), "{x}");
    }
    assert_eq!(float::copysign(-0.0, 3.0), -3.0);
    assert_eq!(double::copysign(1.0, -3.0), 3.0);
    assert_eq!(double::saturate(f64::NAN).to_bits(), 0);
    assert_eq!((double::saturate(0.5), double::saturate(7.0)), (0.5, 1.0));

    // f16: the product of two normal values is subnormal.
    assert_eq!(F16::mul(0x8400, 0x3800, Mode::RN), 0x8200);
    assert_eq!(F16::mul(0x8400, 0x3800, ftz), 0x8000);
    assert_eq!(F16::add(0x0001, 0x0001, ftz), 0);
    let relu = Mode::RN.relu();
    assert_eq!(F16::fma(0xbc00, 0x3c00, 0x8000, relu), 0);
    assert_eq!(F16::fma(0x7e00, 0x3c00, 0x8000, relu), 0x7fff);
    assert_eq!(Bf16::fma(0xbf80, 0x3f80, 0x8000, relu), 0);
    assert_eq!(F16::fma(0x3c00, 0x4000, 0, sat), 0x3c00);
    assert_eq!(F16::fma(0x7e00, 0x4000, 0, sat), 0);
    assert_eq!((F16::neg(0x7e00, Mode::RN), F16::abs(0xfe00, Mode::RN)), (0xfe00, 0x7e00));
}

fn sixteen_is_rounded_once<F: Sixteen>(format: Format, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..60_000 {
        let [a, b, c] = std::array::from_fn(|_| random.code(format) as u16);
        // The negated product as the addend: what it lost is all that stays.
        let c = if random.below(3) == 0 { F::mul(a, b, Mode::RN) ^ 0x8000 } else { c };
        let c = if c & 0x7fff < F::INFINITY { c } else { 0 };
        let (wa, wb, wc) = (F::to_f64(a), F::to_f64(b), F::to_f64(c));
        let product = Exact::product(wa, wb);
        let negative = (a ^ b) >> 15 != 0;
        let signs = (a >> 15 != 0, c >> 15 != 0);
        let what = format!("{a:#x} {b:#x} {c:#x}");
        let nearest = Rounding::NearestEven;
        let sum = Exact::of(wa).plus(Exact::of(wc));
        check(format, F::add(a, c, Mode::RN).into(), &sum, signs, nearest, &format!("add {what}"));
        check(format, F::sub(a, c ^ 0x8000, Mode::RN).into(), &sum, signs, nearest, &format!("sub {what}"));
        let got = F::mul(a, b, Mode::RN).into();
        check(format, got, &product, (negative, negative), nearest, &format!("mul {what}"));
        let sum = product.plus(Exact::of(wc));
        let got = F::fma(a, b, c, Mode::RN).into();
        check(format, got, &sum, (negative, signs.1), nearest, &format!("fma {what}"));
    }
}

#[test]
fn sixteen_bit_operations_round_once() {
    sixteen_is_rounded_once::<F16>(exact::F16, 4);
    sixteen_is_rounded_once::<Bf16>(exact::BF16, 5);
}

#[test]
fn minimum_and_maximum() {
    let plain = Selection::default();
    let nan = Selection { nan: true, ..plain };
    let abs = Selection { abs: true, ..plain };
    let xorsign = Selection { xorsign: true, abs: true, ..plain };
    let ftz = Selection { ftz: true, ..plain };
    let canonical = f32::from_bits(0x7fff_ffff);
    let quiet = f32::from_bits(0xffc0_0001);
    let tiny = f32::from_bits(1);
    // (a, b, selection, smaller, larger)
    let cases = [
        (1.0, 2.0, plain, 1.0, 2.0),
        (-1.0, -2.0, plain, -2.0, -1.0),
        (0.0, -0.0, plain, -0.0, 0.0),
        (-0.0, 0.0, plain, -0.0, 0.0),
        (quiet, 1.0, plain, 1.0, 1.0),
        (-1.0, quiet, plain, -1.0, -1.0),
        (quiet, quiet, plain, canonical, canonical),
        (quiet, 1.0, nan, canonical, canonical),
        (1.0, 2.0, nan, 1.0, 2.0),
        (-f32::INFINITY, f32::INFINITY, plain, -f32::INFINITY, f32::INFINITY),
        (-3.0, 2.0, abs, 2.0, 3.0),
        (-3.0, 2.0, xorsign, -2.0, -3.0),
        (-3.0, -2.0, xorsign, 2.0, 3.0),
        (-3.0, quiet, xorsign, 3.0, 3.0),
        (tiny, -tiny, ftz, -0.0, 0.0),
    ];
    for (a, b, selection, smaller, larger) in cases {
        let got = (extremum::min(a, b, selection), extremum::max(a, b, selection));
        assert_eq!(got.0.to_bits(), f32::to_bits(smaller), "min {a} {b} {selection:?}");
        assert_eq!(got.1.to_bits(), f32::to_bits(larger), "max {a} {b} {selection:?}");
    }
    assert_eq!(extremum::min3(3.0, f32::NAN, 2.0, plain), 2.0);
    assert_eq!(extremum::max3(3.0, f32::NAN, 2.0, plain), 3.0);
    assert_eq!(extremum::max3(3.0, -4.0, 2.0, abs), 4.0);
    assert_eq!(extremum::max3(3.0, f32::NAN, 2.0, nan).to_bits(), 0x7fff_ffff);
    assert_eq!(extremum::min_f64(-0.0, 0.0).to_bits(), 1 << 63);
    assert_eq!(extremum::max_f64(f64::NAN, -1.0), -1.0);
    assert!(extremum::min_f64(f64::NAN, f64::NAN).is_nan());
    assert_eq!(F16::min(0x0001, 0x0000, ftz), 0);
    assert_eq!(F16::max(0xc000, 0x3c00, xorsign), 0xc000);
    assert_eq!(Bf16::min(0xbf80, 0x4000, abs), 0x3f80);
}

#[test]
fn comparisons_with_and_without_nan() {
    // (operator, 1 < 2, 2 = 2, NaN)
    let rows = [
        ("eq", [false, true, false]),
        ("ne", [true, false, false]),
        ("lt", [true, false, false]),
        ("le", [true, true, false]),
        ("gt", [false, false, false]),
        ("ge", [false, true, false]),
        ("equ", [false, true, true]),
        ("neu", [true, false, true]),
        ("ltu", [true, false, true]),
        ("leu", [true, true, true]),
        ("gtu", [false, false, true]),
        ("geu", [false, true, true]),
        ("num", [true, true, false]),
        ("nan", [false, false, true]),
    ];
    for (name, want) in rows {
        let comparison = Comparison::parse(name).unwrap();
        let pairs = [(1.0, 2.0), (2.0, 2.0), (f32::NAN, 2.0)];
        assert_eq!(pairs.map(|(a, b)| compare(comparison, a, b)), want, "{name}");
        assert_eq!(pairs.map(|(a, b)| compare(comparison, f64::from(a), f64::from(b))), want, "{name}");
        assert_eq!(compare(comparison, 2.0, f32::NAN), want[2], "{name}");
    }
    assert!(compare(Comparison::parse("hi").unwrap(), u32::MAX, 1));
    assert!(compare(Comparison::parse("lt").unwrap(), -1, 1));
    assert_eq!(Comparison::parse("around"), None);
}

#[test]
fn properties() {
    let values = [1.0, 0.0, f32::from_bits(1), f32::INFINITY, f32::NAN];
    let rows = [
        (Property::Finite, [true, true, true, false, false]),
        (Property::Infinite, [false, false, false, true, false]),
        (Property::Number, [true, true, true, true, false]),
        (Property::NotANumber, [false, false, false, false, true]),
        (Property::Normal, [true, false, false, false, false]),
        (Property::Subnormal, [false, false, true, false, false]),
    ];
    for (property, want) in rows {
        assert_eq!(values.map(|x| test(property, -x)), want, "{property:?}");
        let wide = values.map(|x| if x.is_subnormal() { f64::from_bits(1) } else { x.into() });
        assert_eq!(wide.map(|x| test_f64(property, x)), want, "{property:?}");
    }
}
