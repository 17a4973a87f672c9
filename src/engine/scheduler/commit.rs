//! Applies a computed step: positions advance, tokens are appended when their values arrive, full
//! blocks get names, sequences end. `rewind` is the reverse operation.

use super::sequence::{Phase, Planned};
use super::{Batch, Chunk, FinishReason, Finished, Scheduler, SeqId};

/// The engine's result for a chunk that samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled<'a> {
    /// The chunk's sequence.
    pub seq: SeqId,
    /// New tokens in order, usually one. Tokens beyond `tokens_left` are dropped. Empty: no token
    /// could be sampled, and the next step computes the last known token again.
    pub tokens: &'a [u32],
    /// Reason of the end if the sequence ends after the last of `tokens`; `None` if it continues.
    pub finish: Option<FinishReason>,
}

/// Reason of a refused rewind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RewindError {
    /// The sequence is neither running nor waiting.
    #[error("sequence {} is not running or waiting", .0.0)]
    Unknown(SeqId),
    /// The target is shorter than the prompt or longer than the known tokens.
    #[error("cannot rewind to {to} tokens: the prompt has {prompt_len}, prompt and reply have {known}")]
    OutOfRange {
        /// Requested length, tokens.
        to: usize,
        /// Shortest length, tokens.
        prompt_len: usize,
        /// Longest length, tokens.
        known: usize,
    },
}

impl Scheduler {
    /// [`Scheduler::advance`] and [`Scheduler::settle`] of one step.
    pub fn commit<'a>(
        &mut self,
        batch: &mut Batch,
        sampled: impl IntoIterator<Item = Sampled<'a>>,
    ) -> Vec<Finished> {
        self.advance(batch);
        self.settle(batch, sampled)
    }

    /// Advances positions when the step is enqueued. A chunk that samples adds one token whose
    /// value is on the device only. A chunk that ends the known tokens and does not sample counts
    /// as computed up to its last token, which the next step computes again. Chunks of sequences
    /// that were ended, rewound or planned anew since the plan become void.
    pub fn advance(&mut self, batch: &mut Batch) {
        for chunk in &mut batch.chunks {
            chunk.void = self.is_void(chunk);
            if chunk.void {
                continue;
            }
            let sequence = &mut self.sequences[self.slots[&chunk.seq]];
            sequence.planned = None;
            if chunk.samples {
                sequence.unsettled += 1;
                sequence.phase = Phase::Decode;
            }
            sequence.logits_delivered = sequence.logits_delivered.max(chunk.end().min(sequence.prompt_len));
            sequence.computed = chunk.end().min(sequence.known() - 1);
        }
    }

    /// Whether the sequence of a planned chunk was ended, rewound or planned anew since the plan.
    pub fn is_void(&self, chunk: &Chunk) -> bool {
        let planned = Planned { start: chunk.start, len: chunk.len };
        self.slots.get(&chunk.seq).is_none_or(|&slot| self.sequences[slot].planned != Some(planned))
    }

    /// Applies the outcome of an advanced step. `sampled` may be in any order; an entry counts only
    /// if its sequence has an unsettled token. A chunk that sampled and has no entry, or an entry
    /// without tokens, counts as computed up to its last token, which the next step computes again.
    ///
    /// Returns the sequences that ended, in batch order, with the engine's reason or `Length`. The
    /// scheduler has removed them.
    pub fn settle<'a>(
        &mut self,
        batch: &Batch,
        sampled: impl IntoIterator<Item = Sampled<'a>>,
    ) -> Vec<Finished> {
        let mut ending: Vec<(usize, FinishReason)> = Vec::new();
        for entry in sampled {
            let Some(&slot) = self.slots.get(&entry.seq) else { continue };
            let sequence = &mut self.sequences[slot];
            if sequence.unsettled == 0 {
                continue;
            }
            sequence.unsettled = 0;
            let left = sequence.max_tokens - sequence.reply_len();
            let accepted = &entry.tokens[..entry.tokens.len().min(left)];
            sequence.tokens.extend_from_slice(accepted);
            sequence.draft.clear();
            self.queue.serve_reply(sequence.lane, sequence.share, accepted.len());
            if sequence.phase == Phase::Waiting {
                self.queued_tokens += accepted.len();
            }
            // A sequence whose tokens were dropped had already ended by length.
            if let Some(reason) = entry.finish.filter(|_| accepted.len() == entry.tokens.len()) {
                ending.push((slot, reason));
            }
        }
        let mut finished = Vec::new();
        for chunk in batch.chunks.iter().filter(|chunk| !chunk.void) {
            let Some(&slot) = self.slots.get(&chunk.seq) else { continue };
            let sequence = &mut self.sequences[slot];
            if chunk.samples && sequence.unsettled > 0 {
                sequence.unsettled = 0;
            }
            if sequence.computed >= sequence.known() {
                (sequence.computed, sequence.planned) = (sequence.tokens.len() - 1, None);
            }
            let at_length = chunk.end() >= sequence.prompt_len && sequence.reply_len() >= sequence.max_tokens;
            let reason = match ending.iter().find(|(ending, _)| *ending == slot) {
                Some((_, reason)) => Some(*reason),
                None => at_length.then_some(FinishReason::Length),
            };
            // Only settled tokens are named. The last one is computed again if no token followed,
            // so its block may be written again; the tokens of a failed step are not shared.
            let covered = sequence.block_table.len() * self.limits.block_size;
            let whole = at_length && sequence.computed + 1 >= chunk.end();
            let len = if whole { chunk.end().min(covered) } else { chunk.end().min(sequence.computed) };
            match reason {
                Some(FinishReason::Error) => {}
                // The blocks of a sequence with non-finite numbers may hold them from its first
                // position: no prompt may match them.
                Some(FinishReason::NumericFault(_)) => self.unname_blocks(slot),
                _ => self.publish(slot, len),
            }
            if let Some(reason) = reason {
                finished.push(self.remove(slot, reason));
            }
        }
        finished
    }

    /// Names the blocks that `len` computed tokens fill, up to the last shareable one.
    fn publish(&mut self, slot: usize, len: usize) {
        if !self.limits.prefix_caching {
            return;
        }
        let sequence = &mut self.sequences[slot];
        for index in sequence.published..sequence.shareable_blocks(len, self.limits.block_size) {
            let hash = sequence.block_hash(index, self.limits.block_size);
            if self.pool.publish(sequence.block_table[index], hash) {
                self.pool.note_named(|| sequence.named_block(hash, index, self.limits.block_size));
            }
            sequence.published = index + 1;
        }
    }

    /// Removes the names of all blocks of a sequence. Other holders of a block keep it.
    fn unname_blocks(&mut self, slot: usize) {
        for &block in &self.sequences[slot].block_table {
            self.pool.unname(block);
        }
    }

    /// Cuts a live sequence to its first `to` tokens, prompt included. The state equals that of a
    /// sequence that has not computed more: the next row is the one after token `to - 1`.
    ///
    /// Blocks behind that point are released; named ones stay cached, because a name identifies the
    /// content of its block. The block that the next step writes into is released if it is shared
    /// or named, and its tokens are computed again, from the block's start, into a fresh block;
    /// otherwise it is written in place. Full blocks that other sequences can match are thus never
    /// written.
    pub fn rewind(&mut self, seq: SeqId, to: usize) -> Result<(), RewindError> {
        let slot = *self.slots.get(&seq).ok_or(RewindError::Unknown(seq))?;
        let block_size = self.limits.block_size;
        let sequence = &mut self.sequences[slot];
        let (prompt_len, known) = (sequence.prompt_len, sequence.tokens.len());
        if !(prompt_len..=known).contains(&to) {
            return Err(RewindError::OutOfRange { to, prompt_len, known });
        }
        if sequence.phase == Phase::Waiting {
            self.queued_tokens -= known - to;
            self.blocked = None; // The shorter sequence may need fewer blocks.
        }
        sequence.tokens.truncate(to);
        sequence.unsettled = 0;
        sequence.hashes.truncate(to / block_size);
        sequence.contents.truncate(to / block_size);
        sequence.planned = None;
        sequence.draft.clear();
        sequence.computed = sequence.computed.min(to - 1);
        let partial = sequence.computed / block_size;
        if !sequence.computed.is_multiple_of(block_size)
            && !self.pool.is_private(sequence.block_table[partial])
        {
            sequence.computed = partial * block_size;
        }
        let kept = sequence.computed.div_ceil(block_size);
        for block in sequence.block_table.drain(kept.min(sequence.block_table.len())..).rev() {
            self.pool.release(block);
        }
        // A block that is written again is published again when it is full.
        sequence.published = sequence.published.min(sequence.computed / block_size);
        Ok(())
    }
}
