//! Log lines that could repeat without end.

use std::time::{Duration, Instant};

/// Least time between two of them.
const INTERVAL: Duration = Duration::from_secs(60);

/// Lets a log line pass once a minute.
#[derive(Debug, Default)]
pub struct Throttle(Option<Instant>);

impl Throttle {
    /// Whether the line is due; it counts as written then.
    pub fn pass(&mut self) -> bool {
        self.pass_at(Instant::now())
    }

    fn pass_at(&mut self, now: Instant) -> bool {
        let due = self.0.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if due {
            self.0 = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_passes_once_a_minute() {
        let (mut throttle, begun) = (Throttle::default(), Instant::now());
        let passed = [0, 1, 59, 60, 61, 119, 120, 500]
            .map(|seconds| throttle.pass_at(begun + Duration::from_secs(seconds)));
        assert_eq!(passed, [true, false, false, true, false, false, true, true]);
    }
}
