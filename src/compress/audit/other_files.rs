//! A pruned or quantized folder's other files: configuration, index, and what must be copied byte for byte.

use std::collections::BTreeSet;

use serde_json::Value;

use super::report::AuditReport;
use crate::prune::model_config::keeps_groups;
use crate::prune::plan_file::ExpertPlan;
use crate::prune::{INDEX_FILE, side_files};
use perigee_model::checkpoint::Checkpoint;

/// Fields of the text model that pruning may change.
const MAY_CHANGE: [&str; 3] = ["n_routed_experts", "n_group", "topk_group"];
/// Files whose lists of modules pruning may change.
const QUANT_CONFIG: &str = "hf_quant_config.json";

/// Blocks of `config.json` that quantization replaces.
const QUANT_BLOCKS: [&str; 2] = ["quantization_config", "compression_config"];
/// Notes of whoever wrote a `config.json`, which decide nothing.
const NOTES: [&str; 4] = ["transformers_version", "torch_dtype", "dtype", "_name_or_path"];

/// `plan`: what was kept, of a pruned folder. `requantized`: the blocks about quantization are other ones than the source's.
pub(super) fn audit(
    source: &Checkpoint,
    target: &Checkpoint,
    plan: Option<&ExpertPlan>,
    requantized: bool,
    report: &mut AuditReport,
) {
    let read = |checkpoint: &Checkpoint, name: &str| -> Option<Value> {
        serde_json::from_slice(&checkpoint.file(name)?).ok()
    };
    let kept = plan.map(ExpertPlan::num_kept);
    let mut quant = [read(source, QUANT_CONFIG), read(target, QUANT_CONFIG)];
    match (read(source, "config.json"), read(target, "config.json")) {
        (Some(mut before), Some(mut after)) => {
            unnamed_experts("config.json", &after, kept, report);
            if requantized {
                [&mut before, &mut after].into_iter().for_each(without_quantization);
                quant[0] = None;
                notes(&mut before, &mut after, report);
            }
            if let Some(plan) = plan {
                expert_counts(&before, &after, plan, report);
            }
            let may_change = if plan.is_some() { &MAY_CHANGE[..] } else { &[] };
            skeleton("config.json", "", may_change, &before, &after, report);
        }
        _ => report.faults.add("config.json: missing or not JSON in source or target".into()),
    }
    if let Some(after) = &quant[1] {
        unnamed_experts(QUANT_CONFIG, after, kept, report);
        if let Some(before) = &quant[0] {
            skeleton(QUANT_CONFIG, "", &MAY_CHANGE, before, after, report);
        }
    }
    index(target, report);
    side(source, target, requantized, report);
}

/// Takes the blocks about quantization away.
fn without_quantization(config: &mut Value) {
    for place in ["", "/text_config"] {
        if let Some(Value::Object(fields)) = config.pointer_mut(place) {
            QUANT_BLOCKS.iter().for_each(|block| drop(fields.shift_remove(*block)));
        }
    }
}

/// Takes [`NOTES`] away; a warning where they differ.
fn notes(before: &mut Value, after: &mut Value, report: &mut AuditReport) {
    for place in ["", "/text_config"] {
        let (Some(Value::Object(a)), Some(Value::Object(b))) =
            (before.pointer_mut(place), after.pointer_mut(place))
        else {
            continue;
        };
        for note in NOTES {
            let (a, b) = (a.shift_remove(note), b.shift_remove(note));
            if a != b {
                let shown = |value: Option<Value>| value.map_or("missing".to_owned(), |v| v.to_string());
                report.warnings.push(format!(
                    "config.json: {place}/{note} is {}, the source's is {}",
                    shown(b),
                    shown(a)
                ));
            }
        }
    }
}

/// Side files are the source's; no weight file lies beside the index's.
fn side(source: &Checkpoint, target: &Checkpoint, requantized: bool, report: &mut AuditReport) {
    let (expected, (found, stray)) = match (side_files(source), side_files(target)) {
        (Ok((expected, _)), Ok(found)) => (expected, found),
        (Err(e), _) | (_, Err(e)) => return report.faults.add(format!("files: {e}")),
    };
    for name in expected.iter().filter(|name| !requantized || *name != QUANT_CONFIG) {
        match (source.read_file(name), target.read_file(name)) {
            (Ok(a), Ok(b)) if a == b && b.is_some() => report.files_equal += 1,
            (Ok(_), Ok(Some(_))) if name == QUANT_CONFIG => {}
            (Ok(_), Ok(Some(_))) => report.faults.add(format!("{name}: differs from the source's")),
            (Ok(_), Ok(None)) => report.faults.add(format!("{name}: missing")),
            (Err(e), _) | (_, Err(e)) => report.faults.add(format!("{name}: {e}")),
        }
    }
    for name in found.iter().filter(|name| !expected.contains(name)) {
        report.warnings.push(format!("{name}: a file that the source does not have"));
    }
    // No loader reads a shard that the index does not name, and neither do the checks above.
    for name in stray {
        report.faults.add(format!("{name}: weights that the index does not name"));
    }
}

/// The number of experts is the plan's, and groups are of equal size or gone.
fn expert_counts(before: &Value, after: &Value, plan: &ExpertPlan, report: &mut AuditReport) {
    let mut seen = false;
    for place in ["", "/text_config"] {
        let (Some(before), Some(after)) = (before.pointer(place), after.pointer(place)) else { continue };
        if before.get("n_routed_experts").is_none_or(Value::is_null) {
            continue;
        }
        seen = true;
        let mut check = |field: &str, expected: Option<u64>| {
            let got = after.get(field).and_then(Value::as_u64);
            if got != expected {
                let shown = |n: Option<u64>| n.map_or("missing".to_owned(), |n| n.to_string());
                let place = place.trim_start_matches('/');
                report.faults.add(format!(
                    "config.json: {place}{}{field} is {}, expected {}",
                    if place.is_empty() { "" } else { "." },
                    shown(got),
                    shown(expected)
                ));
            }
        };
        let number = |field: &str| before.get(field).and_then(Value::as_u64);
        check("n_routed_experts", Some(plan.num_kept() as u64));
        let (n_group, topk_group) = (number("n_group").unwrap_or(1), number("topk_group").unwrap_or(1));
        let top_k = number("num_experts_per_tok").unwrap_or(1);
        let keeps = n_group <= 1 || keeps_groups(plan, n_group, topk_group, top_k);
        check("n_group", if keeps { number("n_group") } else { Some(1) });
        check("topk_group", if keeps { number("topk_group") } else { Some(1) });
    }
    if !seen {
        report.faults.add("config.json: the source has no n_routed_experts".into());
    }
}

/// Everything that pruning has no business with is the same. Lists and maps of module names under a quantization config may lose
/// entries and have them renamed.
fn skeleton(
    file: &str,
    path: &str,
    may_change: &[&str],
    before: &Value,
    after: &Value,
    report: &mut AuditReport,
) {
    let name = path.rsplit('/').next().unwrap_or_default();
    let text_model =
        path.rsplit_once('/').is_some_and(|(parent, _)| parent.is_empty() || parent == "/text_config");
    if text_model && may_change.contains(&name) {
        return;
    }
    let names_modules = |text: &str| text.contains(".experts") || text.contains("experts\\.");
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                // Keys that name modules may be renamed or gone; `n_routed_experts` and its like are fields.
                match b.get(key) {
                    _ if names_modules(key) => {}
                    Some(other) => skeleton(file, &format!("{path}/{key}"), may_change, value, other, report),
                    None => report.faults.add(format!("{file}: {path}/{key} is missing")),
                }
            }
            for key in b.keys().filter(|key| !a.contains_key(*key) && !names_modules(key)) {
                report.faults.add(format!("{file}: {path}/{key} is not in the source's"));
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            let others = |list: &[Value]| -> Vec<Value> {
                list.iter().filter(|v| !v.as_str().is_some_and(names_modules)).cloned().collect()
            };
            if others(a) != others(b) {
                report.faults.add(format!("{file}: {path} differs from the source's"));
            }
        }
        (a, b) if a != b => report.faults.add(format!("{file}: {path} is {b}, the source's is {a}")),
        _ => {}
    }
}

/// No list of modules names an expert that is not there.
fn unnamed_experts(file: &str, value: &Value, kept: Option<usize>, report: &mut AuditReport) {
    let Some(kept) = kept else { return };
    let mut texts: Vec<&str> = Vec::new();
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => texts.push(text),
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                texts.extend(fields.keys().map(String::as_str));
                open.extend(fields.values());
            }
            _ => {}
        }
    }
    for text in texts {
        let plain = text.replace("\\.", ".");
        let digits = plain
            .split(".experts.")
            .nth(1)
            .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
        let id = digits.and_then(|digits| digits.parse::<usize>().ok());
        if id.is_some_and(|id| id >= kept) && !plain.contains("[0-9]") {
            let shown: String = text.chars().take(200).collect();
            report.faults.add(format!("{file}: names {shown}, but experts end at {}", kept - 1));
        }
    }
}

/// The index names exactly the tensors there are, and its total is their sum.
fn index(target: &Checkpoint, report: &mut AuditReport) {
    let Some(json) = target.file(INDEX_FILE) else { return };
    let Ok(index) = serde_json::from_slice::<Value>(&json) else {
        report.faults.add(format!("{INDEX_FILE}: not JSON"));
        return;
    };
    let bytes = target.bytes();
    match index.pointer("/metadata/total_size").map(|v| (v, v.as_u64())) {
        Some((_, Some(total))) if total == bytes => {}
        Some((value, _)) => {
            report.faults.add(format!("{INDEX_FILE}: total_size is {value}, the tensors have {bytes} bytes"))
        }
        None => report.faults.add(format!("{INDEX_FILE}: has no metadata.total_size, expected {bytes}")),
    }
    let named: BTreeSet<&str> =
        index["weight_map"].as_object().into_iter().flat_map(|map| map.keys().map(String::as_str)).collect();
    for name in target.names().filter(|name| !named.contains(name)) {
        report.faults.add(format!(
            "{INDEX_FILE}: does not name {name}, which {} holds",
            target.shard_of(name).unwrap_or_default()
        ));
    }
}
