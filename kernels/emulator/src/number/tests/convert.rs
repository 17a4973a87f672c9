use super::super::bf16::Bf16;
use super::super::convert::*;
use super::super::half::F16;
use super::super::integer::Integer;
use super::super::narrow;
use super::super::round::{Mode, Rounding, integral_f32, integral_f64};
use super::super::sixteen::Sixteen;
use super::exact::{self, Exact, F32, F64, Format, Random};

const ROUNDINGS: [Rounding; 4] = [Rounding::NearestEven, Rounding::Zero, Rounding::Down, Rounding::Up];

#[test]
fn narrowing_rounds_once() {
    let mut random = Random(11);
    for _ in 0..40_000 {
        let x = f64::from_bits(random.code(F64));
        // Values between two neighbours of a narrow format, at most a few units of f64 from a tie or a code.
        let near = f64::from(f32::from_bits(random.code(F32) as u32 & !(0x1fff << random.below(8))));
        let near = f64::from_bits(near.to_bits().wrapping_add(random.below(5)).wrapping_sub(2));
        for x in [x, near].into_iter().filter(|x| x.is_finite()) {
            let value = Exact::of(x);
            for rounding in ROUNDINGS {
                let codes: [(u64, Format); 3] = [
                    (f64_to_f32(x, rounding).to_bits().into(), F32),
                    (F16::from_f64(x, rounding).into(), exact::F16),
                    (Bf16::from_f64(x, rounding).into(), exact::BF16),
                ];
                for (code, format) in codes {
                    assert!(format.is_rounded(code, &value, rounding), "{x:e} {rounding:?}: {code:#x}");
                }
            }
        }
    }
    for rounding in ROUNDINGS {
        assert!(f64_to_f32(f64::NAN, rounding).is_nan());
        assert_eq!(f64_to_f32(f64::INFINITY, rounding), f32::INFINITY);
        assert_eq!(F16::from_f64(f64::NEG_INFINITY, rounding), 0xfc00);
        assert_eq!(Bf16::from_f64(f64::NAN, rounding), 0x7fff);
    }
}

fn from_integer<T: Integer>(x: T) {
    let wide = x.to_i128();
    let value = Exact::integer(wide);
    for rounding in ROUNDINGS {
        let codes: [(u64, Format); 4] = [
            (integer_to_f64(x, rounding).to_bits(), F64),
            (integer_to_f32(x, rounding).to_bits().into(), F32),
            (integer_to_sixteen::<F16, T>(x, rounding).into(), exact::F16),
            (integer_to_sixteen::<Bf16, T>(x, rounding).into(), exact::BF16),
        ];
        for (code, format) in codes {
            assert!(format.is_rounded(code, &value, rounding), "{wide} {rounding:?}: {code:#x}");
            assert!(wide != 0 || code == 0);
        }
    }
}

#[test]
fn integers_to_floats() {
    let mut random = Random(12);
    for _ in 0..20_000 {
        let x = random.integer();
        from_integer(x);
        from_integer(x as i64);
        from_integer(x as u32);
        from_integer(x as i32);
        from_integer(x as i16);
        from_integer(x as u8);
    }
    for x in [i64::MIN, i64::MAX, 0, -1] {
        from_integer(x);
        from_integer(x as u64);
    }
}

/// `x` rounded to an integer, by its fraction: exact below 2^100.
fn rounded(x: f64, rounding: Rounding) -> i128 {
    let (floor, fraction) = (x.floor() as i128, x - x.floor());
    let up = match rounding {
        Rounding::NearestEven => fraction > 0.5 || (fraction == 0.5 && floor & 1 != 0),
        Rounding::Zero => x < 0.0 && fraction > 0.0,
        Rounding::Up => fraction > 0.0,
        Rounding::Down => false,
        Rounding::NearestAway => unreachable!(),
    };
    floor + i128::from(up)
}

fn to_integer<T: Integer + std::fmt::Debug>(x: f64) {
    for rounding in ROUNDINGS {
        let clamp = |wide: i128| T::wrap(wide.clamp(T::MIN.to_i128(), T::MAX.to_i128()));
        assert_eq!(f64_to_integer::<T>(x, rounding), clamp(rounded(x, rounding)), "{x} {rounding:?}");
        let narrow = x as f32;
        let want = clamp(rounded(narrow.into(), rounding));
        assert_eq!(f32_to_integer::<T>(narrow, rounding), want, "{narrow} {rounding:?}");
    }
}

#[test]
fn floats_to_integers() {
    let mut random = Random(13);
    for _ in 0..40_000 {
        let x = match random.below(3) {
            0 => (random.integer() as i64 as f64) * 0.5,
            1 => f64::from(f32::from_bits(random.code(F32) as u32)),
            _ => (random.integer() as f64) + random.below(8) as f64 / 4.0 - 1.0,
        };
        let x = if x.abs() < 1e30 { x } else { 1e30_f64.copysign(x) };
        to_integer::<u8>(x);
        to_integer::<i8>(x);
        to_integer::<u16>(x);
        to_integer::<i16>(x);
        to_integer::<u32>(x);
        to_integer::<i32>(x);
        to_integer::<u64>(x);
        to_integer::<i64>(x);
    }
    assert_eq!(f32_to_integer::<i64>(f32::INFINITY, Rounding::Zero), i64::MAX);
    assert_eq!(f32_to_integer::<u16>(f32::NEG_INFINITY, Rounding::Zero), 0);
    // NaN: PTX ISA, cvt.
    assert_eq!(f32_to_integer::<i32>(f32::NAN, Rounding::Zero), 0);
    assert_eq!(f32_to_integer::<u8>(f32::NAN, Rounding::Zero), 0);
    assert_eq!(f32_to_integer::<i64>(f32::NAN, Rounding::Zero), i64::MIN);
    assert_eq!(f32_to_integer::<u64>(f32::NAN, Rounding::Zero), 1 << 63);
    assert_eq!(f64_to_integer::<i32>(f64::NAN, Rounding::Zero), i32::MIN);
    assert_eq!(f64_to_integer::<u8>(f64::NAN, Rounding::Zero), 0x80);
}

#[test]
fn integral_values_keep_the_sign_of_zero() {
    for (x, want) in [
        (-0.25, [-0.0, -0.0, -1.0, -0.0]),
        (0.5, [0.0, 0.0, 0.0, 1.0]),
        (-2.5, [-2.0, -2.0, -3.0, -2.0]),
        (1e30, [1e30; 4]),
    ] {
        for (rounding, want) in ROUNDINGS.into_iter().zip(want) {
            assert_eq!(integral_f32(x, rounding).to_bits(), f32::to_bits(want), "{x} {rounding:?}");
            assert_eq!(integral_f64(x.into(), rounding).to_bits(), f64::from(want).to_bits());
            let half = F16::from_f32(x, Rounding::NearestEven);
            assert_eq!(F16::integral(half, rounding), F16::from_f32(want, Rounding::NearestEven));
        }
    }
    assert_eq!(integral_f32(2.5, Rounding::NearestAway), 3.0);
}

#[test]
fn integers_saturate() {
    fn check<S: Integer, D: Integer + std::fmt::Debug>(x: u64) {
        let x = S::wrap_u64(x);
        let want = D::wrap(x.to_i128().clamp(D::MIN.to_i128(), D::MAX.to_i128()));
        assert_eq!(saturate::<S, D>(x), want, "{}", x.to_i128());
    }
    fn from<S: Integer>(x: u64) {
        check::<S, u8>(x);
        check::<S, i8>(x);
        check::<S, u16>(x);
        check::<S, i16>(x);
        check::<S, u32>(x);
        check::<S, i32>(x);
        check::<S, u64>(x);
        check::<S, i64>(x);
    }
    let mut random = Random(14);
    for _ in 0..20_000 {
        let x = random.integer();
        from::<u8>(x);
        from::<i8>(x);
        from::<u16>(x);
        from::<i16>(x);
        from::<u32>(x);
        from::<i32>(x);
        from::<u64>(x);
        from::<i64>(x);
    }
}

#[test]
fn modifiers_of_narrow_conversions() {
    let relu = Mode::RN.satfinite().relu();
    let nan = f32::NAN;
    assert_eq!([-1.0, nan, -0.0, 1000.0].map(|x| narrow::e4m3(x, relu)), [0, 0x7f, 0, 0x7e]);
    assert_eq!([-1.0, nan, -0.0, 1e9].map(|x| narrow::e5m2(x, relu)), [0, 0x7f, 0, 0x7b]);
    assert_eq!([-1.0, nan, -nan, 1e9].map(|x| narrow::e2m1(x, relu)), [0, 7, 7, 7]);
    assert_eq!([-1.0, nan].map(|x| narrow::e2m3(x, relu)), [0, 0x1f]);
    assert_eq!([-1.0, nan].map(|x| narrow::e3m2(x, relu)), [0, 0x1f]);
    let satfinite = Mode::RN.satfinite();
    assert_eq!([1e9, -1e9, nan, 1.0].map(|x| F16::convert(x, satfinite)), [0x7bff, 0xfbff, 0x7fff, 0x3c00]);
    assert_eq!([f32::INFINITY, nan].map(|x| Bf16::convert(x, satfinite)), [0x7f7f, 0x7fff]);
    assert_eq!([-3.0, -0.0, nan, 1e9].map(|x| F16::convert(x, relu)), [0, 0, 0x7fff, 0x7bff]);
    assert_eq!([-3.0, nan, 9.0].map(|x| F16::convert(x, Mode::RN.sat())), [0, 0, 0x3c00]);
    // Only the f32 side of a conversion is flushed.
    assert_eq!(F16::convert(f32::from_bits(0x33800000), Mode::RN.ftz()), 1);
    assert_eq!(Bf16::convert(f32::from_bits(0x80700000), Mode::RN.ftz()), 0x8000);
}

#[test]
fn tf32_keeps_ten_bits() {
    let rna = Mode::new(Rounding::NearestAway);
    // (bits, rna, rn, rz)
    for (bits, away, even, zero) in [
        (0x3f80_1000, 0x3f80_2000, 0x3f80_0000, 0x3f80_0000),
        (0xbf80_3000, 0xbf80_4000, 0xbf80_4000, 0xbf80_2000),
        (0x3f80_0fff, 0x3f80_0000, 0x3f80_0000, 0x3f80_0000),
        (0x7f7f_f000, 0x7f80_0000, 0x7f80_0000, 0x7f7f_e000),
        (0x7f80_0000, 0x7f80_0000, 0x7f80_0000, 0x7f80_0000),
        (0xff80_0001, 0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff),
        (0x8000_0001, 0x8000_0000, 0x8000_0000, 0x8000_0000),
        (0x0000_1800, 0x0000_2000, 0x0000_2000, 0x0000_0000),
    ] {
        let got = [rna, Mode::RN, Mode::RZ].map(|mode| narrow::tf32(f32::from_bits(bits), mode));
        assert_eq!(got, [away, even, zero], "{bits:#x}");
    }
    assert_eq!(narrow::tf32(f32::INFINITY, rna.satfinite()), 0x7f7f_e000);
    assert_eq!(narrow::tf32(-1.0, rna.relu()), 0);
}

#[test]
fn codes_survive_a_round_trip() {
    let satfinite = Mode::RN.satfinite();
    for code in 0..=255_u8 {
        let is_nan = |code: u8| code & 0x7f == 0x7f;
        if !is_nan(code) {
            assert_eq!(narrow::e4m3(narrow::e4m3_to_f32(code), satfinite), code);
        }
        if code & 0x7f < 0x7d {
            assert_eq!(narrow::e5m2(narrow::e5m2_to_f32(code), Mode::RN), code);
        }
        assert_eq!(narrow::e2m1(narrow::e2m1_to_f32(code), satfinite), code & 0xf);
        assert_eq!(narrow::e2m3(narrow::e2m3_to_f32(code), satfinite), code & 0x3f);
        assert_eq!(narrow::e3m2(narrow::e3m2_to_f32(code), satfinite), code & 0x3f);
        assert_eq!(narrow::ue8m0(narrow::ue8m0_to_f32(code), Mode::RP), code);
        assert_eq!(narrow::ue8m0(narrow::ue8m0_to_f32(code), Mode::RZ), code);
    }
    for code in 0..=u16::MAX {
        if code & 0x7fff <= F16::INFINITY {
            assert_eq!(F16::from_f32(F16::to_f32(code), Rounding::NearestEven), code);
        }
        if code & 0x7fff <= Bf16::INFINITY {
            assert_eq!(Bf16::from_f32(Bf16::to_f32(code), Rounding::Down), code);
        }
    }
}
