//! Proof that a pruned or quantized folder is what its source and its plan say.
//!
//! The audit reads both folders and shares no code with the writers beyond reading names. It compares each
//! tensor of the target with the tensor of the source that it must come from. Memory does not grow with the
//! checkpoints.

pub mod compare;
mod other_files;
mod distance;
mod faults;
mod functional;
mod infer;
mod linears;
mod options;
mod pruned;
mod quantized;
mod report;
mod routers;
mod walk;

use std::path::Path;

use self::walk::Folders;
use crate::fingerprint::SourceId;
use crate::prune::plan_file::{ExpertLayers, ExpertPlan, PLAN_FILE, PlanFileError};
use crate::prune::rewrite::{RewriteError, expert_layers};
use perigee_model::checkpoint::{Checkpoint, CheckpointError};

pub use faults::Faults;
pub use functional::Functional;
pub use infer::InferError;
pub use linears::LinearError;
pub use options::AuditOptions;
pub use pruned::{LayerAudit, PrunedAudit};
pub use quantized::{ClassError, QuantizedAudit};
pub use report::{AuditOutcome, AuditReport};

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

/// Bytes read so far, and all that will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditProgress {
    /// Bytes of the target that are checked.
    pub done: u64,
    /// Bytes of the target.
    pub total: u64,
}

/// Audits the folder `target_dir` against the folder `source_dir`. A target with fewer experts than its source is audited as pruned, and as
/// quantized too where its weights are in other formats; otherwise as quantized (an equal copy is a quantized folder without error).
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
    // A plan that the source has too tells how the source was made, not the target.
    let own_plan = target.read_file(PLAN_FILE)?.filter(|plan| source.file(PLAN_FILE).as_ref() != Some(plan));
    let plan = match (options.plan, own_plan) {
        (Some(plan), _) => Some((plan.clone(), "the given plan".to_owned())),
        (None, Some(json)) => Some(own(&json, &source, &target, &source_layers, &mut report.warnings)?),
        (None, None) if same_experts => None,
        (None, None) => {
            let plan = infer::infer_plan(&source, &target, &source_layers)?;
            Some((plan, "the target's router rows".into()))
        }
    };
    if let Some((plan, origin)) = &plan {
        plan.check_source(&SourceId::of(&source), &source_layers)
            .map_err(|error| AuditError::Plan { origin: origin.clone(), error })?;
        report.plan(plan, origin.clone());
    }
    let plan = plan.as_ref().map(|(plan, _)| plan);
    let folders = Folders { source: &source, target: &target, plan };
    (report.pruned, report.quantized) = walk::walk(folders, &mut report.faults, &mut advance);
    let is_quantized = report.quantized.is_some();
    other_files::audit(&source, &target, plan, is_quantized, &mut report);
    if let (Some(plan), Some(pruned)) = (plan, &mut report.pruned)
        && options.functional_tokens > 0
    {
        pruned.functional =
            functional::audit(&source, &target, plan, options, !is_quantized, &mut report.faults);
    }
    Ok(report.finish())
}

/// The target's own plan. One that was made for a folder in between (quantized first, pruned then) names another source: it is taken if the
/// router rows say the same.
fn own(
    json: &[u8],
    source: &Checkpoint,
    target: &Checkpoint,
    source_layers: &ExpertLayers,
    warnings: &mut Vec<String>,
) -> Result<(ExpertPlan, String), AuditError> {
    let origin = format!("{PLAN_FILE} of the target");
    let plan = ExpertPlan::parse(json).map_err(|error| AuditError::Plan { origin: origin.clone(), error })?;
    if let Err(PlanFileError::OtherSource { plan_name, .. }) =
        plan.check_source(&SourceId::of(source), source_layers)
        && let Ok(found) = infer::infer_plan(source, target, source_layers)
        && found.fingerprint() == plan.fingerprint()
    {
        warnings.push(format!(
            "{PLAN_FILE} was made for {plan_name}, a folder in between; the router rows say that it holds for this source too"
        ));
        return Ok((found, format!("{origin}, confirmed by its router rows")));
    }
    Ok((plan, origin))
}

#[cfg(test)]
mod tests;
