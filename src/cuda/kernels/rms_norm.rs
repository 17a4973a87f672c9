//! Twin of `kernels/rms_norm.cu`: the norm of the residual stream.

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// Threads of a block; a block computes one row.
const THREADS: u32 = 256;
/// Columns that a thread moves at once.
const VALUES: usize = 8;
/// Most columns: a thread holds four times [`VALUES`] of them in registers.
const MAX_COLUMNS: usize = THREADS as usize * VALUES * 4;

/// The declaration.
pub const KERNEL: Kernel = plain!("rms_norm", &["rms_norm"], 64);

/// `RmsNormParams` in the source. Rows are contiguous and begin at multiples of 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, D]` f32, the residual stream.
    pub hidden: u64,
    /// `[D]` f32.
    pub gain: u64,
    /// `[T, D]` f32.
    pub normed: u64,
    /// `[T, D]` bf16, or 0: `normed`, rounded.
    pub rounded: u64,
    /// D.
    pub columns: i32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Whether the kernel takes rows of `columns` values.
pub fn takes(columns: usize) -> bool {
    (1..=MAX_COLUMNS).contains(&columns) && columns.is_multiple_of(VALUES)
}

/// Enqueues the norm of `num_rows` rows.
pub fn launch<D: Driver>(stream: &mut Stream<D>, num_rows: usize, params: &Params) -> Result<(), OpError> {
    let shape = LaunchShape { grid: [num_rows as u32, 1, 1], threads: THREADS, shared_bytes: 0 };
    stream.launch("rms_norm", shape, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_family_are_taken() {
        for (columns, expected) in [
            (7168, true),
            (2048, true),
            (1536, true),
            (512, true),
            (8192, true),
            (8200, false),
            (7164, false),
            (0, false),
        ] {
            assert_eq!(takes(columns), expected, "{columns}");
        }
    }
}
