//! Offline work on checkpoints: quantize one, prune its experts, audit what was written, compare two on a
//! text. A folder goes in and a smaller one comes out, shard by shard with bounded memory, with a report of
//! what was lost.
//!
//! Knows names of modules as released checkpoints spell them, and the dialects of the engines that read the
//! result. The backend is an argument. Knows no engine, no server and no clock: progress is reported by
//! callbacks. Each folder names only folders above it in the list below.

#![forbid(unsafe_code)]

mod fingerprint;
pub mod calibrate;
pub mod prune;
pub mod quantize;
pub mod audit;
pub mod stand_in;
#[cfg(test)]
mod test_folder;

pub use audit::compare::{Comparison, compare};
pub use audit::{AuditError, AuditOptions, AuditReport, LinearError, audit};
pub use calibrate::calibration::{Calibration, CalibrationReport, calibrate};
pub use calibrate::collect::collect;
pub use calibrate::saliency::{LayerSaliency, Saliency, SaliencyError};
pub use calibrate::text_pass::{Documents, PassError, PassOptions, PassProgress, TextPass};
pub use fingerprint::{SourceId, TextId, fingerprint};
pub use prune::model_config::ConfigError;
pub use prune::plan_file::{ExpertPlan, LayerPlan, PlanFileError};
pub use prune::rewrite::{RewriteError, expert_layers};
pub use prune::select::{Criterion, survivors};
pub use prune::{PruneError, PruneProgress, PruneReport, prune};
pub use quantize::recipe::{Dialect, KvCache, ModuleSet, Options, OptionsError, TargetFormat};
pub use quantize::report::{ClassReport, Report};
pub use quantize::{CalibrationRequest, MeasureError, Progress, QuantizeError, quantize};
pub use stand_in::StandIn;
