//! Asynchronous copies, mbarriers, tensor maps and addresses of a cluster.

use super::memory::space;
use super::{Lowering, Modifiers, Result, Type, take};
use crate::execute::Operands;
use crate::program::{Access, Action, Bulk, BulkKind, CopyAsync, MbarrierOp, Ordering, SINK, Scope};
use crate::text::{Immediate, Operand, Space};
use crate::transfer::reduce::Reduction;
use crate::transfer::tensor_map::Field;
use crate::transfer::tile;

impl Lowering<'_> {
    pub(super) fn transfer(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "cp" if m.has("async") && m.has("bulk") => self.bulk(m, operands)?,
            "cp" if m.has("reduce") || m.has("async") => {
                if m.has("reduce") {
                    return Err("not a bulk reduction".to_string());
                }
                self.copy_async(m, operands)?;
            }
            "mbarrier" => self.mbarrier(m, operands)?,
            "tensormap" => self.tensormap(m, operands)?,
            "mapa" | "getctarank" => self.cluster_address(m, operands)?,
            "st" if m.has("async") => {
                let [address, values, mbarrier, ..] = operands else {
                    return Err(format!("{} operands", operands.len()));
                };
                let ty = m.ty()?;
                let registers = self.targets(values, ty)?;
                if ![1, 2, 4].contains(&registers.len()) || registers.len() as u32 * ty.bytes() > 32 {
                    return Err(format!("a vector of {} elements of {} bytes", registers.len(), ty.bytes()));
                }
                let address = self.address(address, Space::Shared)?;
                let access = Box::new(Access {
                    address,
                    ty,
                    ordering: Ordering::Weak,
                    scope: Scope::default(),
                    registers,
                });
                let mbarrier = self.address(mbarrier, Space::Shared)?;
                self.emit(Action::StoreAsync { access, mbarrier }, Operands::default());
            }
            "createpolicy" | "isspacep" => {
                if m.mnemonic == "isspacep" {
                    return Ok(false);
                }
                // A policy has no effect on values: any bits will do.
                let [d, ..] = operands else { return Err("no operands".to_string()) };
                let zero = Operand::Immediate(Immediate::Integer(0));
                let (d, a) = (self.destination(d, Type::B64)?, self.wide(&zero, Type::B64)?);
                self.alu::<crate::execute::One<super::data::Move64>>(Operands {
                    d,
                    a,
                    ..Operands::default()
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn copy_async(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        if m.has("commit_group") {
            self.emit(Action::CopyCommit, Operands::default());
            return Ok(());
        }
        if m.has("wait_all") {
            self.emit(Action::CopyWaitAll, Operands::default());
            return Ok(());
        }
        if m.has("wait_group") {
            let groups = literal(operands.first())? as u32;
            self.emit(Action::CopyWait(groups), Operands::default());
            return Ok(());
        }
        if m.has("mbarrier") || m.rest.iter().any(|modifier| modifier.starts_with("mbarrier::")) {
            let [address] = take(operands)?;
            let address = self.address(address, space(m))?;
            self.emit(Action::CopyArrive { address, noinc: m.has("noinc") }, Operands::default());
            return Ok(());
        }
        let (shared, global, bytes, rest) = match operands {
            [shared, global, bytes, rest @ ..] => (shared, global, literal(Some(bytes))? as u32, rest),
            _ => return Err(format!("{} operands", operands.len())),
        };
        if ![4, 8, 16].contains(&bytes) || (m.has("cg") && bytes != 16) {
            return Err(format!("{bytes} bytes cannot be copied"));
        }
        let (mut source_bytes, mut ignore) = (None, None);
        // A source size or an ignore predicate, then a cache policy of 64 bits.
        if let Some(operand) = rest.first() {
            match self.predicate(operand) {
                Ok(predicate) if !matches!(operand, Operand::Immediate(_)) => ignore = Some(predicate),
                _ if self.is_wide(operand) => {}
                _ => source_bytes = Some(self.narrow(operand, Type::U32)?),
            }
        }
        let copy = CopyAsync {
            shared: self.address(shared, Space::Shared)?,
            global: self.address(global, Space::Global)?,
            bytes,
            source_bytes,
            ignore,
        };
        self.emit(Action::CopyAsync(Box::new(copy)), Operands::default());
        Ok(())
    }

    fn mbarrier(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let verb = *m.rest.first().ok_or("no operation")?;
        let space = match space(m) {
            Space::Generic => Space::Generic,
            _ => Space::Shared,
        };
        let expect = m.has("expect_tx");
        let op = match verb {
            "init" => MbarrierOp::Init,
            "inval" => MbarrierOp::Invalidate,
            "arrive" | "arrive_drop" => {
                let (drop, no_complete) = (verb == "arrive_drop", m.has("noComplete"));
                MbarrierOp::Arrive { drop, expect, no_complete }
            }
            "expect_tx" => MbarrierOp::ExpectTx,
            "complete_tx" => MbarrierOp::CompleteTx,
            "test_wait" | "try_wait" => {
                MbarrierOp::Wait { parity: m.has("parity"), may_suspend: verb == "try_wait" }
            }
            "pending_count" => MbarrierOp::PendingCount,
            other => return Err(format!("`.{other}` is not an operation on an mbarrier")),
        };
        let mut o = Operands::default();
        let (mut predicate, mut count, mut sink) = (SINK, None, true);
        let address = match (op, operands) {
            (MbarrierOp::Init | MbarrierOp::ExpectTx | MbarrierOp::CompleteTx, [address, value]) => {
                count = Some(self.narrow(value, Type::U32)?);
                self.address(address, space)?
            }
            (MbarrierOp::Invalidate, [address]) => self.address(address, space)?,
            (MbarrierOp::Arrive { .. }, [state, address, rest @ ..])
                if !matches!(state, Operand::Address(..)) =>
            {
                if *state != Operand::Sink {
                    o.d = self.destination(state, Type::B64)?;
                    sink = false;
                }
                count = rest.first().map(|value| self.narrow(value, Type::U32)).transpose()?;
                self.address(address, space)?
            }
            (MbarrierOp::Arrive { .. }, [address, rest @ ..]) => {
                count = rest.first().map(|value| self.narrow(value, Type::U32)).transpose()?;
                self.address(address, space)?
            }
            (MbarrierOp::Wait { parity, .. }, [p, address, value, ..]) => {
                predicate = self.predicate_destination(p)?;
                o.b = if parity { self.narrow(value, Type::U32)? } else { self.wide(value, Type::B64)? };
                self.address(address, space)?
            }
            (MbarrierOp::PendingCount, [d, state]) => {
                o.d = self.destination(d, Type::U32)?;
                o.b = self.wide(state, Type::B64)?;
                self.address(&Operand::Immediate(Immediate::Integer(0)), Space::Shared)?
            }
            _ => return Err(format!("{} operands", operands.len())),
        };
        self.emit(Action::Mbarrier { op, address, predicate, count, sink }, o);
        Ok(())
    }

    fn bulk(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        if m.has("commit_group") {
            self.emit(Action::BulkCommit, Operands::default());
            return Ok(());
        }
        if m.has("wait_group") {
            let groups = literal(operands.first())? as u32;
            self.emit(Action::BulkWait { groups, read: m.has("read") }, Operands::default());
            return Ok(());
        }
        if m.has("prefetch") && m.has("tensor") {
            self.emit(Action::Nop, Operands::default());
            return Ok(());
        }
        if m.has("im2col") || m.rest.iter().any(|modifier| modifier.starts_with("im2col")) {
            return Err("`.im2col` is not supported".to_string());
        }
        let reduction = match m.has("reduce") {
            true => Some(m.rest.iter().find_map(|name| Reduction::from_name(name)).ok_or("no reduction")?),
            false => None,
        };
        // Destination and source spaces in the order of the text.
        let spaces: Vec<&str> = m
            .rest
            .iter()
            .copied()
            .filter(|modifier| matches!(*modifier, "global" | "shared::cta" | "shared::cluster"))
            .collect();
        let multicast = m.has("multicast::cluster");
        let mode = if m.has("tile::gather4") || m.has("tile::scatter4") {
            tile::Access::Rows4
        } else {
            tile::Access::Tile
        };
        let mut bulk = Bulk {
            kind: BulkKind::Prefetch(zero_address(), 0),
            shared: zero_address(),
            mbarrier: None,
            multicast: None,
            pair: m.has("cta_group::2"),
            reduction,
        };
        match (m.has("tensor"), spaces.first(), operands) {
            (false, _, [global, bytes, ..]) if m.has("prefetch") => {
                let global = self.address(global, Space::Global)?;
                bulk.kind = BulkKind::Prefetch(global, self.narrow(bytes, Type::U32)?);
            }
            (true, Some(&"global"), [Operand::Tensor(map, coordinates), shared, ..]) => {
                let (map, coordinates) = self.tensor(map, coordinates)?;
                bulk.shared = self.address(shared, Space::Shared)?;
                bulk.kind = BulkKind::TensorStore(map, coordinates, mode);
            }
            (true, _, [shared, Operand::Tensor(map, coordinates), mbarrier, rest @ ..]) => {
                let (map, coordinates) = self.tensor(map, coordinates)?;
                bulk.shared = self.address(shared, Space::Shared)?;
                bulk.mbarrier = Some(self.address(mbarrier, Space::Shared)?);
                bulk.kind = BulkKind::TensorLoad(map, coordinates, mode);
                if multicast {
                    let mask = rest.first().ok_or("no multicast mask")?;
                    bulk.multicast = Some(self.narrow(mask, Type::U16)?);
                }
            }
            (false, Some(&"global"), [global, shared, bytes, ..]) => {
                let global = self.address(global, Space::Global)?;
                bulk.shared = self.address(shared, Space::Shared)?;
                let element = m.types().last().copied();
                bulk.kind = BulkKind::Store(global, self.narrow(bytes, Type::U32)?, element);
            }
            (false, _, [shared, source, bytes, mbarrier, rest @ ..]) => {
                bulk.shared = self.address(shared, Space::Shared)?;
                bulk.mbarrier = Some(self.address(mbarrier, Space::Shared)?);
                let bytes = self.narrow(bytes, Type::U32)?;
                bulk.kind = if spaces.get(1) == Some(&"global") {
                    BulkKind::Load(self.address(source, Space::Global)?, bytes)
                } else {
                    BulkKind::Between(self.address(source, Space::Shared)?, bytes)
                };
                if multicast {
                    let mask = rest.first().ok_or("no multicast mask")?;
                    bulk.multicast = Some(self.narrow(mask, Type::U16)?);
                }
            }
            _ => return Err("the operands fit no bulk copy".to_string()),
        }
        self.emit(Action::Bulk(Box::new(bulk)), Operands::default());
        Ok(())
    }

    fn tensor(
        &mut self,
        map: &Operand,
        coordinates: &[Operand],
    ) -> Result<(crate::program::Address, Vec<u32>)> {
        let map = self.address(map, Space::Generic)?;
        let coordinates =
            coordinates.iter().map(|c| self.narrow(c, Type::S32)).collect::<Result<Vec<_>>>()?;
        Ok((map, coordinates))
    }

    fn tensormap(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        if m.has("cp_fenceproxy") {
            let [destination, source, bytes] = take(operands)?;
            let destination = self.address(destination, Space::Global)?;
            let source = self.address(source, Space::Shared)?;
            let bytes = literal(Some(bytes))? as u32;
            if bytes != 128 {
                return Err(format!("{bytes} bytes; a tensor map has 128"));
            }
            self.emit(Action::TensorMapCopy { destination, source, bytes }, Operands::default());
            return Ok(());
        }
        let field = m.rest.iter().find_map(|name| Field::from_name(name)).ok_or("the field is not known")?;
        let (address, ordinal, value) = match operands {
            [address, value] => (address, 0, value),
            [address, ordinal, value] => (address, literal(Some(ordinal))? as u32, value),
            _ => return Err(format!("{} operands", operands.len())),
        };
        let wide = m.ty()? == Type::B64;
        let address = self.address(address, space(m))?;
        let mut o = Operands::default();
        if wide {
            o.b = self.wide(value, Type::B64)?;
        } else {
            o.a = self.narrow(value, Type::B32)?;
        }
        self.emit(Action::TensorMapReplace { address, field, ordinal, wide }, o);
        Ok(())
    }

    fn cluster_address(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let wide = m.ty()? == Type::U64;
        if m.mnemonic == "getctarank" {
            let [d, a] = take(operands)?;
            let a = if wide { self.wide(a, Type::U64)? } else { self.narrow(a, Type::U32)? };
            let d = self.destination(d, Type::U32)?;
            self.emit(Action::RankOfAddress { wide }, Operands { d, a, ..Operands::default() });
            return Ok(());
        }
        let [d, a, b] = take(operands)?;
        let ty = if wide { Type::U64 } else { Type::U32 };
        let o = Operands {
            a: self.source(a, ty)?,
            b: self.narrow(b, Type::U32)?,
            d: self.destination(d, ty)?,
            // Generic addresses carry the window of shared memory.
            imm: u64::from(space(m) == Space::Generic),
            ..Operands::default()
        };
        self.emit(Action::MapAddress { wide }, o);
        Ok(())
    }
}

fn zero_address() -> crate::program::Address {
    crate::program::Address { slot: 0, wide: false, offset: 0, space: Space::Shared }
}

/// A literal operand.
pub(super) fn literal(operand: Option<&Operand>) -> Result<u64> {
    match operand {
        Some(Operand::Immediate(Immediate::Integer(value))) => Ok(*value),
        Some(other) => Err(format!("operand {other:?} must be a literal")),
        None => Err("a literal is missing".to_string()),
    }
}
