//! Workers yield to other threads at intervals.
//!
//! Where workers keep every processor busy, a thread that wakes to answer a request waits for the system's
//! next tick, which is 4 ms away on many kernels. So a worker yields between tasks. Where other programs
//! compute too, each yield costs the worker a whole slice of theirs: the time that it gives is bounded, and
//! beyond the bound it does not yield.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time for which a worker computes without letting others run.
const TURN: Duration = Duration::from_micros(500);

/// Others get one in so many parts of a worker's time, on the average.
const GIVEN_SHARE: i64 = 8;

/// Most that a worker saves up for others, nanoseconds: a slice, so that what begins to compute beside it holds a step up by one.
const MAX_ALLOWANCE: i64 = 4_000_000;

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

/// What a worker knows between two looks at the clock.
#[derive(Clone, Copy)]
struct Worker {
    /// Calls of [`give`] from one look to the next.
    stride: u32,
    looked: Instant,
    gave: Instant,
    allowance: Allowance,
}

/// Most calls between two looks.
const MAX_STRIDE: u32 = 64;

/// The next stride, after one that took so long. A task may be shorter than reading the clock takes.
fn stride_after(stride: u32, took: Duration) -> u32 {
    match took {
        took if took < TURN / 8 => (stride * 2).min(MAX_STRIDE),
        took if took < TURN / 2 => stride,
        _ => 1,
    }
}

/// Lets other threads run if the calling one has computed for a turn; to be called between tasks.
#[inline]
pub(super) fn give() {
    thread_local!(static LEFT: Cell<u32> = const { Cell::new(1) });
    let left = LEFT.get() - 1;
    LEFT.set(if left == 0 { look() } else { left });
}

/// Looks at the clock, and yields if it is time; calls until the next look.
#[cold]
#[inline(never)]
fn look() -> u32 {
    thread_local!(static WORKER: Cell<Option<Worker>> = const { Cell::new(None) });
    let now = Instant::now();
    let first = Worker { stride: 1, looked: now, gave: now, allowance: Allowance::FULL };
    let mut worker = WORKER.get().unwrap_or(first);
    worker.stride = stride_after(worker.stride, now - worker.looked);
    worker.looked = now;
    if now - worker.gave >= TURN {
        worker.allowance = worker.allowance.earned(now - worker.gave);
        worker.gave = now;
        if worker.allowance.is_left() {
            std::thread::yield_now();
            let end = Instant::now();
            worker.allowance = worker.allowance.spent(end - now);
            (worker.looked, worker.gave) = (end, end);
        }
    }
    WORKER.set(Some(worker));
    worker.stride
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
    fn the_clock_is_read_several_times_a_turn_and_no_more() {
        for nanos in [1u32, 100, 3_000, 20_000, 200_000, 3_000_000] {
            let task = Duration::from_nanos(nanos.into());
            let stride = (0..20).fold(1, |stride, _| stride_after(stride, task * stride));
            let apart = task * stride;
            assert!(apart <= TURN / 2 || stride == 1, "{nanos} ns: every {apart:?}");
            assert!(apart >= TURN / 8 || stride == MAX_STRIDE, "{nanos} ns: every {apart:?}");
        }
    }

    #[test]
    fn what_is_saved_is_bounded() {
        assert_eq!(Allowance::FULL.earned(Duration::MAX), Allowance::FULL);
        assert_eq!(Allowance::FULL.spent(Duration::MAX).nanos, MAX_ALLOWANCE - i64::MAX);
        assert!(!Allowance::FULL.spent(2 * SLICE).earned(8 * SLICE - TURN).is_left());
        assert!(Allowance::FULL.spent(2 * SLICE).earned(8 * SLICE + TURN).is_left());
    }
}
