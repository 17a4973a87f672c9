//! Plans a step: the tokens of each sequence and the blocks that hold them; cuts prompts into chunks,
//! preempts.
//!
//! Order of a step: decoding sequences, then sequences admitted before prompts go on (`admission.rs`), then
//! prompts already begun, then the queue, each by rank (priority, arrival). When blocks run out, the running
//! sequence of the last rank, of the client that runs most, releases its blocks and returns to the queue with
//! its tokens. The first running sequence is therefore never preempted and computes at least one token in
//! every step, or every third one, which guarantees progress.
//!
//! Clients share what a step has: prompts that were begun divide their tokens evenly among their clients,
//! by weight.

use super::batch::{Batch, Chunk};
use super::sequence::{Phase, Planned};
use super::{Scheduler, SeqId};

/// Prompt tokens of a chat of one line: they are not cut in two where a step has room for them, whatever its target.
pub(super) const SHORT_CHAT: usize = 32;
/// Steps in a row that may leave begun prompts with less than half of the prompt tokens, or with none, so that newcomers begin at once.
pub(super) const MOST_LEAN_PLANS: u8 = 2;

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
pub(super) struct Budget {
    pub(super) tokens: usize,
    /// Prompt tokens; never more than `tokens`.
    pub(super) prefill: usize,
    /// `prefill` before any prompt took from it; also the estimate for the next step.
    pub(super) prefill_total: usize,
}

impl Budget {
    pub(super) fn take_prefill(&mut self, len: usize) {
        self.tokens -= len;
        self.prefill -= len;
    }

    /// Whether a prompt that would be split in this step should rather be computed whole in the
    /// next one: it would fit there, and this step has already used at least half of its prompt
    /// tokens.
    pub(super) fn prefers_next_step(&self, remaining: usize) -> bool {
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
        let (mut pauses, mut is_lean) = (false, false);
        if prefills > 0 {
            let half = budget.prefill.div_ceil(2);
            self.admit_newcomers(batch, &mut budget, now_us);
            let newcomers = &batch.chunks[replies.min(batch.chunks.len())..];
            pauses = self.lean_plans < MOST_LEAN_PLANS && self.pace.is_on() && has_whole_prompts(newcomers);
            let has_newcomers = !newcomers.is_empty();
            is_lean = pauses || self.admit_short(batch, &mut budget, now_us, half, has_newcomers);
            if !pauses {
                self.schedule_prefills(batch, &mut budget);
            }
        }
        self.lean_plans = if is_lean { self.lean_plans + 1 } else { 0 };
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
            let mut gave_way = false;
            while missing > self.pool.num_available() && !gave_way {
                let victim = self.victim();
                self.preempt(victim, batch, budget);
                gave_way = victim == place;
                place -= usize::from(victim < place);
            }
            if gave_way {
                continue;
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
    /// the available ones; without any, others are preempted.
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
                let victim = self.victim();
                // Whose turn it would be to give way waits for a block: it would lose its own ones.
                if len > 0 || victim + 1 == place {
                    break len;
                }
                self.preempt(victim, batch, budget);
                place -= usize::from(victim < place);
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

    /// Adds the chunk to the plan and its blocks to the sequence. The blocks must be available.
    pub(super) fn plan(&mut self, slot: usize, len: usize, batch: &mut Batch) {
        let sequence = &mut self.sequences[slot];
        for _ in 0..sequence.blocks_missing(sequence.computed + len, self.limits.block_size) {
            sequence.block_table.push(self.pool.allocate().expect("availability was checked"));
        }
        sequence.planned = Some(Planned { start: sequence.computed, len });
        sequence.deferred = false;
        batch.chunks.push(sequence.chunk(len));
    }

    /// Place of the running sequence that gives way when blocks run out, never the first of several.
    fn victim(&self) -> usize {
        self.last_of_most()
            .unwrap_or_else(|| self.running.len().checked_sub(1).expect("somebody holds the blocks"))
    }

    /// Returns a running sequence to the queue. Its tokens are kept, its chunk leaves the plan.
    pub(super) fn preempt(&mut self, place: usize, batch: &mut Batch, budget: &mut Budget) {
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

#[cfg(test)]
impl Scheduler {
    /// Preempts the last running sequence, as a shortage of blocks does.
    pub(super) fn preempt_last_for_test(&mut self) {
        let victim = self.victim();
        self.preempt(victim, &mut Batch::default(), &mut Budget { tokens: 0, prefill: 0, prefill_total: 0 });
    }
}
