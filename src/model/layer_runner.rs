//! One layer over the rows of a step: attention, then FFN. Holds workspace and cache and takes
//! weights as an argument, so that a network may have all layers loaded or one at a time.

use super::blueprint::Blueprint;
use super::rope;
use super::weights::{FfnWeights, LayerWeights};
use perigee_ops::{Backend, CacheShape, Capacity, OpError, StepPlan, Upcoming};

/// A backend with workspace and cache; runs the layers passed to it.
pub(super) struct LayerRunner<B: Backend> {
    pub(super) blueprint: Blueprint,
    pub(super) capacity: Capacity,
    pub(super) workspace: B::Workspace,
    pub(super) cache: B::Cache,
    pub(super) backend: B,
}

impl<B: Backend> LayerRunner<B> {
    /// Allocates workspace and cache.
    pub(super) fn new(
        mut backend: B,
        blueprint: Blueprint,
        latent_norm_eps: f32,
        capacity: Capacity,
        cache: &CacheShape,
    ) -> Result<Self, OpError> {
        let shape = blueprint.shape(latent_norm_eps);
        let workspace = backend.allocate_workspace(&shape, &capacity, &rope::table(&blueprint))?;
        let cache = backend.allocate_cache(cache)?;
        Ok(Self { blueprint, capacity, workspace, cache, backend })
    }

    pub(super) fn begin(&mut self, plan: &StepPlan) -> Result<(), OpError> {
        self.backend.begin(plan, &mut self.workspace)
    }

    /// `normed = norm(hidden)`.
    pub(super) fn norm(&mut self, gain: &B::Vector) -> Result<(), OpError> {
        self.backend.norm(gain, &mut self.workspace)
    }

    /// The parts that layers run on.
    pub(super) fn step(&mut self) -> LayerStep<'_, B> {
        let Self { backend, workspace, cache, .. } = self;
        LayerStep { backend, workspace, cache }
    }
}

/// The current step on a backend.
pub(super) struct LayerStep<'a, B: Backend> {
    pub(super) backend: &'a mut B,
    pub(super) workspace: &'a mut B::Workspace,
    pub(super) cache: &'a mut B::Cache,
}

impl<B: Backend> LayerStep<'_, B> {
    /// Runs one layer over the current step. On entry `normed` is the norm of `hidden` with this
    /// layer's gain; on return the norm with the gain `next`. `behind` is the layer that follows, if there is one.
    pub(super) fn layer(
        &mut self,
        weights: &LayerWeights<B>,
        cached_at: usize,
        next: &B::Vector,
        behind: Option<&LayerWeights<B>>,
    ) -> Result<(), OpError> {
        let pending = self.attention(weights, cached_at)?;
        if let Some(behind) = behind {
            self.backend.announce(Upcoming::BehindLayer(&behind.attention.input), self.workspace);
        }
        self.ffn(weights, pending, Some(next))
    }

    /// `hidden += o_proj(attention(normed))`, then the FFN's norm, or its gain where the backend leaves the norm to the FFN.
    pub(super) fn attention<'w>(
        &mut self,
        weights: &'w LayerWeights<B>,
        cached_at: usize,
    ) -> Result<Option<&'w B::Vector>, OpError> {
        let Self { backend, workspace, cache } = self;
        let attention = &weights.attention;
        backend.attention_in(&attention.input, cached_at, cache, workspace)?;
        backend.announce(Upcoming::BehindAttention(&attention.output), workspace);
        backend.attend(&attention.kv_up, cached_at, cache, workspace)?;
        backend.project_add_norm(&attention.output, &weights.post_attention_norm, workspace)
    }

    /// `hidden += ffn(normed)` behind the norm with the gain `pending`, then the norm with the gain `next`, if given.
    pub(super) fn ffn(
        &mut self,
        weights: &LayerWeights<B>,
        pending: Option<&B::Vector>,
        next: Option<&B::Vector>,
    ) -> Result<(), OpError> {
        match &weights.ffn {
            FfnWeights::Dense(dense) => self.backend.dense(pending, dense, next, self.workspace),
            FfnWeights::Moe { router, routed, shared } => {
                self.backend.moe(pending, router, routed, shared.as_ref(), next, self.workspace)
            }
        }
    }
}
