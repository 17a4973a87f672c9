//! Ranks that share the model: their time in exchanges, and which of them the others wait for.
//!
//! A step takes every rank as long as the slowest one, so the steps' time does not tell the ranks apart. Their exchanges do: a rank that is
//! late waits least in them. A rank's own time is that of the steps less its exchanges, which the kernels of the exchanges count: neither a
//! launch nor a synchronisation is made for it. The time between kernels is in every rank's, so that own times differ by less than the
//! devices do.

use super::families::Metric;
use super::recorder::Recorder;

/// Fewest steps that are compared.
const STEPS: u64 = 100;
/// Own time, by the median of the other ranks', above which the others wait for a rank.
pub const SLOW_RANK: f64 = 1.3;
/// Least share of own time in the steps' for a comparison: below it the difference of the host's and the devices' clocks counts.
const LEAST_SHARE: f64 = 0.1;

/// Seconds of each rank in exchanges so far.
pub(super) type ExchangeSeconds = Box<dyn Fn() -> Vec<f64> + Send + Sync>;

/// A rank that the others wait for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Straggler {
    /// Its number.
    pub rank: usize,
    /// Its own time by the median of the other ranks'.
    pub slowness: f64,
}

/// Sums so far: steps, their seconds, and each rank's seconds in exchanges.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    pub(super) steps: u64,
    pub(super) seconds: f64,
    pub(super) exchange_seconds: Vec<f64>,
}

/// Compares ranks over windows of at least [`STEPS`] steps.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Beginning of the window.
    from: Option<Sums>,
    /// By rank, in the last window; empty before it.
    slowness: Vec<f64>,
    /// The slowest rank of the window before, if it was slow.
    suspect: Option<usize>,
}

impl Comparison {
    /// Ends the window where it has enough steps. Returns a rank that was slow in it and in the one before: a window that ends between
    /// two ranks' counts of a long step has that step's wait of one of them alone.
    pub(super) fn compare(&mut self, now: Sums) -> Option<Straggler> {
        let from = self.from.get_or_insert_with(|| now.clone());
        if now.steps - from.steps < STEPS {
            return None;
        }
        let seconds = now.seconds - from.seconds;
        let exchanges = now.exchange_seconds.iter().zip(&from.exchange_seconds);
        let own: Vec<f64> = exchanges.map(|(now, from)| seconds - (now - from)).collect();
        self.slowness = slowness(&own, seconds);
        self.from = Some(now);
        let slowest = self.slowness.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        let slow = slowest.filter(|(_, slowness)| *slowness > SLOW_RANK);
        let before = std::mem::replace(&mut self.suspect, slow.map(|(rank, _)| rank));
        let (rank, slowness) = slow.filter(|(rank, _)| before == Some(*rank))?;
        Some(Straggler { rank, slowness })
    }

    pub(super) fn show(&self, recorder: &Recorder) {
        recorder.clear(Metric::RankSlowness);
        for (rank, slowness) in self.slowness.iter().enumerate() {
            recorder.record_with(Metric::RankSlowness, &[&rank.to_string()], *slowness);
        }
    }
}

/// Own time of each rank by the median of the others'; empty where they cannot be compared.
fn slowness(own: &[f64], seconds: f64) -> Vec<f64> {
    let median = |rank: usize| {
        let others = own.iter().enumerate().filter(|(other, _)| *other != rank);
        let mut others: Vec<f64> = others.map(|(_, own)| *own).collect();
        others.sort_by(f64::total_cmp);
        let middle = others.len() / 2;
        match others.len() % 2 {
            1 => others[middle],
            _ => (others[middle - 1] + others[middle]) / 2.0,
        }
    };
    if own.len() < 2 {
        return Vec::new();
    }
    let medians: Vec<f64> = (0..own.len()).map(median).collect();
    match medians.iter().all(|median| *median > LEAST_SHARE * seconds) {
        true => own.iter().zip(medians).map(|(own, median)| own / median).collect(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slowness of ranks with these shares of a second in exchanges.
    fn of_waits(waits: &[f64]) -> Vec<f64> {
        let own: Vec<f64> = waits.iter().map(|wait| 1.0 - wait).collect();
        slowness(&own, 1.0).into_iter().map(|slowness| (slowness * 100.0).round() / 100.0).collect()
    }

    #[test]
    fn the_rank_that_waits_least_is_the_slowest() {
        assert!(of_waits(&[]).is_empty());
        assert!(of_waits(&[0.0]).is_empty());
        assert_eq!(of_waits(&[0.0, 0.0, 0.0]), [1.0, 1.0, 1.0]);
        assert_eq!(of_waits(&[0.1, 0.4]), [1.5, 0.67]);
        assert_eq!(of_waits(&[0.4, 0.5, 0.1, 0.6]), [1.2, 0.83, 1.8, 0.67]);
        // All of it is exchanges, as far as the clocks tell.
        assert!(of_waits(&[0.99, 0.95]).is_empty());
        assert!(of_waits(&[1.2, 0.5]).is_empty());
    }

    #[test]
    fn a_straggler_is_slow_over_two_windows() {
        let mut comparison = Comparison::default();
        let mut sums = Sums { exchange_seconds: vec![3.0; 3], ..Sums::default() };
        let mut after = |steps: u64, waits: [f64; 3]| {
            sums.steps += steps;
            sums.seconds += 1.0;
            sums.exchange_seconds.iter_mut().zip(waits).for_each(|(sum, wait)| *sum += wait);
            comparison.compare(sums.clone()).map(|straggler| straggler.rank)
        };
        let (alike, first, last) = ([0.5; 3], [0.1, 0.5, 0.5], [0.5, 0.5, 0.1]);
        // The sums before the first window are those of the warm-up.
        assert_eq!(after(100, alike), None);
        assert_eq!([after(100, last), after(100, last)], [None, Some(2)]);
        assert_eq!([after(100, first), after(100, alike), after(100, first)], [None; 3]);
        // Too few steps: the window goes on.
        assert_eq!([after(60, first), after(60, first)], [None, Some(0)]);
    }
}
