//! Workers let other threads run now and then.
//!
//! Where workers keep every processor busy, a thread that wakes to answer a request waits for the system's next tick, which is 4 ms away on
//! many kernels. So a worker yields between tasks. Where other programs want the processors too, each yield costs it a whole slice of theirs:
//! what it gives is bounded, and beyond that the system alone decides.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time for which a worker computes without letting others run.
const TURN: Duration = Duration::from_micros(250);

/// Others get one in so many parts of a worker's time, on the average.
const GIVEN_SHARE: i64 = 8;

/// Most that a worker saves up for others, nanoseconds: a few slices.
const MAX_ALLOWANCE: i64 = 20_000_000;

/// What a worker may give to others.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Allowance {
    /// Negative: they took more than their share.
    nanos: i64,
}

impl Allowance {
    const FULL: Self = Self { nanos: MAX_ALLOWANCE };

    /// After some time of computing.
    fn earned(self, worked: Duration) -> Self {
        Self { nanos: self.nanos.saturating_add(nanos(worked) / GIVEN_SHARE).min(MAX_ALLOWANCE) }
    }

    /// After others ran.
    fn spent(self, given: Duration) -> Self {
        Self { nanos: self.nanos.saturating_sub(nanos(given)) }
    }

    fn is_left(self) -> bool {
        self.nanos > 0
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Lets other threads run if the calling one has computed for a turn; to be called between tasks.
pub(super) fn give() {
    thread_local!(static LAST: Cell<Option<(Instant, Allowance)>> = const { Cell::new(None) });
    let now = Instant::now();
    let Some((since, allowance)) = LAST.get() else {
        return LAST.set(Some((now, Allowance::FULL)));
    };
    let worked = now - since;
    if worked < TURN {
        return;
    }
    let allowance = allowance.earned(worked);
    if !allowance.is_left() {
        return LAST.set(Some((now, allowance)));
    }
    std::thread::yield_now();
    let end = Instant::now();
    LAST.set(Some((end, allowance.spent(end - now))));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(4);

    #[test]
    fn others_get_their_share_and_no_more() {
        let (mut allowance, mut worked, mut given) = (Allowance::FULL, Duration::ZERO, Duration::ZERO);
        for _ in 0..100_000 {
            worked += TURN;
            allowance = allowance.earned(TURN);
            if allowance.is_left() {
                given += SLICE;
                allowance = allowance.spent(SLICE);
            }
        }
        let share = given.as_secs_f64() / worked.as_secs_f64();
        assert!((share * GIVEN_SHARE as f64 - 1.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn who_takes_little_is_always_let_run() {
        let mut allowance = Allowance::FULL;
        for _ in 0..100_000 {
            allowance = allowance.earned(TURN).spent(TURN / 10);
            assert!(allowance.is_left());
        }
    }

    #[test]
    fn what_is_saved_is_bounded() {
        assert_eq!(Allowance::FULL.earned(Duration::MAX), Allowance::FULL);
        assert_eq!(Allowance::FULL.spent(Duration::MAX).nanos, MAX_ALLOWANCE - i64::MAX);
        assert!(!Allowance::FULL.spent(6 * SLICE).earned(8 * SLICE - TURN).is_left());
        assert!(Allowance::FULL.spent(6 * SLICE).earned(8 * SLICE + TURN).is_left());
    }
}
