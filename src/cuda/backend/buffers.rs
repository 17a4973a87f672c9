//! Device memory of a step's intermediate results.

use crate::driver::Driver;
use crate::kernels::experts::TILE_ROWS;
use crate::kernels::route;
use crate::step;
use crate::stream::{Buffer, Stream};
use crate::weights::{MAX_TERMS, row_bytes};
use perigee_ops::{Activations, FfnUnits, ModelShape, OpError};

/// Rows of a step whose experts are computed together: bounds the scratch of their outputs, `[rows * K, D]` f32.
pub(super) const MOE_ROWS: usize = 2048;

/// Values in f32 and, for tensor cores, in bf16; a buffer that the arithmetic does not need is [`Buffer::NONE`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Values {
    pub(super) exact: Buffer,
    pub(super) rounded: Buffer,
}

impl Values {
    pub(super) const NONE: Self = Self { exact: Buffer::NONE, rounded: Buffer::NONE };

    /// Addresses of row `row` of `columns` values, f32 and bf16.
    pub(super) fn row(&self, row: usize, columns: usize) -> [u64; 2] {
        let at = (row * columns) as u64;
        let rounded = if self.rounded == Buffer::NONE { 0 } else { self.rounded.address + 2 * at };
        [self.exact.address + 4 * at, rounded]
    }
}

/// Device memory of a step's intermediate results, f32 unless stated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffers {
    /// `[T, D]`.
    pub(super) hidden: Buffer,
    /// `[T, D]`.
    pub(super) normed: Values,
    /// `[T, Q]`.
    pub(super) q_latent: Values,
    /// `[T, H * (N + R)]`.
    pub(super) query: Buffer,
    /// `[T, C + R]`.
    pub(super) kv_a: Buffer,
    /// `[T, H * V]`.
    pub(super) attended: Values,
    /// `[T, E]`.
    pub(super) router_logits: Buffer,
    /// `[T, K]` u32.
    pub(super) chosen: Buffer,
    /// `[T, K]`.
    pub(super) weights: Buffer,
    /// Of [`MOE_ROWS`] rows: routed slots, then the shared expert's rows.
    pub(super) inner: Buffer,
    /// `[MOE_ROWS * K, D]`; in 4-bit floats the rows of the first product lie here too, and in the next one.
    pub(super) routed: Buffer,
    /// `[MOE_ROWS, D]`.
    pub(super) shared: Buffer,
    /// `[MOE_ROWS * K]` u32.
    pub(super) slots: Buffer,
    /// Triples of i32.
    pub(super) tiles: Buffer,
    /// `[1]` i32.
    pub(super) num_tiles: Buffer,
    /// `[1]` u32, 0 between launches.
    pub(super) blocks_done: Buffer,
    /// [`route::PROGRESS_WORDS`] u32, 0 between launches.
    pub(super) route_progress: Buffer,
}

/// Words that a row of values takes in f32 or in 4-bit floats: in these a row of few values is the larger one.
fn in_any_form(values: usize) -> usize {
    values.max(row_bytes(values, MAX_TERMS).div_ceil(4))
}

/// Bytes of [`Buffers`], in the order of the fields.
fn bytes(shape: &ModelShape, rows: usize, arithmetic: Activations) -> [usize; 20] {
    let (mla, router) = (&shape.mla, &shape.router);
    let rows = rows.max(step::padded(rows));
    let moe_rows = rows.min(MOE_ROWS);
    let tiles = route::max_tiles(moe_rows * router.top_k, router.num_experts, TILE_ROWS);
    let FfnUnits { routed, shared, dense } = shape.ffn;
    let units =
        FfnUnits { routed: in_any_form(routed), shared: in_any_form(shared), dense: in_any_form(dense) };
    // Words of bf16 copies.
    let half = |values: usize| if arithmetic.are_rounded() { values.div_ceil(2) } else { 0 };
    [
        rows * shape.hidden_size,
        rows * shape.hidden_size,
        half(rows * shape.hidden_size),
        rows * shape.q_lora_rank.unwrap_or(0),
        half(rows * shape.q_lora_rank.unwrap_or(0)),
        rows * mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim),
        rows * mla.latent_dim(),
        rows * mla.num_heads * mla.v_head_dim,
        half(rows * mla.num_heads * mla.v_head_dim),
        rows * router.num_experts,
        rows * router.top_k,
        rows * router.top_k,
        // And room to begin the shared expert's rows at a multiple of 16 bytes.
        (moe_rows * units.of_row(router.top_k)).max(rows * units.routed) + 4,
        moe_rows * router.top_k * in_any_form(shape.hidden_size),
        moe_rows * in_any_form(shape.hidden_size),
        moe_rows * router.top_k,
        3 * tiles,
        1,
        1,
        route::PROGRESS_WORDS,
    ]
    .map(|words| 4 * words)
}

impl Buffers {
    /// Bytes for steps of up to `rows` rows.
    pub(super) fn bytes(shape: &ModelShape, rows: usize, arithmetic: Activations) -> usize {
        bytes(shape, rows, arithmetic).iter().sum()
    }

    /// Allocates them for steps of up to `rows` rows.
    pub(super) fn new<D: Driver>(
        stream: &mut Stream<D>,
        shape: &ModelShape,
        rows: usize,
        arithmetic: Activations,
    ) -> Result<Self, OpError> {
        let mut sizes = bytes(shape, rows, arithmetic).into_iter();
        let mut next = || match sizes.next().unwrap_or(0) {
            0 => Ok(Buffer::NONE),
            bytes => stream.allocate("activations", bytes),
        };
        let activations = Self {
            hidden: next()?,
            normed: Values { exact: next()?, rounded: next()? },
            q_latent: Values { exact: next()?, rounded: next()? },
            query: next()?,
            kv_a: next()?,
            attended: Values { exact: next()?, rounded: next()? },
            router_logits: next()?,
            chosen: next()?,
            weights: next()?,
            inner: next()?,
            routed: next()?,
            shared: next()?,
            slots: next()?,
            tiles: next()?,
            num_tiles: next()?,
            blocks_done: next()?,
            route_progress: next()?,
        };
        for counters in [activations.blocks_done, activations.route_progress] {
            stream.driver().zero(counters.address, counters.bytes)?;
        }
        Ok(activations)
    }
}
