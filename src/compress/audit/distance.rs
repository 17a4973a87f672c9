//! Relative error of weights and outputs, and the limit beyond which they are other weights.

/// Relative error of a linear from which it is a fault: no format is that bad, wrong weights are.
pub(super) const WRONG: f64 = 0.5;

/// Relative error of sums of squares; NaN where there was nothing and now is something.
pub(super) fn ratio(squared_error: f64, squares: f64) -> f64 {
    match squared_error == 0.0 {
        true => 0.0,
        false => (squared_error / squares).sqrt(),
    }
}
