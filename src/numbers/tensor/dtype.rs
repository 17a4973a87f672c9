//! Element types of stored tensors.

/// Element type of a stored tensor, named as in the safetensors header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit float with the exponent of `F32`.
    Bf16,
    /// 8-bit float, 4 exponent bits, 3 of mantissa, no infinity (E4M3FN).
    F8E4M3,
    /// 8-bit power of two, bias 127.
    F8E8M0,
    /// Byte; also the storage type of packed 4-bit codes.
    U8,
    /// Signed byte.
    I8,
    /// 32-bit integer; also eight packed 4-bit codes.
    I32,
    /// 64-bit integer.
    I64,
    /// Any other type of a header; kept for error messages.
    Other(&'static str),
}

impl DType {
    /// Bytes of one element; `None` for a type without support.
    pub fn size(self) -> Option<usize> {
        match self {
            DType::I64 => Some(8),
            DType::F32 | DType::I32 => Some(4),
            DType::F16 | DType::Bf16 => Some(2),
            DType::F8E4M3 | DType::F8E8M0 | DType::U8 | DType::I8 => Some(1),
            DType::Other(_) => None,
        }
    }

    /// Whether a tensor of this type, without scales, holds numbers to compute with.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16)
    }

    /// The name in a safetensors header.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::Bf16 => "BF16",
            DType::F8E4M3 => "F8_E4M3",
            DType::F8E8M0 => "F8_E8M0",
            DType::U8 => "U8",
            DType::I8 => "I8",
            DType::I32 => "I32",
            DType::I64 => "I64",
            DType::Other(name) => name,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
