//! Rows of integers, a step of 32 inputs at a time: what rows are rounded to before they meet 4-bit codes.
//!
//! A step is one row of int8 or several whose sums are added up: 15-bit integers are two, rows of 4-bit floats one per term. A code of a
//! 4-bit float is an integer after doubling, and its block has its scale, so that nothing is rounded but by the form itself.

use super::layout::{
    INT8_CORRECTIONS, INT8_OFFSET, INT8_SCALES, INT8_STEP_WORDS, MAX_PLANES, RowFormat, STEP_INPUTS,
};
use super::simd::Simd;
use perigee_numbers::quant::ActivationForm;
use perigee_numbers::quant::fp4::E2M1_MAX;

/// Largest magnitudes below this count as zero: their inverse would overflow.
const SMALLEST_PEAK: f32 = 1e-32;

/// Units of the second plane in one of the first.
const PLANE: f32 = 128.0;

/// The planes of one step of a row, as many as its format has.
pub(crate) type StepPlanes = [[u32; INT8_STEP_WORDS]; MAX_PLANES];

/// One step of a row in `format`; `form` is that of rows of 4-bit floats. A value that is not finite makes its scale NaN, and with it
/// every output.
///
/// # Safety
/// Inside a launch of `S`.
#[inline(always)]
pub(crate) unsafe fn quantize<S: Simd>(
    format: RowFormat,
    form: Option<ActivationForm>,
    low: S::V,
    high: S::V,
) -> StepPlanes {
    // SAFETY: by the contract.
    unsafe {
        match form {
            Some(form) => fp4_planes::<S>(form, low, high),
            None => integer_planes::<S>(format, low, high),
        }
    }
}

#[inline(always)]
unsafe fn magnitude<S: Simd>(v: S::V) -> S::V {
    // SAFETY: the caller is inside a launch of `S`.
    unsafe { S::max(v, S::sub(S::zero(), v)) }
}

/// Largest magnitude of 32 values, NaN where one is not finite.
#[inline(always)]
unsafe fn peak<S: Simd>(a: S::V, b: S::V) -> f32 {
    // SAFETY: the caller is inside a launch of `S`.
    unsafe {
        let zero = S::zero();
        let not_finite = S::sum(S::add(S::mul(a, zero), S::mul(b, zero)));
        S::largest(S::max(magnitude::<S>(a), magnitude::<S>(b))) + not_finite
    }
}

/// The integers nearest to the values, in units that make the largest of them as large as the format goes.
#[inline(always)]
unsafe fn integer_planes<S: Simd>(format: RowFormat, low: S::V, high: S::V) -> StepPlanes {
    let mut planes = [[0; INT8_STEP_WORDS]; MAX_PLANES];
    // SAFETY: the caller is inside a launch of `S`.
    unsafe {
        let peak = peak::<S>(low, high);
        let largest = if format == RowFormat::Int15 { 127.0 * PLANE } else { 127.0 };
        let inverse = S::splat(if peak > SMALLEST_PEAK { largest / peak } else { 0.0 });
        let unit = peak / largest;
        let (low, high) = (S::round(S::mul(low, inverse)), S::round(S::mul(high, inverse)));
        if format == RowFormat::Int15 {
            // To the nearest multiple: what is left is at most half a unit of the first plane.
            let first = |v: S::V| S::round(S::mul(v, S::splat(1.0 / PLANE)));
            let rest = |v: S::V| S::fma(first(v), S::splat(-PLANE), v);
            planes[0] = plane::<S>(first(low), first(high), [unit * PLANE; 2]);
            planes[1] = plane::<S>(rest(low), rest(high), [unit; 2]);
        } else {
            planes[0] = plane::<S>(low, high, [unit; 2]);
        }
    }
    planes
}

/// The codes of each term, twice their values, with half the scales of their blocks.
///
/// All scales of MXFP4, 2^-127 to 2^127, are exact when halved. A row's scale times a weight's is rounded as an f32: beyond its range it
/// is zero or infinite, where the products of the specification are too.
#[inline(always)]
unsafe fn fp4_planes<S: Simd>(form: ActivationForm, mut low: S::V, mut high: S::V) -> StepPlanes {
    let mut planes = [[0; INT8_STEP_WORDS]; MAX_PLANES];
    for (words, term) in planes.iter_mut().zip(form.term_scales()) {
        // SAFETY: the caller is inside a launch of `S`.
        unsafe {
            let peaks = match form.block() {
                STEP_INPUTS => [peak::<S>(low, high); 2],
                _ => [peak::<S>(low, low), peak::<S>(high, high)],
            };
            let [of_low, of_high] = peaks.map(|peak| form.block_scale(&term, peak));
            let codes = [
                twice_e2m1::<S>(S::mul(low, S::splat(of_low.inverse))),
                twice_e2m1::<S>(S::mul(high, S::splat(of_high.inverse))),
            ];
            let halves = [of_low.unit * 0.5, of_high.unit * 0.5];
            *words = plane::<S>(codes[0], codes[1], halves);
            low = S::sub(low, S::mul(codes[0], S::splat(halves[0])));
            high = S::sub(high, S::mul(codes[1], S::splat(halves[1])));
        }
    }
    planes
}

/// Twice the values of the nearest E2M1 codes, ties to the even one; the larger of NaN.
#[inline(always)]
unsafe fn twice_e2m1<S: Simd>(v: S::V) -> S::V {
    // SAFETY: the caller is inside a launch of `S`.
    unsafe {
        let splat = |x| S::splat(x);
        let v = S::max(S::min(v, splat(E2M1_MAX)), splat(-E2M1_MAX));
        let magnitude = magnitude::<S>(v);
        // Values are a half apart below 2, then 1, and 2 from 4 on; nearest even among multiples is nearest even among codes.
        let by_binade = |a, b, c| {
            let upper = S::if_less(magnitude, splat(4.0), splat(b), splat(c));
            S::if_less(magnitude, splat(2.0), splat(a), upper)
        };
        S::mul(S::round(S::mul(v, by_binade(2.0, 1.0, 0.5))), by_binade(1.0, 2.0, 4.0))
    }
}

/// One step of one int8 row of integral values, `units` being what one stands for in the first and in the second 16.
#[inline(always)]
unsafe fn plane<S: Simd>(low: S::V, high: S::V, units: [f32; 2]) -> [u32; INT8_STEP_WORDS] {
    let mut words = [0; INT8_STEP_WORDS];
    // SAFETY: the caller is inside a launch of `S`; `words` holds the eight words of 32 values.
    unsafe {
        S::quads(low, high, words.as_mut_ptr());
        for (correction, half) in words[INT8_CORRECTIONS..].iter_mut().zip([low, high]) {
            *correction = (-INT8_OFFSET * S::sum(half) as i32) as u32;
        }
    }
    for (scale, unit) in words[INT8_SCALES..].iter_mut().zip(units) {
        *scale = unit.to_bits();
    }
    words
}
