//! Conversions between integers and floating-point values, between f32 and f64, and roundings to an integral
//! value. The 16-bit formats convert through f32, which holds them exactly.

use super::integer::Integer;
use super::round::{Rounding, integral_f32, integral_f64, pair_to_f32};
use super::sixteen::Sixteen;

/// `cvt` from f32, f16 or bf16 to an integer: rounds, saturates. NaN gives 0, for 64 bits only the highest bit.
#[inline(always)]
pub fn f32_to_integer<T: Integer>(x: f32, rounding: Rounding) -> T {
    let value = T::truncate_f32(integral_f32(x, rounding));
    if T::BITS == 64 && x.is_nan() { T::HIGHEST } else { value }
}

/// `cvt` from f64 to an integer: rounds, saturates. NaN gives only the highest bit.
#[inline(always)]
pub fn f64_to_integer<T: Integer>(x: f64, rounding: Rounding) -> T {
    let value = T::truncate_f64(integral_f64(x, rounding));
    if x.is_nan() { T::HIGHEST } else { value }
}

/// The integer as f64 if exact, and otherwise a neighbour that rounds to at most 40 bits as the integer does:
/// the bits below 2^11 of a large magnitude become one sticky bit.
#[inline(always)]
fn sticky_f64<T: Integer>(x: T) -> f64 {
    if T::BITS < 64 {
        return x.nearest_f64();
    }
    let wide = x.to_u64();
    let negative = T::SIGNED && wide >> 63 != 0;
    let abs = if negative { wide.wrapping_neg() } else { wide };
    let sticky = (abs & !0x7ff) | if abs & 0x7ff != 0 { 0x800 } else { 0 };
    let magnitude = if abs >> 53 != 0 { sticky } else { abs } as f64;
    if negative { -magnitude } else { magnitude }
}

/// `cvt` from an integer to f32.
#[inline(always)]
pub fn integer_to_f32<T: Integer>(x: T, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::NearestEven => x.nearest_f32(),
        _ => pair_to_f32(sticky_f64(x), 0.0, rounding),
    }
}

/// `cvt` from an integer to f64.
#[inline(always)]
pub fn integer_to_f64<T: Integer>(x: T, rounding: Rounding) -> f64 {
    let nearest = x.nearest_f64();
    if T::BITS < 64 {
        return nearest;
    }
    let rest = x.to_i128() - nearest as i128;
    let inwards = f64::from_bits(nearest.to_bits().wrapping_sub(1));
    let outwards = f64::from_bits(nearest.to_bits().wrapping_add(1));
    match rounding {
        Rounding::Zero if rest != 0 && (rest < 0) == (nearest > 0.0) => inwards,
        Rounding::Down if rest < 0 => {
            if nearest > 0.0 {
                inwards
            } else {
                outwards
            }
        }
        Rounding::Up if rest > 0 => {
            if nearest > 0.0 {
                outwards
            } else {
                inwards
            }
        }
        _ => nearest,
    }
}

/// `cvt` from an integer to f16 or bf16, rounded once.
#[inline(always)]
pub fn integer_to_sixteen<F: Sixteen, T: Integer>(x: T, rounding: Rounding) -> u16 {
    F::from_f64(sticky_f64(x), rounding)
}

/// `cvt.f32.f64`.
#[inline(always)]
pub fn f64_to_f32(x: f64, rounding: Rounding) -> f32 {
    pair_to_f32(x, 0.0, rounding)
}

/// `cvt.sat` between integers: the nearest value of the target type. Without `.sat` the low bits are kept, as
/// `as` does.
#[inline(always)]
pub fn saturate<S: Integer, D: Integer>(x: S) -> D {
    // Limits of D that S can hold; beyond them no comparison is needed.
    let low = if D::MIN.to_i128() > S::MIN.to_i128() { S::wrap(D::MIN.to_i128()) } else { S::MIN };
    let high = if D::MAX.to_i128() < S::MAX.to_i128() { S::wrap(D::MAX.to_i128()) } else { S::MAX };
    D::wrap_u64(x.clamp(low, high).to_u64())
}
