//! Atomic operations on memory.

use super::access::{lanes, register_bytes, set_register};
use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::lane as blame;
use crate::lower::Type;
use crate::number::bf16::Bf16;
use crate::number::half::F16;
use crate::number::round::{Mode, flush};
use crate::number::sixteen::Sixteen;
use crate::program::{Atomic, AtomicOp};
use crate::text::Space;

impl Env<'_> {
    /// Reads, computes and writes lane by lane, in the order of lanes.
    pub(super) fn atomic(&mut self, warp: &mut Warp, atomic: &Atomic, exec: u32) -> Step {
        let size = atomic.ty.bytes() as usize;
        // In global memory subnormals are flushed, in shared memory they are kept.
        let flushes = atomic.address.space != Space::Shared;
        for lane in lanes(exec) {
            let base = atomic.address.of(&warp.registers, lane);
            Self::aligned(base, (size * atomic.values.len()) as u32, lane)?;
            for (index, value) in atomic.values.iter().enumerate() {
                let address = base + (index * size) as u64;
                let mut old = [0; 16];
                self.read(warp, lane, atomic.address.space, address, &mut old[..size])?;
                let value = register_bytes(&warp.registers, *value, lane);
                let new = match (atomic.op, atomic.swap) {
                    (AtomicOp::CompareAndSwap, Some(swap)) => {
                        let equal = old[..size] == value[..size];
                        if equal { register_bytes(&warp.registers, swap, lane) } else { old }
                    }
                    (AtomicOp::Exchange, _) => value,
                    _ => {
                        let number =
                            |bytes: [u8; 16]| u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
                        let result = combine(atomic.op, atomic.ty, flushes, number(old), number(value))
                            .map_err(blame(lane))?;
                        let mut bytes = [0; 16];
                        bytes[..8].copy_from_slice(&result.to_le_bytes());
                        bytes
                    }
                };
                if new[..size] != old[..size] {
                    self.memory.changes += 1;
                }
                self.write(warp, lane, atomic.address.space, address, &new[..size])?;
                if let Some(destinations) = &atomic.destinations {
                    set_register(&mut warp.registers, destinations[index], lane, atomic.ty, &old[..size]);
                }
            }
        }
        Ok(Flow::Next)
    }
}

/// The new value of an atomic operation; operands are zero-extended. `flushes`: subnormal numbers of 32 bits count as zeros.
pub(super) fn combine(op: AtomicOp, ty: Type, flushes: bool, old: u64, value: u64) -> Result<u64, String> {
    use AtomicOp::*;
    macro_rules! integers {
        ($unsigned:ty, $t:ty) => {{
            let (a, b) = (old as $t, value as $t);
            let result = match op {
                Add => a.wrapping_add(b),
                Min => a.min(b),
                Max => a.max(b),
                And => a & b,
                Or => a | b,
                Xor => a ^ b,
                Inc => {
                    if a >= b {
                        0
                    } else {
                        a + 1
                    }
                }
                Dec => {
                    if a == 0 || a > b {
                        b
                    } else {
                        a - 1
                    }
                }
                Exchange | CompareAndSwap => return Err("not an operation on one value".to_string()),
            };
            u64::from(result as $unsigned)
        }};
    }
    fn sixteen<F: Sixteen>(op: AtomicOp, a: u16, b: u16) -> Result<u16, String> {
        match op {
            Add => Ok(F::add(a, b, Mode::RN)),
            Min => Ok(F::min(a, b, Default::default())),
            Max => Ok(F::max(a, b, Default::default())),
            _ => Err("not an operation on floats".to_string()),
        }
    }
    fn packed<F: Sixteen>(op: AtomicOp, a: u64, b: u64) -> Result<u64, String> {
        let low = sixteen::<F>(op, a as u16, b as u16)?;
        let high = sixteen::<F>(op, (a >> 16) as u16, (b >> 16) as u16)?;
        Ok(u64::from(low) | u64::from(high) << 16)
    }
    Ok(match ty {
        Type::U32 | Type::B32 => integers!(u32, u32),
        Type::S32 => integers!(u32, i32),
        Type::U64 | Type::B64 => integers!(u64, u64),
        Type::S64 => integers!(u64, i64),
        Type::F32 => {
            let (a, b) = (f32::from_bits(old as u32), f32::from_bits(value as u32));
            if op != Add {
                return Err("only `add` is an atomic operation on f32".to_string());
            }
            let sum = if flushes { flush(flush(a) + flush(b)) } else { a + b };
            u64::from(sum.to_bits())
        }
        Type::F64 if op == Add => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        Type::F16 => sixteen::<F16>(op, old as u16, value as u16)?.into(),
        Type::Bf16 => sixteen::<Bf16>(op, old as u16, value as u16)?.into(),
        Type::F16x2 => packed::<F16>(op, old, value)?,
        Type::Bf16x2 => packed::<Bf16>(op, old, value)?,
        other => return Err(format!("no atomic operation on {other:?}")),
    })
}
