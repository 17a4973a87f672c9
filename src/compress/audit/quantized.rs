//! A quantized folder's linears by value: the error of each, added up per class of module, and every tensor accounted for.

use std::collections::BTreeMap;

use serde::Serialize;

use super::distance::{ratio, wrong};
use super::faults::Faults;
use super::linears::linear;
use super::walk::{Folders, Linear, Tensor, stem_of};
use perigee_model::expert_names::Role;
use perigee_model::{ModuleClass, is_kv_scale};

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
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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
    #[serde(skip)]
    squared_error: f64,
    #[serde(skip)]
    squares: f64,
}

impl QuantizedAudit {
    /// The largest relative error of a class.
    pub fn worst_class(&self) -> f64 {
        self.classes.iter().map(|class| class.relative_error).fold(0.0, f64::max)
    }
}

/// The judge by value, with its sums.
pub(super) struct Values<'a> {
    folders: Folders<'a>,
    audit: QuantizedAudit,
    /// By class and the formats in source and target.
    classes: BTreeMap<[&'static str; 3], ClassError>,
    /// Wrong experts whose holder was looked for.
    searches: usize,
}

impl<'a> Values<'a> {
    pub(super) fn new(folders: Folders<'a>) -> Self {
        Self { folders, audit: QuantizedAudit::default(), classes: BTreeMap::new(), searches: 0 }
    }

    /// Compares a linear by bytes, and where these differ by value. Returns the number of equal tensors
    /// if the linear was compared. Routers under a plan are only counted: their rows are compared
    /// elsewhere.
    pub(super) fn judge(&mut self, linear: &Linear<'_>, faults: &mut Faults) -> Option<usize> {
        let (stem, is_kv_scale) = (linear.stem, is_kv_scale(linear.stem));
        let Some(place) = linear.place.as_deref() else {
            self.audit.left_out += linear.source.len();
            self.audit.accounted += linear.source.len();
            return None;
        };
        if self.folders.plan.is_some() && linear.is_router() {
            self.audit.accounted += linear.source.len();
            return None;
        }
        match (linear.source.len(), linear.target.len()) {
            (0, added) if is_kv_scale => self.audit.added_scales += added,
            (0, _) => faults.add(format!("{stem}: extra; nothing of the source belongs there")),
            (dropped, 0) if is_kv_scale => self.audit.dropped_scales += dropped,
            (missing, 0) => {
                let origin = if place == stem { String::new() } else { format!("; it must hold {stem}") };
                faults.add(format!("{place}: missing ({missing} tensors of the source){origin}"));
            }
            _ => return Some(self.compare(linear, place, faults)),
        }
        None
    }

    fn compare(&mut self, linear: &Linear<'_>, place: &str, faults: &mut Faults) -> usize {
        let (stem, mut equal, mut unlike) = (linear.stem, 0, 0);
        for tensor in linear.tensors() {
            match tensor {
                Tensor::Pair { from, to } if self.folders.same(from, to).is_ok() => equal += 1,
                Tensor::Extra { to } if is_activation_scale(to) => self.audit.added_scales += 1,
                _ => unlike += 1,
            }
        }
        self.audit.equal += equal;
        let measured = (unlike > 0).then(|| measure(self.folders, stem, place));
        if let Some(Err(problem)) = measured {
            faults.add(format!(
                "{place}: differs from {stem} of the source, and cannot be measured: {problem}"
            ));
            return equal;
        }
        self.audit.accounted += linear.source.len();
        if let Some(Ok(measured)) = measured {
            self.audit.measured += 1;
            self.add(linear, place, measured, faults);
        }
        equal
    }

    /// Adds a measured linear to its class, and reports weights that are not the source's.
    fn add(&mut self, linear: &Linear<'_>, place: &str, measured: Measured, faults: &mut Faults) {
        let (stem, error, [from, to]) = (linear.stem, measured.error(), measured.formats);
        let class = ModuleClass::of(stem).name();
        let sums = self.classes.entry([class, from, to]).or_default();
        (sums.class, sums.source_format, sums.target_format) = (class, from, to);
        sums.linears += 1;
        sums.weights += measured.weights;
        sums.squared_error += measured.squared_error;
        sums.squares += measured.squares;
        sums.relative_error = ratio(sums.squared_error, sums.squares);
        if error > sums.worst || sums.worst_name.is_empty() {
            (sums.worst, sums.worst_name) = (error, place.to_owned());
        }
        if measured.is_wrong() {
            let whose = self.holder(linear, place);
            faults.add(format!(
                "{place}: relative error {error:.4} against {stem} of the source; these are other weights{whose}"
            ));
        } else if measured.are_plain {
            faults.add(format!(
                "{place}: is {to} as {stem} of the source and differs from it; quantization leaves such tensors alone"
            ));
        }
    }

    /// Whose weights an expert of the target has instead, for the message.
    fn holder(&mut self, linear: &Linear<'_>, place: &str) -> String {
        let folders = self.folders;
        self.searches += 1;
        let (Role::Expert(expert), Some(_)) = (linear.role, folders.plan) else { return String::new() };
        if self.searches > MAX_SEARCHES {
            return String::new();
        }
        let is_near = |id: &u32| {
            measure(folders, stem_of(&expert.renamed(*id)), place).is_ok_and(|found| !found.is_wrong())
        };
        match folders.find_expert(expert.layer, is_near) {
            Some(id) => format!(", those of source expert {id}"),
            None => ", those of no expert of the layer".into(),
        }
    }

    /// Reports scales that are not positive numbers, and returns the sums, worst class first.
    pub(super) fn finish(mut self, faults: &mut Faults) -> QuantizedAudit {
        let is_scale = |name: &str| is_activation_scale(name) || is_kv_scale(name);
        let is_wrong = |value: &f32| !(value.is_finite() && *value > 0.0);
        for (name, view) in self.folders.target.tensors().filter(|(name, _)| is_scale(name)) {
            if let Some(value) = view.to_f32().into_iter().find(is_wrong) {
                faults.add(format!("{name}: is {value}, a scale is a finite number above 0"));
            }
        }
        self.audit.classes = self.classes.into_values().collect();
        self.audit.classes.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
        self.audit
    }
}

/// Whether a tensor is a scale of a linear's inputs.
fn is_activation_scale(name: &str) -> bool {
    name.ends_with(".input_scale") || name.ends_with(".input_global_scale")
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

impl Measured {
    fn error(&self) -> f64 {
        ratio(self.squared_error, self.squares)
    }

    /// Whether these are other weights; an error that is no number is above every limit.
    fn is_wrong(&self) -> bool {
        self.error().is_nan() || self.error() > self.wrong
    }
}

/// The error of one linear, row by row.
fn measure(folders: Folders<'_>, source_stem: &str, target_stem: &str) -> Result<Measured, String> {
    let (from, a) = linear(folders.source, source_stem).map_err(|e| format!("in the source, {}", e.error))?;
    let (to, b) = linear(folders.target, target_stem).map_err(|e| format!("in the target, {}", e.error))?;
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
    let formats = [from.dialect.format_name(), to.dialect.format_name()];
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
