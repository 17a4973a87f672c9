//! Routers of a pruned folder, row by row against the rows that the plan keeps.

use super::faults::Faults;
use super::pruned::PrunedAudit;
use super::walk::Folders;
use perigee_model::expert_names::{Role, role};
use perigee_numbers::tensor::{Dtype, ElementType, TensorView};

/// Compares a router's weight, bias, or a scale of a packed one.
pub(super) fn judge(folders: Folders<'_>, name: &str, audit: &mut PrunedAudit, faults: &mut Faults) {
    let Role::Router { layer, rest } = role(name) else { return };
    let (Some(original), Some(view)) = (folders.source.tensor(name), folders.target.tensor(name)) else {
        return;
    };
    let (Some(plan), Some(audit)) = (folders.layer(layer), audit.layer(layer)) else { return };
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
fn difference(dtype: Dtype, got: &[u8], want: &[u8]) -> f64 {
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
