//! One behaviour per test. `simulation.rs` covers combinations that no single test names.

mod batching;
mod lifecycle;
mod prefix;

use std::sync::Arc;

use super::*;

const LIMITS: Limits = Limits {
    max_num_seqs: 8,
    max_num_batched_tokens: 64,
    max_prefill_tokens: 64,
    target_step: std::time::Duration::ZERO,
    max_model_len: 256,
    block_size: 4,
    num_blocks: 64,
    prefix_caching: true,
    expand_min_prompt_tokens: 1000,
};

/// A scheduler with a simulated engine, whose reply token at position `p` is `1000 + p`.
struct Rig {
    scheduler: Scheduler,
    batch: Batch,
    now: u64,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        Self { scheduler: Scheduler::new(limits).unwrap(), batch: Batch::default(), now: 0 }
    }

    fn add(&mut self, id: u64, prompt: &[u32], max_tokens: u32, change: impl FnOnce(&mut NewSequence)) {
        self.now += 1;
        let mut new = NewSequence {
            id: SeqId(id),
            prompt: Arc::from(prompt),
            max_tokens,
            priority: 0,
            share: None,
            arrival_us: self.now,
            deadline_us: None,
            cache_salt: None,
            prompt_logits: false,
            media: Default::default(),
        };
        change(&mut new);
        self.scheduler.add(new).unwrap();
    }

    /// `(id, start, len)` of the planned chunks.
    fn schedule(&mut self) -> Vec<(u64, usize, usize)> {
        self.scheduler.schedule(self.now, &mut self.batch);
        self.scheduler.check_invariants().unwrap();
        self.batch.chunks.iter().map(|chunk| (chunk.seq.0, chunk.start, chunk.len)).collect()
    }

    fn commit(&mut self) -> Vec<Finished> {
        let sampled: Vec<(SeqId, u32)> = self
            .batch
            .chunks
            .iter()
            .filter(|chunk| chunk.samples)
            .map(|chunk| (chunk.seq, 1000 + chunk.end() as u32))
            .collect();
        let sampled = sampled.iter().map(|(seq, token)| Sampled {
            seq: *seq,
            tokens: std::slice::from_ref(token),
            finish: None,
        });
        let finished = self.scheduler.commit(&mut self.batch, sampled);
        self.scheduler.check_invariants().unwrap();
        finished
    }

    fn step(&mut self) -> Vec<(u64, usize, usize)> {
        let chunks = self.schedule();
        self.commit();
        chunks
    }

    /// Runs steps until no sequence is left.
    fn drain(&mut self) -> Vec<Finished> {
        let mut finished = vec![];
        for _ in 0..10_000 {
            if self.scheduler.is_empty() {
                return finished;
            }
            self.schedule();
            finished.extend(self.commit());
        }
        panic!("{:?} still live", self.scheduler.live().collect::<Vec<_>>());
    }
}

fn prompt(from: u32, len: u32) -> Vec<u32> {
    (from..from + len).collect()
}
