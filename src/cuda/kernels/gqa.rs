//! Twin of `kernels/gqa.cu`: grouped-query attention over a paged cache, for drafts with such a layer.

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::{CacheDtype, GqaShape, OpError};

/// The declaration.
pub const KERNEL: Kernel =
    plain!("gqa", &["gqa_store_f32", "gqa_store_bf16", "gqa_attend_f32", "gqa_attend_bf16"], 64);

/// Most values of a head.
pub const MAX_HEAD: usize = 256;
/// Threads of a block.
const THREADS: u32 = 256;

/// A row's keys, `GqaRow` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RowKeys {
    /// Number of keys; 0: its result is 0.
    pub num_keys: u32,
    /// Index of its sequence's first block id in the step's block tables.
    pub table: u32,
}

/// `GqaParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, H * E]` f32, not rotated.
    pub query: u64,
    /// `[T, G * E]` f32, not rotated.
    pub key: u64,
    /// `[T, G * E]` f32.
    pub value: u64,
    /// `[T, E]` f32, cosines then sines.
    pub rotations: u64,
    /// `[T]` u32, place in the cache.
    pub slots: u64,
    /// `[slots, 2, G, E]`.
    pub cache: u64,
    /// Block ids of all sequences, u32.
    pub block_tables: u64,
    /// `[T]` [`RowKeys`].
    pub rows: u64,
    /// `[T, H * E]` f32.
    pub attended: u64,
    /// The same in bf16, or 0.
    pub rounded: u64,
    /// H.
    pub num_heads: i32,
    /// G.
    pub num_kv_heads: i32,
    /// E.
    pub head_dim: i32,
    /// Tokens of a block.
    pub block_size: i32,
    /// Of the scores.
    pub scale: f32,
    /// Zero.
    pub padding: i32,
}

/// Bytes of a cached value: f32 for an f32 cache, else bf16.
pub fn value_bytes(dtype: CacheDtype) -> usize {
    if dtype == CacheDtype::F32 { 4 } else { 2 }
}

/// Enqueues the storage of keys and values, and the attention, of `num_rows` rows.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    gqa: &GqaShape,
    dtype: CacheDtype,
    params: &Params,
) -> Result<(), OpError> {
    let (store, attend) = match dtype {
        CacheDtype::F32 => ("gqa_store_f32", "gqa_attend_f32"),
        _ => ("gqa_store_bf16", "gqa_attend_bf16"),
    };
    let shape = |heads: usize| LaunchShape {
        grid: [num_rows as u32, heads as u32, 1],
        threads: THREADS,
        shared_bytes: 0,
    };
    stream.launch(store, shape(1), params)?;
    stream.launch(attend, shape(gqa.num_heads), params)
}
