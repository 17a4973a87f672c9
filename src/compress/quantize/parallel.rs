//! Independent jobs on a few threads.

use std::sync::{Mutex, PoisonError};

/// Runs every job once, on at most `threads` threads; one thread runs them here.
pub(super) fn run<T: Send>(threads: usize, jobs: Vec<T>, work: impl Fn(T) + Sync) {
    let threads = threads.clamp(1, jobs.len().max(1));
    if threads == 1 {
        return jobs.into_iter().for_each(work);
    }
    let queue = Mutex::new(jobs.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        while let Some(job) = next() {
            work(job);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(worker);
        }
        worker();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_runs_once() {
        for threads in [0, 1, 3, 64] {
            let mut done = vec![0; 50];
            run(threads, done.iter_mut().enumerate().collect(), |(i, x)| *x += i);
            assert_eq!(done, (0..50).collect::<Vec<_>>());
        }
    }
}
