//! Packed operands: two values in one register, the first in the lower half.
//!
//! Every operation is written out for both halves: a closure passed to a common function would not inline into
//! a caller with more target features.

use super::extremum::Selection;
use super::float;
use super::integer::{self, Integer};
use super::round::Mode;
use super::sixteen::Sixteen;

/// The halves of a 32-bit register, lower first.
#[inline(always)]
pub fn split(x: u32) -> (u16, u16) {
    (x as u16, (x >> 16) as u16)
}

/// Two 16-bit values as one register.
#[inline(always)]
pub fn join(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// The halves of an f32x2, lower first.
#[inline(always)]
pub fn split_f32(x: u64) -> (f32, f32) {
    (f32::from_bits(x as u32), f32::from_bits((x >> 32) as u32))
}

/// Two f32 as one register.
#[inline(always)]
pub fn join_f32(low: f32, high: f32) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

/// `cvt.RND.f16x2.f32 d, a, b` and its bf16x2 form: `a` goes to the upper half.
#[inline(always)]
pub fn convert<F: Sixteen>(a: f32, b: f32, mode: Mode) -> u32 {
    join(F::convert(b, mode), F::convert(a, mode))
}

macro_rules! sixteen {
    ($($name:ident($($operand:ident),+; $($mode:ident: $type:ty)?),)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of f16x2 or bf16x2.")]
        #[inline(always)]
        pub fn $name<F: Sixteen>($($operand: u32,)+ $($mode: $type)?) -> u32 {
            let low = F::$name($($operand as u16,)+ $($mode)?);
            let high = F::$name($(($operand >> 16) as u16,)+ $($mode)?);
            join(low, high)
        }
    )*};
}

sixteen! {
    add(a, b; mode: Mode),
    sub(a, b; mode: Mode),
    mul(a, b; mode: Mode),
    fma(a, b, c; mode: Mode),
    neg(x; mode: Mode),
    abs(x; mode: Mode),
    min(a, b; selection: Selection),
    max(a, b; selection: Selection),
    ex2(x; mode: Mode),
    tanh(x;),
}

macro_rules! integers {
    ($($name:ident = $f:expr,)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of u16x2 or s16x2: `T` is u16 or i16.")]
        #[inline(always)]
        pub fn $name<T: Integer>(a: u32, b: u32) -> u32 {
            let low = $f(T::wrap_u64(a.into()), T::wrap_u64(b.into()));
            let high = $f(T::wrap_u64((a >> 16).into()), T::wrap_u64((b >> 16).into()));
            join(low.to_u64() as u16, high.to_u64() as u16)
        }
    )*};
}

integers! {
    add_integers = T::add,
    sub_integers = T::sub,
    min_integers = integer::min,
    max_integers = integer::max,
}

/// `.relu` of `min.s16x2` and `max.s16x2`.
#[inline(always)]
pub fn relu_s16x2(x: u32) -> u32 {
    max_integers::<i16>(x, 0)
}

/// `add.f32x2`.
#[inline(always)]
pub fn add_f32x2(a: u64, b: u64, mode: Mode) -> u64 {
    let ((a0, a1), (b0, b1)) = (split_f32(a), split_f32(b));
    join_f32(float::add(a0, b0, mode), float::add(a1, b1, mode))
}

/// `sub.f32x2`.
#[inline(always)]
pub fn sub_f32x2(a: u64, b: u64, mode: Mode) -> u64 {
    let ((a0, a1), (b0, b1)) = (split_f32(a), split_f32(b));
    join_f32(float::sub(a0, b0, mode), float::sub(a1, b1, mode))
}

/// `mul.f32x2`.
#[inline(always)]
pub fn mul_f32x2(a: u64, b: u64, mode: Mode) -> u64 {
    let ((a0, a1), (b0, b1)) = (split_f32(a), split_f32(b));
    join_f32(float::mul(a0, b0, mode), float::mul(a1, b1, mode))
}

/// `fma.f32x2`.
#[inline(always)]
pub fn fma_f32x2(a: u64, b: u64, c: u64, mode: Mode) -> u64 {
    let ((a0, a1), (b0, b1), (c0, c1)) = (split_f32(a), split_f32(b), split_f32(c));
    join_f32(float::fma(a0, b0, c0, mode), float::fma(a1, b1, c1, mode))
}
