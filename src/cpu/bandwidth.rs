//! Memory read bandwidth: the floor of decode.

use super::layout::LANES;
use super::simd::{self, Isa, Kernel, Simd};
use super::storage::Storage;
use perigee_numbers::threads::{Shards, ThreadPool};
use perigee_ops::OpError;
use std::hint::black_box;
use std::time::Instant;

/// Bytes each thread reads per pass: far above what a core's share of any cache is.
const BYTES_PER_THREAD: usize = 512 << 20;

/// Passes; the best one counts, because everything that disturbs a pass only slows it.
const PASSES: usize = 5;

/// Places a thread reads at once, as the panels of a product are: one front alone leaves a third of the bandwidth to some memories.
const STREAMS: usize = 8;

/// Values a stream is fetched ahead.
const AHEAD: usize = 256;

/// Read bandwidth of `threads` threads (0: as many as the machine offers), GB/s (1e9 bytes), in the memory and with the instructions that
/// weights are read with: each thread reads its own half-gigabyte, the fastest of five passes.
pub fn read_bandwidth(threads: usize) -> Result<f64, OpError> {
    let isa = Isa::best();
    let mut pool = ThreadPool::new("cpu", threads);
    let threads = pool.num_threads();
    let words = BYTES_PER_THREAD / 4;
    let mut memory = Storage::zeroed(threads * words, "bandwidth measurement")?;
    // Written, so that every page has its own memory and is not the kernel's shared zero page; by the thread that reads it.
    let parts = Shards::new(memory.words_mut());
    pool.run(&|worker| {
        // SAFETY: the memory stays borrowed; every worker has a part of its own.
        unsafe { parts.slice(worker * words, words) }.fill(1);
    });
    let memory = memory.words();
    let mut best = 0f64;
    for _ in 0..PASSES {
        let begun = Instant::now();
        pool.run(&|worker| {
            let part = black_box(&memory[worker * words..(worker + 1) * words]);
            // SAFETY: the instruction set is the best supported one.
            black_box(unsafe { simd::launch(isa, Read(part)) });
        });
        let bytes = (threads * BYTES_PER_THREAD) as f64;
        best = best.max(bytes / begun.elapsed().as_secs_f64() / 1e9);
    }
    Ok(best)
}

/// Reads all words, a line of each stream in turn.
struct Read<'a>(&'a [u32]);

impl Kernel for Read<'_> {
    type Out = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        let stream = self.0.len() / STREAMS / LANES * LANES;
        let first = self.0.as_ptr().cast::<f32>();
        // SAFETY: every load is inside the words; the caller launched `S`.
        unsafe {
            let mut largest = [S::zero(); STREAMS];
            for i in (0..stream).step_by(LANES) {
                for (s, largest) in largest.iter_mut().enumerate() {
                    let at = first.wrapping_add(s * stream + i);
                    #[cfg(target_arch = "x86_64")]
                    {
                        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                    }
                    *largest = S::max(*largest, S::load(at));
                }
            }
            S::largest(largest.into_iter().fold(S::zero(), |a, b| S::max(a, b)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest value counts wherever it lies: nothing is left out.
    #[test]
    fn every_line_is_read() {
        for isa in Isa::supported() {
            let mut values = vec![1f32; STREAMS * LANES * 3];
            for at in [0, LANES * 3, LANES * 8 + 5, values.len() - 1] {
                values[at] = 2.0;
                // SAFETY: `isa` comes from `supported`.
                let largest = unsafe { simd::launch(isa, Read(bytemuck::cast_slice(&values))) };
                assert_eq!(largest, 2.0, "{isa} {at}");
                values[at] = 1.0;
            }
        }
    }
}
