//! The engine's state of a sequence beside the scheduler's: parameters, stream, clock.

use std::time::{Duration, Instant};

use super::constrained::Constrained;
use super::guarded::Guarded;
use super::handle::EventSender;
use super::pictures::PictureUses;
use super::place::Place;
use super::request::{EngineRequest, Media};
use super::sequence_drafts::SequenceDrafts;
use crate::scheduler::FinishReason;
use perigee_decoding::sampling::{BlockGuide, ConstraintBroken, SamplingParams};
use perigee_ops::{Row, Rule, SampleRow, SampleRows, SeqSlot, SlotSpec, TokenId};
use perigee_telemetry::{FinishLabel, Metrics, RequestFigures};

/// A sequence from submission to its end.
pub(super) struct LiveSequence {
    pub(super) params: SamplingParams,
    pub(super) events: EventSender,
    /// Position of the reply under its block rule; `None` without a rule.
    pub(super) guide: Option<BlockGuide>,
    /// Checks the reply for loops and holds back tokens that may belong to one.
    pub(super) guarded: Guarded,
    /// Grammar state of the reply; `None` without a constraint.
    pub(super) constraint: Option<Constrained>,
    /// Drafts of the reply; `None` where there are none.
    pub(super) drafts: Option<Box<SequenceDrafts>>,
    /// Pictures in the prompt.
    pub(super) media: Vec<Media>,
    /// Rows of those pictures that the prompt still needs; `None` before they are taken and after.
    pub(super) pictures: Option<PictureUses>,
    /// A loop was found in a constrained reply: only the shortest path to its end remains allowed.
    winding_up: bool,
    /// Its place in the queue, until it is admitted.
    pub(super) place: Option<Place>,
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
        request: EngineRequest,
        drafts: Option<Box<SequenceDrafts>>,
        arrived: Instant,
        place: Place,
        events: EventSender,
    ) -> Self {
        let EngineRequest { prompt, sampling: params, guard, constraint, media, .. } = request;
        Self {
            events,
            guide: params.block_rule.clone().map(BlockGuide::new),
            guarded: Guarded::new(guard, params.max_tokens),
            constraint: constraint.map(Constrained::new),
            drafts,
            media,
            pictures: None,
            winding_up: false,
            place: Some(place),
            prompt_tokens: prompt.len(),
            cached_tokens: 0,
            reply_tokens: 0,
            preemptions: 0,
            arrived,
            admitted: None,
            first_token: None,
            last_token: None,
            params,
        }
    }

    /// Sampling input of the next token: the request's parameters, its constraint's mask, and the
    /// ids that its block rule and its guard forbid or force. `reply` holds the reply's tokens so
    /// far.
    pub(super) fn sample_row<'a>(
        &'a self,
        row: Row,
        slot: SeqSlot,
        reply: &[u32],
        rows: &mut SampleRows<'a>,
    ) {
        let params = &self.params;
        let position = self.reply_tokens as u64;
        let mask = match &self.constraint {
            Some(constraint) => constraint.mask(),
            None => params.allowed_token_ids.as_deref(),
        };
        let first = rows.forbidden.len() as u32;
        if let Some(guide) = &self.guide {
            guide.forbid(&mut rows.forbidden);
        }
        if position < u64::from(params.min_tokens) {
            rows.forbidden.extend_from_slice(&params.stop_token_ids);
        }
        if let Some(words) = &params.bad_words {
            words.forbid(reply, &mut rows.forbidden);
        }
        let mut sample = SampleRow { row, slot, forbidden: (first, first), ..row_of(params, position) };
        self.guarded.adjust(&mut sample, &mut rows.forbidden, &params.stop_token_ids, mask);
        let forced = self.guide.as_ref().and_then(BlockGuide::forced);
        if let Some(token) = forced.filter(|token| mask.is_none_or(|mask| mask.allows(*token))) {
            sample.rule = Rule::Forced(TokenId(token));
        }
        sample.forbidden.1 = rows.forbidden.len() as u32;
        if let Some(mask) = mask {
            sample.mask = rows.masks.len() as u32;
            rows.masks.push(mask);
        }
        rows.rows.push(sample);
    }

    /// Initial state of the sequence's slot; `tokens` are prompt and reply.
    pub(super) fn slot_spec<'a>(&'a self, tokens: &'a [u32]) -> SlotSpec<'a> {
        let counts = self.params.uses_history();
        let (prompt, reply) = tokens.split_at(self.prompt_tokens);
        SlotSpec {
            prompt,
            reply,
            counts,
            logit_bias: &self.params.logit_bias,
            stops: &self.params.stop_token_ids,
        }
    }

    /// Advances the block rule by a reply token.
    pub(super) fn advance(&mut self, token: u32) {
        if let Some(guide) = &mut self.guide {
            guide.advance(token);
        }
    }

    /// Cuts the reply to its first `keep` tokens, where `tokens` are the prompt and these. Errors: the
    /// constraint cannot go back; the sequence must end.
    pub(super) fn cut_back(&mut self, keep: usize, tokens: &[u32]) -> Result<(), ConstraintBroken> {
        let back = self.reply_tokens - keep;
        self.reply_tokens = keep;
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.rewind(back))?;
        if let Some(guide) = &mut self.guide {
            guide.replay(&tokens[self.prompt_tokens..]);
        }
        self.guarded.rewind(keep);
        self.drafts.iter_mut().for_each(|drafts| drafts.cut_back());
        Ok(())
    }

    /// Reply tokens that remain, as the constraint counts them.
    pub(super) fn tokens_left(&self) -> usize {
        let left = (self.params.max_tokens as usize).saturating_sub(self.reply_tokens);
        if self.winding_up { left.min(1) } else { left }
    }

    /// Completes the reply on the known path to its end instead of ending it here; returns whether
    /// there is such a path.
    pub(super) fn wind_up(&mut self) -> bool {
        let can = self.knows_end();
        if can {
            self.winding_up = true;
            self.guarded.retire();
        }
        can
    }

    /// Whether the reply must be completed and cannot: the path to its end was lost when it was cut
    /// back.
    pub(super) fn is_stranded(&self) -> bool {
        self.winding_up && !self.knows_end()
    }

    fn knows_end(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constrained::knows_end)
    }

    /// Records the time of a new reply token.
    pub(super) fn record_token(&mut self, now: Instant, metrics: &Metrics) {
        match self.last_token {
            None => metrics.record_first_token(now - self.arrived),
            Some(last) => metrics.record_token_gap(now - last),
        }
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.reply_tokens += 1;
    }

    /// Records the end of the sequence.
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
            FinishReason::StopToken(_) | FinishReason::Stopped => FinishLabel::Stop,
            FinishReason::Length => FinishLabel::Length,
            FinishReason::Aborted | FinishReason::Deadline => FinishLabel::Abort,
            FinishReason::Error | FinishReason::NumericFault(_) => FinishLabel::Error,
            FinishReason::Repetition => FinishLabel::Repetition,
        };
        metrics.record_finished(&figures, finish);
    }
}

/// Sampling row of a request's own parameters, with row 0 and slot 0.
pub(super) fn row_of(params: &SamplingParams, position: u64) -> SampleRow {
    SampleRow {
        seed: params.seed,
        position,
        row: Row(0),
        slot: SeqSlot(0),
        temperature: params.temperature,
        top_p: params.top_p,
        min_p: params.min_p,
        top_k: params.top_k,
        repetition: params.repetition_penalty,
        presence: params.presence_penalty,
        frequency: params.frequency_penalty,
        mask: SampleRow::NO_MASK,
        forbidden: (0, 0),
        rule: Rule::Draw,
        top: match params.logprobs {
            None => SampleRow::NO_LOGPROBS,
            // Chosen ids are picked from the whole row.
            Some(_) if !params.logprob_token_ids.is_empty() => SampleRow::MAX_TOP,
            Some(top) => top.min(SampleRow::MAX_TOP),
        },
    }
}
