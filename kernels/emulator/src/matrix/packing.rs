//! Rows of 16 elements in 16 bytes, as `ldmatrix`, `tcgen05.cp` and operands of `tcgen05.mma` read
//! them.

/// How 16 elements lie in 16 bytes. Elements below 8 bits are packed at the low end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Bytes,
    /// 4 bits each, then 64 bits of padding (`b4x16_p64`).
    Nibbles,
    /// 6 bits each, then 32 bits of padding (`b6x16_p32`).
    Sixes,
}

impl Packing {
    /// Bytes of 16 that hold elements.
    pub(super) fn payload_bytes(self) -> usize {
        match self {
            Self::Bytes => 16,
            Self::Nibbles => 8,
            Self::Sixes => 12,
        }
    }

    /// Parses the pair of modifiers `b8x16` and source format, either of which may be absent.
    pub(super) fn parse(destination: Option<&str>, source: Option<&str>) -> Option<Self> {
        match (destination, source) {
            (Some("b8x16"), Some("b4x16_p64")) => Some(Self::Nibbles),
            (Some("b8x16"), Some("b6x16_p32")) => Some(Self::Sixes),
            (_, None) if destination != Some("b8x16") => Some(Self::Bytes),
            _ => None,
        }
    }

    /// The 16 elements, one per byte, in the low bits.
    pub(super) fn unpack(self, chunk: [u8; 16]) -> [u8; 16] {
        let packed = u128::from_le_bytes(chunk);
        match self {
            Self::Bytes => chunk,
            Self::Nibbles => std::array::from_fn(|i| (packed >> (4 * i) & 0xf) as u8),
            Self::Sixes => std::array::from_fn(|i| (packed >> (6 * i) & 0x3f) as u8),
        }
    }
}
