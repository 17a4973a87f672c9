//! Operands to slots.

use super::{Lowering, Result, Type};
use crate::execute::{One, Op1, Operands};
use crate::program::{Address, Constant, LaneMask, SHARED_START, SINK, Special, Target};
use crate::text::{Immediate, Operand, RegisterKind, Space, SymbolRef};

/// Generic addresses: each space has a window of 4 GiB, global memory lies above them.
pub(crate) const SHARED_WINDOW: u64 = 1 << 32;
/// Window of local memory.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 32;
/// Window of kernel parameters.
pub(crate) const PARAM_WINDOW: u64 = 3 << 32;
/// First address of global memory.
pub(crate) const GLOBAL_START: u64 = 16 << 32;

struct Truncate;
impl Op1 for Truncate {
    type A = u64;
    type D = u32;
    #[inline(always)]
    fn apply(_: u64, a: u64) -> u32 {
        a as u32
    }
}

impl Lowering<'_> {
    pub(super) fn constant(&mut self, constant: Constant) -> u32 {
        if let Some(&slot) = self.constants.get(&constant) {
            return slot;
        }
        let slot = self.temporary(if constant.is_wide() { 2 } else { 1 });
        self.constants.insert(constant, slot);
        slot
    }

    /// Slot of a source of at most 32 bits.
    pub(super) fn narrow(&mut self, operand: &Operand, ty: Type) -> Result<u32> {
        match operand {
            Operand::Register(register) => match self.function.registers[*register].kind {
                RegisterKind::Narrow => Ok(self.places[*register]),
                RegisterKind::Wide => {
                    let (a, d) = (self.places[*register], self.temporary(1));
                    self.alu::<One<Truncate>>(Operands { d, a, ..Operands::default() });
                    Ok(d)
                }
                _ => {
                    Err(format!("register `{}` has the wrong width", self.function.registers[*register].name))
                }
            },
            Operand::Immediate(value) => Ok(self.constant(Constant::Narrow(narrow_bits(*value, ty)))),
            Operand::Special(name) => {
                let special = special(name)?;
                Ok(self.constant(Constant::Special(special, false)))
            }
            Operand::Symbol(symbol) => self.symbol(symbol, false),
            Operand::Sink => Ok(self.sink),
            other => Err(format!("operand {other:?} is not a value")),
        }
    }

    /// Slot of a source of 64 bits.
    pub(super) fn wide(&mut self, operand: &Operand, ty: Type) -> Result<u32> {
        match operand {
            Operand::Register(register) => match self.function.registers[*register].kind {
                RegisterKind::Wide => Ok(self.places[*register]),
                _ => {
                    Err(format!("register `{}` has the wrong width", self.function.registers[*register].name))
                }
            },
            Operand::Immediate(value) => Ok(self.constant(Constant::Wide(wide_bits(*value, ty)))),
            Operand::Special(name) => {
                let special = special(name)?;
                Ok(self.constant(Constant::Special(special, true)))
            }
            Operand::Symbol(symbol) => self.symbol(symbol, true),
            Operand::Sink => Ok(self.sink),
            other => Err(format!("operand {other:?} is not a value")),
        }
    }

    /// Slot of a source of the type's width.
    pub(super) fn source(&mut self, operand: &Operand, ty: Type) -> Result<u32> {
        match ty.bits() {
            64 => self.wide(operand, ty),
            128 => match operand {
                Operand::Register(register)
                    if self.function.registers[*register].kind == RegisterKind::Quad =>
                {
                    Ok(self.places[*register])
                }
                _ => Err("a 128-bit operand must be a register of 128 bits".to_string()),
            },
            _ => self.narrow(operand, ty),
        }
    }

    /// Slot of a destination of the type's width.
    pub(super) fn destination(&mut self, operand: &Operand, ty: Type) -> Result<u32> {
        match operand {
            Operand::Sink => Ok(self.sink),
            Operand::Register(register) => {
                let kind = self.function.registers[*register].kind;
                let fits = match ty.bits() {
                    64 => kind == RegisterKind::Wide,
                    128 => kind == RegisterKind::Quad,
                    _ => kind == RegisterKind::Narrow,
                };
                let name = &self.function.registers[*register].name;
                if fits {
                    Ok(self.places[*register])
                } else {
                    Err(format!("register `{name}` has the wrong width"))
                }
            }
            other => Err(format!("operand {other:?} is not a register")),
        }
    }

    /// A register of a load or store, of any width.
    pub(super) fn target(&mut self, operand: &Operand, ty: Type) -> Result<Target> {
        match operand {
            Operand::Sink => Ok(Target { slot: self.sink, bytes: 0 }),
            Operand::Register(register) => {
                let bytes = match self.function.registers[*register].kind {
                    RegisterKind::Narrow => 4,
                    RegisterKind::Wide => 8,
                    RegisterKind::Quad => 16,
                    RegisterKind::Predicate => {
                        return Err("a predicate cannot be loaded or stored".to_string());
                    }
                };
                Ok(Target { slot: self.places[*register], bytes })
            }
            _ if ty.is_wide() => Ok(Target { slot: self.wide(operand, ty)?, bytes: 8 }),
            _ => Ok(Target { slot: self.narrow(operand, ty)?, bytes: 4 }),
        }
    }

    /// A register of a load, which may be no constant.
    pub(super) fn loaded(&mut self, operand: &Operand, ty: Type) -> Result<Vec<Target>> {
        let parts = Self::parts(operand);
        match parts.iter().find(|part| !matches!(part, Operand::Register(_) | Operand::Sink)) {
            Some(other) => Err(format!("operand {other:?} is not a register")),
            None => self.targets(operand, ty),
        }
    }

    /// The operands of a vector, or the operand itself.
    pub(super) fn parts(operand: &Operand) -> &[Operand] {
        match operand {
            Operand::Vector(parts) => parts,
            other => std::slice::from_ref(other),
        }
    }

    /// Targets of a vector operand.
    pub(super) fn targets(&mut self, operand: &Operand, ty: Type) -> Result<Vec<Target>> {
        Self::parts(operand).iter().map(|part| self.target(part, ty)).collect()
    }

    /// Index and inversion mask of a predicate source.
    pub(super) fn predicate(&mut self, operand: &Operand) -> Result<(u32, u32)> {
        let index = |register: &usize| match self.function.registers[*register].kind {
            RegisterKind::Predicate => Ok(self.places[*register]),
            _ => Err(format!("register `{}` is not a predicate", self.function.registers[*register].name)),
        };
        match operand {
            Operand::Register(register) => Ok((index(register)?, 0)),
            Operand::Not(register) => Ok((index(register)?, u32::MAX)),
            Operand::Immediate(Immediate::Integer(value)) => {
                Ok((crate::program::TRUE, if *value == 0 { u32::MAX } else { 0 }))
            }
            other => Err(format!("operand {other:?} is not a predicate")),
        }
    }

    /// Index of a predicate destination.
    pub(super) fn predicate_destination(&mut self, operand: &Operand) -> Result<u32> {
        match operand {
            Operand::Sink => Ok(SINK),
            other => match self.predicate(other)? {
                (index, 0) if index > SINK => Ok(index),
                _ => Err("not a predicate register".to_string()),
            },
        }
    }

    /// Whether an operand is a register of 64 bits.
    pub(super) fn is_wide(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Register(register)
            if self.function.registers[*register].kind == RegisterKind::Wide)
    }

    /// An address operand.
    pub(super) fn address(&mut self, operand: &Operand, space: Space) -> Result<Address> {
        let (base, offset) = match operand {
            Operand::Address(base, offset) => (&**base, *offset),
            other => (other, 0),
        };
        let wide = match base {
            Operand::Register(_) => self.is_wide(base),
            _ => !matches!(space, Space::Shared | Space::Local | Space::Param),
        };
        let slot = if wide { self.wide(base, Type::U64)? } else { self.narrow(base, Type::U32)? };
        Ok(Address { slot, wide, offset, space })
    }

    fn symbol(&mut self, symbol: &SymbolRef, wide: bool) -> Result<u32> {
        let value = match symbol {
            SymbolRef::Parameter(index) => self.function.parameters[*index].offset,
            SymbolRef::Function(index) if self.function.variables[*index].space == Space::Shared => {
                return Ok(self.constant(Constant::Shared(self.variables[*index] as u32, wide)));
            }
            SymbolRef::Function(index) => self.variables[*index],
            SymbolRef::Module(index) => match (self.module.variables[*index].space, self.shared[*index]) {
                (Space::Shared, None) => return Ok(self.constant(Constant::DynamicShared(wide))),
                (Space::Shared, Some(offset)) => return Ok(self.constant(Constant::Shared(offset, wide))),
                _ => self.globals[*index],
            },
        };
        Ok(self.constant(if wide { Constant::Wide(value) } else { Constant::Narrow(value as u32) }))
    }
}

/// First byte of dynamic shared memory: the golden launches align it to 1,024.
pub(crate) fn dynamic_shared_start(static_shared: u32) -> u32 {
    (SHARED_START + static_shared).next_multiple_of(1024)
}

fn narrow_bits(value: Immediate, ty: Type) -> u32 {
    let bits = match (value, ty) {
        (Immediate::Integer(value), _) => value as u32,
        (Immediate::Single(bits), _) => bits,
        (Immediate::Double(bits), _) => (f64::from_bits(bits) as f32).to_bits(),
    };
    match ty.bits() {
        8 => bits & 0xff,
        16 => bits & 0xffff,
        _ => bits,
    }
}

fn wide_bits(value: Immediate, ty: Type) -> u64 {
    match value {
        Immediate::Integer(value) => value,
        Immediate::Single(bits) if ty == Type::F64 => f64::from(f32::from_bits(bits)).to_bits(),
        Immediate::Single(bits) => u64::from(bits),
        Immediate::Double(bits) => bits,
    }
}

fn special(name: &str) -> Result<Special> {
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, "x")) => (base, 0),
        Some((base, "y")) => (base, 1),
        Some((base, "z")) => (base, 2),
        _ => (name, 0),
    };
    Ok(match base {
        "%tid" => Special::Thread(axis),
        "%ntid" => Special::BlockShape(axis),
        "%ctaid" => Special::Block(axis),
        "%nctaid" => Special::GridShape(axis),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::NumWarps,
        "%smid" => Special::Multiprocessor,
        "%nsmid" => Special::NumMultiprocessors,
        "%gridid" => Special::Grid,
        "%lanemask_eq" => Special::LaneMask(LaneMask::Eq),
        "%lanemask_lt" => Special::LaneMask(LaneMask::Lt),
        "%lanemask_le" => Special::LaneMask(LaneMask::Le),
        "%lanemask_gt" => Special::LaneMask(LaneMask::Gt),
        "%lanemask_ge" => Special::LaneMask(LaneMask::Ge),
        "%cluster_ctaid" => Special::BlockInCluster(axis),
        "%cluster_nctaid" => Special::ClusterShape(axis),
        "%cluster_ctarank" => Special::ClusterRank,
        "%cluster_nctarank" => Special::ClusterSize,
        "%clusterid" => Special::Cluster(axis),
        "%nclusterid" => Special::NumClusters(axis),
        "%is_explicit_cluster" => Special::IsExplicitCluster,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        "%current_graph_exec" | "%aggr_smem_size" => Special::Zero,
        _ => return Err(format!("special register `{name}` is not known")),
    })
}
