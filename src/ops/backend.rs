//! The interface between the model and the devices: one method per model-shaped operation; the
//! whole step stays on the device.
//!
//! A step is one plan that is uploaded once, layers of four operations each, logits, and sampling;
//! only tokens come back. A backend that enqueues returns from each call before the work is done,
//! and works in the order of the calls; a call other than [`Backend::wait`] then costs the host no
//! more than a launch.
//!
//! Notation: T rows (tokens) of the step, S rows with logits, D hidden size, H heads, N `qk_nope_head_dim`, R
//! `qk_rope_head_dim`, V `v_head_dim`, C `kv_lora_rank`, E routed experts, K experts per token.
//!
//! The residual stream is f32. A backend may round a matrix product's input to bf16 inside the operation (that
//! is its activation mode). Every operation computes row `t` of its output from row `t` of its input alone
//! (attention: and from the cache), with a reduction order that does not depend on T or on the other rows.
//! That makes results independent of batching and chunking. Where a backend is several ranks, sums over ranks
//! are inside the operations and have a fixed order.

use std::ops::Range;

use super::{
    AttentionInMatrices, BlockId, CacheShape, Capacity, DraftOps, ExpertMatrices, ExpertSplit, MemoryNeeds,
    MlaShape, ModelShape, MtpOps, OpError, Outcomes, Preferences, RopeTable, RouterShape, SampleRows,
    SeqSlot, SlotSpec, Split, StepPlan, Ticket, TokenId, TowerOps,
};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;

/// State of a step's layers behind [`Backend::begin_layers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Layers {
    /// The model calls their operations, then [`Backend::end_layers`].
    Run,
    /// A recording runs in their place: the model calls neither them nor [`Backend::end_layers`].
    Replayed,
}

/// Weights of [`Backend::announce`].
pub enum Upcoming<'a, B: Storage + ?Sized> {
    /// Read behind the [`Backend::attend`] that comes next.
    BehindAttention(&'a B::Matrix),
    /// Read behind the FFN that comes next.
    BehindLayer(&'a B::AttentionIn),
}

/// What a backend holds, each in a layout of its own: weights, activations, caches.
pub trait Storage: Send + 'static {
    /// A linear layer's weight, `[out, in]`, in the backend's own layout.
    type Matrix: Send + Sync + 'static;
    /// An f32 vector: norm gains.
    type Vector: Send + Sync + 'static;
    /// Weights that compute queries and latents from the residual stream, in the backend's own
    /// layout.
    type AttentionIn: Send + Sync + 'static;
    /// `kv_b_proj` `[H * (N + V), C]`, laid out for both attention forms.
    type KvUp: Send + Sync + 'static;
    /// Router weight `[E, D]` and selection bias `[E]`, f32.
    type Router: Send + Sync + 'static;
    /// SwiGLU matrices of one or many experts of one layer.
    type Experts: Send + Sync + 'static;
    /// The plan, activations and sampling state, at fixed addresses: the residual stream `[T, D]`,
    /// its norm `[T, D]`, queries `[T, H * (N + R)]`, attention's result `[T, H * V]`, logits
    /// `[S, vocab]`, a state per slot.
    type Workspace: Send + 'static;
    /// The paged latent cache of all layers.
    type Cache: Send + 'static;
    /// Content of a block on its way to the host.
    type BlockRead: Send + 'static;

    /// Name for logs and errors.
    fn name(&self) -> &'static str;

    /// The refusal of an operation that this backend does not have.
    fn absent(&self, op: &'static str) -> OpError {
        OpError::Absent { op, backend: self.name() }
    }
}

/// Type of the draft, fusion or tower of a backend that runs none; it has no value.
#[derive(Debug)]
pub enum Absent {}

/// A device that can run the model. One value owns its threads and queues. Operations of networks beside the
/// model's own are in the supertraits, whose defaults refuse; a backend that runs the model alone names
/// [`super::Absent`] as their types.
pub trait Backend: DraftOps + MtpOps + TowerOps {
    /// Whether calls return before the work is done. The engine then plans step n + 1 before the
    /// wait for step n; with any other backend it waits first.
    const ENQUEUES: bool = false;

    // -- boot: nothing allocates after warm-up --

    /// Bytes of a workspace for steps of this capacity and of a cache of this shape, before any
    /// allocation.
    fn memory_needs(&self, shape: &ModelShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds;
    /// Defaults for values that the operator leaves open.
    fn preferences(&self) -> Preferences;
    /// Row counts of the steps that [`Backend::begin_layers`] records, up to the largest step of `capacity` with one row of
    /// each sequence. The warm-up runs each of them.
    fn recorded_rows(&self, _capacity: &Capacity) -> Vec<usize> {
        Vec::new()
    }
    /// Bytes that a device could still give out; `None`: memory is the host's.
    fn free_memory(&mut self) -> Result<Option<u64>, OpError> {
        Ok(None)
    }

    /// Uploads a linear weight; each rank keeps its part under `split`.
    fn load_matrix(&mut self, host: &StoredMatrix<'_>, split: Split) -> Result<Self::Matrix, OpError>;
    /// Uploads the table of [`Backend::embed`], which may be the weight of [`Backend::logits`] too.
    fn load_table(&mut self, host: &StoredMatrix<'_>, split: Split) -> Result<Self::Matrix, OpError> {
        self.load_matrix(host, split)
    }
    /// Uploads a vector as f32.
    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Self::Vector, OpError>;
    /// Uploads the weights of [`Backend::attention_in`].
    fn load_attention_in(
        &mut self,
        host: &AttentionInMatrices<'_>,
        shape: &MlaShape,
    ) -> Result<Self::AttentionIn, OpError>;
    /// Uploads `kv_b_proj`: per head N rows of W_UK, then V rows of W_UV.
    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<Self::KvUp, OpError>;
    /// Uploads the router's weight `[E, D]` and `e_score_correction_bias` `[E]`.
    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Self::Router, OpError>;
    /// Uploads SwiGLU matrices; all experts have the same sizes. A dense or shared FFN is a list of
    /// one. Each rank keeps its part under `split`.
    fn load_experts(
        &mut self,
        experts: &[ExpertMatrices<'_>],
        split: ExpertSplit,
    ) -> Result<Self::Experts, OpError>;
    /// Workspace for steps of this capacity. Rotations are computed from `rope`.
    fn allocate_workspace(
        &mut self,
        shape: &ModelShape,
        capacity: &Capacity,
        rope: &RopeTable,
    ) -> Result<Self::Workspace, OpError>;
    /// The latent cache, zeroed.
    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError>;
    /// Sets the scales of an FP8 cache without row scales for rows stored from now on:
    /// `2^exponents[layer]` for every row of a layer, 1 until the first call. Has no effect on
    /// caches of other types.
    fn set_cache_scales(&mut self, cache: &mut Self::Cache, exponents: &[i32]) -> Result<(), OpError>;

    // -- blocks that leave the cache and come back --

    /// Bytes of a block's content: the rows of its positions in all layers, of all ranks, as they are stored.
    fn block_bytes(&self, cache: &Self::Cache) -> usize;
    /// Begins to read the content of a block, as it is after the calls so far, whatever later ones write.
    fn start_block_read(&mut self, block: BlockId, cache: &Self::Cache) -> Result<Self::BlockRead, OpError>;
    /// Waits for the content of a block, not for later work, and appends its [`Backend::block_bytes`]. Reads are finished in their
    /// order, before the outcomes of a later [`Backend::sample`] are waited for.
    fn finish_block_read(&mut self, read: Self::BlockRead, out: &mut Vec<u8>) -> Result<(), OpError>;
    /// Sets the content of a block to bytes read from a cache of the same shape and type.
    fn write_block(&mut self, block: BlockId, content: &[u8], cache: &mut Self::Cache)
    -> Result<(), OpError>;

    // -- the step, in the order of the model --

    /// Begins a step: the backend copies the plan.
    fn begin(&mut self, plan: &StepPlan, workspace: &mut Self::Workspace) -> Result<(), OpError>;

    /// Begins the layers: the operations between [`Backend::begin`] and [`Backend::logits`], which are the same at each step of the
    /// model. A backend may record them at the first step of a shape, and replay the recording at later ones.
    fn begin_layers(&mut self, _workspace: &mut Self::Workspace) -> Result<Layers, OpError> {
        Ok(Layers::Run)
    }
    /// Ends layers that were run; a recording is closed, kept, and runs now. With `complete` false an operation has failed, and the
    /// recording is dropped.
    fn end_layers(&mut self, _workspace: &mut Self::Workspace, _complete: bool) -> Result<(), OpError> {
        Ok(())
    }

    /// `hidden[t] = table[token[t]]`, `table` `[vocab, D]`.
    fn embed(&mut self, table: &Self::Matrix, workspace: &mut Self::Workspace) -> Result<(), OpError>;

    /// `normed[t] = gain * hidden[t] / sqrt(mean(hidden[t]^2) + eps)`; statistics in f32.
    fn norm(&mut self, gain: &Self::Vector, workspace: &mut Self::Workspace) -> Result<(), OpError>;

    /// Queries and latents of `normed`: projections, norms of the latents, rotation of pairs
    /// `(2i, 2i + 1)` of the rope parts. Latent and rope key are stored in the cache of `layer` at
    /// the plan's slots.
    fn attention_in(
        &mut self,
        weights: &Self::AttentionIn,
        layer: usize,
        cache: &mut Self::Cache,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError>;

    /// Announces weights that an operation behind the next one reads. A device may fetch them while its memory
    /// is idle; no result depends on it.
    fn announce(&mut self, upcoming: Upcoming<'_, Self>, workspace: &mut Self::Workspace) {
        let _ = (upcoming, workspace);
    }

    /// Causal attention of the queries, each row in the form of the plan. *Expanded*: keys and
    /// values are computed from the cached latents through `kv_up`. *Absorbed*: queries are
    /// multiplied by W_UK into the latent space, the result by W_UV.
    fn attend(
        &mut self,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &mut Self::Cache,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError>;

    /// `hidden += sum_ranks(attended W^T)`, then `normed = norm(hidden)` with `gain`. A backend whose FFN can begin with that norm may
    /// leave it out, and returns `gain`: the norm is then pending until an FFN, or [`Backend::norm`], has taken it.
    fn project_add_norm<'g>(
        &mut self,
        weight: &Self::Matrix,
        gain: &'g Self::Vector,
        workspace: &mut Self::Workspace,
    ) -> Result<Option<&'g Self::Vector>, OpError>;

    /// Picks experts for `normed`: scores = sigmoid(x W^T) in f32; choice = scores + bias; group limit (sum of each group's two best
    /// choices, keep `topk_group` groups); the `top_k` best choices, lower index first on ties; weights = scores of the chosen,
    /// normalised and scaled. Then `hidden += sum_ranks(sum_k weight[t,k] * expert[t,k](x[t]) + shared(x[t]))`, summed in order of
    /// k, and with `gain` `normed = norm(hidden)`. `pending` is the gain of a norm that comes first.
    fn moe(
        &mut self,
        pending: Option<&Self::Vector>,
        router: &Self::Router,
        routed: &Self::Experts,
        shared: Option<&Self::Experts>,
        gain: Option<&Self::Vector>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError>;

    /// `hidden += sum_ranks(down(silu(gate x) * up x))`, x = `normed`, `weights` holding one expert; then, and with `pending` before,
    /// as in [`Backend::moe`].
    fn dense(
        &mut self,
        pending: Option<&Self::Vector>,
        weights: &Self::Experts,
        gain: Option<&Self::Vector>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError>;

    /// Logits of `normed` in the rows `plan.logits_rows[rows]`: sets the logits to `[rows.len(), vocab]`.
    fn logits(
        &mut self,
        head: &Self::Matrix,
        rows: Range<usize>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError>;

    // -- sampling: state by slot, on the device --

    /// Resets the state of a slot for the sequence that holds it from now on.
    fn open_slot(
        &mut self,
        slot: SeqSlot,
        spec: &SlotSpec<'_>,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError>;

    /// Removes the last `removed` tokens from a slot's state; `last` is the token before them.
    fn rewind_slot(
        &mut self,
        slot: SeqSlot,
        removed: &[TokenId],
        last: TokenId,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError>;

    /// Samples from rows of the logits. The tokens are added to the slots' states, and
    /// [`super::TokenSource::LastSampled`] in later plans refers to them.
    fn sample(&mut self, rows: &SampleRows<'_>, workspace: &mut Self::Workspace) -> Result<Ticket, OpError>;

    /// Waits for a [`Backend::sample`] call, not for later work, and appends its outcomes. Calls
    /// are waited for in their order, each once.
    fn wait(
        &mut self,
        ticket: Ticket,
        workspace: &mut Self::Workspace,
        out: &mut Outcomes,
    ) -> Result<(), OpError>;
}

/// Activations of a workspace that the host can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The residual stream, `[T, D]`.
    Hidden,
    /// Its norm, `[T, D]`.
    Normed,
    /// Logits, `[S, vocab]`.
    Logits,
}

/// Result of the router: experts `[T, K]`, their weights `[T, K]`, and the L2 norms of their
/// outputs before the weighting `[T, K]`.
pub type Routed = (Vec<u32>, Vec<f32>, Vec<f32>);

/// Access to a step for calibration and tests; not called while serving.
pub trait Calibrate: Backend {
    /// An activation on the host, row-major.
    fn read<'a>(&'a mut self, what: Activation, workspace: &'a Self::Workspace)
    -> Result<&'a [f32], OpError>;

    /// Sets the residual stream to `rows`, `[T, D]`, with the plan's T.
    fn write_hidden(&mut self, rows: &[f32], workspace: &mut Self::Workspace) -> Result<(), OpError>;

    /// Chooses experts for `normed` as [`Backend::moe`] does, without `routed_scaling_factor`:
    /// experts and weights on the host, `[T, K]` each, and the L2 norm of the output of each chosen
    /// expert before the weighting.
    fn route(
        &mut self,
        router: &Self::Router,
        routed: &Self::Experts,
        workspace: &mut Self::Workspace,
    ) -> Result<Routed, OpError>;

    /// Experts chosen by the last [`Backend::moe`], `[T, K]`.
    fn chosen(&mut self, workspace: &Self::Workspace) -> Result<Vec<u32>, OpError>;

    /// Largest magnitude among `silu(gate x) * up x` (the input of `down`) of expert `expert` of
    /// `weights` over the rows `rows` of `normed`; 0 without rows, NaN if a value is NaN.
    fn inner_peak(
        &mut self,
        rows: &[u32],
        weights: &Self::Experts,
        expert: usize,
        workspace: &Self::Workspace,
    ) -> Result<f32, OpError>;

    /// Largest magnitude in the cache of `layer` at the plan's slots, latents and rope keys; NaN if
    /// a value is NaN.
    fn cached_peak(
        &mut self,
        layer: usize,
        cache: &Self::Cache,
        workspace: &Self::Workspace,
    ) -> Result<f32, OpError>;
}
