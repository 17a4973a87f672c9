//! What an instruction touches in memory, for those who watch a launch.

use super::access::{OFFSET, lanes, rank_of};
use super::block::Warp;
use super::cluster::{Env, Step};
use super::profile::Profiler;
use super::race::{Clock, Place, Races};
use crate::lower::{GLOBAL_START, SHARED_WINDOW};
use crate::program::{Action, Address, Inst, MultimemKind};
use crate::text::Space;

/// Bytes that a lane touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) lane: u32,
    pub(crate) place: Place,
    pub(crate) bytes: u32,
}

/// What watches a launch.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    /// Of all launches, while it is the turn of this one.
    pub(crate) races: Option<Races>,
    pub(crate) profile: Option<Profiler>,
    /// What is known at the end of the warps that have ended, if that is asked for.
    pub(crate) end: Option<Clock>,
    /// Instructions that read memory, with the first address, if they are asked for.
    pub(crate) polls: Option<Vec<(u32, Place)>>,
    /// Buffers.
    reads: Vec<Touch>,
    writes: Vec<Touch>,
}

impl Observers {
    pub(crate) fn new(profile: Option<Profiler>) -> Self {
        Self { profile, ..Self::default() }
    }

    pub(crate) fn is_watching(&self) -> bool {
        self.races.is_some() || self.profile.is_some() || self.polls.is_some()
    }
}

impl Env<'_> {
    /// Shows an instruction to the observers before it is executed.
    #[cold]
    pub(super) fn observe(&mut self, warp: &mut Warp, inst: &Inst, exec: u32) -> Step<()> {
        if let Action::Fence(fence) = inst.action {
            if let Some(watch) = &mut warp.watch {
                watch.fence(fence);
            }
            return Ok(());
        }
        let mut reads = std::mem::take(&mut self.observers.reads);
        let mut writes = std::mem::take(&mut self.observers.writes);
        self.touches(warp, inst, exec, &mut reads, &mut writes);
        let mut result = Ok(());
        if !reads.is_empty() || !writes.is_empty() {
            if let (Some(polls), Some(read)) = (&mut self.observers.polls, reads.first()) {
                polls.push((self.pc, read.place));
            }
            if let Some(profile) = &mut self.observers.profile {
                profile.touches(self.pc, inst, &reads, &writes);
            }
            result = self.race_touches(warp, inst, &reads, &writes);
        }
        reads.clear();
        writes.clear();
        self.observers.reads = reads;
        self.observers.writes = writes;
        result
    }

    /// Bytes of global and shared memory that the lanes of an instruction touch. Addresses that are
    /// nowhere are left out: the instruction itself fails.
    fn touches(&self, warp: &Warp, inst: &Inst, exec: u32, reads: &mut Vec<Touch>, writes: &mut Vec<Touch>) {
        let gather = |address: &Address, exec: u32, bytes: u32, into: &mut Vec<Touch>| {
            for lane in lanes(exec) {
                let value = address.of(&warp.registers, lane);
                if let Some(place) = self.placed(address.space, value) {
                    into.push(Touch { lane, place, bytes });
                }
            }
        };
        let rows = |rows: usize| u32::MAX >> (32 - rows.clamp(1, 32));
        match &inst.action {
            Action::Load(access) => {
                let bytes = access.ty.bytes() * access.registers.len() as u32;
                gather(&access.address, exec, bytes, reads);
            }
            Action::Store(access) => {
                let bytes = access.ty.bytes() * access.registers.len() as u32;
                gather(&access.address, exec, bytes, writes);
            }
            Action::Atomic(atomic) => {
                let bytes = atomic.ty.bytes() * atomic.values.len() as u32;
                gather(&atomic.address, exec, bytes, writes);
            }
            Action::Multimem(multimem) => {
                let access = &multimem.access;
                let bytes = access.ty.bytes() * access.registers.len() as u32;
                let touches = match multimem.kind {
                    MultimemKind::LoadReduce(_) => reads,
                    _ => writes,
                };
                for lane in lanes(exec) {
                    let address = access.address.of(&warp.registers, lane);
                    let copies = self.memory.copies(address, bytes.into()).into_iter().flatten();
                    touches.extend(copies.map(|copy| Touch { lane, place: Place::Global(copy), bytes }));
                }
            }
            Action::LdMatrix { spec, address, .. } => gather(address, rows(spec.num_rows()), 16, reads),
            Action::StMatrix { spec, address, .. } => gather(address, rows(spec.num_rows()), 16, writes),
            Action::CopyAsync(copy) => {
                for lane in lanes(exec) {
                    let one = 1 << lane;
                    gather(&copy.shared, one, copy.bytes, writes);
                    let mut read = copy.bytes;
                    if let Some(slot) = copy.source_bytes {
                        read = warp.registers.narrow(slot)[lane as usize].min(read);
                    }
                    if let Some((predicate, invert)) = copy.ignore
                        && (warp.registers.predicates[predicate as usize] ^ invert) & one != 0
                    {
                        read = 0;
                    }
                    if read > 0 {
                        gather(&copy.global, one, read, reads);
                    }
                }
            }
            _ => {}
        }
    }

    /// Lets stores to other devices arrive that this instruction must not overtake: all that its device has
    /// released when it is done, and those to bytes that it touches.
    #[cold]
    pub(super) fn arrive_before(&mut self, warp: &Warp, inst: &Inst, exec: u32, device: usize) {
        // What a bulk copy reads is known only to itself.
        if inst.action.releases_to_all() || matches!(inst.action, Action::Bulk(_)) {
            self.memory.arrive_of(device);
            return;
        }
        let mut touched = Vec::new();
        let mut writes = Vec::new();
        self.touches(warp, inst, exec, &mut touched, &mut writes);
        // A weak store waits behind those before it.
        let waits = matches!(&inst.action, Action::Store(access) if !access.ordering.is_strong());
        if !waits {
            touched.append(&mut writes);
        }
        for touch in touched {
            if let Place::Global(at) = touch.place {
                self.memory.arrive_in(device, at, touch.bytes.into());
            }
        }
    }

    fn placed(&self, space: Space, address: u64) -> Option<Place> {
        let space = match space {
            Space::Generic if address >= GLOBAL_START => Space::Global,
            Space::Generic | Space::Shared if address & !0xffff_ffff == SHARED_WINDOW => Space::Shared,
            Space::Generic => return None,
            other => other,
        };
        match space {
            Space::Global => Some(Place::Global(address)),
            Space::Shared => Some(Place::Shared(rank_of(address as u32), address as u32 & OFFSET)),
            _ => None,
        }
    }
}
