//! A sequence's guard inside the step: tokens held back from the stream, and changes to sampling
//! after a rescue.
//!
//! Invariant: a sent token is never removed; a held token is sent before the sequence ends, unless
//! it belongs to a loop.

use std::collections::VecDeque;

use super::delivery::Outbox;
use super::handle::EventSender;
use super::request::EngineEvent;
use super::sequences::Sequences;
use crate::scheduler::{FinishReason, SeqId};
use perigee_decoding::guard::{Event, Guard, Options, Verdict};
use perigee_decoding::sampling::TokenMask;
use perigee_model::Model;
use perigee_ops::{Backend, Rule, SampleRow, TokenId};
use perigee_telemetry::{GuardFigures, Metrics};

/// An end token among this many most likely ids is taken between copies of a permitted repetition.
const END_RANK: u32 = 20;
/// Factor on the number of rescues in the seed: draws after a rescue differ from those that led
/// into the loop.
const SEED_STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// The guard of one sequence, or none, and the tokens held back.
pub(super) struct Guarded {
    guard: Option<Box<Guard>>,
    held: VecDeque<EngineEvent>,
    /// The guard's verdict on the last token, until it is applied.
    verdict: Option<Verdict>,
    /// Reply tokens sent to the stream.
    sent: usize,
}

impl Guarded {
    pub(super) fn new(options: Option<Options>, max_tokens: u32) -> Self {
        Self {
            guard: options.map(|options| Box::new(Guard::new(options, max_tokens as usize))),
            held: VecDeque::new(),
            verdict: None,
            sent: 0,
        }
    }

    /// Applies the guard to the next row: seed, forced token, allowed end, forbidden ids.
    /// `forbidden` is the row's list so far.
    pub(super) fn adjust(
        &self,
        row: &mut SampleRow,
        forbidden: &mut Vec<u32>,
        stops: &[u32],
        mask: Option<&TokenMask>,
    ) {
        let Some(guard) = &self.guard else { return };
        row.seed = row.seed.wrapping_add((guard.num_rescues() as u64).wrapping_mul(SEED_STEP));
        let first = row.forbidden.0 as usize;
        let stops_forbidden = forbidden[first..].iter().any(|id| stops.contains(id));
        match guard.forced().filter(|token| mask.is_none_or(|mask| mask.allows(*token))) {
            Some(token) => row.rule = Rule::Forced(TokenId(token)),
            None if guard.may_end() && mask.is_none() && !stops_forbidden => {
                row.rule = Rule::EndIfRankBelow(END_RANK);
            }
            None => {}
        }
        guard.forbidden(forbidden);
    }

    /// Observes a sampled token; without a guard every token may be sent at once.
    pub(super) fn observe(&mut self, token: u32) -> Verdict {
        match &mut self.guard {
            Some(guard) => guard.observe(token),
            None => Verdict::Deliver { upto: usize::MAX, event: None },
        }
    }

    /// Stops observing; later tokens are sent at once.
    pub(super) fn retire(&mut self) {
        self.guard = None;
    }

    /// Adds a token's event behind the held ones; [`obey`] applies the verdict on it.
    pub(super) fn push(&mut self, event: EngineEvent, verdict: Verdict) {
        self.held.push_back(event);
        self.verdict = Some(verdict);
    }

    /// Sends held tokens until `upto` reply tokens are sent.
    pub(super) fn send(&mut self, upto: usize, to: &EventSender, outbox: &mut Outbox) {
        while self.sent < upto
            && let Some(event) = self.held.pop_front()
        {
            outbox.push(to, event);
            self.sent += 1;
        }
    }

    /// Drops the held tokens; returns the number of reply tokens that remain.
    pub(super) fn drop_held(&mut self) -> usize {
        self.held.clear();
        self.sent
    }

    /// Cuts the reply to its first `keep` tokens.
    pub(super) fn rewind(&mut self, keep: usize) {
        self.held.truncate(keep.saturating_sub(self.sent));
        self.sent = self.sent.min(keep);
        if let Some(guard) = &mut self.guard {
            guard.rewind(keep);
        }
    }

    pub(super) fn num_held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn num_rescues(&self) -> usize {
        self.guard.as_ref().map_or(0, |guard| guard.num_rescues())
    }
}

/// Applies the guard's verdict on a sequence's last token: sends tokens, or removes them.
pub(super) fn obey<B: Backend>(seq: SeqId, sequences: &mut Sequences, model: &mut Model<B>) {
    let Sequences { live, outbox, metrics, .. } = sequences;
    let Some(live) = live.get_mut(&seq) else { return };
    let event = match live.guarded.verdict.take() {
        None => None,
        Some(Verdict::Deliver { upto, event }) => {
            live.guarded.send(upto, &live.events, outbox);
            if live.guarded.num_held() > 0 {
                metrics.record_held_token();
            }
            event
        }
        Some(Verdict::Stop { event, .. }) => {
            live.reply_tokens = live.guarded.drop_held();
            Some(event)
        }
        Some(Verdict::Rescue { keep, event }) => {
            // A sequence that has just reached its limit has left the scheduler; only the held tokens
            // are dropped then.
            if !sequences.cut_back(seq, keep, model)
                && let Some(live) = sequences.live.get_mut(&seq)
            {
                live.reply_tokens = live.guarded.drop_held();
            }
            Some(event)
        }
    };
    let (Some(event), Some(live)) = (event, sequences.live.get(&seq)) else { return };
    let stranded = live.is_stranded();
    report(seq, &event, &sequences.metrics);
    sequences.outbox.push(&live.events, EngineEvent::Guard(Box::new(event)));
    if stranded {
        sequences.finish(seq, FinishReason::Repetition);
    }
}

/// Writes an event of the guard to the log and the metrics.
fn report(seq: SeqId, event: &Event, metrics: &Metrics) {
    tracing::warn!(
        seq = seq.0,
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
    metrics.record_guard_event(&GuardFigures {
        kind: event.kind.name(),
        phase: event.phase.name(),
        action: event.action.name(),
        period: event.period,
        copies: event.copies,
        discarded: event.discarded,
    });
}
