//! One layer over the rows of a step: attention, then FFN. Holds workspace and cache, and is given weights, so that whoever runs a network may have all
//! of its layers loaded or one at a time.

use super::blueprint::Blueprint;
use super::forward::{ChosenExperts, FfnInputs, ForwardInput, LayerInputs, LayerObserver};
use super::rope::RopeTable;
use super::weights::{AttentionWeights, FfnWeights, LayerWeights, QueryWeights};
use crate::ops::{Backend, CacheShape, OpError, RouterShape, peak};

/// Activations of one step, allocated once for the largest step.
struct Workspace<B: Backend> {
    /// Residual stream `[T, D]`.
    hidden: B::Buffer,
    /// Its norm `[T, D]`.
    normed: B::Buffer,
    /// `[T, q_lora_rank]`, if the checkpoint has one: raw and normalised.
    query_latent: Option<(B::Buffer, B::Buffer)>,
    /// `[T, H * (N + R)]`.
    query: B::Buffer,
    /// `[T, C + R]`.
    kv_a: B::Buffer,
    /// `[T, H * V]`.
    attended: B::Buffer,
    routing: B::Routing,
    /// `[S, vocab]`, S rows that need logits at once.
    logits: B::Buffer,
    max_logits_rows: usize,
    max_tokens: usize,
    /// `[T, R]`, host: cosines and sines of each row's position.
    rotations: Vec<f32>,
}

/// Where a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LayerPlace {
    /// In the network, for observers.
    pub(super) layer: usize,
    /// In the cache.
    pub(super) cached_at: usize,
}

/// A backend with workspace and cache: runs layers whose weights it is given.
pub(super) struct LayerRunner<B: Backend> {
    blueprint: Blueprint,
    rope: RopeTable,
    /// Epsilon of the two latent norms (see `model.latent_norm_eps`).
    latent_norm_eps: f32,
    workspace: Workspace<B>,
    cache: B::Cache,
    backend: B,
    /// `[T, K]`, for observers; made when the first one asks.
    expert_norms: Option<B::Buffer>,
}

impl<B: Backend> LayerRunner<B> {
    /// Allocates workspace for `max_tokens` rows (of which `max_logits_rows` with logits at once) and the cache.
    pub(super) fn new(
        mut backend: B,
        blueprint: Blueprint,
        latent_norm_eps: f32,
        max_tokens: usize,
        max_logits_rows: usize,
        cache: &CacheShape,
    ) -> Result<Self, OpError> {
        let b = &mut backend;
        let mla = &blueprint.mla;
        let workspace = Workspace {
            hidden: b.allocate(max_tokens, blueprint.hidden_size)?,
            normed: b.allocate(max_tokens, blueprint.hidden_size)?,
            query_latent: match blueprint.q_lora_rank {
                Some(rank) => Some((b.allocate(max_tokens, rank)?, b.allocate(max_tokens, rank)?)),
                None => None,
            },
            query: b.allocate(max_tokens, mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim))?,
            kv_a: b.allocate(max_tokens, mla.latent_dim())?,
            attended: b.allocate(max_tokens, mla.num_heads * mla.v_head_dim)?,
            routing: b.allocate_routing(max_tokens, &blueprint.router)?,
            logits: b.allocate(max_logits_rows, blueprint.vocab_size)?,
            max_logits_rows,
            max_tokens,
            rotations: Vec::with_capacity(max_tokens * mla.qk_rope_head_dim),
        };
        let cache = b.allocate_cache(cache)?;
        let rope = RopeTable::new(&blueprint);
        Ok(Self { blueprint, rope, latent_norm_eps, workspace, cache, backend, expert_norms: None })
    }

    /// Sizes and switches.
    pub(super) fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Name of the backend.
    pub(super) fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// Most rows of one step.
    pub(super) fn max_tokens(&self) -> usize {
        self.workspace.max_tokens
    }

    /// Most rows `logits` takes at once.
    pub(super) fn max_logits_rows(&self) -> usize {
        self.workspace.max_logits_rows
    }

    /// What loads weights onto the backend needs.
    pub(super) fn backend(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Begins a step: positions become rotations.
    pub(super) fn begin(&mut self, input: &ForwardInput) {
        self.workspace.rotations.clear();
        for position in &input.positions {
            self.rope.rotation(*position, &mut self.workspace.rotations);
        }
    }

    /// The residual stream is that of these tokens.
    pub(super) fn embed(&mut self, table: &B::Matrix, token_ids: &[u32]) -> Result<(), OpError> {
        self.backend.embed(table, token_ids, &mut self.workspace.hidden)
    }

    /// The residual stream is `rows`, `[T, D]`.
    pub(super) fn set_hidden(&mut self, rows: &[f32]) -> Result<(), OpError> {
        self.backend.write(rows, &mut self.workspace.hidden)
    }

    /// The residual stream, `[T, D]`.
    pub(super) fn hidden(&mut self) -> Result<&[f32], OpError> {
        self.backend.read(&self.workspace.hidden)
    }

    /// Runs one layer over the residual stream of the step that was begun.
    pub(super) fn layer(
        &mut self,
        weights: &LayerWeights<B>,
        LayerPlace { layer, cached_at }: LayerPlace,
        input: &ForwardInput,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        self.attention(&weights.attention, cached_at, input)?;
        self.ffn(weights, layer, observer)?;
        if observer.wants_inputs(layer) {
            observer.inputs(layer, &self.layer_inputs(weights, cached_at, &input.slot_mapping)?);
        }
        Ok(())
    }

    /// See [`super::Model::set_cache_scales`].
    pub(super) fn set_cache_scales(&mut self, exponents: &[i32]) -> Result<(), OpError> {
        self.backend.set_cache_scales(&mut self.cache, exponents)
    }

    /// Logits `[rows.len(), vocab]` of rows of the residual stream; at most `max_logits_rows` rows.
    pub(super) fn logits(
        &mut self,
        rows: &[u32],
        final_norm: &B::Vector,
        head: &B::Matrix,
    ) -> Result<&[f32], OpError> {
        let (w, eps) = (&mut self.workspace, self.blueprint.rms_norm_eps);
        self.backend.logits(&w.hidden, rows, final_norm, eps, head, &mut w.logits)?;
        self.backend.read(&w.logits)
    }

    /// `hidden += o_proj(attention(norm(hidden)))`.
    fn attention(
        &mut self,
        attention: &AttentionWeights<B>,
        cached_at: usize,
        input: &ForwardInput,
    ) -> Result<(), OpError> {
        let Self { backend, workspace: w, blueprint, cache, latent_norm_eps, .. } = self;
        let (mla, latent_eps) = (&blueprint.mla, *latent_norm_eps);
        backend.norm(&w.hidden, &attention.input_norm, blueprint.rms_norm_eps, &mut w.normed)?;
        match (&attention.query, &mut w.query_latent) {
            (QueryWeights::Latent { a, norm, b }, Some((latent, latent_normed))) => {
                backend.project(&w.normed, a, latent)?;
                backend.norm(latent, norm, latent_eps, latent_normed)?;
                backend.project(latent_normed, b, &mut w.query)?;
            }
            (QueryWeights::Direct(q), _) => backend.project(&w.normed, q, &mut w.query)?,
            (QueryWeights::Latent { .. }, None) => {
                unreachable!("workspace and weights come from one blueprint")
            }
        }
        backend.project(&w.normed, &attention.kv_a, &mut w.kv_a)?;
        backend.rope(mla, &w.rotations, &mut w.query)?;
        let (norm, slots) = (&attention.kv_a_norm, &input.slot_mapping);
        backend.write_latent(mla, &w.kv_a, norm, latent_eps, &w.rotations, slots, cached_at, cache)?;
        let (up, tables) = (&attention.kv_up, &input.block_tables);
        if !input.expanded.is_empty() {
            backend.attend_expanded(
                mla,
                &w.query,
                up,
                cached_at,
                cache,
                &input.expanded,
                tables,
                &mut w.attended,
            )?;
        }
        if !input.absorbed.is_empty() {
            backend.attend_absorbed(
                mla,
                &w.query,
                up,
                cached_at,
                cache,
                &input.absorbed,
                tables,
                &mut w.attended,
            )?;
        }
        backend.project_add(&w.attended, &attention.output, &mut w.hidden)
    }

    /// `hidden += ffn(norm(hidden))`.
    fn ffn(
        &mut self,
        weights: &LayerWeights<B>,
        layer: usize,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        let Self { backend, workspace: w, blueprint, expert_norms, .. } = self;
        let LayerWeights { post_attention_norm, ffn, .. } = weights;
        backend.norm(&w.hidden, post_attention_norm, blueprint.rms_norm_eps, &mut w.normed)?;
        match ffn {
            FfnWeights::Dense(dense) => backend.swiglu_add(&w.normed, dense, &mut w.hidden),
            FfnWeights::Moe { router, routed, shared } => {
                if observer.wants_experts(layer) {
                    // Routed once without the scaling factor: dividing it out of the weights would not give their bits.
                    let unscaled = RouterShape { routed_scaling_factor: 1.0, ..blueprint.router };
                    backend.route(&w.normed, router, &unscaled, &mut w.routing)?;
                    let norms = match expert_norms {
                        Some(norms) => norms,
                        None => expert_norms.insert(backend.allocate(w.max_tokens, unscaled.top_k)?),
                    };
                    let mut chosen = ChosenExperts { top_k: unscaled.top_k, ..Default::default() };
                    backend.read_routing(&w.routing, &mut chosen.experts, &mut chosen.weights)?;
                    backend.expert_norms(&w.normed, &w.routing, routed, norms)?;
                    chosen.norms.extend_from_slice(backend.read(norms)?);
                    observer.experts(layer, &chosen);
                }
                backend.route(&w.normed, router, &blueprint.router, &mut w.routing)?;
                backend.experts(&w.normed, &w.routing, routed, shared.as_ref(), &mut w.hidden)
            }
        }
    }

    /// Looks at what attention and FFN of a layer left behind.
    fn layer_inputs(
        &mut self,
        weights: &LayerWeights<B>,
        cached_at: usize,
        slots: &[u32],
    ) -> Result<LayerInputs, OpError> {
        let Self { backend, workspace: w, cache, blueprint, .. } = self;
        let cached = backend.cached_peak(cache, cached_at, slots)?;
        let row_peaks: Vec<f32> = {
            let normed = backend.read(&w.normed)?;
            normed.chunks_exact(blueprint.hidden_size).map(|row| peak(row.iter().copied())).collect()
        };
        let all: Vec<u32> = (0..row_peaks.len() as u32).collect();
        let mut inputs = LayerInputs { cached, ..Default::default() };
        match &weights.ffn {
            FfnWeights::Dense(dense) => {
                inputs.dense = Some(ffn_inputs(backend, &w.normed, &row_peaks, &all, dense, 0)?)
            }
            FfnWeights::Moe { routed, shared, .. } => {
                if let Some(shared) = shared {
                    inputs.shared = Some(ffn_inputs(backend, &w.normed, &row_peaks, &all, shared, 0)?);
                }
                let (mut chosen, mut weights) = (Vec::new(), Vec::new());
                backend.read_routing(&w.routing, &mut chosen, &mut weights)?;
                let mut rows: Vec<Vec<u32>> = vec![Vec::new(); blueprint.router.num_experts];
                for (slot, expert) in chosen.iter().enumerate() {
                    rows[*expert as usize].push((slot / blueprint.router.top_k) as u32);
                }
                for (expert, rows) in rows.iter().enumerate() {
                    inputs.routed.push(ffn_inputs(backend, &w.normed, &row_peaks, rows, routed, expert)?);
                }
            }
        }
        Ok(inputs)
    }
}

/// What rows of `x`, whose largest magnitudes are `row_peaks`, put into one expert.
fn ffn_inputs<B: Backend>(
    backend: &mut B,
    x: &B::Buffer,
    row_peaks: &[f32],
    rows: &[u32],
    experts: &B::Experts,
    expert: usize,
) -> Result<FfnInputs, OpError> {
    Ok(FfnInputs {
        rows: rows.len() as u64,
        gate_up: peak(rows.iter().map(|t| row_peaks[*t as usize])),
        down: backend.inner_peak(x, rows, experts, expert)?,
    })
}
