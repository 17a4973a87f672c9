//! Which function does what an instruction says.

use super::access::lanes;
use super::block::{Group, State, Warp};
use super::cluster::{Env, Flow, Step};
use crate::program::{Action, Inst, Tensor};

/// Whether an instruction of the whole warp finds lanes missing that are waiting elsewhere: they may
/// still come. Lanes that are missing for other reasons are a fault of the instruction.
fn waits_for_lanes(warp: &Warp, action: &Action, exec: u32) -> bool {
    let whole = match action {
        Action::Barrier { aligned, .. } => *aligned,
        Action::ClusterArrive { aligned, .. } | Action::ClusterWait { aligned } => *aligned,
        Action::BarrierReduce { .. } | Action::TensorMapCopy { .. } => true,
        Action::LdMatrix { .. } | Action::StMatrix { .. } | Action::MovMatrix => true,
        Action::Mma(_) | Action::Wgmma(_) => true,
        Action::Tensor { tensor, .. } => !matches!(**tensor, Tensor::Multiply { .. } | Tensor::Commit { .. }),
        _ => false,
    };
    let missing = warp.live & !exec;
    let parked = |group: &&Group| matches!(group.state, State::Parked | State::Yielded);
    whole
        && missing != 0
        && missing & !warp.groups.iter().filter(parked).fold(0, |lanes, group| lanes | group.mask) == 0
}

impl Env<'_> {
    /// Executes an instruction that is more than registers and control flow, for the lanes of
    /// `exec` out of the group's `mask`.
    pub(super) fn execute(&mut self, warp: &mut Warp, inst: &Inst, exec: u32, mask: u32) -> Step {
        let slot = match inst.action {
            Action::Load(ref access) if access.ordering.is_strong() => return self.look(warp, access, exec),
            Action::Load(ref access) => return self.load(warp, access, exec),
            Action::Store(ref access) => {
                warp.looks = 0;
                return self.store(warp, access, exec);
            }
            Action::Shuffle { members, .. }
            | Action::Vote { members, .. }
            | Action::Match { members, .. }
            | Action::Redux { members, .. }
            | Action::Elect { members, .. }
            | Action::WarpSync { members } => members,
            _ if waits_for_lanes(warp, &inst.action, exec) => return Ok(Flow::Wait),
            _ => return self.execute_together(warp, inst, exec, mask),
        };
        let values = warp.registers.narrow(slot);
        let differing = values.iter().fold(0, |bits, value| bits | (value ^ values[0]));
        if exec == u32::MAX && differing == 0 {
            return self.execute_together(warp, inst, exec, mask);
        }
        let values = *values;
        let with = |among: u32, first: u32| {
            lanes(among)
                .filter(|&lane| values[lane as usize] == values[first as usize])
                .fold(0u32, |set, lane| set | 1 << lane)
        };
        if with(exec, exec.trailing_zeros()) == exec {
            return self.execute_together(warp, inst, exec, mask);
        }
        // Lanes with different member masks are collectives of their own.
        let mut sets = Vec::new();
        let mut rest = exec;
        while rest != 0 {
            let set = with(rest, rest.trailing_zeros());
            if self.members(warp, slot, set, mask)?.is_none() {
                return Ok(Flow::Wait);
            }
            sets.push(set);
            rest &= !set;
        }
        for set in sets {
            self.execute_together(warp, inst, set, mask)?;
        }
        Ok(Flow::Next)
    }

    fn execute_together(&mut self, warp: &mut Warp, inst: &Inst, exec: u32, mask: u32) -> Step {
        let o = &inst.operands;
        match &inst.action {
            Action::Atomic(atomic) => self.atomic(warp, atomic, exec),
            Action::Multimem(multimem) => self.multimem(warp, multimem, exec),
            Action::Shuffle { mode, members } => self.shuffle(warp, o, *mode, *members, exec, mask),
            Action::Vote { mode, members, destination, source, invert } => {
                self.vote(warp, o, *mode, *members, *destination, (*source, *invert), exec, mask)
            }
            Action::Match { all, wide, members, predicate } => {
                self.match_lanes(warp, o, (*all, *wide), *members, *predicate, exec, mask)
            }
            Action::Redux { op, members } => self.redux(warp, o, *op, *members, exec, mask),
            Action::Elect { members, predicate } => self.elect(warp, o, *members, *predicate, exec, mask),
            Action::ActiveMask => {
                lanes(exec).for_each(|lane| warp.registers.narrow_mut(o.d)[lane as usize] = exec);
                Ok(Flow::Next)
            }
            Action::WarpSync { members } => self.warp_sync(warp, *members, exec, mask),
            Action::Barrier { wait, counted, aligned } => {
                self.barrier(warp, o, (*wait, *counted, *aligned), exec)
            }
            Action::BarrierReduce { op, counted, source, invert, destination } => {
                self.barrier_reduce(warp, o, (*op, *counted), (*source, *invert), *destination, exec)
            }
            Action::ClusterArrive { aligned, relaxed } => self.cluster_arrive(warp, *aligned, *relaxed, exec),
            Action::ClusterWait { aligned } => self.cluster_wait(warp, *aligned, exec),
            Action::CopyAsync(copy) => self.copy_async(warp, copy, exec),
            Action::CopyCommit => {
                warp.pending.copies.commit(exec);
                self.race_copy_commit(warp, exec);
                Ok(Flow::Next)
            }
            Action::CopyWait(groups) => self.copy_wait(warp, Some(*groups), exec),
            Action::CopyWaitAll => self.copy_wait(warp, None, exec),
            Action::CopyArrive { address, noinc } => self.copy_arrive(warp, address, *noinc, exec),
            Action::Mbarrier { op, address, predicate, count, sink } => {
                self.mbarrier(warp, o, *op, address, (*predicate, *count, *sink), exec)
            }
            Action::Bulk(bulk) => self.bulk(warp, bulk, exec),
            Action::BulkCommit => {
                warp.pending.stores.commit(exec);
                self.race_bulk_commit(warp, exec);
                Ok(Flow::Next)
            }
            Action::BulkWait { groups, read } => self.bulk_wait(warp, *groups, *read, exec),
            Action::TensorMapReplace { address, field, ordinal, wide } => {
                self.replace_field(warp, o, address, (*field, *ordinal, *wide), exec)
            }
            Action::TensorMapCopy { destination, source, bytes } => {
                self.copy_map(warp, destination, source, *bytes, exec)
            }
            Action::MapAddress { wide } => self.map_address(warp, o, *wide, exec),
            Action::RankOfAddress { wide } => self.rank_of_address(warp, o, *wide, exec),
            Action::StoreAsync { access, mbarrier } => self.store_async(warp, access, mbarrier, exec),
            Action::LdMatrix { spec, address, registers } => {
                self.load_matrix(warp, spec, address, registers, exec)
            }
            Action::StMatrix { spec, address, registers } => {
                self.store_matrix(warp, spec, address, registers, exec)
            }
            Action::MovMatrix => self.move_matrix(warp, o, exec),
            Action::Mma(mma) => self.mma(warp, mma, exec),
            Action::ProductCommit => {
                self.race_product_commit(warp);
                Ok(Flow::Next)
            }
            Action::ProductWait(groups) => {
                self.race_product_wait(warp, *groups);
                Ok(Flow::Next)
            }
            Action::Wgmma(wgmma) => self.wgmma(warp, wgmma, exec),
            Action::Tensor { tensor, pair } => self.tensor(warp, o, tensor, *pair, exec),
            Action::Clock { wide } => {
                for lane in lanes(exec) {
                    if *wide {
                        warp.registers.wide_mut(o.d)[lane as usize] = warp.executed;
                    } else {
                        warp.registers.narrow_mut(o.d)[lane as usize] = warp.executed as u32;
                    }
                }
                Ok(Flow::Next)
            }
            Action::Trap => Err("`trap` was reached".into()),
            Action::Fence(_) => Ok(Flow::Next),
            Action::Yield => Ok(Flow::Yield),
            Action::Load(_) | Action::Store(_) => Err("an access is no instruction of the whole warp".into()),
            Action::Alu(_) | Action::Branch(_) | Action::BranchTable(_) | Action::Exit | Action::Nop => {
                Err("an instruction of the warp's own loop".into())
            }
        }
    }
}
