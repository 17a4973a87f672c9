//! Operations of a multi-token prediction layer: a decoder layer of the target, fed a token and the hidden state in front of it.
//!
//! DeepSeek-V3 Technical Report, arXiv 2412.19437, section 2.2. Rows are paired as in `draft.rs`. The layer's attention and FFN
//! are the operations of [`Backend`], on a workspace and a cache of their own.

use super::{Backend, Capacity, DraftInput, ModelShape, OpError, StepPlan};
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

/// A backend that can run a multi-token prediction layer beside its network.
pub trait MtpOps: Backend {
    /// Uploaded [`FusionMatrices`] and the product's input.
    type Fusion: Send;

    /// Bytes of a fusion's input, before any allocation.
    fn fusion_bytes(&self, shape: &ModelShape, capacity: &Capacity) -> u64;

    /// Uploads the weights in front of the layer.
    fn load_fusion(
        &mut self,
        host: &FusionMatrices<'_>,
        shape: &ModelShape,
        capacity: &Capacity,
    ) -> Result<Self::Fusion, OpError>;

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
    ) -> Result<(), OpError>;

    /// Sets the logits of `target` to those of `own`'s `normed` in its plan's logits rows, `[S, vocab]`.
    fn logits_of(
        &mut self,
        head: &Self::Matrix,
        own: &Self::Workspace,
        target: &mut Self::Workspace,
    ) -> Result<(), OpError>;
}
