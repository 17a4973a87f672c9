//! Outputs of the workers of one job: a value each, or separate elements of one slice.

use std::cell::UnsafeCell;

use super::pool::Padded;

/// One value per worker, reachable from inside a job.
pub struct PerWorker<T>(Vec<Padded<UnsafeCell<T>>>);

// SAFETY: `get` hands worker `i` the value `i` alone, see there.
unsafe impl<T: Send> Sync for PerWorker<T> {}

impl<T> PerWorker<T> {
    /// One value per worker, made by `make`.
    pub fn new(num_threads: usize, make: impl Fn() -> T) -> Self {
        Self((0..num_threads).map(|_| Padded(UnsafeCell::new(make()))).collect())
    }

    /// Worker `worker`'s value.
    ///
    /// # Safety
    /// Only the worker of that number calls this during a job, and holds no other reference from an earlier call.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self, worker: usize) -> &mut T {
        // SAFETY: exclusive by the contract above.
        unsafe { &mut *self.0[worker].0.get() }
    }
}

/// A slice written by several workers, each to separate elements.
#[derive(Clone, Copy)]
pub struct Shards<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: the contract of `slice` and `at` keeps the workers' elements apart.
unsafe impl<T: Send> Send for Shards<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shards<T> {}

impl<T> Shards<T> {
    /// Shares `whole`; usable while the caller keeps it borrowed.
    pub fn new(whole: &mut [T]) -> Self {
        Self { start: whole.as_mut_ptr(), len: whole.len() }
    }

    /// Elements `start..start + len`.
    ///
    /// # Safety
    /// The shared slice is still borrowed mutably by the dispatcher, and no other worker touches these elements during the job.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len, "shard {start}+{len} of {}", self.len);
        // SAFETY: in bounds by the check, exclusive by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
