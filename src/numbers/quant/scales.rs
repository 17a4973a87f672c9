//! Values of block scales: faults, repairs and distribution.
//!
//! Exporters are known to have written NaN as the scale of a block whose codes are all zero (0 *
//! NaN spoils a row although the block has no information), so that case is repaired. Any other
//! scale that is NaN, infinite or negative means that the file cannot be trusted and is refused.

use super::format::Codes;
use super::fp8::{decode_e4m3, decode_e8m0};
use super::packed::PackedMatrix;
use crate::tensor::{Dtype, ElementType};

/// Result of a pass over the block scales of one matrix.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScaleCheck {
    /// Number of scales that are NaN, infinite or negative on blocks whose codes are all zero:
    /// harmless once repaired.
    pub repairable: u64,
    /// Number of scales that make the matrix unusable.
    pub faults: u64,
    /// First of these scales.
    pub first_fault: Option<ScaleFault>,
}

/// A block scale that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleFault {
    /// First row of the block.
    pub row: usize,
    /// Index of the block along `in`.
    pub block: usize,
    /// Bits as stored, in the width of the dtype.
    pub bits: u32,
    /// Decoded value.
    pub value: f32,
}

impl std::fmt::Display for ScaleFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "row {}, block {}: scale {:#x} is {}", self.row, self.block, self.bits, self.value)
    }
}

/// Distribution of block scales, tensor scales excluded.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScaleRange {
    /// Number of scales.
    pub count: u64,
    /// Number of scales that are zero.
    pub zero: u64,
    /// Number of scales at the format's largest value (E4M3 only): the blocks may have been
    /// clipped.
    pub saturated: u64,
    /// Number of E4M3 scales below 2^-6, which have less than three bits of mantissa.
    pub subnormal: u64,
    /// Smallest scale above zero; 0 without one.
    pub smallest: f32,
    /// Largest finite scale.
    pub largest: f32,
}

impl ScaleRange {
    /// Adds the scales of another matrix.
    pub fn merge(&mut self, other: &ScaleRange) {
        self.count += other.count;
        self.zero += other.zero;
        self.saturated += other.saturated;
        self.subnormal += other.subnormal;
        self.largest = self.largest.max(other.largest);
        self.smallest = match (self.smallest, other.smallest) {
            (0.0, s) | (s, 0.0) => s,
            (a, b) => a.min(b),
        };
    }

    fn add(&mut self, value: f32, times: u64, e4m3: bool) {
        self.count += times;
        if value == 0.0 {
            self.zero += times;
        }
        if !(value.is_finite() && value > 0.0) || times == 0 {
            return;
        }
        self.largest = self.largest.max(value);
        self.smallest = if self.smallest == 0.0 { value } else { self.smallest.min(value) };
        if e4m3 {
            self.saturated += if value == super::fp8::E4M3_MAX { times } else { 0 };
            self.subnormal += if value < 0.015_625 { times } else { 0 };
        }
    }
}

/// Checks every block scale. Codes are read only for a faulty scale, and for a zero FP8 scale (a
/// NaN code would survive it).
pub fn check_scales(matrix: &PackedMatrix<'_>) -> ScaleCheck {
    let mut check = ScaleCheck::default();
    for_each_bad(matrix, |index, bits, value| {
        let (row, block) = position(matrix, index);
        match scale_state(matrix, row, block, value) {
            ScaleState::Fine => {}
            ScaleState::Repairable => check.repairable += 1,
            ScaleState::Fault => {
                check.faults += 1;
                check.first_fault.get_or_insert(ScaleFault { row, block, bits, value });
            }
        }
    });
    check
}

/// The scales with every repairable one replaced by 1: the same matrix, without a repairable fault.
pub fn repaired_scales(matrix: &PackedMatrix<'_>) -> Vec<u8> {
    let mut bytes = matrix.scales.bytes.to_vec();
    let size = matrix.scales.dtype.element_bytes().unwrap_or(1);
    let one: &[u8] = match matrix.scales.dtype {
        Dtype::F8_E4M3 => &[0x38],
        Dtype::BF16 => &[0x80, 0x3f],
        Dtype::F16 => &[0x00, 0x3c],
        Dtype::F32 => &[0, 0, 0x80, 0x3f],
        _ => &[0x7f],
    };
    for_each_bad(matrix, |index, _, value| {
        let (row, block) = position(matrix, index);
        if scale_state(matrix, row, block, value) == ScaleState::Repairable {
            bytes[index * size..(index + 1) * size].copy_from_slice(one);
        }
    });
    bytes
}

/// Distribution of the block scales of one matrix.
pub fn scale_range(matrix: &PackedMatrix<'_>) -> ScaleRange {
    let mut range = ScaleRange::default();
    let scales = &matrix.scales;
    match scales.dtype {
        Dtype::F8_E4M3 | Dtype::U8 | Dtype::F8_E8M0 => {
            let mut counts = [0u64; 256];
            scales.bytes.iter().for_each(|b| counts[usize::from(*b)] += 1);
            let e4m3 = scales.dtype == Dtype::F8_E4M3;
            for (code, times) in (0..=255u8).zip(counts) {
                let value = if e4m3 { decode_e4m3(code) } else { decode_e8m0(code) };
                range.add(value, times, e4m3);
            }
        }
        _ => scales.to_f32().into_iter().for_each(|value| range.add(value, 1, false)),
    }
    range
}

/// Calls `found(index, bits, value)` for every scale that may be faulty.
fn for_each_bad(matrix: &PackedMatrix<'_>, mut found: impl FnMut(usize, u32, f32)) {
    let bytes = matrix.scales.bytes;
    match matrix.scales.dtype {
        // NaN is 0x7f and 0xff, negative codes begin at 0x80: one comparison, which the compiler
        // vectorises. A chunk without such codes, the normal case, is skipped at the speed of
        // memory.
        Dtype::F8_E4M3 => {
            for_each_byte(bytes, |b| b >= 0x7f && b != 0x80, |i, b| found(i, b.into(), decode_e4m3(b)))
        }
        Dtype::U8 | Dtype::F8_E8M0 => {
            for_each_byte(bytes, |b| b == 0xff, |i, b| found(i, b.into(), decode_e8m0(b)))
        }
        Dtype::BF16 | Dtype::F16 => {
            let is_half = matrix.scales.dtype == Dtype::F16;
            let is_fp8 = matrix.format.row().codes == Codes::E4m3;
            let infinity = if is_half { 0x7c00 } else { 0x7f80 };
            for (i, pair) in bytes.chunks_exact(2).enumerate() {
                let bits = u16::from_le_bytes([pair[0], pair[1]]);
                if (bits >= infinity && bits != 0x8000) || (bits == 0 && is_fp8) {
                    let value = match is_half {
                        true => half::f16::from_bits(bits).to_f32(),
                        false => half::bf16::from_bits(bits).to_f32(),
                    };
                    found(i, bits.into(), value);
                }
            }
        }
        _ => {
            for (i, word) in bytes.chunks_exact(4).enumerate() {
                let value = f32::from_le_bytes(std::array::from_fn(|k| word[k]));
                if !(value.is_finite() && value > 0.0) {
                    found(i, value.to_bits(), value);
                }
            }
        }
    }
}

fn for_each_byte(bytes: &[u8], bad: impl Fn(u8) -> bool, mut found: impl FnMut(usize, u8)) {
    const CHUNK: usize = 4096;
    for (c, chunk) in bytes.chunks(CHUNK).enumerate() {
        if chunk.iter().fold(false, |any, b| any | bad(*b)) {
            for (i, byte) in chunk.iter().enumerate().filter(|(_, b)| bad(**b)) {
                found(c * CHUNK + i, *byte);
            }
        }
    }
}

/// First row and block along `in` of a scale.
fn position(matrix: &PackedMatrix<'_>, index: usize) -> (usize, usize) {
    let groups = matrix.row_groups().max(1);
    let rows = matrix.format.row().scale_rows;
    (rows.map_or(0, |rows| index / groups * rows), index % groups)
}

/// State of a block scale that is zero, negative or not finite.
#[derive(Debug, PartialEq, Eq)]
enum ScaleState {
    Fine,
    Repairable,
    Fault,
}

/// A NaN, infinite or negative scale is repairable where the block's codes are all zero: replacing
/// it by 1 loses nothing, unless the format knows no such scale. A zero scale is valid unless a code is NaN.
fn scale_state(matrix: &PackedMatrix<'_>, row: usize, block: usize, value: f32) -> ScaleState {
    let format = matrix.format.row();
    if !format.empty_scales_may_be_nan {
        return ScaleState::Fault;
    }
    let [out, in_features] = matrix.shape;
    let rows = format.scale_rows.map_or(0..out, |rows| row..(row + rows).min(out));
    let group = matrix.format.group().unwrap_or(in_features).max(1);
    let columns = (block * group).min(in_features)..((block + 1) * group).min(in_features);
    let per_byte = 8 / matrix.format.code_bits();
    let every_code = |good: &dyn Fn(u8) -> bool| {
        let columns = columns.start / per_byte..columns.end / per_byte;
        rows.clone().all(|o| matrix.row_codes(o)[columns.clone()].iter().all(|byte| good(*byte)))
    };
    if value == 0.0 {
        let is_clean = every_code(&|byte| !format.codes.has_nan(byte));
        return if is_clean { ScaleState::Fine } else { ScaleState::Fault };
    }
    let zero = every_code(&|byte| format.codes.are_zero(byte));
    if zero { ScaleState::Repairable } else { ScaleState::Fault }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{PackedFormat, TensorScale};
    use crate::tensor::TensorView;

    fn check(
        format: PackedFormat,
        shape: [usize; 2],
        codes: &[u8],
        dtype: Dtype,
        scales: &[u8],
        expected: (u64, u64),
    ) {
        let dims = format.scale_shape(shape);
        let scales = TensorView { dtype, shape: &dims, bytes: scales };
        let tensor_scale = match format {
            PackedFormat::Nvfp4 => TensorScale::Multiply(0.1),
            _ => TensorScale::None,
        };
        let matrix = PackedMatrix::new(format, shape, codes, scales, tensor_scale).unwrap();
        let found = check_scales(&matrix);
        assert_eq!((found.repairable, found.faults), expected, "{format:?} {found:?}");
        assert_eq!(found.first_fault.is_some(), found.faults > 0);
        let repaired = repaired_scales(&matrix);
        let clean = PackedMatrix { scales: TensorView { bytes: &repaired, ..scales }, ..matrix };
        assert_eq!(check_scales(&clean).repairable, 0);
        if found.faults == 0 {
            assert!(clean.to_f32().iter().all(|v| v.is_finite()), "{format:?}");
        }
    }

    #[test]
    fn bad_scales_of_empty_blocks_are_repaired_and_others_are_not() {
        use PackedFormat::*;
        let e4m3 = Dtype::F8_E4M3;
        let mut codes = vec![0u8; 32];
        codes[8..].fill(0x22);
        // 0x88 and 0x80 are zeros too.
        codes[3] = 0x88;
        check(Nvfp4, [2, 32], &codes, e4m3, &[0x7f, 0x38, 0x38, 0x38], (1, 0));
        check(Nvfp4, [2, 32], &codes, e4m3, &[0xff, 0x38, 0x38, 0x38], (1, 0));
        check(Nvfp4, [2, 32], &codes, e4m3, &[0xb8, 0x80, 0x38, 0x00], (1, 0));
        check(Nvfp4, [2, 32], &codes, e4m3, &[0x7f, 0x7f, 0x38, 0xb8], (1, 2));
        check(Mxfp4, [2, 32], &codes, Dtype::U8, &[0xfe, 0x7f], (0, 0));
        check(Mxfp4, [2, 32], &[0; 32], Dtype::U8, &[0xff, 0x7f], (0, 1));
        let zero = [0x88u8; 16];
        check(Int4Group32, [1, 32], &zero, Dtype::BF16, &0x7fc0u16.to_le_bytes(), (1, 0));
        check(Int4Group32, [1, 32], &zero, Dtype::BF16, &0xbf80u16.to_le_bytes(), (1, 0));
        check(Int4Group32, [1, 32], &[0x98; 16], Dtype::BF16, &0x7f80u16.to_le_bytes(), (0, 1));
        check(Fp8Tensor, [1, 2], &[0, 0x80], Dtype::F32, &f32::NAN.to_le_bytes(), (1, 0));
        check(Fp8Tensor, [1, 2], &[0, 1], Dtype::F32, &f32::NAN.to_le_bytes(), (0, 1));
        check(Fp8Tensor, [1, 2], &[0, 0x7f], Dtype::F32, &0f32.to_le_bytes(), (0, 1));
        check(Fp8Tensor, [1, 2], &[0, 0x7e], Dtype::F32, &0f32.to_le_bytes(), (0, 0));
        check(Fp8Row, [2, 1], &[0, 1], Dtype::BF16, &[0x80, 0xbf, 0x80, 0x3f], (1, 0));
        check(Fp8Row, [2, 1], &[0, 1], Dtype::F16, &[0x00, 0xbc, 0x00, 0x3c], (1, 0));
        check(Fp8Row, [2, 1], &[0, 1], Dtype::F16, &[0x00, 0x3c, 0x00, 0x7c], (0, 1));
        check(Fp8Row, [2, 1], &[0, 1], Dtype::F8_E8M0, &[0xff, 0x7f], (1, 0));
        check(Fp8Row, [2, 1], &[0, 1], Dtype::F8_E8M0, &[0x7f, 0xff], (0, 1));
        check(Int4Group32, [1, 32], &zero, Dtype::F16, &0x7e00u16.to_le_bytes(), (1, 0));
    }

    #[test]
    fn the_first_fault_is_where_it_is() {
        let (shape, mut scales) = ([300, 64], vec![0x38u8; 300 * 4]);
        scales[299 * 4 + 2] = 0xb0;
        let dims = [300, 4];
        let codes = vec![0x11; 300 * 32];
        let view = TensorView { dtype: Dtype::F8_E4M3, shape: &dims, bytes: &scales };
        let matrix =
            PackedMatrix::new(PackedFormat::Nvfp4, shape, &codes, view, TensorScale::Multiply(0.1)).unwrap();
        let fault = check_scales(&matrix).first_fault.unwrap();
        assert_eq!((fault.row, fault.block, fault.bits), (299, 2, 0xb0));
        assert_eq!(fault.to_string(), "row 299, block 2: scale 0xb0 is -0.5");
    }

    #[test]
    fn the_range_counts_zeros_and_the_ends() {
        let scales = [0x00, 0x7e, 0x01, 0x38];
        let dims = [1, 4];
        let view = TensorView { dtype: Dtype::F8_E4M3, shape: &dims, bytes: &scales };
        let codes = [0u8; 32];
        let matrix =
            PackedMatrix::new(PackedFormat::Nvfp4, [1, 64], &codes, view, TensorScale::Multiply(0.1))
                .unwrap();
        let range = scale_range(&matrix);
        let expected = ScaleRange {
            count: 4,
            zero: 1,
            saturated: 1,
            subnormal: 1,
            smallest: 2f32.powi(-9),
            largest: 448.0,
        };
        assert_eq!(range, expected);
    }
}
