//! A pool of threads: dispatch in about a microsecond, because a decode step dispatches a few hundred times.
//!
//! The calling thread is worker 0. Between jobs a worker spins for a short while (the gaps inside a
//! step are microseconds) and then parks (the gaps between requests are longer). Does not know what
//! the jobs compute.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Iterations of the spin hint before a worker parks: about 100 microseconds on current machines.
const SPINS_BEFORE_PARK: u32 = 6_000;

/// Iterations of the spin hint before the caller lets other threads of the machine run while it waits.
const SPINS_BEFORE_YIELD: u32 = 2_000;

type Job = dyn Fn(usize) + Sync;

#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

struct Shared {
    /// Number of jobs dispatched so far; a change is the signal to run `job`.
    epoch: Padded<AtomicU64>,
    /// Workers that have not finished the current job.
    running: Padded<AtomicUsize>,
    job: UnsafeCell<Option<*const Job>>,
    parked: Vec<Padded<AtomicBool>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only while no worker runs (`running` is 0) and before the release store of `epoch` that
// the workers acquire; everything else is atomic or locked.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only followed during `ThreadPool::run`, which keeps its target alive.
unsafe impl Send for Shared {}

/// A fixed set of worker threads.
pub(crate) struct ThreadPool {
    shared: Arc<Shared>,
    /// Remaining indices of each worker in `for_each`: first in the high half, end in the low one.
    ranges: Vec<Padded<AtomicU64>>,
    threads: Vec<(Thread, Option<JoinHandle<()>>)>,
}

impl ThreadPool {
    /// A pool of `num_threads` workers named `name-1` and so on, the caller included; 0 means the
    /// parallelism available to this process. If the system refuses a thread, the pool has one
    /// worker less.
    pub(crate) fn new(name: &str, num_threads: usize) -> Self {
        let wanted = match num_threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let shared = Arc::new(Shared {
            epoch: Padded(AtomicU64::new(0)),
            running: Padded(AtomicUsize::new(0)),
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
    pub(crate) fn num_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `job(worker)` once on every worker and returns when all calls have returned. A panic
    /// in any of them is raised here.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        if self.threads.is_empty() {
            return job(0);
        }
        let shared = &*self.shared;
        shared.running.0.store(self.threads.len(), Ordering::Relaxed);
        // SAFETY: only the lifetime changes. This function returns after every worker has finished
        // with the pointer, and `&mut self` keeps a second job from being dispatched meanwhile, so
        // no worker reads `job` now.
        unsafe {
            let job = std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job);
            *shared.job.get() = Some(job);
        }
        // Sequentially consistent with the worker's store of `parked`: at least one of the two
        // threads sees the other's store.
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (parked, (thread, _)) in shared.parked.iter().zip(&self.threads) {
            if parked.0.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut spins = 0;
        while shared.running.0.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let theirs = shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Calls `task(worker, index)` once for every index below `count`. Each worker starts with its
    /// own run of indices, taken from the front (consecutive indices mostly mean consecutive
    /// memory); a worker with an empty run takes from the ends of the others' runs.
    pub(crate) fn for_each(&mut self, count: usize, task: impl Fn(usize, usize) + Sync) {
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
            self.run(&|worker| {
                for victim in 0..workers {
                    let range = &ranges[(worker + victim) % workers].0;
                    while let Some(index) = take(range, victim == 0) {
                        task(worker, index);
                    }
                }
            });
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
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (thread, handle) in &mut self.threads {
            thread.unpark();
            if let Some(handle) = handle.take() {
                // A worker catches its panics, so the result carries no information.
                let _ = handle.join();
            }
        }
    }
}

/// Loop of a worker: wait for the epoch to change, run the job, report the end.
fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        seen = wait(shared, worker, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch moved, so `job` was written before and its target lives until `running` reaches 0.
        let job = unsafe { (*shared.job.get()).map(|job| &*job) };
        if let Some(job) = job
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(worker)))
        {
            *shared.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(payload);
        }
        shared.running.0.fetch_sub(1, Ordering::Release);
    }
}

fn wait(shared: &Shared, worker: usize, seen: u64) -> u64 {
    let epoch = &shared.epoch.0;
    for _ in 0..SPINS_BEFORE_PARK {
        let now = epoch.load(Ordering::Acquire);
        if now != seen {
            return now;
        }
        std::hint::spin_loop();
    }
    let parked = &shared.parked[worker - 1].0;
    parked.store(true, Ordering::SeqCst);
    let now = loop {
        let now = epoch.load(Ordering::SeqCst);
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
