//! Settings for people and for programs, each value with its origin. Secrets are masked by their own type.

use serde_json::{Value, json};

use super::{Loaded, settings};

/// Widest column of values; longer ones push their origin to the right.
const MAX_VALUE_WIDTH: usize = 40;

/// One line per key: name, value, origin.
pub fn show_table(loaded: &Loaded) -> String {
    let rows = rows(loaded);
    let name_width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let width_of = |value: &Value| display(value).chars().count();
    let value_width =
        rows.iter().map(|(_, value, _)| width_of(value)).filter(|w| *w <= MAX_VALUE_WIDTH).max().unwrap_or(0);
    let mut text = String::new();
    let mut section = "";
    for (name, value, origin) in &rows {
        let this = name.split('.').next().unwrap_or_default();
        if !section.is_empty() && section != this {
            text.push('\n');
        }
        section = this;
        text.push_str(&format!("{name:name_width$}  {:value_width$}  {origin}\n", display(value)));
    }
    text
}

/// The same as JSON: `settings` by key with value, origin in words and kind of source.
pub fn show_json(loaded: &Loaded) -> Value {
    let mut keys = serde_json::Map::new();
    for (name, value, origin) in rows(loaded) {
        let source = loaded.origins.get(&name).map(|o| &o.kind);
        keys.insert(name, json!({ "value": value, "origin": origin, "source": source }));
    }
    json!({ "site": loaded.site, "profile": loaded.profile, "settings": keys })
}

/// (name, value, origin) of every key, in order.
fn rows(loaded: &Loaded) -> Vec<(String, Value, String)> {
    let values = serde_json::to_value(&loaded.settings).expect("settings serialize");
    let mut rows = Vec::new();
    for (section, keys) in settings::keys().iter() {
        for key in keys {
            let name = format!("{section}.{key}");
            let origin = loaded.origins.get(&name).map(ToString::to_string).unwrap_or_default();
            rows.push((name, tidy(&values[section][key]), origin));
        }
    }
    rows
}

/// A number that was an f32 prints as the shortest decimal of that f32, not of its widened value.
pub fn tidy(value: &Value) -> Value {
    match value.as_f64() {
        Some(number) if value.is_f64() && f64::from(number as f32) == number => {
            (number as f32).to_string().parse().map_or_else(|_| value.clone(), |n: f64| json!(n))
        }
        _ => value.clone(),
    }
}

/// A value as TOML writes it.
pub(super) fn display(value: &Value) -> String {
    match value {
        Value::Null => "(not set)".into(),
        Value::Array(items) => format!("[{}]", items.iter().map(display).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
