//! What an audit found, as JSON and as lines.

use std::fmt::Write as _;

use serde::Serialize;

use super::faults::Faults;
use super::pruned::PrunedAudit;
use super::quantized::QuantizedAudit;
use crate::prune::plan_file::{ExpertPlan, Override};
use crate::prune::select::survivors;
use perigee_model::checkpoint::Checkpoint;

/// Whether an audit passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcome {
    /// Everything that was checked is as it must be.
    Passed,
    /// Something is not.
    Failed,
}

/// A checkpoint in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Folder {
    /// Folder as given.
    pub folder: String,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of tensors.
    pub bytes: u64,
}

/// The plan in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanSummary {
    /// Where it comes from.
    pub origin: String,
    /// Criterion.
    pub criterion: String,
    /// blake3 over the kept ids.
    pub fingerprint: String,
    /// Experts per layer, source and target.
    pub experts: [usize; 2],
    /// Layers.
    pub layers: usize,
    /// Experts kept or dropped against their score.
    pub overrides: Vec<Override>,
}

/// Everything an audit found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditReport {
    /// Outcome.
    #[serde(rename = "verdict")]
    pub outcome: AuditOutcome,
    /// What the target was made of.
    pub source: Folder,
    /// What was audited.
    pub target: Folder,
    /// The plan, of a pruned folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanSummary>,
    /// A pruned folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned: Option<PrunedAudit>,
    /// A quantized folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantized: Option<QuantizedAudit>,
    /// Side files of a pruned folder that equal the source's.
    pub files_equal: usize,
    /// What is wrong.
    pub faults: Faults,
    /// What is odd, and no fault.
    pub warnings: Vec<String>,
}

impl AuditReport {
    pub(super) fn new(source: &Checkpoint, target: &Checkpoint) -> Self {
        let folder =
            |c: &Checkpoint| Folder { folder: c.source().into(), tensors: c.num_tensors(), bytes: c.bytes() };
        Self {
            outcome: AuditOutcome::Failed,
            source: folder(source),
            target: folder(target),
            plan: None,
            pruned: None,
            quantized: None,
            files_equal: 0,
            faults: Faults::default(),
            warnings: Vec::new(),
        }
    }

    /// Notes the plan, and where the stored scores would choose otherwise today.
    pub(super) fn plan(&mut self, plan: &ExpertPlan, origin: String) {
        self.plan = Some(PlanSummary {
            origin,
            criterion: plan.criterion().name().into(),
            fingerprint: plan.fingerprint(),
            experts: [plan.num_source(), plan.num_kept()],
            layers: plan.layers().len(),
            overrides: plan.overrides().to_vec(),
        });
        for layer in plan.layers() {
            let Some(Ok(again)) = layer.saliency.as_ref().map(|s| survivors(s, layer.keep.len())) else {
                continue;
            };
            let differ = again.iter().filter(|id| layer.new_id(**id).is_none()).count();
            if differ > 0 {
                let layer = layer.layer;
                self.warnings.push(format!(
                    "layer {layer}: {differ} kept experts differ from the best by the plan's own scores (ties or overrides)"
                ));
            }
        }
    }

    pub(super) fn finish(mut self) -> Self {
        self.outcome = match self.faults.count {
            0 => AuditOutcome::Passed,
            _ => AuditOutcome::Failed,
        };
        self
    }

    /// One line that can be published.
    pub fn summary(&self) -> String {
        let outcome = match self.outcome {
            AuditOutcome::Passed => "passed".to_owned(),
            AuditOutcome::Failed => format!("FAILED with {} faults", self.faults.count),
        };
        let quantized = self.quantized.as_ref().map(|q| {
            let others = match self.pruned {
                Some(_) => format!("{} left out", q.left_out),
                None => format!("{} equal by bytes", q.equal),
            };
            format!(
                "{} of {} source tensors accounted for ({others}, {} linears measured), largest relative error of a class {:.4}",
                q.accounted,
                self.source.tensors,
                q.measured,
                q.worst_class()
            )
        });
        let (Some(pruned), Some(plan)) = (&self.pruned, &self.plan) else {
            return format!("audit {outcome}{}", quantized.map_or(String::new(), |q| format!(": {q}")));
        };
        let functional = pruned.functional.as_ref().map_or(String::new(), |f| match &quantized {
            None => format!("; masked source = target on layer {}: max abs diff {:?}", f.layer, f.max_abs_diff),
            Some(_) => format!(
                "; masked source against target on layer {}: {} of {} tokens pick the planned experts, relative error {:.4}",
                f.layer, f.same_selection, f.tokens, f.relative_error
            ),
        });
        format!(
            "audit {outcome}: {} of {} experts, {} layers, {} router rows and {} bias entries checked, max abs diff {:?} / {:?}; \
             {} expert tensors and {} others equal by bytes{}{functional}",
            plan.experts[1],
            plan.experts[0],
            plan.layers,
            pruned.layers.iter().map(|l| l.rows_checked).sum::<usize>(),
            pruned.layers.iter().map(|l| l.bias_checked).sum::<usize>(),
            pruned.max_router_diff(),
            pruned.max_bias_diff(),
            pruned.layers.iter().map(|l| l.expert_tensors_equal).sum::<usize>(),
            pruned.untouched_equal,
            quantized.map_or(String::new(), |q| format!("; {q}")),
        )
    }

    /// The report for people: tables, warnings, faults, and the summary last.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some(pruned) = &self.pruned {
            let _ = writeln!(text, "layer  router rows  max diff  bias  max diff  expert tensors  equal");
            for l in &pruned.layers {
                let _ = writeln!(
                    text,
                    "{:5}  {:11}  {:8?}  {:4}  {:8?}  {:14}  {:5}",
                    l.layer,
                    l.rows_checked,
                    l.max_router_diff,
                    l.bias_checked,
                    l.max_bias_diff,
                    l.expert_tensors,
                    l.expert_tensors_equal
                );
            }
        }
        if let Some(quantized) = &self.quantized {
            let _ = writeln!(
                text,
                "{:<18} {:<22} {:>8} {:>16} {:>12} {:>12}",
                "class", "format", "linears", "weights", "rel. error", "worst"
            );
            for c in &quantized.classes {
                let format = format!("{} -> {}", c.source_format, c.target_format);
                let _ = writeln!(
                    text,
                    "{:<18} {:<22} {:>8} {:>16} {:>12.6} {:>12.6}",
                    c.class, format, c.linears, c.weights, c.relative_error, c.worst
                );
            }
        }
        self.warnings.iter().for_each(|w| {
            let _ = writeln!(text, "warning: {w}");
        });
        self.faults.listed.iter().for_each(|f| {
            let _ = writeln!(text, "fault: {f}");
        });
        if self.faults.count > self.faults.listed.len() {
            let _ = writeln!(text, "... and {} more faults", self.faults.count - self.faults.listed.len());
        }
        text.push_str(&self.summary());
        text.push('\n');
        text
    }
}
