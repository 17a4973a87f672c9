//! Twin of `kernels/mla_prefill.cu`: attention in expanded form, one sequence and one slab of its context at a time.
//! Takes the sizes of [`super::mla_decode::check`].

use bytemuck::{Pod, Zeroable};

use super::all_reduce::MAX_RANKS;
use crate::{Arch, Kernel, LaunchShape, Limits};
use perigee_ops::MlaShape;

/// Keys of a tile; slabs begin at its multiples.
pub const KEYS: usize = 32;
/// Rows of a block of prefill.
const QUERIES: usize = 32;
/// Keys of a block of gather.
const GATHERED: usize = 8;
/// Keys and columns of a block of expand.
const EXPANDED: usize = 64;
/// Threads of a block of each function.
const THREADS: u32 = 256;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "mla_prefill",
    text: include_str!("../../../kernels/mla_prefill.cu"),
    functions: &[
        "mla_gather_f32",
        "mla_gather_bf16",
        "mla_gather_fp8",
        "mla_gather_fp8_rope",
        "mla_expand_f32",
        "mla_expand_bf16",
        "mla_prefill",
    ],
    archs: &Arch::ALL,
    options: |_| &[],
    // Prefill keeps the sums of four rows: one block of 256 threads on a multiprocessor of 65,536 registers.
    limits: Limits { registers: 168, local_memory: false },
    shared_bytes: |_| 0,
};

/// Parameter of these functions and of those of [`super::tiled_mla_prefill`], `MlaPrefillParams` in the source: scratch is
/// f32 here and bf16 there. Arrays begin at multiples of 16 bytes. K keys of the slab.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, H * (N + R)]` f32, not rotated.
    pub query: u64,
    /// `[T, R]` f32: R/2 cosines, then R/2 sines.
    pub rotations: u64,
    /// `[H * (N + V), C]` of the function's type: per head N rows of W_UK, then V of W_UV.
    pub kv_up: u64,
    /// Cached rows of one layer.
    pub cache: CacheParts,
    /// Block ids of the sequence, u32, from position 0 on.
    pub block_table: u64,
    /// `[K, C]`, from gather to expand.
    pub latents: u64,
    /// `[K, R]`, from gather to prefill.
    pub rope_keys: u64,
    /// `[K, H * (N + V)]`, from expand to prefill.
    pub keys_values: u64,
    /// `[K]` f32: 0, or NaN of a key whose latent is not finite, where scratch is bf16; from gather to prefill.
    pub faults: u64,
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
    /// Bytes of a cached row.
    pub row_bytes: i32,
    /// Factor on scores.
    pub scale: f32,
    /// Position of the slab's first key, a multiple of the kernel's keys of a tile.
    pub first_key: i32,
    /// K, a multiple of the kernel's keys of a tile if later keys follow.
    pub num_keys: i32,
    /// First row of the step.
    pub first_row: i32,
    /// Rows of the launch of prefill, all of them at the slab's first key or behind it.
    pub num_rows: i32,
    /// Position of `first_row` in its sequence.
    pub first_position: i32,
}

/// One layer of a cache of which every rank has a part of each block, `CacheParts` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CacheParts {
    /// `[slots, row_bytes]` of each rank, reachable from this one.
    pub of_rank: [u64; MAX_RANKS],
    /// Tokens of a block.
    pub block_size: i32,
    /// Of which each rank has so many; of one rank all.
    pub part: i32,
}

impl CacheParts {
    /// A cache of one rank, in blocks of so many tokens.
    pub fn alone(cache: u64, block_size: usize) -> Self {
        let mut of_rank = [0; MAX_RANKS];
        of_rank[0] = cache;
        Self { of_rank, block_size: block_size as i32, part: block_size as i32 }
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
    LaunchShape { grid, threads: THREADS, shared_bytes: 0 }
}
