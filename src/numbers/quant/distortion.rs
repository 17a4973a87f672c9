//! Measures the error of a format.

/// Sums over the elements of one or more tensors, in f64. The order of tensors may change the last
/// bits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distortion {
    /// Sum of squared differences.
    pub error: f64,
    /// Sum of squared originals.
    pub signal: f64,
    /// Largest absolute difference.
    pub largest: f64,
}

impl Distortion {
    /// Sums over two slices of equal length: original and changed values.
    pub fn of(original: &[f32], changed: &[f32]) -> Self {
        let mut sums = Self::default();
        sums.add(original, changed);
        sums
    }

    /// Adds the elements of two slices of equal length.
    pub fn add(&mut self, original: &[f32], changed: &[f32]) {
        assert_eq!(original.len(), changed.len());
        // Sixteen f32 partial sums of at most 64 terms each are exact enough for a report and can
        // be vectorised.
        for (a, b) in original.chunks(1024).zip(changed.chunks(1024)) {
            let (mut error, mut signal, mut largest) = ([0.0f32; 16], [0.0f32; 16], [0.0f32; 16]);
            let (wide_a, tail_a) = a.as_chunks::<16>();
            let (wide_b, tail_b) = b.as_chunks::<16>();
            for (a, b) in wide_a.iter().zip(wide_b) {
                for lane in 0..16 {
                    let difference = a[lane] - b[lane];
                    error[lane] += difference * difference;
                    signal[lane] += a[lane] * a[lane];
                    let d = difference.abs();
                    largest[lane] = if d > largest[lane] { d } else { largest[lane] };
                }
            }
            for (a, b) in tail_a.iter().zip(tail_b) {
                let difference = a - b;
                error[0] += difference * difference;
                signal[0] += a * a;
                largest[0] = largest[0].max(difference.abs());
            }
            self.error += error.iter().map(|x| f64::from(*x)).sum::<f64>();
            self.signal += signal.iter().map(|x| f64::from(*x)).sum::<f64>();
            self.largest = largest.iter().fold(self.largest, |most, x| most.max(f64::from(*x)));
        }
    }

    /// Adds the sums of another value.
    pub fn merge(&mut self, other: &Self) {
        self.error += other.error;
        self.signal += other.signal;
        self.largest = self.largest.max(other.largest);
    }

    /// Relative Frobenius error, ||changed - original|| / ||original||; 0 where nothing changed.
    pub fn relative(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { (self.error / self.signal).sqrt() }
    }

    /// Signal to noise ratio, decibels; infinite where nothing changed.
    pub fn snr_db(&self) -> f64 {
        if self.error == 0.0 { f64::INFINITY } else { 10.0 * (self.signal / self.error).log10() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_known_difference() {
        let a: Vec<f32> = (0..3000).map(|i| i as f32).collect();
        let b: Vec<f32> = a.iter().map(|x| x * 1.25).collect();
        let whole = Distortion::of(&a, &b);
        assert!((whole.relative() - 0.25).abs() < 1e-6, "{}", whole.relative());
        assert!((whole.snr_db() - 12.0412).abs() < 1e-3);
        assert_eq!(whole.largest, 2999.0 * 0.25);
        let mut parts = Distortion::of(&a[..1024], &b[..1024]);
        parts.merge(&Distortion::of(&a[1024..], &b[1024..]));
        assert!((parts.error / whole.error - 1.0).abs() < 1e-12);
        assert_eq!(Distortion::of(&a, &a).relative(), 0.0);
        assert_eq!(Distortion::of(&a, &a).snr_db(), f64::INFINITY);
    }
}
