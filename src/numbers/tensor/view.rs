//! A borrowed tensor: bytes with a dtype and a shape.

use super::{Dtype, ElementType};

/// Borrowed row-major tensor in host memory. Bytes are little-endian and may be unaligned.
///
/// Invariant: `bytes.len()` equals the product of `shape` times the element size whenever the dtype has one.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Type of the elements.
    pub dtype: Dtype,
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
        let size = self.dtype.element_bytes().filter(|_| self.dtype.is_float());
        let Some(size) = size else { return Vec::new() };
        let mut values = vec![0.0; self.bytes.len() / size];
        self.read_f32(0, &mut values);
        values
    }

    /// Elements `first..first + out.len()` as f32, exactly.
    ///
    /// Panics if the dtype is not a float, or if the tensor ends before `out`.
    pub fn read_f32(&self, first: usize, out: &mut [f32]) {
        assert!(self.dtype.is_float(), "a tensor of {} holds no floats", self.dtype);
        let elements = first..first + out.len();
        match self.dtype {
            Dtype::F16 => {
                let halves = &self.bytes.as_chunks::<2>().0[elements];
                let widen = |b: &[u8; 2]| half::f16::from_le_bytes(*b).to_f32();
                out.iter_mut().zip(halves).for_each(|(value, b)| *value = widen(b));
            }
            Dtype::BF16 => {
                let halves = &self.bytes.as_chunks::<2>().0[elements];
                // A shift, which the compiler vectorises; `half` has a branch for NaN.
                let widen = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                out.iter_mut().zip(halves).for_each(|(value, b)| *value = widen(b));
            }
            _ => {
                let words = &self.bytes.as_chunks::<4>().0[elements];
                out.iter_mut().zip(words).for_each(|(value, b)| *value = f32::from_le_bytes(*b));
            }
        }
    }

    /// Every element of an I32 or I64 tensor. Empty for other dtypes.
    pub fn to_i64s(&self) -> Vec<i64> {
        match self.dtype {
            Dtype::I32 => {
                self.bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect()
            }
            Dtype::I64 => self.bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            _ => Vec::new(),
        }
    }

    /// Rows `start..end` of a matrix (dimension 0), without copying.
    pub fn rows(&self, start: usize, end: usize, shape: &'a [usize]) -> TensorView<'a> {
        let row_bytes = self.bytes.len() / self.shape[0].max(1);
        TensorView { dtype: self.dtype, shape, bytes: &self.bytes[start * row_bytes..end * row_bytes] }
    }
}
