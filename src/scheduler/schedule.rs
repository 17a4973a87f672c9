//! Plans a step: the tokens of each sequence and the blocks that hold them; admits, cuts prompts
//! into chunks, preempts.
//!
//! Order of a step: decoding sequences, then prompts already begun, then the queue, each by rank
//! (priority, arrival). When blocks run out, the running sequence of the last rank releases its
//! blocks and returns to the queue with its tokens. The first running sequence is therefore never
//! preempted and computes at least one token in every step, which guarantees progress.
//!
//! A client with nothing running does not wait for a place while another has several: the last of
//! the client that runs most gives its place up.

use std::collections::HashMap;

use super::batch::{Admission, Batch, Chunk};
use super::prefix_index::BlockHash;
use super::sequence::{Phase, Planned, Rank, Sequence};
use super::{Scheduler, SeqId};
use crate::ops::BlockId;

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

/// Tokens that remain in a step.
struct Budget {
    tokens: usize,
    /// Prompt tokens; never more than `tokens`.
    prefill: usize,
    /// `prefill` before any prompt took from it; also the estimate for the next step.
    prefill_total: usize,
}

impl Budget {
    fn take_prefill(&mut self, len: usize) {
        self.tokens -= len;
        self.prefill -= len;
    }

    /// Whether a prompt that would be split in this step should rather be computed whole in the
    /// next one: it would fit there, and this step has already used at least half of its prompt
    /// tokens.
    fn prefers_next_step(&self, remaining: usize) -> bool {
        remaining > self.prefill
            && remaining <= self.prefill_total
            && (self.prefill_total - self.prefill) * 2 >= self.prefill_total
    }
}

impl Scheduler {
    /// Fills `batch` with the plan of the next step. The plan stays until [`Scheduler::advance`];
    /// planning again without `advance` (after a failed step) plans the same positions anew.
    ///
    /// Sampled tokens that are not settled count as known: the chunk that computes such a token is
    /// planned before its value is on the host. A sequence whose unsettled token is its last one is
    /// left out.
    pub fn schedule(&mut self, now_us: u64, batch: &mut Batch) {
        batch.clear();
        let (mut decodes, mut prefills) = (0, 0);
        for &slot in &self.running {
            let sequence = &mut self.sequences[slot];
            sequence.planned = None;
            // Blocks of a draft that did not hold.
            let kept = sequence.known().div_ceil(self.limits.block_size);
            for block in sequence.block_table.drain(kept.min(sequence.block_table.len())..).rev() {
                self.pool.release(block);
            }
            match sequence.phase {
                Phase::Decode => decodes += usize::from(!sequence.awaits_its_end()),
                _ => prefills += 1,
            }
        }
        let tokens = self.limits.max_num_batched_tokens;
        let mut budget = Budget { tokens, prefill: 0, prefill_total: 0 };
        if decodes > 0 {
            self.schedule_decodes(batch, &mut budget, decodes, prefills > 0);
        }
        budget.prefill = budget.tokens.min(self.limits.max_prefill_tokens);
        budget.prefill_total = budget.prefill;
        if prefills > 0 {
            self.schedule_prefills(batch, &mut budget);
        }
        // A sequence preempted in this step is not readmitted in it: it would evict the same sequence again.
        if batch.preempted.is_empty() {
            self.admit(batch, &mut budget, now_us);
        }
        self.pool.take_evicted(&mut batch.evicted);
    }

    /// Plans one token of every decoding sequence (several after a commit of several). At least one
    /// token is kept for each later sequence, and one for a prompt in progress.
    fn schedule_decodes(&mut self, batch: &mut Batch, budget: &mut Budget, decodes: usize, prefills: bool) {
        let mut reserved = decodes + usize::from(prefills);
        let mut place = 0;
        while place < self.running.len() {
            let slot = self.running[place];
            let sequence = &self.sequences[slot];
            if sequence.phase != Phase::Decode || sequence.awaits_its_end() {
                place += 1;
                continue;
            }
            reserved -= 1;
            let len = sequence.remaining().min(budget.tokens.saturating_sub(reserved)).max(1);
            let missing = sequence.blocks_missing(sequence.computed + len, self.limits.block_size);
            while missing > self.pool.num_available() {
                self.preempt_last(batch, budget);
                if place >= self.running.len() {
                    return; // The sequence was itself the last one.
                }
            }
            self.plan(slot, len, batch);
            budget.tokens -= len;
            budget.tokens -= self.plan_draft(slot, reserved, budget.tokens, batch);
            place += 1;
        }
    }

    /// Adds the draft of a sequence to its chunk, the last one of the plan, as far as there is room
    /// beyond a token and a block for each of the `reserved` later sequences; returns its length.
    fn plan_draft(&mut self, slot: usize, reserved: usize, tokens: usize, batch: &mut Batch) -> usize {
        let sequence = &mut self.sequences[slot];
        let Some(chunk) = batch.chunks.last_mut().filter(|chunk| chunk.samples) else {
            sequence.draft.clear();
            return 0;
        };
        let blocks = sequence.block_table.len() + self.pool.num_available().saturating_sub(reserved);
        let room = (blocks * self.limits.block_size).saturating_sub(chunk.end());
        // The last token of a reply is not computed.
        let left = sequence.max_tokens - sequence.reply_len() - 1;
        sequence.draft.truncate(left.min(room).min(tokens.saturating_sub(reserved)));
        chunk.draft = std::mem::take(&mut sequence.draft);
        let len = chunk.draft.len();
        for _ in 0..sequence.blocks_missing(chunk.end() + len, self.limits.block_size) {
            sequence.block_table.push(self.pool.allocate().expect("availability was checked"));
        }
        len
    }

    /// Plans the row of the first token of a settled chunk's draft if that is the token that was
    /// sampled: its keys and values are computed, the next token is sampled from it. The chunk of
    /// that row, with the rest of the draft.
    pub fn plan_drafted(&mut self, chunk: &Chunk) -> Option<Chunk> {
        let (first, rest) = chunk.draft.split_first()?;
        let sequence = &mut self.sequences[*self.slots.get(&chunk.seq)?];
        let follows = !chunk.void
            && sequence.phase == Phase::Decode
            && sequence.planned.is_none()
            && sequence.unsettled == 0
            && sequence.computed == chunk.end()
            && sequence.tokens[chunk.end()..] == [*first];
        if !follows {
            return None;
        }
        sequence.planned = Some(Planned { start: chunk.end(), len: 1 });
        Some(Chunk { draft: rest.to_vec(), ..sequence.chunk(1) })
    }

    /// Continues the prompts that were begun. When blocks are short a prompt takes the available
    /// ones; without any, sequences of later rank are preempted.
    fn schedule_prefills(&mut self, batch: &mut Batch, budget: &mut Budget) {
        let mut place = 0;
        while place < self.running.len() && budget.prefill > 0 {
            let slot = self.running[place];
            let sequence = &mut self.sequences[slot];
            place += 1;
            if sequence.phase != Phase::Prefill {
                continue;
            }
            let wanted = sequence.chunk_limit();
            if !sequence.deferred && budget.prefers_next_step(wanted) {
                sequence.deferred = true;
                continue;
            }
            let (computed, covered) = (sequence.computed, sequence.block_table.len());
            let len = loop {
                let slots = (covered + self.pool.num_available()) * self.limits.block_size;
                let len = wanted.min(budget.prefill).min(slots - computed);
                // The last running sequence waits for a block: preempting it would lose its own
                // blocks.
                if len > 0 || place == self.running.len() {
                    break len;
                }
                self.preempt_last(batch, budget);
            };
            if len > 0 {
                self.plan(slot, len, batch);
                budget.take_prefill(len);
            }
        }
    }

    /// Admits the queue strictly in its order: a head that does not fit is waited for. A sequence is
    /// admitted when blocks for all its known tokens are available beyond those that admitted
    /// prompts still need, plus one for every running sequence (and at least 1 %), so that the next
    /// steps do not preempt what this one admitted. A sequence that would run alone is always
    /// admitted: `add` checked that it fits.
    fn admit(&mut self, batch: &mut Batch, budget: &mut Budget, now_us: u64) {
        if budget.prefill == 0 || self.queue.is_idle() {
            return;
        }
        if self.running.len() == self.limits.max_num_seqs {
            self.make_way(batch, budget);
        }
        if self.running.len() == self.limits.max_num_seqs {
            return;
        }
        let block_size = self.limits.block_size;
        let mut promised: usize = self
            .running
            .iter()
            .map(|&slot| &self.sequences[slot])
            .map(|s| promised_blocks(s, block_size))
            .sum();
        while budget.prefill > 0 && self.running.len() < self.limits.max_num_seqs {
            let Some((rank, slot)) = self.queue.first() else { break };
            // Preempted with an unsettled token: its prefix is complete when the token is settled.
            if self.sequences[slot].unsettled > 0 {
                break;
            }
            let alone = self.running.is_empty();
            let watermark = self.running.len().max(self.limits.num_blocks.div_ceil(100));
            let spare = self.pool.num_available().saturating_sub(promised + watermark);
            let hopeless = self.blocked.as_ref().is_some_and(|blocked| {
                blocked.rank == rank
                    && spare < blocked.needed_blocks
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
                break;
            }
            let sequence = &mut self.sequences[slot];
            // Cached blocks that become used are no longer available, so they count like new ones; loaded ones are new.
            let held = matched.iter().flatten().filter(|&&block| self.pool.ref_count(block) > 0).count();
            let needed = sequence.tokens.len().div_ceil(block_size) - held;
            if !alone && needed > spare {
                let first_load = matched.iter().position(Option::is_none);
                let missing = first_load.map(|index| sequence.block_hash(index, block_size)).or(missing);
                self.blocked = Some(Blocked { rank, needed_blocks: needed, missing });
                break;
            }
            let cached_tokens = matched.len() * block_size;
            if !sequence.deferred && budget.prefers_next_step(sequence.tokens.len() - cached_tokens) {
                sequence.deferred = true;
                break;
            }
            self.blocked = None;
            let loaded_tokens = prefix.num_loads() * block_size;
            self.start(slot, prefix, batch);
            let sequence = &mut self.sequences[slot];
            if sequence.cached_tokens.is_none() {
                sequence.cached_tokens = Some(cached_tokens);
                let waited_us = now_us.saturating_sub(rank.1);
                batch.admitted.push(Admission { seq: sequence.id, cached_tokens, waited_us });
                self.queue.serve_prompt(sequence.lane, sequence.share, sequence.prompt_len - cached_tokens);
                self.prefix_query_tokens += sequence.prompt_len as u64;
                self.prefix_hit_tokens += cached_tokens as u64;
                self.loaded_tokens += loaded_tokens as u64;
            }
            let len = sequence.chunk_limit().min(budget.prefill);
            self.plan(slot, len, batch);
            budget.take_prefill(len);
            promised += promised_blocks(&self.sequences[slot], block_size);
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

    /// Adds the chunk to the plan and its blocks to the sequence. The blocks must be available.
    fn plan(&mut self, slot: usize, len: usize, batch: &mut Batch) {
        let sequence = &mut self.sequences[slot];
        for _ in 0..sequence.blocks_missing(sequence.computed + len, self.limits.block_size) {
            sequence.block_table.push(self.pool.allocate().expect("availability was checked"));
        }
        sequence.planned = Some(Planned { start: sequence.computed, len });
        sequence.deferred = false;
        batch.chunks.push(sequence.chunk(len));
    }

    /// Preempts a sequence for the head of the queue if its client has none running and another has several: the last in rank of
    /// the client that runs most, but never the first of all.
    fn make_way(&mut self, batch: &mut Batch, budget: &mut Budget) {
        let Some((_, head)) = self.queue.first() else { return };
        let client_of = |slot: usize| self.sequences[slot].share.map(|share| share.client);
        let waiting = client_of(head);
        if waiting.is_none() || self.running.iter().any(|&slot| client_of(slot) == waiting) {
            return;
        }
        let mut running: HashMap<Option<u32>, (usize, usize)> = HashMap::new();
        for (place, &slot) in self.running.iter().enumerate() {
            let (count, last) = running.entry(client_of(slot)).or_default();
            (*count, *last) = (*count + 1, place);
        }
        let most = running.into_values().filter(|(count, last)| *count > 1 && *last > 0).max();
        if let Some((_, place)) = most {
            self.preempt(place, batch, budget);
        }
    }

    /// Returns the running sequence of the last rank to the queue.
    fn preempt_last(&mut self, batch: &mut Batch, budget: &mut Budget) {
        let last = self.running.len().checked_sub(1).expect("somebody holds the blocks");
        self.preempt(last, batch, budget);
    }

    /// Returns a running sequence to the queue. Its tokens are kept, its chunk leaves the plan.
    fn preempt(&mut self, place: usize, batch: &mut Batch, budget: &mut Budget) {
        let slot = self.running.remove(place);
        let sequence = &self.sequences[slot];
        let seq: SeqId = sequence.id;
        if sequence.planned.is_some() {
            let index = batch
                .chunks
                .iter()
                .rposition(|chunk| chunk.seq == seq)
                .expect("a planned chunk is in the plan");
            let chunk = batch.chunks.remove(index);
            budget.tokens += chunk.len + chunk.draft.len();
        }
        self.release_blocks(slot);
        self.sequences[slot].phase = Phase::Waiting;
        self.enqueue(slot);
        self.preemptions += 1;
        batch.preempted.push(seq);
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

#[cfg(test)]
impl Scheduler {
    /// Preempts the last running sequence, as a shortage of blocks does.
    pub(super) fn preempt_last_for_test(&mut self) {
        self.preempt_last(&mut Batch::default(), &mut Budget { tokens: 0, prefill: 0, prefill_total: 0 });
    }
}
