//! The configuration files of a pruned checkpoint.

use serde_json::{Map, Value};

use super::plan_file::ExpertPlan;
use perigee_model::expert_names::{Role, role};

/// A configuration that cannot be repaired.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or no object.
    #[error("{file} is not a JSON object")]
    Json {
        /// File.
        file: String,
    },
    /// A field that contradicts the checkpoint or the plan.
    #[error("{file}: {field} is {value}: {expected}")]
    Field {
        /// File.
        file: String,
        /// Field.
        field: String,
        /// Value there.
        value: String,
        /// What must be, and the remedy.
        expected: String,
    },
}

/// A repaired file and what was changed, one line per change.
#[derive(Debug, PartialEq)]
pub(super) struct Repaired {
    pub(super) value: Value,
    pub(super) changes: Vec<String>,
}

impl Repaired {
    /// The file's new content.
    pub(super) fn to_json(&self) -> String {
        format!("{:#}\n", self.value)
    }
}

fn object(file: &str, json: &[u8]) -> Result<Map<String, Value>, ConfigError> {
    match serde_json::from_slice(json) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(ConfigError::Json { file: file.into() }),
    }
}

/// `config.json`: the expert count wherever it stands, the group limit, and quantization lists.
pub(super) fn repair_config(json: &[u8], plan: &ExpertPlan) -> Result<Repaired, ConfigError> {
    let file = "config.json";
    let mut root = object(file, json)?;
    let mut changes = Vec::new();
    let mut seen = repair_text(file, &mut root, plan, &mut changes)?;
    if let Some(Value::Object(text)) = root.get_mut("text_config") {
        let mut inner = Vec::new();
        seen |= repair_text(file, text, plan, &mut inner)?;
        changes.extend(inner.into_iter().map(|change| format!("text_config.{change}")));
    }
    if !seen {
        return Err(ConfigError::Field {
            file: file.into(),
            field: "n_routed_experts".into(),
            value: "missing".into(),
            expected: "the number of routed experts must stand at the top or in text_config".into(),
        });
    }
    let mut value = Value::Object(root);
    for path in ["/quantization_config", "/text_config/quantization_config"] {
        if let Some(lists) = value.pointer_mut(path) {
            repair_names(file, path, lists, plan, &mut changes)?;
        }
    }
    Ok(Repaired { value, changes })
}

/// `hf_quant_config.json`: its lists of modules.
pub(super) fn repair_quant_config(
    file: &str,
    json: &[u8],
    plan: &ExpertPlan,
) -> Result<Repaired, ConfigError> {
    let mut value = Value::Object(object(file, json)?);
    let mut changes = Vec::new();
    repair_names(file, "", &mut value, plan, &mut changes)?;
    Ok(Repaired { value, changes })
}

/// The fields of the text model; whether they were there.
fn repair_text(
    file: &str,
    text: &mut Map<String, Value>,
    plan: &ExpertPlan,
    changes: &mut Vec<String>,
) -> Result<bool, ConfigError> {
    let Some(experts) = text.get("n_routed_experts").filter(|v| !v.is_null()) else { return Ok(false) };
    let wrong = |field: &str, value: &Value, expected: String| ConfigError::Field {
        file: file.into(),
        field: field.into(),
        value: value.to_string(),
        expected,
    };
    let (num_source, num_kept) = (plan.num_source() as u64, plan.num_kept() as u64);
    if experts.as_u64() != Some(num_source) {
        return Err(wrong("n_routed_experts", experts, format!("the plan is for {num_source} experts")));
    }
    let number = |name: &str, default: u64| match text.get(name).filter(|v| !v.is_null()) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or_else(|| wrong(name, value, "must be a whole number".into())),
    };
    let (top_k, n_group, topk_group) =
        (number("num_experts_per_tok", 1)?, number("n_group", 1)?, number("topk_group", 1)?);
    if top_k > num_kept {
        let expected = format!("the plan keeps {num_kept} experts, fewer than a token needs; keep more");
        return Err(wrong("num_experts_per_tok", &top_k.into(), expected));
    }
    changes.push(format!("n_routed_experts {num_source} -> {num_kept}"));
    text.insert("n_routed_experts".into(), num_kept.into());
    if n_group > 1 && !keeps_groups(plan, n_group, topk_group, top_k) {
        changes.push(format!(
            "n_group {n_group} -> 1, topk_group {topk_group} -> 1 (the survivors are not spread evenly)"
        ));
        text.insert("n_group".into(), 1.into());
        text.insert("topk_group".into(), 1.into());
    }
    Ok(true)
}

/// Whether group-limited routing means the same after pruning: every group of every layer keeps the same number, at least the two whose
/// scores make the group's score, and the eligible groups have enough experts.
pub(crate) fn keeps_groups(plan: &ExpertPlan, n_group: u64, topk_group: u64, top_k: u64) -> bool {
    let (num_source, num_kept) = (plan.num_source() as u64, plan.num_kept() as u64);
    if num_source % n_group != 0 || num_kept % n_group != 0 || num_kept / n_group < 2 {
        return false;
    }
    let (size, kept) = (num_source / n_group, num_kept / n_group);
    let even = |group: u64, keep: &[u32]| {
        keep.iter().filter(|id| u64::from(**id) / size == group).count() as u64 == kept
    };
    top_k <= kept.saturating_mul(topk_group)
        && plan.layers().iter().all(|layer| (0..n_group).all(|group| even(group, &layer.keep)))
}

/// Renames experts in every list entry and every key under `value`; entries of dropped experts go.
fn repair_names(
    file: &str,
    path: &str,
    value: &mut Value,
    plan: &ExpertPlan,
    changes: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let renamed = |text: &str| {
        rename(text, plan).map_err(|expected| ConfigError::Field {
            file: file.into(),
            field: path.trim_start_matches('/').replace('/', "."),
            value: text.chars().take(200).collect(),
            expected,
        })
    };
    match value {
        Value::Array(items) => {
            let mut kept = Vec::with_capacity(items.len());
            let (mut dropped, mut moved) = (0, 0);
            for mut item in std::mem::take(items) {
                if let Value::String(text) = &item {
                    match renamed(text)? {
                        Renamed::Same => {}
                        Renamed::To(new) => {
                            moved += usize::from(new != *text);
                            item = Value::String(new);
                        }
                        Renamed::Dropped => {
                            dropped += 1;
                            continue;
                        }
                    }
                } else {
                    repair_names(file, path, &mut item, plan, changes)?;
                }
                kept.push(item);
            }
            *items = kept;
            note(path, dropped, moved, changes);
        }
        Value::Object(fields) => {
            let mut kept = Map::new();
            let (mut dropped, mut moved) = (0, 0);
            for (key, mut field) in std::mem::take(fields) {
                let new_key = match renamed(&key)? {
                    Renamed::Same => key.clone(),
                    Renamed::To(new) => new,
                    Renamed::Dropped => {
                        dropped += 1;
                        continue;
                    }
                };
                moved += usize::from(new_key != key);
                repair_names(file, &format!("{path}/{key}"), &mut field, plan, changes)?;
                kept.insert(new_key, field);
            }
            *fields = kept;
            note(path, dropped, moved, changes);
        }
        _ => {}
    }
    Ok(())
}

fn note(path: &str, dropped: usize, moved: usize, changes: &mut Vec<String>) {
    if dropped + moved > 0 {
        let place = path.trim_start_matches('/').replace('/', ".");
        changes.push(format!("{place}: {dropped} entries of dropped experts removed, {moved} renamed"));
    }
}

/// What an entry becomes.
#[derive(Debug, PartialEq)]
enum Renamed {
    Same,
    To(String),
    Dropped,
}

/// Renames the expert that an entry names: a module name, a glob, or a regular expression with escaped dots.
fn rename(text: &str, plan: &ExpertPlan) -> Result<Renamed, String> {
    let plain = text.replace("\\.", ".");
    let Some(at) = find_experts(&plain) else { return Ok(Renamed::Same) };
    if !plain[at..].starts_with(|c: char| c.is_ascii_digit()) {
        let listed =
            plain[at..].starts_with(['(', '[']) && plain[at + 1..].starts_with(|c: char| c.is_ascii_digit());
        let all = plain[at..].starts_with("[0-9]");
        return match listed && !all {
            true => Err("names experts by a pattern that pruning would change; name them one by one".into()),
            false => Ok(Renamed::Same),
        };
    }
    // A name that ends at the expert is one too: give it a last word to read it by.
    let bare = plain.trim_start_matches("re:").trim_start_matches(['^', '.', '*']);
    let with_tail = format!("{bare}.");
    let Role::Expert(expert) = role(&with_tail) else {
        return Err("names an expert without a layer; name the experts of each layer".into());
    };
    let Some(layer) = plan.layer(expert.layer) else { return Ok(Renamed::Same) };
    if expert.expert as usize >= layer.num_source {
        return Ok(Renamed::Dropped);
    }
    let Some(new) = layer.new_id(expert.expert) else { return Ok(Renamed::Dropped) };
    // Put the new number where the old one stands in the text as it was written.
    let old = expert.expert.to_string();
    for separator in ["experts.", "experts\\."] {
        let marker = format!("{separator}{old}");
        if let Some(start) = text.find(&marker) {
            let number = start + separator.len();
            return Ok(Renamed::To(format!("{}{new}{}", &text[..number], &text[number + old.len()..])));
        }
    }
    Err("names an expert in a way that cannot be renamed; name it as in the checkpoint".into())
}

/// Where the word after `.experts.` begins. `shared_experts` is another word.
fn find_experts(plain: &str) -> Option<usize> {
    let word = "experts.";
    let own = |at: &usize| *at == 0 || !plain[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    plain.match_indices(word).map(|(at, _)| at).find(own).map(|at| at + word.len())
}

#[cfg(test)]
mod tests;
