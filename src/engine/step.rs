//! Steps under way: the one being planned, the one in flight, the one being settled.
//!
//! Invariant: the sequences of a step are known to [`Steps::fail`] from its plan until it is settled,
//! wherever the step is meanwhile.

use crate::scheduler::{Batch, Chunk, SeqId, Stats};
use perigee_ops::{StepPlan, Ticket, TokenId};
use perigee_telemetry::StepShape;

/// A step from its plan until it is settled.
#[derive(Default)]
pub(super) struct Step {
    pub(super) batch: Batch,
    /// Rows with logits.
    pub(super) rows: Vec<LogitsRow>,
    /// Indices into `rows` that are drawn or scored, in the order of the outcomes.
    pub(super) sampled: Vec<usize>,
    /// The draws, once they are enqueued.
    pub(super) tickets: Vec<Ticket>,
}

/// The steps that are not settled.
#[derive(Default)]
pub(super) struct Steps {
    /// The step being planned.
    pub(super) planned: Step,
    /// Its rows for the backend.
    pub(super) plan: StepPlan,
    /// The previous step, whose draws are enqueued, until it is settled.
    in_flight: Option<Step>,
    /// Sequences of the step being settled.
    settling: Vec<SeqId>,
    /// Whether the last plan had work, or other work follows it: if not, a command or time must change that.
    has_work: bool,
}

/// A row of the step whose logits are needed; the list runs along `StepPlan::logits_rows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogitsRow {
    /// Index of its chunk in the batch.
    pub(super) chunk: usize,
    pub(super) purpose: Purpose,
}

/// Use of a row's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Scores this prompt token, which follows the row's.
    Score(TokenId),
    /// A token is sampled.
    Sample,
    /// A token is sampled once the row's own token, a drafted one, has been. The rows of a draft
    /// follow the row that is sampled first.
    Drafted,
}

impl LogitsRow {
    pub(super) fn is_drafted(&self) -> bool {
        self.purpose == Purpose::Drafted
    }

    pub(super) fn is_scored(&self) -> bool {
        matches!(self.purpose, Purpose::Score(_))
    }
}

impl Step {
    pub(super) fn is_empty(&self) -> bool {
        self.batch.chunks.is_empty()
    }

    /// Sizes of the step, for the flight recorder.
    pub(super) fn shape(&self, stats: &Stats) -> StepShape {
        let chunks = &self.batch.chunks;
        let decodes = |chunk: &Chunk| chunk.samples && chunk.len == 1;
        let prompt = |chunk: &Chunk| if decodes(chunk) { 0 } else { chunk.len };
        let reply = |chunk: &Chunk| if decodes(chunk) { 1 + chunk.draft.len() } else { 0 };
        StepShape {
            sequences: chunks.len(),
            prompt_tokens: chunks.iter().map(prompt).sum(),
            reply_rows: chunks.iter().map(reply).sum(),
            waiting: stats.waiting,
            used_blocks: stats.used_blocks,
        }
    }

    /// Sequences and rows of the step if every row is of a reply.
    pub(super) fn decoded(&self) -> Option<(usize, usize)> {
        let batch = &self.batch;
        let decodes = batch.chunks.iter().all(|chunk| chunk.samples && chunk.len == 1);
        (decodes && batch.started.is_empty()).then(|| (batch.chunks.len(), batch.num_tokens()))
    }
}

impl Steps {
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether nothing is in flight and the last plan had no work.
    pub(super) fn are_stalled(&self) -> bool {
        self.in_flight.is_none() && !self.has_work
    }

    /// Notes whether the plan, or other work that follows it, gives the next turn something to do.
    pub(super) fn note_work(&mut self, other: bool) {
        self.has_work = other || !self.planned.is_empty();
    }

    /// The planned step, its draws enqueued, is in flight.
    pub(super) fn launch(&mut self) {
        self.in_flight = Some(std::mem::take(&mut self.planned));
    }

    /// Takes the step in flight, to be settled until [`Steps::end_settling`].
    pub(super) fn land(&mut self) -> Option<Step> {
        let step = self.in_flight.take()?;
        self.settling.extend(step.batch.chunks.iter().map(|chunk| chunk.seq));
        Some(step)
    }

    pub(super) fn end_settling(&mut self) {
        self.settling.clear();
    }

    /// Drops all steps; returns their sequences, some of them twice.
    pub(super) fn fail(&mut self) -> Vec<SeqId> {
        let in_flight = self.in_flight.take().unwrap_or_default();
        let chunks = self.planned.batch.chunks.iter().chain(&in_flight.batch.chunks);
        let mut seqs: Vec<SeqId> = chunks.map(|chunk| chunk.seq).collect();
        seqs.append(&mut self.settling);
        self.planned.batch.clear();
        seqs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::LogitsNeed;

    fn step_of(seq: u64) -> Step {
        let chunk = Chunk {
            seq: SeqId(seq),
            start: 0,
            len: 1,
            draft: Vec::new(),
            expanded_until: 0,
            logits: LogitsNeed::Last,
            samples: true,
            void: false,
        };
        Step { batch: Batch { chunks: vec![chunk], ..Batch::default() }, ..Step::default() }
    }

    #[test]
    fn a_failure_finds_the_sequences_of_every_step() {
        let mut steps = Steps { planned: step_of(1), ..Steps::default() };
        steps.launch();
        steps.planned = step_of(2);
        assert_eq!(steps.land().map(|step| step.shape(&Stats::default()).reply_rows), Some(1));
        steps.launch();
        steps.planned = step_of(3);
        assert_eq!(steps.fail(), [3, 2, 1].map(SeqId));
        assert!(steps.fail().is_empty() && !steps.is_in_flight() && steps.planned.is_empty());
    }

    #[test]
    fn a_settled_step_does_not_fail() {
        let mut steps = Steps { planned: step_of(1), ..Steps::default() };
        steps.launch();
        assert!(steps.land().is_some() && steps.land().is_none());
        steps.end_settling();
        assert!(steps.fail().is_empty());
    }
}
