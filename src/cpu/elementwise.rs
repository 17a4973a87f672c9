//! Row-wise work between the products: RMS norm and rotary embedding.

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

/// Rotates the pairs `(2i, 2i + 1)` of `x` `[R]`; `rotation` holds R/2 cosines, then R/2 sines.
pub(crate) fn rotate(x: &mut [f32], rotation: &[f32]) {
    let (cos, sin) = rotation.split_at(x.len() / 2);
    for ((pair, cos), sin) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * cos - b * sin;
        pair[1] = b * cos + a * sin;
    }
}
