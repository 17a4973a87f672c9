//! Bounds on memory and work of the grammar engine.
//!
//! The engine checks its own limits between its steps; the size of a single step is bounded before
//! the first one (`expansion.rs`). A budget is checked between the stages of a compilation, in the
//! search for an end, and after each call for a running reply. The allocator counts the bytes that
//! the thread has allocated since the work began. Work over its budget is dropped, which frees all
//! memory it built.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use perigee_telemetry::heap;

/// Limits of a piece of work.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget {
    /// Most bytes held at any time.
    pub(super) bytes: usize,
    /// Steps of the grammar engine.
    pub(super) work: u64,
    /// Set from outside when the result is no longer needed.
    pub(super) stop: Option<Arc<AtomicBool>>,
}

/// Reason why work was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Memory,
    Work,
    Unwanted,
    /// The grammar engine panicked.
    Panic,
}

/// Bytes held by all replies together.
#[derive(Debug, Default)]
pub(super) struct Account {
    held: AtomicUsize,
    /// Bytes freed since memory was last returned to the system.
    freed: AtomicUsize,
}

/// Freed bytes from which memory is returned to the system.
const MUCH_FREED: usize = 16 << 20;

impl Account {
    /// Bytes that the parsers of running replies hold.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Records that a parser holds `now` bytes instead of `before`; the difference is freed
    /// already.
    pub(super) fn change(&self, before: usize, now: usize) {
        self.held.fetch_add(now, Ordering::Relaxed);
        self.held.fetch_sub(before, Ordering::Relaxed);
        if now < before && self.freed(before - now) {
            // On a thread of its own: this is the engine's thread, and the call takes milliseconds.
            let _ = std::thread::Builder::new().name("perigee-free".into()).spawn(heap::give_back);
        }
    }

    /// Records freed bytes. Returns whether enough have accumulated, since the last `true`, to be
    /// returned to the system.
    pub(super) fn freed(&self, bytes: usize) -> bool {
        let freed = self.freed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        freed >= MUCH_FREED && self.freed.swap(0, Ordering::Relaxed) >= MUCH_FREED
    }
}

/// The budget of the work that runs on this thread.
struct Running {
    budget: Budget,
    /// Bytes that the thread had allocated when the work began.
    start: isize,
    over: Option<Over>,
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// Resources that work has used.
pub(super) struct Spent {
    /// Most bytes that the work held.
    pub(super) most_bytes: usize,
}

impl Budget {
    /// Runs the work within the budget. Must not be nested inside other work with a budget.
    pub(super) fn run<T>(self, work: impl FnOnce() -> T) -> (Result<T, Over>, Spent) {
        let start = heap::begin();
        RUNNING.set(Some(Running { budget: self, start, over: None }));
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // Bytes held at the end count too, wherever they were allocated.
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

/// Whether this thread's work has to end, after counting `work` more steps of the grammar engine.
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
