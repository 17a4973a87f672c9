//! Bank swizzles of shared memory. PTX ISA 9.0, section 5.5.7; `CUtensorMapSwizzle` of the driver API.
//!
//! A swizzle exchanges address bits of a whole address, so a tile that starts inside a period of the
//! pattern follows the pattern of its absolute address. Each one is its own inverse.

/// Pattern in which a tensor copy permutes chunks of shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Addresses as they are.
    #[default]
    None,
    /// 16-byte chunks within 32 bytes.
    B32,
    /// 16-byte chunks within 64 bytes.
    B64,
    /// 16-byte chunks within 128 bytes.
    B128,
    /// 32-byte chunks within 128 bytes.
    B128Atom32,
    /// 32-byte chunks within 128 bytes; in odd 128-byte lines the halves of every 16 bytes also change places.
    B128Atom32Flip8,
    /// 64-byte chunks within 128 bytes.
    B128Atom64,
}

impl Swizzle {
    /// Where the byte of a linear address lies: `address`, in bytes, in the shared window.
    pub fn apply(self, address: u32) -> u32 {
        match self {
            Self::None => address,
            Self::B32 => address ^ (address >> 3 & 0x10),
            Self::B64 => address ^ (address >> 3 & 0x30),
            Self::B128 => address ^ (address >> 3 & 0x70),
            Self::B128Atom32 => address ^ (address >> 2 & 0x60),
            Self::B128Atom32Flip8 => address ^ (address >> 2 & 0x60) ^ (address >> 4 & 0x08),
            Self::B128Atom64 => address ^ (address >> 1 & 0x40),
        }
    }

    /// Bytes that stay contiguous when aligned to their size; `None` where the pattern moves nothing.
    pub fn unit_bytes(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::B32 | Self::B64 | Self::B128 => Some(16),
            Self::B128Atom32 => Some(32),
            Self::B128Atom32Flip8 => Some(8),
            Self::B128Atom64 => Some(64),
        }
    }

    /// Widest inner box in bytes; `None` without a limit.
    pub fn width_bytes(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::B32 => Some(32),
            Self::B64 => Some(64),
            Self::B128 | Self::B128Atom32 | Self::B128Atom32Flip8 | Self::B128Atom64 => Some(128),
        }
    }

    /// The codes of `tensormap.replace`: `.swizzle_mode` and `.swizzle_atomicity`.
    pub fn codes(self) -> (u8, u8) {
        match self {
            Self::None => (0, 0),
            Self::B32 => (1, 0),
            Self::B64 => (2, 0),
            Self::B128 => (3, 0),
            Self::B128Atom32 => (3, 1),
            Self::B128Atom32Flip8 => (3, 2),
            Self::B128Atom64 => (3, 3),
        }
    }

    /// The swizzle of a pair of codes. Atomicity has no meaning without a swizzle; the 96-byte mode
    /// (code 4, sm_103 only) is not known.
    pub fn from_codes(mode: u8, atomicity: u8) -> Option<Self> {
        match (mode, atomicity) {
            (0, _) => Some(Self::None),
            (1, 0) => Some(Self::B32),
            (2, 0) => Some(Self::B64),
            (3, 0) => Some(Self::B128),
            (3, 1) => Some(Self::B128Atom32),
            (3, 2) => Some(Self::B128Atom32Flip8),
            (3, 3) => Some(Self::B128Atom64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    const ALL: [Swizzle; 7] = [
        Swizzle::None,
        Swizzle::B32,
        Swizzle::B64,
        Swizzle::B128,
        Swizzle::B128Atom32,
        Swizzle::B128Atom32Flip8,
        Swizzle::B128Atom64,
    ];

    #[derive(Deserialize)]
    struct Fragments {
        swizzle: BTreeMap<String, Table>,
    }

    #[derive(Deserialize)]
    struct Table {
        unit_bytes: u32,
        address_of_chunk: Vec<u32>,
    }

    #[test]
    fn golden_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/fragments.json");
        let text = std::fs::read_to_string(path).unwrap();
        let fragments: Fragments = serde_json::from_str(&text).unwrap();
        assert_eq!(fragments.swizzle.len(), 5);
        for (name, table) in &fragments.swizzle {
            let swizzle = match name.as_str() {
                "none" => Swizzle::None,
                "32B" => Swizzle::B32,
                "64B" => Swizzle::B64,
                "128B" => Swizzle::B128,
                "128B_ATOM_32B" => Swizzle::B128Atom32,
                other => panic!("unknown swizzle {other}"),
            };
            for (chunk, &address) in table.address_of_chunk.iter().enumerate() {
                assert_eq!(swizzle.apply(chunk as u32 * table.unit_bytes), address, "{name}, chunk {chunk}");
            }
        }
    }

    /// The two patterns without a golden table, as PTX ISA 9.0 section 5.5.7 prints them.
    #[test]
    fn printed_tables() {
        let chunk = |swizzle: Swizzle, line: u32, chunk: u32| swizzle.apply(line * 128 + chunk * 16) / 16 % 8;
        let row = |swizzle, line| (0..8).map(|c| chunk(swizzle, line, c)).collect::<Vec<_>>();
        assert_eq!(row(Swizzle::B128Atom64, 0), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(row(Swizzle::B128Atom64, 1), [4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(row(Swizzle::B128Atom64, 2), [0, 1, 2, 3, 4, 5, 6, 7]);
        for line in 0..8 {
            assert_eq!(row(Swizzle::B128Atom32Flip8, line), row(Swizzle::B128Atom32, line));
            let flipped = Swizzle::B128Atom32Flip8.apply(line * 128) % 16;
            assert_eq!(flipped, if line % 2 == 1 { 8 } else { 0 });
        }
    }

    #[test]
    fn swizzles_are_permutations_of_whole_units() {
        for swizzle in ALL {
            let unit = swizzle.unit_bytes().unwrap_or(1);
            for address in 0..4096 {
                let there = swizzle.apply(address);
                assert_eq!(swizzle.apply(there), address, "{swizzle:?} {address}");
                assert_eq!(there % unit, address % unit, "{swizzle:?} {address}");
                assert_eq!(there / 128, address / 128, "{swizzle:?} {address}");
            }
            let (mode, atomicity) = swizzle.codes();
            assert_eq!(Swizzle::from_codes(mode, atomicity), Some(swizzle));
        }
        assert_eq!(Swizzle::from_codes(4, 0), None);
        assert_eq!(Swizzle::from_codes(1, 1), None);
    }
}
