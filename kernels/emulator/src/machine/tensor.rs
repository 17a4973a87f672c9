//! Tensor memory and the instructions of the fifth tensor core generation.

use super::access::{lanes, map_shared};
use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::{Trouble, lane as blame};
use super::race::WRITE;
use crate::execute::{Isa, Operands};
use crate::matrix::tcgen05_mma::{Tcgen05A, Tcgen05MmaSpec, Tcgen05Operands};
use crate::matrix::tensor_memory::TensorMemory;
use crate::program::{Tensor, TensorA};

/// Tensor memory of the blocks that execute an instruction together: one, or a pair.
type Memories = [Box<TensorMemory>];

fn multiply(
    isa: Isa,
    spec: &Tcgen05MmaSpec,
    memories: &mut Memories,
    operands: &Tcgen05Operands,
    read: &mut impl FnMut(usize, u32, &mut [u8]),
) -> Result<(), String> {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(
        spec: &Tcgen05MmaSpec,
        memories: &mut Memories,
        operands: &Tcgen05Operands,
        read: &mut impl FnMut(usize, u32, &mut [u8]),
    ) -> Result<(), String> {
        spec.execute(memories, operands, read)
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set was detected.
        Isa::Avx2 => unsafe { avx2(spec, memories, operands, read) },
        _ => spec.execute(memories, operands, read),
    }
}

impl Env<'_> {
    /// A `tcgen05` instruction. Products and copies are done at once: `commit` then only arrives.
    pub(super) fn tensor(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        tensor: &Tensor,
        pair: bool,
        exec: u32,
    ) -> Step {
        let first = exec.trailing_zeros();
        let together = matches!(tensor, Tensor::Copy { .. } | Tensor::Multiply { .. });
        if pair {
            // Memory that was allocated together is given back by one block after the other.
            let is_late = matches!(tensor, Tensor::Deallocate { .. });
            self.check_pair(is_late).map_err(blame(first))?;
        }
        let ranks: &[usize] = if pair && together { &[self.rank & !1, self.rank | 1] } else { &[self.rank] };
        // Taken out, because reading shared memory needs the blocks as well.
        let take = |&rank: &usize| self.cluster.blocks[rank].tensor_memory.take().unwrap_or_default();
        let mut memories: Vec<Box<TensorMemory>> = ranks.iter().map(take).collect();
        let result = self.tensor_in(warp, o, tensor, exec, ranks, &mut memories);
        for (&rank, memory) in ranks.iter().zip(memories) {
            self.cluster.blocks[rank].tensor_memory = Some(memory);
        }
        result.map_err(|trouble| Trouble { lane: trouble.lane.or(Some(first)), ..trouble })
    }

    /// Fails if this block has no other one of a pair, blocks of a cluster whose ranks differ in the last
    /// bit (PTX ISA, "CTA pair"), or that one has exited.
    fn check_pair(&self, may_have_exited: bool) -> Result<(), String> {
        let (size, other) = (self.cluster.blocks.len(), self.rank ^ 1);
        match self.cluster.blocks.get(other) {
            None => Err(format!("block {} of a cluster of {size} has no other block of a pair", self.rank)),
            Some(block) if block.is_done() && !may_have_exited => {
                Err("the other block of the pair has exited".to_string())
            }
            Some(_) => Ok(()),
        }
    }

    fn tensor_in(
        &mut self,
        warp: &mut Warp,
        o: &Operands,
        tensor: &Tensor,
        exec: u32,
        ranks: &[usize],
        memories: &mut Memories,
    ) -> Step {
        // Of instructions that a block executes alone.
        let memory = &mut *memories[0];
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
                // Each block copies from its own shared memory.
                for (&rank, memory) in ranks.iter().zip(memories) {
                    let mut trouble = None;
                    let mut read = |address: u32, bytes: &mut [u8]| {
                        if let Err(found) = self.read_operand(warp, rank, address, bytes) {
                            trouble.get_or_insert(found);
                        }
                    };
                    copy.execute(memory, to, descriptor, &mut read)?;
                    if let Some(trouble) = trouble {
                        return Err(trouble);
                    }
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
                let mut read = |at: usize, address: u32, bytes: &mut [u8]| {
                    if let Err(found) = self.read_operand(warp, ranks[at], address, bytes) {
                        trouble.get_or_insert(found);
                    }
                };
                multiply(isa, spec, memories, &operands, &mut read)?;
                if let Some(trouble) = trouble {
                    return Err(trouble);
                }
            }
            Tensor::Commit { address, multicast } => {
                let lane = at as u32;
                let to = Self::shared_address(warp, address, lane)?;
                let barriers: Vec<u32> = match multicast {
                    None => vec![to],
                    // At the same place of each of these blocks.
                    Some(slot) => lanes(warp.registers.narrow(*slot)[at] & 0xffff)
                        .map(|rank| map_shared(to, rank))
                        .collect(),
                };
                for &barrier in &barriers {
                    self.race_arrive(warp, lane, barrier)?;
                }
                self.race_product_arrive(warp, &barriers);
                for &barrier in &barriers {
                    self.arrive_once(barrier).map_err(blame(lane))?;
                }
            }
        }
        Ok(Flow::Next)
    }
}
