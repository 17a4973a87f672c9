//! A pool of threads: dispatch in about a microsecond, because a decode step dispatches a few hundred times.
//!
//! The calling thread is worker 0. Between jobs a worker spins for a short while (the gaps inside a
//! step are microseconds) and then parks (the gaps between requests are longer). A worker that the
//! system lets run too late finds the tasks of `for_each` taken and the job closed: where other
//! programs share the processors, the caller does not wait for workers that have not started the job.
//! Does not know what the jobs compute.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use super::turn;

/// Iterations of the spin hint before a worker parks: about 100 microseconds on current machines.
const SPINS_BEFORE_PARK: u32 = 6_000;

/// Iterations of the spin hint before the caller lets other threads of the machine run while it waits.
const SPINS_BEFORE_YIELD: u32 = 2_000;

/// Iterations, nearly all of them yields, before the caller sleeps between its looks: milliseconds, as in the upload of a layer.
const SPINS_BEFORE_SLEEP: u32 = 10_000;
const SLEEP: Duration = Duration::from_micros(50);

type Job = dyn Fn(usize) + Sync;

#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// A worker inside, in [`Shared::gate`]; 13 bits.
const INSIDE: u64 = 1;
/// A worker that entered, inside or gone again; 13 bits.
const ENTERED: u64 = 1 << 13;
/// Nobody enters any more.
const CLOSED: u64 = 1 << 26;
/// A job; the rest of the bits, which wrap after 137 billion jobs.
const JOB: u64 = 1 << 27;

/// Most workers of a pool, as the gate counts them.
const MAX_WORKERS: usize = (ENTERED - 1) as usize;

struct Shared {
    /// Number of the job, whether it is closed, and how many workers entered it and are inside. A new number is the signal to enter.
    gate: Padded<AtomicU64>,
    job: UnsafeCell<Option<*const Job>>,
    parked: Vec<Padded<AtomicBool>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only while the gate is closed and nobody inside, and before the release store that opens it; a worker reads it
// only inside, which it enters by acquiring an open gate. Everything else is atomic or locked.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only followed during `ThreadPool::dispatch`, which keeps its target alive.
unsafe impl Send for Shared {}

/// A fixed set of worker threads.
pub struct ThreadPool {
    shared: Arc<Shared>,
    /// Remaining indices of each worker in `for_each`: first in the high half, end in the low one.
    ranges: Vec<Padded<AtomicU64>>,
    threads: Vec<(Thread, Option<JoinHandle<()>>)>,
}

impl ThreadPool {
    /// A pool of `num_threads` workers named `name-1` and so on, the caller included; 0 means the
    /// parallelism available to this process. If the system refuses a thread, the pool has one
    /// worker less.
    pub fn new(name: &str, num_threads: usize) -> Self {
        let wanted = match num_threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        }
        .min(MAX_WORKERS);
        let shared = Arc::new(Shared {
            gate: Padded(AtomicU64::new(CLOSED)),
            job: UnsafeCell::new(None),
            parked: (1..wanted).map(|_| Padded(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut threads = Vec::new();
        for worker in 1..wanted {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("{name}-{worker}"));
            let Ok(handle) = builder.spawn(move || work(&shared, worker)) else { break };
            threads.push((handle.thread().clone(), Some(handle)));
        }
        let ranges = (0..=threads.len()).map(|_| Padded(AtomicU64::new(0))).collect();
        Self { shared, ranges, threads }
    }

    /// Number of workers, the caller included.
    pub fn num_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `job(worker)` once on every worker and returns when all calls have returned. A panic
    /// in any of them is raised here.
    pub fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        if self.threads.is_empty() {
            return job(0);
        }
        let everybody = self.threads.len() as u64 * ENTERED;
        self.dispatch(job, |gate| {
            let counts = CLOSED - 1;
            wait_until(|| gate.load(Ordering::Acquire) & counts == everybody);
        });
    }

    /// Lets the workers into a job, takes part in it, and calls `before_closing`; returns when those that entered have left.
    fn dispatch(&mut self, job: &(dyn Fn(usize) + Sync), before_closing: impl FnOnce(&AtomicU64)) {
        let shared = &*self.shared;
        let gate = &shared.gate.0;
        // SAFETY: only the lifetime changes. This function returns after the gate is closed and every worker that entered has left, and
        // `&mut self` keeps a second job from being dispatched meanwhile, so no worker reads `job` now or later.
        unsafe {
            let job = std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job);
            *shared.job.get() = Some(job);
        }
        // The gate is closed and empty: nobody else writes to it. Sequentially consistent with the worker's store of `parked`: at least
        // one of the two threads sees the other's store.
        let number = gate.load(Ordering::Relaxed) & !(JOB - 1);
        gate.store(number.wrapping_add(JOB), Ordering::SeqCst);
        for (parked, (thread, _)) in shared.parked.iter().zip(&self.threads) {
            if parked.0.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        before_closing(gate);
        gate.fetch_or(CLOSED, Ordering::Relaxed);
        wait_until(|| gate.load(Ordering::Acquire) & (ENTERED - INSIDE) == 0);
        let theirs = shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Calls `task(worker, index)` once for every index below `count`. Each worker starts with its
    /// own run of indices, taken from the front (consecutive indices mostly mean consecutive
    /// memory); a worker with an empty run takes from the ends of the others' runs.
    pub fn for_each(&mut self, count: usize, task: impl Fn(usize, usize) + Sync) {
        let task = |worker, index| {
            task(worker, index);
            turn::give();
        };
        if count <= 1 || self.threads.is_empty() {
            return (0..count).for_each(|index| task(0, index));
        }
        assert!(count <= u32::MAX as usize, "too many tasks");
        let ranges = std::mem::take(&mut self.ranges);
        let workers = ranges.len();
        for (worker, range) in ranges.iter().enumerate() {
            let (first, end) = (count * worker / workers, count * (worker + 1) / workers);
            range.0.store((first as u64) << 32 | end as u64, Ordering::Relaxed);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let tasks = |worker: usize| {
                for victim in 0..workers {
                    let range = &ranges[(worker + victim) % workers].0;
                    while let Some(index) = take(range, victim == 0) {
                        task(worker, index);
                    }
                }
            };
            // The caller leaves when all tasks are taken, so that nobody else is needed.
            self.dispatch(&tasks, |_| ());
        }));
        self.ranges = ranges;
        if let Err(payload) = outcome {
            resume_unwind(payload);
        }
    }
}

/// Takes one index from a range, from its front or from its end.
fn take(range: &AtomicU64, front: bool) -> Option<usize> {
    let taken = range.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
        let (first, end) = (now >> 32, now & 0xffff_ffff);
        (first < end).then(|| if front { (first + 1) << 32 | end } else { first << 32 | (end - 1) })
    });
    taken.ok().map(|before| if front { (before >> 32) as usize } else { (before & 0xffff_ffff) as usize - 1 })
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.gate.0.fetch_add(JOB, Ordering::SeqCst);
        for (thread, handle) in &mut self.threads {
            thread.unpark();
            if let Some(handle) = handle.take() {
                // A worker catches its panics, so the result carries no information.
                let _ = handle.join();
            }
        }
    }
}

/// Spins for a short while and then lets other threads run.
fn wait_until(condition: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !condition() {
        spins = spins.saturating_add(1);
        if spins < SPINS_BEFORE_YIELD {
            std::hint::spin_loop();
        } else if spins < SPINS_BEFORE_SLEEP {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }
}

/// Loop of a worker: wait for the next job, enter it if it is still open, run it, leave.
fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        seen = wait(shared, worker, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !enter(&shared.gate.0, seen) {
            continue;
        }
        // SAFETY: this worker is inside, so `job` was written before and its target lives until it has left.
        let job = unsafe { (*shared.job.get()).map(|job| &*job) };
        if let Some(job) = job
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(worker)))
        {
            *shared.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(payload);
        }
        shared.gate.0.fetch_sub(INSIDE, Ordering::Release);
    }
}

/// Enters a job by its number, unless it is closed or over.
fn enter(gate: &AtomicU64, job: u64) -> bool {
    let enter = |now: u64| (now & !(JOB - 1) == job && now & CLOSED == 0).then_some(now + ENTERED + INSIDE);
    gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
}

/// Waits for a job with another number; returns it.
fn wait(shared: &Shared, worker: usize, seen: u64) -> u64 {
    let number = |order| shared.gate.0.load(order) & !(JOB - 1);
    for _ in 0..SPINS_BEFORE_PARK {
        let now = number(Ordering::Acquire);
        if now != seen {
            return now;
        }
        std::hint::spin_loop();
    }
    let parked = &shared.parked[worker - 1].0;
    parked.store(true, Ordering::SeqCst);
    let now = loop {
        let now = number(Ordering::SeqCst);
        if now != seen {
            break now;
        }
        std::thread::park();
    };
    parked.store(false, Ordering::SeqCst);
    now
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_index_is_taken_once() {
        for threads in 1..=4 {
            let mut pool = ThreadPool::new("test", threads);
            assert_eq!(pool.num_threads(), threads);
            for count in [0, 1, 2, 7, 1000] {
                let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(count, |worker, i| {
                    assert!(worker < threads);
                    seen[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_small_jobs_lose_no_wake_up() {
        let mut pool = ThreadPool::new("test", 3);
        let total = AtomicUsize::new(0);
        for round in 0..3_000 {
            pool.run(&|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
            if round % 500 == 0 {
                // Long enough for the workers to park on most machines; the result does not depend
                // on the length.
                (0..200_000).for_each(|_| std::hint::spin_loop());
            }
        }
        assert_eq!(total.into_inner(), 9_000);
    }

    #[test]
    fn who_comes_late_finds_the_job_closed() {
        let gate = AtomicU64::new(CLOSED);
        assert!(!enter(&gate, 0), "no job yet");
        gate.store(5 * JOB, Ordering::Relaxed);
        assert!(enter(&gate, 5 * JOB) && enter(&gate, 5 * JOB) && !enter(&gate, 4 * JOB));
        assert_eq!(gate.load(Ordering::Relaxed), 5 * JOB + 2 * ENTERED + 2 * INSIDE);
        gate.fetch_or(CLOSED, Ordering::Relaxed);
        assert!(!enter(&gate, 5 * JOB));
        gate.store(6 * JOB, Ordering::Relaxed);
        assert!(!enter(&gate, 5 * JOB), "a job that is over");
        gate.store(0u64.wrapping_sub(JOB).wrapping_add(JOB), Ordering::Relaxed);
        assert!(enter(&gate, 0), "numbers wrap");
    }

    #[test]
    fn jobs_of_both_kinds_follow_each_other() {
        // More workers than processors, so that some come late.
        let mut pool = ThreadPool::new("test", 5);
        for round in 0..2_000 {
            let seen: [AtomicUsize; 7] = Default::default();
            pool.for_each(2 + round % 6, |_, index| {
                seen[index].fetch_add(1, Ordering::Relaxed);
            });
            let expected: [usize; 7] = std::array::from_fn(|index| usize::from(index < 2 + round % 6));
            assert_eq!(seen.map(AtomicUsize::into_inner), expected);
            if round % 7 == 0 {
                let calls: [AtomicUsize; 5] = Default::default();
                pool.run(&|worker| {
                    calls[worker].fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(calls.map(AtomicUsize::into_inner), [1; 5]);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = ThreadPool::new("test", 2);
        for bad in 0..2 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|worker| assert_ne!(worker, bad, "worker {bad} fails"));
            }));
            let message = *caught.expect_err("must panic").downcast::<String>().expect("a message");
            assert!(message.contains(&format!("worker {bad} fails")), "{message}");
            let sum = AtomicUsize::new(0);
            pool.run(&|worker| {
                sum.fetch_add(worker + 1, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 3);
        }
    }
}
