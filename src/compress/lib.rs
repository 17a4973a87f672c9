//! Offline work on checkpoints: a folder in, a smaller folder out, shard by shard with bounded memory, and a report of what was lost: quantize
//! it, prune its experts, audit what was written, compare two checkpoints on a text.
//!
//! Knows names of modules as released checkpoints spell them, and the dialects of those who read the result. The backend is handed in. Knows
//! no engine, no server, no clock: progress is told by callbacks. Each folder names only those above it in the list below.

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
