//! Packed matrices: codes of four or eight bits, scales per block, in some formats a scale per
//! tensor.

use std::borrow::Cow;

use super::format::{PackedFormat, decode_scale};
use crate::tensor::{Dtype, ElementType, TensorView};

/// The scale of a whole tensor, beside the block scales.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TensorScale {
    /// The format has no tensor scale.
    None,
    /// Block scales are multiplied by it (modelopt's `weight_scale_2`).
    Multiply(f32),
    /// Block scales are divided by it (compressed-tensors' `weight_global_scale`).
    Divide(f32),
}

impl TensorScale {
    /// A block's scale with the tensor scale applied, in f32, in the order of the reference
    /// packages.
    #[inline]
    pub fn apply(self, block: f32) -> f32 {
        match self {
            TensorScale::None => block,
            TensorScale::Multiply(scale) => block * scale,
            TensorScale::Divide(scale) => block / scale,
        }
    }
}

/// Reason why stored codes and scales are not a matrix of a format.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FormatError {
    /// `in` is not a multiple of the group.
    #[error("{format} needs a multiple of {group} columns, got {in_features}")]
    PartialGroup {
        /// Name of the format.
        format: &'static str,
        /// Columns per group.
        group: usize,
        /// Columns of the matrix.
        in_features: usize,
    },
    /// The codes differ in size from the shape.
    #[error("{format} codes of a [{out}, {in_features}] matrix are {expected} bytes, got {got}", out = shape[0], in_features = shape[1])]
    CodeBytes {
        /// Name of the format.
        format: &'static str,
        /// `[out, in]`.
        shape: [usize; 2],
        /// Bytes required by format and shape.
        expected: usize,
        /// Bytes stored.
        got: usize,
    },
    /// The scales have the wrong shape.
    #[error("{format} scales have shape {got:?}, expected {expected:?}")]
    ScaleShape {
        /// Name of the format.
        format: &'static str,
        /// Shape required by format and shape.
        expected: Vec<usize>,
        /// Shape stored.
        got: Vec<usize>,
    },
    /// The scales have an unsupported dtype.
    #[error("{format} scales of dtype {dtype} are not known")]
    ScaleDtype {
        /// Name of the format.
        format: &'static str,
        /// Dtype stored.
        dtype: Dtype,
    },
    /// The tensor scale is not finite and above zero.
    #[error("{format} tensor scale is {value}; it must be finite and above zero")]
    TensorScale {
        /// Name of the format.
        format: &'static str,
        /// Value stored.
        value: f32,
    },
}

/// A packed matrix `[out, in]`, borrowed.
///
/// Invariant: codes and scales have the sizes and dtypes of format and shape. The values of scales
/// are not checked here.
#[derive(Debug, Clone, Copy)]
pub struct PackedMatrix<'a> {
    /// Format of codes and scales.
    pub format: PackedFormat,
    /// `[out, in]`.
    pub shape: [usize; 2],
    /// Codes, row-major.
    pub codes: &'a [u8],
    /// Scales in their stored dtype and shape.
    pub scales: TensorView<'a>,
    /// Scale of the whole tensor.
    pub tensor_scale: TensorScale,
}

impl<'a> PackedMatrix<'a> {
    /// Errors: sizes or dtypes do not match the format.
    pub fn new(
        format: PackedFormat,
        shape: [usize; 2],
        codes: &'a [u8],
        scales: TensorView<'a>,
        tensor_scale: TensorScale,
    ) -> Result<Self, FormatError> {
        let name = format.name();
        if let (4, Some(group)) = (format.code_bits(), format.group())
            && !shape[1].is_multiple_of(group)
        {
            return Err(FormatError::PartialGroup { format: name, group, in_features: shape[1] });
        }
        let elements = shape[0].saturating_mul(shape[1]);
        let expected = elements / (8 / format.code_bits());
        if codes.len() != expected {
            return Err(FormatError::CodeBytes { format: name, shape, expected, got: codes.len() });
        }
        if !format.takes_scales_of(scales.dtype) {
            return Err(FormatError::ScaleDtype { format: name, dtype: scales.dtype });
        }
        let wanted = format.scale_shape(shape);
        // Exporters differ in dimensions of one: [] and [1], [out] and [out, 1], [ob, 1, ib, 1].
        let plain = |dims: &[usize]| dims.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
        let bytes = wanted.iter().product::<usize>() * scales.dtype.element_bytes().unwrap_or(0);
        if plain(scales.shape) != plain(&wanted) || scales.bytes.len() != bytes {
            return Err(FormatError::ScaleShape {
                format: name,
                expected: wanted,
                got: scales.shape.to_vec(),
            });
        }
        if let TensorScale::Multiply(value) | TensorScale::Divide(value) = tensor_scale
            && !(value.is_finite() && value > 0.0)
        {
            return Err(FormatError::TensorScale { format: name, value });
        }
        Ok(Self { format, shape, codes, scales, tensor_scale })
    }

    /// Stored bytes, scales included.
    pub fn bytes(&self) -> usize {
        let tensor_scale = if self.tensor_scale == TensorScale::None { 0 } else { 4 };
        self.codes.len() + self.scales.bytes.len() + tensor_scale
    }

    /// The scales in the type that kernels multiply with: F32 for FP8, which is exact; BF16 for INT4, where F16 and
    /// F32 scales are rounded to nearest; as stored for the other formats.
    pub fn kernel_scales(&self) -> Cow<'a, [u8]> {
        let TensorView { dtype, bytes, .. } = self.scales;
        let wanted = self.format.row().kernel_scales.unwrap_or(dtype);
        if wanted == dtype {
            return Cow::Borrowed(bytes);
        }
        let scales = (0..self.scales.len()).map(|index| decode_scale(dtype, bytes, index));
        match wanted {
            Dtype::BF16 => scales.flat_map(|scale| half::bf16::from_f32(scale).to_le_bytes()).collect(),
            _ => scales.flat_map(f32::to_le_bytes).collect(),
        }
    }

    /// Bytes of [`PackedMatrix::kernel_scales`].
    pub fn kernel_scale_bytes(&self) -> usize {
        let dtype = self.format.row().kernel_scales.unwrap_or(self.scales.dtype);
        dtype.element_bytes().unwrap_or(1) * self.scales.len()
    }

    /// Codes of row `o`.
    pub fn row_codes(&self, o: usize) -> &'a [u8] {
        let bytes = self.shape[1] * self.format.code_bits() / 8;
        &self.codes[o * bytes..(o + 1) * bytes]
    }

    /// Scales in a row, for formats with scales per row: one per group.
    pub fn row_groups(&self) -> usize {
        self.format.group().map_or(1, |group| self.shape[1].div_ceil(group))
    }

    /// The scale of group `g` of row `o`, the tensor scale applied.
    pub fn scale(&self, o: usize, g: usize) -> f32 {
        let row = self.format.row();
        let band = row.scale_rows.map_or(0, |rows| o / rows);
        let index = band * self.row_groups() + if row.scale_columns.is_some() { g } else { 0 };
        let block = decode_scale(self.scales.dtype, self.scales.bytes, index);
        self.tensor_scale.apply(block)
    }

    /// Row `o` as f32: code times scale, one rounding. `out` `[in]`.
    pub fn row_to_f32(&self, o: usize, out: &mut [f32]) {
        let codes = self.row_codes(o);
        let group = self.format.group().unwrap_or(self.shape[1]).max(1);
        let groups = out[..self.shape[1]].chunks_mut(group).enumerate();
        let table = self.format.row().codes.values();
        if self.format.code_bits() == 8 {
            for ((g, values), codes) in groups.zip(codes.chunks(group)) {
                let scale = self.scale(o, g);
                for (value, code) in values.iter_mut().zip(codes) {
                    *value = scale * table[usize::from(*code)];
                }
            }
            return;
        }
        for ((g, values), codes) in groups.zip(codes.chunks(group / 2)) {
            let scale = self.scale(o, g);
            for (pair, byte) in values.chunks_exact_mut(2).zip(codes) {
                pair[0] = scale * table[usize::from(byte & 15)];
                pair[1] = scale * table[usize::from(byte >> 4)];
            }
        }
    }

    /// All elements as f32, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape[0] * self.shape[1]];
        if self.shape[1] > 0 {
            for (o, row) in values.chunks_exact_mut(self.shape[1]).enumerate() {
                self.row_to_f32(o, row);
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix<'a>(
        format: PackedFormat,
        codes: &'a [u8],
        dtype: Dtype,
        dims: &'a [usize],
        bytes: &'a [u8],
    ) -> PackedMatrix<'a> {
        let shape = [1, codes.len() * 8 / format.code_bits()];
        let scales = TensorView { dtype, shape: dims, bytes };
        PackedMatrix::new(format, shape, codes, scales, TensorScale::None).unwrap()
    }

    /// Every type of scale means the same value, and FP8's kernels get it exactly.
    #[test]
    fn scales_of_every_type_are_exact() {
        let scale = 2f32.powi(-9);
        let half = half::f16::from_f32(scale).to_le_bytes();
        let brain = half::bf16::from_f32(scale).to_le_bytes();
        for (dtype, bytes) in [
            (Dtype::F32, &scale.to_le_bytes()[..]),
            (Dtype::BF16, &brain),
            (Dtype::F16, &half),
            (Dtype::F8_E8M0, &[127 - 9]),
        ] {
            // 1.5 in E4M3.
            let matrix = matrix(PackedFormat::Fp8Block, &[0x3c, 0xbc], dtype, &[1, 1], bytes);
            assert_eq!(matrix.to_f32(), [1.5 * scale, -1.5 * scale], "{dtype}");
            assert_eq!(*matrix.kernel_scales(), scale.to_le_bytes(), "{dtype}");
            assert_eq!(matrix.kernel_scale_bytes(), 4);
        }
    }

    #[test]
    fn int4_scales_of_more_bits_are_exact_here_and_rounded_for_kernels() {
        let scale = half::f16::from_bits(0x3c01);
        let bytes = scale.to_le_bytes();
        let codes = [0x9a; 16];
        let power = matrix(PackedFormat::Int4Group32, &codes, Dtype::F8_E8M0, &[1, 1], &[126]);
        assert_eq!(*power.kernel_scales(), half::bf16::from_f32(0.5).to_le_bytes());
        let matrix = matrix(PackedFormat::Int4Group32, &codes, Dtype::F16, &[1, 1], &bytes);
        assert_eq!(matrix.to_f32()[..2], [2.0 * scale.to_f32(), scale.to_f32()]);
        assert_eq!(*matrix.kernel_scales(), half::bf16::from_f32(1.0).to_le_bytes());
        assert_eq!(matrix.kernel_scale_bytes(), 2);
    }
}
