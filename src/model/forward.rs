//! The forward pass: all layers once, over any backend.

use std::ops::Range;

use super::blueprint::Blueprint;
use super::layer_runner::{LayerRunner, LayerStep};
use super::observed::LayerObserver;
use super::weights::Weights;
use crate::ops::{
    Activation, Backend, CacheShape, Calibrate, Capacity, OpError, Outcomes, SampleRows, SeqSlot, SlotSpec,
    StepPlan, Ticket, TokenId,
};

/// A loaded network with its workspace and its KV cache, on one backend.
pub struct Model<B: Backend> {
    runner: LayerRunner<B>,
    weights: Weights<B>,
}

impl<B: Backend> Model<B> {
    /// Takes loaded weights and allocates workspace and cache.
    pub fn new(
        backend: B,
        blueprint: Blueprint,
        weights: Weights<B>,
        latent_norm_eps: f32,
        capacity: Capacity,
        cache: &CacheShape,
    ) -> Result<Self, OpError> {
        let runner = LayerRunner::new(backend, blueprint, latent_norm_eps, capacity, cache)?;
        Ok(Self { runner, weights })
    }

    /// Sizes and switches of the network.
    pub fn blueprint(&self) -> &Blueprint {
        &self.runner.blueprint
    }

    /// Name of the backend, for logs and metrics.
    pub fn backend_name(&self) -> &'static str {
        self.runner.backend.name()
    }

    /// Largest step: rows, logits rows, sequences.
    pub fn capacity(&self) -> &Capacity {
        &self.runner.capacity
    }

    /// See [`Backend::recorded_rows`].
    pub fn recorded_rows(&self) -> Vec<usize> {
        self.runner.backend.recorded_rows(&self.runner.capacity)
    }

    /// Computes every row of a step: latents are stored in the cache, and the plan's logits rows
    /// are ready for [`Model::logits`].
    pub fn forward(&mut self, plan: &StepPlan) -> Result<(), OpError> {
        let Self { runner, weights } = self;
        runner.begin(plan)?;
        let LayerRunner { backend, workspace, cache, .. } = runner;
        backend.replay(workspace, &mut |backend, workspace| {
            backend.embed(&weights.embed_tokens, workspace)?;
            let gains = weights.layers.iter().map(|layer| &layer.attention.norm);
            let mut next = gains.chain([&weights.final_norm]);
            next.next().map_or(Ok(()), |first| backend.norm(first, workspace))?;
            let mut step = LayerStep { backend, workspace, cache };
            for (layer, (weights, next)) in weights.layers.iter().zip(next).enumerate() {
                step.layer(weights, layer, next)?;
            }
            Ok(())
        })
    }

    /// Logits of the rows `plan.logits_rows[rows]` of the last [`Model::forward`]; at most `max_logits_rows`.
    pub fn logits(&mut self, rows: Range<usize>) -> Result<(), OpError> {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embed_tokens);
        self.runner.backend.logits(head, rows, &mut self.runner.workspace)
    }

    /// See [`Backend::open_slot`].
    pub fn open_slot(&mut self, slot: SeqSlot, spec: &SlotSpec<'_>) -> Result<(), OpError> {
        self.runner.backend.open_slot(slot, spec, &mut self.runner.workspace)
    }

    /// See [`Backend::rewind_slot`].
    pub fn rewind_slot(&mut self, slot: SeqSlot, removed: &[TokenId], last: TokenId) -> Result<(), OpError> {
        self.runner.backend.rewind_slot(slot, removed, last, &mut self.runner.workspace)
    }

    /// Samples from the logits of the last [`Model::logits`].
    pub fn sample(&mut self, rows: &SampleRows<'_>) -> Result<Ticket, OpError> {
        self.runner.backend.sample(rows, &mut self.runner.workspace)
    }

    /// See [`Backend::wait`].
    pub fn wait(&mut self, ticket: Ticket, out: &mut Outcomes) -> Result<(), OpError> {
        self.runner.backend.wait(ticket, &mut self.runner.workspace, out)
    }

    /// Sets the scales of an FP8 cache without row scales: `2^exponents[layer]`. Applies to rows
    /// stored from now on.
    pub fn set_cache_scales(&mut self, exponents: &[i32]) -> Result<(), OpError> {
        self.runner.backend.set_cache_scales(&mut self.runner.cache, exponents)
    }
}

impl<B: Calibrate> Model<B> {
    /// [`Model::forward`] with an observer of the layers.
    pub fn forward_observed(
        &mut self,
        plan: &StepPlan,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        let Self { runner, weights } = self;
        runner.begin(plan)?;
        runner.backend.embed(&weights.embed_tokens, &mut runner.workspace)?;
        for (layer, weights) in weights.layers.iter().enumerate() {
            runner.norm(&weights.attention.norm)?;
            runner.layer_observed(weights, layer, layer, observer)?;
        }
        runner.norm(&weights.final_norm)
    }

    /// Logits `[rows.len(), vocab]` on the host, as [`Model::logits`] computes them.
    pub fn read_logits(&mut self, rows: Range<usize>) -> Result<&[f32], OpError> {
        self.logits(rows)?;
        self.runner.backend.read(Activation::Logits, &self.runner.workspace)
    }
}
