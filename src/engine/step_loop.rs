//! The step loop: commands, schedule, forward, sample, commit, emit; on one OS thread.
//!
//! Invariant: when a step fails (a refused operation, a panic), every sequence of that step gets
//! its `Finished`, the scheduler's bookkeeping stays exact, and the next step starts clean. Three
//! failed steps in a row end the engine with the reason.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::constrained::{Constrained, MaskThreads, Ready};
use super::delivery::Outbox;
use super::forward_input::{self, LogitsRow};
use super::handle::{Command, EndGuard, EngineFacts, EngineHandle, EventSender, door};
use super::live::{LiveSequence, row_of};
use super::request::{EngineEvent, EngineRequest};
use super::step_state::{Counters, InFlight, StepLoop};
use crate::model::Model;
use crate::ops::{Backend, OpError, Outcomes, Row, Rule, SampleRow, SampleRows, StepPlan, Ticket};
use crate::scheduler::{Batch, FinishReason, Limits, NewSequence, Scheduler, SeqId};
use crate::telemetry::{Metrics, StepTimes};

/// Consecutive failed steps after which the engine ends.
const MAX_FAILED_STEPS: usize = 3;

/// Longest wait for commands when sequences are queued but none can run.
const STALLED_WAIT: Duration = Duration::from_millis(5);

/// Weight of the newest gap in the moving average of admissions.
const GAP_WEIGHT: f64 = 0.1;

/// Starts the engine on a new thread. The thread ends after `EngineHandle::shutdown`, or with the
/// reason of the engine's death.
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
            masks,
            epoch: Instant::now(),
            last_admission: None,
            shutting_down: false,
            stalled: true,
            batch: Batch::default(),
            plan: StepPlan::default(),
            rows: Vec::new(),
            sampled: Vec::new(),
            in_flight: None,
            broken: Vec::new(),
            outcomes: Outcomes::default(),
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
            let outcome = catch_unwind(AssertUnwindSafe(|| self.turn()));
            let (reason, fatal) = match outcome {
                Ok(Ok(())) => {
                    failed_steps = 0;
                    continue;
                }
                Ok(Err(error)) => (error.to_string(), error.is_fatal()),
                Err(panic) => (panic_message(&*panic), false),
            };
            failed_steps += 1;
            tracing::error!(reason, fatal, sequences = self.batch.chunks.len(), "step failed");
            self.fail_steps();
            if fatal || failed_steps == MAX_FAILED_STEPS {
                let reason = match fatal {
                    true => reason,
                    false => format!("{MAX_FAILED_STEPS} steps in a row failed, the last with: {reason}"),
                };
                let _ = self.shared.death.set(reason.clone());
                return Err(reason);
            }
        }
    }

    /// Takes all queued commands; waits for one when no sequence can run.
    fn take_commands(&mut self) {
        let idle = self.scheduler.is_empty() && !self.shutting_down;
        if idle {
            self.publish_load();
            match self.commands.recv() {
                Ok(command) => self.obey(command),
                Err(mpsc::RecvError) => self.shutting_down = true,
            }
        } else if self.in_flight.is_none() && self.stalled {
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
            Command::Shutdown => self.shutting_down = true,
        }
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
        let live = LiveSequence::new(sampling, request.prompt.len(), guard, constraint, arrived, events);
        if let Err(error) = self.scheduler.add(new) {
            // The handle checks what can be refused; the rest is a broken invariant of one request.
            tracing::error!(%error, "sequence refused by the scheduler");
            self.leave_queue(live.prompt_tokens);
            self.outbox.push(&live.events, EngineEvent::Finished(FinishReason::Error));
            return;
        }
        self.live.insert(id, live);
    }

    /// One turn: plans and computes a step, and settles the step before it. No effect when no
    /// sequence can run.
    fn turn(&mut self) -> Result<(), OpError> {
        let mut times = StepTimes::default();
        let mut clock = Instant::now();
        let mut lap = |slot: &mut Duration| {
            let now = Instant::now();
            *slot += now - clock;
            clock = now;
        };
        let now_us = self.epoch.elapsed().as_micros() as u64;
        for finished in self.scheduler.expire(now_us) {
            self.end(Some(finished));
        }
        self.scheduler.schedule(now_us, &mut self.batch);
        self.note_plan();
        self.stalled = self.batch.chunks.is_empty();
        if self.stalled {
            return self.settle(&mut lap, &mut times);
        }
        self.open_slots()?;
        forward_input::build(&self.scheduler, &self.batch, &mut self.plan, &mut self.rows);
        if !B::ENQUEUES {
            self.begin_masks();
        }
        lap(&mut times.schedule);
        self.model.forward(&self.plan)?;
        let first_rows = self.rows.len().min(self.model.capacity().max_logits_rows);
        if first_rows > 0 {
            self.model.logits(0..first_rows)?;
        }
        lap(&mut times.forward);
        if B::ENQUEUES {
            self.settle(&mut lap, &mut times)?;
            self.begin_masks();
        }
        let tickets = self.sample(&mut lap, &mut times)?;
        self.scheduler.advance(&mut self.batch);
        self.in_flight = Some(InFlight {
            batch: std::mem::take(&mut self.batch),
            rows: std::mem::take(&mut self.rows),
            sampled: std::mem::take(&mut self.sampled),
            tickets,
        });
        lap(&mut times.sample);
        if !B::ENQUEUES {
            self.settle(&mut lap, &mut times)?;
        }
        self.metrics.record_step(&times);
        Ok(())
    }

    fn open_slots(&mut self) -> Result<(), OpError> {
        for seq in &self.batch.started {
            if let Some(live) = self.live.get(seq) {
                let spec = live.slot_spec(self.scheduler.tokens(*seq));
                self.model.open_slot(self.scheduler.seq_slot(*seq), &spec)?;
            }
        }
        Ok(())
    }

    /// Reports admitted and preempted sequences to their streams and to the metrics.
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

    /// Starts the computation of masks: they are computed beside the model, until `sample` needs
    /// them.
    fn begin_masks(&mut self) {
        for row in self.rows.iter().filter(|row| row.samples) {
            let chunk = &self.batch.chunks[row.chunk];
            let Some(live) = self.live.get_mut(&chunk.seq).filter(|_| !self.scheduler.is_void(chunk)) else {
                continue;
            };
            let left = live.tokens_left();
            if let Some(constraint) = &mut live.constraint {
                constraint.send(&self.masks, left);
            }
        }
    }

    /// Enqueues the draws of the step. `self.sampled` lists the rows of `self.rows` that take part:
    /// without those of chunks that became void since the plan, and without those whose mask is
    /// late or whose constraint is broken.
    fn sample(
        &mut self,
        lap: &mut impl FnMut(&mut Duration),
        times: &mut StepTimes,
    ) -> Result<Vec<Ticket>, OpError> {
        self.sampled.clear();
        for (index, row) in self.rows.iter().enumerate() {
            let chunk = &mut self.batch.chunks[row.chunk];
            if self.scheduler.is_void(chunk) {
                continue;
            }
            let Some(live) = self.live.get_mut(&chunk.seq) else { continue };
            match live.constraint.as_mut().filter(|_| row.samples).map(Constrained::ready) {
                None | Some(Ready::Here) => self.sampled.push(index),
                Some(Ready::Late) => chunk.samples = false,
                Some(Ready::Broken(error)) => {
                    tracing::error!(seq = chunk.seq.0, %error, "a constrained sequence ends");
                    chunk.samples = false;
                    self.broken.push(chunk.seq);
                }
            }
        }
        let group = self.model.capacity().max_logits_rows;
        let mut tickets = Vec::new();
        for first in (0..self.rows.len()).step_by(group) {
            let end = (first + group).min(self.rows.len());
            if first > 0 {
                lap(&mut times.sample);
                self.model.logits(first..end)?;
                lap(&mut times.forward);
            }
            let mut rows = SampleRows::default();
            for &index in self.sampled.iter().filter(|index| (first..end).contains(*index)) {
                let LogitsRow { chunk, scores, .. } = self.rows[index];
                let seq = self.batch.chunks[chunk].seq;
                let (slot, row) = (self.scheduler.seq_slot(seq), Row((index - first) as u32));
                let Some(live) = self.live.get(&seq) else { continue };
                match scores {
                    Some(token) => rows.rows.push(SampleRow {
                        row,
                        slot,
                        rule: Rule::Score(token),
                        top: live.params.prompt_logprobs.unwrap_or(0).min(SampleRow::MAX_TOP),
                        ..row_of(&live.params, 0)
                    }),
                    None => {
                        let reply = &self.scheduler.tokens(seq)[live.prompt_tokens..];
                        live.sample_row(row, slot, reply, &mut rows);
                    }
                }
            }
            if !rows.rows.is_empty() {
                tickets.push(self.model.sample(&rows)?);
            }
        }
        Ok(tickets)
    }

    fn fail_steps(&mut self) {
        let settling = self.in_flight.take().map(|step| step.batch).unwrap_or_default();
        let chunks = self.batch.chunks.iter().chain(&settling.chunks);
        let seqs: Vec<SeqId> = chunks.map(|chunk| chunk.seq).collect();
        self.broken.clear();
        for seq in seqs {
            let finished = self.scheduler.finish(seq, FinishReason::Error);
            self.end(finished);
        }
        self.batch.clear();
        self.publish_load();
        self.outbox.flush();
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_else(|| "unknown".into()))
}
