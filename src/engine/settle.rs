//! The end of a step: outcomes become tokens, tokens become events, and the guard's verdicts are
//! applied.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::constrained::Constrained;
use super::forward_input::Purpose;
use super::guarded;
use super::live::LiveSequence;
use super::request::EngineEvent;
use super::step_state::{Counters, Decision, Step, StepLoop, StepTokens};
use crate::scheduler::{FinishReason, Finished, Sampled, SeqId};
use perigee_decoding::guard::{RowFault, Verdict};
use perigee_decoding::sampling::{Taken, TokenLogprobs};
use perigee_ops::{Backend, OpError, Outcomes, RowFlags, RowOutcome, TokenId};
use perigee_telemetry::{GuardFigures, StepTimes};

impl<B: Backend> StepLoop<B> {
    /// Waits for the step in flight and applies its outcomes, then those of its drafts, row by row;
    /// no effect without a step.
    pub(super) fn settle(
        &mut self,
        lap: &mut impl FnMut(&mut Duration),
        times: &mut StepTimes,
    ) -> Result<(), OpError> {
        let Some(mut step) = self.in_flight.take() else { return Ok(()) };
        // A failure ends the sequences of this step too.
        self.settling.extend(step.batch.chunks.iter().map(|chunk| chunk.seq));
        loop {
            let finished = self.settle_step(&step, lap, times)?;
            self.emit(&step, finished);
            lap(&mut times.emit);
            if self.speculated.is_empty() {
                break;
            }
            // Drafts are settled in the turn of their plan: no other step is being planned.
            self.step = step;
            let more = self.sample_drafted(lap, times)?;
            step = std::mem::take(&mut self.step);
            lap(&mut times.sample);
            if !more {
                break;
            }
        }
        self.settling.clear();
        self.close_drafts();
        self.record_tokens();
        // Before the events: the figures then include the last event when a client has read it.
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
        self.publish_load();
        self.outbox.flush();
        lap(&mut times.emit);
        Ok(())
    }

    fn settle_step(
        &mut self,
        step: &Step,
        lap: &mut impl FnMut(&mut Duration),
        times: &mut StepTimes,
    ) -> Result<Vec<Finished>, OpError> {
        self.outcomes.clear();
        for ticket in &step.tickets {
            self.model.wait(*ticket, &mut self.outcomes)?;
        }
        // The work of an enqueuing backend ends here.
        lap(if B::ENQUEUES { &mut times.forward } else { &mut times.sample });
        for seq in std::mem::take(&mut self.broken) {
            let finished = self.scheduler.finish(seq, FinishReason::Error);
            self.end(finished);
        }
        self.decide(step);
        let sampled = self.decisions.iter().map(|d| Sampled {
            seq: d.seq,
            tokens: d.token.as_ref().map_or(&[], |token| &token[..]),
            finish: d.finish,
        });
        let finished = self.scheduler.settle(&step.batch, sampled);
        let refused = self.decisions.iter().filter(|d| d.token.is_none() && d.finish.is_none());
        for (seq, sampled) in refused.map(|d| (d.seq, d.sampled)).collect::<Vec<_>>() {
            self.take_back(seq, &[sampled]);
        }
        lap(&mut times.commit);
        Ok(finished)
    }

    /// Turns outcomes into decisions; delivers prompt logprobs at once. A sequence with an invalid
    /// scored row ends here, so that no block of this step gets a name. Blocks of earlier steps keep
    /// theirs: their rows were scored too, and valid.
    fn decide(&mut self, step: &Step) {
        self.decisions.clear();
        let mut faults: Vec<(SeqId, RowFault)> = Vec::new();
        for (&index, outcome) in step.sampled.iter().zip(&self.outcomes.rows) {
            let row = &step.rows[index];
            let seq = step.batch.chunks[row.chunk].seq;
            let Some(live) = self.live.get_mut(&seq) else { continue };
            if faults.iter().any(|(faulty, _)| *faulty == seq) {
                continue;
            }
            if matches!(row.purpose, Purpose::Score(_)) {
                match fault_of(outcome) {
                    Some(fault) => faults.push((seq, fault)),
                    None => {
                        let scored = logprobs_of(outcome, &self.outcomes);
                        self.outbox.push(&live.events, EngineEvent::PromptLogprobs(scored));
                    }
                }
                continue;
            }
            let decision = decide(seq, live, outcome, &self.outcomes);
            if let Some(FinishReason::NumericFault(fault)) = decision.finish {
                let position = live.reply_tokens;
                tracing::error!(seq = seq.0, position, fault = fault.name(), "logits are no numbers");
                self.metrics.record_numeric_fault(fault.name());
            }
            self.decisions.push(decision);
        }
        for (seq, fault) in faults {
            tracing::error!(seq = seq.0, fault = fault.name(), "logits of a scored prompt are no numbers");
            self.metrics.record_numeric_fault(fault.name());
            let finished = self.scheduler.finish(seq, FinishReason::NumericFault(fault));
            self.end(finished);
        }
        for index in 0..self.decisions.len() {
            let Decision { seq, token, finish, .. } = &self.decisions[index];
            let (seq, ends) =
                (*seq, matches!(finish, Some(FinishReason::StopToken(_) | FinishReason::Stopped)));
            if token.is_some() && (ends || finish.is_none() && self.scheduler.tokens_left(seq) <= 1) {
                self.learn(seq, usize::MAX);
            }
        }
    }

    /// Delivers tokens, then ends.
    fn emit(&mut self, step: &Step, finished: Vec<Finished>) {
        let now = Instant::now();
        let mut verdicts = std::mem::take(&mut self.verdicts);
        for decision in self.decisions.drain(..) {
            let Some([id]) = decision.token else { continue };
            let Some(live) = self.live.get_mut(&decision.seq) else { continue };
            live.record_token(now, &self.metrics);
            live.guarded.push(EngineEvent::Token { id, logprobs: decision.logprobs });
            verdicts.push((decision.seq, decision.verdict));
        }
        for (seq, verdict) in verdicts.drain(..) {
            self.obey_guard(seq, verdict);
        }
        self.verdicts = verdicts;
        for finished in finished {
            self.end(Some(finished));
        }
        let batch = &step.batch;
        let prompts = batch.chunks.iter().filter(|c| !c.samples || c.len > 1);
        let scores = |index: &&usize| matches!(step.rows[**index].purpose, Purpose::Score(_));
        self.step_tokens.computed += prompts.map(|c| c.len).sum::<usize>();
        self.step_tokens.cached += batch.admitted.iter().map(|a| a.cached_tokens).sum::<usize>();
        self.step_tokens.generated += step.sampled.iter().filter(|index| !scores(index)).count();
    }

    /// Adds the tokens of a settled step to the metrics.
    fn record_tokens(&mut self) {
        let StepTokens { computed, cached, generated } = std::mem::take(&mut self.step_tokens);
        self.metrics.add_tokens(computed, cached, generated);
        let stats = self.scheduler.stats();
        let queried = stats.prefix_query_tokens - self.counted.prefix_query_tokens;
        let hits = stats.prefix_hit_tokens - self.counted.prefix_hit_tokens;
        if queried > 0 {
            self.metrics.record_prefix_lookup(queried as usize, hits as usize);
        }
        self.counted = Counters {
            prefix_query_tokens: stats.prefix_query_tokens,
            prefix_hit_tokens: stats.prefix_hit_tokens,
        };
    }

    /// Removes tokens from a sequence's sampling state, if it has one; they are no longer part of
    /// its reply.
    pub(super) fn take_back(&mut self, seq: SeqId, removed: &[TokenId]) {
        if !self.scheduler.is_running(seq) {
            // A preempted sequence gets a new state from its tokens when it runs again.
            return;
        }
        let last = self.scheduler.tokens(seq).last().map_or(TokenId(0), |id| TokenId(*id));
        if let Err(error) = self.model.rewind_slot(self.scheduler.seq_slot(seq), removed, last) {
            tracing::error!(seq = seq.0, %error, "the sampling state could not be rewound");
            let finished = self.scheduler.finish(seq, FinishReason::Error);
            self.end(finished);
        }
    }

    /// Cuts a sequence to its first `keep` reply tokens wherever its tokens are kept; returns
    /// whether that was possible.
    fn cut_back(&mut self, seq: SeqId, keep: usize) -> bool {
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
        let back = live.reply_tokens - keep;
        live.reply_tokens = keep;
        if let Some(Err(error)) = live.constraint.as_mut().map(|constraint| constraint.rewind(back)) {
            tracing::error!(seq = seq.0, %error, "the constraint could not be rewound");
            let finished = self.scheduler.finish(seq, FinishReason::Error);
            self.end(finished);
            return false;
        }
        if let Some(guide) = &mut live.guide {
            guide.replay(&self.scheduler.tokens(seq)[live.prompt_tokens..]);
        }
        live.guarded.rewind(keep);
        live.drafts.iter_mut().for_each(|drafts| drafts.cut_back());
        self.take_back(seq, &removed);
        true
    }

    /// Applies the guard's verdict: sends tokens, or removes them.
    fn obey_guard(&mut self, seq: SeqId, verdict: Verdict) {
        let Some(live) = self.live.get_mut(&seq) else { return };
        let event = match verdict {
            Verdict::Deliver { upto, event } => {
                live.guarded.send(upto, &live.events, &mut self.outbox);
                if live.guarded.num_held() > 0 {
                    self.metrics.record_held_token();
                }
                event
            }
            Verdict::Stop { event, .. } => {
                live.reply_tokens = live.guarded.drop_held();
                Some(event)
            }
            Verdict::Rescue { keep, event } => {
                // A sequence that has just reached its limit has left the scheduler; only the held
                // tokens are dropped then.
                if !self.cut_back(seq, keep)
                    && let Some(live) = self.live.get_mut(&seq)
                {
                    live.reply_tokens = live.guarded.drop_held();
                }
                Some(event)
            }
        };
        let (Some(event), Some(live)) = (event, self.live.get(&seq)) else { return };
        let stranded = live.is_stranded();
        guarded::log(seq.0, &event);
        self.metrics.record_guard_event(&GuardFigures {
            kind: event.kind.name(),
            phase: event.phase.name(),
            action: event.action.name(),
            period: event.period,
            copies: event.copies,
            discarded: event.discarded,
        });
        self.outbox.push(&live.events, EngineEvent::Guard(Box::new(event)));
        if stranded {
            let finished = self.scheduler.finish(seq, FinishReason::Repetition);
            self.end(finished);
        }
    }
}

/// Decides whether a sampled token is part of the reply and whether it ends the reply.
fn decide(seq: SeqId, live: &mut LiveSequence, outcome: &RowOutcome, outcomes: &Outcomes) -> Decision {
    if let Some(fault) = fault_of(outcome) {
        return Decision::failed(seq, FinishReason::NumericFault(fault));
    }
    let token = outcome.token.0;
    let left = live.tokens_left().saturating_sub(1);
    let complete = match live.constraint.as_mut().map(|constraint| Constrained::take(constraint, token, left))
    {
        None => false,
        Some(Ok(Taken::Accepted { ends })) => ends,
        Some(Ok(Taken::Refused)) => {
            let verdict = Verdict::Deliver { upto: 0, event: None };
            return Decision {
                seq,
                sampled: outcome.token,
                token: None,
                logprobs: None,
                finish: None,
                verdict,
            };
        }
        Some(Err(error)) => {
            tracing::error!(seq = seq.0, position = live.reply_tokens, %error, "a constrained sequence ends");
            return Decision::failed(seq, FinishReason::Error);
        }
    };
    live.advance(token);
    let position = live.reply_tokens as u64;
    let stops =
        position + 1 > u64::from(live.params.min_tokens) && live.params.stop_token_ids.contains(&token);
    let verdict = match live.guarded.observe(token) {
        // A constrained reply is not cut off: the loop is removed, and the shortest completion
        // follows.
        Verdict::Stop { keep, event } if !stops && !complete && live.wind_up() => {
            Verdict::Rescue { keep, event }
        }
        verdict => verdict,
    };
    let finish = match verdict {
        _ if stops => Some(FinishReason::StopToken(token)),
        _ if complete => Some(FinishReason::Stopped),
        Verdict::Stop { .. } => Some(FinishReason::Repetition),
        _ => None,
    };
    let logprobs = live.params.logprobs.is_some().then(|| logprobs_of(outcome, outcomes));
    Decision { seq, sampled: outcome.token, token: Some([token]), logprobs, finish, verdict }
}

fn fault_of(outcome: &RowOutcome) -> Option<RowFault> {
    if outcome.flags.has(RowFlags::NON_FINITE) {
        return Some(RowFault::NonFinite);
    }
    outcome.flags.has(RowFlags::FLAT).then_some(RowFault::Flat)
}

fn logprobs_of(outcome: &RowOutcome, outcomes: &Outcomes) -> TokenLogprobs {
    let top = outcomes.top_of(outcome).iter().map(|(id, logprob)| (id.0, *logprob)).collect();
    TokenLogprobs { token: outcome.token.0, logprob: outcome.logprob, rank: outcome.rank, top }
}
