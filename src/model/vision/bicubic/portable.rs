//! The inner loops in plain Rust: the definition that the vector loops equal.

use super::filter::{Filter, HALF, PRECISION};

/// One row through the filter. `row`: `[inputs, 3]` u8; `out`: `[outputs, 3]` u8; bytes after them are not
/// used.
pub(super) fn horizontal(filter: &Filter, row: &[u8], out: &mut [u8]) {
    for x in 0..filter.outputs() {
        let (first, weights) = filter.output(x);
        let mut sums = [HALF; 3];
        for (pixel, &weight) in row[first * 3..].chunks_exact(3).zip(weights) {
            for (sum, &value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(value) * weight;
            }
        }
        out[x * 3..x * 3 + 3].copy_from_slice(&sums.map(rounded));
    }
}

/// The weighted sum of `rows`, which are as long as `out`.
pub(super) fn vertical(weights: &[i32], rows: &[&[u8]], out: &mut [u8]) {
    // Sums of a block stay in registers or the first-level cache while the rows pass.
    const BLOCK: usize = 64;
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let mut sums = [HALF; BLOCK];
        for (row, &weight) in rows.iter().zip(weights) {
            for (sum, &value) in sums.iter_mut().zip(&row[block * BLOCK..][..out.len()]) {
                *sum += i32::from(value) * weight;
            }
        }
        for (value, &sum) in out.iter_mut().zip(&sums) {
            *value = rounded(sum);
        }
    }
}

/// A sum as a pixel value.
pub(super) fn rounded(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}
