//! The multi-token prediction layer of a `deepseek_v3` checkpoint as a draft: a decoder layer behind the target's last one, with the
//! target's embedding and head.
//!
//! DeepSeek-V3 Technical Report, arXiv 2412.19437, section 2.2. A checkpoint with several such layers drafts with the first, fed with
//! its own output for each further token.

use super::blueprint::Blueprint;
use super::checkpoint::Checkpoint;
use super::inventory::{Inventory, parts};
use super::layer_runner::LayerStep;
use super::rope;
use super::weights::{Bindings, LayerWeights, LoadError};
use perigee_numbers::quant::{Layout, recognize};
use perigee_ops::{
    Backend, BlockId, CacheDtype, CacheShape, Capacity, DraftInput, FusionMatrices, MemoryNeeds, OpError,
    StepPlan,
};

/// Tensors of the first prediction layer of a checkpoint.
#[derive(Debug, Clone)]
pub struct MtpLayer {
    /// The target's, with the layer as its last one.
    blueprint: Blueprint,
    /// The layer's alone.
    inventory: Inventory,
    latent_norm_eps: f32,
}

impl MtpLayer {
    /// Looks for the layer; reads headers alone. `None` if the checkpoint's configuration has none.
    ///
    /// Errors: tensors of the layer that are missing or cannot be used.
    pub fn find(
        checkpoint: &Checkpoint,
        target: &Blueprint,
        latent_norm_eps: f32,
    ) -> Result<Option<Self>, LoadError> {
        if target.num_nextn_predict_layers == 0 {
            return Ok(None);
        }
        let blueprint = Blueprint {
            num_layers: target.num_layers + 1,
            num_nextn_predict_layers: target.num_nextn_predict_layers - 1,
            ..target.clone()
        };
        let mut inventory = Inventory::take(checkpoint, &blueprint);
        let stem = format!("{}.", inventory.names.layer_stem(target.num_layers));
        let problems = &mut inventory.problems;
        problems.missing.retain(|name| name.starts_with(&stem));
        problems.wrong.retain(|reason| reason.starts_with(&stem));
        // They are the target's, or the norms and the projection looked for below.
        problems.unexpected.clear();
        let d = target.hidden_size;
        for norm in ["enorm.weight", "hnorm.weight", "shared_head.norm.weight"] {
            let name = format!("{stem}{norm}");
            match checkpoint.tensor(&name) {
                None => problems.missing.push(name),
                Some(view) if view.shape != [d] => {
                    let got = view.shape;
                    problems.wrong.push(format!("{name}: shape {got:?}, expected [{d}]"));
                }
                Some(_) => {}
            }
        }
        let name = format!("{stem}eh_proj");
        match Layout::of(parts(checkpoint, &name)) {
            Ok(layout) if layout.shape == [d, 2 * d] => {}
            Ok(layout) => {
                let (got, expected) = (layout.shape, [d, 2 * d]);
                problems.wrong.push(format!("{name}.weight: shape {got:?}, expected {expected:?}"));
            }
            Err(error) => problems.wrong.push(format!("{name}: {error}")),
        }
        LoadError::check(checkpoint, problems)?;
        inventory.linears.retain(|linear| linear.name.starts_with(&stem));
        inventory.warnings.clear();
        Ok(Some(Self { blueprint, inventory, latent_norm_eps }))
    }

    /// Stored bytes of the layer's linears.
    pub fn bytes(&self) -> u64 {
        let linears: usize = self.inventory.linears.iter().map(|linear| linear.layout.bytes).sum();
        // The fusion, in bf16.
        (linears + 4 * self.blueprint.hidden_size.pow(2)) as u64
    }

    /// Number of the layer in the checkpoint.
    pub fn layer(&self) -> usize {
        self.blueprint.num_layers - 1
    }

    /// Shape of the layer's cache with `num_blocks` blocks.
    pub fn cache_shape(&self, num_blocks: usize, block_size: usize, dtype: CacheDtype) -> CacheShape {
        CacheShape { num_layers: 1, ..self.blueprint.cache_shape(num_blocks, block_size, dtype) }
    }

    /// Bytes of the layer's workspace and of a cache, before any allocation.
    pub fn memory<B: Backend>(&self, backend: &B, capacity: &Capacity, cache: &CacheShape) -> MemoryNeeds {
        let shape = self.blueprint.shape(self.latent_norm_eps);
        let mut needs = backend.memory_needs(&shape, &own(capacity, cache), cache);
        needs.workspace_bytes += backend.fusion_bytes(&shape, capacity);
        needs
    }
}

/// The layer's logits are the target's: its workspace has next to none.
fn own(capacity: &Capacity, cache: &CacheShape) -> Capacity {
    Capacity { max_logits_rows: 1, cache_dtype: cache.dtype, ..*capacity }
}

/// An uploaded prediction layer with workspace and cache.
pub struct MtpDrafter<B: Backend> {
    fusion: B::Fusion,
    weights: LayerWeights<B>,
    /// Gain of the norm in front of the head.
    norm: B::Vector,
    workspace: B::Workspace,
    cache: B::Cache,
}

impl<B: Backend> MtpDrafter<B> {
    /// Uploads a layer of `checkpoint`.
    pub fn load(
        checkpoint: &Checkpoint,
        layer: &MtpLayer,
        backend: &mut B,
        capacity: &Capacity,
        cache: &CacheShape,
    ) -> Result<Self, LoadError> {
        let (blueprint, at) = (&layer.blueprint, layer.layer());
        let bindings = Bindings::check(checkpoint, layer.inventory.clone(), None)?;
        let shape = blueprint.shape(layer.latent_norm_eps);
        let name = |rest: &str| layer.inventory.names.layer(at, rest);
        let upload = |source| LoadError::Upload { name: name("eh_proj"), source };
        let eh_proj = recognize(parts(checkpoint, &name("eh_proj")));
        let host = FusionMatrices {
            enorm: bindings.view(&name("enorm.weight")),
            hnorm: bindings.view(&name("hnorm.weight")),
            eh_proj: eh_proj.map_err(|source| LoadError::Stored { name: name("eh_proj"), source })?.1,
        };
        Ok(Self {
            fusion: backend.load_fusion(&host, &shape, capacity).map_err(upload)?,
            norm: backend.load_vector(&bindings.view(&name("shared_head.norm.weight"))).map_err(upload)?,
            weights: bindings.layer(at, blueprint, backend)?,
            workspace: backend
                .allocate_workspace(&shape, &own(capacity, cache), &rope::table(blueprint))
                .map_err(upload)?,
            cache: backend.allocate_cache(cache).map_err(upload)?,
        })
    }

    /// Runs the layer over the rows of `plan`: [`perigee_ops::MtpOps::fuse`], then the layer on its own workspace. What it reads of
    /// the target is what the last norm leaves in the workspace.
    pub(super) fn step(
        &mut self,
        plan: &StepPlan,
        input: DraftInput<'_>,
        table: &B::Matrix,
        backend: &mut B,
        target: &B::Workspace,
    ) -> Result<(), OpError> {
        let Self { fusion, weights, norm, workspace, cache } = self;
        backend.fuse(plan, input, table, target, fusion, workspace)?;
        backend.norm(&weights.attention.norm, workspace)?;
        LayerStep { backend, workspace, cache }.layer(weights, 0, norm, None)
    }

    /// See [`perigee_ops::MtpOps::logits_of`]; `head` is the target's.
    pub(super) fn logits(
        &mut self,
        head: &B::Matrix,
        backend: &mut B,
        target: &mut B::Workspace,
    ) -> Result<(), OpError> {
        backend.logits_of(head, &self.workspace, target)
    }

    /// See [`Backend::block_bytes`].
    pub(super) fn block_bytes(&self, backend: &B) -> usize {
        backend.block_bytes(&self.cache)
    }

    /// See [`Backend::start_block_read`].
    pub(super) fn start_block_read(&self, block: BlockId, backend: &mut B) -> Result<B::BlockRead, OpError> {
        backend.start_block_read(block, &self.cache)
    }

    /// See [`Backend::write_block`].
    pub(super) fn write_block(
        &mut self,
        block: BlockId,
        content: &[u8],
        backend: &mut B,
    ) -> Result<(), OpError> {
        backend.write_block(block, content, &mut self.cache)
    }
}
