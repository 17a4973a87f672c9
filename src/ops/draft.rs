//! Operations of a draft network: one layer of its own, which reads hidden states of the target and
//! is run ahead of it.
//!
//! EAGLE-3, Li et al., arXiv 2503.01840. Slot P of a draft pairs the target's hidden states of
//! position P with the token of position P + 1; its logits are a guess of the token at P + 2. A
//! further slot is fed the draft's own hidden state and the token just guessed.
//!
//! Notation as in `backend.rs`, with D the draft's width, D' the target's, F rows of the draft's head.

use super::{
    BlockId, CacheShape, Capacity, ExpertMatrices, MemoryNeeds, MlaShape, OpError, QueryMatrices, RopeTable,
    Row, StepPlan, Storage,
};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;

/// Number of the target's hidden states that a draft reads.
pub const NUM_STATES: usize = 3;

/// Sizes and switches that the operations of a draft depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftShape {
    /// D, width of the draft's residual stream.
    pub hidden_size: usize,
    /// D', width of the target's.
    pub target_hidden_size: usize,
    /// Ids of the embedding table and of the target's logits.
    pub vocab_size: usize,
    /// F, rows of the draft's head.
    pub draft_vocab_size: usize,
    /// Inner units of the FFN.
    pub intermediate_size: usize,
    /// Sizes of the attention.
    pub attention: DraftAttentionShape,
    /// Epsilon of every norm.
    pub rms_norm_eps: f32,
    /// The residual stream begins with the normalised hidden state.
    pub norm_before_residual: bool,
    /// The next slot is fed the hidden state behind the last norm.
    pub norm_output: bool,
    /// Factor on the logits.
    pub logit_scale: f32,
}

/// Sizes of a draft's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DraftAttentionShape {
    /// Multi-head latent attention.
    Mla {
        /// Width of the query's latent; `None`: queries are projected directly.
        q_lora_rank: Option<usize>,
        /// Sizes and softmax scale.
        mla: MlaShape,
    },
    /// Grouped-query attention.
    Gqa(GqaShape),
}

/// Sizes of grouped-query attention (Ainslie et al., arXiv 2305.13245). Scores are scaled by
/// `head_dim^-0.5`; the halves of a whole head are rotated against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GqaShape {
    /// Query heads, a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Values of a head, even.
    pub head_dim: usize,
}

impl GqaShape {
    /// Values cached per token: keys, then values.
    pub fn cached_dim(&self) -> usize {
        2 * self.num_kv_heads * self.head_dim
    }
}

/// A draft's weights on the host.
#[derive(Debug, Clone)]
pub struct DraftMatrices<'a> {
    /// `[vocab, D]`; `None`: the target's table is used.
    pub embed_tokens: Option<StoredMatrix<'a>>,
    /// `[3 D']`, gain of the norm over the three states side by side.
    pub states_norm: Option<TensorView<'a>>,
    /// `[D']` each, gains of the norms of each state; after `states_norm`.
    pub state_norms: Option<[TensorView<'a>; NUM_STATES]>,
    /// `[D, 3 D']`.
    pub fc: StoredMatrix<'a>,
    /// `[D]`, gain of the embedding's norm.
    pub input_layernorm: TensorView<'a>,
    /// `[D]`, gain of the hidden state's norm.
    pub hidden_norm: TensorView<'a>,
    /// Query, key and value projections of `[2 D]` inputs: the embedding, then the hidden state.
    pub attention: DraftAttentionMatrices<'a>,
    /// `[D, H * V]`.
    pub o_proj: StoredMatrix<'a>,
    /// `[D]`.
    pub post_attention_layernorm: TensorView<'a>,
    /// SwiGLU FFN.
    pub mlp: ExpertMatrices<'a>,
    /// `[D]`.
    pub norm: TensorView<'a>,
    /// `[F, D]`; `None`: the embedding table is the head.
    pub lm_head: Option<StoredMatrix<'a>>,
    /// `[F]`, the target's id of each row of the head; `None`: the row's own number.
    pub target_ids: Option<Vec<u32>>,
}

/// Projections of a draft's attention.
#[derive(Debug, Clone)]
pub enum DraftAttentionMatrices<'a> {
    /// As in the target's layers.
    Mla {
        /// Matrices of the query.
        query: Box<QueryMatrices<'a>>,
        /// `[C + R, 2 D]`.
        kv_a: StoredMatrix<'a>,
        /// `[C]`.
        kv_a_norm: TensorView<'a>,
        /// `[H * (N + V), C]`.
        kv_up: StoredMatrix<'a>,
    },
    /// Direct projections.
    Gqa {
        /// `[H * head_dim, 2 D]`.
        q: StoredMatrix<'a>,
        /// `[num_kv_heads * head_dim, 2 D]`.
        k: StoredMatrix<'a>,
        /// As `k`.
        v: StoredMatrix<'a>,
    },
}

/// Hidden states that the rows of a draft's step begin with; one row of the source for each.
#[derive(Debug, Clone, Copy)]
pub enum DraftInput<'a> {
    /// Rows of the target's last step, fused.
    Captured(&'a [Row]),
    /// Rows of the draft's own last step, ascending.
    Own(&'a [Row]),
}

impl<'a> DraftInput<'a> {
    /// Rows of the source.
    pub fn rows(&self) -> &'a [Row] {
        match self {
            Self::Captured(rows) | Self::Own(rows) => rows,
        }
    }
}

/// Runs a draft beside the network.
pub trait DraftOps: Storage {
    /// Weights, activations and cache of a draft. Its blocks have the numbers of the target's cache;
    /// more may follow them.
    type Draft: Send + 'static;

    /// Bytes of a draft's workspace and of its cache, before any allocation.
    fn draft_memory(&self, shape: &DraftShape, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let _ = (shape, capacity, cache);
        Default::default()
    }

    /// Uploads a draft. Rotations are computed from `rope`.
    fn load_draft(
        &mut self,
        host: &DraftMatrices<'_>,
        shape: &DraftShape,
        rope: &RopeTable,
        capacity: &Capacity,
        cache: &CacheShape,
    ) -> Result<Self::Draft, OpError> {
        let _ = (host, shape, rope, capacity, cache);
        Err(self.absent("load_draft"))
    }

    /// Keeps the residual stream of the step under way as the draft's state `state`, all rows.
    fn capture(
        &mut self,
        state: usize,
        workspace: &Self::Workspace,
        draft: &mut Self::Draft,
    ) -> Result<(), OpError> {
        let _ = (state, workspace, draft);
        Err(self.absent("capture"))
    }

    /// Runs the draft's layer over the rows of `plan`; `workspace` is the target's, which knows the last sampled token
    /// of each slot, and `table` its embedding table. Per row, with `e` the token's embedding and `h` the input
    /// (captured: `fc(states)`, normalised as the draft's weights say):
    ///
    /// `x = concat(norm(e), norm(h))`; `r = h + o(attention(x))`, or `norm(h) + ...` where
    /// `norm_before_residual`; `r += mlp(norm(r))`. Keys are stored at the plan's slots.
    fn draft_step(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &Self::Matrix,
        workspace: &Self::Workspace,
        draft: &mut Self::Draft,
    ) -> Result<(), OpError> {
        let _ = (plan, input, table, workspace, draft);
        Err(self.absent("draft_step"))
    }

    /// Logits of the rows `plan.logits_rows` of the draft's last step: sets the logits of
    /// `workspace` to `[S, vocab]`, minus infinity for ids without a row in the draft's head, so
    /// that [`super::Backend::sample`] draws from them.
    fn draft_logits(
        &mut self,
        table: &Self::Matrix,
        draft: &mut Self::Draft,
        workspace: &mut Self::Workspace,
    ) -> Result<(), OpError> {
        let _ = (table, draft, workspace);
        Err(self.absent("draft_logits"))
    }

    /// [`super::Backend::block_bytes`] of the draft's cache.
    fn draft_block_bytes(&self, draft: &Self::Draft) -> usize {
        let _ = draft;
        Default::default()
    }

    /// [`super::Backend::start_block_read`] of the draft's cache.
    fn start_draft_read(&mut self, block: BlockId, draft: &Self::Draft) -> Result<Self::BlockRead, OpError> {
        let _ = (block, draft);
        Err(self.absent("start_draft_read"))
    }

    /// [`super::Backend::write_block`] of the draft's cache.
    fn write_draft_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        draft: &mut Self::Draft,
    ) -> Result<(), OpError> {
        let _ = (block, content, draft);
        Err(self.absent("write_draft_block"))
    }

    /// The draft's activations on the host; for tests.
    fn read_draft(&mut self, draft: &Self::Draft) -> DraftActivations {
        let _ = draft;
        Default::default()
    }
}

/// Activations of a draft on the host, row-major.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftActivations {
    /// States of the target's last step, `[T, D']` each.
    pub states: [Vec<f32>; NUM_STATES],
    /// Hidden states that the last step began with, `[T, D]`.
    pub input: Vec<f32>,
    /// What each of its rows would feed to a further slot, `[T, D]`.
    pub output: Vec<f32>,
}
