//! A layer with an observer: what calibration sees of it. Nothing here runs while serving, and what a step computes does not depend on
//! it.

use super::layer_runner::LayerRunner;
use super::weights::{FfnWeights, LayerWeights};
use crate::ops::{Activation, Calibrate, OpError, peak};

/// Sees layers while a step is computed; every method does nothing unless it is written.
pub trait LayerObserver {
    /// Whether [`LayerObserver::experts`] is called for this layer; it costs the routed experts once more.
    fn wants_experts(&self, _layer: usize) -> bool {
        false
    }

    /// The routed experts of all rows of a layer.
    fn experts(&mut self, _layer: usize, _chosen: &ChosenExperts) {}

    /// Whether [`LayerObserver::inputs`] is called for this layer; it costs the FFN's first matrices once more.
    fn wants_inputs(&self, _layer: usize) -> bool {
        false
    }

    /// What went into the matrices of a layer's FFN and into its cache.
    fn inputs(&mut self, _layer: usize, _inputs: &LayerInputs) {}
}

/// The observer that records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

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
    /// Rows, one per token, that went in.
    pub rows: u64,
    /// Largest magnitude that went into `gate_proj` and `up_proj`.
    pub gate_up: f32,
    /// Largest magnitude that went into `down_proj`.
    pub down: f32,
}

impl<B: Calibrate> LayerRunner<B> {
    /// [`LayerRunner::layer`] with an observer, and without the next layer's norm: `normed` stays the FFN's input.
    pub(super) fn layer_observed(
        &mut self,
        weights: &LayerWeights<B>,
        layer: usize,
        cached_at: usize,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        self.attention(weights, cached_at)?;
        if let FfnWeights::Moe { router, routed, .. } = &weights.ffn
            && observer.wants_experts(layer)
        {
            let (experts, weights, norms) = self.backend.route(router, routed, &mut self.workspace)?;
            let top_k = self.blueprint.router.top_k;
            observer.experts(layer, &ChosenExperts { top_k, experts, weights, norms });
        }
        self.ffn(weights, None)?;
        if observer.wants_inputs(layer) {
            observer.inputs(layer, &self.layer_inputs(weights, cached_at)?);
        }
        Ok(())
    }

    /// Looks at what attention and FFN of a layer left behind.
    fn layer_inputs(&mut self, weights: &LayerWeights<B>, cached_at: usize) -> Result<LayerInputs, OpError> {
        let Self { backend, workspace: w, cache, blueprint, .. } = self;
        let cached = backend.cached_peak(cached_at, cache, w)?;
        let normed = backend.read(Activation::Normed, w)?;
        let row_peaks: Vec<f32> =
            normed.chunks_exact(blueprint.hidden_size).map(|row| peak(row.iter().copied())).collect();
        let all: Vec<u32> = (0..row_peaks.len() as u32).collect();
        let chosen = match &weights.ffn {
            FfnWeights::Dense(_) => Vec::new(),
            FfnWeights::Moe { .. } => backend.chosen(w)?,
        };
        let mut ffn_inputs = |rows: &[u32], experts: &B::Experts, expert: usize| {
            Ok::<_, OpError>(FfnInputs {
                rows: rows.len() as u64,
                gate_up: peak(rows.iter().map(|t| row_peaks[*t as usize])),
                down: backend.inner_peak(rows, experts, expert, w)?,
            })
        };
        let mut inputs = LayerInputs { cached, ..Default::default() };
        match &weights.ffn {
            FfnWeights::Dense(dense) => inputs.dense = Some(ffn_inputs(&all, dense, 0)?),
            FfnWeights::Moe { routed, shared, .. } => {
                if let Some(shared) = shared {
                    inputs.shared = Some(ffn_inputs(&all, shared, 0)?);
                }
                let mut rows: Vec<Vec<u32>> = vec![Vec::new(); blueprint.router.num_experts];
                for (slot, expert) in chosen.iter().enumerate() {
                    rows[*expert as usize].push((slot / blueprint.router.top_k) as u32);
                }
                for (expert, rows) in rows.iter().enumerate() {
                    inputs.routed.push(ffn_inputs(rows, routed, expert)?);
                }
            }
        }
        Ok(inputs)
    }
}
