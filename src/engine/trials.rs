//! Drafts under way: opened by a plan, followed row by row as their tokens are sampled, counted when
//! all rows are settled.
//!
//! Invariant: a drafted row is sampled only once the token that it was computed for has been.

use super::guess_sources::GuessSources;
use super::request::EngineEvent;
use super::sequence_drafts::Trial;
use super::sequences::Sequences;
use super::step::Step;
use crate::scheduler::{Batch, Chunk, LogitsNeed, Scheduler, SeqId};
use perigee_decoding::speculation::SequenceAcceptance;
use perigee_telemetry::{DraftFigures, Metrics};

/// Drafts of a step.
#[derive(Default)]
pub(super) struct Trials {
    /// Sequences with a draft in the step, until it is counted.
    seqs: Vec<SeqId>,
    /// Drafted tokens of the step that became part of a reply.
    accepted: usize,
}

impl Trials {
    /// Whether the step has no drafts, or they are counted.
    pub(super) fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    pub(super) fn accepted(&self) -> usize {
        self.accepted
    }

    /// Opens the drafts that a plan took, as far as the rows with logits fit `max_logits_rows`.
    pub(super) fn open(&mut self, batch: &mut Batch, max_logits_rows: usize, sequences: &mut Sequences) {
        let Sequences { scheduler, live, .. } = sequences;
        fit(batch, max_logits_rows, scheduler);
        self.accepted = 0;
        for chunk in &batch.chunks {
            let drafts = live.get_mut(&chunk.seq).and_then(|live| live.drafts.as_deref_mut());
            if drafts.is_some_and(|drafts| drafts.open(chunk)) {
                self.seqs.push(chunk.seq);
            }
        }
    }

    /// Goes on to the drafted rows behind those just settled, where the sampled token is the drafted
    /// one: `step` becomes the step of these rows, to be sampled. Returns whether there are any.
    pub(super) fn follow(&self, step: &mut Step, sequences: &mut Sequences) -> bool {
        if self.is_empty() {
            return false;
        }
        let Sequences { scheduler, live, .. } = sequences;
        let mut chunks = Vec::new();
        let mut sampled = Vec::new();
        for &index in &step.sampled {
            let Some(row) = step.rows.get(index + 1).filter(|row| row.is_drafted()) else { continue };
            let chunk = &step.batch.chunks[row.chunk];
            let next = scheduler.plan_drafted(chunk);
            if let Some(drafts) = live.get_mut(&chunk.seq).and_then(|live| live.drafts.as_deref_mut()) {
                let missed = next.is_none() && scheduler.tokens(chunk.seq).len() == chunk.end() + 1;
                drafts.note_outcome(next.is_some(), missed);
            }
            let Some(next) = next else { continue };
            for row in step.rows[index + 1..].iter_mut().take_while(|row| row.is_drafted()) {
                row.chunk = chunks.len();
            }
            chunks.push(next);
            sampled.push(index + 1);
        }
        if chunks.is_empty() {
            return false;
        }
        step.batch.clear();
        (step.batch.chunks, step.sampled) = (chunks, sampled);
        true
    }

    /// Counts the drafts of a step whose rows are all settled. The streams are told at once: a reply
    /// that ends at a stop string reads no event behind its last token.
    pub(super) fn close(&mut self, sources: &mut GuessSources, sequences: &mut Sequences, metrics: &Metrics) {
        let Self { seqs, accepted } = self;
        let mut count = |trial: Trial, sequence: &mut SequenceAcceptance| {
            let Trial { matched, drafted, held, missed, .. } = trial;
            sources.acceptance.record(matched, held, missed, sequence);
            *accepted += held;
            metrics.record_draft(&DraftFigures { drafted, accepted: held });
        };
        let Sequences { live, outbox, ended_trials, .. } = sequences;
        ended_trials.drain(..).for_each(|trial| count(trial, &mut SequenceAcceptance::default()));
        for seq in seqs.drain(..) {
            let Some(live) = live.get_mut(&seq) else { continue };
            let Some(drafts) = live.drafts.as_deref_mut() else { continue };
            if let Some(trial) = drafts.close() {
                count(trial, drafts.outcomes_of(trial.source));
            }
            if let Some((accepted, rejected)) = drafts.counts() {
                outbox.push(&live.events, EngineEvent::Speculated { accepted, rejected });
            }
        }
    }
}

/// Shortens drafts, the last ones first, until all rows of the plan with logits fit the workspace.
fn fit(batch: &mut Batch, max_logits_rows: usize, scheduler: &Scheduler) {
    let needed = |chunk: &Chunk| {
        let scored = match chunk.logits {
            LogitsNeed::All => chunk.end().min(scheduler.prompt_len(chunk.seq) - 1),
            LogitsNeed::None | LogitsNeed::Last => chunk.start,
        };
        scored.saturating_sub(chunk.start) + usize::from(chunk.samples) + chunk.draft.len()
    };
    let rows: usize = batch.chunks.iter().map(needed).sum();
    let mut over = rows.saturating_sub(max_logits_rows);
    for chunk in batch.chunks.iter_mut().rev() {
        let kept = chunk.draft.len().saturating_sub(over);
        over -= chunk.draft.len() - kept;
        chunk.draft.truncate(kept);
    }
}
