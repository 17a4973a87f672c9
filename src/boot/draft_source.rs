//! Where a draft model comes from: a folder, the embedded one, or the checkpoint's own prediction layer.

use super::engine::EngineError;
use crate::nano;
use perigee_decoding::speculation::{self, Method};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, DraftBlueprint, DraftTensors, Drafter, Eagle3Drafter, MtpDrafter, MtpLayer};
use perigee_ops::{Backend, CacheDtype, Capacity, MemoryNeeds};

/// A draft model before its upload.
pub(super) enum DraftSource {
    /// Eagle3.
    Eagle3 { files: Box<Checkpoint>, blueprint: Box<DraftBlueprint> },
    /// A layer of the target's checkpoint.
    Mtp(Box<MtpLayer>),
}

impl DraftSource {
    /// The draft model that the settings name, or else the target's own, if it goes with the target.
    pub(super) fn open(
        config: &speculation::Config,
        checkpoint: &Checkpoint,
        target: &Blueprint,
        latent_norm_eps: f32,
    ) -> Result<Option<Self>, EngineError> {
        let embedded = checkpoint.folder().is_none() && config.method != Method::Mtp;
        let files = match &config.draft {
            _ if !config.asks_model() => return Ok(None),
            Some(folder) => Checkpoint::open(folder),
            None if embedded => Checkpoint::from_embedded(nano::DRAFT_FILES),
            None if config.method == Method::Eagle3 => return Ok(None),
            None => {
                return match MtpLayer::find(checkpoint, target, latent_norm_eps) {
                    Ok(None) if config.method == Method::Mtp => Err(EngineError::NoMtpLayer),
                    Ok(layer) => Ok(layer.map(|layer| Self::Mtp(Box::new(layer)))),
                    Err(reason) if config.method == Method::Auto => {
                        // Quantized releases often leave the layer out and keep its number.
                        tracing::warn!(%reason, "the prediction layer is not used");
                        Ok(None)
                    }
                    Err(error) => Err(error.into()),
                };
            }
        };
        let files = files.map_err(EngineError::DraftFolder)?;
        let bytes = files.file("config.json").unwrap_or_default();
        let mut blueprint = DraftBlueprint::parse(&bytes).map_err(EngineError::DraftConfig)?;
        if config.rope_theta > 0.0 {
            blueprint.rope_theta = config.rope_theta;
        }
        blueprint.check(target)?;
        Ok(Some(Self::Eagle3 { files: Box::new(files), blueprint: Box::new(blueprint) }))
    }

    /// Its own files, if it has any.
    pub(super) fn files(&self) -> Option<&Checkpoint> {
        match self {
            Self::Eagle3 { files, .. } => Some(files),
            Self::Mtp(_) => None,
        }
    }

    /// Bytes of the weights on all of `ranks` together: every rank has an Eagle3 draft whole, but for its part of the FFN, of the
    /// table and of a head of the whole vocabulary; a prediction layer is divided.
    pub(super) fn bytes(&self, ranks: usize) -> u64 {
        match self {
            Self::Eagle3 { files, blueprint } => {
                let divided = blueprint.divided_bytes(files);
                let all = DraftTensors::take(files, blueprint).bytes;
                all + (ranks as u64 - 1) * all.saturating_sub(divided)
            }
            Self::Mtp(layer) => layer.bytes(),
        }
    }

    /// Bytes of the workspace and of a block of the cache.
    pub(super) fn memory<B: Backend>(
        &self,
        backend: &B,
        capacity: &Capacity,
        dtype: CacheDtype,
    ) -> MemoryNeeds {
        match self {
            Self::Eagle3 { blueprint, .. } => {
                let block = blueprint.cache_shape(1, capacity.block_size, dtype);
                backend.draft_memory(&blueprint.shape(), capacity, &block)
            }
            Self::Mtp(layer) => {
                let block = layer.cache_shape(1, capacity.block_size, dtype);
                layer.memory(backend, capacity, &block)
            }
        }
    }

    /// Uploads the draft of the target in `checkpoint`, with a cache of `num_blocks` blocks.
    pub(super) fn load<B: Backend>(
        &self,
        (checkpoint, target): (&Checkpoint, &Blueprint),
        backend: &mut B,
        capacity: &Capacity,
        (num_blocks, dtype): (usize, CacheDtype),
    ) -> Result<Drafter<B>, EngineError> {
        match self {
            Self::Eagle3 { files, blueprint } => {
                let cache = blueprint.cache_shape(num_blocks, capacity.block_size, dtype);
                let layers = target.num_layers;
                let draft = Eagle3Drafter::load(files, blueprint, layers, backend, capacity, &cache)?;
                tracing::info!(
                    folder = %files.source(),
                    reads = format!("inputs of layers {:?}", blueprint.reads(target.num_layers)),
                    rope_theta = blueprint.rope_theta,
                    "draft model loaded"
                );
                Ok(Drafter::Eagle3(draft))
            }
            Self::Mtp(layer) => {
                let cache = layer.cache_shape(num_blocks, capacity.block_size, dtype);
                let draft = MtpDrafter::load(checkpoint, layer, backend, capacity, &cache)?;
                tracing::info!(layer = layer.layer(), "prediction layer loaded as the draft model");
                Ok(Drafter::Mtp(Box::new(draft)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The embedded draft has a table and a head of the whole vocabulary of its own: they are divided, the rest is on every rank.
    #[test]
    fn a_draft_is_whole_on_every_rank_but_for_its_table_and_head() {
        let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
        let target = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
        let config = speculation::Config::default();
        let draft = DraftSource::open(&config, &checkpoint, &target, target.rms_norm_eps).unwrap().unwrap();
        let [one, two, four] = [1, 2, 4].map(|ranks| draft.bytes(ranks));
        let whole = two - one;
        assert!(whole > 0 && whole <= one, "{whole} of {one}");
        assert_eq!(four - one, 3 * whole);
    }
}
