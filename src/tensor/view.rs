//! A borrowed tensor: bytes with a dtype and a shape.

use super::DType;

/// Borrowed row-major tensor in host memory. Bytes are little-endian and may be unaligned.
///
/// Invariant: `bytes.len()` equals the product of `shape` times the element size whenever the dtype has one.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// Elements, row-major, little-endian.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every element as f32, exactly (BF16 and F16 widen without loss). Empty for dtypes that are not floats.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            DType::F32 => {
                self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            DType::F16 => {
                self.bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            DType::Bf16 => {
                self.bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Rows `start..end` of a matrix (dimension 0), without copying.
    pub fn rows(&self, start: usize, end: usize, shape: &'a [usize]) -> TensorView<'a> {
        let row_bytes = self.bytes.len() / self.shape[0].max(1);
        TensorView { dtype: self.dtype, shape, bytes: &self.bytes[start * row_bytes..end * row_bytes] }
    }
}
