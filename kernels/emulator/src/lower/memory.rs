//! Loads, stores and atomics.

use super::{Lowering, Modifiers, Result, Type};
use crate::execute::Operands;
use crate::program::{Access, Action, Atomic, AtomicOp, Fence, Multimem, MultimemKind, Ordering, Scope};
use crate::text::{Operand, Space};

/// Modifiers that change caching, ordering or scope, not how a value is computed.
const HINTS: &[&str] = &[
    "weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "cta", "cluster", "gpu", "sys",
    "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified", "v2", "v4", "v8",
];

/// The state space among the modifiers.
pub(super) fn space(m: &Modifiers<'_>) -> Space {
    m.rest
        .iter()
        .find_map(|modifier| {
            Some(match *modifier {
                "global" => Space::Global,
                "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
                "local" => Space::Local,
                "param" | "param::entry" => Space::Param,
                "const" => Space::Constant,
                _ => return None,
            })
        })
        .unwrap_or(Space::Generic)
}

/// The ordering among the modifiers.
fn ordering(m: &Modifiers<'_>) -> Ordering {
    match () {
        () if m.has("acq_rel") => Ordering::AcquireRelease,
        () if m.has("acquire") => Ordering::Acquire,
        () if m.has("release") => Ordering::Release,
        () if m.has("relaxed") || m.has("volatile") || m.has("mmio") => Ordering::Relaxed,
        () => Ordering::Weak,
    }
}

/// The scope among the modifiers.
fn scope(m: &Modifiers<'_>) -> Option<Scope> {
    m.rest.iter().find_map(|modifier| {
        Some(match *modifier {
            "cta" => Scope::Block,
            "cluster" => Scope::Cluster,
            "gpu" | "gl" => Scope::Device,
            "sys" => Scope::System,
            _ => return None,
        })
    })
}

/// A `fence` or `membar`. Without a scope, which no valid text lacks, it orders the most.
pub(super) fn fence(m: &Modifiers<'_>) -> Fence {
    let (acquire, release) = (m.has("acquire"), m.has("release"));
    Fence { scope: scope(m).unwrap_or(Scope::System), acquires: !release, releases: !acquire }
}

/// The operation among the modifiers.
fn operation(m: &Modifiers<'_>) -> Option<AtomicOp> {
    m.rest.iter().find_map(|modifier| {
        Some(match *modifier {
            "add" => AtomicOp::Add,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            "inc" => AtomicOp::Inc,
            "dec" => AtomicOp::Dec,
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            "exch" => AtomicOp::Exchange,
            "cas" => AtomicOp::CompareAndSwap,
            _ => return None,
        })
    })
}

impl Lowering<'_> {
    pub(super) fn memory(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "ld" | "ldu" => {
                let access = self.access(m, operands, 1, 0)?;
                self.emit(Action::Load(Box::new(access)), Operands::default());
            }
            "st" if m.has("async") => return Ok(false),
            "st" => {
                let access = self.access(m, operands, 0, 1)?;
                self.emit(Action::Store(Box::new(access)), Operands::default());
            }
            "atom" | "red" if !m.has("async") => {
                let atomic = self.atomic(m, operands)?;
                self.emit(Action::Atomic(Box::new(atomic)), Operands::default());
            }
            "multimem" => {
                let multimem = self.multimem(m, operands)?;
                self.emit(Action::Multimem(Box::new(multimem)), Operands::default());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check_hints(&self, m: &Modifiers<'_>) -> Result<()> {
        let space = |modifier: &str| {
            ["global", "local", "param", "const"].contains(&modifier)
                || modifier.starts_with("shared")
                || modifier.starts_with("param")
        };
        match m.rest.iter().find(|modifier| {
            Type::parse(modifier).is_none()
                && !HINTS.contains(modifier)
                && !space(modifier)
                && !modifier.starts_with("L1::")
                && !modifier.starts_with("L2::")
        }) {
            Some(unknown) => Err(format!("modifier `.{unknown}` is not known here")),
            None => Ok(()),
        }
    }

    /// An access with its address and values at these places; a cache policy may follow.
    fn access(
        &mut self,
        m: &Modifiers<'_>,
        operands: &[Operand],
        address: usize,
        values: usize,
    ) -> Result<Access> {
        self.check_hints(m)?;
        if operands.len() < 2 {
            return Err(format!("{} operands", operands.len()));
        }
        let ty = m.ty()?;
        let registers = match values {
            0 => self.loaded(&operands[values], ty)?,
            _ => self.targets(&operands[values], ty)?,
        };
        if ty == Type::Pred {
            return Err("predicates have no place in memory".to_string());
        }
        if registers.len() as u32 * ty.bytes() > 32 || ![1, 2, 4, 8].contains(&registers.len()) {
            return Err(format!("a vector of {} elements of {} bytes", registers.len(), ty.bytes()));
        }
        let address = self.address(&operands[address], space(m))?;
        // A volatile access is a relaxed one of system scope, and so is one of memory-mapped I/O.
        let scope = scope(m).unwrap_or(Scope::System);
        Ok(Access { address, ty, ordering: ordering(m), scope, registers })
    }

    /// `multimem.ld_reduce`, `.st` and `.red`, of integers and floats of 32 bits or more.
    fn multimem(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<Multimem> {
        let reduction = || match operation(m) {
            Some(
                op @ (AtomicOp::Add
                | AtomicOp::Min
                | AtomicOp::Max
                | AtomicOp::And
                | AtomicOp::Or
                | AtomicOp::Xor),
            ) => Ok(op),
            _ => Err("no operation of `multimem`".to_string()),
        };
        let (kind, address, values) = match () {
            () if m.has("ld_reduce") => (MultimemKind::LoadReduce(reduction()?), 1, 0),
            () if m.has("st") => (MultimemKind::Store, 0, 1),
            () if m.has("red") => (MultimemKind::Reduce(reduction()?), 0, 1),
            () => return Err("no access".to_string()),
        };
        let named = ["ld_reduce", "st", "red", "add", "min", "max", "and", "or", "xor"];
        let rest: Vec<&str> = m.rest.iter().copied().filter(|modifier| !named.contains(modifier)).collect();
        let mut access =
            self.access(&Modifiers { mnemonic: m.mnemonic, rest: &rest }, operands, address, values)?;
        if !matches!(access.ty.bytes(), 4 | 8) || matches!(access.ty, Type::F16x2 | Type::Bf16x2) {
            return Err(format!("`multimem` of {:?} is not executed", access.ty));
        }
        // A reduction in memory is strong in any case, as an atomic operation is.
        if matches!(kind, MultimemKind::Reduce(_)) && access.ordering == Ordering::Weak {
            (access.ordering, access.scope) = (Ordering::Relaxed, Scope::Device);
        }
        access.address.space = Space::Global;
        Ok(Multimem { kind, access })
    }

    fn atomic(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<Atomic> {
        let op = operation(m).ok_or("no operation")?;
        let ty = m.ty()?;
        let (destination, rest) = match (m.mnemonic, operands) {
            ("atom", [d, rest @ ..]) => (Some(d), rest),
            (_, rest) => (None, rest),
        };
        let [address, value, more @ ..] = rest else {
            return Err(format!("{} operands", operands.len()));
        };
        let swap = match (op, more) {
            (AtomicOp::CompareAndSwap, [swap, ..]) => Some(self.target(swap, ty)?),
            (AtomicOp::CompareAndSwap, []) => return Err("no value to swap in".to_string()),
            _ => None,
        };
        let destinations = destination.map(|d| self.loaded(d, ty)).transpose()?;
        let values = self.targets(value, ty)?;
        if ![1, 2, 4, 8].contains(&values.len()) {
            return Err(format!("a vector of {} elements", values.len()));
        }
        if destinations.as_ref().is_some_and(|d| d.len() != values.len()) {
            return Err("as many destinations as values are needed".to_string());
        }
        let address = self.address(address, space(m))?;
        // Without a modifier an atomic operation is relaxed.
        let ordering = match ordering(m) {
            Ordering::Weak => Ordering::Relaxed,
            other => other,
        };
        let scope = scope(m).unwrap_or(Scope::Device);
        Ok(Atomic { address, op, ty, ordering, scope, destinations, values, swap })
    }
}
