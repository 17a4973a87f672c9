//! How a checkpoint sees: its tower and its preprocessor, or what it lacks.

use super::error::BootError;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::vision::{self, Preprocessor};
use perigee_model::{Blueprint, TowerBlueprint, TowerInventory};
use perigee_ops::TowerCapacity;

/// A vision tower before its upload.
#[derive(Debug, Clone, PartialEq)]
pub struct TowerSource {
    pub(super) blueprint: TowerBlueprint,
    pub(super) preprocessor: Preprocessor,
    /// Bytes of the weights.
    pub(super) bytes: u64,
    /// Bytes of the rows that are kept of finished pictures.
    cache_bytes: u64,
}

/// Answers to images where there is no tower.
pub(super) const NO_TOWER: &str = "its checkpoint has no vision tower";
const DROPPED: &str = "its checkpoint lacks the tensors of the vision tower that its config.json describes";
const NO_PREPROCESSOR: &str = "its checkpoint lacks preprocessor_config.json, which says how images are read";

impl TowerSource {
    /// Looks for the tower of a checkpoint; reads headers alone. The inner error is what the checkpoint lacks to see.
    ///
    /// Errors: a tower in part, or settings of it that are not served.
    pub fn open(
        config: &vision::Config,
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
    ) -> Result<Result<Self, &'static str>, BootError> {
        let files = checkpoint.file("config.json").unwrap_or_default();
        let Some(tower) = TowerBlueprint::parse(&files, blueprint)? else { return Ok(Err(NO_TOWER)) };
        let bytes = match tower.find(checkpoint)? {
            TowerInventory::Absent => return Ok(Err(NO_TOWER)),
            TowerInventory::Dropped => return Ok(Err(DROPPED)),
            TowerInventory::Whole(bytes) => bytes,
        };
        let Some(file) = checkpoint.file("preprocessor_config.json") else { return Ok(Err(NO_PREPROCESSOR)) };
        let preprocessor =
            Preprocessor::parse(&file, &blueprint.wrapper_type)?.with_patch_limit(config.patch_limit);
        Ok(Ok(Self { blueprint: tower, preprocessor, bytes, cache_bytes: config.cache_bytes }))
    }

    /// The largest picture goes through the tower whole, and its rows are kept until they are read.
    pub(super) fn capacity(&self) -> TowerCapacity {
        let max_patches = self.preprocessor.max_patches();
        let row = 4 * self.blueprint.shape.out_size as u64;
        let kept = (self.cache_bytes / row).min(u64::from(u32::MAX)) as usize;
        // Rows are given out in runs of 16.
        let one = (max_patches / 4).next_multiple_of(16);
        TowerCapacity { max_patches, num_rows: kept.max(one) }
    }
}
