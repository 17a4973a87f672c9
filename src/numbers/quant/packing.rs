//! Packs f32 rows into a matrix of any packed format.

use super::format::{FP8_BLOCK, PackedFormat};
use super::fp8_block::{encode_fp8, encode_fp8_band, fp8_scale};
use super::int4::encode_int4;
use super::mxfp4::encode_mxfp4;
use super::nvfp4::{BlockScales, Nvfp4Encoder, global_scale, tensor_scale};
use super::packed::{FormatError, PackedMatrix, TensorScale};
use crate::tensor::{Dtype, TensorView};

/// A target format, with the options that change its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// NVFP4 with modelopt's tensor scale, which multiplies.
    Nvfp4(BlockScales),
    /// NVFP4 with compressed-tensors' global scale, which divides.
    Nvfp4Global(BlockScales),
    /// MXFP4 by the "even" rule, no scale code below `smallest_scale`: 1 as Quark writes it, 0 as compressed-tensors does.
    Mxfp4 {
        /// Smallest E8M0 code.
        smallest_scale: u8,
    },
    /// INT4, group 32, scale amax / 7 in BF16.
    Int4Group32,
    /// E4M3 with f32 scales per 128 x 128.
    Fp8Block,
    /// E4M3 with one f32 scale.
    Fp8Tensor,
}

impl Packing {
    /// The packed format of the result.
    pub fn format(self) -> PackedFormat {
        match self {
            Packing::Nvfp4(_) | Packing::Nvfp4Global(_) => PackedFormat::Nvfp4,
            Packing::Mxfp4 { .. } => PackedFormat::Mxfp4,
            Packing::Int4Group32 => PackedFormat::Int4Group32,
            Packing::Fp8Block => PackedFormat::Fp8Block,
            Packing::Fp8Tensor => PackedFormat::Fp8Tensor,
        }
    }

    /// Dtype of the block scales.
    pub fn scale_dtype(self) -> Dtype {
        self.format().row().scale_dtypes[0]
    }

    /// Whether the largest magnitude of the whole matrix (or of all matrices that share its tensor
    /// scale) must be known first.
    pub fn needs_amax(self) -> bool {
        matches!(self, Packing::Nvfp4(_) | Packing::Nvfp4Global(_) | Packing::Fp8Tensor)
    }

    /// An encoder of matrices with `in_features` columns, under the tensor scale of the largest
    /// magnitude `amax`.
    ///
    /// Errors: the columns do not form whole groups.
    pub fn encoder(self, in_features: usize, amax: f32) -> Result<MatrixEncoder, FormatError> {
        let format = self.format();
        if let (4, Some(group)) = (format.code_bits(), format.group())
            && !in_features.is_multiple_of(group)
        {
            return Err(FormatError::PartialGroup { format: format.name(), group, in_features });
        }
        let rows = match self {
            Packing::Nvfp4(scales) => Rows::Nvfp4(Nvfp4Encoder::new(scales, tensor_scale(amax)).into()),
            Packing::Nvfp4Global(scales) => Rows::Nvfp4(Nvfp4Encoder::new(scales, global_scale(amax)).into()),
            Packing::Mxfp4 { smallest_scale } => Rows::Mxfp4 { smallest_scale },
            Packing::Int4Group32 => Rows::Int4,
            Packing::Fp8Block => Rows::Fp8Block,
            Packing::Fp8Tensor => Rows::Fp8Tensor { scale: fp8_scale(amax) },
        };
        Ok(MatrixEncoder { packing: self, in_features, rows })
    }

    /// Packs a whole matrix `[out, in]`, `values` finite and row-major.
    pub fn pack(self, values: &[f32], shape: [usize; 2]) -> Result<PackedBuffer, FormatError> {
        let amax = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        self.pack_with_amax(values, shape, amax)
    }

    /// [`Packing::pack`] under the tensor scale of a given largest magnitude, for matrices that
    /// share one.
    pub fn pack_with_amax(
        self,
        values: &[f32],
        shape: [usize; 2],
        amax: f32,
    ) -> Result<PackedBuffer, FormatError> {
        let encoder = self.encoder(shape[1], amax)?;
        assert_eq!(values.len(), shape[0] * shape[1]);
        let mut codes = vec![0; encoder.code_bytes(shape[0])];
        let mut scales = vec![0; encoder.scale_bytes(shape[0])];
        let band = encoder.band_rows();
        for first in (0..shape[0]).step_by(band) {
            let last = (first + band).min(shape[0]);
            encoder.encode_rows(
                &values[first * shape[1]..last * shape[1]],
                &mut codes[encoder.code_bytes(first)..encoder.code_bytes(last)],
                &mut scales[encoder.scale_bytes(first)..encoder.scale_bytes(last)],
            );
        }
        if let Some(scale) = encoder.only_scale() {
            scales = scale.to_le_bytes().to_vec();
        }
        Ok(PackedBuffer {
            format: self.format(),
            shape,
            codes,
            scales,
            scale_dtype: self.scale_dtype(),
            scale_shape: self.format().scale_shape(shape),
            tensor_scale: encoder.tensor_scale(),
        })
    }
}

/// Encodes rows of one matrix, any number of bands at a time and in any order: rows are
/// independent, except within a band of [`MatrixEncoder::band_rows`].
#[derive(Debug, Clone)]
pub struct MatrixEncoder {
    packing: Packing,
    in_features: usize,
    rows: Rows,
}

#[derive(Debug, Clone)]
enum Rows {
    /// Boxed because of the size of its table.
    Nvfp4(Box<Nvfp4Encoder>),
    Mxfp4 {
        smallest_scale: u8,
    },
    Int4,
    Fp8Block,
    Fp8Tensor {
        scale: f32,
    },
}

impl MatrixEncoder {
    /// Rows that share scales: a call encodes a whole number of bands, or ends with the matrix.
    pub fn band_rows(&self) -> usize {
        if self.packing == Packing::Fp8Block { FP8_BLOCK } else { 1 }
    }

    /// Bytes of the codes of `rows` rows.
    pub fn code_bytes(&self, rows: usize) -> usize {
        rows * self.in_features * self.packing.format().code_bits() / 8
    }

    /// Bytes of the scales of `rows` rows, counted from row 0; 0 where one scale covers the whole
    /// matrix.
    pub fn scale_bytes(&self, rows: usize) -> usize {
        match self.rows {
            Rows::Nvfp4(_) => rows * self.in_features / 16,
            Rows::Mxfp4 { .. } => rows * self.in_features / 32,
            Rows::Int4 => rows * self.in_features / 32 * 2,
            Rows::Fp8Block => rows.div_ceil(FP8_BLOCK) * self.in_features.div_ceil(FP8_BLOCK) * 4,
            Rows::Fp8Tensor { .. } => 0,
        }
    }

    /// The tensor scale beside the block scales.
    pub fn tensor_scale(&self) -> TensorScale {
        match &self.rows {
            Rows::Nvfp4(encoder) => encoder.tensor_scale(),
            _ => TensorScale::None,
        }
    }

    /// The only scale of a matrix without block scales; `None` for other formats.
    pub fn only_scale(&self) -> Option<f32> {
        match self.rows {
            Rows::Fp8Tensor { scale } => Some(scale),
            _ => None,
        }
    }

    /// Encodes rows: `values` `[rows, in]` finite; `codes` and `scales` have
    /// [`MatrixEncoder::code_bytes`] and [`MatrixEncoder::scale_bytes`] bytes.
    pub fn encode_rows(&self, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
        match &self.rows {
            Rows::Nvfp4(encoder) => encoder.encode(values, codes, scales),
            Rows::Mxfp4 { smallest_scale } => encode_mxfp4(values, *smallest_scale, codes, scales),
            Rows::Int4 => encode_int4(values, codes, scales),
            Rows::Fp8Tensor { scale } => encode_fp8(values, *scale, codes),
            Rows::Fp8Block => {
                let band = (FP8_BLOCK * self.in_features).max(1);
                let width = self.in_features.div_ceil(FP8_BLOCK);
                let mut buffer = vec![0.0f32; width];
                let bands = values.chunks(band).zip(codes.chunks_mut(band));
                for ((values, codes), scales) in bands.zip(scales.chunks_mut((width * 4).max(1))) {
                    encode_fp8_band(values, self.in_features, codes, &mut buffer);
                    for (bytes, scale) in scales.as_chunks_mut::<4>().0.iter_mut().zip(&buffer) {
                        *bytes = scale.to_le_bytes();
                    }
                }
            }
        }
    }
}

/// A packed matrix that owns its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedBuffer {
    /// Format of codes and scales.
    pub format: PackedFormat,
    /// `[out, in]`.
    pub shape: [usize; 2],
    /// Codes, row-major.
    pub codes: Vec<u8>,
    /// Scales, row-major.
    pub scales: Vec<u8>,
    /// Dtype of the scales.
    pub scale_dtype: Dtype,
    /// Shape of the scales.
    pub scale_shape: Vec<usize>,
    /// Scale of the whole tensor.
    pub tensor_scale: TensorScale,
}

impl PackedBuffer {
    /// The same matrix, borrowed. Errors: sizes or dtypes do not match the format.
    pub fn matrix(&self) -> Result<PackedMatrix<'_>, FormatError> {
        let scales = TensorView { dtype: self.scale_dtype, shape: &self.scale_shape, bytes: &self.scales };
        PackedMatrix::new(self.format, self.shape, &self.codes, scales, self.tensor_scale)
    }
}
