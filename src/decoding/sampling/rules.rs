//! What the operator allows of each sampling field: a default, a pin, an only value, a range.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use super::{LIMITS, Range};

/// What happens to a request outside a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outside {
    /// The nearest allowed value is used, and the reply says so.
    #[default]
    Clamp,
    /// The request is refused, with the allowed values.
    Reject,
}

/// A value, or several in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Only {
    /// The only one.
    One(f64),
    /// At least one.
    AnyOf(Vec<f64>),
}

impl Only {
    /// The values; the first is for requests that leave the field open.
    pub fn values(&self) -> &[f64] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::AnyOf(values) => values,
        }
    }
}

/// What is allowed of one field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// For requests that leave the field open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<f64>,
    /// In place of whatever a request says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<f64>,
    /// A request may say this, or one of these, or nothing: then the first is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only: Option<Only>,
    /// Least value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// What becomes of requests outside `min` and `max`.
    pub outside: Outside,
}

/// The fields that rules exist for, with the values that make sense.
const FIELDS: &[(&str, Range)] = &[
    ("temperature", LIMITS.temperature),
    ("top_p", LIMITS.top_p),
    ("top_k", Range::from_to(0.0, u32::MAX as f64)),
    ("min_p", LIMITS.min_p),
    ("repetition_penalty", LIMITS.repetition_penalty),
    ("presence_penalty", LIMITS.presence_penalty),
    ("frequency_penalty", LIMITS.frequency_penalty),
    ("n", Range::from_to(1.0, 1024.0)),
    ("max_tokens", Range::from_to(1.0, u32::MAX as f64)),
];

/// Rules by field. Written as a table, or as the same in JSON in a string.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Rules(pub BTreeMap<String, Rule>);

/// Defaults in the form of vLLM's `override_generation_config`. Written as a table, or as the same in JSON in a string.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct GenerationOverride(pub BTreeMap<String, f64>);

/// Keys of [`GenerationOverride`] and the fields they set.
pub const OVERRIDES: &[(&str, &str)] = &[
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("max_new_tokens", "max_tokens"),
];

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        table_or_json(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for GenerationOverride {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        table_or_json(deserializer).map(Self)
    }
}

fn table_or_json<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    match value {
        serde_json::Value::String(json) => serde_json::from_str(&json),
        value => serde_json::from_value(value),
    }
    .map_err(D::Error::custom)
}

impl Rules {
    /// The first problem of the rules; `None` if they are valid.
    pub(super) fn problem(&self) -> Option<String> {
        self.0.iter().find_map(|(field, rule)| {
            let Some((_, range)) = FIELDS.iter().find(|(name, ..)| name == field) else {
                let names: Vec<_> = FIELDS.iter().map(|(name, ..)| *name).collect();
                return Some(format!("{field} is no sampling field; there are {}", names.join(", ")));
            };
            let only = rule.only.as_ref().map_or(&[][..], Only::values);
            if rule.only.is_some() && only.is_empty() {
                return Some(format!("{field}: only is an empty list, which allows nothing"));
            }
            let numbers = || {
                [rule.default, rule.pin, rule.min, rule.max].into_iter().flatten().chain(only.iter().copied())
            };
            if let Some(value) = numbers().find(|v| !range.contains(*v)) {
                return Some(format!("{field}: {value} must be {}", range.bounds()));
            }
            let whole = ["top_k", "n", "max_tokens"].contains(&field.as_str());
            if whole && let Some(value) = numbers().find(|v| v.fract() != 0.0) {
                return Some(format!("{field}: {value} must be a whole number"));
            }
            if rule.min.zip(rule.max).is_some_and(|(min, max)| min > max) {
                return Some(format!("{field}: min is above max"));
            }
            let fixed = rule.pin.is_some() || rule.only.is_some();
            let ranged = rule.min.is_some() || rule.max.is_some() || rule.default.is_some();
            if (rule.pin.is_some() && rule.only.is_some()) || (fixed && ranged) {
                return Some(format!("{field}: pin and only stand alone, without default, min and max"));
            }
            let within = |v: f64| rule.min.is_none_or(|min| v >= min) && rule.max.is_none_or(|max| v <= max);
            let outside = rule.default.is_some_and(|default| !within(default));
            outside.then(|| format!("{field}: the default is outside min and max"))
        })
    }
}

impl GenerationOverride {
    /// The first problem of the values; `None` if they are valid.
    pub(super) fn problem(&self) -> Option<String> {
        self.0.iter().find_map(|(key, value)| {
            let Some((_, field)) = OVERRIDES.iter().find(|(name, _)| name == key) else {
                let names: Vec<_> = OVERRIDES.iter().map(|(name, _)| *name).collect();
                return Some(format!("{key} is unknown; there are {}", names.join(", ")));
            };
            // -1 is vLLM's "off".
            let value = if *field == "top_k" && *value == -1.0 { 0.0 } else { *value };
            Rules(BTreeMap::from([((*field).to_owned(), Rule { pin: Some(value), ..Rule::default() })]))
                .problem()
        })
    }

    /// The value of a field; `None` if it is not set.
    pub fn get(&self, field: &str) -> Option<f64> {
        let (key, _) = OVERRIDES.iter().find(|(_, name)| *name == field)?;
        self.0.get(*key).map(|value| if *value == -1.0 && field == "top_k" { 0.0 } else { *value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(json: &str) -> Rules {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_table_and_its_json_in_a_string_are_the_same() {
        let table = rules(
            r#"{"temperature": {"only": [1, 0]}, "top_p": {"only": 1}, "top_k": {"min": 0, "max": 50, "outside": "reject"}}"#,
        );
        let text = serde_json::to_string(&serde_json::to_string(&table).unwrap()).unwrap();
        assert_eq!(rules(&text), table);
        assert_eq!(table.problem(), None);
        assert_eq!(table.0["top_k"].outside, Outside::Reject);
        let over: GenerationOverride =
            serde_json::from_str(r#""{\"temperature\": 0.6, \"top_k\": -1, \"max_new_tokens\": 512}""#)
                .unwrap();
        assert_eq!(over.problem(), None);
        assert_eq!(
            (over.get("temperature"), over.get("top_k"), over.get("max_tokens")),
            (Some(0.6), Some(0.0), Some(512.0))
        );
        assert_eq!(over.get("top_p"), None);
        assert!(serde_json::from_str::<Rules>(r#"{"temperature": {"maximum": 1}}"#).is_err());
    }

    #[test]
    fn mistakes_are_named() {
        for (json, problem) in [
            (r#"{"temprature": {"pin": 1}}"#, "temprature is no sampling field"),
            (r#"{"temperature": {"pin": 3}}"#, "temperature: 3 must be from 0 to 2"),
            (r#"{"n": {"max": 1.5}}"#, "n: 1.5 must be a whole number"),
            (r#"{"top_p": {"min": 0.9, "max": 0.5}}"#, "top_p: min is above max"),
            (r#"{"temperature": {"only": []}}"#, "temperature: only is an empty list"),
            (r#"{"temperature": {"only": [1, 2.5]}}"#, "temperature: 2.5 must be from 0 to 2"),
            (r#"{"top_p": {"pin": 0.9, "only": 0.9}}"#, "top_p: pin and only stand alone"),
            (r#"{"top_p": {"pin": 0.9, "max": 0.95}}"#, "top_p: pin and only stand alone"),
            (r#"{"top_p": {"default": 1, "max": 0.95}}"#, "top_p: the default is outside"),
        ] {
            let found = rules(json).problem().unwrap();
            assert!(found.starts_with(problem), "{json}: {found}");
        }
        let over: GenerationOverride = serde_json::from_str(r#"{"repetition_detection": 1}"#).unwrap();
        assert!(over.problem().unwrap().starts_with("repetition_detection is unknown"));
    }
}
