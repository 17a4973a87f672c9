//! The draws of a step: masks are computed beside the model, and each row is drawn under the mask of its
//! sequence's present state.
//!
//! A sequence whose mask is late is left out of the step; one whose constraint broke ends when the step is
//! settled. Does not know which step comes before or after.

use super::clock::Clock;
use super::constrained::{Constrained, MaskThreads, Ready};
use super::live::row_of;
use super::sequences::Sequences;
use super::step::{LogitsRow, Purpose, Step};
use crate::scheduler::{FinishReason, SeqId};
use perigee_model::Model;
use perigee_ops::{Backend, OpError, Row, Rule, SampleRow, SampleRows};

/// Masks and draws.
pub(super) struct Draws {
    masks: MaskThreads,
    /// Sequences whose constraint broke.
    broken: Vec<SeqId>,
}

impl Draws {
    /// Starts the threads that compute masks.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { masks: MaskThreads::new()?, broken: Vec::new() })
    }

    /// Starts the computation of masks: they are computed beside the model, until the draws need them.
    pub(super) fn begin_masks(&mut self, step: &Step, sequences: &mut Sequences) {
        let Sequences { scheduler, live, .. } = sequences;
        for &index in &step.sampled {
            let row = &step.rows[index];
            let chunk = &step.batch.chunks[row.chunk];
            if row.is_scored() {
                continue;
            }
            let Some(live) = live.get_mut(&chunk.seq).filter(|_| !scheduler.is_void(chunk)) else { continue };
            let left = live.tokens_left();
            if let Some(constraint) = &mut live.constraint {
                constraint.send(&self.masks, left);
            }
        }
    }

    /// Enqueues the draws of the rows in `step.sampled`, less those that [`Draws::leave_out`] removes.
    /// Logits of the first rows are computed already; the others follow in groups that fit the
    /// workspace.
    pub(super) fn enqueue<B: Backend>(
        &mut self,
        step: &mut Step,
        sequences: &mut Sequences,
        model: &mut Model<B>,
        clock: &mut Clock,
    ) -> Result<(), OpError> {
        self.leave_out(step, sequences);
        let Step { batch, rows: logits_rows, sampled, tickets } = step;
        tickets.clear();
        let group = model.capacity().max_logits_rows;
        for first in (0..logits_rows.len()).step_by(group) {
            let end = (first + group).min(logits_rows.len());
            if first > 0 {
                clock.lap(|times| &mut times.sample);
                model.logits(first..end)?;
                clock.lap(|times| &mut times.forward);
            }
            let mut rows = SampleRows::default();
            for &index in sampled.iter().filter(|index| (first..end).contains(*index)) {
                let LogitsRow { chunk, purpose } = logits_rows[index];
                add_row(batch.chunks[chunk].seq, Row((index - first) as u32), purpose, sequences, &mut rows);
            }
            if !rows.rows.is_empty() {
                tickets.push(model.sample(&rows)?);
            }
        }
        Ok(())
    }

    /// Removes rows that are not drawn: of chunks that became void since the plan, and those whose mask
    /// is late or whose constraint is broken.
    fn leave_out(&mut self, step: &mut Step, sequences: &mut Sequences) {
        let Step { batch, rows, sampled, .. } = step;
        let Sequences { scheduler, live, .. } = sequences;
        sampled.retain(|&index| {
            let row = &rows[index];
            let chunk = &mut batch.chunks[row.chunk];
            if scheduler.is_void(chunk) {
                return false;
            }
            let Some(live) = live.get_mut(&chunk.seq) else { return false };
            match live.constraint.as_mut().filter(|_| !row.is_scored()).map(Constrained::ready) {
                None | Some(Ready::Here) => true,
                Some(Ready::Late) => {
                    chunk.samples = false;
                    false
                }
                Some(Ready::Broken(error)) => {
                    tracing::error!(seq = chunk.seq.0, %error, "a constrained sequence ends");
                    chunk.samples = false;
                    self.broken.push(chunk.seq);
                    false
                }
            }
        });
    }

    /// Ends the sequences whose constraint broke.
    pub(super) fn end_broken(&mut self, sequences: &mut Sequences) {
        for seq in std::mem::take(&mut self.broken) {
            sequences.finish(seq, FinishReason::Error);
        }
    }
}

/// Adds the draw or score of a row of logits.
fn add_row<'a>(seq: SeqId, row: Row, purpose: Purpose, sequences: &'a Sequences, rows: &mut SampleRows<'a>) {
    let Some(live) = sequences.live.get(&seq) else { return };
    let slot = sequences.scheduler.seq_slot(seq);
    match purpose {
        Purpose::Score(token) => rows.rows.push(SampleRow {
            row,
            slot,
            rule: Rule::Score(token),
            top: live.params.prompt_logprobs.unwrap_or(0).min(SampleRow::MAX_TOP),
            ..row_of(&live.params, 0)
        }),
        Purpose::Sample | Purpose::Drafted => {
            let reply = &sequences.scheduler.tokens(seq)[live.prompt_tokens..];
            live.sample_row(row, slot, reply, rows);
        }
    }
}
