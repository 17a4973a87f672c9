//! Twin of `kernels/tiled_mla_combine.cu`: rows of [`super::mla_decode`] from their items on tensor cores, with its parameters.

use super::{mla_decode, plain};
use crate::{Kernel, LaunchShape};
use perigee_ops::MlaShape;

/// Rows of a tile of many.
const ROWS: usize = 8;
/// Values of a warp and parts of C, of which a block takes four and all at least.
const VALUES: usize = 16;
const PARTS: usize = 4;
const MAX_VALUES: usize = 128;
const MAX_LATENT: usize = 512;
/// Columns of a part that are read at once.
const STEP: usize = 32;

/// The declaration.
pub const KERNEL: Kernel = plain!(
    "tiled_mla_combine",
    &[
        "tiled_mla_combine",
        "tiled_mla_combine_f16",
        "tiled_mla_combine_row",
        "tiled_mla_combine_row_f16",
        "tiled_mla_project",
        "tiled_mla_project_row",
    ],
    128
);

/// Whether the functions take these sizes.
pub fn takes(shape: &MlaShape) -> bool {
    let MlaShape { v_head_dim, kv_lora_rank, .. } = *shape;
    v_head_dim.is_multiple_of(PARTS * VALUES)
        && v_head_dim <= MAX_VALUES
        && kv_lora_rank.is_multiple_of(PARTS * STEP)
        && kv_lora_rank <= MAX_LATENT
}

/// The function that merges the items of passes of so many rows, whose sums are f16 or f32, and its launch.
pub fn combine(shape: &MlaShape, rows: usize, f16: bool) -> (&'static str, LaunchShape) {
    match f16 {
        true => mla_decode::by_rows(shape, rows, ROWS, "tiled_mla_combine_row_f16", "tiled_mla_combine_f16"),
        false => mla_decode::by_rows(shape, rows, ROWS, "tiled_mla_combine_row", "tiled_mla_combine"),
    }
}

/// The function that multiplies merged latents by W_UV, and its launch.
pub fn project(shape: &MlaShape, rows: usize) -> (&'static str, LaunchShape) {
    mla_decode::by_rows(shape, rows, ROWS, "tiled_mla_project_row", "tiled_mla_project")
}
