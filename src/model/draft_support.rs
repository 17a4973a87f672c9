//! How drafts are planned and loaded where the backend's type does not say whether it runs them.

use super::blueprint::Blueprint;
use super::checkpoint::Checkpoint;
use super::draft::DraftBlueprint;
use super::drafter::{Drafter, RunDraft};
use super::mtp::{MtpDrafter, MtpLayer};
use super::weights::LoadError;
use perigee_ops::{Backend, CacheShape, Capacity, DraftOps, MemoryNeeds, MtpOps};

/// The functions of a backend that can run drafts.
pub struct DraftSupport<B: Backend> {
    /// See [`DraftOps::draft_memory`].
    pub memory: fn(&B, &DraftBlueprint, &Capacity, &CacheShape) -> MemoryNeeds,
    /// See [`Drafter::load`].
    pub load: fn(&Checkpoint, &DraftBlueprint, &Blueprint, &mut B, &Capacity, &CacheShape) -> LoadedDraft<B>,
    /// See [`MtpLayer::memory`].
    pub mtp_memory: fn(&B, &MtpLayer, &Capacity, &CacheShape) -> MemoryNeeds,
    /// See [`MtpDrafter::load`].
    pub mtp_load: fn(&Checkpoint, &MtpLayer, &mut B, &Capacity, &CacheShape) -> LoadedDraft<B>,
}

type LoadedDraft<B> = Result<Box<dyn RunDraft<B>>, LoadError>;

impl<B: DraftOps + MtpOps> DraftSupport<B> {
    /// That of a backend with the operations of drafts.
    pub fn new() -> Self {
        Self {
            memory: |backend, blueprint, capacity, cache| {
                backend.draft_memory(&blueprint.shape(), capacity, cache)
            },
            load: |checkpoint, blueprint, target, backend, capacity, cache| {
                let layers = target.num_layers;
                Ok(Box::new(Drafter::load(checkpoint, blueprint, layers, backend, capacity, cache)?))
            },
            mtp_memory: |backend, layer, capacity, cache| layer.memory(backend, capacity, cache),
            mtp_load: |checkpoint, layer, backend, capacity, cache| {
                Ok(Box::new(MtpDrafter::load(checkpoint, layer, backend, capacity, cache)?))
            },
        }
    }
}

impl<B: DraftOps + MtpOps> Default for DraftSupport<B> {
    fn default() -> Self {
        Self::new()
    }
}
