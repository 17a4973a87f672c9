//! What the engine keeps of a sequence beside the scheduler: its parameters, its stream, its clock.

use std::time::{Duration, Instant};

use super::guarded::Guarded;
use super::handle::EventSender;
use crate::guard;
use crate::sampling::{BlockGuide, History, NoFiniteLogit, Sampled, Sampler, SamplingParams, Verdict};
use crate::scheduler::FinishReason;
use crate::telemetry::{Finish, Metrics, RequestFigures};

/// A sequence from submission to its end.
pub(super) struct LiveSequence {
    pub(super) params: SamplingParams,
    pub(super) events: EventSender,
    /// Token counts for the penalties.
    pub(super) history: History,
    /// Where the reply stands under its block rule, if it has one.
    pub(super) guide: Option<BlockGuide>,
    /// Watches the reply, and holds back what may be a loop.
    pub(super) guarded: Guarded,
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
        guard: Option<guard::Options>,
        arrived: Instant,
        events: EventSender,
    ) -> Self {
        // The history costs memory and time per token: it is kept only for a request that uses a penalty.
        let history = History::new(if params.uses_history() { prompt } else { &[] });
        let guide = params.block_rule.clone().map(BlockGuide::new);
        let guarded = Guarded::new(guard, params.max_tokens);
        Self {
            params,
            events,
            history,
            guide,
            guarded,
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

    /// A token from the row: sampled with what a rescue made of the parameters, unless the reply's block rule has another wish.
    pub(super) fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        position: u64,
    ) -> Result<Sampled, NoFiniteLogit> {
        let params = self.guarded.params(&self.params, logits);
        let Some(guide) = &self.guide else {
            return sampler.sample(logits, params, &self.history, position);
        };
        if let Some(token) = guide.forced() {
            return sampler.take(logits, params, token);
        }
        let sampled = sampler.sample(logits, params, &self.history, position)?;
        match guide.judge(sampled.token) {
            Verdict::Taken => Ok(sampled),
            Verdict::Instead(token) => sampler.take(logits, params, token),
            Verdict::Again(forbidden) => {
                // Once or twice in a reply: a copy of the parameters is no cost.
                let mut params = params.clone();
                params.logit_bias.retain(|(id, _)| !forbidden.contains(id));
                params.logit_bias.extend(forbidden.iter().map(|&id| (id, f32::NEG_INFINITY)));
                sampler.sample(logits, &params, &self.history, position)
            }
        }
    }

    /// Takes note of the token that was taken.
    pub(super) fn advance(&mut self, token: u32) {
        if let Some(guide) = &mut self.guide {
            guide.advance(token);
        }
        if self.params.uses_history() {
            self.history.add(token);
        }
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
            FinishReason::Error | FinishReason::NumericFault(_) => Finish::Error,
            FinishReason::Repetition => Finish::Repetition,
        };
        metrics.record_finished(&figures, finish);
    }
}
