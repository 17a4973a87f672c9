//! Weights on the device, in the layout and format of the checkpoint.

use std::borrow::Cow;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::driver::Driver;
use crate::stream::Stream;
use perigee_numbers::quant::{PackedFormat, StoredMatrix, TensorScale};
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::OpError;
use perigee_ops::host::Piece;

/// Format of the values on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 4 bytes a value; F16 is widened to it.
    F32,
    /// 2 bytes a value.
    Bf16,
    /// See [`PackedFormat`].
    Nvfp4,
    /// See [`PackedFormat`].
    Mxfp4,
    /// See [`PackedFormat`].
    Int4,
    /// E4M3 codes with f32 scales of blocks, rows or the tensor.
    Fp8,
}

impl Format {
    /// Number of formats.
    pub const COUNT: usize = 6;

    /// Ending of the kernels' names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Int4 => "int4",
            Self::Fp8 => "fp8",
        }
    }

    /// Inputs that a lane decodes at once: K is a multiple of it.
    pub const fn values(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 8,
            Self::Nvfp4 | Self::Mxfp4 | Self::Int4 | Self::Fp8 => 16,
        }
    }

    pub(crate) fn of(stored: &StoredMatrix<'_>) -> Option<Self> {
        match stored {
            StoredMatrix::Plain(view) => match view.dtype {
                Dtype::F32 | Dtype::F16 => Some(Self::F32),
                Dtype::BF16 => Some(Self::Bf16),
                _ => None,
            },
            StoredMatrix::Packed(packed) => Some(packed.format.into()),
        }
    }

    /// A packed format whose kernels are these; of FP8 the one with blocks.
    pub(crate) fn packed(self) -> Option<PackedFormat> {
        match self {
            Self::F32 | Self::Bf16 => None,
            Self::Nvfp4 => Some(PackedFormat::Nvfp4),
            Self::Mxfp4 => Some(PackedFormat::Mxfp4),
            Self::Int4 => Some(PackedFormat::Int4Group32),
            Self::Fp8 => Some(PackedFormat::Fp8Block),
        }
    }
}

impl From<PackedFormat> for Format {
    fn from(format: PackedFormat) -> Self {
        match format {
            PackedFormat::Nvfp4 => Self::Nvfp4,
            PackedFormat::Mxfp4 => Self::Mxfp4,
            PackedFormat::Int4Group32 => Self::Int4,
            PackedFormat::Fp8Block | PackedFormat::Fp8Row | PackedFormat::Fp8Tensor => Self::Fp8,
        }
    }
}

/// `Weight` in `kernels/include/weight.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct WeightParams {
    /// `[experts, N, K]` values or codes.
    pub codes: u64,
    /// Scales of the format.
    pub scales: u64,
    /// `[experts]` f32.
    pub tensor_scales: u64,
    /// Bytes of an expert's codes.
    pub codes_stride: i64,
    /// Bytes of an expert's scales.
    pub scales_stride: i64,
    /// N.
    pub rows: i32,
    /// K.
    pub columns: i32,
    /// Whether block scales are divided by the tensor scale, else multiplied.
    pub divide: i32,
    /// FP8: rows that share a scale.
    pub scale_rows: i32,
    /// FP8: columns that share a scale.
    pub scale_columns: i32,
    /// FP8: scales of a row.
    pub scale_groups: i32,
}

/// Matrices `[N, K]` of one format, one or one of each expert, on the device.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    /// Format of all of them.
    pub format: Format,
    /// N.
    pub out_features: usize,
    /// K.
    pub in_features: usize,
    /// Number of matrices.
    pub count: usize,
    /// Address and layout for the kernels.
    pub params: WeightParams,
}

impl Matrix {
    /// Uploads matrices of equal shape and format.
    ///
    /// Errors: a format without kernels, shapes or formats that differ, a K that is no multiple of
    /// [`Format::values`].
    pub fn load<D: Driver>(
        stream: &mut Stream<D>,
        op: &'static str,
        matrices: &[&StoredMatrix<'_>],
    ) -> Result<Self, OpError> {
        Self::load_pieces(stream, op, matrices.len(), &|e| Ok(Piece::Whole(*matrices[e])))
    }

    /// The same of pieces, each of which is made when it is uploaded.
    pub(crate) fn load_pieces<D: Driver>(
        stream: &mut Stream<D>,
        op: &'static str,
        count: usize,
        pieces: &Pieces<'_>,
    ) -> Result<Self, OpError> {
        let layout = Layout::of_first(op, count, pieces)?;
        let [out_features, in_features] = layout.shape;
        let codes_stride = layout.code_bytes;
        let codes = stream.allocate("weights", codes_stride * count)?;
        let scales = stream.allocate("weights", layout.scale_bytes * count)?;
        let mut tensor_scales = Vec::with_capacity(count);
        for e in 0..count {
            let piece = pieces(e)?;
            let matrix = &piece.view();
            layout.check(op, matrix)?;
            let at = codes.address + (e * codes_stride) as u64;
            match matrix {
                StoredMatrix::Plain(view) => {
                    tensor_scales.push(1.0f32);
                    upload_plain(stream, at, view)?;
                }
                StoredMatrix::Packed(packed) => {
                    tensor_scales.push(match packed.tensor_scale {
                        TensorScale::None => 1.0,
                        TensorScale::Multiply(scale) | TensorScale::Divide(scale) => scale,
                    });
                    stream.upload(at, packed.codes)?;
                    stream.upload(scales.address + (e * layout.scale_bytes) as u64, &scale_bytes(matrix))?;
                }
            }
        }
        let tensor_scales = stream.store("weights", &tensor_scales)?;
        let params = WeightParams {
            codes: codes.address,
            scales: scales.address,
            tensor_scales: tensor_scales.address,
            codes_stride: codes_stride as i64,
            scales_stride: layout.scale_bytes as i64,
            rows: out_features as i32,
            columns: in_features as i32,
            divide: i32::from(layout.divide),
            scale_rows: layout.scale_rows as i32,
            scale_columns: layout.scale_columns as i32,
            scale_groups: in_features.div_ceil(layout.scale_columns.max(1)) as i32,
        };
        Ok(Self { format: layout.format, out_features, in_features, count, params })
    }
}

/// Makes matrix `e` of several.
pub(crate) type Pieces<'p> = dyn Fn(usize) -> Result<Piece<'p>, OpError> + 'p;

/// What the matrices of a list have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// N, K.
    pub(crate) shape: [usize; 2],
    pub(crate) format: Format,
    /// Bytes of a matrix's codes.
    pub(crate) code_bytes: usize,
    /// Bytes of a matrix's scales on the device.
    pub(crate) scale_bytes: usize,
    divide: bool,
    /// FP8: rows that share a scale.
    pub(crate) scale_rows: usize,
    /// FP8: columns that share a scale.
    pub(crate) scale_columns: usize,
}

impl Layout {
    /// That of the first of several pieces.
    ///
    /// Errors: none, a format without kernels, a K that is no multiple of [`Format::values`].
    pub(crate) fn of_first(op: &'static str, count: usize, pieces: &Pieces<'_>) -> Result<Self, OpError> {
        match count {
            0 => Err(OpError::ShapeMismatch { op, expected: vec![1], got: vec![0] }),
            _ => Self::of(op, &pieces(0)?.view()),
        }
    }

    /// Errors: a matrix of another shape or format.
    pub(crate) fn check(&self, op: &'static str, matrix: &StoredMatrix<'_>) -> Result<(), OpError> {
        perigee_ops::expect(op, &self.shape, matrix.shape())?;
        let other = Self::of(op, matrix)?;
        if *self != other {
            let dtype = format!("{} beside {}", self.format.name(), matrix.format_name());
            return Err(OpError::UnsupportedDtype { op, dtype, backend: "cuda" });
        }
        Ok(())
    }

    fn of(op: &'static str, stored: &StoredMatrix<'_>) -> Result<Self, OpError> {
        let unsupported = || OpError::UnsupportedDtype { op, dtype: stored.format_name(), backend: "cuda" };
        let format = Format::of(stored).ok_or_else(unsupported)?;
        perigee_ops::expect(op, &[2], &[stored.shape().len()])?;
        let shape = [stored.shape()[0], stored.shape()[1]];
        let [out_features, in_features] = shape;
        if out_features == 0 || in_features == 0 || !in_features.is_multiple_of(format.values()) {
            let expected = vec![out_features.max(1), in_features.max(1).next_multiple_of(format.values())];
            return Err(OpError::ShapeMismatch { op, expected, got: stored.shape().to_vec() });
        }
        let fp8 = stored.packed().map(|packed| packed.format.row()).filter(|_| format == Format::Fp8);
        let scale_rows = fp8.and_then(|row| row.scale_rows).unwrap_or(out_features);
        let scale_columns = fp8.and_then(|row| row.scale_columns).unwrap_or(in_features);
        let divide = stored.packed().is_some_and(|p| matches!(p.tensor_scale, TensorScale::Divide(_)));
        Ok(Self {
            shape,
            format,
            code_bytes: match format {
                Format::F32 => 4 * out_features * in_features,
                _ => stored.codes().len(),
            },
            scale_bytes: stored.packed().map_or(0, |packed| packed.kernel_scale_bytes()),
            divide,
            scale_rows,
            scale_columns,
        })
    }
}

/// A matrix's scales as the kernels read them.
pub(crate) fn scale_bytes<'a>(stored: &StoredMatrix<'a>) -> Cow<'a, [u8]> {
    match stored {
        StoredMatrix::Plain(_) => Cow::Borrowed(&[]),
        StoredMatrix::Packed(packed) => packed.kernel_scales(),
    }
}

fn upload_plain<D: Driver>(stream: &mut Stream<D>, to: u64, view: &TensorView<'_>) -> Result<(), OpError> {
    match view.dtype {
        Dtype::F16 => stream.upload(to, bytemuck::cast_slice(&view.to_f32())),
        _ => stream.upload(to, view.bytes),
    }
}
