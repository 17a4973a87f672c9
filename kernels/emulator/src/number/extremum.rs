//! `min` and `max` of floating-point values, on bit patterns: as sign-magnitude integers they have the order
//! that PTX asks for, -0 below +0.

use super::round::flush;

/// The modifiers of `min` and `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Selection {
    /// `.NaN`: a NaN operand gives the canonical NaN; otherwise the other operand is the result.
    pub nan: bool,
    /// `.abs`: magnitudes are compared and returned.
    pub abs: bool,
    /// `.xorsign.abs`: magnitudes are compared, the result has the exclusive or of both signs.
    pub xorsign: bool,
    /// `.ftz`: subnormal operands are zero of the same sign.
    pub ftz: bool,
}

macro_rules! select {
    ($name:ident, $bits:ty, $signed:ty) => {
        /// The larger or the smaller operand. `infinity` is the code of +infinity; `.ftz` is the caller's.
        #[inline(always)]
        pub(super) fn $name(
            a: $bits,
            b: $bits,
            infinity: $bits,
            larger: bool,
            selection: Selection,
        ) -> $bits {
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            #[inline(always)]
            fn order(x: $bits) -> $signed {
                (x ^ (((x as $signed >> (<$bits>::BITS - 1)) as $bits) >> 1)) as $signed
            }
            let magnitudes = selection.abs || selection.xorsign;
            let sign = if selection.xorsign { (a ^ b) & SIGN } else { 0 };
            let a = if magnitudes { a & !SIGN } else { a };
            let b = if magnitudes { b & !SIGN } else { b };
            let first = if larger { order(a) >= order(b) } else { order(a) <= order(b) };
            let a_nan = a & !SIGN > infinity;
            let b_nan = b & !SIGN > infinity;
            let number = if (first && !a_nan) || b_nan { a } else { b } | sign;
            let nan = if selection.nan { a_nan || b_nan } else { a_nan && b_nan };
            if nan { !SIGN } else { number }
        }
    };
}

select!(select_u16, u16, i16);
select!(select_u32, u32, i32);
select!(select_u64, u64, i64);

#[inline(always)]
fn select_f32(a: f32, b: f32, larger: bool, selection: Selection) -> f32 {
    let (a, b) = if selection.ftz { (flush(a), flush(b)) } else { (a, b) };
    f32::from_bits(select_u32(a.to_bits(), b.to_bits(), 0x7f80_0000, larger, selection))
}

#[inline(always)]
fn select_f64(a: f64, b: f64, larger: bool) -> f64 {
    let infinity = f64::INFINITY.to_bits();
    f64::from_bits(select_u64(a.to_bits(), b.to_bits(), infinity, larger, Selection::default()))
}

/// `min.f32`.
#[inline(always)]
pub fn min(a: f32, b: f32, selection: Selection) -> f32 {
    select_f32(a, b, false, selection)
}

/// `max.f32`.
#[inline(always)]
pub fn max(a: f32, b: f32, selection: Selection) -> f32 {
    select_f32(a, b, true, selection)
}

/// `min.f32` of three operands.
#[inline(always)]
pub fn min3(a: f32, b: f32, c: f32, selection: Selection) -> f32 {
    min(min(a, b, selection), c, selection)
}

/// `max.f32` of three operands.
#[inline(always)]
pub fn max3(a: f32, b: f32, c: f32, selection: Selection) -> f32 {
    max(max(a, b, selection), c, selection)
}

/// `min.f64`.
#[inline(always)]
pub fn min_f64(a: f64, b: f64) -> f64 {
    select_f64(a, b, false)
}

/// `max.f64`.
#[inline(always)]
pub fn max_f64(a: f64, b: f64) -> f64 {
    select_f64(a, b, true)
}
