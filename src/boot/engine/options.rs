//! The settings of an engine, resolved for one network.

use std::sync::Arc;
use std::time::Duration;

use super::GivenDevices;
use crate::boot::gpu::{Gpu, GpuError};
use crate::boot::sight::TowerSource;
use crate::config::parallel::ExchangeType;
use crate::config::{Settings, device};
use perigee_cpu::CpuOptions;
use perigee_cuda::LaunchTimes;
use perigee_cuda::kernels::all_reduce::Wire;
use perigee_decoding::speculation;
use perigee_engine::kv_tiers::{DiskOptions, TierOptions};
use perigee_engine::scheduler;
use perigee_model::config::{Fp8Rope, Fp8Scale, KvDtype, LatentNormEps};
use perigee_model::{Blueprint, Fp4Activations};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::{Activations, AttentionExchange, CacheDtype, Parallelism};

/// BF16 bytes of weights per token below which activations are f32 unless the operator says otherwise.
const SMALL_MODEL_BYTES: usize = 32 << 20;

/// Which backend runs the model.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendChoice {
    /// The reference backend, exact and slow.
    Reference,
    /// The fast CPU backend.
    Cpu(CpuOptions),
    /// A GPU, or several that share the model.
    Cuda(Gpu),
    /// A GPU, or the other choice where it cannot be used or has no room for the model.
    Auto {
        /// The GPU.
        gpu: Gpu,
        /// The backend that computes if the GPU cannot.
        otherwise: Box<BackendChoice>,
    },
    /// Devices of another driver.
    Given {
        /// Starts the engine on them.
        devices: GivenDevices,
        /// Rounding of what enters a product.
        activations: Activations,
    },
    /// Several ranks of the fast CPU backend, each with its own threads.
    CpuRanks {
        /// Number of ranks, at least 1.
        ranks: usize,
        /// Options of each rank.
        each: CpuOptions,
        /// How they share the model.
        parallelism: Parallelism,
    },
}

/// Resolved settings of the engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Backend and its options.
    pub backend: BackendChoice,
    /// Share of a GPU's memory that may be in use.
    pub memory_utilization: f64,
    /// How several GPUs share the model; ranks of the CPU have it in `backend`.
    pub parallelism: Parallelism,
    /// Exchange of GPUs that divide a cache which, whole on each, has no room for the longest sequence; `None`: they do not divide it.
    pub divides_if_small: Option<AttentionExchange>,
    /// In which type sums cross between GPUs.
    pub wire: Wire,
    /// Batching limits.
    pub scheduler: scheduler::Config,
    /// Tokens per block.
    pub block_size: usize,
    /// Bytes of the cache, 0 = chosen by the memory plan.
    pub cache_bytes: u64,
    /// Blocks of the cache, 0 = follows from the bytes.
    pub num_blocks: usize,
    /// Form of the rows in front of FFNs with 4-bit weights, where it is not the backend's own.
    pub fp4_activations: Option<Fp4Activations>,
    /// Element type of the cache; `None` follows the activations.
    pub cache_dtype: Option<CacheDtype>,
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
        let (ranks, threads) = (settings.device.ranks, settings.device.threads);
        let cpu = CpuOptions { threads, activations, ..Default::default() };
        let on_cpu = || match ranks {
            1 => BackendChoice::Cpu(cpu),
            _ => BackendChoice::CpuRanks {
                ranks,
                each: share_threads(cpu, ranks),
                parallelism: settings.parallel.resolve(ranks, false),
            },
        };
        let backend = match settings.device.backend {
            device::BackendChoice::Reference => BackendChoice::Reference,
            device::BackendChoice::Auto => match choose_gpu(settings, find_gpu(settings, blueprint)) {
                Ok(gpu) => BackendChoice::Auto { gpu, otherwise: Box::new(on_cpu()) },
                Err(reason) => {
                    tracing::info!("{reason}");
                    on_cpu()
                }
            },
            device::BackendChoice::Cpu => on_cpu(),
            device::BackendChoice::Cuda => BackendChoice::Cuda(find_gpu(settings, blueprint)?),
        };
        Ok(Self::with(backend, settings))
    }

    /// The settings for one network on given devices.
    pub fn on_devices(settings: &Settings, blueprint: &Blueprint, devices: GivenDevices) -> Self {
        let activations = activations(settings, blueprint);
        Self::with(BackendChoice::Given { devices, activations }, settings)
    }

    fn with(backend: BackendChoice, settings: &Settings) -> Self {
        let cache = &settings.kv_cache;
        Self {
            backend,
            memory_utilization: settings.device.memory_utilization,
            parallelism: settings.parallel.resolve(settings.device.ranks, true),
            divides_if_small: settings.parallel.divides_if_small(settings.device.ranks, cache.block_size),
            wire: match settings.parallel.exchange {
                ExchangeType::F32 => Wire::F32,
                ExchangeType::Bf16 => Wire::Bf16,
            },
            scheduler: settings.scheduler.clone(),
            block_size: cache.block_size,
            cache_bytes: cache.memory_bytes,
            num_blocks: cache.num_blocks,
            cache_dtype: match cache.dtype {
                KvDtype::Auto => None,
                KvDtype::Bf16 => Some(CacheDtype::Bf16),
                KvDtype::F32 => Some(CacheDtype::F32),
                KvDtype::Fp8 => Some(CacheDtype::Fp8(CachedRowFormat {
                    row_scales: cache.fp8_scale == Fp8Scale::Token,
                    rope_codes: cache.fp8_rope == Fp8Rope::Fp8,
                })),
            },
            fp4_activations: settings.device.fp4_activations(),
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
        }
    }

    /// These options with another backend.
    pub(super) fn on(&self, backend: &BackendChoice) -> Self {
        Self { backend: backend.clone(), ..self.clone() }
    }

    /// These options with the model shared so.
    pub(super) fn sharing(&self, parallelism: Parallelism) -> Self {
        Self { parallelism, ..self.clone() }
    }
}

/// The GPU that `device.backend = auto` tries, or why it computes on the CPU.
fn choose_gpu(settings: &Settings, found: Result<Gpu, GpuError>) -> Result<Gpu, String> {
    let gpu = found.map_err(|error| format!("no GPU, computing on the CPU: {error}"))?;
    let reason = match &settings.model.path {
        // Small enough for a processor's caches, which answer at once: a GPU's kernels would first have to be compiled.
        None => "the embedded model is computed on the CPU; device.backend = cuda takes the GPU".to_owned(),
        Some(_) => match settings.parallel.validate(settings.device.ranks, true).first() {
            Some((key, _)) => format!("GPUs do not divide a model as parallel.{key} says"),
            None => return Ok(gpu),
        },
    };
    Err(format!("the GPU {} is not used: {reason}", gpu.name()))
}

/// The GPU that `device.backend = cuda` runs a network on, and `auto` tries.
pub(crate) fn find_gpu(settings: &Settings, blueprint: &Blueprint) -> Result<Gpu, GpuError> {
    let gpu = Gpu::find(&settings.kernels, activations(settings, blueprint), &settings.device)?;
    let parallel = &settings.parallel;
    let needs_peers = parallel.splits_context(settings.device.ranks, true);
    Ok(gpu.exchanging(parallel.wait(), parallel.collectives, needs_peers))
}

/// Type of the activations: the setting, or by the size of the network.
fn activations(settings: &Settings, blueprint: &Blueprint) -> Activations {
    let by_size = if is_small(blueprint) { Activations::F32 } else { Activations::Bf16 };
    settings.device.activations.unless_auto(by_size)
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
