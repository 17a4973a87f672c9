//! Swizzles of shared memory: permutations of the 16-byte chunks of a tile.

/// A swizzle mode. It acts on shared addresses, so that a tile may start anywhere within a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// Rows of 16 bytes, in place.
    None,
    /// Rows of 32 bytes.
    Bytes32,
    /// Rows of 64 bytes.
    Bytes64,
    /// Rows of 128 bytes.
    Bytes128,
    /// Rows of 128 bytes; pairs of chunks move together (`128B_ATOM_32B`).
    Bytes128Atom32,
}

impl Swizzle {
    /// Bytes of a row.
    pub fn width(self) -> u32 {
        match self {
            Self::None => 16,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 | Self::Bytes128Atom32 => 128,
        }
    }

    /// The address at which the byte of linear address `address` lies.
    #[inline(always)]
    pub fn apply(self, address: u32) -> u32 {
        self.apply_from(address, 0)
    }

    /// Like [`Swizzle::apply`] for a pattern that starts `base_offset` rows of 128 bytes above a
    /// multiple of its length (PTX ISA 9.0, "Matrix descriptor": base offset).
    #[inline(always)]
    pub fn apply_from(self, address: u32, base_offset: u32) -> u32 {
        let phase = address.wrapping_sub(base_offset << 7);
        let flip = match self {
            Self::None => 0,
            Self::Bytes32 => phase >> 3 & 0x10,
            Self::Bytes64 => phase >> 3 & 0x30,
            Self::Bytes128 => phase >> 3 & 0x70,
            Self::Bytes128Atom32 => phase >> 2 & 0x60,
        };
        address ^ flip
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::golden;

    #[test]
    fn chunks_lie_where_the_tables_say() {
        let fragments = golden::fragments();
        let all = [
            ("none", Swizzle::None),
            ("32B", Swizzle::Bytes32),
            ("64B", Swizzle::Bytes64),
            ("128B", Swizzle::Bytes128),
            ("128B_ATOM_32B", Swizzle::Bytes128Atom32),
        ];
        for (name, swizzle) in all {
            let table = fragments["swizzle"][name]["address_of_chunk"].as_array().expect(name);
            assert_eq!(table.len(), 128);
            for (i, expected) in table.iter().enumerate() {
                let address = 16 * i as u32;
                assert_eq!(swizzle.apply(address), expected.as_u64().unwrap() as u32, "{name} chunk {i}");
                assert_eq!(swizzle.apply(swizzle.apply(address)), address, "{name} chunk {i}");
                let shifted = swizzle.apply_from(address + 0x180, 3);
                assert_eq!(shifted, swizzle.apply(address) + 0x180, "{name} chunk {i}");
            }
        }
    }
}
