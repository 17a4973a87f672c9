//! Operand elements: how a 32-bit register unpacks, and how fragments become dense matrices.
//!
//! Lane 4g + c of a warp holds row g (A, C) or column g (B). B is gathered by its columns, so both
//! operands follow one formula: register i covers row g + 8 (i mod h) of the h groups of eight
//! rows, and elements (i div h) 4p + c p … + p - 1 along k, with p elements per register (PTX ISA
//! 9.0, "Matrix Fragments for mma").

use super::decode::{ByteTable, E2M1_PAIRS, f16_to_f32};
use crate::Lanes;

/// An element format: unpacks the elements of one register, the low bits first.
pub(super) trait Element: Copy {
    /// What arithmetic uses.
    type Value: Copy + Default;
    /// Elements per 32-bit register.
    const PER_REGISTER: usize;

    /// Exponent of the least normal value of a float.
    #[inline(always)]
    fn least_exponent(self) -> i32 {
        -126
    }

    /// `out`: `PER_REGISTER` values.
    fn unpack(self, register: u32, out: &mut [Self::Value]);
}

#[derive(Clone, Copy)]
pub(super) struct F16;
#[derive(Clone, Copy)]
pub(super) struct Bf16;
/// f32 whose low 13 bits are ignored.
#[derive(Clone, Copy)]
pub(super) struct Tf32;
/// 8-bit containers of any float format.
#[derive(Clone, Copy)]
pub(super) struct FloatByte(pub(super) &'static ByteTable);
/// Eight e2m1 per register.
#[derive(Clone, Copy)]
pub(super) struct E2m1;
/// Four bytes, as f32: sums of up to 64 products stay below 2^24 and are exact. The field is the
/// weight of the sign bit: 128 for s8, 0 for u8.
#[derive(Clone, Copy)]
pub(super) struct Int8(pub(super) i32);
/// Eight nibbles, as f32. The field is the weight of the sign bit: 8 for s4, 0 for u4.
#[derive(Clone, Copy)]
pub(super) struct Int4(pub(super) i32);
/// 32 bits of a b1 operand, kept together.
#[derive(Clone, Copy)]
pub(super) struct Bits;

impl Element for F16 {
    type Value = f32;
    const PER_REGISTER: usize = 2;
    #[inline(always)]
    fn least_exponent(self) -> i32 {
        -14
    }
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [f32]) {
        out[0] = f16_to_f32(register & 0xffff);
        out[1] = f16_to_f32(register >> 16);
    }
}

impl Element for Bf16 {
    type Value = f32;
    const PER_REGISTER: usize = 2;
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [f32]) {
        out[0] = f32::from_bits(register << 16);
        out[1] = f32::from_bits(register & 0xffff_0000);
    }
}

impl Element for Tf32 {
    type Value = f32;
    const PER_REGISTER: usize = 1;
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [f32]) {
        out[0] = f32::from_bits(register & !0x1fff);
    }
}

impl Element for FloatByte {
    type Value = f32;
    const PER_REGISTER: usize = 4;
    #[inline(always)]
    fn least_exponent(self) -> i32 {
        self.0.least_exponent
    }
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [f32]) {
        for (byte, value) in register.to_le_bytes().into_iter().zip(out) {
            *value = self.0.values[byte as usize];
        }
    }
}

impl Element for E2m1 {
    type Value = f32;
    const PER_REGISTER: usize = 8;
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [f32]) {
        for (byte, values) in register.to_le_bytes().into_iter().zip(out.chunks_exact_mut(2)) {
            values.copy_from_slice(&E2M1_PAIRS[byte as usize]);
        }
    }
}

impl Element for Int8 {
    type Value = f32;
    const PER_REGISTER: usize = 4;
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [f32]) {
        for (byte, value) in register.to_le_bytes().into_iter().zip(out) {
            *value = ((byte as i32 ^ self.0) - self.0) as f32;
        }
    }
}

impl Element for Int4 {
    type Value = f32;
    const PER_REGISTER: usize = 8;
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [f32]) {
        for (j, value) in out.iter_mut().enumerate() {
            *value = (((register >> (4 * j) & 15) as i32 ^ self.0) - self.0) as f32;
        }
    }
}

impl Element for Bits {
    type Value = u32;
    const PER_REGISTER: usize = 1;
    #[inline(always)]
    fn unpack(self, register: u32, out: &mut [u32]) {
        out[0] = register;
    }
}

/// A fragment as a dense matrix: A by rows, B by columns (`ROWS` = 8).
#[inline(always)]
pub(super) fn gather<E: Element, const ROWS: usize, const K: usize>(
    element: E,
    registers: &[Lanes],
) -> [[E::Value; K]; ROWS] {
    let mut dense = [[E::Value::default(); K]; ROWS];
    let per = E::PER_REGISTER;
    let halves = ROWS / 8;
    for (i, lanes) in registers[..ROWS * K / (32 * per)].iter().enumerate() {
        for g in 0..8 {
            let row = &mut dense[g + 8 * (i % halves)];
            for c in 0..4 {
                let k = (i / halves * 4 + c) * per;
                element.unpack(lanes[4 * g + c], &mut row[k..k + per]);
            }
        }
    }
    dense
}

/// Like [`gather`] for f64: register i is the pair (2i, 2i + 1), low half first.
#[inline(always)]
pub(super) fn gather_f64<const ROWS: usize, const K: usize>(registers: &[Lanes]) -> [[f64; K]; ROWS] {
    let mut dense = [[0.0; K]; ROWS];
    let halves = ROWS / 8;
    for (i, pair) in registers[..ROWS * K / 16].chunks_exact(2).enumerate() {
        for lane in 0..32 {
            dense[lane / 4 + 8 * (i % halves)][i / halves * 4 + lane % 4] = join(pair, lane);
        }
    }
    dense
}

/// The f64 whose halves `pair[0]` (low) and `pair[1]` hold.
#[inline(always)]
pub(super) fn join(pair: &[Lanes], lane: usize) -> f64 {
    f64::from_bits(pair[0][lane] as u64 | (pair[1][lane] as u64) << 32)
}
