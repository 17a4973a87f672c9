//! Twin of `kernels/combine.cu`: the weighted sum of experts, added to the residual stream, and the next norm.

use bytemuck::{Pod, Zeroable};

use super::ahead::{self, Ahead};
use super::plain;
use super::route::Held;
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = plain!("combine", &["combine"], 64);

/// `CombineParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T, D]` f32, the residual stream.
    pub hidden: u64,
    /// `[T * K, D]` f32.
    pub routed: u64,
    /// `[T, K]` u32; of experts that are not on this device the row of `routed` is not read.
    pub chosen: u64,
    /// `[T, K]` f32.
    pub weights: u64,
    /// `[T, D]` f32, or 0.
    pub shared: u64,
    /// `[D]` f32, or 0: no norm.
    pub gain: u64,
    /// `[T, D]` f32.
    pub normed: u64,
    /// `[T, D]` bf16, or 0: `normed`, rounded.
    pub rounded: u64,
    /// D.
    pub columns: i32,
    /// K, or 0.
    pub top_k: i32,
    /// Added to the mean square.
    pub eps: f32,
    /// 1: the sum is added to `hidden`; 0: `hidden` is the sum.
    pub adds: i32,
    /// Experts of this device.
    pub held: Held,
}

/// `CombineLaunch` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct LaunchParams {
    params: Params,
    ahead: [Ahead; 2],
    num_rows: i32,
    padding: i32,
}

/// Enqueues the sums of `num_rows` rows; `ahead` is fetched meanwhile.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    params: &Params,
    ahead: [Ahead; 2],
) -> Result<(), OpError> {
    let others = if ahead.iter().any(Ahead::is_some) { ahead::BLOCKS } else { 0 };
    // Eight columns each, in whole warps.
    let threads = (params.columns as u32).div_ceil(8).next_multiple_of(32);
    let shape = LaunchShape { grid: [num_rows as u32 + others, 1, 1], threads, shared_bytes: 0 };
    stream.launch(
        "combine",
        shape,
        &LaunchParams { params: *params, ahead, num_rows: num_rows as i32, padding: 0 },
    )
}
