//! Relative error of weights and outputs, and the limit beyond which they are other weights.

use perigee_numbers::quant::StoredMatrix;

/// Relative error of a layer's output from which its weights are others.
pub(super) const WRONG_OUTPUT: f64 = 0.5;

/// Relative error of a linear of plain floats from which its weights are others; rounding costs it 0.002 at most.
const WRONG_FLOATS: f64 = 0.01;

/// Relative error of a linear from which its weights are others, by what it is stored as.
pub(super) fn wrong(target: &StoredMatrix<'_>) -> f64 {
    target.packed().map_or(WRONG_FLOATS, |packed| packed.format.row().wrong)
}

/// Relative error of sums of squares; NaN where there was nothing and now is something.
pub(super) fn ratio(squared_error: f64, squares: f64) -> f64 {
    match squared_error == 0.0 {
        true => 0.0,
        false => (squared_error / squares).sqrt(),
    }
}
