//! Twin of `kernels/draft.cu`: rows for an Eagle3 layer, and its logits over the target's vocabulary.

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = plain!("draft", &["draft_rows", "draft_spread"], 64);

/// Threads of a block.
const THREADS: u32 = 256;
/// Ids of a block of `draft_spread`.
const SPREAD_IDS: usize = 4 * THREADS as usize;
/// Columns that a thread moves at once; every width and distance is a multiple of it.
pub const VALUES: usize = 8;

/// An id that the draft's head has no row for.
pub const NO_ROW: u32 = u32::MAX;

/// `DraftRowsParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RowsParams {
    /// f32, a row every `source_stride` values.
    pub source: u64,
    /// `[T]` u32, row of the source; 0: 0, 1, ...
    pub rows: u64,
    /// `[D]` f32, or 0: no norm.
    pub gain: u64,
    /// f32, a row every `to_stride` values, at its first column.
    pub to: u64,
    /// The same in bf16, or 0.
    pub rounded: u64,
    /// `[T, D]` f32, what was picked, or 0.
    pub residual: u64,
    /// Values.
    pub source_stride: i64,
    /// Values.
    pub to_stride: i64,
    /// D.
    pub columns: i32,
    /// Whether `residual` gets the normalised row instead.
    pub normed_residual: i32,
    /// Added to the mean square.
    pub eps: f32,
    /// Zero.
    pub padding: i32,
}

/// `DraftSpreadParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct SpreadParams {
    /// `[S, F]` f32.
    pub drafted: u64,
    /// `[V]` u32, row of the head, or [`NO_ROW`].
    pub rows: u64,
    /// `[S, V]` f32.
    pub logits: u64,
    /// F.
    pub drafted_stride: i64,
    /// V.
    pub vocab: i64,
    /// Factor on every logit.
    pub scale: f32,
    /// Zero.
    pub padding: i32,
}

/// Enqueues the picking of `num_rows` rows.
pub fn launch_rows<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    params: &RowsParams,
) -> Result<(), OpError> {
    let shape = LaunchShape { grid: [num_rows as u32, 1, 1], threads: THREADS, shared_bytes: 0 };
    stream.launch("draft_rows", shape, params)
}

/// Enqueues the logits of `num_rows` rows over the target's vocabulary.
pub fn launch_spread<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    params: &SpreadParams,
) -> Result<(), OpError> {
    let columns = (params.vocab as usize).div_ceil(SPREAD_IDS) as u32;
    let shape = LaunchShape { grid: [columns, num_rows as u32, 1], threads: THREADS, shared_bytes: 0 };
    stream.launch("draft_spread", shape, params)
}
