//! Twin of `kernels/latent.cu`: norms of the latents, and the cached row.

use bytemuck::{Pod, Zeroable};

use super::ahead::{self, Ahead};
use super::plain;
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::{CacheDtype, OpError};

/// The declaration.
pub const KERNEL: Kernel = plain!("latent", &NAMES, 64);

/// In the order of `RowKind`.
const NAMES: [&str; 4] = ["latent_f32", "latent_bf16", "latent_fp8", "latent_fp8_rope"];

/// Most values of a cached row.
pub const MAX_COLUMNS: usize = 2048;

/// `LatentParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, Q]` f32, normalised in place; 0: no query latent.
    pub q_latent: u64,
    /// `[T, Q]` bf16, or 0: `q_latent`, rounded.
    pub q_rounded: u64,
    /// `[Q]` f32.
    pub q_gain: u64,
    /// `[T, C + R]` f32.
    pub kv_a: u64,
    /// `[C]` f32.
    pub kv_gain: u64,
    /// `[T, R]` f32, cosines then sines.
    pub rotations: u64,
    /// `[T]` u32, place in the cache.
    pub slots: u64,
    /// The layer.
    pub cache: u64,
    /// Q.
    pub q_columns: i32,
    /// C.
    pub columns: i32,
    /// R.
    pub rope: i32,
    /// Bytes of a cached row.
    pub row_bytes: i32,
    /// FP8: whether a row has scales of its own.
    pub row_scales: i32,
    /// FP8: else the scale is `2^exponent`.
    pub exponent: i32,
    /// Added to the mean square.
    pub eps: f32,
    /// Zero.
    pub padding: i32,
}

/// `LatentLaunch` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct LaunchParams {
    params: Params,
    ahead: Ahead,
}

/// Enqueues the latents of `num_rows` rows; `row_scales` of `params` is set here. `ahead` is fetched meanwhile.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    dtype: CacheDtype,
    params: Params,
    ahead: Ahead,
) -> Result<(), OpError> {
    let (kind, params) = of_rows(dtype, params);
    let (rows, parts) = (num_rows as u32, if params.q_latent == 0 { 1 } else { 2 });
    let others = if ahead.is_some() { ahead::BLOCKS.div_ceil((rows * parts).max(1)) } else { 0 };
    let shape = LaunchShape { grid: [rows, parts, 1 + others], threads: 256, shared_bytes: 0 };
    stream.launch(NAMES[kind as usize], shape, &LaunchParams { params, ahead })
}

/// `RowKind` in the source of rows of this type, and the parameters with their scales.
pub(super) fn of_rows(dtype: CacheDtype, params: Params) -> (u32, Params) {
    let (kind, row_scales) = match dtype {
        CacheDtype::F32 => (0, false),
        CacheDtype::Bf16 => (1, false),
        CacheDtype::Fp8(format) => (2 + u32::from(format.rope_codes), format.row_scales),
    };
    (kind, Params { row_scales: i32::from(row_scales), ..params })
}
