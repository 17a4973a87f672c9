//! Row-wise work between the products: norms, rotary embedding, GELU.

use super::layout::LANES;
use super::simd::{self, Isa, Kernel, Simd};

/// `out = gain * x / sqrt(mean(x^2) + eps)` for one row.
struct NormRow<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.x.len();
        assert!(self.gain.len() == width && self.out.len() == width);
        // SAFETY: every access is to `n` values at `k`, inside slices of equal length.
        unsafe {
            let mut squares = S::zero();
            for k in (0..width).step_by(LANES) {
                let v = simd::load_first::<S>(self.x.as_ptr().add(k), width - k);
                squares = S::fma(v, v, squares);
            }
            let inverse = S::splat(1.0 / (S::sum(squares) / width as f32 + self.eps).sqrt());
            for k in (0..width).step_by(LANES) {
                let v = simd::load_first::<S>(self.x.as_ptr().add(k), width - k);
                let gain = simd::load_first::<S>(self.gain.as_ptr().add(k), width - k);
                let v = S::mul(gain, S::mul(v, inverse));
                simd::store_first::<S>(v, self.out.as_mut_ptr().add(k), width - k);
            }
        }
    }
}

/// RMS norm of one row; statistics in f32. Panics if the lengths differ.
pub(crate) fn norm_row(isa: Isa, x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: the instruction set is supported (checked at construction).
    unsafe { simd::launch(isa, NormRow { x, gain, eps, out }) }
}

/// `out = gain * (x - mean) / sqrt(variance + eps) + bias` for one row.
struct LayerNormRow<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for LayerNormRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.x.len();
        assert!([self.gain.len(), self.bias.len(), self.out.len()] == [width; 3]);
        // SAFETY: every access is to `n` values at `k`, inside slices of equal length.
        unsafe {
            let mut sum = S::zero();
            for k in (0..width).step_by(LANES) {
                sum = S::add(simd::load_first::<S>(self.x.as_ptr().add(k), width - k), sum);
            }
            let mean = S::splat(S::sum(sum) / width as f32);
            let mut squares = S::zero();
            for k in (0..width).step_by(LANES) {
                let v = S::sub(simd::load_first::<S>(self.x.as_ptr().add(k), width - k), mean);
                let mut lanes = [0.0f32; LANES];
                // Lanes behind the row are no distance from the mean.
                simd::store_first::<S>(v, lanes.as_mut_ptr(), width - k);
                let v = S::load(lanes.as_ptr());
                squares = S::fma(v, v, squares);
            }
            let inverse = S::splat(1.0 / (S::sum(squares) / width as f32 + self.eps).sqrt());
            for k in (0..width).step_by(LANES) {
                let v = S::sub(simd::load_first::<S>(self.x.as_ptr().add(k), width - k), mean);
                let gain = simd::load_first::<S>(self.gain.as_ptr().add(k), width - k);
                let bias = simd::load_first::<S>(self.bias.as_ptr().add(k), width - k);
                let v = S::fma(gain, S::mul(v, inverse), bias);
                simd::store_first::<S>(v, self.out.as_mut_ptr().add(k), width - k);
            }
        }
    }
}

/// Layer norm of one row; statistics in f32. Panics if the lengths differ.
pub(crate) fn layer_norm_row(isa: Isa, x: &[f32], gain: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: the instruction set is supported (checked at construction).
    unsafe { simd::launch(isa, LayerNormRow { x, gain, bias, eps, out }) }
}

/// `x = gelu(x + bias)` by the tanh form, which is `x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))`.
struct GeluRow<'a> {
    x: &'a mut [f32],
    bias: &'a [f32],
}

impl Kernel for GeluRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const TWICE_ROOT: f32 = 1.595_769; // 2 sqrt(2 / pi)
        let width = self.x.len();
        assert!(self.bias.len() == width);
        // SAFETY: every access is to `n` values at `k`, inside slices of equal length.
        unsafe {
            let (linear, cubic) = (S::splat(TWICE_ROOT), S::splat(TWICE_ROOT * 0.044715));
            for k in (0..width).step_by(LANES) {
                let at = self.x.as_mut_ptr().add(k);
                let bias = simd::load_first::<S>(self.bias.as_ptr().add(k), width - k);
                let x = S::add(simd::load_first::<S>(at, width - k), bias);
                let inner = S::mul(x, S::fma(cubic, S::mul(x, x), linear));
                simd::store_first::<S>(S::mul(x, simd::sigmoid::<S>(inner)), at, width - k);
            }
        }
    }
}

/// `x = gelu(x + bias)` by the tanh form. Panics if the lengths differ.
pub(crate) fn gelu_row(isa: Isa, x: &mut [f32], bias: &[f32]) {
    // SAFETY: the instruction set is supported (checked at construction).
    unsafe { simd::launch(isa, GeluRow { x, bias }) }
}

/// Rotates the pairs `(2i, 2i + 1)` of `x` `[R]`; `rotation` holds R/2 cosines, then R/2 sines.
pub(crate) fn rotate(x: &mut [f32], rotation: &[f32]) {
    let (cos, sin) = rotation.split_at(x.len() / 2);
    for ((pair, cos), sin) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * cos - b * sin;
        pair[1] = b * cos + a * sin;
    }
}
