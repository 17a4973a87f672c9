//! The plan of a folder that comes without one, from its router rows.

use std::collections::HashMap;

use crate::fingerprint::SourceId;
use crate::prune::plan_file::{ExpertLayers, ExpertPlan, LayerPlan, PlanFileError};
use crate::prune::select::Criterion;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::expert_names::{Role, role};

/// Why the rows do not say which experts were kept.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    /// A layer without a router in one of the two.
    #[error("layer {0} has no router weight in both folders")]
    NoRouter(usize),
    /// Two rows of the source are alike.
    #[error(
        "layer {layer}: source rows {first} and {second} of the router are the same, so rows do not tell experts apart"
    )]
    Ambiguous {
        /// Layer.
        layer: usize,
        /// Row.
        first: u32,
        /// Another.
        second: u32,
    },
    /// A row that is nowhere in the source.
    #[error("layer {layer}: router row {row} equals no row of the source")]
    Foreign {
        /// Layer.
        layer: usize,
        /// Row of the target.
        row: usize,
    },
    /// The rows are no plan: out of order, or different numbers per layer.
    #[error("the target's router rows are no plan: {0}")]
    Plan(#[from] PlanFileError),
}

/// Matches every router row of the target with the source's.
pub(super) fn infer_plan(
    source: &Checkpoint,
    target: &Checkpoint,
    layers: &ExpertLayers,
) -> Result<ExpertPlan, InferError> {
    let mut names: HashMap<usize, &str> = HashMap::new();
    for name in source.names() {
        if let Role::Router { layer, rest: "weight" } = role(name) {
            names.insert(layer, name);
        }
    }
    let mut plans = Vec::with_capacity(layers.len());
    for (layer, num_source) in layers {
        let views = names.get(layer).map(|name| (source.tensor(name), target.tensor(name)));
        let Some((Some(original), Some(view))) = views else { return Err(InferError::NoRouter(*layer)) };
        if original.shape.first() != Some(num_source) || original.bytes.is_empty() {
            return Err(InferError::NoRouter(*layer));
        }
        let row_bytes = original.bytes.len() / num_source;
        let mut rows: HashMap<&[u8], u32> = HashMap::with_capacity(*num_source);
        for (row, id) in original.bytes.chunks_exact(row_bytes).zip(0u32..) {
            if let Some(first) = rows.insert(row, id) {
                return Err(InferError::Ambiguous { layer: *layer, first, second: id });
            }
        }
        let found =
            view.bytes.chunks_exact(row_bytes).enumerate().map(|(row, bytes)| {
                rows.get(bytes).copied().ok_or(InferError::Foreign { layer: *layer, row })
            });
        let keep = found.collect::<Result<Vec<u32>, _>>()?;
        plans.push(LayerPlan { layer: *layer, num_source: *num_source, keep, saliency: None, counts: None });
    }
    let criterion = Criterion::Given { note: "told from the target's router rows".into() };
    Ok(ExpertPlan::new(SourceId::of(source), criterion, Vec::new(), plans, Vec::new())?)
}
