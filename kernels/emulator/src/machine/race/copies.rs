//! Asynchronous copies and products: what they touch, and when it ends.

use super::clock::Epoch;
use super::shadow::{ATOMIC, COPY_READ, COPY_WRITE, Kind};
use super::{Open, Place, WarpWatch};
use crate::machine::access::OFFSET;
use crate::machine::block::Warp;
use crate::machine::cluster::{Env, Step};
use crate::machine::fault::Trouble;
use crate::machine::pending::Transfer;
use crate::program::Scope;
use crate::transfer::tensor_map::TensorMap;
use crate::transfer::tile;

impl Env<'_> {
    /// Bytes of shared memory that a product or a copy to tensor memory reads.
    pub(crate) fn race_operand(&mut self, warp: &mut Warp, address: u32, bytes: u32) -> Step<()> {
        let lane = warp.live.trailing_zeros();
        self.watched(warp, |env, _, watch| {
            let Some(races) = &mut env.observers.races else { return Ok(()) };
            let agent = *watch.products.get_or_insert_with(|| races.launches.new_agent());
            let epoch = Epoch { agent, time: watch.groups + 1 };
            env.touch(watch, lane, env.shared_place(address), bytes, COPY_READ, epoch)
        })
    }

    /// `wgmma.commit_group`.
    pub(crate) fn race_product_commit(&mut self, warp: &mut Warp) {
        if let Some(watch) = &mut warp.watch {
            watch.groups += 1;
        }
    }

    /// `wgmma.wait_group`.
    pub(crate) fn race_product_wait(&mut self, warp: &mut Warp, open: u32) {
        if let Some(watch) = &mut warp.watch
            && let Some(agent) = watch.products
        {
            watch.known.seen.learn(Epoch { agent, time: watch.groups.saturating_sub(open) });
        }
    }

    /// `tcgen05.commit`: the products so far end with the running phases of these mbarriers.
    pub(crate) fn race_product_arrive(&mut self, warp: &mut Warp, addresses: &[u32]) {
        if let Some(watch) = &mut warp.watch
            && let Some(agent) = watch.products
        {
            watch.groups += 1;
            for &address in addresses {
                if let Some(mbarrier) = self.mbarrier_watch(address) {
                    mbarrier.running.seen.learn(Epoch { agent, time: watch.groups });
                }
            }
        }
    }

    /// Lanes end: shared memory may be gone before a bulk store has read it.
    pub(crate) fn race_exit(&mut self, warp: &mut Warp, exec: u32) -> Step<()> {
        let Some(watch) = &warp.watch else { return Ok(()) };
        match watch.sources.open.iter().find(|grouped| exec >> grouped.lane & 1 == 1) {
            Some(grouped) => Err(Trouble {
                lane: Some(grouped.lane),
                text: "the thread ends while a bulk copy may still read shared memory: no `cp.async.bulk.wait_group` has ended it".into(),
            }),
            None if self.observers.end.is_some() => self.watched(warp, |env, _, watch| {
                // The end of the launch waits for what the copies write.
                let due = watch.results.due(exec, None);
                env.land(watch, &due, None);
                Ok(())
            }),
            None => Ok(()),
        }
    }

    /// Gives the bytes of copies that were in flight their end: the present, or a phase of an mbarrier.
    fn land(&mut self, watch: &mut WarpWatch, opens: &[Open], to: Option<Epoch>) {
        for open in opens {
            if !open.epoch.is_in_flight() {
                // An mbarrier tracks it; the wait of its own thread shows that the phase's copies ended.
                watch.known.seen.learn(open.epoch);
                continue;
            }
            let to = to.unwrap_or(watch.now());
            let (agent, lane) = (watch.agent, open.lane as u8);
            let len = u64::from(open.bytes);
            match open.place {
                Place::Global(at) => {
                    if let Some(races) = &mut self.observers.races {
                        races.shadow.move_epoch(at, len, agent, lane, open.epoch, to);
                    }
                }
                Place::Shared(rank, at) => {
                    if let Some(block) = self.watch(rank) {
                        block.shadow.move_epoch(at.into(), len, agent, lane, open.epoch, to);
                    }
                }
            }
        }
    }

    pub(crate) fn race_copy_commit(&mut self, warp: &mut Warp, exec: u32) {
        if let Some(watch) = &mut warp.watch {
            watch.copies.commit(exec);
        }
    }

    pub(crate) fn race_copy_wait(&mut self, warp: &mut Warp, groups: Option<u32>, exec: u32) -> Step<()> {
        self.watched(warp, |env, _, watch| {
            let due = watch.copies.due(exec, groups);
            env.land(watch, &due, None);
            Ok(())
        })
    }

    /// `cp.async.mbarrier.arrive` of a lane: its copies end with the phase.
    pub(crate) fn race_copy_arrive(&mut self, warp: &mut Warp, lane: u32, address: u32) -> Step<()> {
        self.race_arrive(warp, lane, address)?;
        self.watched(warp, |env, _, watch| {
            let Some(to) = env.mbarrier_epoch(address) else { return Ok(()) };
            let mut opens = Vec::new();
            for grouped in watch.copies.open.iter_mut().filter(|grouped| grouped.lane == lane) {
                if grouped.transfer.epoch.is_in_flight() {
                    opens.push(grouped.transfer);
                    grouped.transfer.epoch = to;
                }
            }
            env.land(watch, &opens, Some(to));
            Ok(())
        })
    }

    /// A bulk copy that a lane issues.
    pub(crate) fn race_bulk(&mut self, warp: &mut Warp, lane: u32, transfer: &Transfer) -> Step<()> {
        self.watched(warp, |env, _, watch| match transfer {
            Transfer::Copy { .. } => Ok(()),
            Transfer::Load { shared, global, bytes, mbarrier, blocks } => {
                env.touch_now(watch, lane, Place::Global(*global), *bytes, COPY_READ)?;
                for (shared, mbarrier) in env.destinations(*shared, *mbarrier, *blocks) {
                    env.race_delivery(watch, lane, mbarrier, &[(shared, *bytes)])?;
                }
                Ok(())
            }
            Transfer::Between { destination, source, bytes, mbarrier } => {
                if let Some(epoch) = env.mbarrier_epoch(*mbarrier) {
                    env.touch(watch, lane, env.shared_place(*source), *bytes, COPY_READ, epoch)?;
                }
                env.race_delivery(watch, lane, *mbarrier, &[(*destination, *bytes)])
            }
            Transfer::Store { global, shared, bytes, reduction } => {
                env.race_bulk_store(watch, lane, &[(*shared, *global, *bytes)], reduction.is_some())
            }
            Transfer::TensorLoad { map, mode, coordinates, shared, mbarrier, blocks } => {
                let chunks = chunks(map, *mode, coordinates, *shared);
                for &(_, global, bytes) in &chunks {
                    if let Some(global) = global {
                        env.touch_now(watch, lane, Place::Global(global), bytes, COPY_READ)?;
                    }
                }
                for (shared, mbarrier) in env.destinations(*shared, *mbarrier, *blocks) {
                    let bytes: Vec<_> = chunks
                        .iter()
                        .map(|&(offset, _, bytes)| (offset | (shared & !OFFSET), bytes))
                        .collect();
                    env.race_delivery(watch, lane, mbarrier, &bytes)?;
                }
                Ok(())
            }
            Transfer::TensorStore { map, mode, coordinates, shared, reduction } => {
                let chunks: Vec<_> = chunks(map, *mode, coordinates, *shared)
                    .into_iter()
                    .filter_map(|(offset, global, bytes)| Some((offset | (shared & !OFFSET), global?, bytes)))
                    .collect();
                env.race_bulk_store(watch, lane, &chunks, reduction.is_some())
            }
        })
    }

    /// `st.async` of a lane.
    pub(crate) fn race_store_async(
        &mut self,
        warp: &mut Warp,
        lane: u32,
        address: u32,
        bytes: u32,
        mbarrier: u32,
    ) -> Step<()> {
        self.watched(warp, |env, _, watch| env.race_delivery(watch, lane, mbarrier, &[(address, bytes)]))
    }

    /// Bytes that arrive in shared memory with the running phase of an mbarrier.
    fn race_delivery(
        &mut self,
        watch: &WarpWatch,
        lane: u32,
        mbarrier: u32,
        ranges: &[(u32, u32)],
    ) -> Step<()> {
        let Some(epoch) = self.mbarrier_epoch(mbarrier) else { return Ok(()) };
        // The copy itself reports: an end of the phase comes behind that, in whatever block the copy was issued.
        self.touch(watch, lane, self.shared_place(mbarrier), 8, ATOMIC, epoch)?;
        for &(shared, bytes) in ranges {
            self.touch(watch, lane, self.shared_place(shared), bytes, COPY_WRITE, epoch)?;
        }
        Ok(())
    }

    /// Ranges of shared memory that go to global memory, in flight until the thread waits for its group.
    fn race_bulk_store(
        &mut self,
        watch: &mut WarpWatch,
        lane: u32,
        ranges: &[(u32, u64, u32)],
        reduces: bool,
    ) -> Step<()> {
        let epoch = watch.in_flight();
        for &(shared, global, bytes) in ranges {
            let (source, result) = (self.shared_place(shared), Place::Global(global));
            self.touch(watch, lane, source, bytes, COPY_READ, epoch)?;
            self.touch(
                watch,
                lane,
                result,
                bytes,
                Kind { strong: reduces, scope: Scope::Device, ..COPY_WRITE },
                epoch,
            )?;
            watch.sources.push(lane, Open { lane, place: source, bytes, epoch });
            watch.results.push(lane, Open { lane, place: result, bytes, epoch });
        }
        Ok(())
    }

    pub(crate) fn race_bulk_commit(&mut self, warp: &mut Warp, exec: u32) {
        if let Some(watch) = &mut warp.watch {
            watch.sources.commit(exec);
            watch.results.commit(exec);
        }
    }

    pub(crate) fn race_bulk_wait(
        &mut self,
        warp: &mut Warp,
        groups: u32,
        sources_only: bool,
        exec: u32,
    ) -> Step<()> {
        self.watched(warp, |env, _, watch| {
            let mut due = watch.sources.due(exec, Some(groups));
            if !sources_only {
                due.extend(watch.results.due(exec, Some(groups)));
            }
            env.land(watch, &due, None);
            Ok(())
        })
    }
}

/// Chunks of a box: offset in shared memory, global address, bytes. None if the box is not valid.
fn chunks(
    map: &TensorMap,
    mode: tile::Access,
    coordinates: &[i32],
    shared: u32,
) -> Vec<(u32, Option<u64>, u32)> {
    let mut chunks = Vec::new();
    // An invalid box is a fault of the copy itself.
    let _ = map.for_each_chunk(mode, coordinates, shared & OFFSET, |chunk| {
        chunks.push((chunk.shared, chunk.global, chunk.bytes));
    });
    chunks
}
