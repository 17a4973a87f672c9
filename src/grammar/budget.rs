//! Bounds on memory and work of the grammar engine.
//!
//! The engine looks at limits of its own between its steps; what one step may build is bounded before the first one
//! (`expansion.rs`). A budget is looked at between the stages of a compilation, in the search for an end, and after each call for a
//! running reply: what the thread has allocated since the work began is counted by the allocator. Work that is over is
//! dropped, and everything it has built is freed.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::telemetry::heap;

/// What a piece of work may take.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget {
    /// Bytes that it may hold at any time.
    pub(super) bytes: usize,
    /// Steps of the grammar engine.
    pub(super) work: u64,
    /// Set from outside when nobody wants it any longer.
    pub(super) stop: Option<Arc<AtomicBool>>,
}

/// Why work was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Memory,
    Work,
    Unwanted,
    /// The grammar engine panicked.
    Panic,
}

/// What all replies hold together.
#[derive(Debug, Default)]
pub(super) struct Account {
    held: AtomicUsize,
    /// Freed since memory was last given back to the system.
    freed: AtomicUsize,
}

/// Freed memory that is worth being given back.
const MUCH_FREED: usize = 16 << 20;

impl Account {
    /// Bytes that the parsers of running replies hold.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// A parser holds `now` bytes instead of `before`; what it no longer holds is freed already.
    pub(super) fn change(&self, before: usize, now: usize) {
        self.held.fetch_add(now, Ordering::Relaxed);
        self.held.fetch_sub(before, Ordering::Relaxed);
        if now < before && self.freed(before - now) {
            // Not here: this is the engine's thread, and it takes milliseconds.
            let _ = std::thread::Builder::new().name("perigee-free".into()).spawn(heap::give_back);
        }
    }

    /// Notes that so many bytes were freed. Whether enough were, since this last said so, to be
    /// given back.
    pub(super) fn freed(&self, bytes: usize) -> bool {
        let freed = self.freed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        freed >= MUCH_FREED && self.freed.swap(0, Ordering::Relaxed) >= MUCH_FREED
    }
}

/// The budget under which this thread works.
struct Running {
    budget: Budget,
    /// What the thread had allocated when the work began.
    start: isize,
    over: Option<Over>,
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// What came of work.
pub(super) struct Spent {
    /// Most bytes that the work held.
    pub(super) most_bytes: usize,
}

impl Budget {
    /// Does the work within the budget. Not inside of other work with a budget.
    pub(super) fn run<T>(self, work: impl FnOnce() -> T) -> (Result<T, Over>, Spent) {
        let start = heap::begin();
        RUNNING.set(Some(Running { budget: self, start, over: None }));
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // What is held in the end counts too, wherever it was allocated.
        let over = spend(0);
        RUNNING.take();
        let most_bytes = usize::try_from(heap::most().wrapping_sub(start)).unwrap_or(0);
        let outcome = match (outcome, over) {
            (_, Some(over)) => Err(over),
            (Ok(value), None) => Ok(value),
            (Err(_), None) => Err(Over::Panic),
        };
        (outcome, Spent { most_bytes })
    }
}

/// Whether the work of this thread has to end, `work` more steps of the grammar engine counted.
pub(super) fn spend(work: u64) -> Option<Over> {
    RUNNING.with_borrow_mut(|running| running.as_mut().and_then(|running| running.spend(work)))
}

impl Running {
    fn spend(&mut self, work: u64) -> Option<Over> {
        let bytes = heap::allocated().wrapping_sub(self.start);
        let budget = &mut self.budget;
        let enough = budget.work.checked_sub(work);
        budget.work = enough.unwrap_or(0);
        if self.over.is_none() {
            self.over = if budget.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                Some(Over::Unwanted)
            } else if usize::try_from(bytes).is_ok_and(|bytes| bytes > budget.bytes) {
                Some(Over::Memory)
            } else {
                enough.is_none().then_some(Over::Work)
            };
        }
        self.over
    }
}
