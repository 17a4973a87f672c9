//! Rows of words turned into steps of sixteen lanes, as panels hold them.

use super::layout::LANES;
use super::simd::{Kernel, Simd};

/// Turns up to sixteen rows of whole 32-bit words (absent rows are empty) into `[words][16]`.
pub(crate) struct TransposeRows<'a> {
    pub(crate) rows: [&'a [u8]; LANES],
    pub(crate) words: &'a mut [u32],
}

impl Kernel for TransposeRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut square = [0u32; LANES * LANES];
        let steps = self.words.len() / LANES;
        for first in (0..steps).step_by(LANES) {
            let cols = LANES.min(steps - first);
            let bytes = |row: &'_ [u8]| 4 * first..row.len().min(4 * (first + cols)).max(4 * first);
            for (line, row) in square.chunks_exact_mut(LANES).zip(self.rows) {
                let bytes = row.get(bytes(row)).unwrap_or(&[]);
                if bytes.len() < 4 * LANES {
                    // The end of a row, or no row: what is missing is zero.
                    let line: &mut [u8] = bytemuck::cast_slice_mut(line);
                    line.fill(0);
                    line[..bytes.len()].copy_from_slice(bytes);
                }
            }
            let from = std::array::from_fn(|r| match self.rows[r].get(bytes(self.rows[r])) {
                Some(line) if line.len() == 4 * LANES => line.as_ptr().cast(),
                _ => square[r * LANES..].as_ptr(),
            });
            // SAFETY: `cols` steps of 16 words from `first` are inside `words`.
            unsafe {
                let to = self.words.as_mut_ptr().add(first * LANES);
                S::transpose(&from, to, LANES, LANES, cols);
            }
        }
    }
}
