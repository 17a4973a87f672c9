//! What the engine keeps of a sequence beside the scheduler: its parameters, its stream, its clock.

use std::time::{Duration, Instant};

use super::constrained::Constrained;
use super::handle::EventSender;
use crate::sampling::{History, SamplingParams, TokenConstraint};
use crate::scheduler::FinishReason;
use crate::telemetry::{Finish, Metrics, RequestFigures};

/// A sequence from submission to its end.
pub(super) struct LiveSequence {
    pub(super) params: SamplingParams,
    pub(super) events: EventSender,
    /// Token counts for the penalties.
    pub(super) history: History,
    /// What the reply must be.
    pub(super) constraint: Option<Constrained>,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) reply_tokens: usize,
    pub(super) preemptions: usize,
    pub(super) arrived: Instant,
    pub(super) admitted: Option<Instant>,
    pub(super) first_token: Option<Instant>,
    pub(super) last_token: Option<Instant>,
}

impl LiveSequence {
    pub(super) fn new(
        params: SamplingParams,
        prompt: &[u32],
        constraint: Option<Box<dyn TokenConstraint>>,
        arrived: Instant,
        events: EventSender,
    ) -> Self {
        // The history costs memory and time per token: it is kept only for a request that uses a penalty.
        let history = History::new(if params.uses_history() { prompt } else { &[] });
        Self {
            params,
            events,
            history,
            constraint: constraint.map(Constrained::new),
            prompt_tokens: prompt.len(),
            cached_tokens: 0,
            reply_tokens: 0,
            preemptions: 0,
            arrived,
            admitted: None,
            first_token: None,
            last_token: None,
        }
    }

    /// Reply tokens that may still come.
    pub(super) fn tokens_left(&self) -> usize {
        (self.params.max_tokens as usize).saturating_sub(self.reply_tokens)
    }

    /// Notes a new reply token on the clock.
    pub(super) fn record_token(&mut self, now: Instant, metrics: &Metrics) {
        match self.last_token {
            None => metrics.record_first_token(now - self.arrived),
            Some(last) => metrics.record_token_gap(now - last),
        }
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.reply_tokens += 1;
    }

    /// Notes the end.
    pub(super) fn record_end(&self, now: Instant, reason: FinishReason, metrics: &Metrics) {
        let between = |a: Option<Instant>, b: Option<Instant>| -> Option<Duration> { Some(b? - a?) };
        let figures = RequestFigures {
            e2e: now - self.arrived,
            queue: between(Some(self.arrived), self.admitted),
            prefill: between(self.admitted, self.first_token),
            decode: between(self.first_token, self.last_token),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            generation_tokens: self.reply_tokens,
            preemptions: self.preemptions,
        };
        let finish = match reason {
            FinishReason::StopToken(_) | FinishReason::Stopped => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Aborted | FinishReason::Deadline => Finish::Abort,
            FinishReason::Error => Finish::Error,
        };
        metrics.record_finished(&figures, finish);
    }
}
