//! Twin of `kernels/tiled_latent.cu`: the two projections in front of attention with the latents behind them.

use bytemuck::{Pod, Zeroable};

use super::tiled::{self, Part, Schedule, Variant};
use super::{latent, plain};
use crate::weights::{Format, Tiled};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::{CacheDtype, OpError};

/// Most rows whose latents one block computes: with more of them a launch of its own is faster.
pub const ROWS: usize = 4;

/// The declaration.
pub const KERNEL: Kernel =
    Kernel { shared_bytes: |_| Variant::shared_bytes_of(is_taken), ..plain!("tiled_latent", &NAMES, 168) };

const NAMES: [&str; 4] = [
    "tiled_latent_bf16_split16x8",
    "tiled_latent_bf16_split32x8",
    "tiled_latent_fp8_split16x8",
    "tiled_latent_fp8_split32x8",
];

/// Whether there are functions of a variant.
fn is_taken(variant: &Variant) -> bool {
    variant.schedule == Schedule::Split && variant.rows == 8
}

/// `TiledLatentParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Params {
    parts: [tiled::Params; 2],
    latent: latent::Params,
    blocks_done: u64,
    num_rows: i32,
    kind: u32,
}

/// Norms of the latents and cached rows that follow the products.
#[derive(Debug, Clone, Copy)]
pub struct Latents {
    /// Of the norms and of the cached rows.
    pub params: latent::Params,
    /// Type of the cached rows.
    pub dtype: CacheDtype,
    /// Rows, at most [`ROWS`].
    pub rows: usize,
    /// Address of a u32, 0.
    pub blocks_done: u64,
}

/// The function for two matrices and so many rows, if there is one.
pub fn function(variant: &Variant, matrices: [&Tiled; 2], rows: usize) -> Option<&'static str> {
    let [first, second] = matrices;
    if !is_taken(variant) || rows > ROWS || first.format != second.format {
        return None;
    }
    let format = match first.format {
        Format::Bf16 => 0,
        Format::Fp8 => 2,
        _ => return None,
    };
    NAMES.get(format + variant.warp_tiles - 1).copied()
}

/// Enqueues by `function`, whose variant this is, both products, and what [`latent::launch`] does.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    function: &'static str,
    variant: &Variant,
    parts: &[Part<'_>; 2],
    latents: &Latents,
) -> Result<(), OpError> {
    let (kind, latent) = latent::of_rows(latents.dtype, latents.params);
    let (mut params, mut tiles) = ([tiled::Params::zeroed(); 2], 0);
    for (part, params) in parts.iter().zip(&mut params) {
        *params = part.params(variant, false)?.0;
        tiles = tiles.max(part.matrix.tiles());
    }
    let shape = LaunchShape {
        grid: [tiles.div_ceil(variant.warp_tiles) as u32, 1, 2],
        threads: variant.threads(),
        shared_bytes: variant.shared_bytes(),
    };
    let (blocks_done, num_rows) = (latents.blocks_done, latents.rows as i32);
    let params = Params { parts: params, latent, blocks_done, num_rows, kind };
    stream.launch(function, shape, &params)
}
