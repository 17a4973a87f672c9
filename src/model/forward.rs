//! Straight through the layers, once, over any backend.

use super::blueprint::Blueprint;
use super::rope::RopeTable;
use super::weights::{FfnWeights, LayerWeights, QueryWeights, Weights};
use crate::ops::{Backend, CacheShape, OpError, RouterShape, Segment, peak};

/// Looks on while a step is computed; every method does nothing unless it is written. What a step computes does not depend on it.
pub trait LayerObserver {
    /// Whether [`LayerObserver::experts`] is to be called for this layer; it costs the routed experts once more.
    fn wants_experts(&self, _layer: usize) -> bool {
        false
    }

    /// The routed experts of all rows of a layer.
    fn experts(&mut self, _layer: usize, _chosen: &ChosenExperts) {}

    /// Whether [`LayerObserver::inputs`] is to be called for this layer; it costs the FFN's first matrices once more.
    fn wants_inputs(&self, _layer: usize) -> bool {
        false
    }

    /// What went into the matrices of a layer's FFN and into its cache.
    fn inputs(&mut self, _layer: usize, _inputs: &LayerInputs) {}

    /// Whether [`LayerObserver::hidden`] is to be called for this layer.
    fn wants_hidden(&self, _layer: usize) -> bool {
        false
    }

    /// The residual stream after a layer, `[T, D]`.
    fn hidden(&mut self, _layer: usize, _rows: &[f32]) {}
}

/// Nobody looks on.
struct NoObserver;

impl LayerObserver for NoObserver {}

/// The experts that the rows of a step chose in one layer; `[T, K]` each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChosenExperts {
    /// K.
    pub top_k: usize,
    /// Expert ids.
    pub experts: Vec<u32>,
    /// Routing weights without `routed_scaling_factor`: of a checkpoint that normalises them, they sum to 1 per row.
    pub weights: Vec<f32>,
    /// L2 norm of the expert's output before it is weighted.
    pub norms: Vec<f32>,
}

/// Largest magnitudes that the rows of a step showed in one layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerInputs {
    /// Of what the cache holds of them.
    pub cached: f32,
    /// Of the FFN of a layer without routed experts.
    pub dense: Option<FfnInputs>,
    /// Of the shared expert.
    pub shared: Option<FfnInputs>,
    /// `[E]`: of each routed expert.
    pub routed: Vec<FfnInputs>,
}

/// What went into one SwiGLU FFN.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FfnInputs {
    /// Rows.
    pub rows: u64,
    /// Largest magnitude that went into `gate_proj` and `up_proj`.
    pub gate_up: f32,
    /// Largest magnitude that went into `down_proj`.
    pub down: f32,
}

/// One step's tokens and where they stand.
#[derive(Debug, Clone, Default)]
pub struct ForwardInput {
    /// `[T]` token ids.
    pub token_ids: Vec<u32>,
    /// `[T]` position of each token in its sequence.
    pub positions: Vec<usize>,
    /// `[T]` where each token's latent is stored: block id x block size + offset.
    pub slot_mapping: Vec<u32>,
    /// Rows attending in expanded form.
    pub expanded: Vec<Segment>,
    /// Rows attending in absorbed form. The two lists together cover each row once.
    pub absorbed: Vec<Segment>,
    /// Block ids of all sequences of the step, flat; segments hold ranges of it.
    pub block_tables: Vec<u32>,
}

impl ForwardInput {
    /// Empties all lists and keeps their memory.
    pub fn clear(&mut self) {
        self.token_ids.clear();
        self.positions.clear();
        self.slot_mapping.clear();
        self.expanded.clear();
        self.absorbed.clear();
        self.block_tables.clear();
    }
}

/// Activations of one step, allocated once for the largest step.
pub struct Workspace<B: Backend> {
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

/// A loaded network with its workspace and its KV cache, on one backend.
pub struct Model<B: Backend> {
    blueprint: Blueprint,
    rope: RopeTable,
    /// Epsilon of the two latent norms (see `model.latent_norm_eps`).
    latent_norm_eps: f32,
    weights: Weights<B>,
    workspace: Workspace<B>,
    cache: B::Cache,
    backend: B,
    /// `[T, K]`, for observers; made when the first one asks.
    expert_norms: Option<B::Buffer>,
}

impl<B: Backend> Model<B> {
    /// Takes loaded weights and allocates workspace for `max_tokens` rows (of which `max_logits_rows` with logits at once) and the cache.
    pub fn new(
        mut backend: B,
        blueprint: Blueprint,
        weights: Weights<B>,
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
        Ok(Self { blueprint, rope, latent_norm_eps, weights, workspace, cache, backend, expert_norms: None })
    }

    /// Sizes and switches.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Name of the backend.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// Most rows of one step.
    pub fn max_tokens(&self) -> usize {
        self.workspace.max_tokens
    }

    /// Most rows `logits` takes at once.
    pub fn max_logits_rows(&self) -> usize {
        self.workspace.max_logits_rows
    }

    /// Computes the residual stream of every row and stores their latents in the cache.
    pub fn forward(&mut self, input: &ForwardInput) -> Result<(), OpError> {
        self.forward_observed(input, &mut NoObserver)
    }

    /// [`Model::forward`] with somebody looking on.
    pub fn forward_observed(
        &mut self,
        input: &ForwardInput,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        self.workspace.rotations.clear();
        for position in &input.positions {
            self.rope.rotation(*position, &mut self.workspace.rotations);
        }
        self.backend.embed(&self.weights.embed_tokens, &input.token_ids, &mut self.workspace.hidden)?;
        for layer in 0..self.blueprint.num_layers {
            self.attention(layer, input)?;
            self.ffn(layer, observer)?;
            if observer.wants_inputs(layer) {
                observer.inputs(layer, &self.layer_inputs(layer, &input.slot_mapping)?);
            }
            if observer.wants_hidden(layer) {
                observer.hidden(layer, self.backend.read(&self.workspace.hidden)?);
            }
        }
        Ok(())
    }

    /// The scales of an FP8 cache without row scales: 2 to these, one per layer. Takes effect on what is cached from now on.
    pub fn set_cache_scales(&mut self, exponents: &[i32]) -> Result<(), OpError> {
        self.backend.set_cache_scales(&mut self.cache, exponents)
    }

    /// Logits `[rows.len(), vocab]` of rows of the last `forward`; at most `max_logits_rows` rows.
    pub fn logits(&mut self, rows: &[u32]) -> Result<&[f32], OpError> {
        let w = &mut self.workspace;
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embed_tokens);
        let eps = self.blueprint.rms_norm_eps;
        self.backend.logits(&w.hidden, rows, &self.weights.final_norm, eps, head, &mut w.logits)?;
        self.backend.read(&w.logits)
    }

    /// `hidden += o_proj(attention(norm(hidden)))`.
    fn attention(&mut self, layer: usize, input: &ForwardInput) -> Result<(), OpError> {
        let Self { backend, workspace: w, blueprint, cache, weights, latent_norm_eps, .. } = self;
        let LayerWeights { attention, .. } = &weights.layers[layer];
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
        backend.write_latent(mla, &w.kv_a, norm, latent_eps, &w.rotations, slots, layer, cache)?;
        let (up, tables) = (&attention.kv_up, &input.block_tables);
        if !input.expanded.is_empty() {
            backend.attend_expanded(
                mla,
                &w.query,
                up,
                layer,
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
                layer,
                cache,
                &input.absorbed,
                tables,
                &mut w.attended,
            )?;
        }
        backend.project_add(&w.attended, &attention.output, &mut w.hidden)
    }

    /// `hidden += ffn(norm(hidden))`.
    fn ffn(&mut self, layer: usize, observer: &mut dyn LayerObserver) -> Result<(), OpError> {
        let Self { backend, workspace: w, blueprint, weights, expert_norms, .. } = self;
        let LayerWeights { post_attention_norm, ffn, .. } = &weights.layers[layer];
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
    /// Looks at what [`Model::attention`] and [`Model::ffn`] of a layer left behind.
    fn layer_inputs(&mut self, layer: usize, slots: &[u32]) -> Result<LayerInputs, OpError> {
        let Self { backend, workspace: w, weights, cache, blueprint, .. } = self;
        let cached = backend.cached_peak(cache, layer, slots)?;
        let row_peaks: Vec<f32> = {
            let normed = backend.read(&w.normed)?;
            normed.chunks_exact(blueprint.hidden_size).map(|row| peak(row.iter().copied())).collect()
        };
        let all: Vec<u32> = (0..row_peaks.len() as u32).collect();
        let mut inputs = LayerInputs { cached, ..Default::default() };
        match &weights.layers[layer].ffn {
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
