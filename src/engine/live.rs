//! What the engine keeps of a sequence beside the scheduler: its parameters, its stream, its clock.

use std::time::{Duration, Instant};

use super::constrained::{Constrained, Ready};
use super::guarded::Guarded;
use super::handle::EventSender;
use crate::guard;
use crate::sampling::{
    BlockGuide, ConstraintBroken, History, NoFiniteLogit, Sampler, SamplingParams, TokenConstraint, Verdict,
};
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
    /// What the reply must be.
    pub(super) constraint: Option<Constrained>,
    /// A loop was found in a reply that must be whole: nothing follows but the shortest way to its end.
    winding_up: bool,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) reply_tokens: usize,
    pub(super) preemptions: usize,
    pub(super) arrived: Instant,
    pub(super) admitted: Option<Instant>,
    pub(super) first_token: Option<Instant>,
    pub(super) last_token: Option<Instant>,
}

/// What a step makes of a sequence's row of logits.
pub(super) enum Choice {
    /// This token, with the logprobs of so many others.
    Token { token: u32, wanted: Option<u32> },
    /// The mask is not there yet: not in this step.
    Late,
    /// The constraint cannot go on.
    Broken(ConstraintBroken),
    /// The row has no finite logit.
    NoFiniteLogit,
}

impl LiveSequence {
    pub(super) fn new(
        params: SamplingParams,
        prompt: &[u32],
        guard: Option<guard::Options>,
        constraint: Option<Box<dyn TokenConstraint>>,
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
            constraint: constraint.map(Constrained::new),
            winding_up: false,
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

    /// A token from the row, within the mask of the constraint where there is one: sampled with what a rescue made of the parameters,
    /// unless the reply's block rule has another wish that the constraint allows.
    pub(super) fn choose(&mut self, sampler: &mut Sampler, logits: &[f32], position: u64) -> Choice {
        let Self { params, history, guide, guarded, constraint, .. } = self;
        let mask = match constraint.as_mut().map(Constrained::ready) {
            None => params.allowed_token_ids.as_deref(),
            Some(Ready::Mask(mask)) => Some(mask),
            Some(Ready::Late) => return Choice::Late,
            Some(Ready::Broken(why)) => return Choice::Broken(why),
        };
        let allows = |token: u32| mask.is_none_or(|mask| mask.allows(token));
        let params = guarded.params(params, logits);
        let banned = params.bad_words.as_ref().map(|words| words.forbidden(history)).unwrap_or_default();
        let narrowed = (!banned.is_empty()).then(|| params.without(&banned));
        let params = narrowed.as_ref().unwrap_or(params);
        let wanted = params.logprobs;
        let mut sample =
            |params: &SamplingParams| sampler.choose_token(logits, params, history, position, mask);
        let forced = guide.as_ref().and_then(BlockGuide::forced).filter(|token| allows(*token));
        let token = match (forced, &*guide) {
            (Some(token), _) => sampler.survey(logits).map(|_| token),
            (None, None) => sample(params),
            (None, Some(guide)) => sample(params).and_then(|token| match guide.judge(token) {
                Verdict::Instead(other) if allows(other) => Ok(other),
                Verdict::Taken | Verdict::Instead(_) => Ok(token),
                // Once or twice in a reply: a copy of the parameters is no cost.
                Verdict::Again(forbidden) => sample(&params.without(&forbidden)),
            }),
        };
        match token {
            Ok(token) => Choice::Token { token, wanted },
            Err(NoFiniteLogit) => Choice::NoFiniteLogit,
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

    /// Reply tokens that may still come, as far as a constraint is to know.
    pub(super) fn tokens_left(&self) -> usize {
        let left = (self.params.max_tokens as usize).saturating_sub(self.reply_tokens);
        if self.winding_up { left.min(1) } else { left }
    }

    /// Instead of ending where it stands, lets the reply go to its end on the way that is known; says whether there is one.
    pub(super) fn wind_up(&mut self) -> bool {
        let can = self.knows_end();
        if can {
            self.winding_up = true;
            self.guarded.retire();
        }
        can
    }

    /// Whether the reply was to go to its end and cannot: what is known of its end was lost when it was cut back.
    pub(super) fn is_stranded(&self) -> bool {
        self.winding_up && !self.knows_end()
    }

    fn knows_end(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constrained::knows_end)
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
