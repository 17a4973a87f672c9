//! The scrapes of the last minute: rates and observations between two of them.
//!
//! All scrapes that are kept are of one server process, so that no difference spans a restart.

use std::collections::VecDeque;
use std::time::Duration;

use super::histogram::Histogram;
use super::reading::{ByLabel, Reading};

/// Rates are means over this time.
pub(super) const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Latencies are of the observations in this time.
pub(super) const LATENCY_WINDOW: Duration = Duration::from_secs(60);

/// Scrapes by rising time. The times are since any fixed moment.
#[derive(Debug, Default, Clone)]
pub(super) struct Window {
    readings: VecDeque<(Duration, Reading)>,
}

/// Two scrapes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span<'a> {
    first: &'a Reading,
    last: &'a Reading,
    seconds: f64,
}

impl Window {
    /// Adds a scrape; those that no window reaches any more are dropped. Returns whether the server has begun again, which empties
    /// the window first.
    pub(super) fn push(&mut self, at: Duration, reading: Reading) -> bool {
        let restarted = self.last().is_some_and(|last| reading.began_after(last));
        if restarted {
            self.readings.clear();
        }
        self.readings.push_back((at, reading));
        // One scrape from before the window stays: the differences reach back to it.
        while self.readings.get(1).is_some_and(|(time, _)| at.saturating_sub(*time) >= LATENCY_WINDOW) {
            self.readings.pop_front();
        }
        restarted
    }

    /// The last scrape.
    pub(super) fn last(&self) -> Option<&Reading> {
        self.readings.back().map(|(_, reading)| reading)
    }

    /// When it was taken.
    pub(super) fn last_at(&self) -> Option<Duration> {
        self.readings.back().map(|(at, _)| *at)
    }

    /// The least value of a gauge in the scrapes of this time; `None` if they do not reach back that far.
    pub(super) fn least(&self, length: Duration, gauge: impl Fn(&Reading) -> f64) -> Option<f64> {
        let (until, _) = self.readings.back()?;
        let mut least = f64::INFINITY;
        for (at, reading) in self.readings.iter().rev() {
            least = least.min(gauge(reading));
            if until.saturating_sub(*at) >= length {
                return Some(least);
            }
        }
        None
    }

    /// The last two scrapes.
    pub(super) fn step(&self) -> Option<Span<'_>> {
        self.span(Duration::ZERO)
    }

    /// From the newest scrape that is at least `length` old to the last one; with fewer, from the first. `None` of fewer than two.
    pub(super) fn span(&self, length: Duration) -> Option<Span<'_>> {
        let (until, last) = self.readings.back()?;
        let earlier = self.readings.iter().rev().skip(1);
        let (from, first) = earlier
            .clone()
            .find(|(time, _)| until.saturating_sub(*time) >= length)
            .or_else(|| self.readings.front().filter(|_| self.readings.len() > 1))?;
        let seconds = until.saturating_sub(*from).as_secs_f64();
        (seconds > 0.0).then_some(Span { first, last, seconds })
    }
}

impl Span<'_> {
    /// Time between the two scrapes.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// By how much a counter rose.
    pub(super) fn delta(&self, counter: impl Fn(&Reading) -> f64) -> f64 {
        (counter(self.last) - counter(self.first)).max(0.0)
    }

    /// The same per second.
    pub(super) fn rate(&self, counter: impl Fn(&Reading) -> f64) -> f64 {
        self.delta(counter) / self.seconds
    }

    /// By how much the counters of a family rose; those that did not are left out.
    pub(super) fn deltas(&self, family: impl Fn(&Reading) -> &ByLabel) -> ByLabel {
        let before = family(self.first);
        let delta = |(label, value): (&String, &f64)| {
            let delta = value - before.get(label).copied().unwrap_or(0.0);
            (delta > 0.0).then(|| (label.clone(), delta))
        };
        family(self.last).iter().filter_map(delta).collect()
    }

    /// The same per second.
    pub(super) fn rates(&self, family: impl Fn(&Reading) -> &ByLabel) -> ByLabel {
        self.deltas(family).into_iter().map(|(label, delta)| (label, delta / self.seconds)).collect()
    }

    /// What a histogram has observed.
    pub(super) fn observed(&self, histogram: impl Fn(&Reading) -> &Histogram) -> Histogram {
        histogram(self.last).since(histogram(self.first))
    }

    /// The share that one counter's rise is of another's; `None` if that did not rise.
    pub(super) fn share(
        &self,
        part: impl Fn(&Reading) -> f64,
        whole: impl Fn(&Reading) -> f64,
    ) -> Option<f64> {
        let whole = self.delta(whole);
        (whole > 0.0).then(|| self.delta(part) / whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(reply_tokens: f64, started: f64) -> Reading {
        let mut reading = Reading { reply_tokens, ..Reading::default() };
        reading.facts.started = Some(started);
        reading.finished = ByLabel::from([("stop".into(), reply_tokens / 10.0), ("error".into(), 1.0)]);
        reading
    }

    fn window(readings: &[(u64, f64)]) -> Window {
        let mut window = Window::default();
        for (at, tokens) in readings {
            assert!(!window.push(Duration::from_secs(*at), reading(*tokens, 1.0)));
        }
        window
    }

    #[test]
    fn rates_reach_back_to_the_window() {
        let check = |readings: &[(u64, f64)], expected: Option<f64>| {
            let window = window(readings);
            assert_eq!(window.span(RATE_WINDOW).map(|span| span.rate(|r| r.reply_tokens)), expected);
        };
        check(&[], None);
        check(&[(0, 5.0)], None);
        check(&[(0, 5.0), (2, 9.0)], Some(2.0));
        check(&[(0, 0.0), (10, 100.0), (20, 300.0)], Some(20.0));
        check(&[(0, 0.0), (11, 100.0), (20, 300.0)], Some(15.0));
        // Scrapes that are further apart than the window.
        check(&[(0, 0.0), (100, 100.0), (200, 300.0)], Some(2.0));
    }

    #[test]
    fn gauges_that_last() {
        let window = window(&[(0, 1.0), (1, 2.0), (2, 3.0), (4, 4.0)]);
        let least = |seconds| window.least(Duration::from_secs(seconds), |r| (r.reply_tokens - 3.0).abs());
        assert_eq!([0, 1, 2, 4, 5].map(least), [Some(1.0), Some(0.0), Some(0.0), Some(0.0), None]);
    }

    #[test]
    fn families() {
        let window = window(&[(0, 0.0), (2, 40.0)]);
        let span = window.step().unwrap();
        assert_eq!(span.rates(|r| &r.finished), ByLabel::from([("stop".into(), 2.0)]));
        assert_eq!(span.share(|r| r.reply_tokens, |r| r.prompt_tokens), None);
        assert_eq!(span.share(|r| r.reply_tokens, |r| r.reply_tokens * 2.0), Some(0.5));
    }

    #[test]
    fn a_restart_empties_the_window() {
        let mut window = window(&[(0, 1000.0), (1, 2000.0)]);
        assert!(window.push(Duration::from_secs(2), reading(10.0, 2.0)));
        assert!(window.span(RATE_WINDOW).is_none() && window.step().is_none());
        assert!(!window.push(Duration::from_secs(3), reading(15.0, 2.0)));
        assert_eq!(window.span(RATE_WINDOW).unwrap().rate(|r| r.reply_tokens), 5.0);
        // The same start, and counters that fell.
        assert!(window.push(Duration::from_secs(4), reading(1.0, 2.0)));
    }

    #[test]
    fn old_scrapes_are_dropped() {
        let all: Vec<_> = (0..1000).map(|at| (at, at as f64)).collect();
        let window = window(&all);
        assert_eq!(window.readings.len(), 61);
        assert_eq!(window.span(LATENCY_WINDOW).unwrap().seconds(), 60.0);
    }
}
