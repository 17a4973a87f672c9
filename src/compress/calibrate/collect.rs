//! Collects saliency: a text through the model, every (token, slot) of every observed layer counted.

use std::collections::{BTreeMap, BTreeSet};

use super::saliency::{LayerSaliency, Saliency};
use super::text_pass::{Documents, PassError, PassOptions, PassProgress, TextPass};
use crate::fingerprint::{SourceId, TextId};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{ChosenExperts, LayerObserver};
use perigee_ops::Calibrate;
use perigee_text::Tokenizer;

/// Adds up what the layers show.
struct Collector {
    layers: BTreeMap<usize, LayerSaliency>,
}

impl LayerObserver for Collector {
    fn wants_experts(&self, layer: usize) -> bool {
        self.layers.contains_key(&layer)
    }

    fn experts(&mut self, layer: usize, chosen: &ChosenExperts) {
        let Some(statistics) = self.layers.get_mut(&layer) else { return };
        for ((expert, weight), norm) in chosen.experts.iter().zip(&chosen.weights).zip(&chosen.norms) {
            statistics.add(*expert as usize, *weight, *norm);
        }
    }
}

/// Runs a text through a model. `layers`: which ones, `None` = all with routed experts; those behind the last of them are not run.
///
/// The statistic of REAP with this family's router: the experts that the model really picks (bias and group limit included), the weight they
/// get without `routed_scaling_factor` (which would scale every score alike), and the norm of the expert's output before it is weighted.
pub fn collect<B: Calibrate>(
    pass: &mut TextPass<'_, B>,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    documents: &Documents,
    layers: Option<&BTreeSet<usize>>,
    options: &PassOptions,
    progress: &mut dyn FnMut(PassProgress),
) -> Result<Saliency, PassError> {
    let blueprint = pass.blueprint();
    let (num_layers, num_experts) = (blueprint.num_layers, blueprint.router.num_experts);
    let moe: BTreeSet<usize> = (0..num_layers).filter(|layer| blueprint.is_moe(*layer)).collect();
    if let Some(layer) = layers.and_then(|layers| layers.difference(&moe).next()) {
        return Err(PassError::Unlike(format!(
            "layer {layer} has no routed experts; {} has them in layers {:?} to {:?}",
            checkpoint.source(),
            moe.first(),
            moe.last()
        )));
    }
    let chosen = layers.unwrap_or(&moe);
    let mut collector =
        Collector { layers: chosen.iter().map(|l| (*l, LayerSaliency::new(num_experts))).collect() };
    let (windows, num_documents) = documents.windows(tokenizer, options)?;
    let total = windows.iter().map(|window| window.len() as u64).sum();
    let last = chosen.last().map_or(0, |layer| layer + 1);
    pass.run(&windows, last, &mut collector, progress)?;
    let text = TextId { fingerprint: documents.fingerprint.clone(), documents: num_documents, tokens: total };
    Ok(Saliency::new(SourceId::of(checkpoint), vec![text], collector.layers))
}

#[cfg(test)]
mod tests;
