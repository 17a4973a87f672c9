//! Memory read bandwidth: the floor of decode.

use std::hint::black_box;
use std::time::Instant;

/// Bytes each thread reads per pass: far above any cache.
const BYTES_PER_THREAD: usize = 512 << 20;

/// Passes; the best one counts, because everything that disturbs a pass only slows it.
const PASSES: usize = 5;

/// Read bandwidth of `threads` threads, GB/s (1e9 bytes): each sums its own half-gigabyte, the fastest of five passes.
pub fn read_bandwidth(threads: usize) -> f64 {
    let words = BYTES_PER_THREAD / 8;
    // Written, so that every page has its own memory and is not the kernel's shared zero page.
    let arrays: Vec<Vec<u64>> = (0..threads).map(|t| vec![t as u64 + 1; words]).collect();
    let mut best = 0f64;
    for _ in 0..PASSES {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for array in &arrays {
                scope.spawn(move || black_box(sum(black_box(array))));
            }
        });
        let bytes = (threads * BYTES_PER_THREAD) as f64;
        best = best.max(bytes / begun.elapsed().as_secs_f64() / 1e9);
    }
    best
}

/// Sums with many independent accumulators, so that loads are the only limit.
fn sum(array: &[u64]) -> u64 {
    let mut lanes = [0u64; 64];
    for chunk in array.chunks_exact(64) {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*value);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}
