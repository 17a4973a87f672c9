//! Metrics registry and logs. Knows none of the modules it observes: those pass figures in.

pub mod config;
mod exemplars;
mod exposition;
mod flight;
pub mod heap;
mod legacy;
mod logs;
mod metrics;
mod native;
mod kv_tiers;
mod throttle;
mod vision;
mod vllm;

#[cfg(test)]
mod page;

pub use config::{Config, LogColor};
pub use exposition::Exposition;
pub use flight::{FlightRecorder, RequestRecord, StepShape};
pub use kv_tiers::{KvLoss, KvTier};
pub use logs::{LogControl, LogError, init};
pub use metrics::{
    DraftFigures, DraftSkip, EngineInfo, FinishLabel, GuardFigures, KernelFigures, Load, Metrics, Rejection,
    RequestFigures, StepSeconds, StepTimes,
};
pub use throttle::Throttle;
pub use vision::ImageRefusal;
