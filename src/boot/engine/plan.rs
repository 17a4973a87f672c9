//! The layout of an engine and its memory plan, before anything is loaded.

use super::{BackendChoice, EngineError, EngineOptions};
use crate::boot::draft_source::DraftSource;
use crate::boot::equipped::Equipped;
use crate::boot::gpu::Gpu;
use crate::boot::host_memory::available_memory;
use crate::boot::memory_plan::{Memory, MemoryPlan, PlanInput};
use crate::boot::sight::TowerSource;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Inventory, LoadError};
use perigee_ops::{Backend, CacheDtype, Capacity, ContextSplit};

/// The memory plan of [`super::start_engine`], without loading a weight. `None` for a GPU: its backend exists only once its kernels
/// are loaded.
pub(crate) fn plan_engine(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    options: &EngineOptions,
) -> Result<Option<MemoryPlan>, EngineError> {
    let plan = match &options.backend {
        BackendChoice::Reference => lay_out(&mut Equipped::reference(), checkpoint, blueprint, options)?.plan,
        BackendChoice::Cpu(cpu) => lay_out(&mut Equipped::cpu(*cpu), checkpoint, blueprint, options)?.plan,
        BackendChoice::CpuRanks { ranks, each, parallelism } => {
            lay_out(&mut Equipped::cpu_ranks(*ranks, *each, *parallelism)?, checkpoint, blueprint, options)?
                .plan
        }
        BackendChoice::Cuda(_) | BackendChoice::Given { .. } => return Ok(None),
        BackendChoice::Auto { gpu, otherwise } => match no_room(gpu, checkpoint, blueprint) {
            None => return Ok(None),
            Some(_) => return plan_engine(checkpoint, blueprint, &options.on(otherwise)),
        },
    };
    Ok(Some(plan))
}

/// Why the weights of a checkpoint cannot lie on a GPU, before it is opened.
pub(crate) fn no_room(gpu: &Gpu, checkpoint: &Checkpoint, blueprint: &Blueprint) -> Option<String> {
    let weights = Inventory::take(checkpoint, blueprint).loaded_bytes();
    gpu.lacks_room(weights.iter().map(|(_, bytes)| bytes).sum())
}

/// Cache type, capacity, draft, tower and memory plan of an engine, before weights are loaded.
pub(super) struct Layout<'a> {
    pub(super) dtype: CacheDtype,
    pub(super) capacity: Capacity,
    pub(super) max_model_len: usize,
    /// Of the latent norms.
    pub(super) eps: f32,
    pub(super) draft: Option<DraftSource>,
    /// Blocks of the draft's cache for guesses that have no place in their sequence's blocks yet.
    pub(super) spare_blocks: usize,
    pub(super) tower: Option<&'a TowerSource>,
    pub(super) inventory: Inventory,
    pub(super) plan: MemoryPlan,
}

/// Chooses draft and tower, checks the checkpoint's tensors, and plans the memory.
pub(super) fn lay_out<'a, B: Backend>(
    equipped: &mut Equipped<B>,
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    options: &'a EngineOptions,
) -> Result<Layout<'a>, EngineError> {
    let Equipped { backend, cache_dtype: default_dtype, device_bytes, ranks, .. } = equipped;
    let ranks = *ranks;
    let dtype = options.cache_dtype.unwrap_or(*default_dtype);
    let batching = &options.scheduler;
    let max_model_len = match batching.max_model_len {
        0 => blueprint.max_position_embeddings,
        len => len,
    };
    let preferences = backend.preferences();
    let eps = options.latent_norm_eps.unwrap_or(blueprint.rms_norm_eps);
    let decode_rows =
        (batching.max_num_seqs * options.speculation.max_rows()).min(batching.max_num_batched_tokens);
    let capacity = Capacity {
        max_tokens: batching.max_num_batched_tokens,
        max_logits_rows: decode_rows.min(preferences.max_logits_rows),
        max_num_seqs: batching.max_num_seqs,
        block_size: options.block_size,
        cache_dtype: dtype,
    };
    let one_block = blueprint.cache_shape(1, options.block_size, dtype);
    let draft = DraftSource::open(&options.speculation, checkpoint, blueprint, eps)?;
    let mut needs = backend.memory_needs(&blueprint.shape(eps), &capacity, &one_block);
    let spare_blocks = batching.max_num_seqs * options.speculation.max_tokens.div_ceil(options.block_size);
    if let Some(draft) = &draft {
        let more = draft.memory(&*backend, &capacity, dtype);
        needs.copies_bytes += more.copies_bytes;
        needs.workspace_bytes += more.workspace_bytes + spare_blocks as u64 * more.cache_bytes;
        needs.cache_bytes += more.cache_bytes;
    }
    let tower = options.tower.as_ref();
    if let Some(tower) = tower {
        needs.workspace_bytes += backend.tower_bytes(&tower.blueprint.shape, &tower.capacity());
    }
    let inventory = Inventory::take(checkpoint, blueprint);
    // Before the plan: a checkpoint of another configuration is a better reason to give than lack
    // of memory.
    LoadError::check(checkpoint, &inventory.problems)?;
    let plan = MemoryPlan::new(&PlanInput {
        weights: &inventory.loaded_bytes(),
        widened_bytes: inventory.widened_bytes(if *default_dtype == CacheDtype::F32 { 4 } else { 2 }),
        draft_bytes: draft.as_ref().map_or(0, |draft| draft.bytes(ranks)),
        // Whole on each.
        vision_bytes: tower.map_or(0, |tower| ranks as u64 * tower.bytes),
        needs,
        max_num_seqs: batching.max_num_seqs,
        max_model_len,
        block_size: options.block_size,
        cache_bytes: options.cache_bytes,
        num_blocks: options.num_blocks,
        undivided_ranks: match options.parallelism.context {
            ContextSplit::Whole if *device_bytes > 0 && ranks > 1 => ranks,
            _ => 0,
        },
        host_tier_bytes: options.tiers.as_ref().map_or(0, |tiers| tiers.host_bytes),
        host_available_bytes: available_memory().unwrap_or(u64::MAX / 2),
        memory: match backend.free_memory()? {
            Some(bytes) => Memory::devices(ranks, bytes, *device_bytes, options.memory_utilization),
            None => Memory::host(available_memory().unwrap_or(u64::MAX / 2)),
        },
    })?;
    Ok(Layout { dtype, capacity, max_model_len, eps, draft, spare_blocks, tower, inventory, plan })
}
