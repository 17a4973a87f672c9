//! What instructions tell race detection.

use super::clock::{Epoch, Known};
use super::shadow::{ATOMIC, Kind, READ, Record, WRITE};
use super::{BlockWatch, MbarrierWatch, Open, Place, WarpWatch};
use crate::machine::access::OFFSET;
use crate::machine::block::Warp;
use crate::machine::cluster::{Env, Step};
use crate::machine::fault::Trouble;
use crate::machine::observe::Touch;
use crate::machine::pending::Transfer;
use crate::matrix::StMatrixSpec;
use crate::program::{Action, Inst, Ordering};
use crate::transfer::tensor_map::TensorMap;
use crate::transfer::tile;

/// A read or write by an asynchronous copy.
const COPY_READ: Kind = Kind { copy: true, ..READ };
const COPY_WRITE: Kind = Kind { copy: true, ..WRITE };

impl Env<'_> {
    fn watch(&mut self, rank: usize) -> Option<&mut BlockWatch> {
        self.cluster.blocks.get_mut(rank)?.watch.as_deref_mut()
    }

    /// Checks and records an access that a warp issues and that is done at `epoch`.
    fn touch(
        &mut self,
        watch: &WarpWatch,
        lane: u32,
        place: Place,
        bytes: u32,
        kind: Kind,
        epoch: Epoch,
    ) -> Step<()> {
        let new = Record { epoch, warp: watch.agent, pc: self.pc, lane: lane as u8, bytes: 0, kind };
        match self.find_race(watch, place, bytes, new, false) {
            Some((at, old)) => Err(self.race(&new, &old, place, at, bytes)),
            None => Ok(()),
        }
    }

    fn find_race(
        &mut self,
        watch: &WarpWatch,
        place: Place,
        bytes: u32,
        new: Record,
        same: bool,
    ) -> Option<(u64, Record)> {
        let seen = &watch.known.seen;
        match place {
            Place::Global(address) => {
                self.observers.races.as_mut()?.shadow.access(address, bytes.into(), new, seen, same)
            }
            Place::Shared(rank, offset) => {
                self.watch(rank)?.shadow.access(offset.into(), bytes.into(), new, seen, same)
            }
        }
    }

    /// Whether memory holds these bytes.
    fn holds(&mut self, place: Place, bytes: &[u8]) -> bool {
        let region = match place {
            Place::Global(address) => self.memory.find(address, bytes.len()).ok(),
            Place::Shared(rank, offset) => self
                .cluster
                .blocks
                .get_mut(rank)
                .map(|block| (&mut block.shared, offset as usize))
                .filter(|(region, offset)| offset + bytes.len() <= region.len()),
        };
        region.is_some_and(|(region, offset)| region.get(offset, bytes.len()) == (bytes, true))
    }

    /// Checks and records ordinary writes of one instruction.
    fn store_touches<const N: usize>(
        &mut self,
        watch: &WarpWatch,
        writes: &[Touch],
        value: impl Fn(u32) -> [u8; N],
    ) -> Step<()> {
        one_value(writes, &value)?;
        for touch in writes {
            let record = Record {
                epoch: watch.now(),
                warp: watch.agent,
                pc: self.pc,
                lane: touch.lane as u8,
                bytes: 0,
                kind: WRITE,
            };
            let mut found = self.find_race(watch, touch.place, touch.bytes, record, false);
            if found.is_some() && self.holds(touch.place, &value(touch.lane)[..touch.bytes as usize]) {
                found = self.find_race(watch, touch.place, touch.bytes, record, true);
            }
            if let Some((at, old)) = found {
                return Err(self.race(&record, &old, touch.place, at, touch.bytes));
            }
        }
        Ok(())
    }

    /// The same, done when it is issued.
    fn touch_now(&mut self, watch: &WarpWatch, lane: u32, place: Place, bytes: u32, kind: Kind) -> Step<()> {
        self.touch(watch, lane, place, bytes, kind, watch.now())
    }

    fn race(&self, new: &Record, old: &Record, place: Place, at: u64, bytes: u32) -> Trouble {
        let what = |record: &Record| match record.kind {
            Kind { copy: true, write: true, .. } => "asynchronous write",
            Kind { copy: true, .. } => "asynchronous read",
            Kind { write: true, strong: true, .. } => "atomic operation or strong write",
            Kind { strong: true, .. } => "strong read",
            Kind { write: true, .. } => "write",
            _ => "read",
        };
        let size = self.shape.block;
        let warps = size.iter().product::<u32>().div_ceil(32);
        let [x, y, _] = self.shape.grid;
        let number = old.warp / warps;
        let block = [number % x, number / x % y, number / x / y];
        let thread = old.warp % warps * 32 + u32::from(old.lane);
        let thread = [thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1]];
        let line = self.program.code.get(old.pc as usize).map_or(0, |inst| inst.line);
        let opcode = self.program.opcodes.get(old.pc as usize).map_or("", String::as_str);
        let memory = match place {
            Place::Global(_) => format!("global memory at {at:#x}"),
            Place::Shared(rank, _) if rank == self.rank => format!("shared memory at {at:#x}"),
            Place::Shared(rank, _) => format!("shared memory of cluster rank {rank} at {at:#x}"),
        };
        let reason = match () {
            () if old.epoch.is_in_flight() || old.epoch.agent != old.warp => {
                "no wait that this warp knows of has ended it"
            }
            () if old.kind.strong || new.kind.strong => "no release and acquire order them",
            () => "nothing orders them",
        };
        let text = format!(
            "race on {memory}: this {} of {bytes} bytes and the {} by block {block:?}, thread {thread:?} (warp {}) at line {line} `{opcode}`: {reason}",
            what(new),
            what(old),
            old.warp % warps,
        );
        Trouble { lane: Some(new.lane.into()), text }
    }

    /// Takes the watch out of a warp for a while.
    fn watched(
        &mut self,
        warp: &mut Warp,
        check: impl FnOnce(&mut Self, &Warp, &mut WarpWatch) -> Step<()>,
    ) -> Step<()> {
        let Some(mut watch) = warp.watch.take() else { return Ok(()) };
        let result = check(self, warp, &mut watch);
        warp.watch = Some(watch);
        result
    }

    /// Loads, stores, atomics and copies, with the bytes that they touch.
    pub(crate) fn race_touches(
        &mut self,
        warp: &mut Warp,
        inst: &Inst,
        reads: &[Touch],
        writes: &[Touch],
    ) -> Step<()> {
        self.watched(warp, |env, warp, watch| match &inst.action {
            Action::Load(access) => env.ordered(watch, reads, READ, access.ordering),
            Action::Store(access) if !access.ordering.is_strong() => {
                env.store_touches(watch, writes, |lane| Env::values(warp, access, lane))
            }
            Action::Store(access) => env.ordered(watch, writes, WRITE, access.ordering),
            Action::Atomic(atomic) => env.ordered(watch, writes, WRITE, atomic.ordering),
            Action::StMatrix { spec, registers, .. } => {
                let rows = matrix_rows(warp, spec, registers);
                env.store_touches(watch, writes, |lane| rows[lane as usize])
            }
            Action::CopyAsync(_) => {
                env.ordered(watch, reads, READ, Ordering::Weak)?;
                let epoch = watch.in_flight();
                for (at, touch) in writes.iter().enumerate() {
                    // Two lanes may copy the same bytes to the same place.
                    let source = |touch: &Touch| reads.iter().find(|read| read.lane == touch.lane);
                    let same = |other: &&Touch| {
                        other.place == touch.place
                            && source(other).map(|read| (read.place, read.bytes))
                                == source(touch).map(|read| (read.place, read.bytes))
                    };
                    if !writes[..at].iter().any(|other| same(&other)) {
                        env.touch(watch, touch.lane, touch.place, touch.bytes, COPY_WRITE, epoch)?;
                    }
                    let open = Open { lane: touch.lane, place: touch.place, bytes: touch.bytes, epoch };
                    watch.copies.push(touch.lane, open);
                }
                Ok(())
            }
            _ => env.ordered(watch, reads, READ, Ordering::Weak),
        })
    }

    /// Accesses with an ordering, which is that of a lock at their address.
    fn ordered(
        &mut self,
        watch: &mut WarpWatch,
        touches: &[Touch],
        kind: Kind,
        ordering: Ordering,
    ) -> Step<()> {
        let kind = Kind { strong: ordering.is_strong(), ..kind };
        // An atomic operation reads as well.
        if kind.strong {
            for touch in touches {
                let lock = match touch.place {
                    Place::Global(at) => {
                        self.observers.races.as_ref().and_then(|races| races.locks.get(&(at & !3)))
                    }
                    Place::Shared(rank, at) => {
                        let watch = self.cluster.blocks.get(rank).and_then(|block| block.watch.as_ref());
                        watch.and_then(|watch| watch.locks.get(&(at & !3)))
                    }
                };
                match lock {
                    Some(lock) if ordering.acquires() => watch.known.seen.join(lock),
                    Some(lock) => watch.relaxed.join(lock),
                    None => {}
                }
            }
        }
        for touch in touches {
            self.touch_now(watch, touch.lane, touch.place, touch.bytes, kind)?;
        }
        if !(kind.strong && kind.write) {
            return Ok(());
        }
        let left = if ordering.releases() { &watch.known.seen } else { &watch.known.fenced };
        if left.is_empty() {
            return Ok(());
        }
        for touch in touches {
            match touch.place {
                Place::Global(at) => {
                    let Some(races) = &mut self.observers.races else { break };
                    races.locks.entry(at & !3).or_default().join(left);
                }
                Place::Shared(rank, at) => {
                    let Some(block) = self.watch(rank) else { break };
                    block.locks.entry(at & !3).or_default().join(left);
                }
            }
        }
        if ordering.releases() {
            watch.tick();
        }
        Ok(())
    }

    /// An ordinary access of a lane to shared memory.
    pub(crate) fn race_shared(
        &mut self,
        warp: &Warp,
        lane: u32,
        address: u32,
        bytes: u32,
        kind: Kind,
    ) -> Step<()> {
        let Some(watch) = warp.watch.as_deref() else { return Ok(()) };
        self.touch_now(watch, lane, self.shared_place(address), bytes, kind)
    }

    /// Bytes of shared memory that a product or a copy to tensor memory reads.
    pub(crate) fn race_operand(&mut self, warp: &mut Warp, address: u32, bytes: u32) -> Step<()> {
        let lane = warp.live.trailing_zeros();
        self.watched(warp, |env, _, watch| {
            let Some(races) = &mut env.observers.races else { return Ok(()) };
            let agent = *watch.products.get_or_insert_with(|| races.new_agent());
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

    /// `tcgen05.commit`: the products so far end with the running phase.
    pub(crate) fn race_product_arrive(&mut self, warp: &mut Warp, address: u32) {
        if let Some(watch) = &mut warp.watch
            && let Some(agent) = watch.products
            && let Some(mbarrier) = self.mbarrier_watch(address)
        {
            watch.groups += 1;
            mbarrier.running.seen.learn(Epoch { agent, time: watch.groups });
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
            None => Ok(()),
        }
    }

    fn shared_place(&self, address: u32) -> Place {
        let rank = match address >> 24 {
            0 => self.rank,
            mapped => mapped as usize - 1,
        };
        Place::Shared(rank, address & OFFSET)
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

    fn mbarrier_watch(&mut self, address: u32) -> Option<&mut MbarrierWatch> {
        let Place::Shared(rank, offset) = self.shared_place(address) else { return None };
        let races = self.observers.races.as_mut()?;
        let block = self.cluster.blocks.get_mut(rank)?.watch.as_deref_mut()?;
        Some(block.mbarriers.entry(offset).or_insert_with(|| {
            let agent = races.new_agent();
            MbarrierWatch { agent, phases: 0, running: Known::default(), ended: Known::default() }
        }))
    }

    /// The end of the running phase of an mbarrier.
    fn mbarrier_epoch(&mut self, address: u32) -> Option<Epoch> {
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
                known.seen.join(&watch.known.fenced);
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
        self.touch_now(watch, lane, self.shared_place(mbarrier), 8, ATOMIC)?;
        let Some(epoch) = self.mbarrier_epoch(mbarrier) else { return Ok(()) };
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
            self.touch(watch, lane, result, bytes, Kind { strong: reduces, ..COPY_WRITE }, epoch)?;
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

fn matrix_rows(warp: &Warp, spec: &StMatrixSpec, registers: &[u32]) -> [[u8; 16]; 32] {
    let fragment: Vec<_> = registers.iter().map(|&slot| *warp.registers.narrow(slot)).collect();
    let mut rows = [[0; 16]; 32];
    spec.collect(&fragment, &mut rows[..spec.num_rows()]);
    rows
}

/// Fails if two lanes write different values to the same byte.
fn one_value<const N: usize>(writes: &[Touch], value: impl Fn(u32) -> [u8; N]) -> Step<()> {
    let key = |touch: &Touch| match touch.place {
        Place::Global(at) => (usize::MAX, at),
        Place::Shared(rank, at) => (rank, u64::from(at)),
    };
    let apart = |a: &Touch, b: &Touch| key(a).0 != key(b).0 || key(a).1 + u64::from(a.bytes) <= key(b).1;
    if writes.is_sorted_by(apart) {
        return Ok(());
    }
    let mut order: Vec<&Touch> = writes.iter().collect();
    order.sort_by_key(|touch| key(touch));
    for pair in order.windows(2) {
        let [a, b] = [pair[0], pair[1]];
        if apart(a, b) {
            continue;
        }
        let skip = (key(b).1 - key(a).1) as usize;
        let (of_a, of_b) = (value(a.lane), value(b.lane));
        let of_a = &of_a[skip..a.bytes as usize];
        if let Some(at) = of_a.iter().zip(&of_b[..b.bytes as usize]).position(|(a, b)| a != b) {
            let text = format!(
                "lanes {} and {} of one instruction write different values to {} at {:#x}",
                a.lane,
                b.lane,
                if key(a).0 == usize::MAX { "global memory" } else { "shared memory" },
                key(b).1 + at as u64
            );
            return Err(Trouble { lane: Some(b.lane), text });
        }
    }
    Ok(())
}
