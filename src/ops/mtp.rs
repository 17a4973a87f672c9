//! Operations of a multi-token prediction layer: a decoder layer of the target, fed a token and the hidden
//! state in front of it.
//!
//! DeepSeek-V3 Technical Report, arXiv 2412.19437, section 2.2. Rows are paired as in `draft.rs`. The layer's
//! attention and FFN are the operations of [`super::Backend`], on a workspace and a cache of their own.

use super::{Capacity, DraftInput, ModelShape, OpError, StepPlan, Storage};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;

/// Weights in front of the layer, on the host.
#[derive(Debug, Clone)]
pub struct FusionMatrices<'a> {
    /// `[D]`, gain of the embedding's norm.
    pub enorm: TensorView<'a>,
    /// `[D]`, gain of the hidden state's norm.
    pub hnorm: TensorView<'a>,
    /// `[D, 2 D]`: the embedding's columns, then the hidden state's.
    pub eh_proj: StoredMatrix<'a>,
}

/// Runs a multi-token prediction layer beside the network.
pub trait MtpOps: Storage {
    /// Uploaded [`FusionMatrices`] and the product's input.
    type Fusion: Send + 'static;

    /// Bytes of a fusion's input, before any allocation.
    fn fusion_bytes(&self, shape: &ModelShape, capacity: &Capacity) -> u64 {
        let _ = (shape, capacity);
        Default::default()
    }

    /// Uploads the weights in front of the layer.
    fn load_fusion(
        &mut self,
        host: &FusionMatrices<'_>,
        shape: &ModelShape,
        capacity: &Capacity,
    ) -> Result<Self::Fusion, OpError> {
        let _ = (host, shape, capacity);
        Err(self.absent("load_fusion"))
    }

    /// Begins a step of the layer on its workspace `own`. Per row, with `e` the token's embedding in `table` and `h` the row of
    /// `normed` that `input` names (captured: of `target`; own: of `own`'s last step):
    /// `hidden = eh_proj(concat(enorm(e), hnorm(h)))`. `target` knows the last sampled token of each slot.
    fn fuse(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &Self::Matrix,
        target: &Self::Workspace,
        fusion: &mut Self::Fusion,
        own: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let _ = (plan, input, table, target, fusion, own);
        Err(self.absent("fuse"))
    }

    /// Sets the logits of `target` to those of `own`'s `normed` in its plan's logits rows, `[S, vocab]`.
    fn logits_of(
        &mut self,
        head: &Self::Matrix,
        own: &Self::Workspace,
        target: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let _ = (head, own, target);
        Err(self.absent("logits_of"))
    }
}
