//! Eagle3 drafts on a device: one layer with a plan, a cache and activations of its own.
//!
//! The captures are part of the target's recorded steps. A draft's steps are recorded too, by padded row count and by where
//! their rows begin.

use std::collections::HashMap;

use super::buffers::{MOE_ROWS, Values};
use super::ffn::{Ffn, Slots};
use super::projection::{Experts, Projection};
use super::rank::Peers;
use super::{AttentionIn, AttentionInputs, Cache, CudaBackend, Workspace, attention_capacity, plan_bytes};
use crate::attention::{Addresses, Attention, KvUp};
use crate::driver::{Driver, Transfer};
use crate::kernels::ahead::Ahead;
use crate::kernels::all_reduce::{self, Operation};
use crate::kernels::draft::{self, RowsParams, SpreadParams};
use crate::kernels::fp4::RowKind;
use crate::kernels::gqa::{self, RowKeys};
use crate::kernels::linear::Output;
use crate::kernels::route::Held;
use crate::kernels::sampler_shards::Inputs;
use crate::kernels::{combine, rms_norm};
use crate::step::{self, Step};
use crate::stream::{Buffer, Stream};
use crate::weights::Matrix;
use perigee_ops::host::ExpertPieces;
use perigee_ops::{
    Activations, AttentionInMatrices, Backend, BlockId, CacheShape, Capacity, DraftActivations,
    DraftAttentionMatrices, DraftAttentionShape, DraftInput, DraftMatrices, DraftOps, DraftShape, GqaShape,
    MemoryNeeds, MlaShape, NUM_STATES, OpError, RopeTable, Segment, StepPlan, expect,
};

/// A draft's weights, plan, activations and cache.
pub struct Draft<D: Driver> {
    shape: DraftShape,
    weights: Weights,
    step: Step,
    attention: LayerAttention,
    buffers: Buffers,
    num_logits: usize,
    /// Rows of the target's last step that were read.
    captured_rows: usize,
    /// Recorded steps, by whether their rows begin with captured states, and by padded rows.
    graphs: HashMap<(bool, usize), D::Graph>,
}

struct Weights {
    embed_tokens: Option<Projection>,
    states_norm: Option<Buffer>,
    state_norms: Option<[Buffer; NUM_STATES]>,
    fc: Projection,
    input_layernorm: Buffer,
    hidden_norm: Buffer,
    o_proj: Projection,
    post_attention_layernorm: Buffer,
    mlp: Experts,
    norm: Buffer,
    lm_head: Option<Projection>,
    /// Whether the head has rows for some of the target's ids.
    has_some_ids: bool,
    /// u32, row of the head of each of the target's ids on this device; `None`: the head's rows are the logits.
    head_rows: Option<Buffer>,
}

/// Weights and cache of the layer's attention, and the keys of the last plan's rows.
enum LayerAttention {
    Mla(Box<Mla>),
    Gqa(Box<Gqa>),
}

struct Mla {
    shape: MlaShape,
    weights: AttentionIn,
    kv_up: KvUp,
    /// `[1]` u32, 0 between launches.
    blocks_done: Buffer,
    attention: Attention,
    cache: Cache,
    expanded: Vec<Segment>,
    has_absorbed: bool,
}

struct Gqa {
    shape: GqaShape,
    q: Projection,
    k: Projection,
    v: Projection,
    cache_shape: CacheShape,
    cache: Buffer,
    rows: Vec<RowKeys>,
}

impl Gqa {
    fn block_bytes(&self) -> usize {
        gqa_cache_bytes(&self.shape, &CacheShape { num_blocks: 1, ..self.cache_shape })
    }

    /// Address of a block's keys and values.
    fn block(&self, block: BlockId) -> Result<u64, OpError> {
        let num_blocks = self.cache_shape.num_blocks;
        expect("draft_block", &[num_blocks.max(block.at() + 1)], &[num_blocks])?;
        Ok(self.cache.address + (block.at() * self.block_bytes()) as u64)
    }

    /// Notes the keys of each row of a plan; rows from there up to `padded_rows` have none.
    fn list(&mut self, plan: &StepPlan, padded_rows: usize) -> Result<&[u32], OpError> {
        self.rows.clear();
        self.rows.resize(padded_rows, RowKeys { num_keys: 0, table: 0 });
        for segment in plan.expanded.iter().chain(&plan.absorbed) {
            let (covered, needed) =
                (segment.block_table.len() * self.cache_shape.block_size, segment.context_len());
            expect("draft_step", &[covered.max(needed)], &[covered])?;
            for (row, num_keys) in segment.rows.clone().zip(segment.first_position + 1..) {
                self.rows[row] =
                    RowKeys { num_keys: num_keys as u32, table: segment.block_table.start as u32 };
            }
        }
        Ok(bytemuck::cast_slice(&self.rows))
    }
}

/// Device memory of a draft's intermediate results, f32 unless stated.
#[derive(Debug, Clone, Copy)]
struct Buffers {
    /// `[T, D']` each, of the target's step.
    states: [Buffer; NUM_STATES],
    /// `[T, 3 D']`.
    states_wide: Values,
    /// `[T, D]`.
    input: Buffer,
    /// `[T, D]`.
    hidden: Buffer,
    /// `[T, 2 D]`.
    wide: Values,
    /// `[T, D]`.
    normed: Values,
    /// `[T, Q]`.
    q_latent: Values,
    /// `[T, H * (N + R)]`.
    query: Buffer,
    /// `[T, C + R]`, or keys `[T, G * E]`.
    key: Buffer,
    /// `[T, G * E]`.
    value: Buffer,
    /// `[T, H * V]`.
    attended: Values,
    /// `[MOE_ROWS, I]`.
    inner: Buffer,
    /// `[MOE_ROWS, D]`.
    ffn: Buffer,
    /// `[S, F]`.
    logits: Buffer,
}

/// Bytes of [`Buffers`], in the order of the fields.
fn bytes(shape: &DraftShape, capacity: &Capacity, arithmetic: Activations) -> [usize; 21] {
    let rows = capacity.max_tokens.max(step::padded(capacity.max_tokens));
    let ffn_rows = rows.min(MOE_ROWS);
    let (d, target) = (shape.hidden_size, shape.target_hidden_size);
    let (q, query, key, value, attended) = match &shape.attention {
        DraftAttentionShape::Mla { q_lora_rank, mla } => (
            q_lora_rank.unwrap_or(0),
            mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim),
            mla.latent_dim(),
            0,
            mla.num_heads * mla.v_head_dim,
        ),
        DraftAttentionShape::Gqa(gqa) => {
            let (all, keys) = (gqa.num_heads * gqa.head_dim, gqa.num_kv_heads * gqa.head_dim);
            (0, all, keys, keys, all)
        }
    };
    // Words of bf16 copies.
    let half = |values: usize| if arithmetic.are_rounded() { values.div_ceil(2) } else { 0 };
    let spreads = shape.draft_vocab_size < shape.vocab_size || shape.logit_scale != 1.0;
    [
        rows * target,
        rows * target,
        rows * target,
        rows * NUM_STATES * target,
        half(rows * NUM_STATES * target),
        rows * d,
        rows * d,
        rows * 2 * d,
        half(rows * 2 * d),
        rows * d,
        half(rows * d),
        rows * q,
        half(rows * q),
        rows * query,
        rows * key,
        rows * value,
        rows * attended,
        half(rows * attended),
        ffn_rows * shape.intermediate_size,
        ffn_rows * d,
        if spreads { capacity.max_logits_rows * shape.draft_vocab_size } else { 0 },
    ]
    .map(|words| 4 * words)
}

impl Buffers {
    fn new<D: Driver>(stream: &mut Stream<D>, bytes: [usize; 21]) -> Result<Self, OpError> {
        let mut sizes = bytes.into_iter();
        let mut next = || match sizes.next().unwrap_or(0) {
            0 => Ok(Buffer::NONE),
            bytes => stream.allocate("draft activations", bytes),
        };
        Ok(Self {
            states: [next()?, next()?, next()?],
            states_wide: Values { exact: next()?, rounded: next()? },
            input: next()?,
            hidden: next()?,
            wide: Values { exact: next()?, rounded: next()? },
            normed: Values { exact: next()?, rounded: next()? },
            q_latent: Values { exact: next()?, rounded: next()? },
            query: next()?,
            key: next()?,
            value: next()?,
            attended: Values { exact: next()?, rounded: next()? },
            inner: next()?,
            ffn: next()?,
            logits: next()?,
        })
    }

    /// The state that a further slot is fed.
    fn output(&self, shape: &DraftShape) -> Buffer {
        if shape.norm_output { self.normed.exact } else { self.hidden }
    }
}

/// A copy of rows of `columns` values, with nothing else done.
pub(super) fn copy(source: Buffer, to: Buffer, columns: usize) -> RowsParams {
    RowsParams {
        source: source.address,
        rows: 0,
        gain: 0,
        to: to.address,
        rounded: 0,
        residual: 0,
        source_stride: columns as i64,
        to_stride: columns as i64,
        columns: columns as i32,
        normed_residual: 0,
        eps: 0.0,
        padding: 0,
    }
}

/// The columns from `first` on of rows of `width` values.
pub(super) fn part(values: Values, first: usize, width: usize) -> [u64; 3] {
    let rounded = if values.rounded == Buffer::NONE { 0 } else { values.rounded.address + 2 * first as u64 };
    [values.exact.address + 4 * first as u64, rounded, width as u64]
}

impl<D: Driver> Draft<D> {
    /// Copies of `columns` values with a norm into `[to, rounded, stride]`.
    fn norm(
        &self,
        source: Buffer,
        gain: &Buffer,
        [to, rounded, stride]: [u64; 3],
        columns: usize,
    ) -> RowsParams {
        let (gain, eps) = (gain.address, self.shape.rms_norm_eps);
        RowsParams { gain, to, rounded, to_stride: stride as i64, eps, ..copy(source, source, columns) }
    }
}

impl<D: Driver> CudaBackend<D> {
    /// The sizes of a draft as this rank has them.
    fn own_part(&self, shape: &DraftShape) -> DraftShape {
        DraftShape { intermediate_size: self.share.inner_units(shape.intermediate_size), ..*shape }
    }

    /// The launches of a step of the draft, over the padded rows of its plan.
    fn launch_draft_step(
        &mut self,
        captured: bool,
        table: &Projection,
        target: &Workspace<D>,
        draft: &Draft<D>,
    ) -> Result<(), OpError> {
        let Draft { shape, weights, step, buffers, .. } = draft;
        let (rows, d) = (step.padded_rows(), shape.hidden_size);
        if captured {
            self.fuse(draft)?;
        } else {
            let fed = copy(buffers.output(shape), buffers.input, d);
            draft::launch_rows(&mut self.stream, rows, &RowsParams { rows: step.sources(), ..fed })?;
        }
        let table = weights.embed_tokens.as_ref().unwrap_or(table);
        let tokens = [step.tokens(), target.sampler.last_tokens()];
        self.embed_rows(rows, table, tokens, buffers.hidden, target.peers.as_ref())?;
        let embedded = draft.norm(buffers.hidden, &weights.input_layernorm, part(buffers.wide, 0, 2 * d), d);
        draft::launch_rows(&mut self.stream, rows, &embedded)?;
        let fed = draft.norm(buffers.input, &weights.hidden_norm, part(buffers.wide, d, 2 * d), d);
        let normed_residual = i32::from(shape.norm_before_residual);
        let fed = RowsParams { residual: buffers.hidden.address, normed_residual, ..fed };
        draft::launch_rows(&mut self.stream, rows, &fed)?;
        self.draft_attention(draft)?;
        self.draft_ffn(draft, target.peers.as_ref())
    }

    /// `input = fc(states)` of the step's rows, which were picked from the target's step.
    fn fuse(&mut self, draft: &Draft<D>) -> Result<(), OpError> {
        let (weights, buffers) = (&draft.weights, &draft.buffers);
        let (rows, cols) = (draft.step.padded_rows(), draft.shape.target_hidden_size);
        let (wide, width) = (buffers.states_wide, NUM_STATES * cols);
        let own = |state: usize| weights.state_norms.as_ref().map(|gains| gains[state]);
        for (state, source) in buffers.states.into_iter().enumerate() {
            let [to, rounded, stride] = part(wide, state * cols, width);
            let plain = RowsParams {
                rows: draft.step.sources(),
                to,
                rounded,
                to_stride: stride as i64,
                ..copy(source, source, cols)
            };
            // The norm over all three is taken first, where there is one.
            let gain = own(state).filter(|_| weights.states_norm.is_none());
            let (gain, eps) = (gain.map_or(0, |gain| gain.address), draft.shape.rms_norm_eps);
            draft::launch_rows(&mut self.stream, rows, &RowsParams { gain, eps, ..plain })?;
        }
        if let Some(gain) = &weights.states_norm {
            let all = draft.norm(wide.exact, gain, part(wide, 0, width), width);
            draft::launch_rows(&mut self.stream, rows, &all)?;
            for (state, gain) in weights.state_norms.iter().flatten().enumerate() {
                let at = part(wide, state * cols, width);
                let one = draft.norm(wide.exact, gain, at, cols);
                let one = RowsParams { source: at[0], source_stride: width as i64, ..one };
                draft::launch_rows(&mut self.stream, rows, &one)?;
            }
        }
        self.project(rows, wide, 0, &weights.fc, buffers.input, Output::Set)
    }

    /// The layer's attention, added to the residual stream, and the norm behind it.
    fn draft_attention(&mut self, draft: &Draft<D>) -> Result<(), OpError> {
        let Draft { shape, weights, step, attention, buffers, .. } = draft;
        let rows = step.padded_rows();
        match attention {
            LayerAttention::Mla(mla) => self.attend_latents(draft, mla)?,
            LayerAttention::Gqa(gqa) => self.attend_heads(draft, gqa)?,
        }
        self.project(rows, buffers.attended, 0, &weights.o_proj, buffers.hidden, Output::Add)?;
        let norm = rms_norm::Params {
            hidden: buffers.hidden.address,
            gain: weights.post_attention_layernorm.address,
            normed: buffers.normed.exact.address,
            rounded: buffers.normed.rounded.address,
            columns: shape.hidden_size as i32,
            eps: shape.rms_norm_eps,
        };
        rms_norm::launch(&mut self.stream, rows, &norm)
    }

    fn attend_latents(&mut self, draft: &Draft<D>, layer: &Mla) -> Result<(), OpError> {
        let Draft { shape, step, buffers, .. } = draft;
        let Mla { shape: mla, weights, kv_up, blocks_done, attention, cache, expanded, has_absorbed } = layer;
        let inputs = AttentionInputs {
            x: buffers.wide,
            q_latent: buffers.q_latent,
            query: buffers.query,
            kv_a: buffers.key,
            blocks_done: *blocks_done,
            mla,
            eps: shape.rms_norm_eps,
        };
        self.project_attention(weights, 0, cache, &inputs, step, step.padded_rows())?;
        let at = Addresses {
            query: buffers.query.address,
            rotations: step.rotations(),
            attended: buffers.attended.exact.address,
            rounded: buffers.attended.rounded.address,
            cache: cache.layer(0),
            caches: None,
            cache_shape: cache.shape,
            block_tables: step.block_tables(),
            lists: step.attention(),
            ahead: Ahead::NONE,
        };
        if *has_absorbed {
            attention.attend_absorbed(&mut self.stream, &at, kv_up)?;
        }
        attention.attend_expanded(&mut self.stream, &at, kv_up, expanded)
    }

    fn attend_heads(&mut self, draft: &Draft<D>, layer: &Gqa) -> Result<(), OpError> {
        let Draft { step, buffers, .. } = draft;
        let (rows, gqa) = (step.padded_rows(), &layer.shape);
        let outputs = [(&layer.q, buffers.query), (&layer.k, buffers.key), (&layer.v, buffers.value)];
        for (weight, y) in outputs {
            self.project(rows, buffers.wide, 0, weight, y, Output::Set)?;
        }
        let params = gqa::Params {
            query: buffers.query.address,
            key: buffers.key.address,
            value: buffers.value.address,
            rotations: step.rotations(),
            slots: step.kv_slots(),
            cache: layer.cache.address,
            block_tables: step.block_tables(),
            rows: step.attention(),
            attended: buffers.attended.exact.address,
            rounded: buffers.attended.rounded.address,
            num_heads: gqa.num_heads as i32,
            num_kv_heads: gqa.num_kv_heads as i32,
            head_dim: gqa.head_dim as i32,
            block_size: layer.cache_shape.block_size as i32,
            scale: (gqa.head_dim as f32).sqrt().recip(),
            padding: 0,
        };
        gqa::launch(&mut self.stream, rows, gqa, layer.cache_shape.dtype, &params)
    }

    fn load_layer_attention(
        &mut self,
        host: &DraftAttentionMatrices<'_>,
        shape: &DraftAttentionShape,
        capacity: &Capacity,
        cache: &CacheShape,
    ) -> Result<LayerAttention, OpError> {
        match (host, shape) {
            (
                DraftAttentionMatrices::Mla { query, kv_a, kv_a_norm, kv_up },
                DraftAttentionShape::Mla { mla, .. },
            ) => {
                let host =
                    AttentionInMatrices { query: (**query).clone(), kv_a: *kv_a, kv_a_norm: *kv_a_norm };
                let arithmetic = self.arithmetic;
                Ok(LayerAttention::Mla(Box::new(Mla {
                    shape: *mla,
                    weights: self.load_attention_in(&host, mla)?,
                    kv_up: self.load_kv_up(kv_up, mla)?,
                    blocks_done: self.stream.zeros("draft attention", 4)?,
                    attention: Attention::new(
                        &mut self.stream,
                        mla,
                        cache.dtype,
                        &attention_capacity(capacity, 1),
                        arithmetic,
                        None,
                    )?,
                    cache: self.allocate_cache(cache)?,
                    expanded: Vec::new(),
                    has_absorbed: false,
                })))
            }
            (DraftAttentionMatrices::Gqa { q, k, v }, DraftAttentionShape::Gqa(gqa)) => {
                if gqa.head_dim > gqa::MAX_HEAD {
                    return Err(refusal(format!("head_dim {} (at most {})", gqa.head_dim, gqa::MAX_HEAD)));
                }
                Ok(LayerAttention::Gqa(Box::new(Gqa {
                    shape: *gqa,
                    q: self.load_projection(OP, q)?,
                    k: self.load_projection(OP, k)?,
                    v: self.load_projection(OP, v)?,
                    cache_shape: *cache,
                    cache: self.stream.zeros("draft cache", gqa_cache_bytes(gqa, cache))?,
                    rows: Vec::new(),
                })))
            }
            _ => Err(OpError::ShapeMismatch { op: OP, expected: vec![0], got: vec![1] }),
        }
    }

    /// The layer's FFN, added to the residual stream, and the last norm; several ranks have a part of its inner units each.
    fn draft_ffn(&mut self, draft: &Draft<D>, peers: Option<&Peers>) -> Result<(), OpError> {
        let Draft { shape, weights, step, buffers, .. } = draft;
        let (all, width) = (step.padded_rows(), shape.hidden_size);
        for start in (0..all).step_by(MOE_ROWS) {
            let rows = MOE_ROWS.min(all - start);
            let x = buffers.normed.row(start, width);
            self.swiglu(&[Ffn {
                weights: &weights.mlp,
                slots: Slots::Rows(rows),
                x,
                inner: buffers.inner.address,
                out: buffers.ffn.address,
                has_inner: false,
                kind: RowKind::Replies,
            }])?;
            let [normed, rounded] = x;
            // The residual stream, or this rank's part of what is added to it.
            let (hidden, gain, adds) = match peers {
                None => (buffers.hidden, weights.norm.address, 1),
                Some(peers) => (peers.partial, 0, 0),
            };
            let params = combine::Params {
                hidden: hidden.address + 4 * (start * width) as u64,
                routed: 0,
                chosen: 0,
                weights: 0,
                shared: buffers.ffn.address,
                gain,
                normed,
                rounded,
                columns: width as i32,
                top_k: 0,
                eps: shape.rms_norm_eps,
                adds,
                held: Held::NONE,
            };
            combine::launch(&mut self.stream, rows, &params, [Ahead::NONE; 2])?;
        }
        let Some(peers) = peers else { return Ok(()) };
        let sums = all_reduce::Rows {
            partial: peers.partial.address,
            hidden: buffers.hidden.address,
            adds: true,
            gain: weights.norm.address,
            normed: buffers.normed.exact.address,
            rounded: buffers.normed.rounded.address,
            eps: shape.rms_norm_eps,
        };
        self.reduce(Operation::Draft, all, peers, &sums)
    }

    fn load_draft_weights(
        &mut self,
        host: &DraftMatrices<'_>,
        shape: &DraftShape,
    ) -> Result<Weights, OpError> {
        let state_norms = match &host.state_norms {
            Some([low, middle, high]) => {
                Some([self.load_vector(low)?, self.load_vector(middle)?, self.load_vector(high)?])
            }
            None => None,
        };
        // A rank spreads logits over its own ids.
        let own = self.share.of(shape.vocab_size, 1);
        let identity = || (0..own.len() as u32).collect();
        let rows: Option<Vec<u32>> = match &host.target_ids {
            Some(ids) => {
                let mut rows = vec![draft::NO_ROW; shape.vocab_size];
                for (row, id) in ids.iter().enumerate() {
                    expect(OP, &[shape.vocab_size.max(*id as usize + 1)], &[shape.vocab_size])?;
                    rows[*id as usize] = row as u32;
                }
                Some(rows[own].to_vec())
            }
            None => (shape.logit_scale != 1.0).then(identity),
        };
        Ok(Weights {
            embed_tokens: match &host.embed_tokens {
                Some(table) => Some(Projection::Rows(Matrix::load(&mut self.stream, OP, &[table])?)),
                None => None,
            },
            states_norm: match &host.states_norm {
                Some(gain) => Some(self.load_vector(gain)?),
                None => None,
            },
            state_norms,
            fc: self.load_projection(OP, &host.fc)?,
            input_layernorm: self.load_vector(&host.input_layernorm)?,
            hidden_norm: self.load_vector(&host.hidden_norm)?,
            o_proj: self.load_projection(OP, &host.o_proj)?,
            post_attention_layernorm: self.load_vector(&host.post_attention_layernorm)?,
            mlp: self.load_swiglu(&ExpertPieces::whole(std::slice::from_ref(&host.mlp)), 0)?,
            norm: self.load_vector(&host.norm)?,
            lm_head: match &host.lm_head {
                Some(head) => Some(self.load_projection(OP, head)?),
                None => None,
            },
            has_some_ids: host.target_ids.is_some(),
            head_rows: match rows {
                Some(rows) => Some(self.stream.store("weights", &rows)?),
                None => None,
            },
        })
    }
}

const OP: &str = "load_draft";

fn refusal(dtype: String) -> OpError {
    OpError::UnsupportedDtype { op: OP, dtype, backend: "cuda" }
}

fn gqa_cache_bytes(gqa: &GqaShape, cache: &CacheShape) -> usize {
    cache.num_blocks * cache.block_size * gqa.cached_dim() * gqa::value_bytes(cache.dtype)
}

/// Errors: sizes that the kernels do not take.
fn check(shape: &DraftShape) -> Result<(), OpError> {
    if !rms_norm::takes(shape.hidden_size) {
        return Err(refusal(format!("hidden_size {} (a multiple of 8, at most 8192)", shape.hidden_size)));
    }
    let target = shape.target_hidden_size;
    if !target.is_multiple_of(draft::VALUES) {
        return Err(refusal(format!("target_hidden_size {target} (a multiple of {})", draft::VALUES)));
    }
    Ok(())
}

/// Values of a rotation.
fn rope_dim(shape: &DraftShape) -> usize {
    match &shape.attention {
        DraftAttentionShape::Mla { mla, .. } => mla.qk_rope_head_dim,
        DraftAttentionShape::Gqa(gqa) => gqa.head_dim,
    }
}

impl<D: Driver> DraftOps for CudaBackend<D> {
    type Draft = Draft<D>;

    fn draft_memory(&self, shape: &DraftShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let activations: usize = bytes(&self.own_part(shape), capacity, self.arithmetic).iter().sum();
        let plan = plan_bytes(rope_dim(shape), capacity);
        let (attention, cache_bytes) = match &shape.attention {
            DraftAttentionShape::Mla { mla, .. } => {
                let attention = Attention::bytes(mla, None, &attention_capacity(capacity, 1));
                (attention + cache.block_bytes() as u64, cache.bytes())
            }
            DraftAttentionShape::Gqa(gqa) => (0, gqa_cache_bytes(gqa, cache)),
        };
        MemoryNeeds {
            workspace_bytes: (activations + plan) as u64 + attention,
            cache_bytes: cache_bytes as u64,
            ..MemoryNeeds::default()
        }
    }

    fn load_draft(
        &mut self,
        host: &DraftMatrices<'_>,
        shape: &DraftShape,
        rope: &RopeTable,
        capacity: &Capacity,
        cache: &CacheShape,
    ) -> Result<Draft<D>, OpError> {
        check(shape)?;
        // Rows of the table are gathered as those of the target are.
        if self.share.world > 1 && shape.hidden_size != shape.target_hidden_size {
            return Err(refusal(format!(
                "hidden_size {} (of several ranks the target's, {})",
                shape.hidden_size, shape.target_hidden_size
            )));
        }
        let weights = self.load_draft_weights(host, shape)?;
        let attention = self.load_layer_attention(&host.attention, &shape.attention, capacity, cache)?;
        let own = self.own_part(shape);
        let (arithmetic, stream) = (self.arithmetic, &mut self.stream);
        let step = Step::new(stream, rope, plan_bytes(rope_dim(shape), capacity))?;
        let buffers = Buffers::new(stream, bytes(&own, capacity, arithmetic))?;
        Ok(Draft {
            shape: *shape,
            weights,
            step,
            attention,
            buffers,
            num_logits: 0,
            captured_rows: 0,
            graphs: HashMap::new(),
        })
    }

    fn capture(&mut self, state: usize, w: &Workspace<D>, draft: &mut Draft<D>) -> Result<(), OpError> {
        let params = copy(w.activations.hidden, draft.buffers.states[state], w.shape.hidden_size);
        draft::launch_rows(&mut self.stream, w.step.padded_rows(), &params)
    }

    fn draft_step(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &Projection,
        w: &Workspace<D>,
        draft: &mut Draft<D>,
    ) -> Result<(), OpError> {
        let rows = plan.num_rows();
        expect("draft_step", &[rows], &[input.rows().len()])?;
        draft.num_logits = plan.logits_rows.len();
        let padded_rows = if plan.expanded.is_empty() { step::padded(rows) } else { rows };
        let (lists, mut recorded) = match &mut draft.attention {
            LayerAttention::Mla(mla) => {
                mla.expanded.clone_from(&plan.expanded);
                mla.has_absorbed = !plan.absorbed.is_empty();
                mla.attention.lists(plan, padded_rows)?;
                (mla.attention.words(), mla.attention.num_passes() == 1)
            }
            LayerAttention::Gqa(gqa) => (gqa.list(plan, padded_rows)?, true),
        };
        let list_words = Attention::pass_words(padded_rows);
        draft.step.upload(
            &mut self.stream,
            plan,
            &plan.kv_slots,
            padded_rows,
            lists,
            list_words,
            input.rows(),
        )?;
        let captured = matches!(input, DraftInput::Captured(_));
        if captured {
            draft.captured_rows = input.rows().iter().map(|row| row.at() + 1).max().unwrap_or(0);
        }
        recorded &= plan.expanded.is_empty() && rows > 0;
        if !recorded {
            return self.launch_draft_step(captured, table, w, draft);
        }
        let key = (captured, padded_rows);
        if !draft.graphs.contains_key(&key) {
            let graph = self.recorded(|backend| backend.launch_draft_step(captured, table, w, draft))?;
            draft.graphs.insert(key, graph);
            w.peers.as_ref().map_or(Ok(()), Peers::meet)?;
        }
        match draft.graphs.get(&key) {
            Some(graph) => Ok(self.stream.driver().replay(graph)?),
            None => Ok(()),
        }
    }

    fn draft_logits(
        &mut self,
        table: &Projection,
        draft: &mut Draft<D>,
        w: &mut Workspace<D>,
    ) -> Result<(), OpError> {
        let Draft { shape, weights, step, buffers, num_logits, .. } = &*draft;
        let head = weights.lm_head.as_ref().or(weights.embed_tokens.as_ref()).unwrap_or(table);
        // A head over some ids is whole on every rank.
        let wanted = if weights.has_some_ids { shape.draft_vocab_size } else { w.shape.vocab_size };
        expect("draft_logits", &[wanted], &[head.out_features()])?;
        let (rows, capacity) = (*num_logits, w.logits.bytes / (4 * w.shape.vocab_size));
        expect("draft_logits", &[capacity.max(rows)], &[capacity])?;
        w.num_logits = rows;
        // A draft is verified: ranks that drafted other tokens would be found behind it.
        w.sampler.compare(Inputs::default());
        let list = step.logits_rows();
        let Some(head_rows) = &weights.head_rows else {
            return self.project(rows, buffers.normed, list, head, w.logits, Output::Set);
        };
        self.project(rows, buffers.normed, list, head, buffers.logits, Output::Set)?;
        let params = SpreadParams {
            drafted: buffers.logits.address,
            rows: head_rows.address,
            logits: w.logits.address,
            drafted_stride: wanted as i64,
            vocab: w.shape.vocab_size as i64,
            scale: shape.logit_scale,
            padding: 0,
        };
        draft::launch_spread(&mut self.stream, rows, &params)
    }

    fn draft_block_bytes(&self, draft: &Draft<D>) -> usize {
        match &draft.attention {
            LayerAttention::Mla(mla) => mla.cache.shape.block_bytes(),
            LayerAttention::Gqa(gqa) => gqa.block_bytes(),
        }
    }

    fn start_draft_read(&mut self, block: BlockId, draft: &Draft<D>) -> Result<Transfer, OpError> {
        match &draft.attention {
            LayerAttention::Mla(mla) => self.start_block_read(block, &mla.cache),
            LayerAttention::Gqa(gqa) => {
                Ok(self.stream.driver().download(gqa.block(block)?, gqa.block_bytes())?)
            }
        }
    }

    fn write_draft_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        draft: &mut Draft<D>,
    ) -> Result<(), OpError> {
        match &mut draft.attention {
            LayerAttention::Mla(mla) => self.write_block(block, content, &mut mla.cache),
            LayerAttention::Gqa(gqa) => {
                expect("write_block", &[gqa.block_bytes()], &[content.len()])?;
                self.stream.upload(gqa.block(block)?, content)
            }
        }
    }

    fn read_draft(&mut self, draft: &Draft<D>) -> DraftActivations {
        let Draft { shape, step, buffers, .. } = draft;
        let (target, d) = (shape.target_hidden_size, shape.hidden_size);
        let mut read = |buffer: Buffer, rows: usize, columns: usize| {
            self.stream.read(buffer.address, rows * columns).unwrap_or_default()
        };
        DraftActivations {
            states: buffers.states.map(|state| read(state, draft.captured_rows, target)),
            input: read(buffers.input, step.rows(), d),
            output: read(buffers.output(shape), step.rows(), d),
        }
    }
}
