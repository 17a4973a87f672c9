//! Matrix instructions on the registers and the memory of a warp.

use super::access::{OFFSET, rank_of};
use super::block::Warp;
use super::cluster::{Env, Flow, Step};
use super::fault::Trouble;
use crate::Lanes;
use crate::execute::{Isa, Operands, Registers};
use crate::matrix::{
    BlockScales, LdMatrixSpec, MmaSpec, StMatrixSpec, WgmmaA, WgmmaControl, WgmmaSpec, movmatrix,
};
use crate::program::{Address, Mma, SHARED_START, Target, Wgmma, WgmmaOperand};
use crate::text::Space;

/// Buffers of fragments A, B, C and D.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    fragments: [Vec<Lanes>; 4],
}

/// Reads a fragment; a 64-bit register is two words.
fn gather(registers: &Registers, targets: &[Target], out: &mut Vec<Lanes>) {
    out.clear();
    for target in targets {
        if target.bytes == 8 {
            let wide = registers.wide(target.slot);
            out.push(wide.map(|value| value as u32));
            out.push(wide.map(|value| (value >> 32) as u32));
        } else {
            out.push(*registers.narrow(target.slot));
        }
    }
}

fn scatter(registers: &mut Registers, targets: &[Target], fragment: &[Lanes]) {
    let mut words = fragment.iter();
    for target in targets {
        let Some(low) = words.next() else { return };
        if target.bytes == 8 {
            let Some(high) = words.next() else { return };
            for lane in 0..32 {
                registers.wide_mut(target.slot)[lane] = u64::from(low[lane]) | u64::from(high[lane]) << 32;
            }
        } else {
            *registers.narrow_mut(target.slot) = *low;
        }
    }
}

fn multiply(
    isa: Isa,
    spec: &MmaSpec,
    a: &[Lanes],
    b: &[Lanes],
    c: &[Lanes],
    s: Option<BlockScales<'_>>,
    d: &mut [Lanes],
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(
        spec: &MmaSpec,
        a: &[Lanes],
        b: &[Lanes],
        c: &[Lanes],
        s: Option<BlockScales<'_>>,
        d: &mut [Lanes],
    ) {
        spec.execute(a, b, c, s, d);
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set was detected.
        Isa::Avx2 => unsafe { avx2(spec, a, b, c, s, d) },
        _ => spec.execute(a, b, c, s, d),
    }
}

fn multiply_group(
    isa: Isa,
    spec: &WgmmaSpec,
    warp: usize,
    a: WgmmaA<'_>,
    b: u64,
    read: &mut impl FnMut(u32, &mut [u8]),
    d: &mut [Lanes],
    control: WgmmaControl,
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(
        spec: &WgmmaSpec,
        warp: usize,
        a: WgmmaA<'_>,
        b: u64,
        read: &mut impl FnMut(u32, &mut [u8]),
        d: &mut [Lanes],
        control: WgmmaControl,
    ) {
        spec.execute(warp, a, b, read, d, control);
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set was detected.
        Isa::Avx2 => unsafe { avx2(spec, warp, a, b, read, d, control) },
        _ => spec.execute(warp, a, b, read, d, control),
    }
}

impl Env<'_> {
    pub(super) fn load_matrix(
        &mut self,
        warp: &mut Warp,
        spec: &LdMatrixSpec,
        address: &Address,
        registers: &[u32],
        exec: u32,
    ) -> Step {
        if !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        let mut rows = [[0; 16]; 32];
        if !self.own_rows(warp, address, &mut rows[..spec.num_rows()]) {
            for (lane, row) in (0..).zip(&mut rows[..spec.num_rows()]) {
                let at = self.row_address(warp, address, lane)?;
                self.read(warp, lane, Space::Shared, u64::from(at), row)?;
            }
        }
        let mut out = [[0; 32]; 4];
        spec.distribute(&rows[..spec.num_rows()], &mut out[..registers.len()]);
        for (&slot, lanes) in registers.iter().zip(&out) {
            *warp.registers.narrow_mut(slot) = *lanes;
        }
        Ok(Flow::Next)
    }

    /// Reads the rows of a matrix if all lie in the own block's shared memory, aligned and written; otherwise they are looked at one by
    /// one.
    fn own_rows(&mut self, warp: &Warp, address: &Address, rows: &mut [[u8; 16]]) -> bool {
        let check = self.options.uninitialized;
        let shared = &self.cluster.blocks[self.rank].shared;
        (0..).zip(rows).all(|(lane, row)| {
            let Ok(at) = Self::shared_address(warp, address, lane) else { return false };
            if rank_of(at) != self.rank {
                return false;
            }
            let at = (at & OFFSET) as usize;
            if !at.is_multiple_of(16) || at < SHARED_START as usize || at + 16 > shared.len() {
                return false;
            }
            let (bytes, written) = shared.get(at, 16);
            row.copy_from_slice(bytes);
            written || !check
        })
    }

    pub(super) fn store_matrix(
        &mut self,
        warp: &mut Warp,
        spec: &StMatrixSpec,
        address: &Address,
        registers: &[u32],
        exec: u32,
    ) -> Step {
        if !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        let fragment: Vec<Lanes> = registers.iter().map(|&slot| *warp.registers.narrow(slot)).collect();
        let mut rows = [[0; 16]; 32];
        spec.collect(&fragment, &mut rows[..spec.num_rows()]);
        for (lane, row) in (0..).zip(&rows[..spec.num_rows()]) {
            let at = self.row_address(warp, address, lane)?;
            self.write(warp, lane, Space::Shared, u64::from(at), row)?;
        }
        Ok(Flow::Next)
    }

    fn row_address(&self, warp: &Warp, address: &Address, lane: u32) -> Step<u32> {
        let at = Self::shared_address(warp, address, lane)?;
        match at % 16 {
            0 => Ok(at),
            _ => Err(Trouble {
                lane: Some(lane),
                text: format!("a matrix row at {at:#x} is not aligned to 16"),
            }),
        }
    }

    pub(super) fn move_matrix(&mut self, warp: &mut Warp, o: &Operands, exec: u32) -> Step {
        if !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        let moved = movmatrix(warp.registers.narrow(o.a));
        *warp.registers.narrow_mut(o.d) = moved;
        Ok(Flow::Next)
    }

    pub(super) fn mma(&mut self, warp: &mut Warp, mma: &Mma, exec: u32) -> Step {
        if !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        let registers = &mut warp.registers;
        let [a, b, c, d] = &mut self.scratch.fragments;
        gather(registers, &mma.a, a);
        gather(registers, &mma.b, b);
        gather(registers, &mma.c, c);
        let scales = mma.scales.map(|[sa, sb]| {
            let selector = |slot: u32| registers.narrow(slot)[0] as usize & 3;
            BlockScales {
                a: registers.narrow(sa.register),
                byte_id_a: selector(sa.byte),
                thread_id_a: selector(sa.thread),
                b: registers.narrow(sb.register),
                byte_id_b: selector(sb.byte),
                thread_id_b: selector(sb.thread),
            }
        });
        if let Some(scales) = scales.filter(|scales| !mma.spec.allows(scales)) {
            let selectors = [scales.byte_id_a, scales.thread_id_a, scales.byte_id_b, scales.thread_id_b];
            return Err(format!("the scale selectors {selectors:?} are not possible here").into());
        }
        d.resize(mma.spec.registers().d, [0; 32]);
        multiply(self.isa, &mma.spec, a, b, c, scales, d);
        scatter(registers, &mma.d, d);
        Ok(Flow::Next)
    }

    /// One warp's rows of a warp group's product, done at once.
    pub(super) fn wgmma(&mut self, warp: &mut Warp, wgmma: &Wgmma, exec: u32) -> Step {
        if !self.whole(warp, exec)? {
            return Ok(Flow::Wait);
        }
        if exec != u32::MAX {
            return Err("a warp group needs whole warps".into());
        }
        let (scale_d, invert) = wgmma.scale_d;
        let scale_d = (warp.registers.predicates[scale_d as usize] ^ invert) & exec;
        if scale_d != 0 && scale_d != exec {
            return Err("`scale-d` differs among lanes".into());
        }
        let control = WgmmaControl { scale_d: scale_d != 0, ..wgmma.control };
        let mut d = Vec::new();
        gather(&warp.registers, &wgmma.d, &mut d);
        let mut fragment = Vec::new();
        let a = match &wgmma.a {
            WgmmaOperand::Registers(targets) => {
                gather(&warp.registers, targets, &mut fragment);
                WgmmaA::Registers(&fragment)
            }
            WgmmaOperand::Descriptor(slot) => WgmmaA::Descriptor(warp.registers.wide(*slot)[0]),
        };
        let b = warp.registers.wide(wgmma.b)[0];
        let mut trouble = None;
        let (isa, number, own_rank) = (self.isa, warp.index as usize % 4, self.rank);
        let mut read = |address: u32, bytes: &mut [u8]| {
            if let Err(found) = self.read_operand(warp, own_rank, address, bytes) {
                trouble.get_or_insert(found);
            }
        };
        multiply_group(isa, &wgmma.spec, number, a, b, &mut read, &mut d, control);
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        scatter(&mut warp.registers, &wgmma.d, &d);
        Ok(Flow::Next)
    }
}
