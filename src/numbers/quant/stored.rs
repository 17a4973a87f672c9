//! A linear weight as a checkpoint stores it.

use super::packed::PackedMatrix;
use crate::tensor::TensorView;

/// A stored matrix `[out, in]`: plain floats, or packed codes with scales.
#[derive(Debug, Clone, Copy)]
pub enum StoredMatrix<'a> {
    /// BF16, F16 or F32 values.
    Plain(TensorView<'a>),
    /// Codes and scales.
    Packed(PackedMatrix<'a>),
}

impl<'a> StoredMatrix<'a> {
    /// `[out, in]`; a plain tensor may have other dimensions.
    pub fn shape(&self) -> &[usize] {
        match self {
            StoredMatrix::Plain(view) => view.shape,
            StoredMatrix::Packed(packed) => &packed.shape,
        }
    }

    /// Name of the format, for reports and errors: a dtype, or `nvfp4`, `mxfp4`, `int4-g32`, `fp8`.
    pub fn format_name(&self) -> String {
        match self {
            StoredMatrix::Plain(view) => view.dtype.to_string(),
            StoredMatrix::Packed(packed) => packed.format.name().into(),
        }
    }

    /// Stored bytes, scales included.
    pub fn bytes(&self) -> usize {
        match self {
            StoredMatrix::Plain(view) => view.bytes.len(),
            StoredMatrix::Packed(packed) => packed.bytes(),
        }
    }

    /// Values of a plain matrix, codes of a packed one.
    pub fn codes(&self) -> &'a [u8] {
        match self {
            StoredMatrix::Plain(view) => view.bytes,
            StoredMatrix::Packed(packed) => packed.codes,
        }
    }

    /// The packed matrix; `None` for plain floats.
    pub fn packed(&self) -> Option<&PackedMatrix<'a>> {
        match self {
            StoredMatrix::Plain(_) => None,
            StoredMatrix::Packed(packed) => Some(packed),
        }
    }

    /// Every element as f32, row-major. Empty for a plain tensor of a type that is not a float.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            StoredMatrix::Plain(view) => view.to_f32(),
            StoredMatrix::Packed(packed) => packed.to_f32(),
        }
    }

    /// Row `o` as f32, `out` `[in]`: exact for plain floats; code times scale, one rounding, for
    /// packed ones.
    ///
    /// Panics for a plain tensor of a type that is not a float, which is never recognised as a weight.
    pub fn row_to_f32(&self, o: usize, out: &mut [f32]) {
        match self {
            StoredMatrix::Plain(view) => view.read_f32(o * out.len(), out),
            StoredMatrix::Packed(packed) => packed.row_to_f32(o, out),
        }
    }
}

impl<'a> From<TensorView<'a>> for StoredMatrix<'a> {
    fn from(view: TensorView<'a>) -> Self {
        StoredMatrix::Plain(view)
    }
}

impl<'a> From<PackedMatrix<'a>> for StoredMatrix<'a> {
    fn from(packed: PackedMatrix<'a>) -> Self {
        StoredMatrix::Packed(packed)
    }
}
