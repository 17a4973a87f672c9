//! The seam: one method per model-shaped operation.
//!
//! Notation: T rows (tokens) of the batch, D hidden size, H heads, N `qk_nope_head_dim`, R `qk_rope_head_dim`,
//! V `v_head_dim`, C `kv_lora_rank`, E routed experts, K experts per token.
//!
//! Activations are f32 at the seam, row-major. A backend may round a matrix product's input to bf16 inside the
//! operation (that is its activation mode); the residual stream stays f32. Every operation computes row `t` of its output
//! from row `t` of its input alone (attention: and from the cache), with a reduction order that does not depend
//! on T or on the other rows. That makes results independent of batching and chunking.

use super::Segment;
use crate::quant::{CachedRowFormat, StoredMatrix};
use crate::tensor::TensorView;

/// What an operation refuses.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// Two shapes that must agree do not.
    #[error("{op}: expected shape {expected:?}, got {got:?}")]
    ShapeMismatch {
        /// Operation.
        op: &'static str,
        /// What it needs.
        expected: Vec<usize>,
        /// What it was given.
        got: Vec<usize>,
    },
    /// A stored weight of a dtype or format this backend cannot multiply.
    #[error("{op}: weights of format {dtype} are not supported by the {backend} backend")]
    UnsupportedDType {
        /// Operation.
        op: &'static str,
        /// Stored dtype.
        dtype: String,
        /// Backend name.
        backend: &'static str,
    },
    /// The device could not provide the memory.
    #[error("{what}: {bytes} bytes could not be allocated")]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
}

/// A weight matrix on the host, `[out, in]` row-major: `y = x W^T`. Several parts are stacked along `out`.
#[derive(Debug, Clone)]
pub struct HostMatrix<'a> {
    /// Parts `[out_i, in]`, stacked in this order.
    pub parts: Vec<StoredMatrix<'a>>,
}

impl<'a> HostMatrix<'a> {
    /// A matrix of one part.
    pub fn new(stored: impl Into<StoredMatrix<'a>>) -> Self {
        Self { parts: vec![stored.into()] }
    }

    /// Total rows (`out`).
    pub fn out_features(&self) -> usize {
        self.parts.iter().map(|p| p.shape()[0]).sum()
    }

    /// Columns (`in`).
    pub fn in_features(&self) -> usize {
        self.parts[0].shape()[1]
    }
}

/// The three matrices of a SwiGLU FFN: `down(silu(gate x) * up x)`. One per routed expert, or one for a dense or shared FFN.
#[derive(Debug, Clone)]
pub struct ExpertMatrices<'a> {
    /// `[I, D]`.
    pub gate_proj: StoredMatrix<'a>,
    /// `[I, D]`.
    pub up_proj: StoredMatrix<'a>,
    /// `[D, I]`.
    pub down_proj: StoredMatrix<'a>,
}

/// Sizes and scale of multi-head latent attention. DeepSeek-V2, arXiv 2405.04434, section 2.1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaShape {
    /// H.
    pub num_heads: usize,
    /// N.
    pub qk_nope_head_dim: usize,
    /// R.
    pub qk_rope_head_dim: usize,
    /// V.
    pub v_head_dim: usize,
    /// C.
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

/// How the router picks experts. DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterShape {
    /// E.
    pub num_experts: usize,
    /// K.
    pub top_k: usize,
    /// Expert groups (1: no group limit).
    pub n_group: usize,
    /// Groups that stay eligible.
    pub topk_group: usize,
    /// Whether the chosen scores are divided by their sum (plus 1e-20).
    pub norm_topk_prob: bool,
    /// Factor on the routing weights.
    pub routed_scaling_factor: f32,
}

/// Element type of the latent KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheDType {
    /// 4 bytes per value; used with f32 activations.
    F32,
    /// 2 bytes per value.
    Bf16,
    /// 1 byte per value, scales beside them; the rope key may keep 2.
    Fp8(CachedRowFormat),
}

impl CacheDType {
    /// Name in tables, metrics and labels.
    pub fn name(self) -> &'static str {
        match self {
            CacheDType::F32 => "f32",
            CacheDType::Bf16 => "bf16",
            CacheDType::Fp8(_) => "fp8",
        }
    }
}

/// Largest magnitude, NaN if one of the values is.
pub fn peak(values: impl IntoIterator<Item = f32>) -> f32 {
    // `f32::max` would drop a NaN.
    let larger = |peak: f32, x: f32| if peak.is_nan() || x <= peak { peak } else { x };
    values.into_iter().fold(0.0, |peak, x| larger(peak, x.abs()))
}

/// Physical shape of the paged latent cache: `[num_layers, num_blocks, block_size, C + R]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers.
    pub num_layers: usize,
    /// Blocks per layer.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// C + R.
    pub latent_dim: usize,
    /// R, the last values of a row.
    pub rope_dim: usize,
    /// Element type.
    pub dtype: CacheDType,
}

impl CacheShape {
    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.num_layers * self.num_blocks * self.block_size * self.row_bytes()
    }

    /// Bytes of one token in one layer.
    pub fn row_bytes(&self) -> usize {
        match self.dtype {
            CacheDType::F32 => 4 * self.latent_dim,
            CacheDType::Bf16 => 2 * self.latent_dim,
            CacheDType::Fp8(format) => format.bytes(self.latent_dim - self.rope_dim, self.rope_dim),
        }
    }
}

/// A device that can run the model. One value owns its scratch memory and threads; all methods take `&mut self`.
///
/// Buffers are `[rows, cols]` f32 matrices whose row count is set per step and never exceeds the capacity they were
/// allocated with. "adds to `out`" means `out += ...`; otherwise `out` is overwritten.
pub trait Backend: Send + 'static {
    /// A linear layer's weight, `[out, in]`, in the backend's own layout.
    type Matrix: Send;
    /// An f32 vector: norm gains.
    type Vector: Send;
    /// `kv_b_proj` `[H * (N + V), C]`, laid out for both attention forms.
    type KvUp: Send;
    /// Router weight `[E, D]` and selection bias `[E]`, f32.
    type Router: Send;
    /// SwiGLU matrices of one or many experts of one layer.
    type Experts: Send;
    /// Activations.
    type Buffer: Send;
    /// Chosen experts and weights of T tokens: `[T, K]` each.
    type Routing: Send;
    /// The paged latent cache of all layers.
    type Cache: Send;

    /// Name for logs and errors.
    fn name(&self) -> &'static str;

    // -- memory: called at boot only, nothing below allocates after warm-up --

    /// Uploads a linear weight.
    fn load_matrix(&mut self, host: &HostMatrix<'_>) -> Result<Self::Matrix, OpError>;
    /// Uploads a vector as f32.
    fn load_vector(&mut self, host: &TensorView<'_>) -> Result<Self::Vector, OpError>;
    /// Uploads `kv_b_proj`: per head N rows of W_UK, then V rows of W_UV.
    fn load_kv_up(&mut self, host: &StoredMatrix<'_>, shape: &MlaShape) -> Result<Self::KvUp, OpError>;
    /// Uploads the router's weight `[E, D]` and `e_score_correction_bias` `[E]`.
    fn load_router(
        &mut self,
        weight: &StoredMatrix<'_>,
        bias: &TensorView<'_>,
        shape: &RouterShape,
    ) -> Result<Self::Router, OpError>;
    /// Uploads SwiGLU matrices; all experts have the same sizes. A dense or shared FFN is a list of one.
    fn load_experts(&mut self, experts: &[ExpertMatrices<'_>]) -> Result<Self::Experts, OpError>;
    /// A buffer of `capacity` rows of `cols` values.
    fn allocate(&mut self, capacity: usize, cols: usize) -> Result<Self::Buffer, OpError>;
    /// A routing of `capacity` rows.
    fn allocate_routing(&mut self, capacity: usize, shape: &RouterShape) -> Result<Self::Routing, OpError>;
    /// The latent cache, zeroed.
    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError>;

    /// Sets the scales under which an FP8 cache without row scales stores what is written from now on: `2^exponents[layer]` for every row of a
    /// layer, 1 until then. Caches of other types are left alone.
    fn set_cache_scales(&mut self, cache: &mut Self::Cache, exponents: &[i32]) -> Result<(), OpError>;

    // -- the step, in the order of the model --

    /// `out[t] = table[token_ids[t]]`. `table` `[vocab, D]`. Sets `out` to T rows.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        token_ids: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out[t] = gain * x[t] / sqrt(mean(x[t]^2) + eps)`; statistics in f32.
    fn norm(
        &mut self,
        x: &Self::Buffer,
        gain: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = x W^T`: `x` `[T, in]`, `weight` `[out, in]`.
    fn project(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out += x W^T`.
    fn project_add(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Rotates the rope part of every head of `q` `[T, H * (N + R)]` in place: pairs `(2i, 2i+1)`.
    /// `rotations` `[T, R]` f32 holds cos then sin: `[t, i]` is the cosine and `[t, R/2 + i]` the sine of pair `i`
    /// (YaRN's multiplier included).
    fn rope(&mut self, shape: &MlaShape, rotations: &[f32], q: &mut Self::Buffer) -> Result<(), OpError>;

    /// From `kv_a` `[T, C + R]`: normalises the latent (first C, `gain`, `eps`), rotates the rope key (last R) and stores
    /// both in the cache at `slot_mapping[t]` (= block id x block size + offset) of `layer`.
    fn write_latent(
        &mut self,
        shape: &MlaShape,
        kv_a: &Self::Buffer,
        gain: &Self::Vector,
        eps: f32,
        rotations: &[f32],
        slot_mapping: &[u32],
        layer: usize,
        cache: &mut Self::Cache,
    ) -> Result<(), OpError>;

    /// Causal attention of the rows of `segments` (all of form `Expanded`): keys and values are expanded from the cached latents
    /// with `kv_up`. Writes those rows of `out` `[T, H * V]` and leaves the others alone. Sets `out` to `q`'s row count.
    fn attend_expanded(
        &mut self,
        shape: &MlaShape,
        q: &Self::Buffer,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &Self::Cache,
        segments: &[Segment],
        block_tables: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// The same for segments of form `Absorbed`: queries go through W_UK into the latent space, the result through W_UV.
    fn attend_absorbed(
        &mut self,
        shape: &MlaShape,
        q: &Self::Buffer,
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &Self::Cache,
        segments: &[Segment],
        block_tables: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Picks experts: scores = sigmoid(x W^T) in f32; choice = scores + bias; group limit (sum of each group's two best
    /// choices, keep `topk_group` groups); the `top_k` best choices, lower index first on ties; weights = scores of the chosen, normalised and scaled.
    fn route(
        &mut self,
        x: &Self::Buffer,
        router: &Self::Router,
        shape: &RouterShape,
        routing: &mut Self::Routing,
    ) -> Result<(), OpError>;

    /// `out[t] += sum_k weight[t,k] * expert[t,k](x[t])`, summed in order of k, plus `shared(x[t])` with weight 1 if given.
    fn experts(
        &mut self,
        x: &Self::Buffer,
        routing: &Self::Routing,
        routed: &Self::Experts,
        shared: Option<&Self::Experts>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// For calibration: `out[t, k] = || expert[t,k](x[t]) ||`, the L2 norm of the output of each chosen expert before it is weighted. Sets `out`
    /// (`[T, K]`) to T rows. Slots are in the order of [`Backend::read_routing`].
    fn expert_norms(
        &mut self,
        x: &Self::Buffer,
        routing: &Self::Routing,
        routed: &Self::Experts,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// For calibration: the largest magnitude among `silu(gate x) * up x` of expert `expert` of `weights` over the rows `rows` of `x`, which is
    /// what goes into its `down`; 0 without rows, NaN if one of the values is.
    fn inner_peak(
        &mut self,
        x: &Self::Buffer,
        rows: &[u32],
        weights: &Self::Experts,
        expert: usize,
    ) -> Result<f32, OpError>;

    /// For calibration: the largest magnitude of what the cache holds of `layer` at `slots`, latents and rope keys; NaN if one of the values is.
    fn cached_peak(&mut self, cache: &Self::Cache, layer: usize, slots: &[u32]) -> Result<f32, OpError>;

    /// `out += down(silu(gate x) * up x)`, `weights` holding one expert.
    fn swiglu_add(
        &mut self,
        x: &Self::Buffer,
        weights: &Self::Experts,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Final norm and head of the rows `rows` of `x`: sets `out` to `[rows.len(), vocab]`.
    fn logits(
        &mut self,
        x: &Self::Buffer,
        rows: &[u32],
        gain: &Self::Vector,
        eps: f32,
        head: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// The buffer's rows on the host, row-major.
    fn read<'a>(&'a mut self, buffer: &'a Self::Buffer) -> Result<&'a [f32], OpError>;

    /// The chosen experts and their weights on the host, `[T, K]` each, row-major; the lists are overwritten.
    fn read_routing(
        &mut self,
        routing: &Self::Routing,
        experts: &mut Vec<u32>,
        weights: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Sets the first `rows.len() / cols` rows from the host; for tests, and for rows the model does not compute itself.
    fn write(&mut self, rows: &[f32], buffer: &mut Self::Buffer) -> Result<(), OpError>;
}
