//! The observations of a histogram in some time, and their quantiles.

use super::exposition::ByLabel;

/// Counts of observations up to each edge.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Histogram {
    /// Edge and number of observations up to it, by rising edge; the last edge is infinite.
    cumulative: Vec<(f64, f64)>,
    sum: f64,
}

impl Histogram {
    /// `buckets`: counts by the label `le`.
    pub(super) fn new(buckets: &ByLabel, sum: f64) -> Self {
        let edges = buckets.iter().filter_map(|(edge, count)| Some((edge.parse::<f64>().ok()?, *count)));
        let mut cumulative: Vec<(f64, f64)> = edges.filter(|(edge, _)| !edge.is_nan()).collect();
        cumulative.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { cumulative, sum }
    }

    /// Number of observations.
    pub(super) fn count(&self) -> f64 {
        self.cumulative.last().map_or(0.0, |(_, count)| *count)
    }

    /// Their mean; `None` of none.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// The value below which a share `q` of the observations lies, interpolated within its bucket as
    /// Prometheus' `histogram_quantile` does. In the last bucket, which has no upper edge, its lower
    /// one. `None` of no observations.
    pub(super) fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count();
        if self.count() <= 0.0 {
            return None;
        }
        let (mut low, mut below) = (0.0, 0.0);
        for (edge, count) in &self.cumulative {
            if *count >= rank && *count > below {
                let share = (rank - below) / (count - below);
                return Some(if edge.is_finite() { low + (edge - low) * share } else { low });
            }
            (low, below) = (*edge, count.max(below));
        }
        Some(low).filter(|low| low.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(counts: &[(&str, f64)], sum: f64) -> Histogram {
        Histogram::new(&counts.iter().map(|(edge, count)| ((*edge).to_owned(), *count)).collect(), sum)
    }

    #[test]
    fn quantiles() {
        for (counts, q, expected) in [
            ([0.0, 0.0, 0.0], 0.5, None),
            ([10.0, 10.0, 10.0], 0.5, Some(0.5)),
            ([0.0, 10.0, 10.0], 0.5, Some(1.5)),
            ([5.0, 10.0, 10.0], 0.99, Some(1.98)),
            ([0.0, 0.0, 10.0], 0.5, Some(2.0)),
            ([0.0, 9.0, 10.0], 0.99, Some(2.0)),
            ([0.0, 10.0, 10.0], 0.0, Some(1.0)),
            ([0.0, 10.0, 10.0], 1.0, Some(2.0)),
        ] {
            let counts = [("+Inf", counts[2]), ("1", counts[0]), ("2", counts[1])];
            assert_eq!(histogram(&counts, 1.0).quantile(q), expected, "{counts:?} {q}");
        }
        let odd = histogram(&[("NaN", 9.0), ("?", 9.0), ("+Inf", 4.0)], 6.0);
        assert_eq!((odd.count(), odd.mean(), odd.quantile(0.5)), (4.0, Some(1.5), Some(0.0)));
        assert_eq!(histogram(&[], 0.0).mean(), None);
    }
}
