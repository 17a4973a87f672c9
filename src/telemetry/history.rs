//! Figures of the last 15 minutes, for charts that begin before somebody looks.
//!
//! A ring of samples of fixed size. The caller says when a sample is taken and what was read, so that nothing here knows a
//! clock or a registry. Counters are kept as their increases between two samples, which is what a chart of a short time shows
//! and what `f32` holds exactly.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// Time between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Samples that are kept: 15 minutes.
const KEPT: usize = 450;
/// Samples whose observations a quantile is taken of, the last one included: 10 s, several steps of a slow model.
const QUANTILE_SAMPLES: usize = 5;

/// Gauges, in the order of [`Reading::gauges`].
pub(super) const GAUGES: [&str; 4] = ["running", "waiting", "kv_used", "kv_cached"];
/// Counters, in the order of [`Reading::counters`].
pub(super) const COUNTERS: [&str; 19] = [
    "generated_tokens",
    "prompt_tokens",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "http_4xx",
    "http_499",
    "http_5xx",
    "finished_stop",
    "finished_length",
    "finished_abort",
    "finished_error",
    "finished_repetition",
    "guard_warned",
    "guard_rescued",
    "guard_closed_thinking",
    "guard_stopped",
    "numeric_faults",
];
/// Quantiles of each of the [`HISTOGRAMS`].
const QUANTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];
/// Histograms, in the order of [`Reading::histograms`].
pub(super) const HISTOGRAMS: [&str; 3] = ["ttft", "token_gap", "step"];
const SERIES: usize = GAUGES.len() + COUNTERS.len() + HISTOGRAMS.len() * QUANTILES.len();

/// Upper edges of a histogram with the number of observations up to each.
pub(super) type Buckets = Vec<(f64, u64)>;

/// What the registry holds at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    pub(super) gauges: [f64; GAUGES.len()],
    /// Totals since the start.
    pub(super) counters: [f64; COUNTERS.len()],
    /// Totals since the start.
    pub(super) histograms: [Buckets; HISTOGRAMS.len()],
}

/// The samples of the last 15 minutes.
#[derive(Debug)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// Samples taken so far, those included that are kept no more.
    taken: u64,
    /// The readings of the last samples, oldest first; the first one is that of the start.
    readings: VecDeque<Reading>,
    /// Time of the last sample, from the start.
    last: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// From the start.
    at: Duration,
    /// Since the sample before.
    length_s: f32,
    /// In the order of [`names`]; NaN where nothing was observed.
    values: [f32; SERIES],
}

/// The samples after one that the reader knows.
#[derive(Debug, Serialize)]
pub struct HistoryReport {
    /// Age of the process's metrics, seconds.
    uptime_s: f64,
    /// The longest time back that is kept, seconds.
    keeps_s: f64,
    /// Number of the first sample below, counted from the start. The last sample is not over: its number comes again.
    first: u64,
    /// By sample: its end, seconds ago.
    ages_s: Vec<f32>,
    /// By sample: its length in seconds.
    lengths_s: Vec<f32>,
    /// By name and sample. Counters: increases within the sample. Quantiles: of 10 s, `null` where nothing was observed.
    series: std::collections::BTreeMap<String, Vec<Option<f32>>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            samples: VecDeque::with_capacity(KEPT),
            taken: 0,
            readings: VecDeque::from([Reading::default()]),
            last: Duration::ZERO,
        }
    }
}

impl History {
    /// Takes a sample, `now` being the time from the start.
    pub(super) fn take(&mut self, now: Duration, reading: Reading) {
        let sample = self.sample(now, &reading);
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        if self.readings.len() == QUANTILE_SAMPLES {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
        self.taken += 1;
        self.last = now;
    }

    /// The samples from number `from` on, with the one under way as if it ended `now`.
    pub(super) fn report(&self, now: Duration, reading: &Reading, from: u64) -> HistoryReport {
        let oldest = self.taken - self.samples.len() as u64;
        let first = from.clamp(oldest, self.taken);
        let under_way = self.sample(now, reading);
        let samples: Vec<Sample> =
            self.samples.iter().copied().skip((first - oldest) as usize).chain([under_way]).collect();
        let series = names().enumerate().map(|(index, name)| {
            let known = |sample: &Sample| Some(sample.values[index]).filter(|value| value.is_finite());
            (name, samples.iter().map(known).collect())
        });
        HistoryReport {
            uptime_s: now.as_secs_f64(),
            keeps_s: SAMPLE_EVERY.as_secs_f64() * KEPT as f64,
            first,
            ages_s: samples.iter().map(|sample| now.saturating_sub(sample.at).as_secs_f32()).collect(),
            lengths_s: samples.iter().map(|sample| sample.length_s).collect(),
            series: series.collect(),
        }
    }

    fn sample(&self, now: Duration, reading: &Reading) -> Sample {
        let last = self.readings.back().expect("there is one from the start on");
        let oldest = self.readings.front().expect("likewise");
        let increases = reading.counters.iter().zip(last.counters).map(|(now, before)| now - before);
        let quantiles = reading.histograms.iter().zip(&oldest.histograms).flat_map(|(now, before)| {
            QUANTILES.map(|(_, share)| quantile(now, before, share).unwrap_or(f64::NAN))
        });
        let mut values = [f32::NAN; SERIES];
        for (place, value) in
            values.iter_mut().zip(reading.gauges.into_iter().chain(increases).chain(quantiles))
        {
            *place = value as f32;
        }
        Sample { at: now, length_s: now.saturating_sub(self.last).as_secs_f32(), values }
    }
}

fn names() -> impl Iterator<Item = String> {
    let quantiles =
        HISTOGRAMS.iter().flat_map(|name| QUANTILES.map(|(quantile, _)| format!("{name}_{quantile}")));
    GAUGES.iter().chain(&COUNTERS).map(|name| (*name).to_owned()).chain(quantiles)
}

/// A quantile of what was observed between two readings, as `histogram_quantile` of Prometheus: linear within a bucket. Beyond
/// the last edge that edge is given. `None` where nothing was observed.
fn quantile(now: &Buckets, before: &Buckets, share: f64) -> Option<f64> {
    let old = |index: usize| before.get(index).map_or(0, |(_, count)| *count);
    let counts: Vec<(f64, u64)> = now
        .iter()
        .enumerate()
        .map(|(index, (edge, count))| (*edge, count.saturating_sub(old(index))))
        .collect();
    let total = counts.last()?.1;
    if total == 0 {
        return None;
    }
    let rank = share * total as f64;
    let at = counts.iter().position(|(_, count)| *count as f64 >= rank)?;
    let (low_edge, low_count) = if at > 0 { counts[at - 1] } else { (0.0, 0) };
    let (edge, count) = counts[at];
    if edge.is_infinite() {
        return Some(low_edge);
    }
    let within = (rank - low_count as f64) / (count - low_count).max(1) as f64;
    Some(low_edge + (edge - low_edge) * within)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    /// Refusals and tokens so far.
    fn reading(refused: f64, tokens: f64) -> Reading {
        let mut reading = Reading::default();
        reading.counters[0] = tokens;
        reading.counters[COUNTERS.iter().position(|name| *name == "http_4xx").unwrap()] = refused;
        reading
    }

    fn of(report: &HistoryReport, name: &str) -> Vec<f32> {
        report.series[name].iter().map(|value| value.unwrap_or(f32::NAN)).collect()
    }

    /// Regression: a page that was just opened said that there was no error in the last minutes.
    #[test]
    fn what_happened_before_somebody_looks_is_told() {
        let mut history = History::default();
        history.take(seconds(2.0), reading(3.0, 0.0));
        history.take(seconds(4.0), reading(3.0, 10.0));
        let report = history.report(seconds(5.5), &reading(4.0, 10.0), 0);
        assert_eq!(of(&report, "http_4xx"), [3.0, 0.0, 1.0]);
        assert_eq!(of(&report, "generated_tokens"), [0.0, 10.0, 0.0]);
        assert_eq!((report.uptime_s, report.first), (5.5, 0));
        assert_eq!((report.ages_s, report.lengths_s), (vec![3.5, 1.5, 0.0], vec![2.0, 2.0, 1.5]));
    }

    #[test]
    fn a_reader_gets_what_it_does_not_know() {
        let mut history = History::default();
        for second in 1..=5 {
            history.take(seconds(f64::from(second) * 2.0), reading(f64::from(second), 0.0));
        }
        let report = |from| history.report(seconds(11.0), &reading(9.0, 0.0), from);
        assert_eq!((report(3).first, of(&report(3), "http_4xx")), (3, vec![1.0, 1.0, 4.0]));
        // The one under way alone.
        for from in [5, 6, u64::MAX] {
            assert_eq!((report(from).first, of(&report(from), "http_4xx")), (5, vec![4.0]), "{from}");
        }
    }

    #[test]
    fn the_ring_is_bounded_and_keeps_fifteen_minutes() {
        let mut history = History::default();
        let capacity = history.samples.capacity();
        for count in 0..2000 {
            history.take(SAMPLE_EVERY * (count + 1), reading(f64::from(count), 0.0));
        }
        assert_eq!((history.samples.len(), history.samples.capacity()), (KEPT, capacity));
        assert_eq!(history.readings.len(), QUANTILE_SAMPLES);
        let report = history.report(SAMPLE_EVERY * 2000, &reading(1999.0, 0.0), 0);
        assert_eq!((report.first, report.ages_s.len(), report.keeps_s), (1550, KEPT + 1, 900.0));
        let bytes = KEPT * size_of::<Sample>();
        assert!(bytes < 64_000, "{bytes} bytes");
    }

    #[test]
    fn quantiles_are_of_the_last_ten_seconds() {
        let observed = |counts: [u64; 3]| {
            let [a, b, c] = counts;
            let buckets = vec![(0.1, a), (1.0, b), (f64::INFINITY, c)];
            Reading { histograms: [buckets, vec![], vec![]], ..Reading::default() }
        };
        let mut history = History::default();
        history.take(seconds(2.0), observed([10, 10, 10]));
        assert_eq!(of(&history.report(seconds(2.0), &observed([10, 10, 10]), 0), "ttft_p50")[0], 0.05);
        for count in 2..=5 {
            history.take(seconds(f64::from(count) * 2.0), observed([10, 10, 10]));
        }
        // Nothing within ten seconds, then something that is slow.
        let none = history.report(seconds(12.0), &observed([10, 10, 10]), 5);
        assert_eq!(none.series["ttft_p50"], [None]);
        let slow = history.report(seconds(12.0), &observed([10, 20, 20]), 5);
        assert_eq!(of(&slow, "ttft_p50"), [0.55]);
        let beyond = history.report(seconds(12.0), &observed([10, 10, 12]), 5);
        assert_eq!(of(&beyond, "ttft_p99"), [1.0]);
    }
}
