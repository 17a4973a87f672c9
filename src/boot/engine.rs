//! From a checkpoint to a running engine: plan memory, load weights, warm up, start the thread. The
//! backend's type is not visible above this file.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::draft_source::DraftSource;
use super::equipped::Equipped;
use super::gpu::{Gpu, GpuError};
use super::host_memory::available_memory;
use super::kv_identity::kv_identity;
use super::memory_plan::{Memory, MemoryPlan, PlanError, PlanInput};
use super::sight::TowerSource;
use super::tuned_ops::tuned_ops;
use crate::config::{Settings, device};
use crate::cpu::{Activations, CpuOptions};
use crate::cuda::{Arithmetic, LaunchTimes};
use crate::engine::{EngineFacts, EngineHandle, MeasuredSteps, VisionFacts, measure_steps, spawn, warm_up};
use crate::kv_tiers::{DiskOptions, TierError, TierOptions, Tiers};
use crate::model::checkpoint::{Checkpoint, CheckpointError};
use crate::model::config::{Fp8Rope, Fp8Scale, KvDType, LatentNormEps};
use crate::model::{
    Blueprint, BlueprintError, DraftMismatch, DraftSupport, ExpertOrder, Inventory, KvScaleError, KvScales,
    LoadError, Model, TowerSupport, Weights,
};
use crate::ops::{Backend, CacheDType, Capacity, OpError};
use crate::quant::CachedRowFormat;
use crate::scheduler::{self, LimitsError};
use crate::speculation;
use crate::telemetry::Metrics;
use crate::threads::UploadMeter;

/// BF16 bytes of weights per token below which activations are f32 unless the operator says otherwise.
const SMALL_MODEL_BYTES: usize = 32 << 20;

/// Which backend runs the model.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendChoice {
    /// The reference backend, exact and slow.
    Reference,
    /// The fast CPU backend.
    Cpu(CpuOptions),
    /// A GPU.
    Cuda(Gpu),
    /// Several ranks of the fast CPU backend, each with its own threads.
    CpuRanks {
        /// Number of ranks, at least 1.
        ranks: usize,
        /// Options of each rank.
        each: CpuOptions,
    },
}

/// Resolved settings of the engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Backend and its options.
    pub backend: BackendChoice,
    /// Batching limits.
    pub scheduler: scheduler::Config,
    /// Tokens per block.
    pub block_size: usize,
    /// Bytes of the cache, 0 = chosen by the memory plan.
    pub cache_bytes: u64,
    /// Blocks of the cache, 0 = follows from the bytes.
    pub num_blocks: usize,
    /// Element type of the cache; `None` follows the activations.
    pub cache_dtype: Option<CacheDType>,
    /// Whether prompts share cached prefixes.
    pub prefix_caching: bool,
    /// Epsilon of the latent norms; `None` = `rms_norm_eps`.
    pub latent_norm_eps: Option<f32>,
    /// Drafts of reply tokens.
    pub speculation: speculation::Config,
    /// The checkpoint's vision tower; `None`: images are not served.
    pub tower: Option<TowerSource>,
    /// Where blocks are kept that leave the cache.
    pub tiers: Option<TierOptions>,
    /// Where a GPU's launches are measured, which slows it down; `None`: they are not.
    pub launch_times: Option<Arc<LaunchTimes>>,
}

impl EngineOptions {
    /// Resolves the settings for one network; finds the GPU if one is asked for.
    ///
    /// Errors: `device.backend = cuda` without a usable GPU.
    pub fn from_settings(settings: &Settings, blueprint: &Blueprint) -> Result<Self, GpuError> {
        let activations = activations(settings, blueprint);
        let cache = &settings.kv_cache;
        let (ranks, threads) = (settings.device.ranks, settings.device.threads);
        let cpu = CpuOptions { threads, activations, ..Default::default() };
        let on_cpu = || match ranks {
            1 => BackendChoice::Cpu(cpu),
            _ => BackendChoice::CpuRanks { ranks, each: share_threads(cpu, ranks) },
        };
        let backend = match settings.device.backend {
            device::BackendChoice::Reference => BackendChoice::Reference,
            device::BackendChoice::Auto => {
                Gpu::note_unused(&settings.kernels);
                on_cpu()
            }
            device::BackendChoice::Cpu => on_cpu(),
            device::BackendChoice::Cuda => BackendChoice::Cuda(find_gpu(settings, blueprint)?),
        };
        Ok(Self {
            backend,
            scheduler: settings.scheduler.clone(),
            block_size: cache.block_size,
            cache_bytes: cache.memory_bytes,
            num_blocks: cache.num_blocks,
            cache_dtype: match cache.dtype {
                KvDType::Auto => None,
                KvDType::Bf16 => Some(CacheDType::Bf16),
                KvDType::F32 => Some(CacheDType::F32),
                KvDType::Fp8 => Some(CacheDType::Fp8(CachedRowFormat {
                    row_scales: cache.fp8_scale == Fp8Scale::Token,
                    rope_codes: cache.fp8_rope == Fp8Rope::Fp8,
                })),
            },
            prefix_caching: cache.prefix_caching,
            latent_norm_eps: match settings.model.latent_norm_eps {
                LatentNormEps::Checkpoint => None,
                LatentNormEps::Value(eps) => Some(eps),
            },
            speculation: settings.speculation.clone(),
            tower: None,
            tiers: (cache.host_bytes > 0).then(|| TierOptions {
                host_bytes: cache.host_bytes,
                disk: (!cache.disk_path.is_empty()).then(|| DiskOptions {
                    folder: cache.disk_path.clone().into(),
                    max_bytes: cache.disk_bytes,
                    flush: Duration::from_secs_f64(cache.disk_flush_s),
                }),
            }),
            launch_times: None,
        })
    }
}

/// The GPU that `device.backend = cuda` runs a network on.
pub(crate) fn find_gpu(settings: &Settings, blueprint: &Blueprint) -> Result<Gpu, GpuError> {
    let arithmetic = match activations(settings, blueprint) {
        Activations::F32 => Arithmetic::F32,
        Activations::Bf16 | Activations::Int8 => Arithmetic::Bf16,
    };
    Gpu::find(&settings.kernels, arithmetic)
}

/// What inputs of products are rounded to.
fn activations(settings: &Settings, blueprint: &Blueprint) -> Activations {
    match settings.device.activations {
        device::Activations::Auto if is_small(blueprint) => Activations::F32,
        device::Activations::Auto | device::Activations::Bf16 => Activations::Bf16,
        device::Activations::F32 => Activations::F32,
        device::Activations::Int8 => Activations::Int8,
    }
}

/// One rank's share of the threads.
fn share_threads(options: CpuOptions, ranks: usize) -> CpuOptions {
    let all = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads,
    };
    CpuOptions { threads: (all / ranks).max(1), ..options }
}

/// Whether f32 activations cost little: the weights of one token fit in a processor cache. Small
/// routed networks also need f32 most: a rounding error that picks another expert changes much of
/// their result.
fn is_small(blueprint: &Blueprint) -> bool {
    2 * blueprint.active_weights_per_token() < SMALL_MODEL_BYTES
}

/// Reasons why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model or its cache does not fit in memory.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The batching limits are invalid.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The GPU cannot be used.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The checkpoint cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The draft model's folder cannot be read.
    #[error("speculation.draft: {0}")]
    DraftFolder(#[source] CheckpointError),
    /// The draft model's configuration cannot be used.
    #[error("speculation.draft: {0}")]
    DraftConfig(#[source] BlueprintError),
    /// The draft model goes with another target.
    #[error("speculation.draft: {0}")]
    DraftMismatch(#[from] DraftMismatch),
    /// Method "mtp" for a checkpoint without such a layer.
    #[error(
        "speculation.method: \"mtp\" needs a checkpoint with prediction layers, this one's num_nextn_predict_layers is 0: set \"auto\""
    )]
    NoMtpLayer,
    /// The backend runs no draft model.
    #[error(
        "speculation.draft: the {backend} backend{} runs no draft model: leave the setting out, or set device.ranks = 1", .ranks
    )]
    DraftBackend {
        /// Name of the backend.
        backend: &'static str,
        /// Its number of ranks, if several, in words.
        ranks: String,
    },
    /// The checkpoint's KV scales cannot be used.
    #[error(transparent)]
    KvScale(#[from] KvScaleError),
    /// An operation of the backend failed.
    #[error(transparent)]
    Op(OpError),
    /// The system refused memory that the plan counted on.
    #[error("the memory plan counted on memory that the system does not give; {}", remedy(.what))]
    NoMemory {
        /// Use of the allocation.
        what: &'static str,
        /// The failed allocation with its bytes.
        source: OpError,
    },
    /// Blocks cannot be kept beyond the cache.
    #[error(transparent)]
    Tiers(#[from] TierError),
    /// The engine's thread could not be started.
    #[error("the engine thread could not be started")]
    Thread(#[from] std::io::Error),
}

impl From<OpError> for EngineError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::OutOfMemory { what, .. } => Self::NoMemory { what, source: error },
            error => Self::Op(error),
        }
    }
}

/// The settings that determine the size of an allocation.
fn remedy(what: &str) -> &'static str {
    match what {
        "latent cache" => {
            "lower kv_cache.memory_bytes (or kv_cache.num_blocks), or raise the limit of the process (ulimit -v, cgroup)"
        }
        _ => {
            "lower kv_cache.memory_bytes or scheduler.max_num_batched_tokens, or raise the limit of the process (ulimit -v, cgroup)"
        }
    }
}

/// Progress of building the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineProgress {
    /// `done` of `total` ops without a measurement are tuned.
    Tuning {
        /// Ops tuned so far.
        done: usize,
        /// Ops in all.
        total: usize,
    },
    /// Memory is planned.
    Planned(MemoryPlan),
    /// `done` of `total` bytes of weights are loaded.
    Weights {
        /// Bytes of the checkpoint loaded so far.
        done: u64,
        /// Bytes to load.
        total: u64,
    },
    /// Weights are loaded; the first passes run.
    WarmingUp,
}

/// A started engine.
pub struct StartedEngine {
    /// The door for submissions.
    pub handle: EngineHandle,
    /// The engine's thread; returns the reason of a failure, or `Ok` after `shutdown`.
    pub thread: JoinHandle<Result<(), String>>,
}

/// Builds and starts the engine. Blocking: seconds to minutes for a large checkpoint.
pub fn start_engine(
    checkpoint: &Checkpoint,
    blueprint: Blueprint,
    options: &EngineOptions,
    metrics: Arc<Metrics>,
    progress: &mut dyn FnMut(EngineProgress),
) -> Result<StartedEngine, EngineError> {
    match &options.backend {
        BackendChoice::Reference => {
            start_on(Equipped::reference(), checkpoint, blueprint, options, metrics, progress)
        }
        BackendChoice::Cpu(cpu) => {
            start_on(Equipped::cpu(*cpu), checkpoint, blueprint, options, metrics, progress)
        }
        BackendChoice::CpuRanks { ranks, each } => {
            let equipped = Equipped::cpu_ranks(*ranks, *each)?;
            start_on(equipped, checkpoint, blueprint, options, metrics, progress)
        }
        BackendChoice::Cuda(gpu) => {
            let ops = tuned_ops(&Inventory::take(checkpoint, &blueprint), &blueprint);
            let tuning = &mut |done, total| progress(EngineProgress::Tuning { done, total });
            let meter = Arc::<UploadMeter>::default();
            let backend = gpu.open(&ops, tuning, meter.clone(), options.launch_times.clone(), &metrics)?;
            // Tiles hold gate and up of an expert.
            let order = if gpu.has_variants() { ExpertOrder::ByPair } else { ExpertOrder::ByProjection };
            let equipped = Equipped::new(backend, CacheDType::Bf16).with_drafts().with_towers();
            let equipped = equipped.with_uploads(order, meter);
            start_on(equipped, checkpoint, blueprint, options, metrics, progress)
        }
    }
}

/// The memory plan of [`start_engine`], without loading a weight. `None` for a GPU: its backend exists only once its kernels
/// are loaded.
pub(crate) fn plan_engine(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    options: &EngineOptions,
) -> Result<Option<MemoryPlan>, EngineError> {
    let plan = match &options.backend {
        BackendChoice::Reference => lay_out(&mut Equipped::reference(), checkpoint, blueprint, options)?.plan,
        BackendChoice::Cpu(cpu) => lay_out(&mut Equipped::cpu(*cpu), checkpoint, blueprint, options)?.plan,
        BackendChoice::CpuRanks { ranks, each } => {
            lay_out(&mut Equipped::cpu_ranks(*ranks, *each)?, checkpoint, blueprint, options)?.plan
        }
        BackendChoice::Cuda(_) => return Ok(None),
    };
    Ok(Some(plan))
}

/// What an engine consists of, before anything is loaded.
struct Layout<'a, B: Backend> {
    dtype: CacheDType,
    capacity: Capacity,
    max_model_len: usize,
    /// Of the latent norms.
    eps: f32,
    draft: Option<(DraftSource, DraftSupport<B>)>,
    /// Blocks of the draft's cache for guesses that have no place in their sequence's blocks yet.
    spare_blocks: usize,
    tower: Option<(&'a TowerSource, TowerSupport<B>)>,
    inventory: Inventory,
    plan: MemoryPlan,
}

/// Chooses draft and tower, which it takes from `equipped`, checks the checkpoint's tensors, and plans the memory.
fn lay_out<'a, B: Backend>(
    equipped: &mut Equipped<B>,
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    options: &'a EngineOptions,
) -> Result<Layout<'a, B>, EngineError> {
    let Equipped { backend, cache_dtype: default_dtype, drafts, towers, .. } = equipped;
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
    };
    let one_block = blueprint.cache_shape(1, options.block_size, dtype);
    let draft = DraftSource::open(&options.speculation, checkpoint, blueprint, eps)?;
    let mut needs = backend.memory_needs(&blueprint.shape(eps), &capacity, &one_block);
    let spare_blocks = batching.max_num_seqs * options.speculation.max_tokens.div_ceil(options.block_size);
    let draft = match (draft, drafts.take()) {
        (None, _) => None,
        (Some(source), Some(support)) => {
            let more = source.memory(&support, &*backend, &capacity, dtype);
            needs.workspace_bytes += more.workspace_bytes + spare_blocks as u64 * more.cache_bytes;
            needs.cache_bytes += more.cache_bytes;
            Some((source, support))
        }
        (Some(source), None) if source.is_default(&options.speculation) => None,
        (Some(_), None) => {
            let ranks = match &options.backend {
                BackendChoice::CpuRanks { ranks, .. } => format!(" on {ranks} ranks"),
                _ => String::new(),
            };
            return Err(EngineError::DraftBackend { backend: backend.name(), ranks });
        }
    };
    let tower = options.tower.as_ref().zip(towers.take());
    if let Some((source, support)) = &tower {
        needs.workspace_bytes += (support.bytes)(&*backend, &source.blueprint.shape, &source.capacity());
    }
    let inventory = Inventory::take(checkpoint, blueprint);
    // Before the plan: a checkpoint of another configuration is a better reason to give than lack
    // of memory.
    LoadError::check(checkpoint, &inventory.problems)?;
    let plan = MemoryPlan::new(&PlanInput {
        weights: &inventory.loaded_bytes(),
        widened_bytes: inventory.widened_bytes(if *default_dtype == CacheDType::F32 { 4 } else { 2 }),
        draft_bytes: draft.as_ref().map_or(0, |(source, _)| source.bytes()),
        vision_bytes: tower.as_ref().map_or(0, |(source, _)| source.bytes),
        needs,
        max_num_seqs: batching.max_num_seqs,
        max_model_len,
        block_size: options.block_size,
        cache_bytes: options.cache_bytes,
        num_blocks: options.num_blocks,
        host_tier_bytes: options.tiers.as_ref().map_or(0, |tiers| tiers.host_bytes),
        host_available_bytes: available_memory().unwrap_or(u64::MAX / 2),
        memory: match backend.free_memory()? {
            Some(bytes) => Memory::device(bytes),
            None => Memory::host(available_memory().unwrap_or(u64::MAX / 2)),
        },
    })?;
    Ok(Layout { dtype, capacity, max_model_len, eps, draft, spare_blocks, tower, inventory, plan })
}

/// [`start_engine`] on a given backend; `options.backend` is ignored.
pub fn start_on<B: Backend>(
    mut equipped: Equipped<B>,
    checkpoint: &Checkpoint,
    blueprint: Blueprint,
    options: &EngineOptions,
    metrics: Arc<Metrics>,
    progress: &mut dyn FnMut(EngineProgress),
) -> Result<StartedEngine, EngineError> {
    let layout = lay_out(&mut equipped, checkpoint, &blueprint, options)?;
    let Layout { dtype, capacity, max_model_len, eps, draft, spare_blocks, tower, inventory, plan } = layout;
    let Equipped { mut backend, uploads, .. } = equipped;
    let (batching, preferences) = (&options.scheduler, backend.preferences());
    let limits = batching.limits(
        preferences.prefill_tokens,
        blueprint.max_position_embeddings,
        options.block_size,
        plan.num_blocks,
        options.prefix_caching,
    )?;
    let num_blocks = plan.num_blocks;
    let kv_scales = stored_kv_scales(checkpoint, &inventory, dtype, blueprint.num_layers)?;
    progress(EngineProgress::Planned(plan));
    let mut weights_bytes = 0;
    let weights = Weights::load_inventory(
        checkpoint,
        &blueprint,
        inventory,
        &mut backend,
        &uploads,
        &mut |done, total| {
            weights_bytes = total;
            progress(EngineProgress::Weights { done, total });
        },
    )?;
    metrics.set_weights_bytes(weights_bytes);
    progress(EngineProgress::WarmingUp);
    let facts = EngineFacts {
        vocab_size: blueprint.vocab_size,
        max_model_len,
        max_num_seqs: batching.max_num_seqs,
        max_queue_len: batching.max_queue_len,
        max_queue_tokens: batching.max_queue_tokens,
        block_size: options.block_size,
        num_blocks,
        prefix_caching: options.prefix_caching,
        cache_dtype: dtype.name(),
        backend: backend.name(),
        ranks: match &options.backend {
            BackendChoice::CpuRanks { ranks, .. } => *ranks,
            _ => 1,
        },
        vision: tower.as_ref().map(|(source, _)| VisionFacts {
            num_rows: source.capacity().num_rows,
            max_patches: source.capacity().max_patches,
            media_token_id: source.blueprint.media_token_id,
        }),
    };
    let cache = blueprint.cache_shape(num_blocks, options.block_size, dtype);
    let drafter = match &draft {
        None => None,
        Some((source, support)) => {
            let target = (checkpoint, &blueprint);
            let blocks = (num_blocks + spare_blocks, dtype);
            Some(source.load(support, target, &mut backend, &capacity, blocks)?)
        }
    };
    let tower = match &tower {
        None => None,
        Some((source, support)) => {
            let (levels, capacity) = (source.preprocessor.levels(), source.capacity());
            Some((support.load)(checkpoint, &source.blueprint, levels, &mut backend, &capacity)?)
        }
    };
    let model = Model::new(backend, blueprint, weights, eps, capacity, &cache)?;
    let mut model = model.with_draft(drafter).with_tower(tower);
    if let Some(scales) = kv_scales {
        model.set_cache_scales(&scales.exponents)?;
    }
    warm_up(&mut model, options.block_size)?;
    let mut steps = MeasuredSteps::default();
    if options.speculation.is_on() {
        steps = measure_steps(&mut model, options.block_size, capacity.max_logits_rows)?;
    }
    let tiers = match options.tiers.as_ref().filter(|_| options.prefix_caching) {
        None => None,
        Some(tiers) => {
            let draft = draft.as_ref().and_then(|(source, _)| source.files());
            let identity = kv_identity(checkpoint, draft, options, dtype);
            let (own, drafts) = model.block_bytes();
            Some(Tiers::open(tiers, identity, own + drafts, metrics.clone())?)
        }
    };
    let (handle, thread) = spawn(model, limits, facts, options.speculation.clone(), steps, tiers, metrics)?;
    Ok(StartedEngine { handle, thread })
}

/// The checkpoint's scales for a cache type that takes them; logs the use made of stored scales.
fn stored_kv_scales(
    checkpoint: &Checkpoint,
    inventory: &Inventory,
    dtype: CacheDType,
    num_layers: usize,
) -> Result<Option<KvScales>, EngineError> {
    let stored = inventory.kv_scales.len();
    if !matches!(dtype, CacheDType::Fp8(format) if !format.row_scales) {
        if stored > 0 {
            tracing::info!(
                stored,
                "the checkpoint's KV scales are not used: kv_cache.fp8_scale = tensor uses them"
            );
        }
        return Ok(None);
    }
    let scales = KvScales::read(checkpoint, &inventory.kv_scales, num_layers)?;
    tracing::info!(
        layers = scales.num_stored,
        smallest_log2 = scales.exponents.iter().min(),
        largest_log2 = scales.exponents.iter().max(),
        "KV scales of the checkpoint, covered by powers of two; 1 for the other layers"
    );
    Ok(Some(scales))
}
