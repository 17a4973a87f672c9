//! Metrics registry and logs. Knows none of the modules it observes: those pass figures in.

pub mod config;
mod exemplars;
mod exposition;
mod families;
mod figures;
mod flight;
mod gpus;
pub mod heap;
mod history;
mod logs;
mod metrics;
mod ranks;
mod recorder;
mod slo;
mod throttle;

#[cfg(test)]
mod page;

pub use config::{Config, LogColor};
pub use exposition::Exposition;
pub use figures::{
    ClientFigures, DraftFigures, DraftSkip, EngineInfo, FinishLabel, GuardFigures, ImageRefusal,
    KernelFigures, KvLoss, KvTier, Load, Preemption, Rejection, RequestFigures, StepSeconds, StepTimes,
};
pub use flight::{FlightRecorder, RequestRecord, StepShape};
pub use gpus::GpuFigures;
pub use history::{HistoryReport, SAMPLE_EVERY};
pub use logs::{LogControl, LogError, init};
pub use metrics::{Metrics, PAGE_ROUTE};
pub use ranks::{SLOW_RANK, Straggler};
pub use slo::SloConfig;
pub use throttle::Throttle;
