//! Asynchronous copies and mbarriers.

use super::access::{OFFSET, lanes, map_shared, rank_of};
use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::{Trouble, lane as blame};
use super::pending::{Blocks, Transfer};
use crate::execute::Operands;
use crate::lower::{SHARED_WINDOW, Type};
use crate::program::{Access, Address, Bulk, BulkKind, CopyAsync, MbarrierOp};
use crate::text::Space;
use crate::transfer::mbarrier::{Mbarrier, Token};
use crate::transfer::reduce::reduce;
use crate::transfer::tensor_map::{Element, Field, TENSOR_MAP_BYTES, TensorMap};

impl Env<'_> {
    /// Does a transfer.
    pub(crate) fn perform(&mut self, transfer: &Transfer) -> Step<()> {
        match transfer {
            Transfer::Copy { shared, global, bytes, read } => {
                let mut buffer = [0; 16];
                if *read > 0 {
                    let read = *read as usize;
                    self.read_global(*global, &mut buffer[..read])?;
                }
                let (region, offset) = self.shared(*shared, *bytes as usize)?;
                region.set(offset, &buffer[..*bytes as usize]);
            }
            Transfer::Load { shared, global, bytes, mbarrier, blocks } => {
                let mut buffer = vec![0; *bytes as usize];
                self.read_global(*global, &mut buffer)?;
                for (shared, mbarrier) in self.destinations(*shared, *mbarrier, *blocks) {
                    let (region, offset) = self.shared(shared, buffer.len())?;
                    region.set(offset, &buffer);
                    self.complete_tx(mbarrier, *bytes)?;
                }
            }
            Transfer::Between { destination, source, bytes, mbarrier } => {
                let mut buffer = vec![0; *bytes as usize];
                self.read_shared(*source, &mut buffer)?;
                let (region, offset) = self.shared(*destination, buffer.len())?;
                region.set(offset, &buffer);
                self.complete_tx(*mbarrier, *bytes)?;
            }
            Transfer::Store { global, shared, bytes, reduction } => {
                let mut buffer = vec![0; *bytes as usize];
                self.read_shared(*shared, &mut buffer)?;
                if let Some((kind, element)) = reduction {
                    let mut sums = vec![0; buffer.len()];
                    self.read_global(*global, &mut sums)?;
                    reduce(*kind, *element, &mut sums, &buffer).map_err(|error| error.to_string())?;
                    buffer = sums;
                }
                let (region, offset) = self.memory.find(*global, buffer.len())?;
                region.set(offset, &buffer);
            }
            Transfer::TensorLoad { map, mode, coordinates, shared, mbarrier, blocks } => {
                let fill = map.fill_pattern();
                let mut chunks = Vec::new();
                map.for_each_chunk(*mode, coordinates, *shared & OFFSET, |chunk| chunks.push(chunk))
                    .map_err(|error| error.to_string())?;
                let mut moved = Vec::with_capacity(chunks.len());
                for chunk in chunks {
                    let mut bytes = vec![0; chunk.bytes as usize];
                    match chunk.global {
                        Some(global) => self.read_global(global, &mut bytes)?,
                        None => {
                            bytes.iter_mut().zip(fill.iter().cycle()).for_each(|(byte, fill)| *byte = *fill)
                        }
                    }
                    moved.push((chunk.shared, bytes));
                }
                let count = map.box_bytes(*mode);
                for (shared, mbarrier) in self.destinations(*shared, *mbarrier, *blocks) {
                    let rank = shared & !OFFSET;
                    for (at, bytes) in &moved {
                        let (region, offset) = self.shared(at | rank, bytes.len())?;
                        region.set(offset, bytes);
                    }
                    self.complete_tx(mbarrier, count)?;
                }
            }
            Transfer::TensorStore { map, mode, coordinates, shared, reduction } => {
                let mut chunks = Vec::new();
                map.for_each_chunk(*mode, coordinates, *shared & OFFSET, |chunk| chunks.push(chunk))
                    .map_err(|error| error.to_string())?;
                for chunk in chunks {
                    let Some(global) = chunk.global else { continue };
                    let mut bytes = vec![0; chunk.bytes as usize];
                    self.read_shared(chunk.shared | (*shared & !OFFSET), &mut bytes)?;
                    if let Some(kind) = reduction {
                        let mut sums = vec![0; bytes.len()];
                        self.read_global(global, &mut sums)?;
                        reduce(*kind, map.element, &mut sums, &bytes).map_err(|error| error.to_string())?;
                        bytes = sums;
                    }
                    let (region, offset) = self.memory.find(global, bytes.len())?;
                    region.set(offset, &bytes);
                }
            }
        }
        Ok(())
    }

    fn read_global(&mut self, address: u64, into: &mut [u8]) -> Step<()> {
        let check = self.options.uninitialized;
        let (region, offset) = self.memory.find(address, into.len())?;
        let (bytes, written) = region.get(offset, into.len());
        into.copy_from_slice(bytes);
        if check && !written {
            return Err(
                format!("a copy of {} bytes at {address:#x} reads bytes never written", into.len()).into()
            );
        }
        Ok(())
    }

    fn read_shared(&mut self, address: u32, into: &mut [u8]) -> Step<()> {
        let check = self.options.uninitialized;
        let (region, offset) = self.shared(address, into.len())?;
        let (bytes, written) = region.get(offset, into.len());
        into.copy_from_slice(bytes);
        if check && !written {
            let text =
                format!("{} bytes of shared memory at {address:#x} hold bytes never written", into.len());
            return Err(text.into());
        }
        Ok(())
    }

    /// Reads shared memory of a block as an operand of a matrix instruction of this warp. Matrix
    /// descriptors have no ranks.
    pub(super) fn read_operand(
        &mut self,
        warp: &mut Warp,
        rank: usize,
        address: u32,
        into: &mut [u8],
    ) -> Step<()> {
        let address = map_shared(address, rank as u32);
        self.race_operand(warp, address, into.len() as u32)?;
        self.read_shared(address, into)
    }

    /// Shared addresses of the data and of the barrier in each destination block.
    pub(super) fn destinations(&self, shared: u32, mbarrier: u32, blocks: Blocks) -> Vec<(u32, u32)> {
        match blocks {
            Blocks::One => vec![(shared, mbarrier)],
            Blocks::Mask { mask, pairs } => (0..16)
                .filter(|rank| mask >> rank & 1 == 1)
                .map(|rank| {
                    // Of a pair, the block with the parity of the barrier that is named.
                    let of_barrier = if pairs { rank & !1 | rank_of(mbarrier) as u32 & 1 } else { rank };
                    (map_shared(shared, rank), map_shared(mbarrier, of_barrier))
                })
                .collect(),
        }
    }

    /// Changes an mbarrier in shared memory.
    fn with_mbarrier<T>(
        &mut self,
        address: u32,
        change: impl FnOnce(&mut Mbarrier) -> Result<T, crate::transfer::mbarrier::MbarrierError>,
    ) -> Result<T, String> {
        let (region, offset) = self.shared(address, 8)?;
        let word = u64::from_le_bytes(region.get(offset, 8).0.try_into().expect("eight bytes"));
        let mut mbarrier =
            Mbarrier::from_word(word).map_err(|error| format!("mbarrier at {address:#x}: {error}"))?;
        let parity = mbarrier.parity();
        let result = change(&mut mbarrier).map_err(|error| format!("mbarrier at {address:#x}: {error}"))?;
        region.set(offset, &mbarrier.to_word().to_le_bytes());
        if mbarrier.parity() != parity {
            self.race_phase(address);
        }
        Ok(result)
    }

    fn complete_tx(&mut self, address: u32, bytes: u32) -> Step<()> {
        Ok(self.with_mbarrier(address, |mbarrier| mbarrier.complete_tx(bytes))?)
    }

    /// One arrival on an mbarrier.
    pub(super) fn arrive_once(&mut self, address: u32) -> Result<(), String> {
        self.with_mbarrier(address, |mbarrier| mbarrier.arrive(1).map(|_| ()))
    }

    /// An address of shared memory as 32 bits, from either form.
    pub(super) fn shared_address(warp: &Warp, address: &Address, lane: u32) -> Step<u32> {
        let value = address.of(&warp.registers, lane);
        match value {
            0..=0xffff_ffff => Ok(value as u32),
            _ if value & !0xffff_ffff == SHARED_WINDOW => Ok(value as u32),
            _ => {
                let text = format!("address {value:#x} is not in shared memory");
                Err(Trouble { lane: Some(lane), text })
            }
        }
    }

    pub(super) fn copy_async(&mut self, warp: &mut Warp, copy: &CopyAsync, exec: u32) -> Step {
        let at_issue = self.happens_at_issue();
        for lane in lanes(exec) {
            let shared = Self::shared_address(warp, &copy.shared, lane)?;
            let global = copy.global.of(&warp.registers, lane);
            let mut read = copy.bytes;
            if let Some(slot) = copy.source_bytes {
                read = warp.registers.narrow(slot)[lane as usize];
            }
            if let Some((predicate, invert)) = copy.ignore
                && (warp.registers.predicates[predicate as usize] ^ invert) >> lane & 1 == 1
            {
                read = 0;
            }
            let trouble = |text: String| Trouble { lane: Some(lane), text };
            if read > copy.bytes {
                return Err(trouble(format!("{read} bytes are read of {}", copy.bytes)));
            }
            if !shared.is_multiple_of(copy.bytes)
                || (read > 0 && !global.is_multiple_of(u64::from(copy.bytes)))
            {
                return Err(trouble(format!(
                    "{} bytes from {global:#x} to {shared:#x} are misaligned",
                    copy.bytes
                )));
            }
            let transfer = Transfer::Copy { shared, global, bytes: copy.bytes, read };
            if at_issue {
                self.perform(&transfer).map_err(|t| trouble(t.text))?;
            } else {
                warp.pending.copies.push(lane, transfer);
            }
        }
        Ok(Flow::Next)
    }

    /// Waits for `cp.async` groups of these lanes.
    pub(super) fn copy_wait(&mut self, warp: &mut Warp, groups: Option<u32>, exec: u32) -> Step {
        for transfer in warp.pending.copies.due(exec, groups) {
            self.perform(&transfer)?;
        }
        self.race_copy_wait(warp, groups, exec)?;
        Ok(Flow::Next)
    }

    pub(super) fn bulk_wait(&mut self, warp: &mut Warp, groups: u32, read: bool, exec: u32) -> Step {
        for transfer in warp.pending.stores.due(exec, Some(groups)) {
            self.perform(&transfer)?;
        }
        self.race_bulk_wait(warp, groups, read, exec)?;
        Ok(Flow::Next)
    }

    /// `cp.async.mbarrier.arrive`: the thread's earlier copies are done, then it arrives.
    pub(super) fn copy_arrive(&mut self, warp: &mut Warp, address: &Address, noinc: bool, exec: u32) -> Step {
        for transfer in warp.pending.copies.due(exec, None) {
            self.perform(&transfer)?;
        }
        for lane in lanes(exec) {
            let address = Self::shared_address(warp, address, lane)?;
            self.race_copy_arrive(warp, lane, address)?;
            self.with_mbarrier(address, |mbarrier| {
                if !noinc {
                    mbarrier.raise_pending(1)?;
                }
                mbarrier.arrive(1).map(|_| ())
            })
            .map_err(blame(lane))?;
        }
        Ok(Flow::Next)
    }

    pub(super) fn mbarrier(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        op: MbarrierOp,
        address: &Address,
        (predicate, count, sink): (u32, Option<u32>, bool),
        exec: u32,
    ) -> Step {
        let mut done = 0;
        for lane in lanes(exec) {
            let count = count.map(|slot| warp.registers.narrow(slot)[lane as usize]);
            if op == MbarrierOp::PendingCount {
                let token = Token::from_word(warp.registers.wide(o.b)[lane as usize])
                    .map_err(|error| Trouble { lane: Some(lane), text: error.to_string() })?;
                warp.registers.narrow_mut(o.d)[lane as usize] = token.pending_count();
                continue;
            }
            let address = Self::shared_address(warp, address, lane)?;
            if !address.is_multiple_of(8) {
                return Err(blame(lane)(format!("an mbarrier at {address:#x} is not aligned to 8")));
            }
            match op {
                MbarrierOp::Init | MbarrierOp::Invalidate => self.race_mbarrier_write(warp, lane, address)?,
                MbarrierOp::Arrive { .. } => self.race_arrive(warp, lane, address)?,
                _ => self.race_mbarrier(warp, lane, address)?,
            }
            match op {
                MbarrierOp::Init => {
                    let mbarrier = Mbarrier::init(count.unwrap_or(0))
                        .map_err(|error| Trouble { lane: Some(lane), text: error.to_string() })?;
                    let (region, offset) = self.shared(address, 8).map_err(blame(lane))?;
                    region.set(offset, &mbarrier.to_word().to_le_bytes());
                }
                MbarrierOp::Invalidate => {
                    let word =
                        self.with_mbarrier(address, |mbarrier| Ok(mbarrier.inval())).map_err(blame(lane))?;
                    let (region, offset) = self.shared(address, 8).map_err(blame(lane))?;
                    region.set(offset, &word.to_le_bytes());
                }
                MbarrierOp::ExpectTx => {
                    self.with_mbarrier(address, |mbarrier| mbarrier.expect_tx(count.unwrap_or(0)))
                        .map_err(blame(lane))?;
                }
                MbarrierOp::CompleteTx => {
                    self.with_mbarrier(address, |mbarrier| mbarrier.complete_tx(count.unwrap_or(0)))
                        .map_err(blame(lane))?;
                }
                MbarrierOp::Arrive { drop, expect, no_complete } => {
                    let value = count.unwrap_or(if expect { 0 } else { 1 });
                    let token = self
                        .with_mbarrier(address, |mbarrier| match (expect, drop, no_complete) {
                            (true, false, _) => mbarrier.arrive_expect_tx(value),
                            (true, true, _) => mbarrier.arrive_drop_expect_tx(value),
                            (false, true, _) => mbarrier.arrive_drop(value),
                            (false, false, true) => mbarrier.arrive_no_complete(value),
                            (false, false, false) => mbarrier.arrive(value),
                        })
                        .map_err(blame(lane))?;
                    if !sink {
                        warp.registers.wide_mut(o.d)[lane as usize] = token.to_word();
                    }
                }
                MbarrierOp::Wait { parity, .. } => {
                    let wanted = match parity {
                        true => u64::from(warp.registers.narrow(o.b)[lane as usize]),
                        false => warp.registers.wide(o.b)[lane as usize],
                    };
                    let finished = self
                        .with_mbarrier(address, |mbarrier| {
                            if parity {
                                mbarrier.test_parity(wanted as u32 & 1)
                            } else {
                                mbarrier.test_wait(Token::from_word(wanted)?)
                            }
                        })
                        .map_err(blame(lane))?;
                    done |= u32::from(finished) << lane;
                    if finished {
                        self.race_waited(warp, address);
                    }
                }
                MbarrierOp::PendingCount => {}
            }
        }
        if let MbarrierOp::Wait { may_suspend, .. } = op {
            // A wait that may suspend does: until the phase ends, or at random it gives up.
            if may_suspend && done == 0 {
                if !(self.options.spurious && self.random.below(4) == 0) {
                    return Ok(Flow::Wait);
                }
                // The next attempt may end in another way.
                self.memory.changes += 1;
            }
            let p = &mut warp.registers.predicates[predicate as usize];
            *p = (*p & !exec) | (done & exec);
            return Ok(if done == exec { Flow::Next } else { Flow::Yield });
        }
        Ok(Flow::Next)
    }

    pub(super) fn bulk(&mut self, warp: &mut Warp, bulk: &Bulk, exec: u32) -> Step {
        for lane in lanes(exec) {
            let transfer = self.resolve(warp, bulk, lane)?;
            let Some(transfer) = transfer else { continue };
            self.race_bulk(warp, lane, &transfer)?;
            if let Some(profile) = &mut self.observers.profile {
                profile.bulk(self.pc, transfer.bytes());
            }
            let at_issue = self.happens_at_issue();
            if at_issue {
                self.perform(&transfer).map_err(|t| Trouble { lane: Some(lane), ..t })?;
            } else if matches!(transfer, Transfer::Store { .. } | Transfer::TensorStore { .. }) {
                warp.pending.stores.push(lane, transfer);
            } else {
                self.cluster.transfers.push(transfer);
            }
        }
        Ok(Flow::Next)
    }

    /// A bulk copy with its operands read in a lane.
    fn resolve(&mut self, warp: &mut Warp, bulk: &Bulk, lane: u32) -> Step<Option<Transfer>> {
        if let BulkKind::Prefetch(global, bytes) = &bulk.kind {
            let (global, bytes) =
                (global.of(&warp.registers, lane), warp.registers.narrow(*bytes)[lane as usize]);
            if !(bytes.is_multiple_of(16) && global.is_multiple_of(16)) {
                let text = format!("a prefetch of {bytes} bytes at {global:#x} is misaligned");
                return Err(Trouble { lane: Some(lane), text });
            }
            let found = self.memory.find(global, bytes as usize).map(drop);
            found.map_err(|text| Trouble { lane: Some(lane), text })?;
            return Ok(None);
        }
        let shared = Self::shared_address(warp, &bulk.shared, lane)?;
        let mbarrier = match &bulk.mbarrier {
            Some(address) => Self::shared_address(warp, address, lane)?,
            None => 0,
        };
        let blocks = match bulk.multicast {
            Some(slot) => {
                Blocks::Mask { mask: warp.registers.narrow(slot)[lane as usize] as u16, pairs: bulk.pair }
            }
            None => Blocks::One,
        };
        let apart = rank_of(shared) ^ rank_of(mbarrier);
        let is_load = matches!(bulk.kind, BulkKind::Load(..) | BulkKind::TensorLoad(..));
        if is_load && apart > usize::from(bulk.pair) {
            let text = format!(
                "a bulk copy to block {} of the cluster reports to a barrier of block {}; one with `.cta_group::2` may report to the other block of a pair",
                rank_of(shared),
                rank_of(mbarrier)
            );
            return Err(Trouble { lane: Some(lane), text });
        }
        let size = |warp: &Warp, slot: u32| warp.registers.narrow(slot)[lane as usize];
        let check = |bytes: u32, address: u64| {
            if bytes > OFFSET {
                let text = format!("a bulk copy of {bytes} bytes is larger than shared memory");
                return Err(Trouble { lane: Some(lane), text });
            }
            if !(bytes.is_multiple_of(16) && address.is_multiple_of(16) && shared.is_multiple_of(16)) {
                let text = format!(
                    "a bulk copy of {bytes} bytes between {address:#x} and {shared:#x} is misaligned"
                );
                return Err(Trouble { lane: Some(lane), text });
            }
            Ok(())
        };
        Ok(Some(match &bulk.kind {
            BulkKind::Load(global, bytes) => {
                let (global, bytes) = (global.of(&warp.registers, lane), size(warp, *bytes));
                check(bytes, global)?;
                Transfer::Load { shared, global, bytes, mbarrier, blocks }
            }
            BulkKind::Store(global, bytes, ty) => {
                let (global, bytes) = (global.of(&warp.registers, lane), size(warp, *bytes));
                check(bytes, global)?;
                let reduction = match bulk.reduction {
                    Some(kind) => Some((kind, ty.and_then(element).ok_or("the reduction has no type")?)),
                    None => None,
                };
                Transfer::Store { global, shared, bytes, reduction }
            }
            BulkKind::Between(source, bytes) => {
                let source = Self::shared_address(warp, source, lane)?;
                let bytes = size(warp, *bytes);
                check(bytes, u64::from(source))?;
                Transfer::Between { destination: shared, source, bytes, mbarrier }
            }
            BulkKind::TensorLoad(map, coordinates, mode) | BulkKind::TensorStore(map, coordinates, mode) => {
                let load = matches!(bulk.kind, BulkKind::TensorLoad(..));
                let map = self.tensor_map(warp, map, lane)?;
                let coordinates: Vec<i32> = coordinates
                    .iter()
                    .map(|&slot| warp.registers.narrow(slot)[lane as usize] as i32)
                    .collect();
                let (mode, map) = (*mode, Box::new(map));
                if !load {
                    map.check_store().map_err(|error| error.to_string())?;
                    Transfer::TensorStore { map, mode, coordinates, shared, reduction: bulk.reduction }
                } else {
                    Transfer::TensorLoad { map, mode, coordinates, shared, mbarrier, blocks }
                }
            }
            BulkKind::Prefetch(..) => return Ok(None),
        }))
    }

    fn tensor_map(&mut self, warp: &mut Warp, address: &Address, lane: u32) -> Step<TensorMap> {
        let at = address.of(&warp.registers, lane);
        let mut bytes = [0; TENSOR_MAP_BYTES];
        self.read(warp, lane, Space::Generic, at, &mut bytes)?;
        if !at.is_multiple_of(64) {
            return Err(Trouble {
                lane: Some(lane),
                text: format!("a tensor map at {at:#x} is not aligned to 64"),
            });
        }
        TensorMap::decode(&bytes)
            .map_err(|error| Trouble { lane: Some(lane), text: format!("tensor map at {at:#x}: {error}") })
    }

    pub(super) fn replace_field(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        address: &Address,
        (field, ordinal, wide): (Field, u32, bool),
        exec: u32,
    ) -> Step {
        for lane in lanes(exec) {
            let value = match wide {
                true => warp.registers.wide(o.b)[lane as usize],
                false => u64::from(warp.registers.narrow(o.a)[lane as usize]),
            };
            let at = address.of(&warp.registers, lane);
            let (region, offset) = self.place(warp, lane, address.space, at, TENSOR_MAP_BYTES)?;
            let mut bytes: [u8; TENSOR_MAP_BYTES] =
                region.get(offset, TENSOR_MAP_BYTES).0.try_into().expect("the bytes of a map");
            TensorMap::replace(&mut bytes, field, ordinal, value)
                .map_err(|error| Trouble { lane: Some(lane), text: error.to_string() })?;
            region.set(offset, &bytes);
        }
        Ok(Flow::Next)
    }

    /// `tensormap.cp_fenceproxy`, by the whole warp: the first lane's addresses.
    pub(super) fn copy_map(
        &mut self,
        warp: &mut Warp,
        destination: &Address,
        source: &Address,
        bytes: u32,
        exec: u32,
    ) -> Step {
        if !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        let lane = exec.trailing_zeros();
        let (to, from) = (destination.of(&warp.registers, lane), source.of(&warp.registers, lane));
        let mut buffer = vec![0; bytes as usize];
        self.read(warp, lane, source.space, from, &mut buffer)?;
        self.write(warp, lane, destination.space, to, &buffer)?;
        Ok(Flow::Next)
    }

    pub(super) fn map_address(&mut self, warp: &mut Warp, o: &Operands, wide: bool, exec: u32) -> Step {
        let size = self.cluster.blocks.len() as u32;
        for lane in lanes(exec) {
            let at = lane as usize;
            let rank = warp.registers.narrow(o.b)[at];
            if rank >= size {
                return Err(Trouble {
                    lane: Some(lane),
                    text: format!("rank {rank} of a cluster of {size}"),
                });
            }
            if wide {
                let address = warp.registers.wide(o.a)[at];
                let window = address & !0xffff_ffff;
                warp.registers.wide_mut(o.d)[at] = window | u64::from(map_shared(address as u32, rank));
            } else {
                let address = warp.registers.narrow(o.a)[at];
                warp.registers.narrow_mut(o.d)[at] = map_shared(address, rank);
            }
        }
        Ok(Flow::Next)
    }

    pub(super) fn rank_of_address(&mut self, warp: &mut Warp, o: &Operands, wide: bool, exec: u32) -> Step {
        for lane in lanes(exec) {
            let at = lane as usize;
            let address =
                if wide { warp.registers.wide(o.a)[at] as u32 } else { warp.registers.narrow(o.a)[at] };
            warp.registers.narrow_mut(o.d)[at] = rank_of(address) as u32;
        }
        Ok(Flow::Next)
    }

    pub(super) fn store_async(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        mbarrier: &Address,
        exec: u32,
    ) -> Step {
        let total = access.ty.bytes() as usize * access.registers.len();
        for lane in lanes(exec) {
            let bytes = Self::values(warp, access, lane);
            let address = Self::shared_address(warp, &access.address, lane)?;
            let mbarrier = Self::shared_address(warp, mbarrier, lane)?;
            if rank_of(address) != rank_of(mbarrier) {
                return Err(Trouble {
                    lane: Some(lane),
                    text: "target and mbarrier are in different blocks".into(),
                });
            }
            self.race_store_async(warp, lane, address, total as u32, mbarrier)?;
            let (region, offset) = self.shared(address, total).map_err(blame(lane))?;
            region.set(offset, &bytes[..total]);
            self.complete_tx(mbarrier, total as u32)?;
        }
        Ok(Flow::Next)
    }
}

/// The element type of a bulk reduction.
fn element(ty: Type) -> Option<Element> {
    Some(match ty {
        Type::U32 | Type::B32 => Element::U32,
        Type::S32 => Element::S32,
        Type::U64 | Type::B64 => Element::U64,
        Type::S64 => Element::S64,
        Type::F16 => Element::F16,
        Type::Bf16 => Element::Bf16,
        Type::F32 => Element::F32,
        Type::F64 => Element::F64,
        _ => return None,
    })
}
