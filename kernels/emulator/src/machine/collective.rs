//! Shuffles, votes and barriers.

use super::access::lanes;
use super::block::{Group, State, Warp};
use super::cluster::{Env, Flow, Step};
use super::fault::Trouble;
use crate::Lanes;
use crate::execute::Operands;
use crate::number::extremum::{self, Selection};
use crate::program::{Action, BarrierReduction, Redux, ShuffleMode, VoteMode};

/// Sets the lanes of a mask in a predicate.
fn set(predicate: &mut u32, mask: u32, value: u32) {
    *predicate = (*predicate & !mask) | (value & mask);
}

/// The values of the lanes whose numbers differ in one bit. The constant lets vectors do it.
fn exchange<const BY: usize>(a: &Lanes) -> Lanes {
    let mut moved = [0; 32];
    for lane in 0..32 {
        moved[lane] = a[lane ^ BY];
    }
    moved
}

/// A shuffle of a whole warp in one segment, but not up; sets the lanes that found their source.
fn shuffle_all(mode: ShuffleMode, a: &Lanes, b: &Lanes, found: &mut u32) -> Lanes {
    // Most often all lanes name one lane, or exchange by one bit.
    let common = if b.iter().fold(0, |bits, by| bits | (by ^ b[0])) == 0 { Some(b[0] & 31) } else { None };
    let moved = match (mode, common) {
        (ShuffleMode::Butterfly, Some(1)) => Some(exchange::<1>(a)),
        (ShuffleMode::Butterfly, Some(2)) => Some(exchange::<2>(a)),
        (ShuffleMode::Butterfly, Some(4)) => Some(exchange::<4>(a)),
        (ShuffleMode::Butterfly, Some(8)) => Some(exchange::<8>(a)),
        (ShuffleMode::Butterfly, Some(16)) => Some(exchange::<16>(a)),
        (ShuffleMode::Index, Some(from)) => Some([a[from as usize]; 32]),
        _ => None,
    };
    if let Some(moved) = moved {
        *found = u32::MAX;
        return moved;
    }
    let mut sources = [0; 32];
    for lane in 0..32 {
        let by = b[lane as usize] & 31;
        sources[lane as usize] = match mode {
            ShuffleMode::Butterfly => lane ^ by,
            ShuffleMode::Index => by,
            _ => lane + by,
        };
    }
    *found = 0;
    let mut moved = [0; 32];
    for lane in 0..32 {
        let inside = sources[lane] < 32;
        *found |= u32::from(inside) << lane;
        moved[lane] = a[if inside { sources[lane] as usize & 31 } else { lane }];
    }
    moved
}

impl Env<'_> {
    /// The lanes that a collective names, once all of them are here; `None`: some are still to come.
    ///
    /// `members` is a register; every executing lane must name itself and hold the same mask.
    pub(super) fn members(&self, warp: &Warp, slot: u32, exec: u32, mask: u32) -> Step<Option<u32>> {
        let first = exec.trailing_zeros();
        let values = warp.registers.narrow(slot);
        let members = values[first as usize];
        let unnamed = exec & !members;
        if unnamed != 0 {
            let lane = unnamed.trailing_zeros();
            // Lanes with another mask form a collective of their own.
            if values[lane as usize] == members {
                let text = format!("member mask {members:#010x} does not name the lane itself");
                return Err(Trouble { lane: Some(lane), text });
            }
        }
        let present = members & warp.live;
        let missing = present & !exec;
        if missing & mask != 0 {
            let lane = (missing & mask).trailing_zeros();
            let text = format!("member mask {members:#010x} names lane {lane}, whose guard is false");
            return Err(Trouble { lane: Some(lane), text });
        }
        Ok((missing == 0).then_some(present & exec))
    }

    /// A collective with `.aligned`: all lanes that have not exited must be here. `false`: others are on their way, as where a compiler has put
    /// a branch behind the code that it leads back to.
    pub(crate) fn whole(&self, warp: &Warp, exec: u32) -> Step<bool> {
        match warp.live & !exec {
            0 => Ok(true),
            missing if self.are_coming(warp, exec, missing) => Ok(false),
            missing => {
                let text = format!("an aligned instruction without lanes {missing:#010x} of the warp");
                Err(Trouble { lane: Some(missing.trailing_zeros()), text })
            }
        }
    }

    /// Whether some of these lanes can go on, and on a way that leads here.
    fn are_coming(&self, warp: &Warp, exec: u32, missing: u32) -> bool {
        warp.groups.iter().any(|group| {
            let is_another = group.mask & missing != 0 && group.mask & exec == 0;
            let can_move = matches!(group.state, State::Ready | State::Yielded);
            is_another && can_move && self.program.leads(group.pc, self.pc)
        })
    }

    pub(super) fn shuffle(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        mode: ShuffleMode,
        members: u32,
        exec: u32,
        mask: u32,
    ) -> Step {
        let Some(members) = self.members(warp, members, exec, mask)? else { return Ok(Flow::Wait) };
        let registers = &mut warp.registers;
        let (a, b, c) = (*registers.narrow(o.a), *registers.narrow(o.b), *registers.narrow(o.c));
        let one_segment = c.iter().fold(0, |bits, clamp| bits | (clamp ^ 31)) == 0;
        if exec & members == u32::MAX && one_segment && mode != ShuffleMode::Up {
            let moved = shuffle_all(mode, &a, &b, &mut registers.predicates[o.imm as usize]);
            *registers.narrow_mut(o.d) = moved;
            return Ok(Flow::Next);
        }
        let mut d = *registers.narrow(o.d);
        let mut found = 0;
        for lane in lanes(exec) {
            let (b, c) = (b[lane as usize] & 31, c[lane as usize]);
            let (segment, clamp) = (c >> 8 & 31, c & 31);
            let max = (lane & segment) | (clamp & !segment);
            let min = lane & segment;
            let signed = lane as i32;
            let (source, inside) = match mode {
                ShuffleMode::Up => (signed - b as i32, signed - b as i32 >= max as i32),
                ShuffleMode::Down => (signed + b as i32, signed + b as i32 <= max as i32),
                ShuffleMode::Butterfly => ((lane ^ b) as i32, (lane ^ b) <= max),
                ShuffleMode::Index => {
                    let source = min | (b & !segment);
                    (source as i32, source <= max)
                }
            };
            let source = if inside { source as u32 & 31 } else { lane };
            if members >> source & 1 == 0 && source != lane {
                let text = format!("the value of lane {source}, which does not take part");
                return Err(Trouble { lane: Some(lane), text });
            }
            d[lane as usize] = a[source as usize];
            found |= u32::from(inside) << lane;
        }
        *registers.narrow_mut(o.d) = d;
        set(&mut registers.predicates[o.imm as usize], exec, found);
        Ok(Flow::Next)
    }

    pub(super) fn vote(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        mode: VoteMode,
        members: u32,
        destination: u32,
        source: (u32, u32),
        exec: u32,
        mask: u32,
    ) -> Step {
        let Some(members) = self.members(warp, members, exec, mask)? else { return Ok(Flow::Wait) };
        let votes = (warp.registers.predicates[source.0 as usize] ^ source.1) & members;
        let all = |holds: bool| if holds { u32::MAX } else { 0 };
        let value = match mode {
            VoteMode::All => all(votes == members),
            VoteMode::Any => all(votes != 0),
            VoteMode::Uniform => all(votes == 0 || votes == members),
            VoteMode::Ballot => {
                let register = warp.registers.narrow_mut(o.d);
                if exec == u32::MAX {
                    *register = [votes; 32];
                } else {
                    lanes(exec).for_each(|lane| register[lane as usize] = votes);
                }
                return Ok(Flow::Next);
            }
        };
        set(&mut warp.registers.predicates[destination as usize], exec, value);
        Ok(Flow::Next)
    }

    pub(super) fn match_lanes(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        (all, wide): (bool, bool),
        members: u32,
        predicate: u32,
        exec: u32,
        mask: u32,
    ) -> Step {
        let Some(members) = self.members(warp, members, exec, mask)? else { return Ok(Flow::Wait) };
        let value = |lane: u32| match wide {
            true => warp.registers.wide(o.a)[lane as usize],
            false => u64::from(warp.registers.narrow(o.a)[lane as usize]),
        };
        let same = |lane: u32| {
            lanes(members).filter(|&other| value(other) == value(lane)).fold(0, |mask, lane| mask | 1 << lane)
        };
        let results: Vec<(u32, u32)> = lanes(exec).map(|lane| (lane, same(lane))).collect();
        let mut equal = 0;
        for (lane, same) in results {
            let whole = same == members;
            equal |= u32::from(whole) << lane;
            warp.registers.narrow_mut(o.d)[lane as usize] = if all && !whole { 0 } else { same };
        }
        set(&mut warp.registers.predicates[predicate as usize], exec, equal);
        Ok(Flow::Next)
    }

    pub(super) fn redux(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        op: Redux,
        members: u32,
        exec: u32,
        mask: u32,
    ) -> Step {
        let Some(members) = self.members(warp, members, exec, mask)? else { return Ok(Flow::Wait) };
        let values = *warp.registers.narrow(o.a);
        let float = |abs: bool, nan: bool, pick: fn(f32, f32, Selection) -> f32| {
            let selection = Selection { nan, abs, ..Selection::default() };
            let value = |lane: u32| f32::from_bits(values[lane as usize]);
            let first = value(members.trailing_zeros());
            // A single value passes through the same rules.
            lanes(members).fold(first, |found, lane| pick(found, value(lane), selection)).to_bits()
        };
        let integers = |pick: fn(u32, u32) -> u32| {
            lanes(members).map(|lane| values[lane as usize]).reduce(pick).unwrap_or(0)
        };
        let result = match op {
            Redux::AddU32 => integers(u32::wrapping_add),
            Redux::MinU32 => integers(u32::min),
            Redux::MaxU32 => integers(u32::max),
            Redux::MinS32 => integers(|a, b| (a as i32).min(b as i32) as u32),
            Redux::MaxS32 => integers(|a, b| (a as i32).max(b as i32) as u32),
            Redux::And => integers(|a, b| a & b),
            Redux::Or => integers(|a, b| a | b),
            Redux::Xor => integers(|a, b| a ^ b),
            Redux::MinF32 { abs, nan } => float(abs, nan, extremum::min),
            Redux::MaxF32 { abs, nan } => float(abs, nan, extremum::max),
        };
        for lane in lanes(exec) {
            warp.registers.narrow_mut(o.d)[lane as usize] = result;
        }
        Ok(Flow::Next)
    }

    pub(super) fn elect(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        members: u32,
        predicate: u32,
        exec: u32,
        mask: u32,
    ) -> Step {
        let Some(members) = self.members(warp, members, exec, mask)? else { return Ok(Flow::Wait) };
        let leader = members.trailing_zeros();
        for lane in lanes(exec) {
            warp.registers.narrow_mut(o.d)[lane as usize] = leader;
        }
        set(&mut warp.registers.predicates[predicate as usize], exec, 1 << leader);
        Ok(Flow::Next)
    }

    pub(super) fn warp_sync(&mut self, warp: &mut Warp, slot: u32, exec: u32, mask: u32) -> Step {
        if self.members(warp, slot, exec, mask)?.is_some() {
            return Ok(Flow::Next);
        }
        // The others may stand at another `bar.warp.sync` with the same members.
        let values = *warp.registers.narrow(slot);
        let members = values[exec.trailing_zeros() as usize];
        let missing = members & warp.live & !exec;
        let waits = |group: &Group| {
            let Some(inst) = self.program.code.get(group.pc as usize) else { return false };
            let Action::WarpSync { members: slot } = inst.action else { return false };
            let values = warp.registers.narrow(slot);
            group.mask & !missing == 0
                && group.mask & !(warp.registers.predicates[inst.guard as usize] ^ inst.invert) == 0
                && lanes(group.mask).all(|lane| values[lane as usize] == members)
        };
        let there: Vec<bool> = warp.groups.iter().map(waits).collect();
        let arrived =
            warp.groups.iter().zip(&there).filter(|group| *group.1).fold(0, |all, g| all | g.0.mask);
        if arrived != missing {
            return Ok(Flow::Wait);
        }
        for (group, _) in warp.groups.iter_mut().zip(there).filter(|group| group.1) {
            group.pc += 1;
            group.state = State::Ready;
        }
        Ok(Flow::Join)
    }

    /// Arrives at a barrier of the block; with `wait` also waits.
    pub(super) fn barrier(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        (wait, counted, aligned): (bool, bool, bool),
        exec: u32,
    ) -> Step {
        if aligned && !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        let number = self.arrive_at_barrier(warp, o, counted, aligned, exec)?;
        if wait {
            return Ok(Flow::Barrier(number));
        }
        self.complete_barrier(warp, number);
        Ok(Flow::Next)
    }

    pub(super) fn barrier_reduce(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        (op, counted): (BarrierReduction, bool),
        source: (u32, u32),
        destination: u32,
        exec: u32,
    ) -> Step {
        if !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        let votes = (warp.registers.predicates[source.0 as usize] ^ source.1) & exec;
        let number = self.arrive_at_barrier(warp, o, counted, true, exec)?;
        let result = (warp.index, exec, o.d, destination, op);
        let barrier = &mut self.block().barriers[number as usize];
        barrier.votes += votes.count_ones();
        barrier.voters += exec.count_ones();
        barrier.results.push(result);
        Ok(Flow::Barrier(number))
    }

    fn arrive_at_barrier(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        counted: bool,
        aligned: bool,
        exec: u32,
    ) -> Step<u32> {
        let first = exec.trailing_zeros() as usize;
        let number = warp.registers.narrow(o.a)[first];
        if number > 15 {
            return Err(format!("barrier {number} of 16").into());
        }
        let expected = counted.then(|| warp.registers.narrow(o.b)[first]);
        if let Some(expected) = expected
            && (expected == 0 || expected % 32 != 0)
        {
            return Err(format!("{expected} threads are not a multiple of 32").into());
        }
        let barrier = &mut self.block().barriers[number as usize];
        if barrier.arrived > 0 && barrier.expected != expected {
            let text =
                format!("barrier {number} is used with {expected:?} and {:?} threads", barrier.expected);
            return Err(text.into());
        }
        barrier.expected = expected;
        // With a count, a warp counts as 32 threads.
        barrier.arrived += if counted && aligned { 32 } else { exec.count_ones() };
        if let Some(expected) = expected
            && barrier.arrived > expected
        {
            return Err(
                format!("{} threads arrived at barrier {number} of {expected}", barrier.arrived).into()
            );
        }
        self.race_barrier_arrive(warp, number);
        Ok(number)
    }

    /// Releases a barrier if all threads have arrived. `warp` is the one that runs now.
    pub(crate) fn complete_barrier(&mut self, warp: &mut Warp, number: u32) {
        let block = self.block();
        let live = block.live;
        let barrier = &mut block.barriers[number as usize];
        if barrier.arrived == 0 || barrier.arrived < barrier.expected.unwrap_or(live) {
            return;
        }
        let finished = std::mem::take(barrier);
        let known = block.watch.as_mut().map(|watch| watch.take_barrier(number));
        let release = |warp: &mut Warp| {
            for group in &mut warp.groups {
                if group.state == State::Barrier(number) {
                    group.state = State::Ready;
                    if let (Some(watch), Some(known)) = (&mut warp.watch, &known) {
                        watch.acquire(known);
                    }
                }
            }
            for &(index, mask, slot, predicate, op) in &finished.results {
                if index == warp.index {
                    let holds = match op {
                        BarrierReduction::And => finished.votes == finished.voters,
                        BarrierReduction::Or => finished.votes > 0,
                        BarrierReduction::Popc => {
                            for lane in lanes(mask) {
                                warp.registers.narrow_mut(slot)[lane as usize] = finished.votes;
                            }
                            continue;
                        }
                    };
                    let value = if holds { u32::MAX } else { 0 };
                    set(&mut warp.registers.predicates[predicate as usize], mask, value);
                }
            }
        };
        release(warp);
        for warp in block.warps.iter_mut().flatten() {
            release(warp);
        }
    }

    pub(super) fn cluster_arrive(
        &mut self,
        warp: &mut Warp,
        aligned: bool,
        relaxed: bool,
        exec: u32,
    ) -> Step {
        if aligned && !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        if warp.cluster_phase != self.cluster.phase {
            warp.cluster_arrived = 0;
        }
        if let Some(lane) = lanes(exec & warp.cluster_arrived).next() {
            let text = "arrives twice in one phase of the cluster's barrier".to_string();
            return Err(Trouble { lane: Some(lane), text });
        }
        self.race_cluster_arrive(warp, relaxed);
        warp.cluster_phase = self.cluster.phase;
        warp.cluster_arrived |= exec;
        self.cluster.arrive(exec.count_ones());
        Ok(Flow::Next)
    }

    pub(super) fn cluster_wait(&mut self, warp: &mut Warp, aligned: bool, exec: u32) -> Step {
        if aligned && !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        if self.cluster.phase == warp.cluster_phase {
            return Ok(Flow::Wait);
        }
        self.race_cluster_wait(warp);
        Ok(Flow::Next)
    }
}
