//! Relative error of weights and outputs, and the limit beyond which they are other weights.

use perigee_numbers::quant::{PackedFormat, StoredMatrix};

/// Relative error of a layer's output from which its weights are others.
pub(super) const WRONG_OUTPUT: f64 = 0.5;

/// Relative error of a linear from which its weights are others, by what it is stored as: about twice what rounding
/// costs a matrix with heavy tails (section 7.1 of the formats: 0.19, 0.03, 0.002 at most).
pub(super) fn wrong(target: &StoredMatrix<'_>) -> f64 {
    match target.packed().map(|packed| packed.format) {
        Some(PackedFormat::Nvfp4 | PackedFormat::Mxfp4 | PackedFormat::Int4Group32) => 0.3,
        Some(PackedFormat::Fp8Block | PackedFormat::Fp8Row | PackedFormat::Fp8Tensor) => 0.06,
        None => 0.01,
    }
}

/// Relative error of sums of squares; NaN where there was nothing and now is something.
pub(super) fn ratio(squared_error: f64, squares: f64) -> f64 {
    match squared_error == 0.0 {
        true => 0.0,
        false => (squared_error / squares).sqrt(),
    }
}
