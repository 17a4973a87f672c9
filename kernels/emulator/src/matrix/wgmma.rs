//! `wgmma.mma_async`: a warpgroup multiplies tiles of shared memory onto accumulators in registers.
//!
//! Each of the four warps computes 16 of the 64 rows. Per eight columns its fragments are those of
//! `mma.sync` with m16n8 (PTX ISA 9.0, "Register fragments and shared memory matrix layouts").

use super::decode::{ByteTable, E4M3, E5M2};
use super::element::{Bf16, Element, F16, FloatByte, Int8, Tf32, gather};
use super::mma::Registers;
use super::product::{FloatSum, Number, Row, accumulate, add_s32, transpose};
use super::shared_descriptor::{Major, SharedDescriptor};
use crate::Lanes;

/// Bytes of one row of A, or column of B, per instruction.
const K_BYTES: usize = 32;
/// Bytes of the largest tile of B: 256 columns.
const MAX_TILE_BYTES: usize = 256 * K_BYTES;

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
    /// `modifiers`: what follows `wgmma.`, split at dots. Errors name the modifier or the combination.
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
        let b_major = if control.trans_b { Major::Mn } else { Major::K };
        let mut buffer = [0; MAX_TILE_BYTES];
        let tile = &mut buffer[..self.columns * K_BYTES];
        let (lines, chunks) = match b_major {
            Major::K => (self.columns, K_BYTES / 16),
            // Two bytes per element: 16 lines of k.
            Major::Mn => (16, self.columns / 8),
        };
        SharedDescriptor::decode(b).read_lines(b_major, 0..lines as u32, 0..chunks as u32, read, tile);
        let tile = Tile { bytes: tile, major: b_major };
        match self.operands {
            Operands::F16 => {
                let a = load_a::<_, 16>(F16, warp_in_group, a, control.trans_a, read);
                self.floats(a, F16, tile, d, control);
            }
            Operands::Bf16 => {
                let a = load_a::<_, 16>(Bf16, warp_in_group, a, control.trans_a, read);
                self.floats(a, Bf16, tile, d, control);
            }
            Operands::Tf32 => {
                let a = load_a::<_, 8>(Tf32, warp_in_group, a, false, read);
                self.floats(a, Tf32, tile, d, control);
            }
            Operands::FloatBytes { a: a_table, b: b_table } => {
                let a = load_a::<_, 32>(FloatByte(a_table), warp_in_group, a, false, read);
                self.floats(a, FloatByte(b_table), tile, d, control);
            }
            Operands::Int8 { a_sign, b_sign } => {
                let a = load_a::<_, 32>(Int8(a_sign), warp_in_group, a, false, read);
                self.integers(&a, Int8(b_sign), tile, d, control);
            }
        }
    }

    #[inline(always)]
    fn floats<E: Element<Value = f32>, const K: usize>(
        &self,
        mut a: [[f32; K]; 16],
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
        for (block, registers) in
            d.chunks_exact_mut(self.registers_per_block()).take(self.columns / 8).enumerate()
        {
            let mut sums = if control.scale_d { format.gather(registers) } else { [[0.0; 8]; 16] };
            accumulate(&a, &b.columns::<E, K>(b_element, block), 0..K, &mut sums);
            format.scatter(&sums, registers);
        }
    }

    #[inline(always)]
    fn integers(
        &self,
        a: &[[i32; 32]; 16],
        b_element: Int8,
        b: Tile<'_>,
        d: &mut [Lanes],
        control: WgmmaControl,
    ) {
        let saturate = self.sum == Sum::S32 { saturate: true };
        for (block, registers) in d.chunks_exact_mut(4).take(self.columns / 8).enumerate() {
            let mut products = [[0; 8]; 16];
            accumulate(a, &b.columns(b_element, block), 0..32, &mut products);
            let c: [Lanes; 4] = match registers {
                [c0, c1, c2, c3] if control.scale_d => [*c0, *c1, *c2, *c3],
                _ => [[0; 32]; 4],
            };
            add_s32(&products, saturate, &c, registers);
        }
    }
}

/// B as read from shared memory: K-major 32 bytes per column, MN-major 16 rows of k.
#[derive(Clone, Copy)]
struct Tile<'a> {
    bytes: &'a [u8],
    major: Major,
}

impl Tile<'_> {
    /// Columns 8 `block` to 8 `block` + 7.
    #[inline(always)]
    fn columns<E: Element<Value: Number>, const K: usize>(
        self,
        element: E,
        block: usize,
    ) -> [Row<E::Value>; K] {
        match self.major {
            Major::K => {
                let bytes = &self.bytes[8 * K_BYTES * block..][..8 * K_BYTES];
                transpose(&dense_lines::<E, 8, K>(element, bytes, K_BYTES))
            }
            Major::Mn => dense_lines(element, &self.bytes[16 * block..], self.bytes.len() / K),
        }
    }
}

/// Elements of `LINES` lines, `pitch` bytes apart.
#[inline(always)]
fn dense_lines<E: Element, const LINES: usize, const LEN: usize>(
    element: E,
    bytes: &[u8],
    pitch: usize,
) -> [[E::Value; LEN]; LINES] {
    let mut dense = [[E::Value::default(); LEN]; LINES];
    let per = E::PER_REGISTER;
    for (line, out) in dense.iter_mut().enumerate() {
        let words = bytes[line * pitch..].as_chunks::<4>().0;
        for (word, values) in words.iter().zip(out.chunks_exact_mut(per)) {
            element.unpack(u32::from_le_bytes(*word), values);
        }
    }
    dense
}

/// The 16 rows of A that `warp` multiplies.
#[inline(always)]
fn load_a<E: Element<Value: Number>, const K: usize>(
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
    let mut bytes = [0; 16 * K_BYTES];
    let first = 16 * warp as u32;
    if !trans {
        descriptor.read_lines(Major::K, first..first + 16, 0..2, read, &mut bytes);
        return dense_lines(element, &bytes, K_BYTES);
    }
    // 16 lines of k, each with the 32 bytes of this warp's rows.
    let chunk = first / 8;
    descriptor.read_lines(Major::Mn, 0..16, chunk..chunk + 2, read, &mut bytes);
    let columns = dense_lines::<E, K, 16>(element, &bytes, K_BYTES);
    let mut rows = [[E::Value::default(); K]; 16];
    for (k, column) in columns.iter().enumerate() {
        for (row, &value) in rows.iter_mut().zip(column) {
            row[k] = value;
        }
    }
    rows
}

#[cfg(test)]
mod tests;
