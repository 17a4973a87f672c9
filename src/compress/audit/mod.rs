//! Proof that a pruned or quantized folder is what its source and its plan say.
//!
//! The audit reads both folders and shares no code with the writers beyond reading names: it goes from each tensor of the target back to the tensor of
//! the source that it must come from. Memory stays small whatever the checkpoints' size.

mod config;
mod functional;
mod infer;
mod pruned;
mod quantized;
mod report;

use std::path::Path;

use super::fingerprint::SourceId;
use super::plan_file::{ExpertPlan, PLAN_FILE, PlanFileError};
use super::rewrite::{RewriteError, expert_layers};
use crate::checkpoint::{Checkpoint, CheckpointError};

pub use functional::Functional;
pub use infer::InferError;
pub use pruned::{LayerAudit, PrunedAudit};
pub use quantized::{ClassError, QuantizedAudit};
pub use report::{AuditReport, Faults, Verdict};

/// Why an audit could not be made at all; a folder that fails one is no error.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A checkpoint that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A plan that cannot be read, or is for another source.
    #[error("{origin}: {error}")]
    Plan {
        /// File, or where the plan comes from.
        origin: String,
        /// What is wrong.
        error: PlanFileError,
    },
    /// No plan, and none can be told from the routers.
    #[error("there is no plan file, and {0}; name the plan with --plan")]
    NoPlan(#[from] InferError),
    /// Experts that cannot be told apart.
    #[error("{folder}: {error}")]
    Experts {
        /// Folder.
        folder: String,
        /// What is wrong.
        error: RewriteError,
    },
}

/// What to audit and how much of it.
#[derive(Debug)]
pub struct AuditOptions<'a> {
    /// The plan; otherwise the target's own plan file, otherwise what its router rows say.
    pub plan: Option<&'a ExpertPlan>,
    /// Layer of the functional check; `None` = the first with experts.
    pub functional_layer: Option<usize>,
    /// Random hidden vectors of the functional check; 0 leaves it out.
    pub functional_tokens: usize,
    /// Seed of the vectors.
    pub seed: u64,
}

impl Default for AuditOptions<'_> {
    fn default() -> Self {
        Self { plan: None, functional_layer: None, functional_tokens: 8, seed: 42 }
    }
}

/// Bytes read so far, and all that will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditProgress {
    /// Bytes of the target that are checked.
    pub done: u64,
    /// Bytes of the target.
    pub total: u64,
}

/// Audits the folder `target_dir` against the folder `source_dir`. A target with fewer experts than its source is audited as pruned,
/// otherwise as quantized (an equal copy is a quantized folder without error).
pub fn audit(
    source_dir: &Path,
    target_dir: &Path,
    options: &AuditOptions<'_>,
    progress: &mut dyn FnMut(AuditProgress),
) -> Result<AuditReport, AuditError> {
    let (source, target) = (Checkpoint::open(source_dir)?, Checkpoint::open(target_dir)?);
    let total = target.bytes();
    let mut done = 0;
    let mut advance = |bytes: u64| {
        done += bytes;
        progress(AuditProgress { done, total });
    };
    let mut report = AuditReport::new(&source, &target);
    let layers_of = |checkpoint: &Checkpoint| {
        expert_layers(checkpoint)
            .map_err(|error| AuditError::Experts { folder: checkpoint.source().into(), error })
    };
    let source_layers = layers_of(&source)?;
    // Gaps in the target's ids are its fault and not the end of the audit.
    let same_experts = expert_layers(&target).is_ok_and(|layers| layers == source_layers);
    let has_plan = options.plan.is_some() || target.read_file(PLAN_FILE)?.is_some();
    if same_experts && !has_plan {
        report.quantized = Some(quantized::audit(&source, &target, &mut report.faults, &mut advance));
        config::index(&target, &mut report);
        config::side(&source, &target, &mut report);
        return Ok(report.finish());
    }
    let (plan, origin) = match (options.plan, target.read_file(PLAN_FILE)?) {
        (Some(plan), _) => (plan.clone(), "the given plan".to_owned()),
        (None, Some(json)) => {
            let origin = format!("{PLAN_FILE} of the target");
            let plan = ExpertPlan::parse(&json);
            (plan.map_err(|error| AuditError::Plan { origin: origin.clone(), error })?, origin)
        }
        (None, None) => {
            (infer::infer_plan(&source, &target, &source_layers)?, "the target's router rows".into())
        }
    };
    plan.check_source(&SourceId::of(&source), &source_layers)
        .map_err(|error| AuditError::Plan { origin: origin.clone(), error })?;
    report.plan(&plan, origin);
    let mut pruned = pruned::audit(&source, &target, &plan, &mut report.faults, &mut advance);
    config::audit(&source, &target, &plan, &mut report);
    if options.functional_tokens > 0 {
        pruned.functional = functional::audit(&source, &target, &plan, options, &mut report.faults);
    }
    report.pruned = Some(pruned);
    Ok(report.finish())
}

#[cfg(test)]
mod tests;
