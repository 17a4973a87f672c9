//! Barriers and mbarriers: what passes knowledge from warp to warp.

use super::clock::{Epoch, Known};
use super::shadow::{ATOMIC, WRITE};
use super::{MbarrierWatch, Place};
use crate::machine::block::Warp;
use crate::machine::cluster::{Env, Step};
use crate::program::Scope;

impl Env<'_> {
    pub(super) fn mbarrier_watch(&mut self, address: u32) -> Option<&mut MbarrierWatch> {
        let Place::Shared(rank, offset) = self.shared_place(address) else { return None };
        let races = self.observers.races.as_mut()?;
        let block = self.cluster.blocks.get_mut(rank)?.watch.as_deref_mut()?;
        Some(block.mbarriers.entry(offset).or_insert_with(|| {
            let agent = races.launches.new_agent();
            MbarrierWatch { agent, phases: 0, running: Known::default(), ended: Known::default() }
        }))
    }

    /// The end of the running phase of an mbarrier.
    pub(super) fn mbarrier_epoch(&mut self, address: u32) -> Option<Epoch> {
        let mbarrier = self.mbarrier_watch(address)?;
        Some(Epoch { agent: mbarrier.agent, time: mbarrier.phases + 1 })
    }

    /// `mbarrier.init` and `inval`: the object's memory is written like any other.
    pub(crate) fn race_mbarrier_write(&mut self, warp: &Warp, lane: u32, address: u32) -> Step<()> {
        self.race_shared(warp, lane, address, 8, WRITE)?;
        if let Some(mbarrier) = self.mbarrier_watch(address) {
            (mbarrier.running, mbarrier.ended) = Default::default();
        }
        Ok(())
    }

    /// Any other operation on an mbarrier.
    pub(crate) fn race_mbarrier(&mut self, warp: &Warp, lane: u32, address: u32) -> Step<()> {
        self.race_shared(warp, lane, address, 8, ATOMIC)
    }

    /// An arrival on an mbarrier, before it happens.
    pub(crate) fn race_arrive(&mut self, warp: &mut Warp, lane: u32, address: u32) -> Step<()> {
        self.race_mbarrier(warp, lane, address)?;
        if let Some(watch) = &mut warp.watch
            && let Some(mbarrier) = self.mbarrier_watch(address)
        {
            watch.release(&mut mbarrier.running);
        }
        Ok(())
    }

    /// A phase of an mbarrier ended.
    pub(crate) fn race_phase(&mut self, address: u32) {
        if let Some(mbarrier) = self.mbarrier_watch(address) {
            mbarrier.phases += 1;
            let epoch = Epoch { agent: mbarrier.agent, time: mbarrier.phases };
            mbarrier.running.seen.learn(epoch);
            mbarrier.ended.join(&std::mem::take(&mut mbarrier.running));
        }
    }

    /// A wait for a phase of an mbarrier ended.
    pub(crate) fn race_waited(&mut self, warp: &mut Warp, address: u32) {
        if let Some(watch) = &mut warp.watch
            && let Some(mbarrier) = self.mbarrier_watch(address)
        {
            watch.acquire(&mbarrier.ended);
        }
    }

    pub(crate) fn race_barrier_arrive(&mut self, warp: &mut Warp, number: u32) {
        let rank = self.rank;
        if let Some(watch) = &mut warp.watch
            && let Some(block) = self.watch(rank)
        {
            watch.release(&mut block.barriers[number as usize]);
        }
    }

    pub(crate) fn race_cluster_arrive(&mut self, warp: &mut Warp, relaxed: bool) {
        let phase = self.cluster.phase;
        if let Some(watch) = &mut warp.watch
            && let Some(block) = self.watch(0)
        {
            let (at, known) = &mut block.cluster[(phase & 1) as usize];
            if *at != phase {
                (*at, *known) = (phase, Known::default());
            }
            if relaxed {
                known.seen.join(&watch.known.fenced[Scope::Cluster as usize]);
            } else {
                watch.release(known);
            }
        }
    }

    pub(crate) fn race_cluster_wait(&mut self, warp: &mut Warp) {
        let phase = warp.cluster_phase;
        if let Some(watch) = &mut warp.watch
            && let Some(block) = self.watch(0)
        {
            watch.acquire(&block.cluster[(phase & 1) as usize].1);
        }
    }
}
