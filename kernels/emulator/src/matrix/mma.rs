//! `mma.sync`: one warp multiplies fragments held in registers.

use super::block_scale::{BlockScales, ScaleFormat};
use super::decode::{ByteTable, E2M1_PADDED, E2M3, E3M2, E4M3, E5M2};
use super::element::{Bf16, Bits, E2m1, Element, F16, FloatByte, Int4, Int8, Tf32, gather, gather_f64};
use super::product::{
    FloatSum, accumulate, add_s32, gather_f32, gather_sums_f64, gather_words, scatter_f32, scatter_sums_f64,
    scatter_words, transpose,
};
use super::rounding::{FusedSum, add_blocks};
use crate::Lanes;

/// A parsed `mma.sync` instruction with 8 columns and 8 or 16 rows.
#[derive(Clone, Copy, Debug)]
pub struct MmaSpec {
    rows: usize,
    k: usize,
    operands: Operands,
    sum: Sum,
    /// Architecture, as 80 for sm_80.
    sm: u32,
}

/// Operand sizes in registers of 32 bits; an f64 takes two, low half first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Registers of A.
    pub a: usize,
    /// Registers of B.
    pub b: usize,
    /// Registers of C.
    pub c: usize,
    /// Registers of D.
    pub d: usize,
}

/// Element types of A and B, with what unpacking them needs.
#[derive(Clone, Copy, Debug)]
enum Operands {
    F16,
    Bf16,
    Tf32,
    F64,
    FloatBytes { a: &'static ByteTable, b: &'static ByteTable, scale: Option<ScaleFormat> },
    E2m1 { scale: ScaleFormat, block: usize },
    Int8 { a_sign: i32, b_sign: i32 },
    Int4 { a_sign: i32, b_sign: i32 },
    Bits(BitOperation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BitOperation {
    Xor,
    And,
}

/// Type of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    Float(FloatSum),
    F64,
    S32 { saturate: bool },
}

/// Modifiers sorted by meaning; their order in the text is free except among the types.
#[derive(Default)]
struct Modifiers<'a> {
    shape: Option<(usize, usize, usize)>,
    kind: Option<&'a str>,
    types: Vec<&'a str>,
    layouts: Vec<&'a str>,
    scale_vector: Option<usize>,
    block_scale: bool,
    saturate: bool,
    operation: Option<BitOperation>,
}

impl MmaSpec {
    /// `modifiers`: what follows `mma.`, split at dots; `sm`: the architecture, as 80 for sm_80. Errors name the modifier or the
    /// combination.
    pub fn parse(modifiers: &[&str], sm: u32) -> Result<Self, String> {
        let sorted = Modifiers::sort(modifiers)?;
        let unsupported = || format!("mma.{}: unsupported combination", modifiers.join("."));
        let (rows, columns, k) = sorted.shape.ok_or_else(unsupported)?;
        let (&[d, a, b, c], scale) = match sorted.types.split_first_chunk() {
            Some((types, scale)) => (types, scale),
            None => return Err(unsupported()),
        };
        if columns != 8 || d != c || sorted.layouts != ["row", "col"] || scale.len() > 1 {
            return Err(unsupported());
        }
        let operands = sorted.operands(a, b, scale.first().copied(), k).ok_or_else(unsupported)?;
        let sum = match d {
            "f16" => Sum::Float(FloatSum::F16),
            "f32" => Sum::Float(FloatSum::F32),
            "f64" => Sum::F64,
            "s32" => Sum::S32 { saturate: sorted.saturate },
            _ => return Err(unsupported()),
        };
        let spec = Self { rows, k, operands, sum, sm };
        if spec.exists() { Ok(spec) } else { Err(unsupported()) }
    }

    /// Operand sizes.
    pub fn registers(&self) -> Registers {
        let bits = self.element_bits();
        let sum = match self.sum {
            Sum::Float(sum) => sum.num_registers(self.rows),
            Sum::F64 => self.rows / 2,
            Sum::S32 { .. } => self.rows / 4,
        };
        Registers { a: self.rows * self.k * bits / 1024, b: 8 * self.k * bits / 1024, c: sum, d: sum }
    }

    /// Whether the instruction has scale operands.
    pub fn is_block_scaled(&self) -> bool {
        matches!(self.operands, Operands::FloatBytes { scale: Some(_), .. } | Operands::E2m1 { .. })
    }

    /// Whether the selectors name bytes and lanes that the scale operands have.
    pub fn allows(&self, scales: &BlockScales<'_>) -> bool {
        let blocks = match self.operands {
            Operands::E2m1 { block, .. } => 64 / block,
            _ => 1,
        };
        let byte = |id: usize| id.is_multiple_of(blocks) && id + blocks <= 4;
        byte(scales.byte_id_a) && byte(scales.byte_id_b) && scales.thread_id_a < 2 && scales.thread_id_b < 4
    }

    /// Bits that one element of A or B takes in its register.
    fn element_bits(&self) -> usize {
        match self.operands {
            Operands::F64 => 64,
            Operands::Tf32 => 32,
            Operands::F16 | Operands::Bf16 => 16,
            Operands::FloatBytes { .. } | Operands::Int8 { .. } => 8,
            Operands::E2m1 { .. } | Operands::Int4 { .. } => 4,
            Operands::Bits(_) => 1,
        }
    }

    /// Whether shape, operand types and sum type occur together.
    fn exists(&self) -> bool {
        let shapes: &[(usize, usize)] = match self.operands {
            Operands::F16 | Operands::Bf16 => &[(16, 8), (16, 16)],
            Operands::Tf32 => &[(16, 4), (16, 8)],
            Operands::F64 => &[(8, 4), (16, 4), (16, 8), (16, 16)],
            Operands::FloatBytes { scale: None, .. } => &[(16, 16), (16, 32)],
            Operands::FloatBytes { .. } => &[(16, 32)],
            Operands::E2m1 { .. } => &[(16, 64)],
            Operands::Int8 { .. } => &[(8, 16), (16, 16), (16, 32)],
            Operands::Int4 { .. } => &[(8, 32), (16, 32), (16, 64)],
            Operands::Bits(_) => &[(8, 128), (16, 128), (16, 256)],
        };
        let sum = match self.operands {
            Operands::F16 | Operands::FloatBytes { scale: None, .. } => matches!(self.sum, Sum::Float(_)),
            Operands::F64 => self.sum == Sum::F64,
            Operands::Int8 { .. } | Operands::Int4 { .. } => matches!(self.sum, Sum::S32 { .. }),
            Operands::Bits(_) => self.sum == Sum::S32 { saturate: false },
            _ => self.sum == Sum::Float(FloatSum::F32),
        };
        sum && shapes.contains(&(self.rows, self.k))
    }

    /// `d = a b + c`; slices hold at least [`MmaSpec::registers`] registers.
    ///
    /// Without `avx2,fma` in the caller's target features the result is the same and slow.
    /// Panics when a slice is too short, or when `scale` is absent for a block-scaled instruction.
    #[inline(always)]
    pub fn execute(
        &self,
        a: &[Lanes],
        b: &[Lanes],
        c: &[Lanes],
        scale: Option<BlockScales>,
        d: &mut [Lanes],
    ) {
        match (self.operands, self.k) {
            (Operands::Bf16, 8) => self.floats::<_, _, 8>(Bf16, Bf16, a, b, c, d),
            (Operands::Bf16, _) => self.floats::<_, _, 16>(Bf16, Bf16, a, b, c, d),
            (Operands::F16, 8) => self.floats::<_, _, 8>(F16, F16, a, b, c, d),
            (Operands::F16, _) => self.floats::<_, _, 16>(F16, F16, a, b, c, d),
            (Operands::Tf32, 4) => self.floats::<_, _, 4>(Tf32, Tf32, a, b, c, d),
            (Operands::Tf32, _) => self.floats::<_, _, 8>(Tf32, Tf32, a, b, c, d),
            (Operands::FloatBytes { a: a_table, b: b_table, scale: None }, 16) => {
                self.floats::<_, _, 16>(FloatByte(a_table), FloatByte(b_table), a, b, c, d);
            }
            (Operands::FloatBytes { a: a_table, b: b_table, scale: None }, _) => {
                self.floats::<_, _, 32>(FloatByte(a_table), FloatByte(b_table), a, b, c, d);
            }
            (Operands::FloatBytes { a: a_table, b: b_table, scale: Some(format) }, _) => {
                let a = gather::<_, 16, 32>(FloatByte(a_table), a);
                let b = transpose(&gather::<_, 8, 32>(FloatByte(b_table), b));
                let scale = scale.expect("a block-scaled product has scale operands");
                let mut sums = gather_f32::<16>(c);
                let codes = [&scale.a_codes(0)[..], &scale.b_codes(0)];
                let least = [a_table.least_exponent, b_table.least_exponent];
                FusedSum::of_tcgen05(32).add_scaled(&a, &b, least, format, codes, &mut sums);
                scatter_f32(&sums, d);
            }
            (Operands::E2m1 { scale: format, block }, _) => {
                let a = gather::<_, 16, 64>(E2m1, a);
                let b = transpose(&gather::<_, 8, 64>(E2m1, b));
                let scale = scale.expect("a block-scaled product has scale operands");
                let mut sums = gather_f32::<16>(c);
                let codes = |index| (scale.a_codes(index), scale.b_codes(index));
                add_blocks(&a, &b, block, format, codes, &mut sums);
                scatter_f32(&sums, d);
            }
            (Operands::Int8 { a_sign, b_sign }, 16) => match self.rows {
                8 => self.integers::<_, 8, 16>(Int8(a_sign), Int8(b_sign), a, b, c, d),
                _ => self.integers::<_, 16, 16>(Int8(a_sign), Int8(b_sign), a, b, c, d),
            },
            (Operands::Int8 { a_sign, b_sign }, _) => {
                self.integers::<_, 16, 32>(Int8(a_sign), Int8(b_sign), a, b, c, d);
            }
            (Operands::Int4 { a_sign, b_sign }, 32) => match self.rows {
                8 => self.integers::<_, 8, 32>(Int4(a_sign), Int4(b_sign), a, b, c, d),
                _ => self.integers::<_, 16, 32>(Int4(a_sign), Int4(b_sign), a, b, c, d),
            },
            (Operands::Int4 { a_sign, b_sign }, _) => {
                self.integers::<_, 16, 64>(Int4(a_sign), Int4(b_sign), a, b, c, d);
            }
            (Operands::Bits(operation), 128) => match self.rows {
                8 => bits::<8, 4>(operation, a, b, c, d),
                _ => bits::<16, 4>(operation, a, b, c, d),
            },
            (Operands::Bits(operation), _) => bits::<16, 8>(operation, a, b, c, d),
            (Operands::F64, 4) => match self.rows {
                8 => doubles::<8, 4>(a, b, c, d),
                _ => doubles::<16, 4>(a, b, c, d),
            },
            (Operands::F64, 8) => doubles::<16, 8>(a, b, c, d),
            (Operands::F64, _) => doubles::<16, 16>(a, b, c, d),
        }
    }

    #[inline(always)]
    fn floats<A: Element<Value = f32>, B: Element<Value = f32>, const K: usize>(
        &self,
        a_element: A,
        b_element: B,
        a: &[Lanes],
        b: &[Lanes],
        c: &[Lanes],
        d: &mut [Lanes],
    ) {
        let least = [a_element.least_exponent(), b_element.least_exponent()];
        let a = gather::<A, 16, K>(a_element, a);
        let b = transpose(&gather::<B, 8, K>(b_element, b));
        let format = if self.sum == Sum::Float(FloatSum::F16) { FloatSum::F16 } else { FloatSum::F32 };
        let mut sums = format.gather(c);
        FusedSum::of_mma(self.sm, K, self.element_bits()).add(&a, &b, least, format, &mut sums);
        format.scatter(&sums, d);
    }

    #[inline(always)]
    fn integers<E: Element<Value = f32>, const M: usize, const K: usize>(
        &self,
        a_element: E,
        b_element: E,
        a: &[Lanes],
        b: &[Lanes],
        c: &[Lanes],
        d: &mut [Lanes],
    ) {
        let a = gather::<E, M, K>(a_element, a);
        let b = transpose(&gather::<E, 8, K>(b_element, b));
        let mut products = [[0.0; 8]; M];
        accumulate(&a, &b, 0..K, &mut products);
        let mut tile = gather_words(c);
        add_s32(&products, self.sum == Sum::S32 { saturate: true }, &mut tile);
        scatter_words(&tile, d);
    }
}

impl<'a> Modifiers<'a> {
    fn sort(modifiers: &[&'a str]) -> Result<Self, String> {
        let mut sorted = Self::default();
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" | "popc" | "rn" => {}
                "row" | "col" => sorted.layouts.push(modifier),
                "satfinite" => sorted.saturate = true,
                "block_scale" => sorted.block_scale = true,
                "xor" => sorted.operation = Some(BitOperation::Xor),
                "and" => sorted.operation = Some(BitOperation::And),
                "scale_vec::1X" => sorted.scale_vector = Some(1),
                "scale_vec::2X" => sorted.scale_vector = Some(2),
                "scale_vec::4X" => sorted.scale_vector = Some(4),
                "f16" | "bf16" | "tf32" | "f32" | "f64" | "s32" | "s8" | "u8" | "s4" | "u4" | "b1"
                | "e4m3" | "e5m2" | "e2m3" | "e3m2" | "e2m1" | "ue8m0" | "ue4m3" => {
                    sorted.types.push(modifier)
                }
                _ => {
                    if let Some(kind) = modifier.strip_prefix("kind::") {
                        sorted.kind = Some(kind);
                    } else if let Some(shape) = parse_shape(modifier) {
                        sorted.shape = Some(shape);
                    } else {
                        return Err(format!("mma: unknown modifier .{modifier}"));
                    }
                }
            }
        }
        Ok(sorted)
    }

    fn operands(&self, a: &str, b: &str, scale: Option<&str>, k: usize) -> Option<Operands> {
        if let Some(kind @ ("mxf8f6f4" | "mxf4" | "mxf4nvf4")) = self.kind {
            return self.scaled_operands(kind, a, b, ScaleFormat::parse(scale?)?);
        }
        if self.block_scale || scale.is_some() {
            return None;
        }
        if self.kind == Some("f8f6f4") {
            // Only this kind has formats below 8 bits, and only k = 32.
            return (k == 32).then_some(Operands::FloatBytes {
                a: byte_table(a)?,
                b: byte_table(b)?,
                scale: None,
            });
        }
        match (a, b) {
            _ if self.kind.is_some() => None,
            ("f16", "f16") => Some(Operands::F16),
            ("bf16", "bf16") => Some(Operands::Bf16),
            ("tf32", "tf32") => Some(Operands::Tf32),
            ("f64", "f64") => Some(Operands::F64),
            ("e4m3" | "e5m2", "e4m3" | "e5m2") => {
                Some(Operands::FloatBytes { a: byte_table(a)?, b: byte_table(b)?, scale: None })
            }
            ("s8" | "u8", "s8" | "u8") => {
                Some(Operands::Int8 { a_sign: sign_weight(a, 128), b_sign: sign_weight(b, 128) })
            }
            ("s4" | "u4", "s4" | "u4") => {
                Some(Operands::Int4 { a_sign: sign_weight(a, 8), b_sign: sign_weight(b, 8) })
            }
            ("b1", "b1") => self.operation.map(Operands::Bits),
            _ => None,
        }
    }

    fn scaled_operands(&self, kind: &str, a: &str, b: &str, format: ScaleFormat) -> Option<Operands> {
        if !self.block_scale {
            return None;
        }
        match (kind, self.scale_vector, format) {
            ("mxf8f6f4", None | Some(1), ScaleFormat::Ue8m0) => {
                Some(Operands::FloatBytes { a: byte_table(a)?, b: byte_table(b)?, scale: Some(format) })
            }
            _ if (a, b) != ("e2m1", "e2m1") => None,
            ("mxf4", None | Some(2), ScaleFormat::Ue8m0) | ("mxf4nvf4", Some(2), ScaleFormat::Ue8m0) => {
                Some(Operands::E2m1 { scale: format, block: 32 })
            }
            ("mxf4nvf4", Some(4), _) => Some(Operands::E2m1 { scale: format, block: 16 }),
            _ => None,
        }
    }
}

fn parse_shape(modifier: &str) -> Option<(usize, usize, usize)> {
    let (m, rest) = modifier.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

fn byte_table(element: &str) -> Option<&'static ByteTable> {
    match element {
        "e4m3" => Some(&E4M3),
        "e5m2" => Some(&E5M2),
        "e2m3" => Some(&E2M3),
        "e3m2" => Some(&E3M2),
        "e2m1" => Some(&E2M1_PADDED),
        _ => None,
    }
}

fn sign_weight(element: &str, weight: i32) -> i32 {
    if element.starts_with('s') { weight } else { 0 }
}

#[inline(always)]
fn doubles<const M: usize, const K: usize>(a: &[Lanes], b: &[Lanes], c: &[Lanes], d: &mut [Lanes]) {
    let a = gather_f64::<M, K>(a);
    let b = transpose(&gather_f64::<8, K>(b));
    let mut sums = gather_sums_f64(c);
    accumulate(&a, &b, 0..K, &mut sums);
    scatter_sums_f64(&sums, d);
}

/// `WORDS`: k / 32. Sums wrap.
#[inline(always)]
fn bits<const M: usize, const WORDS: usize>(
    operation: BitOperation,
    a: &[Lanes],
    b: &[Lanes],
    c: &[Lanes],
    d: &mut [Lanes],
) {
    let a = gather::<_, M, WORDS>(Bits, a);
    let b = gather::<_, 8, WORDS>(Bits, b);
    let mut tile = gather_words::<M>(c);
    for (row, a_words) in tile.iter_mut().zip(&a) {
        for (sum, b_words) in row.iter_mut().zip(&b) {
            for (&x, &y) in a_words.iter().zip(b_words) {
                let bits = if operation == BitOperation::Xor { x ^ y } else { x & y };
                *sum = sum.wrapping_add(bits.count_ones());
            }
        }
    }
    scatter_words(&tile, d);
}

#[cfg(test)]
mod tests;
