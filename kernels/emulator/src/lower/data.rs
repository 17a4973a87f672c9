//! `mov` and address conversions.

use std::marker::PhantomData;

use super::arithmetic::op;
use super::compare::Logic;
use super::operands::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use super::{Lowering, Modifiers, Result, Type, take};
use crate::execute::{Kernel, One, Op1, Operands, Registers, Word, store};
use crate::program::Action;
use crate::text::{Operand, RegisterKind};

op!(Move32, |_i| (a: u32) -> u32 = a);
op!(Move64, |_i| (a: u64) -> u64 = a);
op!(AddWindow, |i| (a: u64) -> u64 = a.wrapping_add(i));
op!(AddWindow32, |i| (a: u32) -> u64 = u64::from(a).wrapping_add(i));
op!(SubWindow32, |i| (a: u64) -> u32 = a.wrapping_sub(i) as u32);

/// `d |= a << imm` on a destination of either width; the first part clears it.
struct Insert<S, D>(PhantomData<(S, D)>);
/// `d = (a >> imm) & mask`: bits 0 to 7 of the constant are the shift, 8 to 15 the width.
struct Extract<S, D>(PhantomData<(S, D)>);

macro_rules! parts {
    ($($s:ty, $d:ty;)*) => {$(
        impl Kernel for Insert<$s, $d> {
            #[inline(always)]
            fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
                let (shift, width) = (operands.imm as u32 & 0xff, operands.imm as u32 >> 8 & 0xff);
                let kept = if shift == 0 { 0 } else { ((1 as $d) << shift) - 1 };
                let field = if width >= <$s>::BITS { <$s>::MAX } else { ((1 as $s) << width) - 1 };
                let a = *<$s>::lanes(registers, operands.a);
                let mut d = *<$d>::lanes(registers, operands.d);
                for lane in 0..32 {
                    d[lane] = (d[lane] & kept) | <$d>::from(a[lane] & field) << shift;
                }
                store(registers, operands.d, mask, &d);
            }
        }
    )*};
}
parts! { u32, u32; u32, u64; }

macro_rules! extract {
    ($($s:ty, $d:ty;)*) => {$(
        impl Kernel for Extract<$s, $d> {
            #[inline(always)]
            fn run(registers: &mut Registers, operands: &Operands, mask: u32) {
                let (shift, width) = (operands.imm as u32 & 0xff, operands.imm as u32 >> 8 & 0xff);
                let field = if width >= <$d>::BITS { <$d>::MAX } else { ((1 as $d) << width) - 1 };
                let a = *<$s>::lanes(registers, operands.a);
                let mut d = [0; 32];
                for lane in 0..32 {
                    d[lane] = (a[lane] >> shift) as $d & field;
                }
                store(registers, operands.d, mask, &d);
            }
        }
    )*};
}
extract! { u32, u32; u64, u32; u64, u64; }

impl Lowering<'_> {
    pub(super) fn data(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "mov" => {
                let [d, a] = take(operands)?;
                self.mov(m.ty()?, d, a)?;
            }
            "cvta" => {
                let [d, a] = take(operands)?;
                self.cvta(m, d, a)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn mov(&mut self, ty: Type, d: &Operand, a: &Operand) -> Result<()> {
        if let Operand::Special(name) = a
            && ["%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo"].contains(&name.as_str())
        {
            let d = self.destination(d, ty)?;
            self.emit(Action::Clock { wide: ty.is_wide() }, Operands { d, ..Operands::default() });
            return Ok(());
        }
        match (d, a) {
            _ if ty == Type::Pred => {
                let (a, invert) = self.predicate(a)?;
                let d = self.predicate_destination(d)?;
                self.alu::<Logic>(Operands { d, a, b: a, c: 0, imm: 3 | u64::from(invert & 1) << 2 });
            }
            (Operand::Vector(parts), Operand::Vector(sources)) if parts.len() == sources.len() => {
                let bits = Self::part_bits(ty, parts)?;
                let ty = if bits == 64 { Type::B64 } else { Type::B32 };
                for (d, a) in parts.iter().zip(sources) {
                    self.mov(ty, d, a)?;
                }
            }
            (Operand::Vector(parts), a) => self.unpack(ty, parts, a)?,
            (d, Operand::Vector(parts)) => self.pack_vector(ty, d, parts)?,
            _ if ty == Type::B128 => {
                let (a, d) = (self.source(a, ty)?, self.destination(d, ty)?);
                for half in [0, 2] {
                    self.alu::<One<Move64>>(Operands { d: d + half, a: a + half, ..Operands::default() });
                }
            }
            _ => {
                let (a, d) = (self.source(a, ty)?, self.destination(d, ty)?);
                let o = Operands { d, a, ..Operands::default() };
                if ty.is_wide() { self.alu::<One<Move64>>(o) } else { self.alu::<One<Move32>>(o) }
            }
        }
        Ok(())
    }

    /// Bits of a part of a vector operand.
    fn part_bits(ty: Type, parts: &[Operand]) -> Result<u32> {
        match (ty.bits(), parts.len()) {
            (16 | 32 | 64, 2) | (32 | 64, 4) | (64, 8) | (128, 2) => Ok(ty.bits() / parts.len() as u32),
            (bits, count) => Err(format!("{bits} bits in {count} parts")),
        }
    }

    /// `mov.b64 {a, b}, d` and its kin, the lowest bits first.
    fn unpack(&mut self, ty: Type, parts: &[Operand], a: &Operand) -> Result<()> {
        let width = Self::part_bits(ty, parts)?;
        if ty == Type::B128 {
            let a = self.source(a, ty)?;
            for (half, part) in parts.iter().enumerate() {
                let d = self.destination(part, Type::B64)?;
                self.alu::<One<Move64>>(Operands { d, a: a + 2 * half as u32, ..Operands::default() });
            }
            return Ok(());
        }
        let mut a = self.source(a, ty)?;
        // A part may be the register that is taken apart.
        if parts.iter().take(parts.len() - 1).any(|part| self.source(part, Type::B32) == Ok(a)) {
            let copy = self.temporary(2);
            self.alu::<One<Move32>>(Operands { d: copy, a, ..Operands::default() });
            a = copy;
        }
        for (index, part) in parts.iter().enumerate() {
            if *part == Operand::Sink {
                continue;
            }
            let imm = u64::from(index as u32 * width) | u64::from(width) << 8;
            if self.is_wide(part) {
                let d = self.destination(part, Type::B64)?;
                self.alu::<Extract<u64, u64>>(Operands { d, a, imm, ..Operands::default() });
                continue;
            }
            let d = self.destination(part, Type::B32)?;
            let o = Operands { d, a, imm, ..Operands::default() };
            if ty.is_wide() { self.alu::<Extract<u64, u32>>(o) } else { self.alu::<Extract<u32, u32>>(o) }
        }
        Ok(())
    }

    /// `mov.b64 d, {a, b}` and its kin.
    fn pack_vector(&mut self, ty: Type, d: &Operand, parts: &[Operand]) -> Result<()> {
        let width = Self::part_bits(ty, parts)?;
        let target = self.destination(d, ty)?;
        if ty == Type::B128 {
            for (half, part) in parts.iter().enumerate() {
                let a = self.wide(part, Type::B64)?;
                self.alu::<One<Move64>>(Operands { d: target + 2 * half as u32, a, ..Operands::default() });
            }
            return Ok(());
        }
        let part_type = match width {
            8 => Type::B8,
            16 => Type::B16,
            _ => Type::B32,
        };
        let sources = parts.iter().map(|part| self.narrow(part, part_type)).collect::<Result<Vec<_>>>()?;
        // The destination may be one of the parts: it is built aside.
        let aside = sources.contains(&target);
        let d = if aside { self.temporary(2) } else { target };
        for (index, &a) in sources.iter().enumerate() {
            let imm = u64::from(index as u32 * width) | u64::from(width) << 8;
            let o = Operands { d, a, imm, ..Operands::default() };
            if ty.is_wide() { self.alu::<Insert<u32, u64>>(o) } else { self.alu::<Insert<u32, u32>>(o) }
        }
        if aside {
            self.alu::<One<Move32>>(Operands { d: target, a: d, ..Operands::default() });
        }
        Ok(())
    }

    fn cvta(&mut self, m: &Modifiers<'_>, d: &Operand, a: &Operand) -> Result<()> {
        let window = match () {
            () if m.has("shared") || m.has("shared::cta") || m.has("shared::cluster") => SHARED_WINDOW,
            () if m.has("local") => LOCAL_WINDOW,
            () if m.has("param") || m.has("param::entry") => PARAM_WINDOW,
            () => 0,
        };
        let kind = |operand: &Operand| match operand {
            Operand::Register(register) => self.function.registers[*register].kind,
            _ => RegisterKind::Wide,
        };
        let (from, to) = (kind(a), kind(d));
        if m.has("to") {
            let o = Operands { a: self.wide(a, Type::U64)?, imm: window, ..Operands::default() };
            match to {
                RegisterKind::Narrow => {
                    let d = self.destination(d, Type::U32)?;
                    self.alu::<One<SubWindow32>>(Operands { d, ..o });
                }
                _ => {
                    let d = self.destination(d, Type::U64)?;
                    self.alu::<One<AddWindow>>(Operands { d, imm: window.wrapping_neg(), ..o });
                }
            }
            return Ok(());
        }
        let d = self.destination(d, Type::U64)?;
        match from {
            RegisterKind::Narrow => {
                let a = self.narrow(a, Type::U32)?;
                self.alu::<One<AddWindow32>>(Operands { d, a, imm: window, ..Operands::default() });
            }
            _ => {
                let a = self.wide(a, Type::U64)?;
                self.alu::<One<AddWindow>>(Operands { d, a, imm: window, ..Operands::default() });
            }
        }
        Ok(())
    }
}
