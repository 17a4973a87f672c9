//! `tcgen05.cp`: rows of shared memory become lanes of tensor memory.

use super::packing::Packing;
use super::shared_descriptor::{Major, SharedDescriptor};
use super::tensor_memory::{TensorMemory, split_address};

/// A parsed `tcgen05.cp` instruction; each block of a pair executes it on its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMemoryCopy {
    rows: usize,
    /// Chunks of 16 bytes per row, four columns each.
    chunks: usize,
    broadcast: Broadcast,
    packing: Packing,
}

/// Lanes that receive row r.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broadcast {
    /// Lane r.
    None,
    /// Lane 32r: the same lane of each warp's quarter.
    Quarters,
    /// Lanes r + 32q of all four quarters (`warpx4`).
    Warps4,
    /// Lanes r and r + 64 (`warpx2::02_13`).
    Warps02,
    /// Rows 0 to 31 in quarters 0 and 1, rows 32 to 63 in quarters 2 and 3 (`warpx2::01_23`).
    Warps01,
}

impl TensorMemoryCopy {
    /// `modifiers`: what follows `tcgen05.`, split at dots. Errors name the modifier or the
    /// combination.
    pub fn parse(modifiers: &[&str]) -> Result<Self, String> {
        let (mut shape, mut multicast, mut destination, mut source) = (None, None, None, None);
        for &modifier in modifiers {
            match modifier {
                "cp" | "cta_group::1" | "cta_group::2" => {}
                "128x256b" | "4x256b" | "128x128b" | "64x128b" | "32x128b" => shape = Some(modifier),
                "warpx4" | "warpx2::02_13" | "warpx2::01_23" => multicast = Some(modifier),
                "b8x16" => destination = Some(modifier),
                "b4x16_p64" | "b6x16_p32" => source = Some(modifier),
                _ => return Err(format!("tcgen05.cp: unknown modifier .{modifier}")),
            }
        }
        let form = match (shape, multicast) {
            (Some("128x256b"), None) => Some((128, 2, Broadcast::None)),
            (Some("128x128b"), None) => Some((128, 1, Broadcast::None)),
            (Some("4x256b"), None) => Some((4, 2, Broadcast::Quarters)),
            (Some("64x128b"), Some("warpx2::02_13")) => Some((64, 1, Broadcast::Warps02)),
            (Some("64x128b"), Some("warpx2::01_23")) => Some((64, 1, Broadcast::Warps01)),
            (Some("32x128b"), Some("warpx4")) => Some((32, 1, Broadcast::Warps4)),
            _ => None,
        };
        match form.zip(Packing::parse(destination, source)) {
            Some(((rows, chunks, broadcast), packing)) => Ok(Self { rows, chunks, broadcast, packing }),
            None => Err(format!("tcgen05.{}: unsupported combination", modifiers.join("."))),
        }
    }

    /// Copies from the K-major matrix that `descriptor` names to `address`; `read` fills its buffer
    /// from a shared address.
    pub fn execute(
        &self,
        memory: &mut TensorMemory,
        address: u32,
        descriptor: u64,
        read: &mut impl FnMut(u32, &mut [u8]),
    ) -> Result<(), String> {
        let descriptor = SharedDescriptor::decode_tcgen05(descriptor)?;
        let (first_lane, first_column) = split_address(address);
        for row in 0..self.rows {
            for chunk in 0..self.chunks {
                let mut bytes = [0; 16];
                read(descriptor.chunk_address(Major::K, row as u32, chunk as u32), &mut bytes);
                let words = self.packing.unpack(bytes);
                for (i, word) in words.as_chunks::<4>().0.iter().enumerate() {
                    for lane in self.lanes(row).into_iter().flatten() {
                        memory.write(
                            first_lane + lane,
                            first_column + 4 * chunk + i,
                            u32::from_le_bytes(*word),
                        )?;
                    }
                }
            }
        }
        Ok(())
    }

    fn lanes(&self, row: usize) -> [Option<usize>; 4] {
        match self.broadcast {
            Broadcast::None => [Some(row), None, None, None],
            Broadcast::Quarters => [Some(32 * row), None, None, None],
            Broadcast::Warps4 => [0, 1, 2, 3].map(|quarter| Some(row + 32 * quarter)),
            Broadcast::Warps02 => [Some(row), Some(row + 64), None, None],
            Broadcast::Warps01 => {
                let first = row % 32 + row / 32 * 64;
                [Some(first), Some(first + 32), None, None]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::golden::{self, modifiers};

    /// K-major rows of 16 bytes, the second chunk of each row 4096 bytes behind.
    const DESCRIPTOR: u64 = 1 << 46 | (128 >> 4) << 32 | (4096 >> 4) << 16;

    /// Runs `text` on bytes that follow `byte(address)`, and returns lane x column words.
    fn run(text: &str, byte: impl Fn(u32) -> u8) -> Vec<Vec<Option<u32>>> {
        let copy = TensorMemoryCopy::parse(&modifiers(text)).expect(text);
        let mut memory = TensorMemory::new();
        memory.allocate(32).expect("room");
        let mut read = |address: u32, out: &mut [u8]| {
            for (i, value) in out.iter_mut().enumerate() {
                *value = byte(address + i as u32);
            }
        };
        copy.execute(&mut memory, 8, DESCRIPTOR, &mut read).expect(text);
        (0..128)
            .map(|lane| (0..32).map(|column| memory.read(lane, column).expect("allocated")).collect())
            .collect()
    }

    #[test]
    fn rows_reach_their_lanes() {
        // A word of memory holds its own address.
        let byte = |address: u32| (address & !3).to_le_bytes()[address as usize % 4];
        // Columns, and the row that a lane receives.
        type Form = (&'static str, usize, fn(usize) -> Option<usize>);
        let forms: [Form; 6] = [
            ("tcgen05.cp.cta_group::1.128x256b", 8, Some),
            ("tcgen05.cp.cta_group::1.128x128b", 4, Some),
            ("tcgen05.cp.cta_group::1.4x256b", 8, |lane| (lane % 32 == 0).then_some(lane / 32)),
            ("tcgen05.cp.cta_group::1.64x128b.warpx2::02_13", 4, |lane| Some(lane % 64)),
            ("tcgen05.cp.cta_group::1.64x128b.warpx2::01_23", 4, |lane| Some(lane / 64 * 32 + lane % 32)),
            ("tcgen05.cp.cta_group::1.32x128b.warpx4", 4, |lane| Some(lane % 32)),
        ];
        for (text, columns, row_of) in forms {
            for (lane, cells) in run(text, byte).into_iter().enumerate() {
                for (column, cell) in cells.into_iter().enumerate() {
                    let at = column.wrapping_sub(8);
                    let expected = row_of(lane)
                        .filter(|_| at < columns)
                        .map(|row| 16 * row + at % 4 * 4 + at / 4 * 4096);
                    assert_eq!(
                        cell,
                        expected.map(|address| address as u32),
                        "{text} lane {lane} column {column}"
                    );
                }
            }
        }
    }

    /// The block of 128 rows x 4 scale factors in memory arrives as tcgen05.mma expects it: row r
    /// in lane r mod 32, column r / 32, byte k.
    #[test]
    fn scale_blocks_arrive_in_place() {
        let fragments = golden::fragments();
        let layout: Vec<Vec<u32>> =
            serde_json::from_value(fragments["scale_layout"]["mx.block32.128x256"]["byte"].clone())
                .expect("a table");
        let factor = |address: u32| {
            let rows = layout.iter().map(|row| &row[..4]).enumerate();
            let mut found =
                rows.filter_map(|(row, bytes)| Some((row, bytes.iter().position(|&b| b == address)?)));
            found.next().expect("the first block holds the address")
        };
        let text = "tcgen05.cp.cta_group::1.32x128b.warpx4";
        let rows = run(text, |address| factor(address).0 as u8);
        let blocks = run(text, |address| factor(address).1 as u8);
        for row in 0..128 {
            for quarter in 0..4 {
                let (lane, column) = (row % 32 + 32 * quarter, 8 + row / 32);
                assert_eq!(rows[lane][column], Some(u32::from_le_bytes([row as u8; 4])), "row {row}");
                assert_eq!(blocks[lane][column], Some(0x0302_0100), "row {row}");
            }
        }
    }

    #[test]
    fn narrow_elements_widen() {
        let cells = run("tcgen05.cp.cta_group::1.128x128b.b8x16.b4x16_p64", |address| {
            if address % 16 < 8 { 0x10 + 0x22 * (address % 16) as u8 } else { 0xff }
        });
        assert_eq!(cells[5][8..12], [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c].map(Some));
    }

    #[test]
    fn unknown_forms_are_errors() {
        for text in [
            "tcgen05.cp.cta_group::1.64x128b",
            "tcgen05.cp.cta_group::1.32x128b.warpx2::02_13",
            "tcgen05.cp.cta_group::1.128x128b.b4x16_p64",
            "tcgen05.cp.cta_group::1.128x128b.b8x16",
        ] {
            assert!(TensorMemoryCopy::parse(&modifiers(text)).is_err(), "{text}");
        }
    }
}
