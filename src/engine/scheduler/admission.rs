//! Admits sequences from the queue: in its order, and some before prompts that were begun go on.
//!
//! A client with nothing running is admitted before prompts are continued, with up to half of the
//! step's prompt tokens, or all of a chat of one line; it waits neither for a place nor for blocks while
//! another runs several sequences: the last of the client that runs most gives its own up. Where steps
//! have a target of time, a newcomer whose whole prompt is in a step has it for itself and the replies, and
//! the others' prompts go on in the next.
//!
//! Prompts of which little is left to compute do not wait for long ones either, whosever they are: what is
//! whole in half of the step is admitted before the begun prompts go on, past long ones that wait. They take no
//! place and no block from anybody, and pass nothing that waits for blocks. Where half of a step is more than a
//! chat of one line, a long prompt takes twice its time at most.

use super::Scheduler;
use super::batch::{Admission, Batch};
use super::prefix_index::BlockHash;
use super::queue::Head;
use super::schedule::{Budget, SHORT_CHAT};
use super::sequence::{Phase, Rank, Sequence};
use perigee_ops::BlockId;

/// Sequences of the queue among which short prompts are looked for in a step.
const SHORT_AMONG: usize = 64;

/// Reason why the head of the queue was not admitted. The next attempt follows when enough blocks
/// are spare or the first block that its prefix lacked exists: an attempt costs time in proportion
/// to the prompt, these two tests do not.
#[derive(Debug)]
pub(super) struct Blocked {
    rank: Rank,
    needed_blocks: usize,
    missing: Option<BlockHash>,
}

/// Blocks that a sequence may take instead of computing them.
pub(super) struct Prefix {
    /// In order; `None`: the block is not in the pool, its content can be loaded.
    pub(super) blocks: Vec<Option<BlockId>>,
    /// Name that ended the run, if a missing block did.
    missing: Option<BlockHash>,
}

impl Prefix {
    fn num_loads(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_none()).count()
    }
}

impl Scheduler {
    /// Admits clients with nothing running, with half of the prompt tokens that the step has; a short chat is not cut in two for it, nor
    /// does it take more than half from the prompts that were begun where the step has room for both.
    pub(super) fn admit_newcomers(&mut self, batch: &mut Batch, budget: &mut Budget, now_us: u64) {
        let half = budget.prefill / 2;
        let room = budget.tokens.min(self.limits.max_prefill_tokens);
        let tokens = half.max(SHORT_CHAT).min(room.saturating_sub(1));
        if tokens == 0 || !batch.preempted.is_empty() {
            return;
        }
        let mut part = Budget { tokens, prefill: tokens, prefill_total: tokens };
        self.admit(batch, &mut part, now_us, Some(half));
        let taken = tokens - part.prefill;
        budget.tokens -= taken;
        budget.prefill = budget.prefill.saturating_sub(taken).max(half).min(room - taken);
        budget.prefill_total = budget.prefill;
    }

    /// Admits waiting prompts that are whole in what newcomers left of half of the step's prompt tokens, or are a chat of one line in
    /// a step without newcomers, before those that were begun go on. Whether these are left with less than their `half`, as they
    /// are not twice in a row.
    pub(super) fn admit_short(
        &mut self,
        batch: &mut Batch,
        budget: &mut Budget,
        now_us: u64,
        half: usize,
        has_newcomers: bool,
    ) -> bool {
        let room = budget.tokens.min(self.limits.max_prefill_tokens).saturating_sub(1);
        let tokens = match self.lean_plans > 0 || has_newcomers {
            true => budget.prefill.saturating_sub(half),
            false => half.max(SHORT_CHAT).min(room),
        };
        let mut running = self.running.iter().map(|&slot| &self.sequences[slot]);
        let begun = running.find(|sequence| sequence.phase == Phase::Prefill && sequence.planned.is_none());
        let Some((priority, ..)) = begun.map(|sequence| sequence.rank) else { return false };
        let mut part = Budget { tokens, prefill: tokens, prefill_total: tokens };
        for Head { rank, slot, .. } in self.queue.first_few(SHORT_AMONG) {
            let is_full = part.prefill == 0 || self.running.len() == self.limits.max_num_seqs;
            if is_full || !batch.preempted.is_empty() || self.is_waited_for(rank) {
                break;
            }
            // Worse than a begun prompt by priority, or its prefix is complete when its last token is settled.
            if rank.0 > priority || self.sequences[slot].unsettled > 0 || !self.could_fit(slot, part.prefill)
            {
                continue;
            }
            let prefix = self.match_prefix(slot);
            let sequence = &self.sequences[slot];
            let cached_tokens = prefix.blocks.len() * self.limits.block_size;
            if cached_tokens < sequence.media_from || sequence.tokens.len() - cached_tokens > part.prefill {
                continue;
            }
            if prefix.missing.is_some() && self.prefix_is_in_progress(slot, prefix.blocks.len()) {
                continue;
            }
            if self.blocks_needed(slot, &prefix) > self.spare_blocks(None) {
                break;
            }
            self.begin(slot, prefix, batch, now_us);
            let len = self.sequences[slot].chunk_limit();
            self.plan(slot, len, batch);
            part.take_prefill(len);
        }
        let taken = tokens - part.prefill;
        budget.tokens -= taken;
        budget.prefill = budget.prefill.saturating_sub(taken);
        budget.prefill_total = budget.prefill;
        budget.prefill < half
    }

    /// Whether the head of the queue waits for blocks, and is not the sequence of this rank.
    fn is_waited_for(&self, rank: Rank) -> bool {
        let head = self.queue.first().map(|head| head.rank);
        self.blocked.as_ref().is_some_and(|blocked| Some(blocked.rank) == head && blocked.rank != rank)
    }

    /// Whether a waiting sequence may have at most `tokens` to compute: a look at one block's name.
    fn could_fit(&mut self, slot: usize, tokens: usize) -> bool {
        let sequence = &mut self.sequences[slot];
        let Some(beyond) = sequence.tokens.len().checked_sub(tokens + 1) else { return true };
        let index = beyond / self.limits.block_size;
        if index >= sequence.reusable_blocks(&self.limits) {
            return false;
        }
        let name = sequence.block_hash(index, self.limits.block_size);
        self.pool.lookup(&name).is_some() || self.loadable.contains(&name)
    }

    /// Blocks that a waiting sequence takes of the available ones. Cached blocks that become used are no longer available, so they
    /// count like new ones; loaded ones are new.
    fn blocks_needed(&self, slot: usize, prefix: &Prefix) -> usize {
        let held = prefix.blocks.iter().flatten().filter(|&&block| self.pool.ref_count(block) > 0).count();
        self.sequences[slot].tokens.len().div_ceil(self.limits.block_size) - held
    }

    /// Admits the queue strictly in its order, or the newcomers before it, who get `for_newcomers` tokens each at most if
    /// their prompts have to be cut: a head that does not fit is waited for. A sequence is admitted when blocks for all its known tokens are available beyond
    /// those that admitted prompts still need, plus one for every running sequence (and at least
    /// 1 %), so that the next steps do not preempt what this one admitted. A sequence that would run
    /// alone is always admitted: `add` checked that it fits.
    pub(super) fn admit(
        &mut self,
        batch: &mut Batch,
        budget: &mut Budget,
        now_us: u64,
        for_newcomers: Option<usize>,
    ) {
        let block_size = self.limits.block_size;
        // Clients whose next sequence waits for what another computes: no other client waits for them.
        let mut patient = Vec::new();
        while budget.prefill > 0 {
            let Some(Head { rank, slot, is_newcomer }) = self.queue.first_without(&patient) else { break };
            // Who gave way for another is not admitted in the same step.
            if (for_newcomers.is_some() || !batch.preempted.is_empty()) && !is_newcomer {
                break;
            }
            // Preempted with an unsettled token: its prefix is complete when the token is settled.
            if self.sequences[slot].unsettled > 0 {
                patient.push(self.sequences[slot].lane);
                continue;
            }
            let yielding = if is_newcomer { self.yielding(batch) } else { None };
            if self.running.len() == self.limits.max_num_seqs {
                let Some(place) = yielding else { break };
                self.preempt(place, batch, budget);
                batch.made_way += 1;
                continue;
            }
            let alone = self.running.is_empty();
            let spare = self.spare_blocks(None);
            let could_spare = self.spare_blocks(yielding);
            let hopeless = self.blocked.as_ref().is_some_and(|blocked| {
                blocked.rank == rank
                    && could_spare < blocked.needed_blocks
                    && blocked.missing.is_none_or(|hash| self.pool.lookup(&hash).is_none())
            });
            if hopeless && !alone {
                break;
            }
            let prefix = self.match_prefix(slot);
            let (matched, missing) = (&prefix.blocks, prefix.missing);
            if matched.len() * block_size < self.sequences[slot].media_from {
                let lane = self.sequences[slot].lane;
                self.queue.remove(lane, rank);
                self.queue.hold(lane, rank, slot);
                continue;
            }
            if missing.is_some() && self.prefix_is_in_progress(slot, matched.len()) {
                patient.push(self.sequences[slot].lane);
                continue;
            }
            let needed = self.blocks_needed(slot, &prefix);
            if !alone && needed > spare {
                if let Some(place) = yielding.filter(|_| needed <= could_spare) {
                    self.preempt(place, batch, budget);
                    batch.made_way += 1;
                    continue;
                }
                let first_load = matched.iter().position(Option::is_none);
                let sequence = &mut self.sequences[slot];
                let missing = first_load.map(|index| sequence.block_hash(index, block_size)).or(missing);
                self.blocked = Some(Blocked { rank, needed_blocks: needed, missing });
                break;
            }
            let cached_tokens = matched.len() * block_size;
            let sequence = &mut self.sequences[slot];
            if !sequence.deferred && budget.prefers_next_step(sequence.tokens.len() - cached_tokens) {
                sequence.deferred = true;
                break;
            }
            self.begin(slot, prefix, batch, now_us);
            let wanted = self.sequences[slot].chunk_limit();
            let most = if wanted > budget.prefill { for_newcomers } else { None };
            let len = wanted.min(budget.prefill).min(most.unwrap_or(usize::MAX));
            self.plan(slot, len, batch);
            budget.take_prefill(len);
        }
    }

    /// Blocks that are available and neither promised to a prompt that runs nor kept for the next steps of the running sequences; with
    /// those that the sequence at `yielding` would leave.
    fn spare_blocks(&self, yielding: Option<usize>) -> usize {
        let mut available = self.pool.num_available();
        let mut kept = self.running.len().max(self.limits.num_blocks.div_ceil(100));
        for (place, &slot) in self.running.iter().enumerate() {
            let sequence = &self.sequences[slot];
            if Some(place) == yielding {
                // Some may be shared with others and stay in use.
                available +=
                    sequence.block_table.iter().filter(|&&block| self.pool.ref_count(block) == 1).count();
            } else {
                kept += promised_blocks(sequence, self.limits.block_size);
            }
        }
        available.saturating_sub(kept)
    }

    /// Starts a sequence and counts its first admission.
    fn begin(&mut self, slot: usize, prefix: Prefix, batch: &mut Batch, now_us: u64) {
        self.blocked = None;
        let block_size = self.limits.block_size;
        let (cached_tokens, loaded_tokens) =
            (prefix.blocks.len() * block_size, prefix.num_loads() * block_size);
        self.start(slot, prefix, batch);
        let sequence = &mut self.sequences[slot];
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(cached_tokens);
            let waited_us = now_us.saturating_sub(sequence.rank.1);
            batch.admitted.push(Admission { seq: sequence.id, cached_tokens, waited_us });
            self.queue.serve_prompt(sequence.lane, sequence.share, sequence.prompt_len - cached_tokens);
            self.prefix_query_tokens += sequence.prompt_len as u64;
            self.prefix_hit_tokens += cached_tokens as u64;
            self.loaded_tokens += loaded_tokens as u64;
        }
    }

    /// Moves a sequence from the queue to the running ones, with the blocks of its prefix. Those to be loaded are named at once: the
    /// plan that needs their content brings it.
    fn start(&mut self, slot: usize, prefix: Prefix, batch: &mut Batch) {
        self.dequeue(slot);
        for &block in prefix.blocks.iter().flatten() {
            self.pool.acquire(block);
        }
        let block_size = self.limits.block_size;
        let sequence = &mut self.sequences[slot];
        sequence.phase = Phase::Prefill;
        sequence.computed = prefix.blocks.len() * block_size;
        sequence.published = prefix.blocks.len();
        for (index, block) in prefix.blocks.into_iter().enumerate() {
            let block = block.unwrap_or_else(|| {
                let block = self.pool.allocate().expect("availability was checked");
                let name = sequence.block_hash(index, block_size);
                if self.pool.publish(block, name) {
                    self.pool.note_named(|| sequence.named_block(name, index, block_size));
                }
                batch.loads.push((name, block));
                block
            });
            sequence.block_table.push(block);
        }
        sequence.seq_slot = Some(self.free_slots.pop().expect("at most max_num_seqs sequences run"));
        batch.started.push(sequence.id);
        self.queue.begin(sequence.lane);
        let place = self.running_place(self.sequences[slot].rank);
        self.running.insert(place, slot);
    }

    /// The longest run of existing and loadable blocks that a sequence may take instead of computing them.
    pub(super) fn match_prefix(&mut self, slot: usize) -> Prefix {
        let mut blocks = Vec::new();
        let block_size = self.limits.block_size;
        let sequence = &mut self.sequences[slot];
        for index in 0..sequence.reusable_blocks(&self.limits) {
            // Names are computed only as far as the search reaches.
            let hash = sequence.block_hash(index, block_size);
            match self.pool.lookup(&hash) {
                None if !self.loadable.contains(&hash) => return Prefix { blocks, missing: Some(hash) },
                found => blocks.push(found),
            }
        }
        Prefix { blocks, missing: None }
    }

    /// Whether the prompt of another sequence is computing at least half of the reusable blocks
    /// that a waiting sequence lacks (`n` replies to one prompt, for example); the sequence then
    /// waits for them.
    fn prefix_is_in_progress(&mut self, slot: usize, matched: usize) -> bool {
        let block_size = self.limits.block_size;
        let sequence = &mut self.sequences[slot];
        let root = sequence.root;
        // Names are chained: equal names here mean equal tokens before.
        let index = matched + (sequence.reusable_blocks(&self.limits) - matched).div_ceil(2) - 1;
        let hash = sequence.block_hash(index, block_size);
        for &other in &self.running {
            let other = &mut self.sequences[other];
            let will_name_it = other.phase == Phase::Prefill
                && other.published <= index
                && other.root == root
                && other.shareable_blocks(other.tokens.len(), block_size) > index;
            if will_name_it && other.block_hash(index, block_size) == hash {
                return true;
            }
        }
        false
    }

    /// The running sequence that gives way to a client with none: the last in rank of the client that runs most, if it runs several;
    /// never the first of all. One is enough in a step.
    fn yielding(&self, batch: &Batch) -> Option<usize> {
        let place = self.last_of_most().filter(|place| *place > 0 && batch.preempted.is_empty())?;
        // What begins in this step has not computed anything for its slot and its loads.
        (!batch.started.contains(&self.sequences[self.running[place]].id)).then_some(place)
    }

    /// Place of the last in rank of the client that runs most; `None` where nobody runs several.
    pub(super) fn last_of_most(&self) -> Option<usize> {
        let of_client = |slot: &usize| self.queue.running(self.sequences[*slot].lane);
        let most = self.running.iter().map(of_client).max().filter(|most| *most > 1)?;
        self.running.iter().rposition(|slot| of_client(slot) == most)
    }
}

/// Blocks that an admitted prompt still needs.
fn promised_blocks(sequence: &Sequence, block_size: usize) -> usize {
    if sequence.phase == Phase::Prefill {
        sequence.blocks_missing(sequence.tokens.len(), block_size)
    } else {
        0
    }
}
