//! A network with one layer loaded at a time, for texts through checkpoints larger than memory: the
//! residual stream of the text stays on the host, and every layer is loaded once for the whole
//! text.

use super::activations::Fp4Activations;
use super::blueprint::Blueprint;
use super::checkpoint::Checkpoint;
use super::inventory::Inventory;
use super::layer_runner::LayerRunner;
use super::observed::LayerObserver;
use super::weights::{Bindings, LayerWeights, LoadError};
use perigee_numbers::tensor::TensorView;
use perigee_ops::{Activation, Backend, CacheShape, Calibrate, Capacity, OpError, Row, StepPlan};

/// The loaded layer of [`LayerStream::layer`].
struct Loaded<B: Backend> {
    layer: usize,
    weights: LayerWeights<B>,
}

/// Weights that compute logits from the residual stream.
struct Head<B: Backend> {
    final_norm: B::Vector,
    matrix: B::Matrix,
}

/// A checked checkpoint with workspace and the cache of one layer.
///
/// Results equal those of [`super::Model`] bit for bit: the residual stream moves to the host and
/// back between layers without rounding.
pub struct LayerStream<'a, B: Backend> {
    bindings: Bindings<'a>,
    /// `[vocab, D]`.
    embedding: TensorView<'a>,
    runner: LayerRunner<B>,
    loaded: Option<Loaded<B>>,
    head: Option<Head<B>>,
}

impl<'a, B: Calibrate> LayerStream<'a, B> {
    /// Checks the checkpoint and allocates workspace for steps of `max_tokens` rows (at most
    /// `max_logits_rows` with logits at once) and a cache of shape `cache`, reduced to one layer.
    /// Rows of the FFNs are in the form `activations`. Loads no weights.
    pub fn open(
        checkpoint: &'a Checkpoint,
        blueprint: Blueprint,
        backend: B,
        max_tokens: usize,
        max_logits_rows: usize,
        cache: &CacheShape,
        activations: Option<Fp4Activations>,
    ) -> Result<Self, StreamError> {
        let bindings = Bindings::check(checkpoint, Inventory::take(checkpoint, &blueprint), activations)?;
        let cache = CacheShape { num_layers: 1, ..*cache };
        let eps = blueprint.rms_norm_eps;
        let CacheShape { block_size, dtype: cache_dtype, .. } = cache;
        let capacity = Capacity { max_tokens, max_logits_rows, max_num_seqs: 1, block_size, cache_dtype };
        let runner = LayerRunner::new(backend, blueprint, eps, capacity, &cache)?;
        let embedding = bindings.embedding();
        Ok(Self { bindings, embedding, runner, loaded: None, head: None })
    }

    /// Sizes and switches of the network.
    pub fn blueprint(&self) -> &Blueprint {
        &self.runner.blueprint
    }

    /// Upper bound on the rows of one step.
    pub fn max_tokens(&self) -> usize {
        self.runner.capacity.max_tokens
    }

    /// Upper bound on the rows of one `logits` call; not above `max_tokens`, since they are rows of
    /// a step.
    pub fn max_logits_rows(&self) -> usize {
        self.runner.capacity.max_logits_rows.min(self.runner.capacity.max_tokens)
    }

    /// Appends the embeddings of tokens, `[T, D]`; ids are below the vocabulary's size.
    pub fn embed(&self, token_ids: &[u32], hidden: &mut Vec<f32>) {
        let shape = [1, self.blueprint().hidden_size];
        for id in token_ids {
            let row = *id as usize;
            hidden.extend(self.embedding.rows(row, row + 1, &shape).to_f32());
        }
    }

    /// Loads a layer in place of the layer or head loaded before.
    pub fn load(&mut self, layer: usize) -> Result<(), StreamError> {
        // Freed before the next layer is loaded: two layers would take twice the memory.
        (self.loaded, self.head) = (None, None);
        let LayerRunner { blueprint, backend, .. } = &mut self.runner;
        let weights = self.bindings.layer(layer, blueprint, backend)?;
        self.loaded = Some(Loaded { layer, weights });
        Ok(())
    }

    /// Runs the loaded layer over a step whose residual stream is `hidden`, `[T, D]`, in place. The
    /// layer's cache holds the earlier tokens of the sequence as earlier steps stored them.
    ///
    /// Panics if no layer is loaded.
    pub fn layer(
        &mut self,
        plan: &StepPlan,
        hidden: &mut [f32],
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        let Loaded { layer, weights } = self.loaded.as_ref().expect("a layer is loaded before it is run");
        let runner = &mut self.runner;
        runner.begin(plan)?;
        runner.backend.write_hidden(hidden, &mut runner.workspace)?;
        runner.norm(&weights.attention.norm)?;
        runner.layer_observed(weights, *layer, 0, observer)?;
        hidden.copy_from_slice(runner.backend.read(Activation::Hidden, &runner.workspace)?);
        Ok(())
    }

    /// Frees the loaded layer and loads the weights of [`LayerStream::logits`].
    pub fn load_head(&mut self) -> Result<(), StreamError> {
        self.loaded = None;
        let LayerRunner { blueprint, backend, .. } = &mut self.runner;
        let (final_norm, head) = self.bindings.head(blueprint, backend)?;
        let matrix = match head {
            Some(head) => head,
            None => self.bindings.embed_tokens(blueprint, backend)?,
        };
        self.head = Some(Head { final_norm, matrix });
        Ok(())
    }

    /// Logits `[rows, vocab]` of the residual stream `hidden` after the last layer, `[rows, D]`; at most `max_logits_rows` rows.
    ///
    /// Panics if the head is not loaded.
    pub fn logits(&mut self, hidden: &[f32]) -> Result<&[f32], OpError> {
        let Head { final_norm, matrix } = self.head.as_ref().expect("the head is loaded before it is run");
        let runner = &mut self.runner;
        let rows = hidden.len() / runner.blueprint.hidden_size;
        let logits_rows = (0..rows as u32).map(Row).collect();
        runner.begin(&StepPlan { logits_rows, ..StepPlan::default() })?;
        runner.backend.write_hidden(hidden, &mut runner.workspace)?;
        runner.norm(final_norm)?;
        runner.backend.logits(matrix, 0..rows, &mut runner.workspace)?;
        runner.backend.read(Activation::Logits, &runner.workspace)
    }
}

/// Reason of a failed load.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The checkpoint's weights cannot be bound.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The backend refused an operation.
    #[error(transparent)]
    Op(#[from] OpError),
}
