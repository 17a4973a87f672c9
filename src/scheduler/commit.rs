//! Applies what a step computed: positions advance, tokens are appended when their values arrive, full blocks get names, sequences
//! end. And the way back: `rewind`.

use super::sequence::{Phase, Planned};
use super::{Batch, Chunk, FinishReason, Finished, Scheduler, SeqId};

/// What the engine decided for a chunk that samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled<'a> {
    /// The chunk's sequence.
    pub seq: SeqId,
    /// New tokens in order, usually one. Tokens beyond `tokens_left` are dropped. Empty: nothing could be sampled, and the
    /// last known token is computed again in the next step.
    pub tokens: &'a [u32],
    /// Whether the sequence ends after the last of them, and why.
    pub finish: Option<FinishReason>,
}

/// Why a sequence was not rewound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RewindError {
    /// It is not live.
    #[error("sequence {} is not running or waiting", .0.0)]
    Unknown(SeqId),
    /// A prompt cannot be cut, and what is not known cannot be kept.
    #[error("cannot rewind to {to} tokens: the prompt has {prompt_len}, prompt and reply have {known}")]
    OutOfRange {
        /// Asked for.
        to: usize,
        /// Least.
        prompt_len: usize,
        /// Most.
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

    /// The step is under way: positions move on, and a chunk that samples has one token more, of which only the device knows the
    /// value. A chunk that ends the known tokens and does not sample is computed up to its last token, which the next step
    /// computes again. Chunks of sequences that were ended, rewound or planned anew since the plan become void.
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

    /// Whether the sequence of a planned chunk was ended, rewound or planned anew since.
    pub fn is_void(&self, chunk: &Chunk) -> bool {
        let planned = Planned { start: chunk.start, len: chunk.len };
        self.slots.get(&chunk.seq).is_none_or(|&slot| self.sequences[slot].planned != Some(planned))
    }

    /// The outcome of a step that was advanced. `sampled` may come in any order; an entry counts only if its sequence has a
    /// token under way. A chunk that sampled and has no entry, or one without tokens, is computed up to its last token, which
    /// the next step computes again.
    ///
    /// Returns the sequences that ended here, in batch order: for the engine's reason, else with `Length`. They are gone.
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
            if sequence.phase == Phase::Waiting {
                self.queued_tokens += accepted.len();
            }
            // Whatever ended after tokens that were dropped ended by length before.
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
            // Only settled tokens are named. The last one is computed again if nothing followed it, so its block may be written
            // again; and what a failed step computed is not passed on.
            let covered = sequence.block_table.len() * self.limits.block_size;
            let whole = at_length && sequence.computed + 1 >= chunk.end();
            let len = if whole { chunk.end().min(covered) } else { chunk.end().min(sequence.computed) };
            match reason {
                Some(FinishReason::Error) => {}
                // Blocks of a sequence with broken numbers may hold them from its beginning: nobody finds them any more.
                Some(FinishReason::NumericFault(_)) => self.unname_blocks(slot),
                _ => self.publish(slot, len),
            }
            if let Some(reason) = reason {
                finished.push(self.remove(slot, reason));
            }
        }
        finished
    }

    /// Names the blocks that `len` computed tokens fill, as far as others may use them.
    fn publish(&mut self, slot: usize, len: usize) {
        if !self.limits.prefix_caching {
            return;
        }
        let sequence = &mut self.sequences[slot];
        for index in sequence.published..sequence.shareable_blocks(len, self.limits.block_size) {
            let hash = sequence.block_hash(index, self.limits.block_size);
            self.pool.publish(sequence.block_table[index], hash);
            sequence.published = index + 1;
        }
    }

    /// Takes the names of all blocks of a sequence away. Others that hold one of them keep it.
    fn unname_blocks(&mut self, slot: usize) {
        for &block in &self.sequences[slot].block_table {
            self.pool.unname(block);
        }
    }

    /// Cuts a live sequence back to its first `to` tokens, prompt included, as if it had never gone further: what is computed
    /// next is the row after token `to - 1`.
    ///
    /// Blocks behind that point are given back; named ones stay cached, for a name says what its block holds. The rule for the
    /// block that the next step writes into: if somebody else holds it, or it is named, the sequence lets go of it and computes
    /// its tokens again, from the block's start, into a fresh one; otherwise it is written in place. Full blocks that others can
    /// see are thus never written.
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
            self.blocked = None; // It may need fewer blocks now.
        }
        sequence.tokens.truncate(to);
        sequence.unsettled = 0;
        sequence.hashes.truncate(to / block_size);
        sequence.planned = None;
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
