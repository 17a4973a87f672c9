//! The step loop: commands, schedule, forward, sample, commit, emit; on one OS thread.
//!
//! Invariant: whatever happens in a step (a refused operation, a panic), every sequence of that step gets its `Finished`, the
//! scheduler's bookkeeping stays exact, and the next step starts clean. Three failed steps in a row end the engine with the reason.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::constrained::MaskThreads;
use super::delivery::Outbox;
use super::forward_input::{self, LogitsRow};
use super::guarded;
use super::handle::{Command, EndGuard, EngineFacts, EngineHandle, EventSender, Shared, door};
use super::live::{Choice, LiveSequence};
use super::request::{EngineEvent, EngineRequest};
use crate::guard::{self, RowFault, Verdict};
use crate::model::{ForwardInput, Model};
use crate::ops::{Backend, OpError};
use crate::sampling::{ConstraintBroken, Logprobs, Sampler, TokenLogprobs};
use crate::scheduler::{Batch, FinishReason, Finished, Limits, NewSequence, Sampled, Scheduler, SeqId};
use crate::telemetry::{GuardFigures, Load, Metrics, StepTimes};

/// Steps that may fail in a row before the engine gives up.
const MAX_FAILED_STEPS: usize = 3;

/// How long the loop waits for commands when sequences are queued but none can run.
const STALLED_WAIT: Duration = Duration::from_millis(5);

/// Weight of the newest gap in the moving average of admissions.
const GAP_WEIGHT: f64 = 0.1;

/// A token decided for a chunk.
struct Decision {
    seq: SeqId,
    token: [u32; 1],
    logprobs: Option<TokenLogprobs>,
    /// No token could be sampled.
    failed: bool,
    finish: Option<FinishReason>,
    /// What the guard says of it.
    verdict: Verdict,
}

/// The engine's state on its thread.
struct StepLoop<B: Backend> {
    model: Model<B>,
    scheduler: Scheduler,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    live: HashMap<SeqId, LiveSequence, ahash::RandomState>,
    outbox: Outbox,
    sampler: Sampler,
    logprobs: Logprobs,
    masks: MaskThreads,
    epoch: Instant,
    last_admission: Option<Instant>,
    shutting_down: bool,
    batch: Batch,
    input: ForwardInput,
    rows: Vec<LogitsRow>,
    decisions: Vec<Decision>,
    verdicts: Vec<(SeqId, Verdict)>,
    counted: Counters,
}

/// Scheduler counters already handed to the metrics.
#[derive(Default)]
struct Counters {
    prefix_query_tokens: u64,
    prefix_hit_tokens: u64,
}

/// Starts the engine on its own thread. The thread ends after `EngineHandle::shutdown`, or with the reason of its death.
pub fn spawn<B: Backend>(
    model: Model<B>,
    limits: Limits,
    facts: EngineFacts,
    metrics: Arc<Metrics>,
) -> std::io::Result<(EngineHandle, JoinHandle<Result<(), String>>)> {
    let (handle, commands, shared) = door(facts);
    let scheduler = Scheduler::new(limits).map_err(std::io::Error::other)?;
    let outbox = Outbox::new()?;
    let masks = MaskThreads::new()?;
    let thread = std::thread::Builder::new().name("perigee-engine".into()).spawn(move || {
        let _end = EndGuard(shared.clone());
        let step_loop = StepLoop {
            model,
            scheduler,
            commands,
            shared,
            metrics,
            live: HashMap::default(),
            outbox,
            sampler: Sampler::default(),
            logprobs: Logprobs::default(),
            masks,
            epoch: Instant::now(),
            last_admission: None,
            shutting_down: false,
            batch: Batch::default(),
            input: ForwardInput::default(),
            rows: Vec::new(),
            decisions: Vec::new(),
            verdicts: Vec::new(),
            counted: Counters::default(),
        };
        step_loop.run()
    })?;
    Ok((handle, thread))
}

impl<B: Backend> StepLoop<B> {
    fn run(mut self) -> Result<(), String> {
        let mut failed_steps = 0;
        loop {
            self.take_commands();
            self.outbox.flush();
            if self.shutting_down && self.scheduler.is_empty() {
                // Commands after the last step may have freed blocks.
                self.publish_load();
                return Ok(());
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| self.step()));
            let failure = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(panic) => Some(panic_message(&*panic)),
            };
            let Some(reason) = failure else {
                failed_steps = 0;
                continue;
            };
            failed_steps += 1;
            tracing::error!(reason, sequences = self.batch.chunks.len(), "step failed");
            self.fail_batch();
            if failed_steps == MAX_FAILED_STEPS {
                let reason = format!("{MAX_FAILED_STEPS} steps in a row failed, the last with: {reason}");
                let _ = self.shared.death.set(reason.clone());
                return Err(reason);
            }
        }
    }

    /// Takes every command that is there; waits for one when nothing can run.
    fn take_commands(&mut self) {
        let idle = self.scheduler.is_empty() && !self.shutting_down;
        if idle {
            self.publish_load();
            match self.commands.recv() {
                Ok(command) => self.obey(command),
                Err(mpsc::RecvError) => self.shutting_down = true,
            }
        } else if self.batch.chunks.is_empty() {
            match self.commands.recv_timeout(STALLED_WAIT) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.shutting_down = true,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { id, request, arrived, events } => self.add(id, *request, arrived, events),
            Command::Abort(id) => {
                let finished = self.scheduler.abort(id);
                self.end(finished);
            }
            Command::StopAfter { id, keep } => {
                let finished = self.scheduler.finish_at(id, keep);
                if let (Some(_), Some(live)) = (finished, self.live.get_mut(&id)) {
                    live.reply_tokens = live.reply_tokens.min(keep);
                }
                self.end(finished);
            }
            Command::Rewind { id, keep } => self.rewind(id, keep),
            Command::Shutdown => self.shutting_down = true,
        }
    }

    /// Cuts a sequence back because its caller wants it; refuses silently what is no longer possible.
    fn rewind(&mut self, id: SeqId, keep: usize) {
        if self.cut_back(id, keep)
            && let Some(live) = self.live.get(&id)
        {
            self.outbox.push(&live.events, EngineEvent::Rewound { keep });
        }
    }

    /// Cuts a sequence back to `keep` reply tokens, here and in the scheduler; says whether that was possible.
    fn cut_back(&mut self, id: SeqId, keep: usize) -> bool {
        let Some(live) = self.live.get_mut(&id) else { return false };
        if keep == live.reply_tokens {
            return true;
        }
        if keep > live.reply_tokens || self.scheduler.rewind(id, live.prompt_tokens + keep).is_err() {
            return false;
        }
        let back = live.reply_tokens - keep;
        live.reply_tokens = keep;
        if let Some(Err(error)) = live.constraint.as_mut().map(|constraint| constraint.rewind(back)) {
            tracing::error!(seq = id.0, %error, "the constraint could not be rewound");
            let finished = self.scheduler.finish(id, FinishReason::Error);
            self.end(finished);
            return false;
        }
        if live.params.uses_history() {
            live.history.rewind(keep);
        }
        if let Some(guide) = &mut live.guide {
            guide.replay(&self.scheduler.tokens(id)[live.prompt_tokens..]);
        }
        live.guarded.rewind(keep);
        true
    }

    fn add(&mut self, id: SeqId, request: EngineRequest, arrived: Instant, events: EventSender) {
        let micros = |at: Instant| at.saturating_duration_since(self.epoch).as_micros() as u64;
        let new = NewSequence {
            id,
            prompt: request.prompt.clone(),
            max_tokens: request.sampling.max_tokens,
            priority: request.priority,
            arrival_us: micros(arrived),
            deadline_us: request.deadline.map(micros),
            cache_salt: request.cache_salt,
            prompt_logits: request.sampling.prompt_logprobs.is_some(),
        };
        let EngineRequest { sampling, guard, constraint, .. } = request;
        let live = LiveSequence::new(sampling, &request.prompt, guard, constraint, arrived, events);
        if let Err(error) = self.scheduler.add(new) {
            // The door checks what can be refused; what is left is a broken invariant of one request.
            tracing::error!(%error, "sequence refused by the scheduler");
            self.leave_queue(live.prompt_tokens);
            self.outbox.push(&live.events, EngineEvent::Finished(FinishReason::Error));
            return;
        }
        self.live.insert(id, live);
    }

    /// One step: nothing when nothing can run.
    fn step(&mut self) -> Result<(), OpError> {
        let mut times = StepTimes::default();
        let mut clock = Instant::now();
        let mut lap = |slot: &mut Duration| {
            let now = Instant::now();
            *slot = now - clock;
            clock = now;
        };
        let now_us = self.epoch.elapsed().as_micros() as u64;
        for finished in self.scheduler.expire(now_us) {
            self.end(Some(finished));
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.scheduler.schedule(now_us, &mut batch);
        self.batch = batch;
        self.note_plan();
        if self.batch.chunks.is_empty() {
            return Ok(());
        }
        forward_input::build(&self.scheduler, &self.batch, &mut self.input, &mut self.rows);
        self.begin_masks();
        lap(&mut times.schedule);
        self.model.forward(&self.input)?;
        lap(&mut times.forward);
        // The head's product belongs to the forward pass; `sample` reports the seconds it took.
        let head = self.sample()?;
        lap(&mut times.sample);
        times.forward += head;
        times.sample = times.sample.saturating_sub(head);
        let finished = self.commit();
        lap(&mut times.commit);
        self.emit(finished);
        // Before the events: who has read the last one finds figures that include it.
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
        self.publish_load();
        self.outbox.flush();
        lap(&mut times.emit);
        self.metrics.record_step(&times, self.batch.num_tokens());
        Ok(())
    }

    /// Tells callers and metrics who was admitted and who was put back.
    fn note_plan(&mut self) {
        let now = Instant::now();
        for admission in &self.batch.admitted {
            let Some(live) = self.live.get_mut(&admission.seq) else { continue };
            live.admitted = Some(now);
            live.cached_tokens = admission.cached_tokens;
            self.outbox.push(&live.events, EngineEvent::Started { cached_tokens: admission.cached_tokens });
            let prompt_tokens = live.prompt_tokens;
            self.leave_queue(prompt_tokens);
            let gap = self.last_admission.map(|last| (now - last).as_secs_f64());
            self.last_admission = Some(now);
            if let Some(gap) = gap {
                let cell = &self.shared.admission_gap_s;
                let average = f64::from_bits(cell.load(Ordering::Relaxed));
                let next = if average == 0.0 { gap } else { average + GAP_WEIGHT * (gap - average) };
                cell.store(next.to_bits(), Ordering::Relaxed);
            }
        }
        for seq in &self.batch.preempted {
            self.metrics.record_preemption();
            if let Some(live) = self.live.get_mut(seq) {
                live.preemptions += 1;
            }
        }
    }

    /// Masks are computed while the model computes: from here until `sample` asks for them.
    fn begin_masks(&mut self) {
        for row in self.rows.iter().filter(|row| row.samples) {
            let live = self.live.get_mut(&self.batch.chunks[row.chunk].seq);
            let Some(live) = live else { continue };
            let left = live.tokens_left();
            if let Some(constraint) = &mut live.constraint {
                constraint.send(&self.masks, left);
            }
        }
    }

    /// Turns logits into decisions; prompt logprobs are delivered on the way. Returns the time spent in the head's product.
    fn sample(&mut self) -> Result<Duration, OpError> {
        self.decisions.clear();
        let mut head = Duration::ZERO;
        let vocab = self.shared.facts.vocab_size;
        for group in self.rows.chunks(self.model.max_logits_rows()) {
            let rows: Vec<u32> = group.iter().map(|r| r.row).collect();
            let begun = Instant::now();
            let logits = self.model.logits(&rows)?;
            head += begun.elapsed();
            for (row, logits) in group.iter().zip(logits.chunks_exact(vocab)) {
                let seq = self.batch.chunks[row.chunk].seq;
                let Some(live) = self.live.get_mut(&seq) else { continue };
                if let (Some(token), Some(top)) = (row.scores, live.params.prompt_logprobs) {
                    let scored = self.logprobs.of(logits, token, top as usize);
                    self.outbox.push(&live.events, EngineEvent::PromptLogprobs(vec![scored]));
                }
                if row.samples {
                    let position = live.reply_tokens as u64;
                    let Some(decision) = decide(seq, &mut self.sampler, live, logits, position) else {
                        continue;
                    };
                    if let Some(FinishReason::NumericFault(fault)) = decision.finish {
                        tracing::error!(seq = seq.0, position, fault = fault.name(), "logits are no numbers");
                        self.metrics.record_numeric_fault(fault.name());
                    }
                    self.decisions.push(decision);
                }
            }
        }
        Ok(head)
    }

    fn commit(&mut self) -> Vec<Finished> {
        let sampled = self.decisions.iter().map(|d| Sampled {
            seq: d.seq,
            tokens: if d.failed { &[] } else { &d.token },
            finish: d.finish,
        });
        self.scheduler.commit(&self.batch, sampled)
    }

    /// Delivers tokens, then ends.
    fn emit(&mut self, finished: Vec<Finished>) {
        let now = Instant::now();
        let mut verdicts = std::mem::take(&mut self.verdicts);
        for decision in self.decisions.drain(..).filter(|d| !d.failed) {
            let Some(live) = self.live.get_mut(&decision.seq) else { continue };
            live.record_token(now, &self.metrics);
            live.guarded.push(EngineEvent::Token { id: decision.token[0], logprobs: decision.logprobs });
            verdicts.push((decision.seq, decision.verdict));
        }
        for (seq, verdict) in verdicts.drain(..) {
            self.obey_guard(seq, verdict);
        }
        self.verdicts = verdicts;
        for finished in finished {
            self.end(Some(finished));
        }
        let stats = self.scheduler.stats();
        let prompt_tokens: usize =
            self.batch.chunks.iter().filter(|c| !c.samples || c.len > 1).map(|c| c.len).sum();
        let cached: usize = self.batch.admitted.iter().map(|a| a.cached_tokens).sum();
        let generated = self.rows.iter().filter(|r| r.samples).count();
        self.metrics.add_tokens(prompt_tokens, cached, generated);
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

    /// Lets tokens leave, or takes them back, as the guard says.
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
                // A sequence that has just reached its limit is gone; then only the held part is dropped.
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
        if event.action != guard::Action::Licensed {
            guarded::log(seq.0, &event);
        }
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

    /// Ends every sequence of the step that failed.
    fn fail_batch(&mut self) {
        let seqs: Vec<SeqId> = self.batch.chunks.iter().map(|c| c.seq).collect();
        for seq in seqs {
            let finished = self.scheduler.finish(seq, FinishReason::Error);
            self.end(finished);
        }
        self.batch.clear();
        self.publish_load();
        self.outbox.flush();
    }

    /// Closes the stream of a sequence that the scheduler has let go.
    fn end(&mut self, finished: Option<Finished>) {
        let Some(finished) = finished else { return };
        let Some(mut live) = self.live.remove(&finished.seq) else { return };
        if matches!(
            finished.reason,
            FinishReason::StopToken(_) | FinishReason::Length | FinishReason::Stopped
        ) {
            live.guarded.send(usize::MAX, &live.events, &mut self.outbox);
            if live.guarded.num_rescues() > 0 {
                self.metrics.record_rescue_success();
            }
        }
        if live.admitted.is_none() {
            self.leave_queue(live.prompt_tokens);
        }
        live.record_end(Instant::now(), finished.reason, &self.metrics);
        self.outbox.push(&live.events, EngineEvent::Finished(finished.reason));
    }

    fn leave_queue(&self, prompt_tokens: usize) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.shared.waiting_tokens.fetch_sub(prompt_tokens, Ordering::Relaxed);
    }

    fn publish_load(&self) {
        let stats = self.scheduler.stats();
        let shared = &self.shared;
        shared.running.store(stats.running, Ordering::Relaxed);
        shared.used_blocks.store(stats.used_blocks, Ordering::Relaxed);
        shared.cached_blocks.store(stats.cached_blocks, Ordering::Relaxed);
        self.metrics.set_load(&Load {
            waiting: stats.waiting,
            waiting_tokens: stats.queued_tokens,
            running: stats.running,
            used_blocks: stats.used_blocks,
            cached_blocks: stats.cached_blocks,
            total_blocks: shared.facts.num_blocks,
        });
    }
}

/// Samples a token and decides whether it ends the sequence; `None` leaves the sequence out of this step.
fn decide(
    seq: SeqId,
    sampler: &mut Sampler,
    live: &mut LiveSequence,
    logits: &[f32],
    position: u64,
) -> Option<Decision> {
    let failed = |finish| {
        let verdict = Verdict::Deliver { upto: 0, event: None };
        Some(Decision { seq, token: [0], logprobs: None, failed: true, finish: Some(finish), verdict })
    };
    let broken = |error: ConstraintBroken| {
        tracing::error!(seq = seq.0, position, %error, "a constrained sequence ends");
        failed(FinishReason::Error)
    };
    let left = live.tokens_left().saturating_sub(1);
    let (sampled, wanted) = match live.choose(sampler, logits, position) {
        Choice::Token { token, wanted } => (token, wanted),
        Choice::Late => return None,
        Choice::Broken(error) => return broken(error),
        Choice::NoFiniteLogit => return failed(FinishReason::NumericFault(RowFault::NonFinite)),
    };
    if sampler.row_was_broken() {
        return failed(FinishReason::NumericFault(RowFault::NonFinite));
    }
    if guard::is_flat(logits) {
        return failed(FinishReason::NumericFault(RowFault::Flat));
    }
    let (mut token, mut complete) = (sampled, false);
    if let Some(constraint) = &mut live.constraint {
        match constraint.take(sampled, left) {
            Ok(taken) => (token, complete) = (taken.token, taken.ends),
            Err(error) => return broken(error),
        }
    }
    live.advance(token);
    let logprobs = sampler.logprobs(logits, token, wanted);
    let stops =
        position + 1 > u64::from(live.params.min_tokens) && live.params.stop_token_ids.contains(&token);
    let verdict = match live.guarded.observe(token, logprobs.as_ref().map(|l| l.logprob)) {
        // What must be whole is not cut off: the loop is taken back, and the rest is the shortest there is.
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
    let logprobs = logprobs.filter(|_| live.params.logprobs.is_some());
    Some(Decision { seq, token: [token], logprobs, failed: false, finish, verdict })
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_else(|| "unknown".into()))
}
