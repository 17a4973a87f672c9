//! Matrix instructions.

use super::transfer::literal;
use super::{Lowering, Modifiers, Result, Type, take};
use crate::execute::Operands;
use crate::matrix::tcgen05_mma::Tcgen05MmaSpec;
use crate::matrix::{
    LdMatrixSpec, MmaSpec, StMatrixSpec, TensorMemoryAccess, TensorMemoryCopy, WgmmaControl, WgmmaSpec,
};
use crate::program::{Action, Mma, Scale, Target, Tensor, TensorA, Wgmma, WgmmaOperand};
use crate::text::{Operand, Space};

impl Lowering<'_> {
    pub(super) fn matrix(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "ldmatrix" => {
                let [d, address] = take(operands)?;
                let spec = LdMatrixSpec::parse(m.rest)?;
                let registers = self.matrix_registers(d, spec.num_registers())?;
                let address = self.address(address, Space::Shared)?;
                self.emit(Action::LdMatrix { spec: Box::new(spec), address, registers }, Operands::default());
            }
            "stmatrix" => {
                let [address, a] = take(operands)?;
                let spec = StMatrixSpec::parse(m.rest)?;
                let registers = self.matrix_registers(a, Self::parts(a).len())?;
                let address = self.address(address, Space::Shared)?;
                self.emit(Action::StMatrix { spec: Box::new(spec), address, registers }, Operands::default());
            }
            "movmatrix" => {
                let [d, a] = take(operands)?;
                let o = Operands {
                    a: self.narrow(a, Type::B32)?,
                    d: self.destination(d, Type::B32)?,
                    ..Operands::default()
                };
                self.emit(Action::MovMatrix, o);
            }
            "mma" => {
                let mma = self.mma(m, operands)?;
                self.emit(Action::Mma(Box::new(mma)), Operands::default());
            }
            "wgmma" => self.wgmma(m, operands)?,
            "tcgen05" => self.tensor_memory(m, operands)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn wgmma(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        // Products are done when they are issued: groups matter to race detection only.
        let action = match () {
            () if m.has("fence") => Some(Action::Nop),
            () if m.has("commit_group") => Some(Action::ProductCommit),
            () if m.has("wait_group") => {
                Some(Action::ProductWait(super::transfer::literal(operands.first())? as u32))
            }
            () => None,
        };
        if let Some(action) = action {
            self.emit(action, Operands::default());
            return Ok(());
        }
        let spec = WgmmaSpec::parse(m.rest)?;
        let [d, a, b, scale_d, rest @ ..] = operands else {
            return Err(format!("{} operands", operands.len()));
        };
        let counts = spec.registers();
        let d = self.targets(d, Type::B32)?;
        if d.len() != counts.d {
            return Err(format!("{} accumulators instead of {}", d.len(), counts.d));
        }
        let in_registers = matches!(a, Operand::Vector(_));
        let a = match a {
            Operand::Vector(_) => WgmmaOperand::Registers(self.targets(a, Type::B32)?),
            a => WgmmaOperand::Descriptor(self.wide(a, Type::B64)?),
        };
        let b = self.wide(b, Type::B64)?;
        let scale_d = self.predicate(scale_d)?;
        let literals = rest.iter().map(|operand| literal(Some(operand))).collect::<Result<Vec<_>>>()?;
        let mut control = WgmmaControl::new(true);
        let sign = |value: u64| if value as i64 == -1 { -1 } else { 1 };
        match (literals[..].len(), in_registers) {
            (0, _) => {}
            (2, _) => (control.scale_a, control.scale_b) = (sign(literals[0]), sign(literals[1])),
            (3, true) => {
                (control.scale_a, control.scale_b) = (sign(literals[0]), sign(literals[1]));
                control.trans_b = literals[2] != 0;
            }
            (4, false) => {
                (control.scale_a, control.scale_b) = (sign(literals[0]), sign(literals[1]));
                (control.trans_a, control.trans_b) = (literals[2] != 0, literals[3] != 0);
            }
            (count, _) => return Err(format!("{count} literals behind `scale-d`")),
        }
        let wgmma = Wgmma { spec, d, a, b, scale_d, control };
        self.emit(Action::Wgmma(Box::new(wgmma)), Operands::default());
        Ok(())
    }

    fn tensor_memory(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let verb = *m.rest.first().ok_or("no operation")?;
        let pair = m.has("cta_group::2");
        if pair || m.has("cta_group::1") {
            // PTX ISA, "CTA pair": all instructions of a kernel have the same group.
            if self.pairs.is_some_and(|pairs| pairs != pair) {
                return Err("a kernel with `.cta_group::1` and `.cta_group::2`".to_string());
            }
            self.pairs = Some(pair);
        }
        let mut o = Operands::default();
        let tensor = match verb {
            "wait" | "fence" | "shift" => {
                if verb == "shift" {
                    return Err("not supported".to_string());
                }
                self.emit(Action::Nop, o);
                return Ok(());
            }
            "fence::before_thread_sync" | "fence::after_thread_sync" | "wait::ld" | "wait::st" => {
                self.emit(Action::Nop, o);
                return Ok(());
            }
            "alloc" => {
                let [address, columns] = take(operands)?;
                let columns = self.narrow(columns, Type::U32)?;
                Tensor::Allocate { address: self.address(address, Space::Shared)?, columns }
            }
            "dealloc" => {
                let [address, columns] = take(operands)?;
                o.a = self.narrow(address, Type::B32)?;
                Tensor::Deallocate { columns: self.narrow(columns, Type::U32)? }
            }
            "relinquish_alloc_permit" => Tensor::Relinquish,
            "ld" | "st" => {
                let access = TensorMemoryAccess::parse(m.rest)?;
                let mut operands = operands.to_vec();
                let half_offset = match operands.iter().position(|o| matches!(o, Operand::Immediate(_))) {
                    Some(at) => literal(Some(&operands.remove(at)))? as u32,
                    None => 0,
                };
                let [first, second] = take(&operands)?;
                let (address, registers) = if verb == "ld" { (second, first) } else { (first, second) };
                let registers = self.matrix_registers(registers, access.num_registers())?;
                let address = self.address(address, Space::Shared)?;
                match verb {
                    "ld" => Tensor::Load { access, address, half_offset, registers },
                    _ => Tensor::Store { access, address, half_offset, registers },
                }
            }
            "cp" => {
                let [address, descriptor] = take(operands)?;
                Tensor::Copy {
                    copy: TensorMemoryCopy::parse(m.rest)?,
                    address: self.address(address, Space::Shared)?,
                    descriptor: self.wide(descriptor, Type::B64)?,
                }
            }
            "commit" => {
                let (address, multicast) = match (m.has("multicast::cluster"), operands) {
                    (false, [address]) => (address, None),
                    (true, [address, mask]) => (address, Some(self.narrow(mask, Type::U16)?)),
                    _ => return Err(format!("{} operands", operands.len())),
                };
                Tensor::Commit { address: self.address(address, Space::Shared)?, multicast }
            }
            "mma" => {
                let spec = Tcgen05MmaSpec::parse(m.rest)?;
                let [d, a, b, instruction, rest @ ..] = operands else {
                    return Err(format!("{} operands", operands.len()));
                };
                let (scales, accumulate) = match (spec.is_block_scaled(), rest) {
                    (true, [sa, sb, accumulate]) => {
                        let scales = [self.address(sa, Space::Shared)?, self.address(sb, Space::Shared)?];
                        (Some(scales), accumulate)
                    }
                    (false, [accumulate]) => (None, accumulate),
                    _ => return Err(format!("{} operands", operands.len())),
                };
                let a = match a {
                    Operand::Address(..) => TensorA::Memory(self.address(a, Space::Shared)?),
                    a => TensorA::Descriptor(self.wide(a, Type::B64)?),
                };
                Tensor::Multiply {
                    spec,
                    d: self.address(d, Space::Shared)?,
                    a,
                    b: self.wide(b, Type::B64)?,
                    instruction: self.narrow(instruction, Type::U32)?,
                    scales,
                    accumulate: self.predicate(accumulate)?,
                }
            }
            other => return Err(format!("`.{other}` is not supported")),
        };
        self.emit(Action::Tensor { tensor: Box::new(tensor), pair }, o);
        Ok(())
    }

    fn matrix_registers(&mut self, operand: &Operand, count: usize) -> Result<Vec<u32>> {
        let parts = Self::parts(operand);
        if parts.len() != count {
            return Err(format!("{} registers instead of {count}", parts.len()));
        }
        parts.iter().map(|part| self.destination(part, Type::B32)).collect()
    }

    fn mma(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<Mma> {
        let spec = MmaSpec::parse(m.rest, self.module.architecture()?)?;
        let [d, a, b, c, scales @ ..] = operands else {
            return Err(format!("{} operands", operands.len()));
        };
        let counts = spec.registers();
        let mut fragment = |operand: &Operand, count: usize| -> Result<Vec<Target>> {
            let targets = self.targets(operand, Type::B32)?;
            if targets.iter().any(|target| target.bytes == 16) {
                return Err("a fragment in registers of 128 bits".to_string());
            }
            let words: u32 = targets.iter().map(|target| target.bytes.max(4) / 4).sum();
            if words as usize != count {
                return Err(format!("a fragment of {words} words instead of {count}"));
            }
            Ok(targets)
        };
        let (d, a) = (fragment(d, counts.d)?, fragment(a, counts.a)?);
        let (b, c) = (fragment(b, counts.b)?, fragment(c, counts.c)?);
        let scales = match (spec.is_block_scaled(), scales) {
            (false, []) => None,
            (true, [sa, selectors_a, sb, selectors_b]) => {
                Some([self.scale(sa, selectors_a)?, self.scale(sb, selectors_b)?])
            }
            _ => return Err("scale operands and kind do not fit".to_string()),
        };
        Ok(Mma { spec, d, a, b, c, scales })
    }

    fn scale(&mut self, register: &Operand, selectors: &Operand) -> Result<Scale> {
        let [byte, thread] = Self::parts(selectors) else {
            return Err("two selectors are needed".to_string());
        };
        let [register] = Self::parts(register) else {
            return Err("one scale register is needed".to_string());
        };
        Ok(Scale {
            register: self.narrow(register, Type::B32)?,
            byte: self.narrow(byte, Type::U16)?,
            thread: self.narrow(thread, Type::U16)?,
        })
    }
}
