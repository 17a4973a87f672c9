//! `wgmma.mma_async`: a warpgroup multiplies tiles of shared memory onto accumulators in registers.
//!
//! Each of the four warps computes 16 of the 64 rows. Per eight columns its fragments are those of
//! `mma.sync` with m16n8 (PTX ISA 9.0, "Register fragments and shared memory matrix layouts").

use super::decode::{ByteTable, E4M3, E5M2};
use super::element::{Bf16, Element, F16, FloatByte, Int8, Tf32, gather};
use super::mma::Registers;
use super::packing::Packing;
use super::product::{FloatSum, Number, accumulate, add_s32, gather_words, scatter_words};
use super::rounding::FusedSum;
use super::shared_descriptor::{Major, SharedDescriptor};
use super::shared_tile::{K_BYTES, MAX_TILE_BYTES, Tile};
use crate::Lanes;

/// A parsed `wgmma.mma_async` instruction.
#[derive(Clone, Copy, Debug)]
pub struct WgmmaSpec {
    columns: usize,
    operands: Operands,
    sum: Sum,
}

#[derive(Clone, Copy, Debug)]
enum Operands {
    F16,
    Bf16,
    Tf32,
    FloatBytes { a: &'static ByteTable, b: &'static ByteTable },
    Int8 { a_sign: i32, b_sign: i32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    Float(FloatSum),
    S32 { saturate: bool },
}

/// Operand A.
#[derive(Clone, Copy, Debug)]
pub enum WgmmaA<'a> {
    /// This warp's four registers.
    Registers(&'a [Lanes]),
    /// A descriptor of all 64 rows.
    Descriptor(u64),
}

/// Trailing operands. Integer forms have only `scale_d`, and only 16-bit types are transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaControl {
    /// Whether D is an addend; otherwise its registers are not read.
    pub scale_d: bool,
    /// 1, or -1 to negate A.
    pub scale_a: i32,
    /// 1, or -1 to negate B.
    pub scale_b: i32,
    /// Whether a shared A is MN-major.
    pub trans_a: bool,
    /// Whether B is MN-major.
    pub trans_b: bool,
}

impl WgmmaControl {
    /// `scale_d` alone, the other operands at their defaults.
    pub fn new(scale_d: bool) -> Self {
        Self { scale_d, scale_a: 1, scale_b: 1, trans_a: false, trans_b: false }
    }
}

impl WgmmaSpec {
    /// `modifiers`: what follows `wgmma.`, split at dots. Errors name the modifier or the
    /// combination.
    pub fn parse(modifiers: &[&str]) -> Result<Self, String> {
        let (mut shape, mut types, mut saturate) = (None, Vec::new(), false);
        for &modifier in modifiers {
            match modifier {
                "mma_async" | "sync" | "aligned" => {}
                "satfinite" => saturate = true,
                "f16" | "bf16" | "tf32" | "f32" | "s32" | "s8" | "u8" | "e4m3" | "e5m2" => {
                    types.push(modifier)
                }
                _ => match modifier.strip_prefix("m64n").and_then(|rest| rest.split_once('k')) {
                    Some((n, k)) => shape = n.parse::<usize>().ok().zip(k.parse::<usize>().ok()),
                    None => return Err(format!("wgmma: unknown modifier .{modifier}")),
                },
            }
        }
        let unsupported = || format!("wgmma.{}: unsupported combination", modifiers.join("."));
        let (columns, k) = shape.ok_or_else(unsupported)?;
        let &[d, a, b] = types.as_slice() else { return Err(unsupported()) };
        let byte_table = |element| if element == "e4m3" { &E4M3 } else { &E5M2 };
        let sign = |element| if element == "s8" { 128 } else { 0 };
        let operands = match (a, b, k) {
            ("f16", "f16", 16) => Operands::F16,
            ("bf16", "bf16", 16) => Operands::Bf16,
            ("tf32", "tf32", 8) => Operands::Tf32,
            ("e4m3" | "e5m2", "e4m3" | "e5m2", 32) => {
                Operands::FloatBytes { a: byte_table(a), b: byte_table(b) }
            }
            ("s8" | "u8", "s8" | "u8", 32) => Operands::Int8 { a_sign: sign(a), b_sign: sign(b) },
            _ => return Err(unsupported()),
        };
        let sum = match (d, operands) {
            ("s32", Operands::Int8 { .. }) => Sum::S32 { saturate },
            (_, Operands::Int8 { .. }) => return Err(unsupported()),
            ("f16", Operands::F16 | Operands::FloatBytes { .. }) => Sum::Float(FloatSum::F16),
            ("f32", _) => Sum::Float(FloatSum::F32),
            _ => return Err(unsupported()),
        };
        let step = if d == "s32" && columns > 32 { 16 } else { 8 };
        if columns == 0 || columns > 256 || columns % step != 0 {
            return Err(unsupported());
        }
        Ok(Self { columns, operands, sum })
    }

    /// Registers per thread: `a` counts an A in registers, `b` is 0.
    pub fn registers(&self) -> Registers {
        let sum = self.columns / 8 * self.registers_per_block();
        Registers { a: 4, b: 0, c: sum, d: sum }
    }

    /// Registers of eight columns.
    fn registers_per_block(&self) -> usize {
        match self.sum {
            Sum::Float(sum) => sum.num_registers(16),
            Sum::S32 { .. } => 4,
        }
    }

    fn element_bytes(&self) -> usize {
        match self.operands {
            Operands::F16 | Operands::Bf16 => 2,
            Operands::Tf32 => 4,
            Operands::FloatBytes { .. } | Operands::Int8 { .. } => 1,
        }
    }

    /// Computes the 16 rows of warp `warp_in_group` (0 to 3) onto `d`.
    ///
    /// - `b`: descriptor of B
    /// - `read`: fills its buffer from a shared address
    /// - `d`: the warp's accumulators, at least [`WgmmaSpec::registers`]
    ///
    /// Without `avx2,fma` in the caller's target features the result is the same and slow.
    #[inline(always)]
    pub fn execute(
        &self,
        warp_in_group: usize,
        a: WgmmaA<'_>,
        b: u64,
        read: &mut impl FnMut(u32, &mut [u8]),
        d: &mut [Lanes],
        control: WgmmaControl,
    ) {
        let descriptor = SharedDescriptor::decode(b);
        let b_major = if control.trans_b { Major::Mn } else { Major::K };
        let mut buffer = [0; MAX_TILE_BYTES];
        let extent = 0..self.columns as u32;
        let tile =
            Tile::read(&descriptor, b_major, extent, self.element_bytes(), Packing::Bytes, read, &mut buffer);
        match self.operands {
            Operands::F16 => {
                let a = self.load_a::<_, 16>(F16, warp_in_group, a, control.trans_a, read);
                self.floats(a, F16.least_exponent(), F16, tile, d, control);
            }
            Operands::Bf16 => {
                let a = self.load_a::<_, 16>(Bf16, warp_in_group, a, control.trans_a, read);
                self.floats(a, Bf16.least_exponent(), Bf16, tile, d, control);
            }
            Operands::Tf32 => {
                let a = self.load_a::<_, 8>(Tf32, warp_in_group, a, false, read);
                self.floats(a, Tf32.least_exponent(), Tf32, tile, d, control);
            }
            Operands::FloatBytes { a: a_table, b: b_table } => {
                let a = self.load_a::<_, 32>(FloatByte(a_table), warp_in_group, a, false, read);
                self.floats(a, a_table.least_exponent, FloatByte(b_table), tile, d, control);
            }
            Operands::Int8 { a_sign, b_sign } => {
                let a = self.load_a::<_, 32>(Int8(a_sign), warp_in_group, a, false, read);
                self.integers(&a, Int8(b_sign), tile, d, control);
            }
        }
    }

    /// The 16 rows of A that `warp` multiplies.
    #[inline(always)]
    fn load_a<E: Element<Value: Number>, const K: usize>(
        &self,
        element: E,
        warp: usize,
        a: WgmmaA<'_>,
        trans: bool,
        read: &mut impl FnMut(u32, &mut [u8]),
    ) -> [[E::Value; K]; 16] {
        let descriptor = match a {
            WgmmaA::Registers(registers) => return gather(element, registers),
            WgmmaA::Descriptor(descriptor) => SharedDescriptor::decode(descriptor),
        };
        let major = if trans { Major::Mn } else { Major::K };
        let first = 16 * warp as u32;
        let mut buffer = [0; 16 * K_BYTES];
        Tile::read(
            &descriptor,
            major,
            first..first + 16,
            self.element_bytes(),
            Packing::Bytes,
            read,
            &mut buffer,
        )
        .rows(element, 0)
    }

    #[inline(always)]
    fn floats<E: Element<Value = f32>, const K: usize>(
        &self,
        mut a: [[f32; K]; 16],
        a_least: i32,
        b_element: E,
        b: Tile<'_>,
        d: &mut [Lanes],
        control: WgmmaControl,
    ) {
        if control.scale_a * control.scale_b < 0 {
            for value in a.as_flattened_mut() {
                *value = -*value;
            }
        }
        let format = if self.sum == Sum::Float(FloatSum::F16) { FloatSum::F16 } else { FloatSum::F32 };
        let least = [a_least, b_element.least_exponent()];
        for (block, registers) in
            d.chunks_exact_mut(self.registers_per_block()).take(self.columns / 8).enumerate()
        {
            let mut sums = if control.scale_d { format.gather(registers) } else { [[0.0; 8]; 16] };
            let b = b.columns::<E, K>(b_element, block);
            FusedSum::of_wgmma(K).add(&a, &b, least, format, &mut sums);
            format.scatter(&sums, registers);
        }
    }

    #[inline(always)]
    fn integers(
        &self,
        a: &[[f32; 32]; 16],
        b_element: Int8,
        b: Tile<'_>,
        d: &mut [Lanes],
        control: WgmmaControl,
    ) {
        let saturate = self.sum == Sum::S32 { saturate: true };
        for (block, registers) in d.chunks_exact_mut(4).take(self.columns / 8).enumerate() {
            let mut products = [[0.0; 8]; 16];
            accumulate(a, &b.columns(b_element, block), 0..32, &mut products);
            let mut tile = if control.scale_d { gather_words(registers) } else { [[0; 8]; 16] };
            add_s32(&products, saturate, &mut tile);
            scatter_words(&tile, registers);
        }
    }
}

#[cfg(test)]
mod tests;
