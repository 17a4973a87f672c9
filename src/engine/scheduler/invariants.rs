//! Invariants of the scheduler between any two calls.

use super::Scheduler;
use super::sequence::{Phase, Sequence};

impl Scheduler {
    /// Recomputes every count and compares; the error is the first difference. Linear in blocks and
    /// block tables; for tests.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut references = vec![0u32; self.pool.len()];
        let mut seen_in = vec![usize::MAX; self.pool.len()];
        let (mut queued_tokens, mut waiting, mut deadlines, mut live) = (0, 0, 0, 0);
        for (slot, sequence) in self.sequences.iter() {
            live += 1;
            let fail = |what: &str| Err(format!("sequence {}: {what}", sequence.id.0));
            if self.slots.get(&sequence.id) != Some(&slot) {
                return fail("its id leads elsewhere");
            }
            if let Some(deadline) = sequence.deadline_us {
                deadlines += 1;
                if !self.deadlines.contains(&(deadline, slot)) {
                    return fail("its deadline is not watched");
                }
            }
            if let Err(what) = self.check_sequence(sequence) {
                return fail(&what);
            }
            if sequence.phase == Phase::Waiting {
                waiting += 1;
                queued_tokens += sequence.tokens.len();
                if !self.queue.has(sequence.lane, sequence.rank, slot) {
                    return fail("waits, but not in the queue");
                }
            } else if self.running.get(self.running_place(sequence.rank)) != Some(&slot) {
                return fail("runs, but is not at its place among the running");
            }
            for &block in &sequence.block_table {
                references[block.at()] += 1;
                if std::mem::replace(&mut seen_in[block.at()], slot) == slot {
                    return fail("a block stands twice in its table");
                }
            }
        }
        for (what, counted, expected) in [
            ("ids", self.slots.len(), live),
            ("queue", self.queue.len(), waiting),
            ("running", self.running.len(), live - waiting),
            ("deadlines", self.deadlines.len(), deadlines),
            ("queued tokens", self.queued_tokens, queued_tokens),
        ] {
            if counted != expected {
                return Err(format!("{what}: {counted}, expected {expected}"));
            }
        }
        if self.free_slots.len() + self.running.len() != self.limits.max_num_seqs {
            return Err(format!(
                "{} slots are free with {} running",
                self.free_slots.len(),
                self.running.len()
            ));
        }
        if self.running.len() > self.limits.max_num_seqs {
            return Err(format!("{} sequences run", self.running.len()));
        }
        for lane in 0..self.queue.num_lanes() {
            let running = self.running.iter().filter(|&&slot| self.sequences[slot].lane == lane).count();
            if self.queue.running(lane) != running {
                return Err(format!("lane {lane} runs {running}, counted are {}", self.queue.running(lane)));
            }
        }
        if !self.running.is_sorted_by_key(|&slot| self.sequences[slot].rank) {
            return Err("the running are not in rank order".into());
        }
        self.pool.check(&references)
    }

    fn check_sequence(&self, sequence: &Sequence) -> Result<(), String> {
        let block_size = self.limits.block_size;
        let Sequence { tokens, computed, block_table, published, .. } = sequence;
        if *computed >= sequence.known() {
            return Err(format!("{computed} tokens computed of {}", sequence.known()));
        }
        if sequence.reply_len() > 0 && sequence.reply_len() >= sequence.max_tokens {
            return Err(format!(
                "has {} reply tokens of {} and runs on",
                sequence.reply_len(),
                sequence.max_tokens
            ));
        }
        if (sequence.phase == Phase::Waiting) != sequence.seq_slot.is_none() {
            return Err("runs without a slot, or waits with one".into());
        }
        if sequence.phase == Phase::Waiting {
            let idle =
                *computed == 0 && block_table.is_empty() && *published == 0 && sequence.planned.is_none();
            return if idle { Ok(()) } else { Err("waits with blocks".into()) };
        }
        let covered = sequence.planned.map_or(*computed, |planned| planned.start + planned.len);
        if block_table.len() * block_size < covered {
            return Err(format!("{} blocks do not cover {covered} tokens", block_table.len()));
        }
        if sequence.planned.is_some_and(|planned| planned.start != *computed || planned.len == 0) {
            return Err("plan does not start where computing ended".into());
        }
        if *published > block_table.len() || sequence.hashes.len() > tokens.len() / block_size {
            return Err("more blocks named than filled".into());
        }
        for (index, &block) in block_table.iter().enumerate() {
            if index >= computed / block_size && !self.pool.is_private(block) {
                return Err(format!("{block:?} will be written and is shared or named"));
            }
        }
        Ok(())
    }
}
