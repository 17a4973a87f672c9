//! The step loop: commands, then a turn of its stations, again and again; on one OS thread.
//!
//! Invariant: when a step fails (a refused operation, a panic), every sequence of that step gets
//! its `Finished`, the scheduler's bookkeeping stays exact, and the next step starts clean. Three
//! failed steps in a row end the engine with the reason.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::clock::Clock;
use super::delivery::Outbox;
use super::drafting::Drafting;
use super::draws::Draws;
use super::forward_input;
use super::handle::{Command, EndGuard, EngineFacts, EngineHandle, Submission, door};
use super::inbox::{Inbox, Wait};
use super::load::LoadFigures;
use super::model_drafts::{ModelDrafts, could_ever_pay};
use super::pictures::Pictures;
use super::sequences::Sequences;
use super::settlement::Settlement;
use super::step::Steps;
use super::tiers::TieredBlocks;
use super::warm_up::MeasuredSteps;
use crate::kv_events;
use crate::kv_tiers::Tiers;
use crate::scheduler::{FinishReason, Limits, Scheduler};
use perigee_decoding::speculation;
use perigee_model::Model;
use perigee_ops::{Backend, OpError};
use perigee_telemetry::Metrics;

/// Consecutive failed steps after which the engine ends.
const MAX_FAILED_STEPS: usize = 3;

/// Starts the engine on a new thread. `tiers` keep the blocks that leave the cache. The thread ends
/// after `EngineHandle::shutdown`, or with the reason of the engine's death.
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
    let vocab_size = model.blueprint().vocab_size;
    let drafting = Drafting::new(speculation, steps.target, model_drafts, vocab_size, metrics.clone());
    let pictures = Pictures::new(facts.vision, metrics.clone());
    let (handle, commands, shared) = door(facts);
    let mut scheduler = Scheduler::new(limits).map_err(std::io::Error::other)?;
    let tiered = TieredBlocks::new(tiers, &mut scheduler);
    let sequences = Sequences::new(scheduler, Outbox::new()?, metrics.clone());
    let draws = Draws::new()?;
    let thread = std::thread::Builder::new().name("perigee-engine".into()).spawn(move || {
        let _end = EndGuard(shared.clone());
        let step_loop = StepLoop {
            model,
            sequences,
            inbox: Inbox::new(commands),
            load: LoadFigures::new(shared),
            clock: Clock::new(),
            steps: Steps::default(),
            drafting,
            pictures,
            tiered,
            draws,
            settlement: Settlement::new(metrics.clone()),
            kv_events: None,
            metrics,
        };
        step_loop.run()
    })?;
    Ok((handle, thread))
}

/// The stations of a turn, and what they work on.
struct StepLoop<B: Backend> {
    model: Model<B>,
    sequences: Sequences,
    inbox: Inbox,
    load: LoadFigures,
    clock: Clock,
    steps: Steps,
    drafting: Drafting,
    pictures: Pictures,
    tiered: TieredBlocks<B>,
    draws: Draws,
    settlement: Settlement,
    /// Gets the changes of the prefix cache; `None` until [`Command::Tell`].
    kv_events: Option<kv_events::Feed>,
    metrics: Arc<Metrics>,
}

impl<B: Backend> StepLoop<B> {
    fn run(mut self) -> Result<(), String> {
        let mut failed_steps = 0;
        loop {
            self.take_commands();
            self.sequences.outbox.flush();
            if self.inbox.is_closing() && self.sequences.scheduler.is_empty() {
                // Commands after the last step may have freed blocks.
                self.publish_load();
                self.tiered.close(&self.sequences.scheduler, &mut self.model);
                return Ok(());
            }
            self.metrics.record_turn(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| self.turn()));
            self.metrics.record_turn(false);
            // Events for routers cover all names that the turn gave and took, also in a failed step.
            if let Some(feed) = &mut self.kv_events {
                feed.send(self.sequences.scheduler.take_changes());
            }
            let (reason, fatal) = match outcome {
                Ok(Ok(())) => {
                    failed_steps = 0;
                    continue;
                }
                Ok(Err(error)) => (error.to_string(), error.is_fatal()),
                Err(panic) => (panic_message(&*panic), false),
            };
            failed_steps += 1;
            let sequences = self.steps.planned.batch.chunks.len();
            tracing::error!(reason, fatal, sequences, "step failed");
            self.fail_steps();
            if fatal || failed_steps == MAX_FAILED_STEPS {
                let reason = match fatal {
                    true => reason,
                    false => format!("{MAX_FAILED_STEPS} steps in a row failed, the last with: {reason}"),
                };
                self.load.note_death(&reason);
                return Err(reason);
            }
        }
    }

    /// Takes all queued commands; waits for one when no sequence can run.
    fn take_commands(&mut self) {
        let mut wait = Wait::No;
        if self.sequences.scheduler.is_empty() && !self.inbox.is_closing() {
            self.publish_load();
            // The turn may have ended the last sequence without a step: its end must not wait for the
            // next command.
            self.sequences.outbox.flush();
            wait = Wait::UntilOneComes;
        } else if self.steps.are_stalled() {
            wait = Wait::Briefly;
        }
        while let Some(command) = self.inbox.next(wait) {
            self.obey(command);
            wait = Wait::No;
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => {
                self.add(*submission);
                self.load.note_taken();
            }
            Command::Abort(id) => self.sequences.finish(id, FinishReason::Aborted),
            Command::StopAfter { id, keep } => {
                self.drafting.learn(id, keep, &self.sequences);
                self.sequences.finish_at(id, keep);
            }
            Command::Tell(feed) => {
                self.sequences.scheduler.note_changes();
                self.kv_events = Some(*feed);
            }
            // After this turn.
            Command::TellAgain => {}
            Command::Shutdown => self.inbox.close(),
        }
    }

    fn add(&mut self, submission: Submission) {
        let (id, request) = (submission.id, &submission.request);
        let drafts = self.drafting.open(&request.speculation, request.cache_salt.as_deref());
        if self.sequences.add(submission, drafts, &self.clock) {
            self.tiered.begin_fetch(id, &mut self.sequences.scheduler);
        }
    }

    /// One turn: plans and computes a step, and settles the step before it. No effect when no
    /// sequence can run.
    fn turn(&mut self) -> Result<(), OpError> {
        let now_us = self.clock.begin_turn();
        // Deadlines come first: a sequence that is late takes no place in the plan.
        self.sequences.expire(now_us);
        // Pictures and fetched blocks come before the plan, which admits the sequences that they release.
        // A block of the tower is enqueued behind the last reader of the rows that it writes, and in
        // front of the next.
        self.pictures.advance(&mut self.sequences, &mut self.model)?;
        self.tiered.take_arrivals(&mut self.sequences.scheduler);
        self.clock.lap(|times| &mut times.forward);
        // A draft begins with a known token: where drafts pay, a step is settled before the next is planned. With a step in flight the
        // first call only says whether they do, for the sequences whose tokens are not known.
        if self.propose() && self.steps.is_in_flight() {
            self.settle()?;
            self.propose();
        }
        let batch = &mut self.steps.planned.batch;
        self.sequences.scheduler.schedule(now_us, batch);
        self.sequences.note_plan(batch, &mut self.load);
        // Blocks move behind the steps under way and in front of the one that gives them other content.
        self.tiered.transfer(batch, &mut self.sequences.scheduler, &mut self.model)?;
        self.drafting.note_plan(batch, &mut self.sequences, &self.model);
        self.steps.note_work(self.pictures.is_busy());
        if self.steps.planned.is_empty() {
            self.settle()?;
            return self.tiered.keep(&mut self.sequences.scheduler, &mut self.model);
        }
        // Slots are open, and rows have their blocks and pictures, before the backend gets the plan.
        self.sequences.open_slots(&self.steps.planned.batch, &mut self.model)?;
        forward_input::build(&self.sequences, &self.pictures, &mut self.steps);
        self.metrics.flight().begin_step(self.steps.planned.shape(&self.sequences.scheduler.stats()));
        let decoded = self.steps.planned.decoded();
        // Masks are computed beside the model. They depend on the tokens of the step before: settled
        // already, or settled while the device computes.
        if !B::ENQUEUES {
            self.draws.begin_masks(&self.steps.planned, &mut self.sequences);
        }
        self.clock.lap(|times| &mut times.schedule);
        // Time of the draft model ahead of the plan counts as time of the forward pass.
        let drafted = self.drafting.model_time();
        self.clock.count_as_forward(drafted);
        self.forward()?;
        self.clock.lap(|times| &mut times.forward);
        if B::ENQUEUES {
            self.settle()?;
            self.draws.begin_masks(&self.steps.planned, &mut self.sequences);
        }
        // The blocks that leave were read behind the step that is settled now, so this wait is short.
        self.tiered.keep(&mut self.sequences.scheduler, &mut self.model)?;
        // Draws come last: they depend on settled tokens, on masks and on the guard's rules.
        let step = &mut self.steps.planned;
        self.draws.enqueue(step, &mut self.sequences, &mut self.model, &mut self.clock)?;
        self.sequences.scheduler.advance(&mut step.batch);
        self.steps.launch();
        self.clock.lap(|times| &mut times.sample);
        // A step stays in flight where calls return before their work is done, unless it has drafts:
        // these are checked in the turn of their plan, while their logits are in the workspace.
        if !B::ENQUEUES || !self.drafting.trials.is_empty() {
            self.settle()?;
        }
        self.record_times(decoded, drafted);
        Ok(())
    }

    /// Guesses the next tokens; returns whether a guess pays.
    fn propose(&mut self) -> bool {
        self.drafting.propose(self.steps.is_in_flight(), &mut self.sequences, &mut self.model)
    }

    /// Computes the planned step, and logits of as many of its rows as fit the workspace.
    fn forward(&mut self) -> Result<(), OpError> {
        let step = &self.steps.planned;
        self.model.forward(&self.steps.plan)?;
        self.drafting.note_computed(&step.batch, &mut self.sequences.live);
        match step.rows.len().min(self.model.capacity().max_logits_rows) {
            0 => Ok(()),
            rows => self.model.logits(0..rows),
        }
    }

    /// Waits for the step in flight and applies its outcomes, then those of its drafts, row by row;
    /// no effect without a step.
    fn settle(&mut self) -> Result<(), OpError> {
        let Some(mut step) = self.steps.land() else { return Ok(()) };
        let Self { model, sequences, drafting, draws, settlement, clock, .. } = self;
        loop {
            settlement.fetch(&step, model)?;
            // The work of an enqueuing backend ends here.
            clock.lap(|times| if B::ENQUEUES { &mut times.forward } else { &mut times.sample });
            draws.end_broken(sequences);
            settlement.settle(&step, sequences, drafting, model, clock);
            // Drafts are settled in the turn of their plan: no other step is being planned.
            if !drafting.trials.follow(&mut step, sequences) {
                break;
            }
            draws.begin_masks(&step, sequences);
            draws.enqueue(&mut step, sequences, model, clock)?;
            sequences.scheduler.advance(&mut step.batch);
            clock.lap(|times| &mut times.sample);
        }
        self.steps.end_settling();
        // Before the events: the figures then include the last event when a client has read it.
        drafting.close(sequences);
        settlement.record(&sequences.scheduler.stats());
        self.load.note_step();
        self.load.publish(&sequences.scheduler.stats());
        sequences.outbox.flush();
        clock.lap(|times| &mut times.emit);
        Ok(())
    }

    /// Tells the scheduler, the metrics and the drafts how long the turn took.
    fn record_times(&mut self, decoded: Option<(usize, usize)>, drafted: Duration) {
        let (scheduler, times) = (&mut self.sequences.scheduler, self.clock.times);
        let tokens = self.clock.tokens_waited_for(scheduler.paced_tokens(), B::ENQUEUES);
        scheduler.note_pace(tokens, times.total());
        self.metrics.record_step(&times);
        if let Some((sequences, rows)) = decoded {
            let saved = self.drafting.observe(sequences, rows, times.total(), drafted);
            self.metrics.add_draft_seconds(saved);
        }
    }

    /// Ends the sequences of the steps under way, and drops what the stations keep of these.
    fn fail_steps(&mut self) {
        self.pictures.fail(&mut self.sequences);
        for seq in self.steps.fail() {
            self.sequences.finish(seq, FinishReason::Error);
        }
        self.draws.end_broken(&mut self.sequences);
        self.drafting.close(&mut self.sequences);
        self.tiered.drop_leaving();
        self.publish_load();
        self.sequences.outbox.flush();
    }

    fn publish_load(&self) {
        self.load.publish(&self.sequences.scheduler.stats());
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_else(|| "unknown".into()))
}
