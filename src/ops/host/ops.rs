//! The operations of a backend whose memory is the host's.
//!
//! Notation as in `ops/backend.rs`. Every operation computes row `t` of its output from row `t` of its input
//! alone (attention: and from the cache), with a reduction order that does not depend on T or on the other
//! rows.

use std::ops::Range;

use crate::{
    CacheShape, ExpertMatrices, LatentSpan, MlaShape, ModelShape, OpError, Preferences, RouterShape, Segment,
};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;

/// Forms of the Gaussian error linear unit (Hendrycks and Gimpel, arXiv 1606.08415).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    Exact,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    Tanh,
}

impl Gelu {
    /// The unit's value.
    pub fn of(self, x: f32) -> f32 {
        match self {
            Self::Exact => 0.5 * x * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2) as f32),
            Self::Tanh => {
                const ROOT: f32 = 0.797_884_6; // sqrt(2 / pi)
                0.5 * x * (1.0 + (ROOT * (x + 0.044715 * x * x * x)).tanh())
            }
        }
    }
}

/// The error function, off by less than 2e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f64) -> f64 {
    const TERMS: [f64; 5] = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592];
    let t = 1.0 / (1.0 + 0.3275911 * x.abs());
    let series = TERMS.iter().fold(0.0, |sum, term| (sum + term) * t);
    (1.0 - series * (-x * x).exp()).copysign(x)
}

/// Operations of a backend on the host: one method per step of the formulas, over memory that the
/// caller can read. `backend.rs` implements [`crate::Backend`] for every such set.
///
/// Buffers are `[rows, cols]` f32 matrices whose row count is set per step and never exceeds their
/// allocated capacity. "adds to `out`" means `out += ...`; otherwise `out` is overwritten.
pub trait HostOps: Send + 'static {
    /// A linear layer's weight, `[out, in]`, in the backend's own layout.
    type Matrix: Send + Sync;
    /// An f32 vector: norm gains.
    type Vector: Send + Sync;
    /// `kv_b_proj` `[H * (N + V), C]`, laid out for both attention forms.
    type KvUp: Send + Sync;
    /// Router weight `[E, D]` and selection bias `[E]`, f32.
    type Router: Send + Sync;
    /// SwiGLU matrices of one or many experts of one layer.
    type Experts: Send + Sync;
    /// Activations.
    type Buffer: Send;
    /// Chosen experts and weights of T tokens: `[T, K]` each.
    type Routing: Send;
    /// The paged latent cache of all layers.
    type Cache: Send;

    /// Name for logs and errors.
    fn name(&self) -> &'static str;

    // -- memory: called at boot only, nothing below allocates after warm-up --

    /// Scratch values per row of a step, kept by the operations.
    fn scratch_values(&self, shape: &ModelShape) -> usize;
    /// Most bytes that operations keep from step to step beside the cache.
    fn kept_bytes(&self) -> usize {
        0
    }
    /// Defaults for values that the operator leaves open.
    fn preferences(&self) -> Preferences;

    /// Uploads a linear weight.
    fn load_matrix(&mut self, host: &StoredMatrix<'_>) -> Result<Self::Matrix, OpError>;
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
    /// Uploads SwiGLU matrices; all experts have the same sizes. A dense or shared FFN is a list of
    /// one. `first` is the router's number of the first one.
    fn load_experts(
        &mut self,
        experts: &[ExpertMatrices<'_>],
        first: usize,
    ) -> Result<Self::Experts, OpError>;
    /// A buffer of `capacity` rows of `cols` values.
    fn allocate(&mut self, capacity: usize, cols: usize) -> Result<Self::Buffer, OpError>;
    /// A routing of `capacity` rows.
    fn allocate_routing(&mut self, capacity: usize, shape: &RouterShape) -> Result<Self::Routing, OpError>;
    /// The latent cache, zeroed.
    fn allocate_cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, OpError>;

    /// Sets the scales of an FP8 cache without row scales for rows stored from now on:
    /// `2^exponents[layer]` for every row of a layer, 1 until the first call. Has no effect on
    /// caches of other types.
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
    /// both in the cache at `slot_mapping[t]` (= block id x block size + offset) of `layer`; a row of [`crate::KvSlot::PAD`] is not
    /// stored.
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

    /// Causal attention of the rows of `segments` (all of form `Expanded`): keys and values are
    /// expanded from the cached latents with `kv_up`. Writes those rows of `out` `[T, H * V]` and
    /// leaves the others unchanged. Sets `out` to `q`'s row count.
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

    /// As [`HostOps::attend_expanded`] for segments of form `Absorbed`: queries are multiplied by
    /// W_UK into the latent space, the result by W_UV.
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

    /// First of three parts of absorbed attention, for ranks that hold some of the heads and some
    /// of the cache: queries of the rows `rows` in the latent space. Sets `out` to
    /// `[rows.len(), H, C + R]`.
    fn latent_queries(
        &mut self,
        shape: &MlaShape,
        q: &Self::Buffer,
        kv_up: &Self::KvUp,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Second part: attention of latent queries `[n, H, C + R]` to the cached latents, not yet
    /// divided by the sum. Sets `out` to `[n, H, 2 + C]`: the largest score (minus infinity without
    /// keys), the sum of the exponentials, the weighted sum of latents.
    fn attend_latents(
        &mut self,
        shape: &MlaShape,
        queries: &[f32],
        kv_up: &Self::KvUp,
        layer: usize,
        cache: &Self::Cache,
        spans: &[LatentSpan],
        block_tables: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Third part: the rows `rows` of `out` `[T, H * V]` are `latents` `[rows.len(), H, C]` times
    /// W_UV. Sets `out` to `num_rows` rows and leaves the others unchanged.
    fn project_latents(
        &mut self,
        shape: &MlaShape,
        latents: &[f32],
        kv_up: &Self::KvUp,
        rows: &[u32],
        num_rows: usize,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Appends the rows of `layer` at `slots` to `out`, in their stored format; every row has the
    /// same number of bytes.
    fn read_cached(
        &mut self,
        cache: &Self::Cache,
        layer: usize,
        slots: &[u32],
        out: &mut Vec<u8>,
    ) -> Result<(), OpError>;

    /// Stores rows read by [`HostOps::read_cached`] from a cache of the same type.
    fn write_cached(
        &mut self,
        rows: &[u8],
        layer: usize,
        slots: &[u32],
        cache: &mut Self::Cache,
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

    /// `out[t] += sum_k weight[t,k] * expert[t,k](x[t])`, summed in order of k, plus `shared(x[t])`
    /// with weight 1 if given. Experts outside `routed` are left out. `are_prompts`: whether a row is one of a prompt, for
    /// [`RowForms`](crate::RowForms); rows beyond its end are not.
    fn experts(
        &mut self,
        x: &Self::Buffer,
        are_prompts: &[bool],
        routing: &Self::Routing,
        routed: &Self::Experts,
        shared: Option<&Self::Experts>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// For calibration: `out[t, k] = || expert[t,k](x[t]) ||`, the L2 norm of the output of each
    /// chosen expert before the weighting, 0 for experts outside `routed`. Sets `out` (`[T, K]`) to
    /// T rows. Slots are in the order of [`HostOps::read_routing`].
    fn expert_norms(
        &mut self,
        x: &Self::Buffer,
        routing: &Self::Routing,
        routed: &Self::Experts,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// For calibration: the largest magnitude among `silu(gate x) * up x` (the input of `down`) of
    /// expert `expert` of `weights` over the rows `rows` of `x`; 0 without rows, NaN if a value is
    /// NaN.
    fn inner_peak(
        &mut self,
        x: &Self::Buffer,
        rows: &[u32],
        weights: &Self::Experts,
        expert: usize,
    ) -> Result<f32, OpError>;

    /// For calibration: the largest magnitude in the cache of `layer` at `slots`, latents and rope
    /// keys; NaN if a value is NaN.
    fn cached_peak(&mut self, cache: &Self::Cache, layer: usize, slots: &[u32]) -> Result<f32, OpError>;

    /// `out += down(silu(gate x) * up x)`, `weights` holding one expert; `are_prompts` as above.
    fn swiglu_add(
        &mut self,
        x: &Self::Buffer,
        are_prompts: &[bool],
        weights: &Self::Experts,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = x W^T` of the rows `rows` of `x`: sets `out` to `[rows.len(), vocab]`.
    fn logits(
        &mut self,
        x: &Self::Buffer,
        rows: &[u32],
        head: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    // -- vision --

    /// `out[t] = gain * (x[t] - mean) / sqrt(variance + eps) + bias` for every row of `x`, `[T, out's columns]`; statistics in f32. Sets
    /// `out` to T rows.
    fn layer_norm(
        &mut self,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `x[t] = gelu(x[t] + bias)`.
    fn bias_gelu(&mut self, bias: &[f32], form: Gelu, x: &mut Self::Buffer) -> Result<(), OpError>;

    /// Attention of every patch to all patches of its picture, scaled by `head_dim^-0.5`: `qkv` `[P, 3 * H * head_dim]` has queries, keys and
    /// values side by side, `pictures` the patches of each picture; writes `out` `[P, H * head_dim]`.
    fn attend_patches(
        &mut self,
        num_heads: usize,
        head_dim: usize,
        qkv: &[f32],
        pictures: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), OpError>;

    /// Calls `work(worker, index)` for every index below `count`, on all threads of the backend; a
    /// worker runs one call at a time.
    fn for_each(&mut self, count: usize, work: &(dyn Fn(usize, usize) + Sync));

    /// Number of threads of [`HostOps::for_each`].
    fn num_workers(&self) -> usize;

    /// The buffer's rows, row-major.
    fn values(buffer: &Self::Buffer) -> &[f32];

    /// The buffer's rows, row-major and mutable.
    fn values_mut(buffer: &mut Self::Buffer) -> &mut [f32];

    /// The chosen experts and their weights on the host, `[T, K]` each, row-major; the lists are overwritten.
    fn read_routing(
        &mut self,
        routing: &Self::Routing,
        experts: &mut Vec<u32>,
        weights: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Sets the first `rows.len() / cols` rows from the host; for tests, and for rows that the
    /// model does not compute.
    fn write(&mut self, rows: &[f32], buffer: &mut Self::Buffer) -> Result<(), OpError>;
}
