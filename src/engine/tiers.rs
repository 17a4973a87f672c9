//! Blocks that leave the pool for host memory and disk, and come back.
//!
//! Between the plan and its step: the plan says which blocks get other content, and which contents it
//! needs in which blocks. What leaves is read behind the steps that are under way, and kept when the
//! next step is enqueued. A sequence whose prompt is on disk is held until a thread has read it.

use std::time::{Duration, Instant};

use crate::kv_tiers::{Arrival, Tiers};
use crate::scheduler::{Batch, Name, Scheduler, SeqId};
use perigee_model::{BlockRead, Model};
use perigee_ops::{Backend, OpError};

/// Longest time that a sequence waits for its blocks: a disk that hangs costs a prefill then.
const MAX_FETCH: Duration = Duration::from_secs(10);

/// The tiers, and what is on its way.
pub(super) struct TieredBlocks<B: Backend> {
    /// `None`: blocks that leave the pool are lost, and nothing here has an effect.
    tiers: Option<Tiers>,
    /// Sequences that wait for blocks from disk, with the time until which they do.
    fetching: Vec<(SeqId, Instant)>,
    /// Blocks on their way to the host.
    leaving: Vec<(Name, BlockRead<B>)>,
}

impl<B: Backend> TieredBlocks<B> {
    /// `scheduler` is told to name the blocks that leave.
    pub(super) fn new(tiers: Option<Tiers>, scheduler: &mut Scheduler) -> Self {
        if tiers.is_some() {
            scheduler.note_evictions();
        }
        Self { tiers, fetching: Vec::new(), leaving: Vec::new() }
    }

    /// Holds a new sequence while blocks of its prompt come from disk.
    pub(super) fn begin_fetch(&mut self, seq: SeqId, scheduler: &mut Scheduler) {
        let Some(tiers) = self.tiers.as_mut().filter(|tiers| tiers.has_disk()) else { return };
        if tiers.fetch(seq, &scheduler.missing_names(seq)) {
            scheduler.begin_fetch(seq);
            self.fetching.push((seq, Instant::now() + MAX_FETCH));
        }
    }

    /// Lets sequences run whose blocks came from disk.
    pub(super) fn take_arrivals(&mut self, scheduler: &mut Scheduler) {
        let Some(tiers) = &mut self.tiers else { return };
        for arrival in tiers.arrivals() {
            match arrival {
                Arrival::Block { name, dropped } => {
                    dropped.iter().for_each(|dropped| scheduler.remove_loadable(dropped));
                    scheduler.add_loadable(name);
                }
                Arrival::End(seq) => {
                    self.fetching.retain(|(fetching, _)| *fetching != seq);
                    scheduler.end_fetch(seq);
                }
            }
        }
        let now = Instant::now();
        self.fetching.retain(|(seq, until)| {
            let waits = *until > now && scheduler.contains(*seq);
            if !waits {
                scheduler.end_fetch(*seq);
            }
            waits
        });
    }

    /// Begins to read the blocks that the plan gives other content, and writes those that it loads.
    /// After an error the loads that were not written are forgotten; the sequences of the plan must
    /// end.
    pub(super) fn transfer(
        &mut self,
        batch: &Batch,
        scheduler: &mut Scheduler,
        model: &mut Model<B>,
    ) -> Result<(), OpError> {
        let Self { tiers: Some(tiers), leaving, .. } = self else { return Ok(()) };
        let mut loads = &batch.loads[..];
        let outcome = start_reads(tiers, leaving, batch, model).and_then(|()| {
            while let Some(((name, block), rest)) = loads.split_first() {
                let content = tiers.content(name).ok_or_else(|| OpError::Device {
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

    /// Keeps the blocks that the plan displaced. Called between the step before being settled and the
    /// draws of this one.
    pub(super) fn keep(&mut self, scheduler: &mut Scheduler, model: &mut Model<B>) -> Result<(), OpError> {
        let Some(tiers) = &mut self.tiers else { return Ok(()) };
        for (name, read) in self.leaving.drain(..) {
            let mut content = tiers.buffer();
            model.finish_block_read(read, &mut content)?;
            for dropped in tiers.keep(name, content) {
                scheduler.remove_loadable(&dropped);
            }
            scheduler.add_loadable(name);
        }
        Ok(())
    }

    /// Drops what is on its way; its content may not be whole.
    pub(super) fn drop_leaving(&mut self) {
        self.leaving.clear();
    }

    /// Writes what no tier has to disk, the most recently used first, and ends the threads.
    pub(super) fn close(&mut self, scheduler: &Scheduler, model: &mut Model<B>) {
        let Some(mut tiers) = self.tiers.take() else { return };
        let deadline = tiers.flush_deadline();
        for (name, block) in scheduler.cached_blocks() {
            if !tiers.lacks_on_disk(&name) {
                continue;
            }
            let mut content = Vec::new();
            let read =
                model.start_block_read(block).and_then(|read| model.finish_block_read(read, &mut content));
            if read.is_err() || !tiers.write_until(name, content, deadline) {
                break;
            }
        }
        tiers.close(deadline);
    }
}

/// Begins to read the blocks that leave the pool and are in no tier.
fn start_reads<B: Backend>(
    tiers: &mut Tiers,
    leaving: &mut Vec<(Name, BlockRead<B>)>,
    batch: &Batch,
    model: &mut Model<B>,
) -> Result<(), OpError> {
    for (name, block) in &batch.evicted {
        if !tiers.touch(name) {
            leaving.push((*name, model.start_block_read(*block)?));
        }
    }
    Ok(())
}
