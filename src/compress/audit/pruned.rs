//! A pruned folder's experts and other tensors, byte by byte against those that the plan says.

use serde::Serialize;

use super::faults::Faults;
use super::functional::Functional;
use super::routers;
use super::walk::{Folders, Linear, Tensor};
use crate::prune::plan_file::{ExpertPlan, LayerPlan};
use perigee_model::expert_names::{ExpertName, Role, role};

/// Tensors of a pruned folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrunedAudit {
    /// Per layer.
    pub layers: Vec<LayerAudit>,
    /// Tensors outside routers and experts that equal the source's.
    pub untouched_equal: usize,
    /// Their number.
    pub untouched: usize,
    /// Masked source against target; `None` if it was not asked for or could not be made (then a fault says why).
    pub functional: Option<Functional>,
}

/// One layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LayerAudit {
    /// Layer.
    pub layer: usize,
    /// Rows of the router's weight that were compared.
    pub rows_checked: usize,
    /// Largest absolute difference of a router row from its source row; expected 0.
    pub max_router_diff: f64,
    /// Entries of the selection bias that were compared.
    pub bias_checked: usize,
    /// Largest absolute difference of a bias entry; expected 0.
    pub max_bias_diff: f64,
    /// Expert tensors in the target.
    pub expert_tensors: usize,
    /// Of these, equal by bytes, dtype and shape to those of the planned expert.
    pub expert_tensors_equal: usize,
}

impl PrunedAudit {
    /// The plan's layers, nothing checked.
    pub(super) fn new(plan: &ExpertPlan) -> Self {
        let layer = |plan: &LayerPlan| LayerAudit { layer: plan.layer, ..Default::default() };
        let layers = plan.layers().iter().map(layer).collect();
        Self { layers, untouched_equal: 0, untouched: 0, functional: None }
    }

    /// A layer of the plan.
    pub(super) fn layer(&mut self, layer: usize) -> Option<&mut LayerAudit> {
        self.layers.iter_mut().find(|audit| audit.layer == layer)
    }

    /// Adds tensors of the target, outside routers.
    pub(super) fn count(&mut self, role: Role<'_>, tensors: usize, equal: usize) {
        let Role::Expert(expert) = role else {
            self.untouched += tensors;
            self.untouched_equal += equal;
            return;
        };
        if let Some(layer) = self.layer(expert.layer) {
            layer.expert_tensors += tensors;
            layer.expert_tensors_equal += equal;
        }
    }

    /// Compares the tensors of a linear: a router row by row, any other by bytes. `by_value`: the
    /// folder is quantized too, and the linear is a router.
    pub(super) fn judge(
        &mut self,
        folders: Folders<'_>,
        linear: &Linear<'_>,
        by_value: bool,
        faults: &mut Faults,
    ) {
        for tensor in linear.tensors() {
            let fault = match tensor {
                Tensor::Pair { to, .. } if linear.is_router() => {
                    routers::judge(folders, to, self, faults);
                    continue;
                }
                Tensor::Pair { from, to } => {
                    let equal = folders.same(from, to);
                    self.count(linear.role, 1, usize::from(equal.is_ok()));
                    let Err(difference) = equal else { continue };
                    match role(from) {
                        Role::Expert(expert) => format!(
                            "{to}: {difference} from {from}, where the plan has it from{}",
                            holder(folders, &expert, to)
                        ),
                        _ => format!("{to}: {difference} from the source's"),
                    }
                }
                Tensor::Missing { from, place } => match linear.role {
                    Role::Expert(_) => format!("{place}: missing; it must hold {from} of the source"),
                    _ => format!("{place}: missing"),
                },
                Tensor::Extra { to } if by_value => {
                    format!("{to}: extra; the source's router has no such tensor")
                }
                Tensor::Extra { to } => match folders.origin(to) {
                    Some(origin) => format!("{to}: extra; the source has no {origin}"),
                    None => format!("{to}: extra; the plan has no such expert"),
                },
            };
            faults.add(fault);
        }
    }

    /// Over all layers.
    pub fn max_router_diff(&self) -> f64 {
        self.layers.iter().map(|l| l.max_router_diff).fold(0.0, f64::max)
    }

    /// Over all layers.
    pub fn max_bias_diff(&self) -> f64 {
        self.layers.iter().map(|l| l.max_bias_diff).fold(0.0, f64::max)
    }
}

/// Whose bytes an expert's tensor has instead, for the message.
fn holder(folders: Folders<'_>, expert: &ExpertName<'_>, to: &str) -> String {
    let bytes = folders.target.tensor(to).map(|view| view.bytes);
    let equal = |id: &u32| folders.source.tensor(&expert.renamed(*id)).map(|view| view.bytes) == bytes;
    match folders.find_expert(expert.layer, equal) {
        Some(id) => format!("; it has the bytes of source expert {id}"),
        None => "; no expert of the layer has these bytes".into(),
    }
}
