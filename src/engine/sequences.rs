//! All sequences, from submission to their end: the scheduler's record of each, the engine's, and the streams
//! that their events go to.
//!
//! Invariant: a sequence that leaves the scheduler leaves `live` by [`Sequences::end`], which closes
//! its stream, before another station runs. What a station keeps of a sequence is in its
//! [`LiveSequence`], or holds its id and finds nothing there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::clock::Clock;
use super::delivery::Outbox;
use super::handle::Submission;
use super::live::LiveSequence;
use super::load::LoadFigures;
use super::request::{EngineEvent, Media};
use super::sequence_drafts::{SequenceDrafts, Trial};
use crate::scheduler::{Batch, FinishReason, Finished, MediaSpan, NewSequence, Scheduler, SeqId};
use perigee_model::Model;
use perigee_ops::{Backend, OpError, TokenId};
use perigee_telemetry::{Metrics, Preemption};

/// The engine's records by sequence.
pub(super) type Live = HashMap<SeqId, LiveSequence, ahash::RandomState>;

/// The sequences that wait or run.
pub(super) struct Sequences {
    pub(super) scheduler: Scheduler,
    pub(super) live: Live,
    pub(super) outbox: Outbox,
    /// Drafts under way of sequences that have ended, until `Drafting` counts them.
    pub(super) ended_trials: Vec<Trial>,
    pub(super) metrics: Arc<Metrics>,
}

impl Sequences {
    pub(super) fn new(scheduler: Scheduler, outbox: Outbox, metrics: Arc<Metrics>) -> Self {
        Self { scheduler, live: Live::default(), outbox, ended_trials: Vec::new(), metrics }
    }

    /// Queues a sequence. Whether the scheduler took it.
    pub(super) fn add(
        &mut self,
        submission: Submission,
        drafts: Option<Box<SequenceDrafts>>,
        clock: &Clock,
    ) -> bool {
        let Submission { id, mut request, arrived, place, events } = submission;
        let new = NewSequence {
            id,
            prompt: request.prompt.clone(),
            max_tokens: request.sampling.max_tokens,
            priority: request.priority,
            share: request.share,
            arrival_us: clock.micros(arrived),
            deadline_us: request.deadline.map(|deadline| clock.micros(deadline)),
            cache_salt: request.cache_salt.take(),
            prompt_logits: request.sampling.prompt_logprobs.is_some(),
            media: request.media.iter().map(span_of).collect(),
        };
        if let Err(error) = self.scheduler.add(new) {
            // The handle checks what can be refused; the rest is a broken invariant of one request.
            tracing::error!(%error, "sequence refused by the scheduler");
            self.outbox.push(&events, EngineEvent::Finished(FinishReason::Error));
            return false;
        }
        self.live.insert(id, LiveSequence::new(request, drafts, arrived, place, events));
        true
    }

    /// Ends the sequences whose deadlines have passed.
    pub(super) fn expire(&mut self, now_us: u64) {
        for finished in self.scheduler.expire(now_us) {
            self.end(finished);
        }
    }

    /// Ends a sequence with a reason of the engine or of its client; no effect if it has ended.
    pub(super) fn finish(&mut self, seq: SeqId, reason: FinishReason) {
        if let Some(finished) = self.scheduler.finish(seq, reason) {
            self.end(finished);
        }
    }

    /// Ends a sequence whose client needs no more than its first `keep` reply tokens.
    pub(super) fn finish_at(&mut self, seq: SeqId, keep: usize) {
        let Some(finished) = self.scheduler.finish_at(seq, keep) else { return };
        if let Some(live) = self.live.get_mut(&seq) {
            live.reply_tokens = live.reply_tokens.min(keep);
        }
        self.end(finished);
    }

    /// Closes the stream of a sequence that has left the scheduler.
    pub(super) fn end(&mut self, finished: Finished) {
        let Some(mut live) = self.live.remove(&finished.seq) else { return };
        if let Some(drafts) = &mut live.drafts {
            self.ended_trials.extend(drafts.close());
            if let Some((accepted, rejected)) = drafts.counts() {
                self.outbox.push(&live.events, EngineEvent::Speculated { accepted, rejected });
            }
        }
        if matches!(
            finished.reason,
            FinishReason::StopToken(_) | FinishReason::Length | FinishReason::Stopped
        ) {
            live.guarded.send(usize::MAX, &live.events, &mut self.outbox);
            if live.guarded.num_rescues() > 0 {
                self.metrics.record_rescue_success();
            }
        }
        live.record_end(Instant::now(), finished.reason, &self.metrics);
        self.outbox.push(&live.events, EngineEvent::Finished(finished.reason));
    }

    /// Reports the sequences that a plan admitted and preempted to their streams, to the metrics and to the
    /// handles.
    pub(super) fn note_plan(&mut self, batch: &Batch, load: &mut LoadFigures) {
        let now = Instant::now();
        for admission in &batch.admitted {
            let Some(live) = self.live.get_mut(&admission.seq) else { continue };
            live.admitted = Some(now);
            live.cached_tokens = admission.cached_tokens;
            self.outbox.push(&live.events, EngineEvent::Started { cached_tokens: admission.cached_tokens });
            live.place = None;
            load.note_admission(live.arrived, now);
        }
        self.metrics.record_preemptions(Preemption::Fairness, batch.made_way);
        self.metrics.record_preemptions(Preemption::Blocks, batch.preempted.len() - batch.made_way);
        for seq in &batch.preempted {
            if let Some(live) = self.live.get_mut(seq) {
                live.preemptions += 1;
            }
        }
        // Before the step is computed: routers count on the load of this moment.
        if !batch.admitted.is_empty() || !batch.preempted.is_empty() {
            load.publish(&self.scheduler.stats());
        }
    }

    /// Opens the sampling states of the sequences that a plan started.
    pub(super) fn open_slots<B: Backend>(&self, batch: &Batch, model: &mut Model<B>) -> Result<(), OpError> {
        for seq in &batch.started {
            if let Some(live) = self.live.get(seq) {
                let spec = live.slot_spec(self.scheduler.tokens(*seq));
                model.open_slot(self.scheduler.seq_slot(*seq), &spec)?;
            }
        }
        Ok(())
    }

    /// Removes tokens from a sequence's sampling state, if it has one; they are no longer part of its reply.
    pub(super) fn take_back<B: Backend>(&mut self, seq: SeqId, removed: &[TokenId], model: &mut Model<B>) {
        if !self.scheduler.is_running(seq) {
            // A preempted sequence gets a new state from its tokens when it runs again.
            return;
        }
        let last = self.scheduler.tokens(seq).last().map_or(TokenId(0), |id| TokenId(*id));
        if let Err(error) = model.rewind_slot(self.scheduler.seq_slot(seq), removed, last) {
            tracing::error!(seq = seq.0, %error, "the sampling state could not be rewound");
            self.finish(seq, FinishReason::Error);
        }
    }

    /// Cuts a sequence to its first `keep` reply tokens wherever its tokens are kept; returns whether
    /// that was possible.
    pub(super) fn cut_back<B: Backend>(&mut self, seq: SeqId, keep: usize, model: &mut Model<B>) -> bool {
        let Some(live) = self.live.get_mut(&seq) else { return false };
        if keep == live.reply_tokens {
            return true;
        }
        let from = live.prompt_tokens + keep;
        if keep > live.reply_tokens || !self.scheduler.contains(seq) {
            return false;
        }
        let removed: Vec<TokenId> =
            self.scheduler.tokens(seq)[from..].iter().map(|id| TokenId(*id)).collect();
        if self.scheduler.rewind(seq, from).is_err() {
            return false;
        }
        if let Err(error) = live.cut_back(keep, self.scheduler.tokens(seq)) {
            tracing::error!(seq = seq.0, %error, "the constraint could not be rewound");
            self.finish(seq, FinishReason::Error);
            return false;
        }
        self.take_back(seq, &removed, model);
        true
    }
}

fn span_of(media: &Media) -> MediaSpan {
    MediaSpan { start: media.start, len: media.picture.num_tokens(), hash: media.hash }
}
