//! Operand tiles as read from shared memory, in the order of their lines.

use super::element::Element;
use super::packing::Packing;
use super::product::{Number, Row, transpose};
use super::shared_descriptor::{Major, SharedDescriptor};
use std::ops::Range;

/// Bytes of one row of A, or column of B, per instruction.
pub(super) const K_BYTES: usize = 32;
/// Bytes of the largest tile: 256 columns of B.
pub(super) const MAX_TILE_BYTES: usize = 256 * K_BYTES;

/// Rows of A or columns of B: K-major one line of 32 bytes each, MN-major one line per k.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    bytes: &'a [u8],
    major: Major,
    /// Bytes from line to line.
    pitch: usize,
}

impl<'a> Tile<'a> {
    /// Reads the rows or columns `extent` into `buffer`.
    ///
    /// - `extent`: multiples of 16 bytes with MN-major tiles
    /// - `element_bytes`: size of the container of an element; irrelevant to K-major tiles
    /// - `packing`: elements below 8 bits become one per byte
    #[inline(always)]
    pub(super) fn read(
        descriptor: &SharedDescriptor,
        major: Major,
        extent: Range<u32>,
        element_bytes: usize,
        packing: Packing,
        read: &mut impl FnMut(u32, &mut [u8]),
        buffer: &'a mut [u8],
    ) -> Self {
        let chunk = |mn: u32| mn * element_bytes as u32 / 16;
        let (lines, chunks) = match major {
            Major::K => (extent, 0..K_BYTES as u32 / 16),
            Major::Mn => (0..(K_BYTES / element_bytes) as u32, chunk(extent.start)..chunk(extent.end)),
        };
        let pitch = 16 * chunks.len();
        let bytes = &mut buffer[..lines.len() * pitch];
        if packing == Packing::Bytes {
            descriptor.read_lines(major, lines, chunks, read, bytes);
        } else {
            // The padding is not read: nothing need ever have been written there.
            let mut payload = |address: u32, bytes: &mut [u8]| {
                for (at, chunk) in (address..).step_by(16).zip(bytes.chunks_mut(16)) {
                    read(at, &mut chunk[..packing.payload_bytes()]);
                }
            };
            descriptor.read_lines(major, lines, chunks, &mut payload, bytes);
            for chunk in bytes.as_chunks_mut::<16>().0 {
                *chunk = packing.unpack(*chunk);
            }
        }
        Self { bytes, major, pitch }
    }

    /// Columns 8 `block` to 8 `block` + 7 of B, by rows of k.
    #[inline(always)]
    pub(super) fn columns<E: Element<Value: Number>, const K: usize>(
        self,
        element: E,
        block: usize,
    ) -> [Row<E::Value>; K] {
        match self.major {
            Major::K => transpose(&self.lines::<E, 8, K>(element, 8 * block * self.pitch)),
            Major::Mn => self.lines(element, self.pitch_offset::<E>(8 * block)),
        }
    }

    /// Rows 16 `group` to 16 `group` + 15 of A.
    #[inline(always)]
    pub(super) fn rows<E: Element<Value: Number>, const K: usize>(
        self,
        element: E,
        group: usize,
    ) -> [[E::Value; K]; 16] {
        if self.major == Major::K {
            return self.lines(element, 16 * group * self.pitch);
        }
        let columns = self.lines::<E, K, 16>(element, self.pitch_offset::<E>(16 * group));
        let mut rows = [[E::Value::default(); K]; 16];
        for (k, column) in columns.iter().enumerate() {
            for (row, &value) in rows.iter_mut().zip(column) {
                row[k] = value;
            }
        }
        rows
    }

    /// Byte of row or column `mn` within an MN-major line.
    #[inline(always)]
    fn pitch_offset<E: Element>(self, mn: usize) -> usize {
        mn * 4 / E::PER_REGISTER
    }

    /// `LEN` elements of `LINES` lines, the first at byte `offset`.
    #[inline(always)]
    fn lines<E: Element, const LINES: usize, const LEN: usize>(
        self,
        element: E,
        offset: usize,
    ) -> [[E::Value; LEN]; LINES] {
        let mut dense = [[E::Value::default(); LEN]; LINES];
        for (line, out) in dense.iter_mut().enumerate() {
            let words = self.bytes[offset + line * self.pitch..].as_chunks::<4>().0;
            for (word, values) in words.iter().zip(out.chunks_exact_mut(E::PER_REGISTER)) {
                element.unpack(u32::from_le_bytes(*word), values);
            }
        }
        dense
    }
}
