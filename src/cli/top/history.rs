//! The course of the last minutes, for charts: one point per scrape, and columns of equal time.

use std::collections::VecDeque;
use std::time::Duration;

/// What charts reach back to.
pub(super) const HISTORY: Duration = Duration::from_secs(180);
/// Most points that are kept, whatever the interval is.
const MAX_POINTS: usize = 4096;

/// The figures between a scrape and the one before it.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Tokens per second.
    pub(super) prompt: f64,
    pub(super) reply: f64,
    pub(super) running: f64,
    pub(super) waiting: f64,
    /// Share of the KV blocks that sequences use.
    pub(super) cache: f64,
    /// Share of the time in which the engine is in a step.
    pub(super) busy: f64,
    /// Means, seconds; `None` of no observation.
    pub(super) first_token: Option<f64>,
    pub(super) inter_token: Option<f64>,
}

/// Points by rising time.
#[derive(Debug, Default, Clone)]
pub(super) struct History {
    points: VecDeque<(Duration, Point)>,
}

impl History {
    pub(super) fn push(&mut self, at: Duration, point: Point) {
        self.points.push_back((at, point));
        // Twice the reach, since columns begin at whole multiples of their length.
        while self.points.len() > MAX_POINTS
            || self.points.front().is_some_and(|(time, _)| at.saturating_sub(*time) > 2 * HISTORY)
        {
            self.points.pop_front();
        }
    }

    /// The time of one of `num_columns` columns: at least an interval, or some would have no point.
    pub(super) fn column(num_columns: usize, interval: Duration) -> Duration {
        let seconds = (HISTORY.as_secs_f64() / num_columns.max(1) as f64).ceil();
        let interval = interval.as_secs_f64().ceil().max(1.0);
        Duration::from_secs_f64((seconds / interval).ceil() * interval)
    }

    /// Means of a figure over columns of time, of which the last has `now`; `None` where no point has it. Columns begin at
    /// multiples of their length, so that a chart moves and its columns do not change.
    pub(super) fn columns(
        &self,
        num_columns: usize,
        column: Duration,
        now: Duration,
        figure: impl Fn(&Point) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        let index = |time: Duration| (time.as_secs_f64() / column.as_secs_f64()).floor() as usize;
        let mut sums = vec![(0.0, 0u32); num_columns];
        for (at, point) in &self.points {
            let age = index(now).checked_sub(index(*at)).filter(|age| *age < num_columns);
            if let (Some(age), Some(value)) = (age, figure(point)) {
                let (sum, count) = &mut sums[num_columns - 1 - age];
                (*sum, *count) = (*sum + value, *count + 1);
            }
        }
        sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / f64::from(count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(reply: f64) -> Point {
        Point { reply, ..Point::default() }
    }

    #[test]
    fn columns_have_the_means_of_their_points() {
        let mut history = History::default();
        for (at, reply) in [(0, 1.0), (1, 3.0), (4, 8.0), (5, 10.0), (6, 7.0)] {
            history.push(Duration::from_secs(at), point(reply));
        }
        let columns = |now| {
            history.columns(4, Duration::from_secs(2), Duration::from_secs(now), |point| Some(point.reply))
        };
        assert_eq!(columns(6), [Some(2.0), None, Some(9.0), Some(7.0)]);
        assert_eq!(columns(7), columns(6));
        assert_eq!(columns(8), [None, Some(9.0), Some(7.0), None]);
        assert_eq!(columns(100), [None; 4]);
    }

    #[test]
    fn columns_span_the_history() {
        let column = |num_columns, interval_ms| {
            History::column(num_columns, Duration::from_millis(interval_ms)).as_secs()
        };
        assert_eq!(column(60, 1000), 3);
        assert_eq!(column(50, 1000), 4);
        assert_eq!(column(50, 200), 4);
        assert_eq!(column(50, 5000), 5);
        assert_eq!(column(50, 3000), 6);
        assert_eq!(column(0, 1000), 180);
        assert_eq!(column(1000, 1), 1);
    }

    #[test]
    fn points_are_bounded() {
        let mut history = History::default();
        for at in 0..10_000 {
            history.push(Duration::from_millis(at), point(0.0));
        }
        assert_eq!(history.points.len(), MAX_POINTS);
        history.push(Duration::from_secs(10_000), point(0.0));
        assert_eq!(history.points.len(), 1);
    }
}
