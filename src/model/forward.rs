//! The forward pass: all layers once, over any backend.

use std::ops::Range;

use super::blueprint::Blueprint;
use super::drafter::Drafter;
use super::layer_runner::{LayerRunner, LayerStep};
use super::observed::LayerObserver;
use super::tower::Tower;
use super::weights::Weights;
use perigee_ops::{
    Activation, Backend, BlockId, CacheShape, Calibrate, Capacity, DraftActivations, DraftInput, Layers,
    OpError, Outcomes, Picture, SampleRows, SeqSlot, SlotSpec, StepPlan, Ticket, TokenId,
};

/// Content of a block on its way to the host.
pub struct BlockRead<B: Backend> {
    own: B::BlockRead,
    drafts: Option<B::BlockRead>,
}

/// A loaded network with its workspace and its KV cache, on one backend.
pub struct Model<B: Backend> {
    runner: LayerRunner<B>,
    weights: Weights<B>,
    draft: Option<Drafter<B>>,
    tower: Option<Tower<B>>,
}

/// Everything between the plan and the logits: embedding, pictures in place of their tokens, all layers with their norms. `draft` captures
/// the states that it reads.
fn layers<B: Backend>(
    step: &mut LayerStep<'_, B>,
    weights: &Weights<B>,
    mut draft: Option<&mut Drafter<B>>,
    tower: Option<&Tower<B>>,
) -> Result<(), OpError> {
    step.backend.embed(&weights.embed_tokens, step.workspace)?;
    if let Some(tower) = tower {
        tower.place(step.backend, step.workspace)?;
    }
    let gains = weights.layers.iter().map(|layer| &layer.attention.norm);
    let mut next = gains.chain([&weights.final_norm]);
    next.next().map_or(Ok(()), |first| step.backend.norm(first, step.workspace))?;
    let layers = &weights.layers;
    for (layer, (weights, next)) in layers.iter().zip(next).enumerate() {
        if let Some(draft) = &mut draft {
            draft.capture(layer, step.backend, step.workspace)?;
        }
        step.layer(weights, layer, next, layers.get(layer + 1))?;
    }
    match draft {
        Some(draft) => draft.capture(layers.len(), step.backend, step.workspace),
        None => Ok(()),
    }
}

impl<B: Backend> Model<B> {
    /// Takes loaded weights and allocates workspace and cache.
    pub fn new(
        backend: B,
        blueprint: Blueprint,
        weights: Weights<B>,
        latent_norm_eps: f32,
        capacity: Capacity,
        cache: &CacheShape,
    ) -> Result<Self, OpError> {
        let runner = LayerRunner::new(backend, blueprint, latent_norm_eps, capacity, cache)?;
        Ok(Self { runner, weights, draft: None, tower: None })
    }

    /// Runs `draft` beside the network from now on, on the same backend.
    pub fn with_draft(self, draft: Option<Drafter<B>>) -> Self {
        Self { draft, ..self }
    }

    /// Sees pictures with `tower` from now on, on the same backend.
    pub fn with_tower(self, tower: Option<Tower<B>>) -> Self {
        Self { tower, ..self }
    }

    /// Blocks that pictures pass through between [`Model::begin_pictures`] and [`Model::project_pictures`]; `None` without a tower.
    pub fn tower_blocks(&self) -> Option<usize> {
        self.tower.as_ref().map(|tower| tower.num_blocks())
    }

    /// See [`perigee_ops::TowerOps::begin_pictures`]. No effect without a tower, as for the other operations on pictures.
    pub fn begin_pictures(&mut self, pictures: &[&Picture]) -> Result<(), OpError> {
        let Self { runner, tower: Some(tower), .. } = self else { return Ok(()) };
        tower.begin(pictures, &mut runner.backend)
    }

    /// See [`perigee_ops::TowerOps::tower_block`].
    pub fn tower_block(&mut self, block: usize) -> Result<(), OpError> {
        let Self { runner, tower: Some(tower), .. } = self else { return Ok(()) };
        tower.block(block, &mut runner.backend)
    }

    /// See [`perigee_ops::TowerOps::project_pictures`].
    pub fn project_pictures(&mut self, to: &[u32]) -> Result<(), OpError> {
        let Self { runner, tower: Some(tower), .. } = self else { return Ok(()) };
        tower.project(to, &mut runner.backend)
    }

    /// Whether a draft runs beside the network.
    pub fn has_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// Lets go of the draft: its memory is freed, and steps capture no states any more.
    pub fn drop_draft(&mut self) {
        self.draft = None;
    }

    /// Sizes and switches of the network.
    pub fn blueprint(&self) -> &Blueprint {
        &self.runner.blueprint
    }

    /// What computes.
    pub fn backend(&self) -> &B {
        &self.runner.backend
    }

    /// Name of the backend, for logs and metrics.
    pub fn backend_name(&self) -> &'static str {
        self.runner.backend.name()
    }

    /// Largest step: rows, logits rows, sequences.
    pub fn capacity(&self) -> &Capacity {
        &self.runner.capacity
    }

    /// See [`Backend::recorded_rows`].
    pub fn recorded_rows(&self) -> Vec<usize> {
        self.runner.backend.recorded_rows(&self.runner.capacity)
    }

    /// Computes every row of a step: latents are stored in the cache, and the plan's logits rows
    /// are ready for [`Model::logits`].
    pub fn forward(&mut self, plan: &StepPlan) -> Result<(), OpError> {
        let Self { runner, weights, draft, tower } = self;
        runner.begin(plan)?;
        let LayerRunner { backend, workspace, cache, .. } = runner;
        if backend.begin_layers(workspace)? == Layers::Replayed {
            return Ok(());
        }
        let mut step = LayerStep { backend, workspace, cache };
        let ran = layers(&mut step, weights, draft.as_mut(), tower.as_ref());
        // Also behind an error: a recording must not stay open.
        let ended = step.backend.end_layers(step.workspace, ran.is_ok());
        ran.and(ended)
    }

    /// Logits of the rows `plan.logits_rows[rows]` of the last [`Model::forward`]; at most `max_logits_rows`.
    pub fn logits(&mut self, rows: Range<usize>) -> Result<(), OpError> {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embed_tokens);
        self.runner.backend.logits(head, rows, &mut self.runner.workspace)
    }

    /// Runs the draft over the rows of `plan`, see [`perigee_ops::DraftOps::draft_step`], and computes the
    /// logits of the plan's logits rows in place of the network's own: [`Model::sample`] then draws
    /// the draft's guesses. No effect without a draft.
    pub fn draft(&mut self, plan: &StepPlan, input: DraftInput<'_>) -> Result<(), OpError> {
        let Self { runner, weights, draft: Some(draft), .. } = self else { return Ok(()) };
        let (table, backend) = (&weights.embed_tokens, &mut runner.backend);
        draft.step(plan, input, table, backend, &runner.workspace)?;
        if plan.logits_rows.is_empty() {
            return Ok(());
        }
        let head = weights.head.as_ref().unwrap_or(table);
        draft.logits(table, head, backend, &mut runner.workspace)
    }

    /// See [`Backend::open_slot`].
    pub fn open_slot(&mut self, slot: SeqSlot, spec: &SlotSpec<'_>) -> Result<(), OpError> {
        self.runner.backend.open_slot(slot, spec, &mut self.runner.workspace)
    }

    /// See [`Backend::rewind_slot`].
    pub fn rewind_slot(&mut self, slot: SeqSlot, removed: &[TokenId], last: TokenId) -> Result<(), OpError> {
        self.runner.backend.rewind_slot(slot, removed, last, &mut self.runner.workspace)
    }

    /// Samples from the logits of the last [`Model::logits`].
    pub fn sample(&mut self, rows: &SampleRows<'_>) -> Result<Ticket, OpError> {
        self.runner.backend.sample(rows, &mut self.runner.workspace)
    }

    /// See [`Backend::wait`].
    pub fn wait(&mut self, ticket: Ticket, out: &mut Outcomes) -> Result<(), OpError> {
        self.runner.backend.wait(ticket, &mut self.runner.workspace, out)
    }

    /// Bytes of a block's content: the network's, and the draft's behind them.
    pub fn block_bytes(&self) -> (usize, usize) {
        let LayerRunner { backend, cache, .. } = &self.runner;
        let drafts = self.draft.as_ref().map_or(0, |draft| draft.block_bytes(backend));
        (backend.block_bytes(cache), drafts)
    }

    /// See [`Backend::start_block_read`].
    pub fn start_block_read(&mut self, block: BlockId) -> Result<BlockRead<B>, OpError> {
        let LayerRunner { backend, cache, .. } = &mut self.runner;
        let own = backend.start_block_read(block, cache)?;
        let drafts = self.draft.as_ref().map(|draft| draft.start_block_read(block, backend)).transpose()?;
        Ok(BlockRead { own, drafts })
    }

    /// See [`Backend::finish_block_read`].
    pub fn finish_block_read(&mut self, read: BlockRead<B>, out: &mut Vec<u8>) -> Result<(), OpError> {
        let backend = &mut self.runner.backend;
        backend.finish_block_read(read.own, out)?;
        read.drafts.map_or(Ok(()), |drafts| backend.finish_block_read(drafts, out))
    }

    /// Sets a block's content. Without the draft's part it is the network's alone: the draft then knows nothing of these
    /// positions.
    pub fn write_block(&mut self, block: BlockId, content: &[u8]) -> Result<(), OpError> {
        let (own_bytes, draft_bytes) = self.block_bytes();
        let LayerRunner { backend, cache, .. } = &mut self.runner;
        let (own, drafts) = content.split_at(own_bytes.min(content.len()));
        backend.write_block(block, own, cache)?;
        match &mut self.draft {
            Some(draft) if drafts.len() == draft_bytes => draft.write_block(block, drafts, backend),
            _ => Ok(()),
        }
    }

    /// Sets the scales of an FP8 cache without row scales: `2^exponents[layer]`. Applies to rows
    /// stored from now on.
    pub fn set_cache_scales(&mut self, exponents: &[i32]) -> Result<(), OpError> {
        self.runner.backend.set_cache_scales(&mut self.runner.cache, exponents)
    }
}

impl<B: Calibrate> Model<B> {
    /// [`Model::forward`] with an observer of the layers.
    pub fn forward_observed(
        &mut self,
        plan: &StepPlan,
        observer: &mut dyn LayerObserver,
    ) -> Result<(), OpError> {
        let Self { runner, weights, .. } = self;
        runner.begin(plan)?;
        runner.backend.embed(&weights.embed_tokens, &mut runner.workspace)?;
        for (layer, weights) in weights.layers.iter().enumerate() {
            runner.norm(&weights.attention.norm)?;
            runner.layer_observed(weights, layer, layer, observer)?;
        }
        runner.norm(&weights.final_norm)
    }

    /// For tests: kept rows of pictures, and the residual stream behind the tower's last norm; see [`perigee_ops::TowerOps`].
    pub fn read_pictures(&mut self, rows: &[u32]) -> Result<[Vec<f32>; 2], OpError> {
        let Self { runner, tower: Some(tower), .. } = self else { return Ok(Default::default()) };
        Ok([tower.read_rows(rows, &mut runner.backend)?, tower.read_encoded(&mut runner.backend)?])
    }

    /// The draft's activations on the host; empty without a draft.
    pub fn read_draft(&mut self) -> DraftActivations {
        let Self { runner, draft: Some(draft), .. } = self else { return Default::default() };
        draft.read(&mut runner.backend)
    }

    /// Logits of the last [`Model::draft`] on the host, `[S, vocab]`.
    pub fn read_draft_logits(&mut self) -> Result<&[f32], OpError> {
        self.runner.backend.read(Activation::Logits, &self.runner.workspace)
    }

    /// Logits `[rows.len(), vocab]` on the host, as [`Model::logits`] computes them.
    pub fn read_logits(&mut self, rows: Range<usize>) -> Result<&[f32], OpError> {
        self.logits(rows)?;
        self.runner.backend.read(Activation::Logits, &self.runner.workspace)
    }
}
