//! Matrix instructions.

use super::{Lowering, Modifiers, Result, Type, take};
use crate::execute::Operands;
use crate::matrix::{LdMatrixSpec, MmaSpec, StMatrixSpec};
use crate::program::{Action, Mma, Scale, Target};
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
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn matrix_registers(&mut self, operand: &Operand, count: usize) -> Result<Vec<u32>> {
        let parts = Self::parts(operand);
        if parts.len() != count {
            return Err(format!("{} registers instead of {count}", parts.len()));
        }
        parts.iter().map(|part| self.destination(part, Type::B32)).collect()
    }

    fn mma(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<Mma> {
        let spec = MmaSpec::parse(m.rest)?;
        let [d, a, b, c, scales @ ..] = operands else {
            return Err(format!("{} operands", operands.len()));
        };
        let counts = spec.registers();
        let mut fragment = |operand: &Operand, count: usize| -> Result<Vec<Target>> {
            let targets = self.targets(operand, Type::B32)?;
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
        let [register] = Self::parts(register) else { return Err("one scale register is needed".to_string()) };
        Ok(Scale {
            register: self.narrow(register, Type::B32)?,
            byte: self.narrow(byte, Type::U16)?,
            thread: self.narrow(thread, Type::U16)?,
        })
    }
}
