//! Tensor memory and the instructions of the fifth tensor core generation.

use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::{Trouble, lane as blame};
use super::race::WRITE;
use crate::execute::{Isa, Operands};
use crate::matrix::tcgen05_mma::{Tcgen05A, Tcgen05MmaSpec, Tcgen05Operands};
use crate::matrix::tensor_memory::TensorMemory;
use crate::program::{Tensor, TensorA};

fn multiply(
    isa: Isa,
    spec: &Tcgen05MmaSpec,
    memory: &mut TensorMemory,
    operands: &Tcgen05Operands,
    read: &mut impl FnMut(u32, &mut [u8]),
) -> Result<(), String> {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(
        spec: &Tcgen05MmaSpec,
        memory: &mut TensorMemory,
        operands: &Tcgen05Operands,
        read: &mut impl FnMut(u32, &mut [u8]),
    ) -> Result<(), String> {
        spec.execute(memory, operands, read)
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set was detected.
        Isa::Avx2 => unsafe { avx2(spec, memory, operands, read) },
        _ => spec.execute(memory, operands, read),
    }
}

impl Env<'_> {
    /// A `tcgen05` instruction. Products and copies are done at once: `commit` then only arrives.
    pub(super) fn tensor(&mut self, warp: &mut Warp, o: &Operands, tensor: &Tensor, exec: u32) -> Step {
        let first = exec.trailing_zeros();
        // Taken out, because reading shared memory needs the block as well.
        let mut memory = match self.block().tensor_memory.take() {
            Some(memory) => memory,
            None => Box::new(TensorMemory::new()),
        };
        let result = self.tensor_in(warp, o, tensor, exec, &mut memory);
        self.block().tensor_memory = Some(memory);
        result.map_err(|trouble| Trouble { lane: trouble.lane.or(Some(first)), ..trouble })
    }

    fn tensor_in(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        tensor: &Tensor,
        exec: u32,
        memory: &mut TensorMemory,
    ) -> Step {
        let at = exec.trailing_zeros() as usize;
        let number = warp.index as usize % 4;
        match tensor {
            Tensor::Allocate { address, columns } => {
                if !self.whole(warp, exec)? {
                    return Ok(Flow::Wait);
                }
                let columns = warp.registers.narrow(*columns)[at];
                let Some(base) = memory.allocate(columns)? else { return Ok(Flow::Wait) };
                let lane = at as u32;
                let to = Self::shared_address(warp, address, lane)?;
                self.race_shared(warp, lane, to, 4, WRITE)?;
                let (region, offset) = self.shared(to, 4).map_err(blame(lane))?;
                region.set(offset, &base.to_le_bytes());
            }
            Tensor::Deallocate { columns } => {
                if !self.whole(warp, exec)? {
                    return Ok(Flow::Wait);
                }
                let columns = warp.registers.narrow(*columns)[at];
                memory.deallocate(warp.registers.narrow(o.a)[at], columns)?;
            }
            Tensor::Relinquish => memory.relinquish(),
            Tensor::Load { access, address, half_offset, registers } => {
                if !self.whole(warp, exec)? {
                    return Ok(Flow::Wait);
                }
                let from = address.of(&warp.registers, at as u32) as u32;
                let mut out = vec![[0; 32]; access.num_registers()];
                let written = access.load(memory, number, from, *half_offset, &mut out)?;
                if !written && self.options.uninitialized {
                    return Err(format!("tensor memory at {from:#x} holds cells never written").into());
                }
                for (&slot, lanes) in registers.iter().zip(&out) {
                    *warp.registers.narrow_mut(slot) = *lanes;
                }
            }
            Tensor::Store { access, address, half_offset, registers } => {
                if !self.whole(warp, exec)? {
                    return Ok(Flow::Wait);
                }
                let to = address.of(&warp.registers, at as u32) as u32;
                let values: Vec<_> = registers.iter().map(|&slot| *warp.registers.narrow(slot)).collect();
                access.store(memory, number, to, *half_offset, &values)?;
            }
            Tensor::Copy { copy, address, descriptor } => {
                let to = address.of(&warp.registers, at as u32) as u32;
                let descriptor = warp.registers.wide(*descriptor)[at];
                let mut trouble = None;
                let mut read = |address: u32, bytes: &mut [u8]| {
                    if let Err(found) = self.read_operand(warp, address, bytes) {
                        trouble.get_or_insert(found);
                    }
                };
                copy.execute(memory, to, descriptor, &mut read)?;
                if let Some(trouble) = trouble {
                    return Err(trouble);
                }
            }
            Tensor::Multiply { spec, d, a, b, instruction, scales, accumulate } => {
                if exec.count_ones() != 1 {
                    return Err(
                        format!("{} lanes issue a product that one lane issues", exec.count_ones()).into()
                    );
                }
                let lane = at as u32;
                let scales = scales.map(|[sa, sb]| {
                    (sa.of(&warp.registers, lane) as u32, sb.of(&warp.registers, lane) as u32)
                });
                let (predicate, invert) = *accumulate;
                let operands = Tcgen05Operands {
                    d: d.of(&warp.registers, lane) as u32,
                    a: match a {
                        TensorA::Descriptor(slot) => Tcgen05A::Descriptor(warp.registers.wide(*slot)[at]),
                        TensorA::Memory(address) => {
                            Tcgen05A::TensorMemory(address.of(&warp.registers, lane) as u32)
                        }
                    },
                    b: warp.registers.wide(*b)[at],
                    instruction: warp.registers.narrow(*instruction)[at],
                    scales,
                    accumulate: (warp.registers.predicates[predicate as usize] ^ invert) >> at & 1 == 1,
                    scale_input_d: 0,
                    disabled_lanes: 0,
                };
                let mut trouble = None;
                let isa = self.isa;
                let mut read = |address: u32, bytes: &mut [u8]| {
                    if let Err(found) = self.read_operand(warp, address, bytes) {
                        trouble.get_or_insert(found);
                    }
                };
                multiply(isa, spec, memory, &operands, &mut read)?;
                if let Some(trouble) = trouble {
                    return Err(trouble);
                }
            }
            Tensor::Commit { address } => {
                let lane = at as u32;
                let to = Self::shared_address(warp, address, lane)?;
                self.race_arrive(warp, lane, to)?;
                self.race_product_arrive(warp, to);
                self.arrive_once(to).map_err(blame(lane))?;
            }
        }
        Ok(Flow::Next)
    }
}
