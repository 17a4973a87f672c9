//! Offline work on checkpoints: prune experts, audit what was written, compare two checkpoints on a text.
//!
//! The backend is handed in; nothing here serves requests, reads a clock or knows the command line.

pub mod audit;
pub mod collect;
pub mod compare;
mod expert_names;
mod fingerprint;
mod linears;
pub mod plan_file;
pub mod prune;
mod prune_config;
mod rewrite;
pub mod saliency;
pub mod select;
#[cfg(test)]
mod test_folder;
pub mod text_pass;

pub use audit::{AuditError, AuditOptions, AuditReport, audit};
pub use collect::{PassProgress, collect};
pub use compare::{Comparison, compare};
pub use fingerprint::{SourceId, TextId, fingerprint};
pub use linears::LinearError;
pub use plan_file::{ExpertPlan, LayerPlan, PlanFileError};
pub use prune::{PruneError, PruneProgress, PruneReport, prune};
pub use prune_config::ConfigError;
pub use rewrite::{RewriteError, expert_layers};
pub use saliency::{LayerSaliency, Saliency, SaliencyError};
pub use select::{Criterion, survivors};
pub use text_pass::{Documents, PassError, PassOptions, TextPass};
