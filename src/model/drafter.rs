//! A loaded draft of either kind, run beside its target on the same backend.

use super::eagle3::Eagle3Drafter;
use super::mtp::MtpDrafter;
use perigee_ops::{Backend, BlockId, DraftActivations, DraftInput, OpError, StepPlan};

/// A draft of a model.
pub enum Drafter<B: Backend> {
    /// A network of its own, which reads states of the target.
    Eagle3(Eagle3Drafter<B>),
    /// A prediction layer of the target's checkpoint.
    Mtp(Box<MtpDrafter<B>>),
}

impl<B: Backend> Drafter<B> {
    /// Keeps the residual stream at the input of layer `boundary` if the draft reads it; the number of
    /// layers is the output of the last one.
    pub(super) fn capture(
        &mut self,
        boundary: usize,
        backend: &mut B,
        workspace: &B::Workspace,
    ) -> Result<(), OpError> {
        match self {
            Self::Eagle3(draft) => draft.capture(boundary, backend, workspace),
            Self::Mtp(_) => Ok(()),
        }
    }

    /// Runs the draft over the rows of `plan`; `table` is the target's.
    pub(super) fn step(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &B::Matrix,
        backend: &mut B,
        workspace: &B::Workspace,
    ) -> Result<(), OpError> {
        match self {
            Self::Eagle3(draft) => draft.step(plan, input, table, backend, workspace),
            Self::Mtp(layer) => layer.step(plan, input, table, backend, workspace),
        }
    }

    /// Logits of the plan's logits rows; `table` and `head` are the target's.
    pub(super) fn logits(
        &mut self,
        table: &B::Matrix,
        head: &B::Matrix,
        backend: &mut B,
        workspace: &mut B::Workspace,
    ) -> Result<(), OpError> {
        match self {
            Self::Eagle3(draft) => draft.logits(table, backend, workspace),
            Self::Mtp(layer) => layer.logits(head, backend, workspace),
        }
    }

    /// See [`Backend::block_bytes`].
    pub(super) fn block_bytes(&self, backend: &B) -> usize {
        match self {
            Self::Eagle3(draft) => draft.block_bytes(backend),
            Self::Mtp(layer) => layer.block_bytes(backend),
        }
    }

    /// See [`Backend::start_block_read`].
    pub(super) fn start_block_read(&self, block: BlockId, backend: &mut B) -> Result<B::BlockRead, OpError> {
        match self {
            Self::Eagle3(draft) => draft.start_block_read(block, backend),
            Self::Mtp(layer) => layer.start_block_read(block, backend),
        }
    }

    /// See [`Backend::write_block`].
    pub(super) fn write_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        backend: &mut B,
    ) -> Result<(), OpError> {
        match self {
            Self::Eagle3(draft) => draft.write_block(block, content, backend),
            Self::Mtp(layer) => layer.write_block(block, content, backend),
        }
    }

    /// See [`perigee_ops::DraftOps::read_draft`]; empty for a prediction layer.
    pub(super) fn read(&self, backend: &mut B) -> DraftActivations {
        match self {
            Self::Eagle3(draft) => draft.read(backend),
            Self::Mtp(_) => DraftActivations::default(),
        }
    }
}
