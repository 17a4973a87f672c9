//! A quantized folder against its source: every tensor accounted for, the error of every linear, added up per class of module.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::pruned::same;
use super::report::Faults;
use crate::checkpoint::Checkpoint;
use crate::compress::expert_names::{Role, role};
use crate::compress::linears::linear;
use crate::quant::{PART_NAMES, StoredMatrix};

/// Tensors that calibration adds beside an attention module: scales of the KV cache.
const KV_SCALES: [&str; 6] =
    [".k_proj.k_scale", ".v_proj.v_scale", ".k_scale", ".v_scale", ".kv_scale", ".q_scale"];
/// Relative error of a linear from which it is a fault: no format is that bad, wrong weights are.
const WRONG: f64 = 0.5;

/// Tensors of a quantized folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct QuantizedAudit {
    /// Source tensors that the target has, as they were or in another format.
    pub accounted: usize,
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

/// Compares every tensor.
pub(super) fn audit(
    source: &Checkpoint,
    target: &Checkpoint,
    faults: &mut Faults,
    advance: &mut dyn FnMut(u64),
) -> QuantizedAudit {
    let mut audit = QuantizedAudit::default();
    let mut classes: BTreeMap<(&'static str, &'static str, &'static str), Sums> = BTreeMap::new();
    let (before, after) = (stems(source), stems(target));
    for (stem, parts) in &before {
        // A tensor that is no part of a linear is a stem of itself.
        let Some(new_parts) = after.get(stem) else {
            if KV_SCALES.iter().any(|ending| stem.ends_with(ending)) {
                audit.dropped_scales += parts.len();
                continue;
            }
            faults.add(format!("{stem}: missing ({} tensors of the source)", parts.len()));
            continue;
        };
        new_parts.iter().filter_map(|name| target.tensor(name)).for_each(|v| advance(v.bytes.len() as u64));
        let num_equal = parts.iter().filter(|name| same((source, name), (target, name)).is_ok()).count();
        audit.equal += num_equal;
        let is_added = |name: &&&str| name.ends_with(".input_scale") || name.ends_with(".input_global_scale");
        let added = new_parts.iter().filter(|name| !parts.contains(*name)).filter(is_added).count();
        audit.added_scales += added;
        if num_equal == parts.len() && new_parts.len() == parts.len() + added {
            audit.accounted += parts.len();
            continue;
        }
        let measured = measure(source, target, stem);
        parts.iter().for_each(|name| source.release(name, 0..usize::MAX));
        new_parts.iter().for_each(|name| target.release(name, 0..usize::MAX));
        match measured {
            Ok(Measured { formats: [from, to], weights, squared_error, squares }) => {
                let error = ratio(squared_error, squares);
                audit.accounted += parts.len();
                audit.measured += 1;
                let sums = classes.entry((class(stem), from, to)).or_default();
                sums.linears += 1;
                sums.weights += weights;
                sums.squared_error += squared_error;
                sums.squares += squares;
                if error > sums.worst || sums.worst_name.is_empty() {
                    (sums.worst, sums.worst_name) = (error, (*stem).to_owned());
                }
                if error.is_nan() || error > WRONG {
                    faults.add(format!(
                        "{stem}: relative error {error:.4} against the source; these are other weights"
                    ));
                }
            }
            Err(problem) => {
                faults.add(format!("{stem}: differs from the source's, and cannot be measured: {problem}"))
            }
        }
    }
    for (stem, parts) in after.iter().filter(|(stem, _)| !before.contains_key(*stem)) {
        match KV_SCALES.iter().any(|ending| stem.ends_with(ending)) {
            true => audit.added_scales += parts.len(),
            false => faults.add(format!("{stem}: extra; the source has no such tensor")),
        }
    }
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
    audit.classes = classes.into_iter().map(class_error).collect();
    audit.classes.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    audit
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

fn ratio(squared_error: f64, squares: f64) -> f64 {
    match squared_error == 0.0 {
        true => 0.0,
        false => (squared_error / squares).sqrt(),
    }
}

struct Measured {
    formats: [&'static str; 2],
    weights: u64,
    squared_error: f64,
    squares: f64,
}

/// The error of one linear, row by row.
fn measure(source: &Checkpoint, target: &Checkpoint, stem: &str) -> Result<Measured, String> {
    let (_, a) = linear(source, stem).map_err(|e| format!("in the source, {}", e.error))?;
    let (_, b) = linear(target, stem).map_err(|e| format!("in the target, {}", e.error))?;
    let ([out, width], [b_out, b_width]) = match (a.shape(), b.shape()) {
        ([o, w], [p, v]) => ([*o, *w], [*p, *v]),
        (a, b) => return Err(format!("shapes {a:?} and {b:?} are no matrices")),
    };
    if (out, width) != (b_out, b_width) {
        return Err(format!("shape [{b_out}, {b_width}], the source's is [{out}, {width}]"));
    }
    let (mut squared_error, mut squares) = (0f64, 0f64);
    let (mut row_a, mut row_b) = (vec![0f32; width], vec![0f32; width]);
    for o in 0..out {
        read_row(&a, o, &mut row_a)?;
        read_row(&b, o, &mut row_b)?;
        for (x, y) in row_a.iter().zip(&row_b) {
            let (x, y) = (f64::from(*x), f64::from(*y));
            squared_error += (x - y) * (x - y);
            squares += x * x;
        }
    }
    let formats = [a.format_name(), b.format_name()];
    Ok(Measured { formats, weights: (out * width) as u64, squared_error, squares })
}

/// Row `o` as f32.
fn read_row(matrix: &StoredMatrix<'_>, o: usize, row: &mut [f32]) -> Result<(), String> {
    match matrix {
        StoredMatrix::Packed(packed) => packed.row_to_f32(o, row),
        StoredMatrix::Plain(view) => {
            let shape = [1, row.len()];
            let values = view.rows(o, o + 1, &shape).to_f32();
            if values.len() != row.len() {
                return Err(format!("dtype {} is not of numbers", view.dtype));
            }
            row.copy_from_slice(&values);
        }
    }
    Ok(())
}

/// Which modules a linear belongs to.
fn class(stem: &str) -> &'static str {
    // With a last word, so that names are cut as those of tensors.
    match role(&format!("{stem}.weight")) {
        Role::Expert(_) | Role::Stacked { .. } => return "routed experts",
        Role::Router { .. } => return "router",
        Role::Other => {}
    }
    for (word, class) in [
        ("vision_tower", "vision"),
        ("mm_projector", "vision"),
        ("multi_modal_projector", "vision"),
        (".shared_experts.", "shared experts"),
        (".self_attn.", "attention"),
        (".mlp.", "dense ffn"),
        ("embed_tokens", "embedding"),
        ("lm_head", "head"),
        ("norm", "norms"),
    ] {
        if stem.contains(word) {
            return class;
        }
    }
    "other"
}
