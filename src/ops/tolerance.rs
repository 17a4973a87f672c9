//! Allowed difference of a fast operation from `reference`, in one table, with the reasons.
//!
//! A difference is the largest absolute one over an output, divided by the largest absolute value
//! of the reference's output: rounding errors of a sum scale with its terms, not with the remainder
//! after cancellation.

/// Allowed difference of one operation, by what the backend rounds its inputs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Inputs of products stay f32; only the order of additions differs.
    pub f32_activations: f32,
    /// Inputs of products are rounded to bf16 (relative error up to 2^-9 each, of random sign).
    pub bf16_activations: f32,
    /// Inputs of products with 4-bit codes are rounded to int8, off by at most 1/254 of the largest of 32 values and evenly spread; the
    /// inputs of other products to bf16.
    pub int8_activations: f32,
}

/// Reads and choices: equal bits.
pub const EXACT: Tolerance = Tolerance { f32_activations: 0.0, bf16_activations: 0.0, int8_activations: 0.0 };

/// Norms and rotations: never rounded, a few operations per value.
pub const ELEMENTWISE: Tolerance =
    Tolerance { f32_activations: 2e-6, bf16_activations: 2e-6, int8_activations: 2e-6 };

/// One product: sums of up to some thousands of terms.
pub const PROJECT: Tolerance =
    Tolerance { f32_activations: 1e-5, bf16_activations: 8e-3, int8_activations: 3e-2 };

/// Router weights: f32 in every mode; one product, a sigmoid and a division.
pub const ROUTE: Tolerance =
    Tolerance { f32_activations: 1e-5, bf16_activations: 1e-5, int8_activations: 1e-5 };

/// Two products with SwiGLU between them: both inputs are rounded.
pub const SWIGLU: Tolerance =
    Tolerance { f32_activations: 2e-5, bf16_activations: 2e-2, int8_activations: 6e-2 };

/// Attention: queries, keys, probabilities, values and the cache are rounded, and errors of scores enter an exponential.
pub const ATTEND: Tolerance =
    Tolerance { f32_activations: 3e-5, bf16_activations: 3e-2, int8_activations: 3e-2 };

/// The difference as defined in the table; infinite where the lengths differ or a value is not
/// finite.
pub fn difference(got: &[f32], reference: &[f32]) -> f32 {
    if got.len() != reference.len() || !got.iter().all(|x| x.is_finite()) {
        return f32::INFINITY;
    }
    let peak = reference.iter().fold(f32::MIN_POSITIVE, |m, x| m.max(x.abs()));
    got.iter().zip(reference).fold(0.0f32, |m, (g, r)| m.max((g - r).abs())) / peak
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_is_relative_to_the_peak() {
        assert_eq!(difference(&[1.0, 4.0], &[1.5, 4.0]), 0.125);
        assert_eq!(difference(&[0.0], &[0.0]), 0.0);
        assert_eq!(difference(&[1.0], &[1.0, 2.0]), f32::INFINITY);
        assert_eq!(difference(&[f32::NAN], &[1.0]), f32::INFINITY);
    }
}
