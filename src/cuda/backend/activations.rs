//! Device memory of a step's intermediate results.

use crate::cuda::driver::Driver;
use crate::cuda::kernels::route;
use crate::cuda::step;
use crate::cuda::stream::{Buffer, Stream};
use crate::ops::{ModelShape, OpError};

/// Rows of a step whose experts are computed together: bounds the scratch of their outputs, `[rows * K, D]` f32.
pub(super) const MOE_ROWS: usize = 1024;

/// Device memory of a step's intermediate results, f32 unless stated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations {
    /// `[T, D]`.
    pub(super) hidden: Buffer,
    /// `[T, D]`.
    pub(super) normed: Buffer,
    /// `[T, Q]`.
    pub(super) q_latent: Buffer,
    /// `[T, H * (N + R)]`.
    pub(super) query: Buffer,
    /// `[T, C + R]`.
    pub(super) kv_a: Buffer,
    /// `[T, H * V]`.
    pub(super) attended: Buffer,
    /// `[T, E]`.
    pub(super) router_logits: Buffer,
    /// `[T, K]` u32.
    pub(super) chosen: Buffer,
    /// `[T, K]`.
    pub(super) weights: Buffer,
    /// `[T, ffn_units]`: routed slots, then the shared expert's rows.
    pub(super) inner: Buffer,
    /// `[MOE_ROWS * K, D]`.
    pub(super) routed: Buffer,
    /// `[MOE_ROWS, D]`.
    pub(super) shared: Buffer,
    /// `[MOE_ROWS * K]` u32.
    pub(super) slots: Buffer,
    /// Triples of i32.
    pub(super) tiles: Buffer,
    /// `[1]` i32.
    pub(super) num_tiles: Buffer,
}

/// Bytes of [`Activations`], in the order of the fields.
fn bytes(shape: &ModelShape, rows: usize) -> [usize; 15] {
    let (mla, router) = (&shape.mla, &shape.router);
    let rows = rows.max(step::padded(rows));
    let moe_rows = rows.min(MOE_ROWS);
    let tiles = route::max_tiles(moe_rows * router.top_k, router.num_experts);
    [
        rows * shape.hidden_size,
        rows * shape.hidden_size,
        rows * shape.q_lora_rank.unwrap_or(0),
        rows * mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim),
        rows * mla.latent_dim(),
        rows * mla.num_heads * mla.v_head_dim,
        rows * router.num_experts,
        rows * router.top_k,
        rows * router.top_k,
        rows * shape.ffn_units,
        moe_rows * router.top_k * shape.hidden_size,
        moe_rows * shape.hidden_size,
        moe_rows * router.top_k,
        3 * tiles,
        1,
    ]
    .map(|words| 4 * words)
}

impl Activations {
    /// Bytes for steps of up to `rows` rows.
    pub(super) fn bytes(shape: &ModelShape, rows: usize) -> usize {
        bytes(shape, rows).iter().sum()
    }

    /// Allocates them for steps of up to `rows` rows.
    pub(super) fn new<D: Driver>(
        stream: &mut Stream<D>,
        shape: &ModelShape,
        rows: usize,
    ) -> Result<Self, OpError> {
        let mut sizes = bytes(shape, rows).into_iter();
        let mut next = || stream.allocate("activations", sizes.next().unwrap_or(0));
        Ok(Self {
            hidden: next()?,
            normed: next()?,
            q_latent: next()?,
            query: next()?,
            kv_a: next()?,
            attended: next()?,
            router_logits: next()?,
            chosen: next()?,
            weights: next()?,
            inner: next()?,
            routed: next()?,
            shared: next()?,
            slots: next()?,
            tiles: next()?,
            num_tiles: next()?,
        })
    }
}
