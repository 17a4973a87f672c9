//! Metrics registry and logs. Knows none of the modules it observes: those pass figures in.

pub mod config;
mod exemplars;
mod flight;
pub mod heap;
mod legacy;
mod logs;
mod metrics;
mod native;
mod openmetrics;
mod kv_tiers;
mod vision;
mod vllm;

#[cfg(test)]
mod exposition;

pub use config::{Config, LogColor};
pub use flight::{FlightRecorder, RequestRecord, StepShape};
pub use kv_tiers::{KvLoss, KvTier};
pub use logs::{LogControl, LogError, init};
pub use metrics::{
    DraftFigures, DraftSkip, EngineInfo, Exposition, FinishLabel, GuardFigures, KernelFigures, Load, Metrics,
    Rejection, RequestFigures, StepSeconds, StepTimes,
};
pub use vision::ImageRefusal;
