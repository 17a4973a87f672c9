//! Decides what the next step computes. Pure: no async, no clock (time is an argument), no metrics, no compute.
//!
//! The engine's loop around it:
//!
//! ```text
//! scheduler.expire(now)            sequences whose deadline passed end
//! scheduler.schedule(now, batch)   the plan: chunks of tokens, with blocks to hold them
//! forward, sample                  tokens(seq), block_table(seq) per chunk
//! scheduler.advance(batch)         positions move on: what was sampled is known to exist, its value may still be on the device
//! scheduler.settle(batch, sampled) values arrive: full blocks get names, ended sequences come back
//! ```
//!
//! A chunk may carry a draft. When the token of its last row is settled and is the first of the
//! draft, `plan_drafted` plans the row of that token, which is computed already, as a chunk of its
//! own: sample, advance, settle follow as for any chunk. Nothing else knows of drafts; a row that
//! is not planned again was computed in vain, and its place is written again.
//!
//! A backend that computes in the background gets step n + 1 before step n is settled. For any
//! other backend step n is settled before step n + 1 is planned; `commit` is both calls in one.
//!
//! `add`, `abort`, `finish`, `rewind` may be called between any two of these, in any order. A chunk
//! whose sequence changed since the plan is void: `advance` and `settle` ignore it.
//!
//! A token's keys and values depend on its own request alone, so a batch may be cut anywhere:
//!
//! - A prompt of at least `expand_min_prompt_tokens` tokens is of class *expanded*: prompt
//!   positions use the expanded form, reply positions the absorbed one, even when they are computed
//!   again after a preemption. A shorter prompt is of class *absorbed* at all positions.
//! - Class and salt are part of every cached block's name. Of class expanded only blocks that lie wholly inside the
//!   prompt are named; of class absorbed reply blocks are named too.
//! - A sequence with pictures in its prompt is held beside the queue, at its admission and again after a preemption,
//!   until the engine has the pictures' rows and releases it. Other sequences pass it meanwhile.
//! - A cached prefix never covers the last known token: its row gives the next one.

mod admission;
mod batch;
mod block_pool;
mod cache_change;
mod commit;
mod invariants;
mod pace;
mod prefix_index;
mod queue;
mod schedule;
mod sequence;
mod slab;
pub mod config;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod step_cost;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

pub use batch::{Admission, Batch, Chunk, LogitsNeed};
pub use cache_change::{CacheChange, Name, NamedBlock};
pub use commit::{RewindError, Sampled};
pub use config::{Config, Limits, LimitsError};
pub use queue::Share;
pub use sequence::{FinishReason, Finished, MediaHash, MediaSpan, NewSequence, SeqId};

use admission::Blocked;
use block_pool::BlockPool;
use pace::Pace;
use perigee_ops::{BlockId, SeqSlot};
use prefix_index::root_hash;
use queue::{Head, Queue};
use sequence::{Phase, Rank, Sequence};
use slab::Slab;

/// Reason of a refused `add`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The id is in use.
    #[error("sequence {} is already known", .0.0)]
    Duplicate(SeqId),
    /// The prompt has no token to compute.
    #[error("the prompt of sequence {} is empty, it needs at least one token", .0.0)]
    EmptyPrompt(SeqId),
    /// The prompt alone exceeds the model's length or the whole KV cache.
    #[error("prompt of {prompt_tokens} tokens is longer than the limit of {limit}: shorten it")]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Longest sequence that can run, tokens.
        limit: usize,
    },
}

/// Counts for metrics. Counters run since the start, the other counts are of the time of the call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Known tokens of the sequences in the queue.
    pub queued_tokens: usize,
    /// Sequences that run: they hold blocks and a slot.
    pub running: usize,
    /// Blocks held by sequences; a shared block counts once.
    pub used_blocks: usize,
    /// Blocks held by the prefix cache alone.
    pub cached_blocks: usize,
    /// Blocks without content.
    pub free_blocks: usize,
    /// Counter: prompt tokens of first admissions.
    pub prefix_query_tokens: u64,
    /// Counter: the part of `prefix_query_tokens` found in the prefix cache, loadable blocks included.
    pub prefix_hit_tokens: u64,
    /// Counter: the part of `prefix_hit_tokens` in loadable blocks.
    pub loaded_tokens: u64,
    /// Counter: cached blocks reused for new content.
    pub evicted_blocks: u64,
    /// Counter: sequences put back into the queue.
    pub preemptions: u64,
}

/// Queue, running sequences and block accounting.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    sequences: Slab<Sequence>,
    slots: HashMap<SeqId, usize, ahash::RandomState>,
    /// Sampling slots without a running sequence.
    free_slots: Vec<SeqSlot>,
    /// Places of the running sequences in rank order; the last one is the next to be preempted.
    running: Vec<usize>,
    /// Sequences that wait; those whose pictures are not at hand are held in it.
    queue: Queue,
    /// Deadlines of all live sequences, earliest first.
    deadlines: BTreeSet<(u64, usize)>,
    queued_tokens: usize,
    /// Sequences added; orders those of equal priority and arrival.
    num_added: u64,
    /// Set while the head of the queue does not fit: the condition of the next attempt.
    blocked: Option<Blocked>,
    pace: Pace,
    /// Prompt and drafted tokens of the last plan.
    paced_tokens: usize,
    /// Plans in a row that left the begun prompts out, or with less than half of the prompt tokens.
    lean_plans: u8,
    /// Names of blocks that are not in the pool and can be brought back at once.
    loadable: HashSet<Name, ahash::RandomState>,
    prefix_query_tokens: u64,
    prefix_hit_tokens: u64,
    loaded_tokens: u64,
    preemptions: u64,
}

impl Scheduler {
    /// An empty scheduler with all blocks free. Errors: the limits cannot work.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        limits.validate()?;
        Ok(Self {
            pool: BlockPool::new(limits.num_blocks),
            sequences: Slab::default(),
            slots: HashMap::default(),
            free_slots: (0..limits.max_num_seqs as u32).rev().map(SeqSlot).collect(),
            running: Vec::new(),
            queue: Queue::default(),
            deadlines: BTreeSet::new(),
            queued_tokens: 0,
            num_added: 0,
            blocked: None,
            pace: Pace::new(limits.target_step, limits.max_prefill_tokens),
            paced_tokens: 0,
            lean_plans: 0,
            loadable: HashSet::default(),
            prefix_query_tokens: 0,
            prefix_hit_tokens: 0,
            loaded_tokens: 0,
            preemptions: 0,
            limits,
        })
    }

    /// Queues a sequence. `max_tokens` is cut to what the model's length and the KV cache can hold,
    /// so that the sequence ends with `Length` there. With `max_tokens` 0 the prompt is computed
    /// and the sequence ends without a reply.
    pub fn add(&mut self, new: NewSequence) -> Result<(), AddError> {
        let prompt_len = new.prompt.len();
        if self.slots.contains_key(&new.id) {
            return Err(AddError::Duplicate(new.id));
        }
        if prompt_len == 0 {
            return Err(AddError::EmptyPrompt(new.id));
        }
        let Some(room) = self.limits.max_tokens_that_fit(prompt_len) else {
            let limit = self.limits.max_model_len.min(self.limits.num_blocks * self.limits.block_size);
            return Err(AddError::TooLong { prompt_tokens: prompt_len, limit });
        };
        let expanded = prompt_len >= self.limits.expand_min_prompt_tokens;
        let rank = (new.priority, new.arrival_us, self.num_added);
        self.num_added += 1;
        let lane = self.queue.lane(new.share);
        let slot = self.sequences.insert(Sequence {
            id: new.id,
            rank,
            share: new.share,
            lane,
            phase: Phase::Waiting,
            tokens: new.prompt.to_vec(),
            unsettled: 0,
            seq_slot: None,
            prompt_len,
            max_tokens: room.min(new.max_tokens as usize),
            deadline_us: new.deadline_us,
            expanded,
            root: root_hash(expanded, new.cache_salt.as_deref()),
            hashes: Vec::new(),
            contents: Vec::new(),
            salt: new.cache_salt.map(Into::into),
            published: 0,
            block_table: Vec::new(),
            computed: 0,
            prompt_logits: new.prompt_logits,
            media: new.media,
            media_from: 0,
            fetching: false,
            logits_delivered: 0,
            planned: None,
            draft: Vec::new(),
            deferred: false,
            cached_tokens: None,
        });
        self.slots.insert(new.id, slot);
        if let Some(deadline) = new.deadline_us {
            self.deadlines.insert((deadline, slot));
        }
        self.enqueue(slot);
        Ok(())
    }

    /// Ends every sequence whose deadline is at or before `now_us`; they have left the plan too
    /// when the call returns.
    pub fn expire(&mut self, now_us: u64) -> Vec<Finished> {
        let mut expired = Vec::new();
        while let Some(&(deadline, slot)) = self.deadlines.first() {
            if deadline > now_us {
                break;
            }
            expired.push(self.remove(slot, FinishReason::Deadline));
        }
        expired
    }

    /// Ends a sequence at the request of its client; its blocks are free when the call returns.
    /// `None` if the sequence is not live.
    pub fn abort(&mut self, seq: SeqId) -> Option<Finished> {
        self.finish(seq, FinishReason::Aborted)
    }

    /// Ends a sequence with a reason of the engine. `None` if the sequence is not live.
    pub fn finish(&mut self, seq: SeqId, reason: FinishReason) -> Option<Finished> {
        let slot = *self.slots.get(&seq)?;
        Some(self.remove(slot, reason))
    }

    /// Ends a sequence after `reply_len` reply tokens (after all if it has fewer), with reason
    /// `Stopped`. `None` if the sequence is not live. Named blocks beyond stay cached: a name
    /// identifies the content of its block.
    pub fn finish_at(&mut self, seq: SeqId, reply_len: usize) -> Option<Finished> {
        let finished = self.finish(seq, FinishReason::Stopped)?;
        Some(Finished { reply_len: finished.reply_len.min(reply_len), ..finished })
    }

    /// Notes which blocks get and lose names from now on; [`Scheduler::take_changes`] must be called again and again.
    pub fn note_changes(&mut self) {
        self.pool.note_changes();
    }

    /// Which blocks got and lost names since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        self.pool.take_changes()
    }

    /// Most drafted tokens that the next plan should have: what [`Limits::target_step`] leaves beside its prompts, those that were
    /// begun and the next in the queue if there is a place for it.
    pub fn most_drafted_tokens(&self) -> usize {
        let begun = self.running.iter().filter(|&&slot| self.sequences[slot].phase == Phase::Prefill);
        let has_place = |head: &Head| head.is_newcomer || self.running.len() < self.limits.max_num_seqs;
        let next = self.queue.first().filter(has_place).map(|head| head.slot);
        let prompts = begun.copied().chain(next).map(|slot| self.sequences[slot].chunk_limit());
        self.pace.drafted_tokens(prompts.sum())
    }

    /// Prompt and drafted tokens of the last plan.
    pub fn paced_tokens(&self) -> usize {
        self.paced_tokens
    }

    /// Tells how long a step took whose plan had so many [`Scheduler::paced_tokens`]: the next ones are cut to
    /// [`Limits::target_step`].
    pub fn note_pace(&mut self, tokens: usize, took: Duration) {
        self.pace.note(tokens, took);
    }

    /// Fills [`Batch::evicted`] from now on.
    pub fn note_evictions(&mut self) {
        self.pool.note_evictions();
    }

    /// Lets prompts use a content that is outside the pool: [`Batch::loads`] asks for it.
    pub fn add_loadable(&mut self, name: Name) {
        self.loadable.insert(name);
    }

    /// Takes that back.
    pub fn remove_loadable(&mut self, name: &Name) {
        self.loadable.remove(name);
    }

    /// Takes the names of blocks whose content could not be loaded: no other prompt finds them. Sequences that hold them must end.
    pub fn forget(&mut self, loads: &[(Name, BlockId)]) {
        for (name, block) in loads {
            if self.pool.lookup(name) == Some(*block) {
                self.pool.unname(*block);
            }
        }
    }

    /// Names of the full blocks that a waiting sequence could use and that are neither in the pool nor loadable, from the first of
    /// them on.
    pub fn missing_names(&mut self, seq: SeqId) -> Vec<Name> {
        let Some(&slot) = self.slots.get(&seq) else { return Vec::new() };
        let first = self.match_prefix(slot).blocks.len();
        let sequence = &mut self.sequences[slot];
        let blocks = first..sequence.reusable_blocks(&self.limits);
        blocks.map(|index| sequence.block_hash(index, self.limits.block_size)).collect()
    }

    /// Holds a waiting sequence until [`Scheduler::end_fetch`]; others pass it meanwhile.
    pub fn begin_fetch(&mut self, seq: SeqId) {
        let Some(&slot) = self.slots.get(&seq) else { return };
        let sequence = &mut self.sequences[slot];
        if sequence.phase == Phase::Waiting && !sequence.fetching {
            sequence.fetching = true;
            self.queue.remove(sequence.lane, sequence.rank);
            self.queue.hold(sequence.lane, sequence.rank, slot);
        }
    }

    /// Lets the sequence run, as soon as its pictures are at hand.
    pub fn end_fetch(&mut self, seq: SeqId) {
        let Some(&slot) = self.slots.get(&seq) else { return };
        let sequence = &mut self.sequences[slot];
        if std::mem::take(&mut sequence.fetching) && sequence.media.is_empty() {
            self.queue.release(sequence.lane, sequence.rank);
        }
    }

    /// Named blocks that no sequence holds, the most recently used first.
    pub fn cached_blocks(&self) -> impl Iterator<Item = (Name, BlockId)> + '_ {
        self.pool.cached()
    }

    /// The limits given to `new`.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether no sequence waits or runs.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a sequence waits or runs.
    pub fn contains(&self, seq: SeqId) -> bool {
        self.slots.contains_key(&seq)
    }

    /// Settled tokens, prompt then reply. Panics if the sequence is not live; the sequences of a
    /// batch are live until a call ends them.
    pub fn tokens(&self, seq: SeqId) -> &[u32] {
        &self.sequence(seq).tokens
    }

    /// Physical blocks of the sequence in order; they cover the tokens of its planned chunk. Panics
    /// if the sequence is not live.
    pub fn block_table(&self, seq: SeqId) -> &[BlockId] {
        &self.sequence(seq).block_table
    }

    /// Whether a sequence runs and so has a slot.
    pub fn is_running(&self, seq: SeqId) -> bool {
        self.slots.get(&seq).is_some_and(|&slot| self.sequences[slot].seq_slot.is_some())
    }

    /// Slot of a running sequence's sampling state; a preemption changes the slot. Panics if the
    /// sequence does not run.
    pub fn seq_slot(&self, seq: SeqId) -> SeqSlot {
        self.sequence(seq).seq_slot.expect("a running sequence has a slot")
    }

    /// Tokens of the prompt. Panics if the sequence is not live.
    pub fn prompt_len(&self, seq: SeqId) -> usize {
        self.sequence(seq).prompt_len
    }

    /// Reply tokens that remain, after the cut to what fits. Panics if the sequence is not live.
    pub fn tokens_left(&self, seq: SeqId) -> usize {
        let sequence = self.sequence(seq);
        sequence.max_tokens - sequence.reply_len()
    }

    /// Positions of the sequence whose keys and values are computed. Panics if the sequence is not
    /// live.
    pub fn computed(&self, seq: SeqId) -> usize {
        self.sequence(seq).computed
    }

    /// Running sequences that compute their reply, the first to run first.
    pub fn decoding(&self) -> impl Iterator<Item = SeqId> + '_ {
        let sequences = self.running.iter().map(|&slot| &self.sequences[slot]);
        sequences.filter(|sequence| sequence.phase == Phase::Decode).map(|sequence| sequence.id)
    }

    /// Sequences that wait for their pictures alone, the first to run first.
    pub fn held(&self) -> impl Iterator<Item = SeqId> + '_ {
        let held = self.queue.held().map(|slot| &self.sequences[slot]);
        held.filter(|sequence| !sequence.fetching).map(|sequence| sequence.id)
    }

    /// Prompt tokens of a waiting sequence that are cached at this moment; 0 if it is not waiting.
    pub fn cached_prefix(&mut self, seq: SeqId) -> usize {
        match self.slots.get(&seq) {
            Some(&slot) if self.sequences[slot].phase == Phase::Waiting => {
                self.match_prefix(slot).blocks.len() * self.limits.block_size
            }
            _ => 0,
        }
    }

    /// Lets a held sequence run: the rows of its pictures are at hand, or those that lie wholly before position `from` are not, and the
    /// prompt must be cached up to there. If it is no more when the sequence's turn comes, the sequence is held again.
    pub fn release(&mut self, seq: SeqId, from: usize) {
        let Some(&slot) = self.slots.get(&seq) else { return };
        let sequence = &mut self.sequences[slot];
        sequence.media_from = from;
        self.queue.release(sequence.lane, sequence.rank);
    }

    /// Whether a sampled token of the sequence has no value on the host yet. Panics if the sequence
    /// is not live.
    pub fn is_unsettled(&self, seq: SeqId) -> bool {
        self.sequence(seq).unsettled > 0
    }

    /// Guesses the next tokens of a decoding sequence, for the next plan alone. The plan takes as
    /// many of them as budget and blocks leave room for; no sequence is preempted for a guess. Has
    /// no effect while a token of the sequence is unsettled.
    pub fn set_draft(&mut self, seq: SeqId, tokens: &[u32]) {
        let Some(&slot) = self.slots.get(&seq) else { return };
        let sequence = &mut self.sequences[slot];
        sequence.draft.clear();
        if sequence.phase == Phase::Decode && sequence.unsettled == 0 {
            sequence.draft.extend_from_slice(tokens);
        }
    }

    /// Prompt tokens found in the prefix cache at the first admission; `None` before it or if the
    /// sequence is not live.
    pub fn cached_tokens(&self, seq: SeqId) -> Option<usize> {
        self.sequences[*self.slots.get(&seq)?].cached_tokens
    }

    /// Ids of all live sequences, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.slots.keys().copied()
    }

    /// Counts for metrics; O(1).
    pub fn stats(&self) -> Stats {
        Stats {
            waiting: self.queue.len(),
            queued_tokens: self.queued_tokens,
            running: self.running.len(),
            used_blocks: self.pool.num_used(),
            cached_blocks: self.pool.num_cached(),
            free_blocks: self.pool.num_free(),
            prefix_query_tokens: self.prefix_query_tokens,
            prefix_hit_tokens: self.prefix_hit_tokens,
            loaded_tokens: self.loaded_tokens,
            evicted_blocks: self.pool.evictions(),
            preemptions: self.preemptions,
        }
    }

    fn sequence(&self, seq: SeqId) -> &Sequence {
        &self.sequences[self.slots[&seq]]
    }

    fn enqueue(&mut self, slot: usize) {
        let sequence = &self.sequences[slot];
        self.queued_tokens += sequence.tokens.len();
        match sequence.media.is_empty() {
            true => self.queue.wait(sequence.lane, sequence.rank, slot),
            false => self.queue.hold(sequence.lane, sequence.rank, slot),
        }
    }

    fn dequeue(&mut self, slot: usize) {
        let sequence = &self.sequences[slot];
        self.queued_tokens -= sequence.tokens.len();
        self.queue.remove(sequence.lane, sequence.rank);
    }

    /// Index of a rank among the running sequences, or the index it would be inserted at.
    fn running_place(&self, rank: Rank) -> usize {
        self.running.partition_point(|&slot| self.sequences[slot].rank < rank)
    }

    /// Releases all blocks of a sequence, the last one first: under eviction a prefix then outlives
    /// its continuations.
    fn release_blocks(&mut self, slot: usize) {
        let sequence = &mut self.sequences[slot];
        for block in sequence.block_table.drain(..).rev() {
            self.pool.release(block);
        }
        (sequence.computed, sequence.published, sequence.planned) = (0, 0, None);
        sequence.draft.clear();
        self.free_slots.extend(sequence.seq_slot.take());
    }

    fn remove(&mut self, slot: usize, reason: FinishReason) -> Finished {
        match self.sequences[slot].phase {
            Phase::Waiting => self.dequeue(slot),
            Phase::Prefill | Phase::Decode => {
                let place = self.running_place(self.sequences[slot].rank);
                self.running.remove(place);
                self.release_blocks(slot);
                self.queue.end(self.sequences[slot].lane);
            }
        }
        let sequence = self.sequences.remove(slot);
        if let Some(deadline) = sequence.deadline_us {
            self.deadlines.remove(&(deadline, slot));
        }
        self.slots.remove(&sequence.id);
        Finished { seq: sequence.id, reason, reply_len: sequence.reply_len() }
    }
}
