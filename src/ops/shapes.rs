//! Sizes of the model's operations, and weights on the host, as arguments of backends.

use perigee_numbers::quant::{ActivationForm, CachedRowFormat, StoredMatrix};
use perigee_numbers::tensor::TensorView;

/// The three matrices of a SwiGLU FFN: `down(silu(gate x) * up x)`. One per routed expert, or one for a dense or shared FFN.
#[derive(Debug, Clone)]
pub struct ExpertMatrices<'a> {
    /// `[I, D]`.
    pub gate_proj: StoredMatrix<'a>,
    /// `[I, D]`.
    pub up_proj: StoredMatrix<'a>,
    /// `[D, I]`.
    pub down_proj: StoredMatrix<'a>,
    /// What `x` is rounded to; `None`: as every input of a matrix product, see [`Activations`].
    pub input: Option<RowForms>,
    /// What `silu(gate x) * up x` is rounded to.
    pub inner: Option<RowForms>,
}

/// Forms of the rows in front of a matrix. Which one a row has depends on its place in its own request, as the form of its attention does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowForms {
    /// Of rows in expanded form, which are a prompt's.
    pub prompt: ActivationForm,
    /// Of all others.
    pub reply: ActivationForm,
}

impl RowForms {
    /// The form of a row.
    pub fn of(self, is_prompt: bool) -> ActivationForm {
        if is_prompt { self.prompt } else { self.reply }
    }
}

impl From<ActivationForm> for RowForms {
    fn from(form: ActivationForm) -> Self {
        Self { prompt: form, reply: form }
    }
}

/// Sizes and scale of multi-head latent attention. DeepSeek-V2, arXiv 2405.04434, section 2.1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaShape {
    /// H, attention heads.
    pub num_heads: usize,
    /// N, values of a query and key head without rotation.
    pub qk_nope_head_dim: usize,
    /// R, values of the rope part of a head.
    pub qk_rope_head_dim: usize,
    /// V, values of a value head.
    pub v_head_dim: usize,
    /// C, values of the latent.
    pub kv_lora_rank: usize,
    /// Softmax scale, YaRN's factor included.
    pub scale: f32,
}

impl MlaShape {
    /// Values cached per token and layer: the latent and the rope key.
    pub fn latent_dim(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }
}

/// Sizes of the router. DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterShape {
    /// E, routed experts.
    pub num_experts: usize,
    /// K, experts per token.
    pub top_k: usize,
    /// Expert groups (1: no group limit).
    pub n_group: usize,
    /// Groups that remain eligible.
    pub topk_group: usize,
    /// Whether the chosen scores are divided by their sum (plus 1e-20).
    pub norm_topk_prob: bool,
    /// Factor on the routing weights.
    pub routed_scaling_factor: f32,
}

/// The weights in front of attention: from the normalised residual stream to queries and latents.
#[derive(Debug, Clone)]
pub struct AttentionInMatrices<'a> {
    /// Matrices of the query.
    pub query: QueryMatrices<'a>,
    /// `[C + R, D]`.
    pub kv_a: StoredMatrix<'a>,
    /// `[C]`, gain of the latent's norm.
    pub kv_a_norm: TensorView<'a>,
}

/// The two forms of a query projection.
#[derive(Debug, Clone)]
pub enum QueryMatrices<'a> {
    /// `q_b(norm(q_a(x)))`, through a latent.
    Latent {
        /// `[q_lora_rank, D]`.
        a: StoredMatrix<'a>,
        /// `[q_lora_rank]`.
        norm: TensorView<'a>,
        /// `[H * (N + R), q_lora_rank]`.
        b: StoredMatrix<'a>,
    },
    /// `q_proj(x)`, `[H * (N + R), D]`.
    Direct(StoredMatrix<'a>),
}

/// Sizes of a network that its operations depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelShape {
    /// D, width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding table and of the head.
    pub vocab_size: usize,
    /// Width of the query's latent; `None`: queries are projected directly from the residual
    /// stream.
    pub q_lora_rank: Option<usize>,
    /// Attention sizes and softmax scale.
    pub mla: MlaShape,
    /// Router sizes.
    pub router: RouterShape,
    /// Inner units of the FFNs.
    pub ffn: FfnUnits,
    /// Epsilon of the norms over the residual stream.
    pub rms_norm_eps: f32,
    /// Epsilon of the two norms over latents.
    pub latent_norm_eps: f32,
}

/// Inner units of the FFNs of a network; of a rank, at least as many as it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FfnUnits {
    /// Of a routed expert.
    pub routed: usize,
    /// Of the shared experts together.
    pub shared: usize,
    /// Of a dense FFN.
    pub dense: usize,
}

impl FfnUnits {
    /// Most units of one row, which has `top_k` routed experts.
    pub fn of_row(&self, top_k: usize) -> usize {
        (top_k * self.routed + self.shared).max(self.dense)
    }
}

/// The largest step, the number of sequences that run at once, and the size of their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Upper bound on the rows of a step.
    pub max_tokens: usize,
    /// Upper bound on the rows with logits at once.
    pub max_logits_rows: usize,
    /// Number of sampling slots.
    pub max_num_seqs: usize,
    /// Tokens per block of the cache.
    pub block_size: usize,
    /// Type of the cache's rows.
    pub cache_dtype: CacheDtype,
}

/// Memory of a backend beside its weights, in bytes; of several ranks as many times what the rank needs that needs most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// Weights that every rank has whole, on all ranks but the first.
    pub copies_bytes: u64,
    /// Activations and scratch of the largest step.
    pub workspace_bytes: u64,
    /// The cache of the given shape.
    pub cache_bytes: u64,
}

impl MemoryNeeds {
    /// What so many ranks need that need as much each.
    pub fn times(self, ranks: usize) -> Self {
        let ranks = ranks as u64;
        Self {
            copies_bytes: ranks * self.copies_bytes,
            workspace_bytes: ranks * self.workspace_bytes,
            cache_bytes: ranks * self.cache_bytes,
        }
    }
}

/// Values at which a backend is fastest, used where the operator sets none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preferences {
    /// Prompt tokens of a step: enough that arithmetic bounds matrix products, few enough that the
    /// other sequences of the step continue to stream.
    pub prefill_tokens: usize,
    /// Rows with logits at once.
    pub max_logits_rows: usize,
}

/// Element type of the latent KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheDtype {
    /// 4 bytes per value; used with f32 activations.
    F32,
    /// 2 bytes per value.
    Bf16,
    /// 1 byte per value, with scales; the rope key may use 2 bytes per value.
    Fp8(CachedRowFormat),
}

impl CacheDtype {
    /// Name in tables, metrics and labels.
    pub fn name(self) -> &'static str {
        match self {
            CacheDtype::F32 => "f32",
            CacheDtype::Bf16 => "bf16",
            CacheDtype::Fp8(_) => "fp8",
        }
    }
}

/// Largest magnitude; NaN if a value is NaN.
pub fn peak(values: impl IntoIterator<Item = f32>) -> f32 {
    // `f32::max` would drop a NaN.
    let larger = |peak: f32, x: f32| if peak.is_nan() || x <= peak { peak } else { x };
    values.into_iter().fold(0.0, |peak, x| larger(peak, x.abs()))
}

/// Physical shape of the paged latent cache: `[num_layers, num_blocks, block_size, C + R]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Number of layers.
    pub num_layers: usize,
    /// Number of blocks per layer.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// C + R.
    pub latent_dim: usize,
    /// R, values of the rope key at the end of a row.
    pub rope_dim: usize,
    /// Element type.
    pub dtype: CacheDtype,
}

impl CacheShape {
    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.num_layers * self.num_blocks * self.block_size * self.row_bytes()
    }

    /// Bytes of one block in all layers.
    pub fn block_bytes(&self) -> usize {
        self.num_layers * self.block_size * self.row_bytes()
    }

    /// Bytes of one token in one layer.
    pub fn row_bytes(&self) -> usize {
        match self.dtype {
            CacheDtype::F32 => 4 * self.latent_dim,
            CacheDtype::Bf16 => 2 * self.latent_dim,
            CacheDtype::Fp8(format) => format.bytes(self.latent_dim - self.rope_dim, self.rope_dim),
        }
    }
}

/// What the input rows of matrix products are rounded to. Sums are f32 in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// bf16, nearest even: the checkpoint's own precision, and the fast one. On the CPU, where the weights are 4-bit codes and products
    /// of bytes are the faster ones, 15-bit integers with a scale per 32 inputs instead: off by at most 2^-15 of the largest of the 32,
    /// which is finer for all but the smallest values. On GPUs products run on tensor cores, and weights of 32 bits, of F16 and of the
    /// router stay with f32.
    #[default]
    Bf16,
    /// Not at all; for comparing with the reference. On GPUs without tensor cores.
    F32,
    /// int8 with a scale per 32 inputs where the weights are 4-bit codes, else as `Bf16`. A value is off by at most 1/254 of the largest
    /// of its 32, so a product by about half a percent. GPUs take it as `Bf16`.
    Int8,
}

impl Activations {
    /// Whether inputs are rounded at all.
    pub fn are_rounded(self) -> bool {
        self != Self::F32
    }
}
