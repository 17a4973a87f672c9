//! Blocks that leave the pool for host memory and disk, and come back.
//!
//! Between the plan and its step: the plan says which blocks get other content, and which contents it needs in which blocks. What
//! leaves is read behind the steps that are under way, and kept when the next step is enqueued. A sequence whose prompt is on disk is
//! held until a thread has read it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::step_state::StepLoop;
use crate::kv_tiers::{Arrival, Tiers};
use crate::scheduler::{Batch, Name, Scheduler, SeqId};
use perigee_model::{BlockRead, Model};
use perigee_ops::{Backend, OpError};

/// Longest time that a sequence waits for its blocks: a disk that hangs costs a prefill then.
const MAX_FETCH: Duration = Duration::from_secs(10);

/// The tiers, and what is on its way.
pub(super) struct TieredBlocks<B: Backend> {
    tiers: Tiers,
    /// Sequences that wait for blocks from disk, with the time until which they do.
    fetching: HashMap<SeqId, Instant, ahash::RandomState>,
    /// Blocks on their way to the host.
    leaving: Vec<(Name, BlockRead<B>)>,
}

impl<B: Backend> TieredBlocks<B> {
    pub(super) fn new(tiers: Tiers) -> Self {
        Self { tiers, fetching: HashMap::default(), leaving: Vec::new() }
    }

    /// Begins to read what leaves, and writes what comes back.
    fn transfer(
        &mut self,
        batch: &Batch,
        model: &mut Model<B>,
        scheduler: &mut Scheduler,
    ) -> Result<(), OpError> {
        let mut loads = &batch.loads[..];
        let outcome = self.start_reads(batch, model).and_then(|()| {
            while let Some(((name, block), rest)) = loads.split_first() {
                let content = self.tiers.content(name).ok_or_else(|| OpError::Device {
                    op: "load_block",
                    code: 0,
                    text: "a loadable block is not in host memory".into(),
                    fatal: false,
                })?;
                model.write_block(*block, &content)?;
                loads = rest;
            }
            Ok(())
        });
        // What was not written has names.
        scheduler.forget(loads);
        outcome
    }

    fn start_reads(&mut self, batch: &Batch, model: &mut Model<B>) -> Result<(), OpError> {
        for (name, block) in &batch.evicted {
            if !self.tiers.touch(name) {
                self.leaving.push((*name, model.start_block_read(*block)?));
            }
        }
        Ok(())
    }

    /// Keeps what has left.
    fn finish_reads(&mut self, model: &mut Model<B>, scheduler: &mut Scheduler) -> Result<(), OpError> {
        for (name, read) in self.leaving.drain(..) {
            let mut content = self.tiers.buffer();
            model.finish_block_read(read, &mut content)?;
            for dropped in self.tiers.keep(name, content) {
                scheduler.remove_loadable(&dropped);
            }
            scheduler.add_loadable(name);
        }
        Ok(())
    }

    /// Takes what came from disk.
    fn take_arrivals(&mut self, scheduler: &mut Scheduler) {
        for arrival in self.tiers.arrivals() {
            match arrival {
                Arrival::Block { name, dropped } => {
                    dropped.iter().for_each(|dropped| scheduler.remove_loadable(dropped));
                    scheduler.add_loadable(name);
                }
                Arrival::End(seq) => {
                    self.fetching.remove(&seq);
                    scheduler.end_fetch(seq);
                }
            }
        }
        let now = Instant::now();
        self.fetching.retain(|seq, until| {
            let waits = *until > now && scheduler.contains(*seq);
            if !waits {
                scheduler.end_fetch(*seq);
            }
            waits
        });
    }

    /// Writes what no tier has to disk, the most recently used first, and ends the threads.
    fn close(mut self, model: &mut Model<B>, scheduler: &Scheduler) {
        let deadline = self.tiers.flush_deadline();
        for (name, block) in scheduler.cached_blocks() {
            if !self.tiers.lacks_on_disk(&name) {
                continue;
            }
            let mut content = Vec::new();
            let read =
                model.start_block_read(block).and_then(|read| model.finish_block_read(read, &mut content));
            if read.is_err() || !self.tiers.write_until(name, content, deadline) {
                break;
            }
        }
        self.tiers.close(deadline);
    }
}

impl<B: Backend> StepLoop<B> {
    /// Holds a new sequence while blocks of its prompt come from disk.
    pub(super) fn begin_fetch(&mut self, seq: SeqId) {
        let Some(tiered) = self.tiered.as_mut().filter(|tiered| tiered.tiers.has_disk()) else { return };
        let names = self.scheduler.missing_names(seq);
        if tiered.tiers.fetch(seq, &names) {
            self.scheduler.begin_fetch(seq);
            tiered.fetching.insert(seq, Instant::now() + MAX_FETCH);
        }
    }

    /// Lets sequences run whose blocks came from disk.
    pub(super) fn take_arrivals(&mut self) {
        if let Some(tiered) = &mut self.tiered {
            tiered.take_arrivals(&mut self.scheduler);
        }
    }

    /// Moves the plan's blocks. After an error the loads that were not written are forgotten; the sequences of the plan must end.
    pub(super) fn transfer_blocks(&mut self) -> Result<(), OpError> {
        let Self { tiered: Some(tiered), model, scheduler, step, .. } = self else { return Ok(()) };
        tiered.transfer(&step.batch, model, scheduler)
    }

    /// Keeps the blocks that the plan displaced. Called between the step before being settled and the draws of this one.
    pub(super) fn keep_blocks(&mut self) -> Result<(), OpError> {
        let Self { tiered: Some(tiered), model, scheduler, .. } = self else { return Ok(()) };
        tiered.finish_reads(model, scheduler)
    }

    /// Drops what is on its way; its content may not be whole.
    pub(super) fn drop_leaving(&mut self) {
        self.tiered.iter_mut().for_each(|tiered| tiered.leaving.clear());
    }

    /// Writes to disk what shall survive the process.
    pub(super) fn close_tiers(&mut self) {
        if let Some(tiered) = self.tiered.take() {
            tiered.close(&mut self.model, &self.scheduler);
        }
    }
}
