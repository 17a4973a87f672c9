//! Twin of `kernels/tiled_mla_absorb.cu`: queries in the latent space of [`super::mla_decode`] on tensor cores, with its parameters.

use super::plain;
use crate::{Kernel, LaunchShape};
use perigee_ops::MlaShape;

/// Rows of a tile, columns of a block, largest N.
const ROWS: usize = 8;
const COLUMNS: usize = 128;
const MAX_NOPE: usize = 128;
/// Blocks that share the rows of a head's columns: with the heads of a model they fill a device.
const SHARES: usize = 2;

/// The declaration.
pub const KERNEL: Kernel = plain!("tiled_mla_absorb", &[FUNCTION], 64);

/// The function.
pub const FUNCTION: &str = "tiled_mla_absorb";

/// Whether the function takes these sizes.
pub fn takes(shape: &MlaShape) -> bool {
    let MlaShape { qk_nope_head_dim, kv_lora_rank, .. } = *shape;
    qk_nope_head_dim.is_multiple_of(16) && qk_nope_head_dim <= MAX_NOPE && kv_lora_rank.is_multiple_of(16)
}

/// Shape of the launch over passes of up to `max_rows` rows.
pub fn launch(shape: &MlaShape, max_rows: usize) -> LaunchShape {
    let shares = max_rows.div_ceil(ROWS).clamp(1, SHARES) as u32;
    let grid = [shares, shape.num_heads as u32, shape.kv_lora_rank.div_ceil(COLUMNS) as u32];
    LaunchShape { grid, threads: 256, shared_bytes: 0 }
}
