//! Operand descriptors: tiles of A and B in shared memory.
//!
//! A tile is made of lines: with K-major operands a line is one row of A or column of B along k,
//! with MN-major operands it is one k along the rows or columns. Chunks of 16 bytes along a line
//! are contiguous in memory; everything else is strides and the swizzle (PTX ISA 9.0, "Strides",
//! "Shared memory matrix layout", "Matrix descriptor").

use super::swizzle::Swizzle;
use std::ops::Range;

/// The dimension that is contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Major {
    /// k is contiguous.
    K,
    /// Rows of A, or columns of B, are contiguous.
    Mn,
}

/// A decoded descriptor. Addresses and strides are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedDescriptor {
    /// Shared address of the first element before the swizzle.
    pub start: u32,
    /// Leading dimension offset.
    pub leading: u32,
    /// Stride dimension offset.
    pub stride: u32,
    /// Phase of the swizzle pattern, in rows of 128 bytes.
    pub base_offset: u32,
    /// Swizzle mode.
    pub swizzle: Swizzle,
}

impl SharedDescriptor {
    /// Decodes a descriptor of `wgmma`.
    pub fn decode(descriptor: u64) -> Self {
        let swizzle = match descriptor >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        Self::with_swizzle(descriptor, swizzle)
    }

    /// Decodes a descriptor of `tcgen05`. Errors name the field.
    pub fn decode_tcgen05(descriptor: u64) -> Result<Self, String> {
        if descriptor >> 46 & 3 != 1 {
            return Err(format!("shared descriptor {descriptor:#x}: the version is not 1"));
        }
        if descriptor >> 52 & 1 != 0 {
            return Err(format!("shared descriptor {descriptor:#x}: absolute leading offsets are not known"));
        }
        let swizzle = match descriptor >> 61 {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128Atom32,
            2 => Swizzle::Bytes128,
            4 => Swizzle::Bytes64,
            6 => Swizzle::Bytes32,
            _ => return Err(format!("shared descriptor {descriptor:#x}: reserved swizzle")),
        };
        Ok(Self::with_swizzle(descriptor, swizzle))
    }

    /// The fields that descriptors of `wgmma` and `tcgen05` share.
    fn with_swizzle(descriptor: u64, swizzle: Swizzle) -> Self {
        let sixteenths = |shift: u32| ((descriptor >> shift & 0x3fff) << 4) as u32;
        Self {
            start: sixteenths(0),
            leading: sixteenths(16),
            stride: sixteenths(32),
            base_offset: (descriptor >> 49 & 7) as u32,
            swizzle,
        }
    }

    /// Shared address of 16-byte chunk `chunk` of line `line`.
    #[inline(always)]
    pub fn chunk_address(&self, major: Major, line: u32, chunk: u32) -> u32 {
        let width = self.swizzle.width();
        // Four lines span the pattern of 32-byte atoms, eight that of the others.
        let lines = if self.swizzle == Swizzle::Bytes128Atom32 { 4 } else { 8 };
        let (group, row) = (line / lines, line % lines);
        let offset = match (major, self.swizzle) {
            (Major::K, Swizzle::None) => group * self.stride + row * 16 + chunk * self.leading,
            (Major::K, _) => group * self.stride + row * width + chunk * 16,
            // Without a swizzle the two strides swap roles.
            (Major::Mn, Swizzle::None) => group * self.leading + row * 16 + chunk * self.stride,
            (Major::Mn, _) => {
                let byte = chunk * 16;
                group * self.stride + row * width + byte / width * self.leading + byte % width
            }
        };
        self.swizzle.apply_from(self.start + offset, self.base_offset)
    }

    /// Shared address of the element at `mn`, `k`.
    pub fn element_address(&self, major: Major, mn: u32, k: u32, bits: u32) -> u32 {
        let (line, position) = if major == Major::K { (mn, k) } else { (k, mn) };
        let byte = position * bits / 8;
        self.chunk_address(major, line, byte / 16) + byte % 16
    }

    /// Reads `chunks` of each of `lines` into `tile`, line after line.
    ///
    /// - `read`: fills its buffer from a shared address
    /// - `tile`: 16 bytes per line and chunk
    #[inline(always)]
    pub(super) fn read_lines(
        &self,
        major: Major,
        lines: Range<u32>,
        chunks: Range<u32>,
        read: &mut impl FnMut(u32, &mut [u8]),
        tile: &mut [u8],
    ) {
        for (line, out) in lines.zip(tile.chunks_exact_mut(16 * chunks.len())) {
            // A swizzle leaves a pair of chunks adjacent, in either order.
            for (chunk, pair) in chunks.clone().step_by(2).zip(out.chunks_mut(32)) {
                let first = self.chunk_address(major, line, chunk);
                if pair.len() == 16 {
                    read(first, pair);
                    continue;
                }
                let second = self.chunk_address(major, line, chunk + 1);
                if second == first + 16 {
                    read(first, pair);
                } else if first == second + 16 {
                    read(second, pair);
                    let (low, high) = pair.split_at_mut(16);
                    low.swap_with_slice(high);
                } else {
                    read(first, &mut pair[..16]);
                    read(second, &mut pair[16..]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::golden;

    #[test]
    fn descriptors_give_the_addresses_of_every_k_step() {
        let fragments = golden::fragments();
        let tiles = fragments["wgmma_smem"].as_object().expect("an object");
        assert_eq!(tiles.len(), 13);
        for (name, tile) in tiles {
            let number = |key: &str| tile[key].as_u64().expect(key) as u32;
            let major = if tile["major"] == "K" { Major::K } else { Major::Mn };
            let (bits, k_step) = (number("bits"), number("k_step"));
            let descriptors = tile["descriptors"].as_array().expect("descriptors");
            assert_eq!(descriptors.len() as u32 * k_step, number("k"), "{name}");
            for (step, text) in descriptors.iter().enumerate() {
                let text = text.as_str().expect("text").trim_start_matches("0x");
                let descriptor = SharedDescriptor::decode(u64::from_str_radix(text, 16).expect(text));
                for mn in 0..number("mn") {
                    for k in 0..k_step {
                        let expected = &tile["address"][mn as usize][(step as u32 * k_step + k) as usize];
                        let got = descriptor.element_address(major, mn, k, bits);
                        assert_eq!(Some(got as u64), expected.as_u64(), "{name} step {step} mn {mn} k {k}");
                    }
                }
            }
        }
    }

    /// K-major tiles of 128 rows begin like those of 64; every tile fills its buffer exactly once.
    #[test]
    fn tcgen05_descriptors_cover_their_tiles() {
        let fragments = golden::fragments();
        let tiles = fragments["umma_smem"].as_object().expect("an object");
        assert_eq!(tiles.len(), 7);
        for (name, tile) in tiles {
            let number = |key: &str| tile[key].as_u64().expect(key) as u32;
            let major = if tile["major"] == "K" { Major::K } else { Major::Mn };
            let (bits, k_step, mn_size) = (number("bits"), number("k_step"), number("mn"));
            let mut covered = vec![false; (mn_size * number("k") * bits / 8) as usize];
            for (step, text) in tile["descriptors"].as_array().expect("descriptors").iter().enumerate() {
                let text = text.as_str().expect("text").trim_start_matches("0x");
                let code = u64::from_str_radix(text, 16).expect(text);
                let descriptor = SharedDescriptor::decode_tcgen05(code).expect(name);
                for mn in 0..mn_size {
                    for k in 0..k_step {
                        let address = descriptor.element_address(major, mn, k, bits) as usize;
                        let smaller = &fragments["wgmma_smem"][name];
                        if major == Major::K && descriptor.swizzle != Swizzle::None && mn < 64 {
                            let expected =
                                &smaller["address"][mn as usize][(step as u32 * k_step + k) as usize];
                            assert_eq!(Some(address as u64), expected.as_u64(), "{name} mn {mn} k {k}");
                        }
                        assert!(!covered[address], "{name} mn {mn} k {k}: {address} twice");
                        covered[address..address + bits as usize / 8].fill(true);
                    }
                }
            }
            assert!(covered.iter().all(|&byte| byte), "{name}");
        }
        assert!(SharedDescriptor::decode_tcgen05(0).is_err());
        assert!(SharedDescriptor::decode_tcgen05(3 << 61 | 1 << 46).is_err());
    }

    #[test]
    fn lines_are_read_in_order() {
        // The memory holds the chunk number of every address.
        let mut read = |address: u32, out: &mut [u8]| {
            for (i, byte) in out.iter_mut().enumerate() {
                *byte = ((address + i as u32) / 16) as u8;
            }
        };
        for swizzle in 0..4u64 {
            let descriptor = SharedDescriptor::decode(swizzle << 62 | 8 << 32 | 16 << 16 | 2);
            for major in [Major::K, Major::Mn] {
                for chunks in [0..2, 0..3, 2..4] {
                    let mut tile = vec![0; 16 * chunks.len() * 5];
                    descriptor.read_lines(major, 3..8, chunks.clone(), &mut read, &mut tile);
                    let expected: Vec<u8> = (3..8)
                        .flat_map(|line| chunks.clone().map(move |chunk| (line, chunk)))
                        .flat_map(|(line, chunk)| {
                            [(descriptor.chunk_address(major, line, chunk) / 16) as u8; 16]
                        })
                        .collect();
                    assert_eq!(tile, expected, "swizzle {swizzle} {major:?} {chunks:?}");
                }
            }
        }
    }
}
