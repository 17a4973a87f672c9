//! Offline work on checkpoints: a folder in, a smaller folder out, shard by shard with bounded memory, and a report of what was lost: quantize
//! it, prune its experts, audit what was written, compare two checkpoints on a text.
//!
//! Knows names of modules as released checkpoints spell them, and the dialects of those who read the result. The backend is handed in. Knows
//! no engine, no server, no clock: progress is told by callbacks.

pub mod audit;
mod calibration;
pub mod collect;
pub mod compare;
pub mod dialect;
mod expert_names;
mod fingerprint;
mod journal;
mod linears;
mod modules;
mod parallel;
pub mod plan_file;
pub mod prune;
mod prune_config;
pub mod quantize;
pub mod recipe;
pub mod report;
mod rewrite;
pub mod saliency;
pub mod select;
mod shard;
mod source;
#[cfg(test)]
mod test_folder;
pub mod text_pass;

pub use audit::{AuditError, AuditOptions, AuditReport, audit};
pub use calibration::{Calibration, CalibrationReport, calibrate};
pub use collect::{PassProgress, collect};
pub use compare::{Comparison, compare};
pub use fingerprint::{SourceId, TextId, fingerprint};
pub use linears::LinearError;
pub use modules::ModuleClass;
pub use plan_file::{ExpertPlan, LayerPlan, PlanFileError};
pub use prune::{PruneError, PruneProgress, PruneReport, prune};
pub use prune_config::ConfigError;
pub use quantize::{CalibrationRequest, MeasureError, Progress, QuantizeError, quantize};
pub use recipe::{Dialect, KvCache, ModuleSet, Options, OptionsError, TargetFormat};
pub use report::{ClassReport, Report};
pub use rewrite::{RewriteError, expert_layers};
pub use saliency::{LayerSaliency, Saliency, SaliencyError};
pub use select::{Criterion, survivors};
pub use text_pass::{Documents, PassError, PassOptions, TextPass};
