//! Loads an engine, runs its first passes and starts its thread.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::plan::{Layout, lay_out, no_room};
use super::{BackendChoice, EngineError, EngineOptions, EngineProgress};
use crate::boot::draft_source::DraftSource;
use crate::boot::equipped::{Equipped, EquippedGpus};
use crate::boot::gpu::OpenGpus;
use crate::boot::gpu_watch;
use crate::boot::kv_identity::kv_identity;
use crate::boot::memory_plan::PlanError;
use crate::boot::tuned_ops::tuned_ops;
use perigee_cuda::{Driver, ExchangeTimes};
use perigee_engine::kv_tiers::Tiers;
use perigee_engine::{EngineFacts, EngineHandle, MeasuredSteps, VisionFacts, measure_steps, spawn, warm_up};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, ExpertOrder, Inventory, KvScales, Model, Tower, Uploads, Weights};
use perigee_numbers::threads::UploadMeter;
use perigee_ops::{Backend, CacheDtype, ContextSplit, Parallelism};
use perigee_telemetry::Metrics;

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
        BackendChoice::CpuRanks { ranks, each, parallelism } => {
            let equipped = Equipped::cpu_ranks(*ranks, *each, *parallelism)?;
            start_on(equipped, checkpoint, blueprint, options, metrics, progress)
        }
        BackendChoice::Cuda(gpu) => {
            let (ranks, groups) = (gpu.ranks(), options.parallelism.expert_groups);
            let inventory = Inventory::take(checkpoint, &blueprint);
            let ops = tuned_ops(&inventory, &blueprint, options.fp4_activations, ranks, groups);
            let tuning = &mut |done, total| progress(EngineProgress::Tuning { done, total });
            let meter = Arc::<UploadMeter>::default();
            let OpenGpus { backends, watched, reach_each_other } =
                gpu.open(&ops, tuning, &meter, options.launch_times.clone(), &metrics)?;
            // Tiles hold gate and up of an expert.
            let order = if gpu.has_variants() { ExpertOrder::ByPair } else { ExpertOrder::ByProjection };
            let equipped = EquippedGpus {
                backends,
                memory_bytes: gpu.memory_bytes(),
                reach_each_other,
                uploads: Uploads { meter, order, expert_groups: options.parallelism.expert_groups },
            };
            let started = start_on_gpus(equipped, checkpoint, blueprint, options, metrics.clone(), progress)?;
            gpu_watch::watch(watched, &metrics);
            Ok(started)
        }
        BackendChoice::Given { devices, activations } => {
            devices.0.start(*activations, checkpoint, blueprint, options, metrics, progress)
        }
        BackendChoice::Auto { gpu, otherwise } => {
            let started = match no_room(gpu, checkpoint, &blueprint) {
                Some(reason) => Err(reason),
                None => {
                    let on_gpu = options.on(&BackendChoice::Cuda(gpu.clone()));
                    match start_engine(checkpoint, blueprint.clone(), &on_gpu, metrics.clone(), progress) {
                        Err(error) if error.is_lack() => Err(error.to_string()),
                        started => Ok(started),
                    }
                }
            };
            started.unwrap_or_else(|reason| {
                tracing::warn!(device = gpu.name(), "the GPU is not used, computing on the CPU: {reason}");
                start_engine(checkpoint, blueprint, &options.on(otherwise), metrics, progress)
            })
        }
    }
}

/// [`start_engine`] on a GPU, or on several that share the model; `options.backend` is ignored.
pub fn start_on_gpus<D: Driver>(
    mut gpus: EquippedGpus<D>,
    checkpoint: &Checkpoint,
    blueprint: Blueprint,
    options: &EngineOptions,
    metrics: Arc<Metrics>,
    progress: &mut dyn FnMut(EngineProgress),
) -> Result<StartedEngine, EngineError> {
    if gpus.backends.len() > 1 {
        let times = Arc::new(ExchangeTimes::new(gpus.backends.len()));
        for backend in &mut gpus.backends {
            backend.set_exchange_times(times.clone());
            backend.set_wire(options.wire);
        }
        metrics.watch_ranks(move || times.seconds());
    }
    match gpus.alone() {
        Ok(alone) => start_on(alone, checkpoint, blueprint, options, metrics, progress),
        Err(several) => {
            let exchange = options.divides_if_small.filter(|_| several.reach_each_other);
            let mut ranks = several.as_ranks(options.parallelism)?;
            if let Some(exchange) = exchange
                && let Err(EngineError::Plan(error @ PlanError::CacheTooSmall { .. })) =
                    lay_out(&mut ranks, checkpoint, &blueprint, options)
            {
                tracing::info!(
                    reason = error.to_string(),
                    "the GPUs divide the cache (parallel.context = 0)"
                );
                let context = ContextSplit::Split(exchange);
                let options = options.sharing(Parallelism { context, ..options.parallelism });
                let ranks = ranks.sharing(options.parallelism);
                return start_on(ranks, checkpoint, blueprint, &options, metrics, progress);
            }
            start_on(ranks, checkpoint, blueprint, options, metrics, progress)
        }
    }
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
    let Equipped { mut backend, uploads, ranks, .. } = equipped;
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
        options.fp4_activations,
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
        ranks,
        vision: tower.map(|source| VisionFacts {
            num_rows: source.capacity().num_rows,
            max_patches: source.capacity().max_patches,
            media_token_id: source.blueprint.media_token_id,
        }),
    };
    let cache = blueprint.cache_shape(num_blocks, options.block_size, dtype);
    let drafter = match &draft {
        None => None,
        Some(source) => {
            let (target, blocks) = ((checkpoint, &blueprint), (num_blocks + spare_blocks, dtype));
            Some(source.load(target, &mut backend, &capacity, blocks)?)
        }
    };
    let tower = match tower {
        None => None,
        Some(source) => {
            let (levels, capacity) = (source.preprocessor.levels(), source.capacity());
            Some(Tower::load(checkpoint, &source.blueprint, levels, &mut backend, &capacity)?)
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
            let draft = draft.as_ref().and_then(DraftSource::files);
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
    dtype: CacheDtype,
    num_layers: usize,
) -> Result<Option<KvScales>, EngineError> {
    let stored = inventory.kv_scales.len();
    if !matches!(dtype, CacheDtype::Fp8(format) if !format.row_scales) {
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
