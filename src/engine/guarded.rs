//! A sequence's guard at its place in the step: tokens on their way out, and what changes in sampling after a rescue.
//!
//! Invariant: what has left is never taken back; what is held leaves before the sequence ends, unless it was a loop.

use std::collections::VecDeque;

use super::delivery::Outbox;
use super::handle::EventSender;
use super::request::EngineEvent;
use crate::guard::{Event, Guard, Options, Verdict};
use crate::sampling::SamplingParams;

/// Ranks among which the end of a turn must be to be taken after a second rescue.
const END_RANK: usize = 20;
/// Weight of a rescue in the seed: draws after it are others than those that led into the loop.
const SEED_STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// The guard of one sequence, or none, and the tokens it holds back.
pub(super) struct Guarded {
    guard: Option<Box<Guard>>,
    held: VecDeque<EngineEvent>,
    /// Reply tokens that left.
    sent: usize,
    /// Parameters of one step after a rescue.
    nudged: SamplingParams,
}

impl Guarded {
    pub(super) fn new(options: Option<Options>, max_tokens: u32) -> Self {
        Self {
            guard: options.map(|options| Box::new(Guard::new(options, max_tokens as usize))),
            held: VecDeque::new(),
            sent: 0,
            nudged: SamplingParams::default(),
        }
    }

    /// The parameters for the next token: the request's own, unless a rescue changes them.
    pub(super) fn params<'a>(&'a mut self, own: &'a SamplingParams, logits: &[f32]) -> &'a SamplingParams {
        let Some(guard) = &self.guard else { return own };
        let mut forbidden = Vec::new();
        guard.forbidden(&mut forbidden);
        let wants_logprob = guard.wants_probability() && own.logprobs.is_none();
        if guard.num_rescues() == 0 && forbidden.is_empty() && !wants_logprob {
            return own;
        }
        self.nudged.clone_from(own);
        let nudged = &mut self.nudged;
        if wants_logprob {
            nudged.logprobs = Some(0);
        }
        nudged.seed = own.seed.wrapping_add((guard.num_rescues() as u64).wrapping_mul(SEED_STEP));
        nudged.temperature = guard.heated(own.temperature);
        let ends = guard.may_end().then(|| likely_end(logits, &own.stop_token_ids)).flatten();
        match guard.forced().or(ends) {
            Some(token) => {
                // Nothing can outweigh an infinite bias; greedy takes no chance.
                nudged.temperature = 0.0;
                nudged.logit_bias.retain(|&(id, _)| id != token);
                nudged.logit_bias.push((token, f32::INFINITY));
            }
            None => {
                nudged.logit_bias.extend(forbidden.into_iter().map(|token| (token, f32::NEG_INFINITY)));
            }
        }
        nudged
    }

    /// Takes a sampled token; without a guard everything leaves at once. `logprob` is its own, if it is known.
    pub(super) fn observe(&mut self, token: u32, logprob: Option<f32>) -> Verdict {
        let Some(guard) = &mut self.guard else {
            return Verdict::Deliver { upto: usize::MAX, event: None };
        };
        if guard.wants_probability()
            && let Some(logprob) = logprob
        {
            guard.note_probability(logprob.exp());
        }
        guard.observe(token)
    }

    /// Watches no more; what comes leaves at once.
    pub(super) fn retire(&mut self) {
        self.guard = None;
    }

    /// Adds a token's event behind those that wait.
    pub(super) fn push(&mut self, event: EngineEvent) {
        self.held.push_back(event);
    }

    /// Lets tokens leave until `upto` have.
    pub(super) fn send(&mut self, upto: usize, to: &EventSender, outbox: &mut Outbox) {
        while self.sent < upto
            && let Some(event) = self.held.pop_front()
        {
            outbox.push(to, event);
            self.sent += 1;
        }
    }

    /// Forgets the tokens that wait; returns how many reply tokens there are now.
    pub(super) fn drop_held(&mut self) -> usize {
        self.held.clear();
        self.sent
    }

    /// Cuts the reply back to `keep` tokens.
    pub(super) fn rewind(&mut self, keep: usize) {
        self.held.truncate(keep.saturating_sub(self.sent));
        self.sent = self.sent.min(keep);
        if let Some(guard) = &mut self.guard {
            guard.rewind(keep);
        }
    }

    /// Tokens that wait.
    pub(super) fn num_held(&self) -> usize {
        self.held.len()
    }

    /// Rescues so far.
    pub(super) fn num_rescues(&self) -> usize {
        self.guard.as_ref().map_or(0, |guard| guard.num_rescues())
    }
}

/// The most likely of the stop tokens, if fewer than `END_RANK` tokens are more likely.
fn likely_end(logits: &[f32], stops: &[u32]) -> Option<u32> {
    let logit = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let best = stops.iter().copied().max_by(|a, b| logit(a).total_cmp(&logit(b)))?;
    let better = logits.iter().filter(|&&other| other > logit(&best)).take(END_RANK).count();
    (better < END_RANK && logit(&best).is_finite()).then_some(best)
}

/// A finding as a line in the log and in the metrics' words.
pub(super) fn log(seq: u64, event: &Event) {
    tracing::warn!(
        seq,
        kind = event.kind.name(),
        phase = event.phase.name(),
        action = event.action.name(),
        period = event.period,
        copies = event.copies,
        start = event.start,
        end = event.end,
        discarded = event.discarded,
        "degenerate reply"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_taken_only_if_it_is_likely() {
        let mut logits: Vec<f32> = (0..100).map(|id| id as f32).collect();
        assert_eq!(likely_end(&logits, &[3, 85]), Some(85));
        assert_eq!(likely_end(&logits, &[3, 79]), None, "twenty are more likely");
        assert_eq!(likely_end(&logits, &[3, 80]), Some(80));
        logits[85] = f32::NAN;
        assert_eq!(likely_end(&logits, &[]), None);
        assert_eq!(likely_end(&logits, &[85]), None);
        assert_eq!(likely_end(&logits, &[5000]), None);
    }
}
