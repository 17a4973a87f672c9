//! The end of a step: outcomes of its rows become tokens of replies, and tokens become events.
//!
//! Invariant: a token's event waits in its sequence's [`Guarded`](super::guarded::Guarded) until the
//! scheduler has the token, and is sent as the guard's verdict says.

use std::sync::Arc;
use std::time::Instant;

use super::clock::Clock;
use super::constrained::Constrained;
use super::drafting::Drafting;
use super::guarded;
use super::live::LiveSequence;
use super::request::EngineEvent;
use super::sequences::Sequences;
use super::step::Step;
use crate::scheduler::{FinishReason, Sampled, SeqId, Stats};
use perigee_decoding::guard::{RowFault, Verdict};
use perigee_decoding::sampling::{Taken, TokenLogprobs};
use perigee_model::Model;
use perigee_ops::{Backend, OpError, Outcomes, RowFlags, RowOutcome, TokenId};
use perigee_telemetry::Metrics;

/// Outcomes of the step being settled, and the counts of its tokens.
pub(super) struct Settlement {
    outcomes: Outcomes,
    counts: TokenCounts,
    metrics: Arc<Metrics>,
}

/// Tokens for the metrics.
#[derive(Default)]
struct TokenCounts {
    computed: usize,
    cached: usize,
    generated: usize,
    /// Counters of the scheduler that are in the metrics already.
    prefix_query_tokens: u64,
    prefix_hit_tokens: u64,
}

impl Settlement {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { outcomes: Outcomes::default(), counts: TokenCounts::default(), metrics }
    }

    /// Waits for the outcomes of a step's draws.
    pub(super) fn fetch<B: Backend>(&mut self, step: &Step, model: &mut Model<B>) -> Result<(), OpError> {
        self.outcomes.clear();
        step.tickets.iter().try_for_each(|ticket| model.wait(*ticket, &mut self.outcomes))
    }

    /// Applies the outcomes of a step: to the sequences, to the scheduler, to the streams.
    pub(super) fn settle<B: Backend>(
        &mut self,
        step: &Step,
        sequences: &mut Sequences,
        drafting: &mut Drafting,
        model: &mut Model<B>,
        clock: &mut Clock,
    ) {
        let Self { outcomes, counts, metrics } = self;
        let decided = decide_all(step, outcomes, sequences, metrics);
        for entry in &decided.sampled {
            let ends = matches!(entry.finish, Some(FinishReason::StopToken(_) | FinishReason::Stopped));
            let is_last = || entry.finish.is_none() && sequences.scheduler.tokens_left(entry.seq) <= 1;
            if !entry.tokens.is_empty() && (ends || is_last()) {
                drafting.learn(entry.seq, usize::MAX, sequences);
            }
        }
        let finished = sequences.scheduler.settle(&step.batch, decided.sampled.iter().copied());
        for (seq, refused) in decided.refused {
            sequences.take_back(seq, &[refused], model);
        }
        clock.lap(|times| &mut times.commit);
        let now = Instant::now();
        let with_token = || decided.sampled.iter().filter(|entry| !entry.tokens.is_empty());
        for entry in with_token() {
            if let Some(live) = sequences.live.get_mut(&entry.seq) {
                live.record_token(now, metrics);
            }
        }
        with_token().for_each(|entry| guarded::obey(entry.seq, sequences, model));
        finished.into_iter().for_each(|finished| sequences.end(finished));
        counts.add(step);
        clock.lap(|times| &mut times.emit);
    }

    /// Adds the tokens of a step, and of the drafted rows behind it, to the metrics.
    pub(super) fn record(&mut self, stats: &Stats) {
        let TokenCounts { computed, cached, generated, prefix_query_tokens, prefix_hit_tokens } = self.counts;
        self.metrics.add_tokens(computed, cached, generated);
        let queried = stats.prefix_query_tokens - prefix_query_tokens;
        let hits = stats.prefix_hit_tokens - prefix_hit_tokens;
        if queried > 0 {
            self.metrics.record_prefix_lookup(queried as usize, hits as usize);
        }
        self.counts = TokenCounts {
            prefix_query_tokens: stats.prefix_query_tokens,
            prefix_hit_tokens: stats.prefix_hit_tokens,
            ..TokenCounts::default()
        };
    }
}

impl TokenCounts {
    fn add(&mut self, step: &Step) {
        let prompts = step.batch.chunks.iter().filter(|chunk| !chunk.samples || chunk.len > 1);
        self.computed += prompts.map(|chunk| chunk.len).sum::<usize>();
        self.cached += step.batch.admitted.iter().map(|admission| admission.cached_tokens).sum::<usize>();
        self.generated += step.sampled.iter().filter(|index| !step.rows[**index].is_scored()).count();
    }
}

/// What the outcomes of a step say.
#[derive(Default)]
struct Decided<'a> {
    sampled: Vec<Sampled<'a>>,
    /// Tokens that a constraint refused; the state of their slots counts them.
    refused: Vec<(SeqId, TokenId)>,
}

/// Decides on each drawn row; delivers prompt logprobs at once. A sequence with an invalid scored row
/// ends here, so that no block of this step gets a name. Blocks of earlier steps keep theirs: their
/// rows were scored too, and valid.
fn decide_all<'a>(
    step: &Step,
    outcomes: &'a Outcomes,
    sequences: &mut Sequences,
    metrics: &Metrics,
) -> Decided<'a> {
    let mut decided = Decided::default();
    let mut faults: Vec<(SeqId, RowFault)> = Vec::new();
    for (&index, outcome) in step.sampled.iter().zip(&outcomes.rows) {
        let row = &step.rows[index];
        let seq = step.batch.chunks[row.chunk].seq;
        let Some(live) = sequences.live.get_mut(&seq) else { continue };
        if faults.iter().any(|(faulty, _)| *faulty == seq) {
            continue;
        }
        if row.is_scored() {
            match fault_of(outcome) {
                Some(fault) => faults.push((seq, fault)),
                None => {
                    let scored = logprobs_of(outcome, outcomes);
                    sequences.outbox.push(&live.events, EngineEvent::PromptLogprobs(scored));
                }
            }
            continue;
        }
        let sampled = decide(seq, live, outcome, outcomes);
        if let Some(FinishReason::NumericFault(fault)) = sampled.finish {
            let position = live.reply_tokens;
            tracing::error!(seq = seq.0, position, fault = fault.name(), "logits are no numbers");
            metrics.record_numeric_fault(fault.name());
        }
        if sampled.tokens.is_empty() && sampled.finish.is_none() {
            decided.refused.push((seq, outcome.token));
        }
        decided.sampled.push(sampled);
    }
    for (seq, fault) in faults {
        tracing::error!(seq = seq.0, fault = fault.name(), "logits of a scored prompt are no numbers");
        metrics.record_numeric_fault(fault.name());
        sequences.finish(seq, FinishReason::NumericFault(fault));
    }
    decided
}

/// Decides whether a sampled token is part of the reply and whether it ends the reply. A token of the
/// reply is held for its sequence's stream, with the guard's verdict.
fn decide<'a>(
    seq: SeqId,
    live: &mut LiveSequence,
    outcome: &'a RowOutcome,
    outcomes: &Outcomes,
) -> Sampled<'a> {
    let without_token = |finish| Sampled { seq, tokens: &[], finish };
    if let Some(fault) = fault_of(outcome) {
        return without_token(Some(FinishReason::NumericFault(fault)));
    }
    let token = outcome.token.0;
    let left = live.tokens_left().saturating_sub(1);
    let complete = match live.constraint.as_mut().map(|constraint| Constrained::take(constraint, token, left))
    {
        None => false,
        Some(Ok(Taken::Accepted { ends })) => ends,
        Some(Ok(Taken::Refused)) => return without_token(None),
        Some(Err(error)) => {
            tracing::error!(seq = seq.0, position = live.reply_tokens, %error, "a constrained sequence ends");
            return without_token(Some(FinishReason::Error));
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
    let logprobs = live.params.logprobs.map(|top| {
        let mut logprobs = logprobs_of(outcome, outcomes);
        if !live.params.logprob_token_ids.is_empty() {
            keep_chosen(&mut logprobs, top as usize, &live.params.logprob_token_ids);
        }
        logprobs
    });
    live.guarded.push(EngineEvent::Token { id: token, logprobs }, verdict);
    Sampled { seq, tokens: std::slice::from_ref(&outcome.token.0), finish }
}

fn fault_of(outcome: &RowOutcome) -> Option<RowFault> {
    if outcome.flags.has(RowFlags::NON_FINITE) {
        return Some(RowFault::NonFinite);
    }
    outcome.flags.has(RowFlags::FLAT).then_some(RowFault::Flat)
}

/// Keeps the `top` most likely tokens of a whole row, and the tokens with these ids, ascending.
fn keep_chosen(logprobs: &mut TokenLogprobs, top: usize, ids: &[u32]) {
    let mut rank = 0;
    logprobs.top.retain(|(id, _)| {
        rank += 1;
        rank <= top || ids.binary_search(id).is_ok()
    });
    logprobs.top.shrink_to_fit();
}

fn logprobs_of(outcome: &RowOutcome, outcomes: &Outcomes) -> TokenLogprobs {
    let top = outcomes.top_of(outcome).iter().map(|(id, logprob)| (id.0, *logprob)).collect();
    TokenLogprobs { token: outcome.token.0, logprob: outcome.logprob, rank: outcome.rank, top }
}
