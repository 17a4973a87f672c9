//! Exemplars: for a bucket of a histogram the trace of its last sampled observation, so that a dashboard leads from a slow bucket to a
//! request.
//!
//! Source: OpenMetrics 1.0.0, section "Exemplars".

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A histogram: name of its family, and the value of its only label, "" without one.
pub(super) type Series = (&'static str, &'static str);

/// The last exemplar of each bucket of some histograms.
#[derive(Debug, Default)]
pub(super) struct Exemplars(Mutex<BTreeMap<Series, Vec<Exemplar>>>);

/// An observation and its trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exemplar {
    trace_id: u128,
    value: f64,
    /// Seconds since 1970.
    at: f64,
}

impl Exemplars {
    /// Notes an observation of a histogram with buckets that end at `bounds`. A bucket keeps the last of its own: there are never more
    /// exemplars than buckets.
    pub(super) fn note(&self, series: Series, bounds: &[f64], trace_id: u128, value: f64) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let bucket_of = |value: f64| bounds.partition_point(|bound| *bound < value);
        let new = Exemplar { trace_id, value, at };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.entry(series).or_default();
        match kept.binary_search_by_key(&bucket_of(value), |old| bucket_of(old.value)) {
            Ok(index) => kept[index] = new,
            Err(index) => kept.insert(index, new),
        }
    }

    /// Exemplars of a histogram, by value.
    pub(super) fn of(&self, family: &str, label: &str) -> Vec<Exemplar> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|(series, _)| **series == (family, label));
        found.map(|(_, exemplars)| exemplars.clone()).unwrap_or_default()
    }
}

impl Exemplar {
    /// Whether it lies in the bucket above `low`, up to and with `high`.
    pub(super) fn is_within(&self, low: f64, high: f64) -> bool {
        low < self.value && self.value <= high
    }

    /// Adds it to the line of its bucket.
    pub(super) fn write(&self, line: &mut String) {
        let Self { trace_id, value, at } = self;
        write!(line, " # {{trace_id=\"{trace_id:032x}\"}} {value} {at:.3}")
            .expect("writing to memory does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_keeps_its_last_exemplar() {
        let (exemplars, bounds) = (Exemplars::default(), [0.1, 1.0]);
        for (trace_id, value) in [(1, 5.0), (2, 0.1), (3, 0.5), (4, 0.05), (5, 9.0), (6, 1.0)] {
            exemplars.note(("seconds", "/a"), &bounds, trace_id, value);
        }
        exemplars.note(("seconds", "/b"), &bounds, 7, 0.5);
        let ids = |label| exemplars.of("seconds", label).iter().map(|e| e.trace_id).collect::<Vec<_>>();
        assert_eq!((ids("/a"), ids("/b"), ids("/c")), (vec![4, 6, 5], vec![7], vec![]));
        let [first, second, third] = exemplars.of("seconds", "/a")[..] else { panic!("three buckets") };
        assert!(
            first.is_within(0.0, 0.1) && second.is_within(0.1, 1.0) && third.is_within(1.0, f64::INFINITY)
        );
        assert!(!second.is_within(0.0, 0.1) && !second.is_within(1.0, f64::INFINITY));
    }
}
