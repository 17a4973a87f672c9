//! State of the step loop between its stations: the step being planned, the step in flight, the
//! sequences, and the end of a sequence.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::constrained::MaskThreads;
use super::delivery::Outbox;
use super::drafting::Drafting;
use super::forward_input::LogitsRow;
use super::handle::{Command, Shared};
use super::live::LiveSequence;
use super::model_drafts::ModelDrafts;
use super::pictures::Pictures;
use super::request::EngineEvent;
use super::tiers::TieredBlocks;
use crate::kv_events;
use crate::scheduler::{Batch, FinishReason, Finished, Scheduler, SeqId};
use perigee_decoding::guard::Verdict;
use perigee_decoding::sampling::TokenLogprobs;
use perigee_model::Model;
use perigee_ops::{Backend, Outcomes, StepPlan, Ticket, TokenId};
use perigee_telemetry::Metrics;

/// A step from its plan until it is settled.
#[derive(Default)]
pub(super) struct Step {
    pub(super) batch: Batch,
    /// Rows with logits.
    pub(super) rows: Vec<LogitsRow>,
    /// Indices into `rows` that are drawn or scored, in the order of the outcomes.
    pub(super) sampled: Vec<usize>,
    /// The draws, once they are enqueued.
    pub(super) tickets: Vec<Ticket>,
}

/// Tokens of a step, for the metrics.
#[derive(Default)]
pub(super) struct StepTokens {
    pub(super) computed: usize,
    pub(super) cached: usize,
    pub(super) generated: usize,
}

/// What the stations of a step read and write.
pub(super) struct StepLoop<B: Backend> {
    pub(super) model: Model<B>,
    pub(super) scheduler: Scheduler,
    pub(super) commands: Receiver<Command>,
    pub(super) shared: Arc<Shared>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) live: HashMap<SeqId, LiveSequence, ahash::RandomState>,
    pub(super) outbox: Outbox,
    pub(super) masks: MaskThreads,
    pub(super) epoch: Instant,
    pub(super) last_admission: Option<Instant>,
    pub(super) shutting_down: bool,
    /// Whether the last plan was empty.
    pub(super) stalled: bool,
    /// The step being planned.
    pub(super) step: Step,
    pub(super) plan: StepPlan,
    /// The previous step, whose draws are enqueued, until it is settled.
    pub(super) in_flight: Option<Step>,
    /// Sequences of the step being settled.
    pub(super) settling: Vec<SeqId>,
    pub(super) drafting: Drafting,
    /// The draft model, if there is one and it works.
    pub(super) model_drafts: Option<ModelDrafts>,
    pub(super) pictures: Pictures,
    /// Sequences with a draft in the step.
    pub(super) speculated: Vec<SeqId>,
    pub(super) step_tokens: StepTokens,
    /// Sequences whose constraint broke: they end when the step is settled.
    pub(super) broken: Vec<SeqId>,
    /// Prompt and drafted tokens of the step in flight.
    pub(super) paced_tokens: usize,
    pub(super) outcomes: Outcomes,
    pub(super) decisions: Vec<Decision>,
    pub(super) verdicts: Vec<(SeqId, Verdict)>,
    pub(super) counted: Counters,
    /// Where it is told which prefixes are cached.
    pub(super) kv_events: Option<kv_events::Feed>,
    /// Where blocks are kept that leave the pool.
    pub(super) tiered: Option<TieredBlocks<B>>,
}

/// Scheduler counters already added to the metrics.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) prefix_query_tokens: u64,
    pub(super) prefix_hit_tokens: u64,
}

/// Decision about a drawn row.
pub(super) struct Decision {
    pub(super) seq: SeqId,
    /// The token counted in the state of the backend's slot.
    pub(super) sampled: TokenId,
    /// The sampled token; `None` where it is not part of the reply.
    pub(super) token: Option<[u32; 1]>,
    pub(super) logprobs: Option<TokenLogprobs>,
    pub(super) finish: Option<FinishReason>,
    /// The guard's verdict on the token.
    pub(super) verdict: Verdict,
}

impl<B: Backend> StepLoop<B> {
    /// Closes the stream of a sequence that has left the scheduler.
    pub(super) fn end(&mut self, finished: Option<Finished>) {
        let Some(finished) = finished else { return };
        let Some(mut live) = self.live.remove(&finished.seq) else { return };
        self.pictures.end(finished.seq);
        if let Some(mut drafts) = live.drafts.take() {
            self.close_draft(&mut drafts);
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

    pub(super) fn publish_load(&self) {
        let stats = self.scheduler.stats();
        let shared = &self.shared;
        // What began to run is counted there before it leaves the queue: see `EngineHandle::snapshot`.
        shared.running.store(stats.running, Ordering::Release);
        shared.queued.store(stats.waiting, Ordering::Release);
        shared.used_blocks.store(stats.used_blocks, Ordering::Relaxed);
        shared.cached_blocks.store(stats.cached_blocks, Ordering::Relaxed);
    }
}

impl Decision {
    pub(super) fn failed(seq: SeqId, finish: FinishReason) -> Self {
        let verdict = Verdict::Deliver { upto: 0, event: None };
        Self { seq, sampled: TokenId(0), token: None, logprobs: None, finish: Some(finish), verdict }
    }
}
