//! Straight through the layers, once, over any backend.

use super::blueprint::Blueprint;
use super::layer_runner::{LayerPlace, LayerRunner};
use super::weights::Weights;
use crate::ops::{Backend, CacheShape, OpError, Segment};

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

/// A loaded network with its workspace and its KV cache, on one backend.
pub struct Model<B: Backend> {
    runner: LayerRunner<B>,
    weights: Weights<B>,
}

impl<B: Backend> Model<B> {
    /// Takes loaded weights and allocates workspace for `max_tokens` rows (of which `max_logits_rows` with logits at once) and the cache.
    pub fn new(
        backend: B,
        blueprint: Blueprint,
        weights: Weights<B>,
        latent_norm_eps: f32,
        max_tokens: usize,
        max_logits_rows: usize,
        cache: &CacheShape,
    ) -> Result<Self, OpError> {
        let runner =
            LayerRunner::new(backend, blueprint, latent_norm_eps, max_tokens, max_logits_rows, cache)?;
        Ok(Self { runner, weights })
    }

    /// Sizes and switches.
    pub fn blueprint(&self) -> &Blueprint {
        self.runner.blueprint()
    }

    /// Name of the backend.
    pub fn backend_name(&self) -> &'static str {
        self.runner.backend_name()
    }

    /// Most rows of one step.
    pub fn max_tokens(&self) -> usize {
        self.runner.max_tokens()
    }

    /// Most rows `logits` takes at once.
    pub fn max_logits_rows(&self) -> usize {
        self.runner.max_logits_rows()
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
        self.runner.begin(input);
        self.runner.embed(&self.weights.embed_tokens, &input.token_ids)?;
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            self.runner.layer(weights, LayerPlace { layer, cached_at: layer }, input, observer)?;
        }
        Ok(())
    }

    /// The scales of an FP8 cache without row scales: 2 to these, one per layer. Takes effect on what is cached from now on.
    pub fn set_cache_scales(&mut self, exponents: &[i32]) -> Result<(), OpError> {
        self.runner.set_cache_scales(exponents)
    }

    /// Logits `[rows.len(), vocab]` of rows of the last `forward`; at most `max_logits_rows` rows.
    pub fn logits(&mut self, rows: &[u32]) -> Result<&[f32], OpError> {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embed_tokens);
        self.runner.logits(rows, &self.weights.final_norm, head)
    }
}
