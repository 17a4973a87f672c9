//! A layer with an observer, for calibration. Not used while serving; an observer does not change
//! the results of a step.

use super::layer_runner::LayerRunner;
use super::weights::{FfnWeights, LayerWeights};
use perigee_ops::{Activation, Calibrate, OpError, peak};

/// Observes layers while a step is computed; the default methods record nothing.
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

    /// Inputs of the matrices of a layer's FFN, and its cached rows.
    fn inputs(&mut self, _layer: usize, _inputs: &LayerInputs) {}
}

/// The observer that records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl LayerObserver for NoObserver {}

/// The experts that the rows of a step chose in one layer; `[T, K]` each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChosenExperts {
    /// K, experts per token.
    pub top_k: usize,
    /// Expert ids, `[T, K]`.
    pub experts: Vec<u32>,
    /// Routing weights without `routed_scaling_factor`, `[T, K]`: they sum to 1 per row if the
    /// checkpoint normalises them.
    pub weights: Vec<f32>,
    /// L2 norms of the experts' outputs before the weighting, `[T, K]`.
    pub norms: Vec<f32>,
}

/// Largest magnitudes in one layer over the rows of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerInputs {
    /// Largest magnitude of the cached latents and rope keys.
    pub cached: f32,
    /// FFN of a layer without routed experts.
    pub dense: Option<FfnInputs>,
    /// Shared expert; `None` without one.
    pub shared: Option<FfnInputs>,
    /// `[E]`: routed experts.
    pub routed: Vec<FfnInputs>,
}

/// Input magnitudes of one SwiGLU FFN.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FfnInputs {
    /// Number of input rows, one per token.
    pub rows: u64,
    /// Largest magnitude of the input of `gate_proj` and `up_proj`.
    pub gate_up: f32,
    /// Largest magnitude of the input of `down_proj`.
    pub down: f32,
}

impl<B: Calibrate> LayerRunner<B> {
    /// [`LayerStep::layer`] with an observer and without the next layer's norm: `normed` remains
    /// the FFN's input.
    pub(super) fn layer_observed(
        &mut self,
        weights: &LayerWeights<B>,
        layer: usize,
        cached_at: usize,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        if let Some(gain) = self.step().attention(weights, cached_at)? {
            self.norm(gain)?;
        }
        if let FfnWeights::Moe { router, routed, .. } = &weights.ffn
            && observer.wants_experts(layer)
        {
            let (experts, weights, norms) = self.backend.route(router, routed, &mut self.workspace)?;
            let top_k = self.blueprint.router.top_k;
            observer.experts(layer, &ChosenExperts { top_k, experts, weights, norms });
        }
        self.step().ffn(weights, None, None)?;
        if observer.wants_inputs(layer) {
            observer.inputs(layer, &self.layer_inputs(weights, cached_at)?);
        }
        Ok(())
    }

    /// Reads the observed inputs from the workspace and the cache.
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
