//! A schema as its references are read: what a part of it says, with the parts that it refers to.

use serde_json::{Map, Value};

/// Most references and `allOf` that are followed from one schema.
const MAX_PARTS: usize = 64;
/// Most comparisons between the values that two keywords name.
const MAX_COMPARED: usize = 250_000;

/// The types of JSON, where an integer is a number.
pub(super) const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Keywords that say nothing about the reply.
const NOTES: [&str; 16] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Whether the keyword says nothing about the reply.
pub(super) fn is_note(keyword: &str) -> bool {
    NOTES.contains(&keyword)
}

/// Whether the schema allows every value.
pub(super) fn is_any(schema: &Value) -> bool {
    match schema {
        Value::Bool(any) => *any,
        Value::Object(object) => object.keys().all(|key| is_note(key)),
        _ => false,
    }
}

/// The root of a request's schema, as the client wrote it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Document<'a>(pub(super) &'a Value);

impl<'a> Document<'a> {
    /// The schema that a local reference points to.
    pub(super) fn target(self, reference: &str) -> Option<&'a Value> {
        self.0.pointer(&pointer(reference)?)
    }

    /// The objects of which every value of the schema meets all: the schema, what it refers to, and
    /// the parts of `allOf`. `None` where no value is allowed.
    pub(super) fn parts(self, schema: &'a Value) -> Option<Vec<&'a Map<String, Value>>> {
        let mut waiting = vec![schema];
        let mut parts: Vec<&Map<String, Value>> = Vec::new();
        while let Some(schema) = waiting.pop() {
            match schema {
                Value::Bool(false) => return None,
                Value::Object(object) if parts.len() < MAX_PARTS => {
                    if parts.iter().any(|known| std::ptr::eq(*known, object)) {
                        continue;
                    }
                    parts.push(object);
                    let reference = object.get("$ref").and_then(Value::as_str);
                    waiting.extend(reference.and_then(|reference| self.target(reference)));
                    waiting.extend(object.get("allOf").and_then(Value::as_array).into_iter().flatten());
                }
                _ => {}
            }
        }
        Some(parts)
    }

    /// The values that the parts allow, if they name them all.
    pub(super) fn values(self, parts: &[&'a Map<String, Value>]) -> Option<Vec<Value>> {
        let mut known: Option<Vec<Value>> = None;
        for part in parts {
            let named = match (part.get("const"), part.get("enum").and_then(Value::as_array)) {
                (Some(value), _) => vec![value.clone()],
                (None, Some(values)) => values.clone(),
                _ => match part.get("type").and_then(Value::as_str) {
                    Some("boolean") => vec![true.into(), false.into()],
                    Some("null") => vec![Value::Null],
                    _ => continue,
                },
            };
            known = Some(match known {
                Some(values) if values.len().saturating_mul(named.len()) > MAX_COMPARED => values,
                Some(values) => {
                    values.into_iter().filter(|value| named.iter().any(|other| same(value, other))).collect()
                }
                None => named,
            });
        }
        let types = types(parts);
        known.map(|values| values.into_iter().filter(|value| types.contains(&type_of(value))).collect())
    }
}

/// A measure of the memory that a value takes, up to about `limit`.
pub(super) fn size(value: &Value, limit: usize) -> usize {
    let add = |sum: usize, more: usize| if sum > limit { sum } else { sum + more };
    match value {
        Value::String(text) => 1 + text.len() / 32,
        Value::Array(items) => {
            items.iter().fold(1, |sum, item| add(sum, size(item, limit.saturating_sub(sum))))
        }
        Value::Object(members) => members
            .iter()
            .fold(1, |sum, (key, value)| add(sum, key.len() / 32 + size(value, limit.saturating_sub(sum)))),
        _ => 1,
    }
}

/// The pointer of a reference into the schema itself.
pub(super) fn pointer(reference: &str) -> Option<String> {
    let encoded = reference.strip_prefix('#')?.as_bytes();
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut at = 0;
    while at < encoded.len() {
        let hex = encoded.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| encoded[at] == b'%') {
            Some(byte) => {
                bytes.push(byte);
                at += 3;
            }
            None => {
                bytes.push(encoded[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// The types that the parts allow. An integer is a number.
pub(super) fn types(parts: &[&Map<String, Value>]) -> Vec<&'static str> {
    let allows = |part: &Map<String, Value>, kind: &str| {
        let named = |name: &str| name == kind || (name == "integer" && kind == "number");
        let by_type = match part.get("type") {
            Some(Value::String(name)) => named(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(named),
            _ => true,
        };
        let by_const = part.get("const").is_none_or(|value| type_of(value) == kind);
        let values = part.get("enum").and_then(Value::as_array);
        by_type && by_const && values.is_none_or(|values| values.iter().any(|value| type_of(value) == kind))
    };
    TYPES.into_iter().filter(|kind| parts.iter().all(|part| allows(part, kind))).collect()
}

pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether two values are equal, as JSON Schema compares them: 1 and 1.0 are.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        (a, b) => a == b,
    }
}
