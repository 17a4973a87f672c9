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
    /// Any other type a header may carry; kept so that errors can name it.
    Other(&'static str),
}

impl DType {
    /// Bytes of one element, or `None` where the type is not one the engine computes with.
    pub fn size(self) -> Option<usize> {
        match self {
            DType::F32 => Some(4),
            DType::F16 | DType::Bf16 => Some(2),
            DType::Other(_) => None,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::Bf16 => "BF16",
            DType::Other(name) => name,
        })
    }
}
