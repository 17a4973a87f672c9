//! Loads, stores and atomics, and the report of a race.

use super::clock::Epoch;
use super::release::Release;
use super::shadow::{ATOMIC, COPY_WRITE, Kind, READ, Record, WRITE};
use super::{BlockWatch, Open, Place, Races, WarpWatch};
use crate::machine::access::{OFFSET, rank_of};
use crate::machine::block::Warp;
use crate::machine::cluster::{Env, Step};
use crate::machine::fault::{RACE, Trouble};
use crate::machine::observe::Touch;
use crate::matrix::StMatrixSpec;
use crate::program::{Action, Inst, MultimemKind, Ordering, Scope};

impl Env<'_> {
    pub(super) fn watch(&mut self, rank: usize) -> Option<&mut BlockWatch> {
        self.cluster.blocks.get_mut(rank)?.watch.as_deref_mut()
    }

    /// Checks and records an access that a warp issues and that is done at `epoch`.
    pub(super) fn touch(
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
        let Races { shadow, launches, .. } = self.observers.races.as_mut()?;
        let distance = |agent: u32| launches.home(agent).distance(watch.home);
        match place {
            Place::Global(address) => shadow.access(address, bytes.into(), new, seen, distance, same),
            Place::Shared(rank, offset) => {
                let block = self.cluster.blocks.get_mut(rank)?.watch.as_deref_mut()?;
                block.shadow.access(offset.into(), bytes.into(), new, seen, distance, same)
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
            self.carry(touch, &[], false);
        }
        Ok(())
    }

    /// The same, done when it is issued.
    pub(super) fn touch_now(
        &mut self,
        watch: &WarpWatch,
        lane: u32,
        place: Place,
        bytes: u32,
        kind: Kind,
    ) -> Step<()> {
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
        let races = self.observers.races.as_ref();
        let by = races.map_or(String::new(), |races| races.launches.describe(old.warp, old.lane, old.pc));
        let memory = match place {
            Place::Global(_) => match self.memory.describe(at) {
                Some(tensor) => format!("global memory at {at:#x}, {tensor}"),
                None => format!("global memory at {at:#x}"),
            },
            Place::Shared(rank, _) if rank == self.rank => format!("shared memory at {at:#x}"),
            Place::Shared(rank, _) => format!("shared memory of cluster rank {rank} at {at:#x}"),
        };
        let reason = match () {
            () if old.epoch.is_in_flight() || old.epoch.agent != old.warp => {
                "no wait that this warp knows of has ended it"
            }
            () if old.kind.strong && new.kind.strong => "a scope does not include the other thread",
            () if old.kind.strong || new.kind.strong => "no release and acquire order them",
            () => "nothing orders them",
        };
        let text = format!(
            "{RACE}{memory}: this {} of {bytes} bytes and the {} by {by}: {reason}",
            what(new),
            what(old),
        );
        Trouble { lane: Some(new.lane.into()), text }
    }

    /// Takes the watch out of a warp for a while.
    pub(super) fn watched(
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
            Action::Load(access) => env.ordered(watch, reads, READ, access.ordering, access.scope),
            Action::Store(access) if !access.ordering.is_strong() => {
                env.store_touches(watch, writes, |lane| Env::values(warp, access, lane))
            }
            Action::Store(access) => env.ordered(watch, writes, WRITE, access.ordering, access.scope),
            Action::Atomic(atomic) => env.modified(watch, writes, atomic.ordering, atomic.scope),
            Action::Multimem(multimem) => {
                let access = &multimem.access;
                match multimem.kind {
                    MultimemKind::LoadReduce(_) => {
                        env.ordered(watch, reads, READ, access.ordering, access.scope)
                    }
                    MultimemKind::Store if !access.ordering.is_strong() => {
                        env.store_touches(watch, writes, |lane| Env::values(warp, access, lane))
                    }
                    MultimemKind::Store => env.ordered(watch, writes, WRITE, access.ordering, access.scope),
                    MultimemKind::Reduce(_) => env.modified(watch, writes, access.ordering, access.scope),
                }
            }
            Action::StMatrix { spec, registers, .. } => {
                let rows = matrix_rows(warp, spec, registers);
                env.store_touches(watch, writes, |lane| rows[lane as usize])
            }
            Action::CopyAsync(_) => {
                env.weak_reads(watch, reads)?;
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
            _ => env.weak_reads(watch, reads),
        })
    }

    fn weak_reads(&mut self, watch: &mut WarpWatch, reads: &[Touch]) -> Step<()> {
        self.ordered(watch, reads, READ, Ordering::Weak, Scope::default())
    }

    /// Loads or stores with an ordering.
    fn ordered(
        &mut self,
        watch: &mut WarpWatch,
        touches: &[Touch],
        kind: Kind,
        ordering: Ordering,
        scope: Scope,
    ) -> Step<()> {
        let kind = Kind { strong: ordering.is_strong(), scope, ..kind };
        if kind.strong && !kind.write {
            self.meet(watch, touches, ordering, scope);
        }
        for (at, touch) in touches.iter().enumerate() {
            // Often all lanes read one flag, again and again.
            let again = |other: &Touch| (other.place, other.bytes) == (touch.place, touch.bytes);
            if !kind.write && at > 0 && again(&touches[at - 1]) {
                continue;
            }
            self.touch_now(watch, touch.lane, touch.place, touch.bytes, kind)?;
        }
        if kind.strong && kind.write {
            self.leave(watch, touches, ordering, scope, false);
        }
        Ok(())
    }

    /// Atomic operations.
    fn modified(
        &mut self,
        watch: &mut WarpWatch,
        touches: &[Touch],
        ordering: Ordering,
        scope: Scope,
    ) -> Step<()> {
        self.meet(watch, touches, ordering, scope);
        for touch in touches {
            self.touch_now(watch, touch.lane, touch.place, touch.bytes, Kind { scope, ..ATOMIC })?;
        }
        self.leave(watch, touches, ordering, scope, true);
        Ok(())
    }

    /// Strong reads meet the releases that the values carry.
    fn meet(&self, watch: &mut WarpWatch, touches: &[Touch], ordering: Ordering, scope: Scope) {
        for (at, touch) in touches.iter().enumerate() {
            if at > 0 && touches[at - 1].place == touch.place {
                continue;
            }
            match touch.place {
                Place::Global(at) => {
                    let Some(races) = &self.observers.races else { return };
                    for word in words(at, touch.bytes) {
                        let releases = races.releases.at(word).iter();
                        releases.for_each(|release| watch.meet(release, ordering, scope));
                    }
                }
                Place::Shared(rank, at) => {
                    let block = self.cluster.blocks.get(rank).and_then(|block| block.watch.as_ref());
                    let Some(block) = block else { return };
                    for word in words(at.into(), touch.bytes) {
                        let releases = block.releases.at(word as u32).iter();
                        releases.for_each(|release| watch.meet(release, ordering, scope));
                    }
                }
            }
        }
    }

    /// Strong writes carry what their thread releases.
    fn leave(
        &mut self,
        watch: &mut WarpWatch,
        touches: &[Touch],
        ordering: Ordering,
        scope: Scope,
        modifies: bool,
    ) {
        let left = watch.leave(ordering, scope);
        for touch in touches {
            self.carry(touch, &left, modifies);
        }
        if ordering.releases() {
            watch.tick();
        }
    }

    /// A write carries releases, after those of the value before it if it is a part of the new one.
    fn carry(&mut self, touch: &Touch, left: &[Release], modifies: bool) {
        match touch.place {
            Place::Global(at) => {
                let Some(races) = &mut self.observers.races else { return };
                for word in words(at, touch.bytes) {
                    match modifies {
                        true => races.releases.modify(word, left),
                        false => races.releases.write(word, left),
                    }
                }
            }
            Place::Shared(rank, at) => {
                let Some(block) = self.watch(rank) else { return };
                for word in words(at.into(), touch.bytes) {
                    match modifies {
                        true => block.releases.modify(word as u32, left),
                        false => block.releases.write(word as u32, left),
                    }
                }
            }
        }
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

    pub(super) fn shared_place(&self, address: u32) -> Place {
        Place::Shared(rank_of(address), address & OFFSET)
    }
}

/// Addresses of the words that bytes are part of.
fn words(start: u64, bytes: u32) -> impl Iterator<Item = u64> {
    (start & !3..start.saturating_add(bytes.into())).step_by(4)
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
