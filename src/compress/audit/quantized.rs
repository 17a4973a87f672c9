//! A quantized folder against its source: every tensor accounted for, the error of every linear, added up per class of module. The folder may be
//! pruned too: then an expert is measured against the one that the plan puts in its place, and routers are the pruning audit's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::distance::{ratio, wrong};
use super::faults::Faults;
use super::pruned::{PrunedAudit, same};
use crate::audit::linears::{layout, linear};
use crate::prune::plan_file::ExpertPlan;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::expert_names::{ExpertName, Role, role};
use perigee_model::{ModuleClass, is_kv_scale};
use perigee_numbers::quant::PART_NAMES;

/// Wrong experts for which the one that they really are is looked for: that measures every expert of the layer.
const MAX_SEARCHES: usize = 4;

/// Tensors of a quantized folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct QuantizedAudit {
    /// Source tensors that the target has, as they were or in another format, and those that it leaves out as the plan says.
    pub accounted: usize,
    /// Of these, left out: tensors of dropped experts.
    pub left_out: usize,
    /// Of these, equal by bytes.
    pub equal: usize,
    /// Linears whose error was measured: their bytes differ.
    pub measured: usize,
    /// Error by class and pair of formats, worst class first.
    pub classes: Vec<ClassError>,
    /// Scales of activations and of the KV cache that the target adds.
    pub added_scales: usize,
    /// Scales of the KV cache that the target leaves out, which makes them 1.
    pub dropped_scales: usize,
}

/// Error of the linears of one class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassError {
    /// Which modules.
    pub class: &'static str,
    /// Format in the source.
    pub source_format: &'static str,
    /// Format in the target.
    pub target_format: &'static str,
    /// Linears.
    pub linears: usize,
    /// Weights in them.
    pub weights: u64,
    /// sqrt(sum of squared differences / sum of squared source weights), over all of them.
    pub relative_error: f64,
    /// The largest of one linear.
    pub worst: f64,
    /// That linear.
    pub worst_name: String,
}

impl QuantizedAudit {
    /// The largest relative error of a class.
    pub fn worst_class(&self) -> f64 {
        self.classes.iter().map(|class| class.relative_error).fold(0.0, f64::max)
    }
}

/// Sums of one class.
#[derive(Default)]
struct Sums {
    linears: usize,
    weights: u64,
    squared_error: f64,
    squares: f64,
    worst: f64,
    worst_name: String,
}

/// A pruning that went with the quantization.
pub(super) struct Pruning<'a> {
    /// Which expert is where.
    pub(super) plan: &'a ExpertPlan,
    /// Has the routers; the other tensors are counted into it.
    pub(super) audit: &'a mut PrunedAudit,
}

/// Where a linear of the source is in the target.
enum Counterpart {
    /// Under this name.
    Stem(String),
    /// Nowhere: the plan drops it.
    Dropped,
    /// In a router whose rows the pruning audit has compared.
    Router,
}

impl Counterpart {
    fn of(stem: &str, plan: Option<&ExpertPlan>) -> Self {
        let Some(plan) = plan else { return Counterpart::Stem(stem.to_owned()) };
        // With a last word, so that names are cut as those of tensors.
        match role(&format!("{stem}.weight")) {
            Role::Router { .. } => Counterpart::Router,
            Role::Expert(expert) => match plan.layer(expert.layer).and_then(|l| l.new_id(expert.expert)) {
                Some(new) => Counterpart::Stem(stem_of(&expert, new)),
                None => Counterpart::Dropped,
            },
            Role::Other | Role::Stacked { .. } => Counterpart::Stem(stem.to_owned()),
        }
    }
}

/// The stem of another expert's linear, of a name that ends in `.weight`.
fn stem_of(expert: &ExpertName<'_>, id: u32) -> String {
    let name = expert.renamed(id);
    name.strip_suffix(".weight").unwrap_or(&name).to_owned()
}

/// Whether some linear of the target is stored in another format than the one of the source that it comes from.
pub(super) fn is_requantized(source: &Checkpoint, target: &Checkpoint, plan: &ExpertPlan) -> bool {
    let after = stems(target);
    stems(source).keys().any(|stem| match Counterpart::of(stem, Some(plan)) {
        Counterpart::Stem(place) if after.contains_key(place.as_str()) => {
            matches!((layout(source, stem), layout(target, &place)), (Ok(a), Ok(b)) if a.dialect != b.dialect)
        }
        _ => false,
    })
}

/// Compares every tensor; with `pruning` each with the one that the plan says, routers left out.
pub(super) fn audit(
    source: &Checkpoint,
    target: &Checkpoint,
    pruning: Option<Pruning<'_>>,
    faults: &mut Faults,
    advance: &mut dyn FnMut(u64),
) -> QuantizedAudit {
    let mut walk = Walk {
        source,
        target,
        pruning,
        faults,
        audit: Default::default(),
        classes: BTreeMap::new(),
        searches: 0,
    };
    let (before, mut after) = (stems(source), stems(target));
    for (stem, parts) in &before {
        let place = match Counterpart::of(stem, walk.plan()) {
            Counterpart::Stem(place) => place,
            Counterpart::Dropped => {
                walk.audit.left_out += parts.len();
                walk.audit.accounted += parts.len();
                continue;
            }
            Counterpart::Router => {
                walk.audit.accounted += parts.len();
                continue;
            }
        };
        // A tensor that is no part of a linear is a stem of itself.
        match after.remove(place.as_str()) {
            Some(new_parts) => {
                let views = new_parts.iter().filter_map(|name| target.tensor(name));
                views.for_each(|view| advance(view.bytes.len() as u64));
                walk.compare((stem, parts), (&place, &new_parts));
            }
            None => walk.missing((stem, parts), &place),
        }
    }
    for (stem, parts) in after {
        walk.extra(stem, &parts);
    }
    walk.check_scales();
    walk.finish()
}

/// The walk over the source's linears, and what it has found.
struct Walk<'a> {
    source: &'a Checkpoint,
    target: &'a Checkpoint,
    pruning: Option<Pruning<'a>>,
    faults: &'a mut Faults,
    audit: QuantizedAudit,
    /// By class and the formats in source and target.
    classes: BTreeMap<(&'static str, &'static str, &'static str), Sums>,
    /// Wrong experts whose holder was looked for.
    searches: usize,
}

impl Walk<'_> {
    fn plan(&self) -> Option<&ExpertPlan> {
        self.pruning.as_ref().map(|pruning| pruning.plan)
    }

    fn missing(&mut self, (stem, parts): (&str, &BTreeSet<&str>), place: &str) {
        if is_kv_scale(stem) {
            self.audit.dropped_scales += parts.len();
            return;
        }
        let origin = if place == stem { String::new() } else { format!("; it must hold {stem}") };
        self.faults.add(format!("{place}: missing ({} tensors of the source){origin}", parts.len()));
    }

    /// Tensors of the target that no linear of the source has claimed.
    fn extra(&mut self, stem: &str, parts: &BTreeSet<&str>) {
        let is_router = || matches!(role(&format!("{stem}.weight")), Role::Router { .. });
        match is_kv_scale(stem) {
            true => self.audit.added_scales += parts.len(),
            false if self.pruning.is_some() && is_router() => {}
            false => self.faults.add(format!("{stem}: extra; nothing of the source belongs there")),
        }
    }

    /// Compares the tensors of one linear: by bytes, and where these differ by value.
    fn compare(
        &mut self,
        (stem, parts): (&str, &BTreeSet<&str>),
        (place, new_parts): (&str, &BTreeSet<&str>),
    ) {
        let (source, target) = (self.source, self.target);
        let renamed = |name: &str| format!("{place}{}", &name[stem.len()..]);
        let is_equal = |name: &&&str| same((source, name), (target, &renamed(name))).is_ok();
        let num_equal = parts.iter().filter(is_equal).count();
        self.audit.equal += num_equal;
        if let Some(pruning) = &mut self.pruning {
            pruning.audit.count(stem, new_parts.len(), num_equal);
        }
        let is_new = |name: &&&str| !parts.contains(format!("{stem}{}", &name[place.len()..]).as_str());
        let added = new_parts.iter().filter(is_new).filter(|name| is_activation_scale(name)).count();
        self.audit.added_scales += added;
        if num_equal == parts.len() && new_parts.len() == parts.len() + added {
            self.audit.accounted += parts.len();
            return;
        }
        let measured = measure((source, stem), (target, place));
        parts.iter().for_each(|name| source.release(name, 0..usize::MAX));
        new_parts.iter().for_each(|name| target.release(name, 0..usize::MAX));
        match measured {
            Ok(measured) => {
                self.audit.accounted += parts.len();
                self.audit.measured += 1;
                self.judge(stem, place, measured);
            }
            Err(problem) => self.faults.add(format!(
                "{place}: differs from {stem} of the source, and cannot be measured: {problem}"
            )),
        }
    }

    /// Adds a measured linear to its class, and reports weights that are not the source's.
    fn judge(&mut self, stem: &str, place: &str, measured: Measured) {
        let Measured { formats: [from, to], are_plain, wrong, weights, squared_error, squares } = measured;
        let error = ratio(squared_error, squares);
        let sums = self.classes.entry((ModuleClass::of(stem).name(), from, to)).or_default();
        sums.linears += 1;
        sums.weights += weights;
        sums.squared_error += squared_error;
        sums.squares += squares;
        if error > sums.worst || sums.worst_name.is_empty() {
            (sums.worst, sums.worst_name) = (error, place.to_owned());
        }
        if error.is_nan() || error > wrong {
            self.searches += 1;
            let whose = match self.plan() {
                Some(plan) if self.searches <= MAX_SEARCHES => {
                    holder(self.source, (self.target, place), stem, plan)
                }
                _ => String::new(),
            };
            self.faults.add(format!(
                "{place}: relative error {error:.4} against {stem} of the source; these are other weights{whose}"
            ));
        } else if are_plain {
            self.faults.add(format!(
                "{place}: is {to} as {stem} of the source and differs from it; quantization leaves such tensors alone"
            ));
        }
    }

    /// Reports scales that are no scales.
    fn check_scales(&mut self) {
        let target = self.target;
        for name in target.names().filter(|name| is_activation_scale(name) || is_kv_scale(name)) {
            let values = target.tensor(name).map(|view| view.to_f32()).unwrap_or_default();
            if let Some(value) = values.into_iter().find(|value| !(value.is_finite() && *value > 0.0)) {
                self.faults.add(format!("{name}: is {value}, a scale is a finite number above 0"));
            }
        }
    }

    fn finish(mut self) -> QuantizedAudit {
        let class_error = |((class, source_format, target_format), s): ((_, _, _), Sums)| ClassError {
            class,
            source_format,
            target_format,
            linears: s.linears,
            weights: s.weights,
            relative_error: ratio(s.squared_error, s.squares),
            worst: s.worst,
            worst_name: s.worst_name,
        };
        self.audit.classes = self.classes.into_iter().map(class_error).collect();
        self.audit.classes.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
        self.audit
    }
}

/// Whether a tensor is a scale of a linear's inputs.
fn is_activation_scale(name: &str) -> bool {
    name.ends_with(".input_scale") || name.ends_with(".input_global_scale")
}

/// Tensor names by the linear they belong to; any other tensor by its own name.
fn stems(checkpoint: &Checkpoint) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut stems: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for name in checkpoint.names() {
        let stem = match name.rsplit_once('.') {
            Some((stem, part)) if PART_NAMES.contains(&part) => stem,
            _ => name,
        };
        stems.entry(stem).or_default().insert(name);
    }
    stems
}

struct Measured {
    formats: [&'static str; 2],
    /// Whether both are floats of one dtype.
    are_plain: bool,
    /// Relative error from which these are other weights.
    wrong: f64,
    weights: u64,
    squared_error: f64,
    squares: f64,
}

/// The error of one linear, row by row.
fn measure(
    (source, source_stem): (&Checkpoint, &str),
    (target, target_stem): (&Checkpoint, &str),
) -> Result<Measured, String> {
    let (from, a) = linear(source, source_stem).map_err(|e| format!("in the source, {}", e.error))?;
    let (to, b) = linear(target, target_stem).map_err(|e| format!("in the target, {}", e.error))?;
    if from.shape != to.shape {
        return Err(format!("shape {:?}, the source's is {:?}", to.shape, from.shape));
    }
    let [out, width] = from.shape;
    let (mut squared_error, mut squares) = (0f64, 0f64);
    let (mut row_a, mut row_b) = (vec![0f32; width], vec![0f32; width]);
    for o in 0..out {
        a.row_to_f32(o, &mut row_a);
        b.row_to_f32(o, &mut row_b);
        for (x, y) in row_a.iter().zip(&row_b) {
            let (x, y) = (f64::from(*x), f64::from(*y));
            squared_error += (x - y) * (x - y);
            squares += x * x;
        }
    }
    let formats = [a.format_name(), b.format_name()];
    let are_plain = from.dialect == to.dialect && from.dialect.format().is_none();
    Ok(Measured {
        formats,
        are_plain,
        wrong: wrong(&b),
        weights: (out * width) as u64,
        squared_error,
        squares,
    })
}

/// Whose weights an expert of the target has instead, for the message.
fn holder(source: &Checkpoint, target: (&Checkpoint, &str), stem: &str, plan: &ExpertPlan) -> String {
    let name = format!("{stem}.weight");
    let Role::Expert(expert) = role(&name) else { return String::new() };
    let num_source = plan.layer(expert.layer).map_or(0, |layer| layer.num_source as u32);
    let is_near = |id: &u32| {
        measure((source, &stem_of(&expert, *id)), target)
            .is_ok_and(|found| ratio(found.squared_error, found.squares) <= found.wrong)
    };
    match (0..num_source).find(is_near) {
        Some(id) => format!(", those of source expert {id}"),
        None => ", those of no expert of the layer".into(),
    }
}
