//! Twin of `kernels/rms_norm.cu`: the norm of the residual stream, with or without an addition to it.

use bytemuck::{Pod, Zeroable};

use crate::cuda::{Arch, Kernel, Limits};

/// Threads of a block; a block computes one row.
pub const THREADS: u32 = 256;
/// Columns that a thread moves at once: 16 bytes of bf16.
const VALUES: usize = 8;
/// Most columns: a thread holds four times [`VALUES`] of them in registers.
const MAX_COLUMNS: usize = THREADS as usize * VALUES * 4;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "rms_norm",
    functions: &["rms_norm_f32", "rms_norm_bf16", "add_rms_norm_f32", "add_rms_norm_bf16"],
    archs: &Arch::ALL,
    options: |_| &[],
    // Two blocks on a multiprocessor of 65,536 registers.
    limits: Limits { registers: 128, local_memory: false },
    shared_bytes: 0,
};

/// Parameter of the functions, `RmsNormParams` in the source. Addresses are of device memory; rows are contiguous and
/// begin at multiples of 32 bytes (f32) or 16 bytes (bf16).
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, D]` f32, the residual stream; written by the functions that add.
    pub hidden: u64,
    /// `[T, D]` of the activation's type; read by the functions that add.
    pub delta: u64,
    /// `[D]` f32.
    pub gain: u64,
    /// `[T, D]` of the activation's type.
    pub normed: u64,
    /// D.
    pub columns: i32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Whether the kernel takes rows of `columns` values.
pub fn takes(columns: usize) -> bool {
    (1..=MAX_COLUMNS).contains(&columns) && columns.is_multiple_of(VALUES)
}

/// Bytes that must move for `rows` rows: the floor of the time, times the bandwidth. `delta_bytes` and
/// `activation_bytes` are the sizes of a value of delta (0 without an addition) and of the result.
pub fn traffic_bytes(rows: usize, columns: usize, delta_bytes: usize, activation_bytes: usize) -> usize {
    let written_back = if delta_bytes > 0 { 4 } else { 0 };
    rows * columns * (4 + written_back + delta_bytes + activation_bytes) + 4 * columns
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

    #[test]
    fn the_traffic_is_that_of_the_header() {
        assert_eq!(traffic_bytes(8192, 7168, 2, 2) / 1_000_000, 704);
        assert_eq!(traffic_bytes(32, 7168, 0, 2), 32 * 7168 * 6 + 4 * 7168);
    }
}
