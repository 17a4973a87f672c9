//! A pruned folder's tensors: routers row by row, experts and everything else byte by byte, and that the names are one to one.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::faults::Faults;
use super::functional::Functional;
use crate::prune::plan_file::{ExpertPlan, LayerPlan};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::expert_names::{Role, role};
use perigee_numbers::tensor::{DType, TensorView};

/// Bytes that are compared before their pages are given back.
pub(super) const CHUNK: usize = 8 << 20;

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
    /// Adds tensors of the target, of a linear of the source outside routers.
    pub(super) fn count(&mut self, stem: &str, tensors: usize, equal: usize) {
        match role(&format!("{stem}.weight")) {
            Role::Expert(expert) => {
                if let Ok(at) = self.layers.binary_search_by_key(&expert.layer, |layer| layer.layer) {
                    self.layers[at].expert_tensors += tensors;
                    self.layers[at].expert_tensors_equal += equal;
                }
            }
            _ => {
                self.untouched += tensors;
                self.untouched_equal += equal;
            }
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

/// Compares every tensor of the target with where the plan says it comes from.
pub(super) fn audit(
    source: &Checkpoint,
    target: &Checkpoint,
    plan: &ExpertPlan,
    faults: &mut Faults,
    advance: &mut dyn FnMut(u64),
) -> PrunedAudit {
    let mut layers = empty(plan);
    let (mut untouched, mut untouched_equal) = (0, 0);
    // Source tensors that the target must have and was not seen to have yet.
    let mut owed: BTreeSet<&str> = source.names().filter(|name| survives(name, plan)).collect();
    for name in target.names() {
        let Some(view) = target.tensor(name) else { continue };
        let origin = match role(name) {
            Role::Expert(expert) => plan
                .layer(expert.layer)
                .and_then(|layer| layer.keep.get(expert.expert as usize))
                .map(|old| expert.renamed(*old)),
            _ => Some(name.to_owned()),
        };
        let found = origin.as_deref().and_then(|origin| source.tensor(origin).map(|view| (origin, view)));
        let Some((origin, original)) = found else {
            faults.add(match &origin {
                Some(origin) => format!("{name}: extra; the source has no {origin}"),
                None => format!("{name}: extra; the plan has no such expert"),
            });
            continue;
        };
        owed.remove(origin);
        match role(name) {
            Role::Router { layer, rest } => {
                if let (Some(plan), Some(audit)) = (plan.layer(layer), layers.get_mut(&layer)) {
                    router(name, rest, &view, &original, plan, audit, faults);
                }
            }
            Role::Expert(expert) => {
                let equal = same((source, origin), (target, name));
                if let Err(difference) = &equal {
                    let whose = holder(source, expert.layer, plan, &view, |id| expert.renamed(id));
                    faults.add(format!(
                        "{name}: {difference} from {origin}, where the plan has it from{whose}"
                    ));
                }
                if let Some(audit) = layers.get_mut(&expert.layer) {
                    audit.expert_tensors += 1;
                    audit.expert_tensors_equal += usize::from(equal.is_ok());
                }
            }
            Role::Other | Role::Stacked { .. } => {
                let equal = same((source, origin), (target, name));
                untouched += 1;
                untouched_equal += usize::from(equal.is_ok());
                if let Err(difference) = equal {
                    faults.add(format!("{name}: {difference} from the source's"));
                }
            }
        }
        advance(view.bytes.len() as u64);
    }
    for name in owed {
        faults.add(match role(name) {
            Role::Expert(expert) => {
                let new = plan
                    .layer(expert.layer)
                    .and_then(|layer| layer.new_id(expert.expert))
                    .unwrap_or_default();
                format!("{}: missing; it must hold {name} of the source", expert.renamed(new))
            }
            _ => format!("{name}: missing"),
        });
    }
    PrunedAudit { layers: layers.into_values().collect(), untouched_equal, untouched, functional: None }
}

/// Compares routers alone, of a folder whose other tensors may be in other formats.
pub(super) fn routers(
    source: &Checkpoint,
    target: &Checkpoint,
    plan: &ExpertPlan,
    faults: &mut Faults,
) -> PrunedAudit {
    let mut layers = empty(plan);
    for name in source.names() {
        let Role::Router { layer, rest } = role(name) else { continue };
        let (Some(plan), Some(audit)) = (plan.layer(layer), layers.get_mut(&layer)) else { continue };
        match (source.tensor(name), target.tensor(name)) {
            (Some(original), Some(view)) => router(name, rest, &view, &original, plan, audit, faults),
            _ => faults.add(format!("{name}: missing")),
        }
    }
    let is_extra = |name: &&str| matches!(role(name), Role::Router { .. }) && source.tensor(name).is_none();
    for name in target.names().filter(is_extra) {
        faults.add(format!("{name}: extra; the source's router has no such tensor"));
    }
    PrunedAudit { layers: layers.into_values().collect(), untouched_equal: 0, untouched: 0, functional: None }
}

/// The plan's layers, nothing checked.
fn empty(plan: &ExpertPlan) -> BTreeMap<usize, LayerAudit> {
    let layer = |layer: usize| (layer, LayerAudit { layer, ..Default::default() });
    plan.layers().iter().map(|plan| layer(plan.layer)).collect()
}

/// Whether a source tensor must be in the target under some name.
fn survives(name: &str, plan: &ExpertPlan) -> bool {
    match role(name) {
        Role::Expert(expert) => {
            plan.layer(expert.layer).is_some_and(|layer| layer.new_id(expert.expert).is_some())
        }
        _ => true,
    }
}

/// `Err` says how two tensors differ. Reads them a few megabytes at a time.
pub(super) fn same(
    (source, source_name): (&Checkpoint, &str),
    (target, target_name): (&Checkpoint, &str),
) -> Result<(), String> {
    let (Some(original), Some(view)) = (source.tensor(source_name), target.tensor(target_name)) else {
        return Err("is missing".into());
    };
    if (view.dtype, view.shape) != (original.dtype, original.shape) {
        return Err(format!(
            "is {} {:?}, differs ({} {:?})",
            view.dtype, view.shape, original.dtype, original.shape
        ));
    }
    for (i, (a, b)) in view.bytes.chunks(CHUNK).zip(original.bytes.chunks(CHUNK)).enumerate() {
        let start = i * CHUNK;
        let first = if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) };
        source.release(source_name, start..start + a.len());
        target.release(target_name, start..start + a.len());
        if let Some(at) = first {
            return Err(format!("differs at byte {} of {}", start + at, view.bytes.len()));
        }
    }
    Ok(())
}

/// Whose bytes an expert's tensor has instead, for the message.
fn holder(
    source: &Checkpoint,
    layer: usize,
    plan: &ExpertPlan,
    view: &TensorView<'_>,
    name_of: impl Fn(u32) -> String,
) -> String {
    let num_source = plan.layer(layer).map_or(0, |l| l.num_source as u32);
    let equal = |id: &u32| source.tensor(&name_of(*id)).is_some_and(|other| other.bytes == view.bytes);
    match (0..num_source).find(equal) {
        Some(id) => format!("; it has the bytes of source expert {id}"),
        None => "; no expert of the layer has these bytes".into(),
    }
}

/// A router's weight, bias, or a scale of a packed one.
fn router(
    name: &str,
    rest: &str,
    view: &TensorView<'_>,
    original: &TensorView<'_>,
    plan: &LayerPlan,
    audit: &mut LayerAudit,
    faults: &mut Faults,
) {
    let (num_source, num_kept) = (plan.num_source, plan.keep.len());
    if view.dtype != original.dtype {
        faults.add(format!("{name}: dtype {}, the source's is {}", view.dtype, original.dtype));
        return;
    }
    if rest == "weight_shape" {
        let (expected, got) = (original.to_i64s(), view.to_i64s());
        let ok = expected.first() == Some(&(num_source as i64))
            && got.first() == Some(&(num_kept as i64))
            && expected.get(1..) == got.get(1..);
        if !ok {
            faults.add(format!("{name}: says {got:?}, expected {num_kept} rows of {expected:?}"));
        }
        return;
    }
    if original.shape.first() != Some(&num_source) {
        if (view.shape, view.bytes) != (original.shape, original.bytes) {
            faults.add(format!("{name}: differs from the source's"));
        }
        return;
    }
    let mut expected = original.shape.to_vec();
    expected[0] = num_kept;
    if view.shape != expected {
        faults.add(format!("{name}: shape {:?}, expected {expected:?}", view.shape));
        return;
    }
    let row_bytes = original.bytes.len() / num_source;
    let row = |bytes: &'_ [u8], i: usize| -> Vec<u8> { bytes[i * row_bytes..(i + 1) * row_bytes].to_vec() };
    let (mut max_diff, mut wrong) = (0f64, 0);
    for (new, old) in plan.keep.iter().enumerate() {
        let (got, want) = (row(view.bytes, new), row(original.bytes, *old as usize));
        max_diff = max_diff.max(difference(view.dtype, &got, &want));
        if got != want {
            wrong += 1;
            let whose = (0..num_source).find(|i| row(original.bytes, *i) == got);
            let whose = whose.map_or("no row of the source".into(), |i| format!("source row {i}"));
            if wrong <= 8 {
                faults.add(format!("{name}: row {new} must be source row {old}, but is {whose}"));
            }
        }
    }
    if wrong > 8 {
        faults.add(format!("{name}: {wrong} rows in all are not those of the plan"));
    }
    match rest {
        "weight" => {
            audit.rows_checked += num_kept;
            audit.max_router_diff = audit.max_router_diff.max(max_diff);
        }
        "e_score_correction_bias" => {
            audit.bias_checked += num_kept;
            audit.max_bias_diff = audit.max_bias_diff.max(max_diff);
        }
        _ => audit.max_router_diff = audit.max_router_diff.max(max_diff),
    }
}

/// Largest absolute difference of two rows: of their values where they are floats, of their bytes where they are codes. Infinite where one of
/// them is not finite and the bytes differ.
fn difference(dtype: DType, got: &[u8], want: &[u8]) -> f64 {
    if got == want {
        return 0.0;
    }
    if !dtype.is_float() {
        return got.iter().zip(want).map(|(a, b)| f64::from(a.abs_diff(*b))).fold(0.0, f64::max);
    }
    let values = |bytes| TensorView { dtype, shape: &[], bytes }.to_f32();
    let (got, want) = (values(got), values(want));
    let diffs = got.iter().zip(&want).filter(|(a, b)| a.to_bits() != b.to_bits());
    diffs
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs())
        .map(|d| if d.is_finite() { d } else { f64::INFINITY })
        .fold(0.0, f64::max)
}
