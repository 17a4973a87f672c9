//! Plans a step: the tokens of each sequence and the blocks that hold them; admits, cuts prompts
//! into chunks, preempts.
//!
//! Order of a step: decoding sequences, then prompts already begun, then the queue, each by rank
//! (priority, arrival). When blocks run out, the running sequence of the last rank releases its
//! blocks and returns to the queue with its tokens. The first running sequence is therefore never
//! preempted and computes at least one token in every step, or every other one, which guarantees progress.
//!
//! Clients share what a step has. One with nothing running is admitted before prompts are continued,
//! with up to half of the step's prompt tokens, or all of a chat of one line; it waits neither for a place nor for blocks while
//! another runs several sequences: the last of the client that runs most gives its own up. Where steps
//! have a target of time, a newcomer whose whole prompt is in a step has it for itself and the replies, and
//! the others' prompts go on in the next. Prompts that were begun divide their tokens evenly among their
//! clients, by weight.

use super::batch::{Admission, Batch, Chunk};
use super::prefix_index::BlockHash;
use super::queue::Head;
use super::sequence::{Phase, Planned, Rank, Sequence};
use super::{Scheduler, SeqId};
use crate::ops::BlockId;

/// Prompt tokens of a chat of one line: they are not cut in two where a step has room for them, whatever its target.
const SHORT_CHAT: usize = 32;

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

/// Whether there are chunks, each the last of its prompt.
fn has_whole_prompts(chunks: &[Chunk]) -> bool {
    !chunks.is_empty() && chunks.iter().all(|chunk| chunk.samples)
}

/// Prompt tokens that a client may have of a step.
struct Quota {
    lane: usize,
    weight: f64,
    tokens: usize,
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
        let paced = self.pace.prompt_tokens();
        let paced = if prefills == 0 { paced.max(SHORT_CHAT) } else { paced };
        budget.prefill = budget.tokens.min(self.limits.max_prefill_tokens).min(paced);
        budget.prefill_total = budget.prefill;
        let replies = batch.chunks.len();
        let mut pauses = false;
        if prefills > 0 {
            self.admit_newcomers(batch, &mut budget, now_us);
            pauses = !self.prompts_paused
                && self.pace.is_on()
                && has_whole_prompts(&batch.chunks[replies.min(batch.chunks.len())..]);
            if !pauses {
                self.schedule_prefills(batch, &mut budget);
            }
        }
        self.prompts_paused = pauses;
        // A sequence preempted in this step is not readmitted in it: it would evict the same sequence again.
        if batch.preempted.is_empty() && !pauses {
            self.admit(batch, &mut budget, now_us, None);
        }
        // Sequences that made way for others have left the plan, and with them perhaps the last reply.
        let replies = replies.min(batch.chunks.len());
        let (replies, prompts) = batch.chunks.split_at(replies);
        let drafted: usize = replies.iter().map(|chunk| chunk.draft.len()).sum();
        self.paced_tokens = drafted + prompts.iter().map(|chunk| chunk.len).sum::<usize>();
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

    /// Continues the prompts that were begun before this step. When blocks are short a prompt takes
    /// the available ones; without any, sequences of later rank are preempted.
    fn schedule_prefills(&mut self, batch: &mut Batch, budget: &mut Budget) {
        let mut quotas = self.prefill_quotas(budget.prefill);
        let mut place = 0;
        while place < self.running.len() && budget.prefill > 0 {
            let slot = self.running[place];
            let sequence = &mut self.sequences[slot];
            place += 1;
            if sequence.phase != Phase::Prefill || sequence.planned.is_some() {
                continue;
            }
            let quota = quotas.iter_mut().find(|quota| quota.lane == sequence.lane).expect("it was counted");
            let wanted = sequence.chunk_limit().min(quota.tokens);
            if wanted == 0 {
                continue;
            }
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
                quota.tokens -= len;
            }
        }
    }

    /// Divides `tokens` among the clients with prompts that were begun before this step: by weight, and what one does not need goes to
    /// the others. The client of the first rank gets one at least.
    fn prefill_quotas(&self, tokens: usize) -> Vec<Quota> {
        let mut quotas: Vec<Quota> = Vec::new();
        let prefills = self.running.iter().map(|&slot| &self.sequences[slot]);
        for sequence in prefills.filter(|s| s.phase == Phase::Prefill && s.planned.is_none()) {
            let wanted = sequence.chunk_limit();
            match quotas.iter_mut().find(|quota| quota.lane == sequence.lane) {
                Some(quota) => quota.tokens += wanted,
                None => {
                    let weight = sequence.share.map_or(1.0, |share| share.weight);
                    quotas.push(Quota { lane: sequence.lane, weight, tokens: wanted });
                }
            }
        }
        let first = quotas.first().map(|quota| quota.lane);
        // Those that want least for their weight first: what they leave is divided among the rest.
        quotas.sort_by(|a, b| (a.tokens as f64 / a.weight).total_cmp(&(b.tokens as f64 / b.weight)));
        let mut weights: f64 = quotas.iter().map(|quota| quota.weight).sum();
        let mut left = tokens;
        for quota in &mut quotas {
            let share = (left as f64 * (quota.weight / weights)).ceil() as usize;
            weights -= quota.weight;
            quota.tokens = quota.tokens.min(share).min(left);
            left -= quota.tokens;
        }
        if let Some(quota) = quotas.iter_mut().find(|quota| Some(quota.lane) == first) {
            quota.tokens = quota.tokens.max(1);
        }
        quotas
    }

    /// Admits clients with nothing running, with half of the prompt tokens that the step has; a short chat is not cut in two for it, nor
    /// does it take more than half from the prompts that were begun where the step has room for both.
    fn admit_newcomers(&mut self, batch: &mut Batch, budget: &mut Budget, now_us: u64) {
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

    /// Admits the queue strictly in its order, or the newcomers before it, who get `for_newcomers` tokens each at most if
    /// their prompts have to be cut: a head that does not fit is waited for. A sequence is admitted when blocks for all its known tokens are available beyond
    /// those that admitted prompts still need, plus one for every running sequence (and at least
    /// 1 %), so that the next steps do not preempt what this one admitted. A sequence that would run
    /// alone is always admitted: `add` checked that it fits.
    fn admit(&mut self, batch: &mut Batch, budget: &mut Budget, now_us: u64, for_newcomers: Option<usize>) {
        let block_size = self.limits.block_size;
        while budget.prefill > 0 {
            let Some(Head { rank, slot, is_newcomer }) = self.queue.first() else { break };
            // Who gave way for another is not admitted in the same step.
            if (for_newcomers.is_some() || !batch.preempted.is_empty()) && !is_newcomer {
                break;
            }
            // Preempted with an unsettled token: its prefix is complete when the token is settled.
            if self.sequences[slot].unsettled > 0 {
                break;
            }
            let yielding = if is_newcomer { self.yielding(batch) } else { None };
            if self.running.len() == self.limits.max_num_seqs {
                let Some(place) = yielding else { break };
                self.preempt(place, batch, budget);
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
                break;
            }
            let sequence = &mut self.sequences[slot];
            // Cached blocks that become used are no longer available, so they count like new ones; loaded ones are new.
            let held = matched.iter().flatten().filter(|&&block| self.pool.ref_count(block) > 0).count();
            let needed = sequence.tokens.len().div_ceil(block_size) - held;
            if !alone && needed > spare {
                if let Some(place) = yielding.filter(|_| needed <= could_spare) {
                    self.preempt(place, batch, budget);
                    continue;
                }
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
            let wanted = sequence.chunk_limit();
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

    /// The running sequence that gives way to a client with none: the last in rank of the client that runs most, if it runs several;
    /// never the first of all. One is enough in a step.
    fn yielding(&self, batch: &Batch) -> Option<usize> {
        if !batch.preempted.is_empty() {
            return None;
        }
        let lane_of = |slot: usize| self.sequences[slot].lane;
        let most = self
            .running
            .iter()
            .map(|&slot| self.queue.running(lane_of(slot)))
            .max()
            .filter(|most| *most > 1)?;
        let place = self.running.iter().rposition(|&slot| self.queue.running(lane_of(slot)) == most)?;
        // What begins in this step has not computed anything for its slot and its loads.
        (place > 0 && !batch.started.contains(&self.sequences[self.running[place]].id)).then_some(place)
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
        self.queue.end(self.sequences[slot].lane);
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
