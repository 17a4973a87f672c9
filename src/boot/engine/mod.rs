//! From a checkpoint to a running engine: options from the settings, the layout and its memory plan, weights,
//! the first passes, the thread. The backend's type is not visible above this module.

mod devices;
mod options;
mod plan;
mod start;

pub use devices::{Devices, GivenDevices};
pub use options::{BackendChoice, EngineOptions};
pub use start::{StartedEngine, start_engine, start_on, start_on_gpus};

pub(crate) use options::find_gpu;
pub(crate) use plan::{no_room, plan_engine};

use super::gpu::GpuError;
use super::memory_plan::{MemoryPlan, PlanError};
use perigee_engine::kv_tiers::TierError;
use perigee_engine::scheduler::LimitsError;
use perigee_model::checkpoint::CheckpointError;
use perigee_model::{BlueprintError, DraftMismatch, KvScaleError, LoadError};
use perigee_ops::OpError;

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

impl EngineError {
    /// Whether a GPU that failed so lacks something that another device may have: room, kernels, a driver that works.
    fn is_lack(&self) -> bool {
        match self {
            Self::Plan(_) => true,
            Self::Gpu(error) => error.is_lack(),
            _ => false,
        }
    }
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
