//! A histogram of a metrics page: what was observed between two scrapes, and its quantiles.

/// Counts of observations up to each edge.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Histogram {
    /// Edge and number of observations up to it, by rising edge; the last edge is infinite.
    cumulative: Vec<(f64, f64)>,
    sum: f64,
}

impl Histogram {
    /// Buckets in any order.
    pub(super) fn new(mut cumulative: Vec<(f64, f64)>, sum: f64) -> Self {
        cumulative.retain(|(edge, count)| !edge.is_nan() && count.is_finite());
        cumulative.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { cumulative, sum: if sum.is_finite() { sum } else { 0.0 } }
    }

    /// Number of observations.
    pub(super) fn count(&self) -> f64 {
        self.cumulative.last().map_or(0.0, |(_, count)| *count)
    }

    /// Their sum.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// Their mean; `None` of none.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// The observations since `earlier`. A bucket that `earlier` lacks, or that has become smaller, counts from zero.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        if earlier.count() > self.count() {
            return self.clone();
        }
        let before = |edge: f64| earlier.cumulative.iter().find(|(e, _)| *e == edge).map_or(0.0, |(_, c)| *c);
        let delta = |(edge, count): &(f64, f64)| (*edge, (count - before(*edge)).max(0.0));
        Self {
            cumulative: self.cumulative.iter().map(delta).collect(),
            sum: (self.sum - earlier.sum).max(0.0),
        }
    }

    /// The value below which a share `q` of the observations lies, interpolated within its bucket as Prometheus'
    /// `histogram_quantile` does. In the last bucket, which has no upper edge, its lower one. `None` of no observations.
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

    fn histogram(counts: [f64; 3]) -> Histogram {
        Histogram::new(vec![(f64::INFINITY, counts[2]), (1.0, counts[0]), (2.0, counts[1])], counts[2] * 1.5)
    }

    #[test]
    fn quantiles() {
        for (counts, q, expected) in [
            ([0.0, 0.0, 0.0], 0.5, None),
            ([10.0, 10.0, 10.0], 0.5, Some(0.5)),
            ([0.0, 10.0, 10.0], 0.5, Some(1.5)),
            ([5.0, 10.0, 10.0], 0.5, Some(1.0)),
            ([5.0, 10.0, 10.0], 0.99, Some(1.98)),
            ([0.0, 0.0, 10.0], 0.5, Some(2.0)),
            ([0.0, 9.0, 10.0], 0.99, Some(2.0)),
            ([0.0, 10.0, 10.0], 0.0, Some(1.0)),
            ([0.0, 10.0, 10.0], 1.0, Some(2.0)),
        ] {
            assert_eq!(histogram(counts).quantile(q), expected, "{counts:?} {q}");
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(
            Histogram::new(vec![(f64::NAN, 1.0), (f64::INFINITY, f64::NAN)], f64::NAN).quantile(0.5),
            None
        );
    }

    #[test]
    fn deltas() {
        let delta = histogram([3.0, 5.0, 6.0]).since(&histogram([3.0, 4.0, 4.0]));
        assert_eq!((delta.count(), delta.sum(), delta.mean()), (2.0, 3.0, Some(1.5)));
        assert_eq!(delta.quantile(0.5), Some(2.0));
        // Of a server that began again, all that it has seen is new.
        assert_eq!(histogram([1.0, 1.0, 1.0]).since(&histogram([3.0, 4.0, 4.0])), histogram([1.0, 1.0, 1.0]));
        assert_eq!(histogram([1.0, 1.0, 1.0]).since(&Histogram::default()), histogram([1.0, 1.0, 1.0]));
        assert_eq!(Histogram::default().since(&Histogram::default()).mean(), None);
    }
}
