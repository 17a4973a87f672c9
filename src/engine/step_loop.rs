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
use super::drafting::Drafting;
use super::forward_input::{self, LogitsRow, Purpose};
use super::handle::{Command, EndGuard, EngineFacts, EngineHandle, EventSender, door};
use super::live::{LiveSequence, row_of};
use super::model_drafts::{ModelDrafts, could_ever_pay};
use super::pictures::Pictures;
use super::place::Place;
use super::request::{EngineEvent, EngineRequest, Media};
use super::step_state::{Counters, Step, StepLoop, StepTokens};
use super::tiers::TieredBlocks;
use super::warm_up::MeasuredSteps;
use crate::kv_tiers::Tiers;
use crate::scheduler::{Chunk, FinishReason, Limits, MediaSpan, NewSequence, Scheduler, SeqId};
use perigee_decoding::speculation;
use perigee_model::Model;
use perigee_ops::{Backend, OpError, Outcomes, Row, Rule, SampleRow, SampleRows, StepPlan};
use perigee_telemetry::{Metrics, StepShape, StepTimes};

/// Consecutive failed steps after which the engine ends.
const MAX_FAILED_STEPS: usize = 3;

/// Longest wait for commands when sequences are queued but none can run.
const STALLED_WAIT: Duration = Duration::from_millis(5);

/// Starts the engine on a new thread. `tiers` keep the blocks that leave the cache. The thread ends after `EngineHandle::shutdown`, or with the
/// reason of the engine's death.
pub fn spawn<B: Backend>(
    mut model: Model<B>,
    limits: Limits,
    facts: EngineFacts,
    speculation: speculation::Config,
    steps: MeasuredSteps,
    tiers: Option<Tiers>,
    metrics: Arc<Metrics>,
) -> std::io::Result<(EngineHandle, JoinHandle<Result<(), String>>)> {
    let spare = speculation.max_tokens.div_ceil(facts.block_size);
    let pays = |draft| !speculation.adaptive || could_ever_pay(&steps.target, draft, speculation.max_tokens);
    let mut model_drafts = None;
    if let Some(draft) = steps.draft {
        if pays(&draft) {
            model_drafts = Some(ModelDrafts::new(draft, facts.num_blocks, spare));
        } else {
            tracing::warn!("the draft model is too slow to pay beside this model and is switched off");
            model.drop_draft();
        }
    }
    let facts_vision = facts.vision;
    let (handle, commands, shared) = door(facts);
    let mut scheduler = Scheduler::new(limits).map_err(std::io::Error::other)?;
    let tiered = tiers.map(TieredBlocks::new);
    if tiered.is_some() {
        scheduler.note_evictions();
    }
    let drafting = Drafting::new(speculation, steps.target, model.blueprint().vocab_size);
    let pictures = Pictures::new(facts_vision);
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
            step: Step::default(),
            plan: StepPlan::default(),
            in_flight: None,
            settling: Vec::new(),
            drafting,
            model_drafts,
            pictures,
            speculated: Vec::new(),
            step_tokens: StepTokens::default(),
            broken: Vec::new(),
            paced_tokens: 0,
            outcomes: Outcomes::default(),
            decisions: Vec::new(),
            verdicts: Vec::new(),
            counted: Counters::default(),
            kv_events: None,
            tiered,
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
                self.close_tiers();
                return Ok(());
            }
            self.metrics.record_turn(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| self.turn()));
            self.metrics.record_turn(false);
            self.tell_changes();
            let (reason, fatal) = match outcome {
                Ok(Ok(())) => {
                    failed_steps = 0;
                    continue;
                }
                Ok(Err(error)) => (error.to_string(), error.is_fatal()),
                Err(panic) => (panic_message(&*panic), false),
            };
            failed_steps += 1;
            tracing::error!(reason, fatal, sequences = self.step.batch.chunks.len(), "step failed");
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
            // The turn may have ended the last sequence without a step: its end must not wait for the next command.
            self.outbox.flush();
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
            Command::Submit { id, request, arrived, place, events } => {
                self.add(id, *request, arrived, place, events);
                self.shared.queued.fetch_add(1, Ordering::Release);
                self.shared.submitted.fetch_sub(1, Ordering::Release);
            }
            Command::Abort(id) => {
                let finished = self.scheduler.abort(id);
                self.end(finished);
            }
            Command::StopAfter { id, keep } => {
                self.learn(id, keep);
                let finished = self.scheduler.finish_at(id, keep);
                if let (Some(_), Some(live)) = (finished, self.live.get_mut(&id)) {
                    live.reply_tokens = live.reply_tokens.min(keep);
                }
                self.end(finished);
            }
            Command::Tell(feed) => {
                self.scheduler.note_changes();
                self.kv_events = Some(*feed);
            }
            // After this turn.
            Command::TellAgain => {}
            Command::Shutdown => self.shutting_down = true,
        }
    }

    fn add(
        &mut self,
        id: SeqId,
        request: EngineRequest,
        arrived: Instant,
        place: Place,
        events: EventSender,
    ) {
        let micros = |at: Instant| at.saturating_duration_since(self.epoch).as_micros() as u64;
        let salt = request.cache_salt.as_deref();
        let speculation = &request.speculation;
        let drafts = self.drafting.open(speculation.wanted, speculation.prediction.clone(), salt);
        let new = NewSequence {
            id,
            prompt: request.prompt.clone(),
            max_tokens: request.sampling.max_tokens,
            priority: request.priority,
            share: request.share,
            arrival_us: micros(arrived),
            deadline_us: request.deadline.map(micros),
            cache_salt: request.cache_salt,
            prompt_logits: request.sampling.prompt_logprobs.is_some(),
            media: request.media.iter().map(span_of).collect(),
        };
        let EngineRequest { prompt, sampling, guard, constraint, media, .. } = request;
        let prompt_tokens = prompt.len();
        let live = LiveSequence::new(
            sampling,
            prompt_tokens,
            guard,
            constraint,
            drafts,
            media,
            arrived,
            place,
            events,
        );
        if let Err(error) = self.scheduler.add(new) {
            // The handle checks what can be refused; the rest is a broken invariant of one request.
            tracing::error!(%error, "sequence refused by the scheduler");
            self.outbox.push(&live.events, EngineEvent::Finished(FinishReason::Error));
            return;
        }
        self.live.insert(id, live);
        self.begin_fetch(id);
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
        self.see()?;
        self.take_arrivals();
        lap(&mut times.forward);
        // A draft begins with a known token: where drafts pay, a step is settled before the next.
        if self.propose() && self.in_flight.is_some() {
            self.settle(&mut lap, &mut times)?;
            self.propose();
        }
        self.scheduler.schedule(now_us, &mut self.step.batch);
        self.note_plan();
        self.transfer_blocks()?;
        self.note_drafts();
        let idle = self.step.batch.chunks.is_empty();
        self.stalled = idle && !self.pictures.is_busy();
        if idle {
            self.settle(&mut lap, &mut times)?;
            return self.keep_blocks();
        }
        self.open_slots()?;
        forward_input::build(&self.scheduler, &self.live, &self.pictures, &mut self.step, &mut self.plan);
        self.metrics.flight().begin_step(self.shape());
        let decoded = self.decoded();
        if !B::ENQUEUES {
            self.begin_masks();
        }
        lap(&mut times.schedule);
        // What ran ahead of the plan is the model's time.
        let drafted = self.model_drafts.as_ref().map_or(Duration::ZERO, |model| model.spent);
        times.schedule = times.schedule.saturating_sub(drafted);
        times.forward += drafted;
        self.model.forward(&self.plan)?;
        self.note_captured();
        let first_rows = self.step.rows.len().min(self.model.capacity().max_logits_rows);
        if first_rows > 0 {
            self.model.logits(0..first_rows)?;
        }
        lap(&mut times.forward);
        if B::ENQUEUES {
            self.settle(&mut lap, &mut times)?;
            self.begin_masks();
        }
        self.keep_blocks()?;
        self.sample(&mut lap, &mut times)?;
        self.scheduler.advance(&mut self.step.batch);
        self.in_flight = Some(std::mem::take(&mut self.step));
        lap(&mut times.sample);
        if !B::ENQUEUES || !self.speculated.is_empty() {
            self.settle(&mut lap, &mut times)?;
        }
        // What is waited for is the previous step where steps are enqueued.
        let paced = match B::ENQUEUES {
            true => std::mem::replace(&mut self.paced_tokens, self.scheduler.paced_tokens()),
            false => self.scheduler.paced_tokens(),
        };
        self.scheduler.note_pace(paced, times.total());
        self.metrics.record_step(&times);
        if let Some((sequences, rows)) = decoded {
            self.metrics.add_draft_seconds(self.drafting.observe(sequences, rows, times.total(), drafted));
        }
        Ok(())
    }

    /// What the plan computes, for the flight recorder.
    fn shape(&self) -> StepShape {
        let chunks = &self.step.batch.chunks;
        let decodes = |chunk: &Chunk| chunk.samples && chunk.len == 1;
        let prompt = |chunk: &Chunk| if decodes(chunk) { 0 } else { chunk.len };
        let reply = |chunk: &Chunk| if decodes(chunk) { 1 + chunk.draft.len() } else { 0 };
        let stats = self.scheduler.stats();
        StepShape {
            sequences: chunks.len(),
            prompt_tokens: chunks.iter().map(prompt).sum(),
            reply_rows: chunks.iter().map(reply).sum(),
            waiting: stats.waiting,
            used_blocks: stats.used_blocks,
        }
    }

    /// Sequences and rows of the plan if every row is of a reply.
    fn decoded(&self) -> Option<(usize, usize)> {
        let batch = &self.step.batch;
        let decodes = batch.chunks.iter().all(|chunk| chunk.samples && chunk.len == 1);
        (decodes && batch.started.is_empty()).then(|| (batch.chunks.len(), batch.num_tokens()))
    }

    fn open_slots(&mut self) -> Result<(), OpError> {
        for seq in &self.step.batch.started {
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
        for admission in &self.step.batch.admitted {
            let Some(live) = self.live.get_mut(&admission.seq) else { continue };
            live.admitted = Some(now);
            live.cached_tokens = admission.cached_tokens;
            self.outbox.push(&live.events, EngineEvent::Started { cached_tokens: admission.cached_tokens });
            live.place = None;
            if let Some(last) = self.last_admission.replace(now) {
                self.shared.note_admission(last, live.arrived, now);
            }
        }
        for seq in &self.step.batch.preempted {
            self.metrics.record_preemption();
            if let Some(live) = self.live.get_mut(seq) {
                live.preemptions += 1;
            }
        }
        // Before the step is computed: routers count on the load of this moment.
        if !self.step.batch.admitted.is_empty() || !self.step.batch.preempted.is_empty() {
            self.publish_load();
        }
    }

    /// Starts the computation of masks: they are computed beside the model, until `sample` needs
    /// them.
    pub(super) fn begin_masks(&mut self) {
        for &index in &self.step.sampled {
            let row = &self.step.rows[index];
            let chunk = &self.step.batch.chunks[row.chunk];
            if matches!(row.purpose, Purpose::Score(_)) {
                continue;
            }
            let Some(live) = self.live.get_mut(&chunk.seq).filter(|_| !self.scheduler.is_void(chunk)) else {
                continue;
            };
            let left = live.tokens_left();
            if let Some(constraint) = &mut live.constraint {
                constraint.send(&self.masks, left);
            }
        }
    }

    /// Enqueues the draws of the rows in `self.step.sampled`, less those of chunks that became void
    /// since the plan, and those whose mask is late or whose constraint is broken.
    pub(super) fn sample(
        &mut self,
        lap: &mut impl FnMut(&mut Duration),
        times: &mut StepTimes,
    ) -> Result<(), OpError> {
        let Step { batch, rows: logits_rows, sampled, tickets } = &mut self.step;
        sampled.retain(|&index| {
            let row = &logits_rows[index];
            let chunk = &mut batch.chunks[row.chunk];
            if self.scheduler.is_void(chunk) {
                return false;
            }
            let Some(live) = self.live.get_mut(&chunk.seq) else { return false };
            let samples = !matches!(row.purpose, Purpose::Score(_));
            match live.constraint.as_mut().filter(|_| samples).map(Constrained::ready) {
                None | Some(Ready::Here) => true,
                Some(Ready::Late) => {
                    chunk.samples = false;
                    false
                }
                Some(Ready::Broken(error)) => {
                    tracing::error!(seq = chunk.seq.0, %error, "a constrained sequence ends");
                    chunk.samples = false;
                    self.broken.push(chunk.seq);
                    false
                }
            }
        });
        tickets.clear();
        let group = self.model.capacity().max_logits_rows;
        for first in (0..logits_rows.len()).step_by(group) {
            let end = (first + group).min(logits_rows.len());
            if first > 0 {
                lap(&mut times.sample);
                self.model.logits(first..end)?;
                lap(&mut times.forward);
            }
            let mut rows = SampleRows::default();
            for &index in sampled.iter().filter(|index| (first..end).contains(*index)) {
                let LogitsRow { chunk, purpose } = logits_rows[index];
                let seq = batch.chunks[chunk].seq;
                let (slot, row) = (self.scheduler.seq_slot(seq), Row((index - first) as u32));
                let Some(live) = self.live.get(&seq) else { continue };
                match purpose {
                    Purpose::Score(token) => rows.rows.push(SampleRow {
                        row,
                        slot,
                        rule: Rule::Score(token),
                        top: live.params.prompt_logprobs.unwrap_or(0).min(SampleRow::MAX_TOP),
                        ..row_of(&live.params, 0)
                    }),
                    Purpose::Sample | Purpose::Drafted => {
                        let reply = &self.scheduler.tokens(seq)[live.prompt_tokens..];
                        live.sample_row(row, slot, reply, &mut rows);
                    }
                }
            }
            if !rows.rows.is_empty() {
                tickets.push(self.model.sample(&rows)?);
            }
        }
        Ok(())
    }

    /// Tells routers which prefixes came and went.
    fn tell_changes(&mut self) {
        if let Some(feed) = &mut self.kv_events {
            feed.send(self.scheduler.take_changes());
        }
    }

    fn fail_steps(&mut self) {
        self.fail_pictures();
        let in_flight = self.in_flight.take().unwrap_or_default();
        let chunks = self.step.batch.chunks.iter().chain(&in_flight.batch.chunks);
        let mut seqs: Vec<SeqId> = chunks.map(|chunk| chunk.seq).collect();
        seqs.append(&mut self.settling);
        self.broken.clear();
        for seq in seqs {
            let finished = self.scheduler.finish(seq, FinishReason::Error);
            self.end(finished);
        }
        self.step.batch.clear();
        self.speculated.clear();
        self.drop_leaving();
        self.publish_load();
        self.outbox.flush();
    }
}

fn span_of(media: &Media) -> MediaSpan {
    MediaSpan { start: media.start, len: media.picture.num_tokens(), hash: media.hash }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_else(|| "unknown".into()))
}
