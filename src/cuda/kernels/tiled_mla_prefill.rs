//! Twin of `kernels/tiled_mla_prefill.cu`: [`super::mla_prefill`] on tensor cores.

use bytemuck::{Pod, Zeroable};

use crate::cuda::{Arch, Kernel, LaunchShape, Limits};
use crate::ops::{CacheDType, MlaShape};

/// Keys of a tile; slabs begin at its multiples.
pub const KEYS: usize = 64;
/// Rows of a block of prefill.
const QUERIES: usize = 128;
/// Keys of a block of gather.
const GATHERED: usize = 8;
/// Keys and columns of a block of expand.
const EXPANDED: usize = 128;
/// Threads of a block of each function.
const THREADS: u32 = 256;
/// Most values of a query head and of a value head: N + R, V.
const MAX_HEAD: usize = 192;
const MAX_VALUE: usize = 128;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "tiled_mla_prefill",
    functions: &[
        "tiled_mla_gather_bf16",
        "tiled_mla_gather_fp8",
        "tiled_mla_gather_fp8_rope",
        "tiled_mla_expand",
        "tiled_mla_prefill",
    ],
    archs: &Arch::ALL,
    options: |_| &[],
    // Prefill keeps queries and sums in registers: one block of 256 threads on a multiprocessor of 65,536.
    limits: Limits { registers: 255, local_memory: false },
    shared_bytes: SHARED_BYTES,
};

/// `sizeof(Shared)` in the source.
const SHARED_BYTES: u32 = (2 * KEYS * (MAX_HEAD + 8 + MAX_VALUE + 8) * 2 + 2 * KEYS * 4) as u32;

/// Parameter of the functions, `TiledMlaPrefillParams` in the source. Arrays begin at multiples of 16 bytes. K keys of
/// the slab.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, H * (N + R)]` f32, not rotated.
    pub query: u64,
    /// `[T, R]` f32: R/2 cosines, then R/2 sines.
    pub rotations: u64,
    /// `[H * (N + V), C]` bf16: per head N rows of W_UK, then V of W_UV.
    pub kv_up: u64,
    /// `[slots, row_bytes]`, one layer of the cache.
    pub cache: u64,
    /// Block ids of the sequence, u32, from position 0 on.
    pub block_table: u64,
    /// `[K, C]` bf16, from gather to expand.
    pub latents: u64,
    /// `[K, R]` bf16, from gather to prefill.
    pub rope_keys: u64,
    /// `[K]` f32: 0, or NaN of a key whose latent is not finite; from gather to prefill.
    pub faults: u64,
    /// `[K, H * (N + V)]` bf16, from expand to prefill.
    pub keys_values: u64,
    /// `[T, H, 2]` f32: largest score and sum of exponentials, from slab to slab.
    pub statistics: u64,
    /// `[T, H * V]` f32.
    pub attended: u64,
    /// `[T, H * V]` bf16, or 0: `attended`, rounded.
    pub rounded: u64,
    /// H.
    pub num_heads: i32,
    /// N.
    pub nope: i32,
    /// R.
    pub rope: i32,
    /// V.
    pub value: i32,
    /// C.
    pub latent: i32,
    /// Tokens of a block.
    pub block_size: i32,
    /// Bytes of a cached row.
    pub row_bytes: i32,
    /// Factor on scores, times log2(e).
    pub scale: f32,
    /// Position of the slab's first key, a multiple of [`KEYS`].
    pub first_key: i32,
    /// K, a multiple of [`KEYS`] if later keys follow.
    pub num_keys: i32,
    /// First row of the step.
    pub first_row: i32,
    /// Rows of the launch of prefill, all of them at the slab's first key or behind it.
    pub num_rows: i32,
    /// Position of `first_row` in its sequence.
    pub first_position: i32,
    /// 0.
    pub reserved: i32,
}

/// Whether the functions take these sizes.
pub fn takes(shape: &MlaShape) -> bool {
    let MlaShape { qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank, .. } = *shape;
    let sizes = [qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank];
    sizes.iter().all(|size| size.is_multiple_of(16))
        && qk_nope_head_dim + qk_rope_head_dim <= MAX_HEAD
        && v_head_dim <= MAX_VALUE
}

/// The function that gathers rows of this type; `None` for rows of f32.
pub fn gather_function(cache: CacheDType) -> Option<&'static str> {
    match cache {
        CacheDType::F32 => None,
        CacheDType::Bf16 => Some("tiled_mla_gather_bf16"),
        CacheDType::Fp8(format) if format.rope_codes => Some("tiled_mla_gather_fp8_rope"),
        CacheDType::Fp8(_) => Some("tiled_mla_gather_fp8"),
    }
}

/// Shape of the launch of gather.
pub fn gather_launch(num_keys: usize) -> LaunchShape {
    LaunchShape { grid: [num_keys.div_ceil(GATHERED) as u32, 1, 1], threads: THREADS, shared_bytes: 0 }
}

/// Shape of the launch of expand.
pub fn expand_launch(shape: &MlaShape, num_keys: usize) -> LaunchShape {
    let columns = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim);
    let grid = [columns.div_ceil(EXPANDED) as u32, num_keys.div_ceil(EXPANDED) as u32, 1];
    LaunchShape { grid, threads: THREADS, shared_bytes: 0 }
}

/// Shape of the launch of prefill.
pub fn prefill_launch(shape: &MlaShape, num_rows: usize) -> LaunchShape {
    let grid = [num_rows.div_ceil(QUERIES) as u32, shape.num_heads as u32, 1];
    LaunchShape { grid, threads: THREADS, shared_bytes: SHARED_BYTES }
}
