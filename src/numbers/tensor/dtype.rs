//! Element types of stored tensors: those of the safetensors format, and what computing with them needs to know.

pub use safetensors::Dtype;

/// What the format's own list of element types does not say.
pub trait ElementType {
    /// Bytes of one element; `None` for a type that nothing here computes with.
    fn element_bytes(&self) -> Option<usize>;

    /// Whether a tensor of this type, without scales, holds numbers to compute with.
    fn is_float(&self) -> bool;
}

impl ElementType for Dtype {
    fn element_bytes(&self) -> Option<usize> {
        match *self {
            // U8 and I32 are also the storage types of packed 4-bit codes.
            Dtype::I64 | Dtype::F32 | Dtype::I32 | Dtype::F16 | Dtype::BF16 => Some(self.bitsize() / 8),
            Dtype::F8_E4M3 | Dtype::F8_E8M0 | Dtype::U8 | Dtype::I8 => Some(1),
            _ => None,
        }
    }

    fn is_float(&self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }
}
