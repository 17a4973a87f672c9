//! Rows of a picture after the pass along rows.

use super::Kernel;
use super::filter::Filter;
use crate::vision::Rgb;

/// Rows that are made together.
pub(super) const ROWS: usize = 4;
/// Bytes that may be written after a narrowed row: the vector loop stores eight bytes for one pixel or two.
pub(super) const EXCESS_BYTES: usize = 5;

/// The latest rows of a picture after the pass along rows, in a ring of groups of [`ROWS`]. Rows are made in
/// order, each once.
pub(super) struct NarrowRows<'a> {
    kernel: Kernel,
    filter: Filter,
    source: SourceRows<'a>,
    /// `[groups, ROWS, stride]` u8.
    ring: Vec<u8>,
    groups: usize,
    /// Bytes between rows of the ring: a row, and what kernels may write after it.
    stride: usize,
    /// Groups made so far.
    made: usize,
}

impl<'a> NarrowRows<'a> {
    /// Rows of `picture` with `width` pixels, of which up to `window` in sequence are looked at together.
    pub(super) fn new(kernel: Kernel, picture: &'a Rgb, width: usize, window: usize) -> Self {
        let filter = Filter::new(picture.width(), width);
        let source = SourceRows::new(picture, filter.read_bytes());
        let stride = width * 3 + EXCESS_BYTES;
        // A window that starts at the last row of a group touches this many.
        let groups = window.div_ceil(ROWS) + 1;
        Self { kernel, filter, source, ring: vec![0; groups * ROWS * stride], groups, stride, made: 0 }
    }

    /// Makes all rows before `end`.
    pub(super) fn advance_to(&mut self, end: usize) {
        while self.made * ROWS < end {
            let last = self.source.picture.height() - 1;
            let rows = std::array::from_fn(|i| self.source.row((self.made * ROWS + i).min(last)));
            let group_bytes = ROWS * self.stride;
            let out = &mut self.ring[self.made % self.groups * group_bytes..][..group_bytes];
            self.kernel.horizontal(&self.filter, rows, out, self.stride);
            self.made += 1;
        }
    }

    /// Row `y`, which is one of the latest made.
    pub(super) fn row(&self, y: usize) -> &[u8] {
        let slot = y / ROWS % self.groups * ROWS + y % ROWS;
        &self.ring[slot * self.stride..][..self.filter.outputs() * 3]
    }
}

/// Rows of a picture with bytes after them, for loops that read whole vectors: mostly the picture's next
/// rows.
struct SourceRows<'a> {
    picture: &'a Rgb,
    /// Bytes of each row.
    row_bytes: usize,
    /// The rows from `tail_first` on, copied: after them the picture's bytes end.
    tail: Vec<u8>,
    tail_first: usize,
}

impl<'a> SourceRows<'a> {
    fn new(picture: &'a Rgb, read_bytes: usize) -> Self {
        let pixel_bytes = picture.width() * 3;
        let row_bytes = read_bytes.max(pixel_bytes);
        let tail_first =
            picture.pixels().len().checked_sub(row_bytes).map_or(0, |last| last / pixel_bytes + 1);
        let mut tail = vec![0; (picture.height() - tail_first) * row_bytes];
        for (i, row) in tail.chunks_mut(row_bytes).enumerate() {
            row[..pixel_bytes].copy_from_slice(picture.row(tail_first + i));
        }
        Self { picture, row_bytes, tail, tail_first }
    }

    fn row(&self, y: usize) -> &[u8] {
        match y.checked_sub(self.tail_first) {
            None => &self.picture.pixels()[y * self.picture.width() * 3..][..self.row_bytes],
            Some(i) => &self.tail[i * self.row_bytes..][..self.row_bytes],
        }
    }
}
