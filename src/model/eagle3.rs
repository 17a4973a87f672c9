//! A loaded Eagle3 draft, run beside its target on the same backend.

use super::checkpoint::Checkpoint;
use super::draft::DraftBlueprint;
use super::draft_tensors::DraftTensors;
use super::weights::LoadError;
use perigee_ops::{
    BlockId, CacheShape, Capacity, DraftActivations, DraftInput, DraftOps, NUM_STATES, OpError, StepPlan,
};

/// An uploaded draft with workspace and cache.
pub struct Eagle3Drafter<B: DraftOps> {
    draft: B::Draft,
    reads: [usize; NUM_STATES],
}

impl<B: DraftOps> Eagle3Drafter<B> {
    /// Checks and uploads a draft for a target of `num_layers` layers, with workspace and cache.
    pub fn load(
        checkpoint: &Checkpoint,
        blueprint: &DraftBlueprint,
        num_layers: usize,
        backend: &mut B,
        capacity: &Capacity,
        cache: &CacheShape,
    ) -> Result<Self, LoadError> {
        let matrices = DraftTensors::take(checkpoint, blueprint).bind(checkpoint, blueprint)?;
        let draft = backend.load_draft(&matrices, &blueprint.shape(), &blueprint.rope(), capacity, cache);
        let draft = draft.map_err(|source| {
            let name = format!("the draft of {}", checkpoint.source());
            LoadError::Upload { name, source }
        })?;
        checkpoint.release_under("");
        Ok(Self { draft, reads: blueprint.reads(num_layers) })
    }

    /// Keeps the residual stream at the input of layer `boundary` if the draft reads it; the number of
    /// layers is the output of the last one.
    pub(super) fn capture(
        &mut self,
        boundary: usize,
        backend: &mut B,
        workspace: &B::Workspace,
    ) -> Result<(), OpError> {
        for state in (0..NUM_STATES).filter(|state| self.reads[*state] == boundary) {
            backend.capture(state, workspace, &mut self.draft)?;
        }
        Ok(())
    }

    /// See [`DraftOps::draft_step`].
    pub(super) fn step(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &B::Matrix,
        backend: &mut B,
        workspace: &B::Workspace,
    ) -> Result<(), OpError> {
        backend.draft_step(plan, input, table, workspace, &mut self.draft)
    }

    /// See [`DraftOps::draft_logits`]; `table` is the target's.
    pub(super) fn logits(
        &mut self,
        table: &B::Matrix,
        backend: &mut B,
        workspace: &mut B::Workspace,
    ) -> Result<(), OpError> {
        backend.draft_logits(table, &mut self.draft, workspace)
    }

    /// See [`DraftOps::draft_block_bytes`].
    pub(super) fn block_bytes(&self, backend: &B) -> usize {
        backend.draft_block_bytes(&self.draft)
    }

    /// See [`DraftOps::start_draft_read`].
    pub(super) fn start_block_read(&self, block: BlockId, backend: &mut B) -> Result<B::BlockRead, OpError> {
        backend.start_draft_read(block, &self.draft)
    }

    /// See [`DraftOps::write_draft_block`].
    pub(super) fn write_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        backend: &mut B,
    ) -> Result<(), OpError> {
        backend.write_draft_block(block, content, &mut self.draft)
    }

    /// See [`DraftOps::read_draft`].
    pub(super) fn read(&self, backend: &mut B) -> DraftActivations {
        backend.read_draft(&self.draft)
    }
}
