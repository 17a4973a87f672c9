//! Lower bounds on the length of a schema's values, for refusals when no value was found.

use serde_json::Value;

/// Deepest level counted.
const MAX_DEPTH: usize = 24;
/// Most schemas counted.
const MAX_VISITS: usize = 100_000;

/// A lower bound on the characters of a JSON value of this schema.
pub(super) fn characters(schema: &Value) -> usize {
    Bound { root: schema, visits: MAX_VISITS }.of(schema, 0)
}

struct Bound<'a> {
    root: &'a Value,
    visits: usize,
}

impl Bound<'_> {
    fn of(&mut self, schema: &Value, depth: usize) -> usize {
        let Value::Object(object) = schema else { return 1 };
        if depth > MAX_DEPTH || self.visits == 0 {
            return 1;
        }
        self.visits -= 1;
        let mut least = 1;
        if let Some(value) = object.get("const") {
            least = least.max(written(value));
        }
        if let Some(Value::Array(values)) = object.get("enum") {
            least = least.max(values.iter().map(written).min().unwrap_or(1));
        }
        let root = self.root;
        let target = object.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
        if let Some(target) = target.and_then(|target| root.pointer(target)) {
            least = least.max(self.of(target, depth + 1));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(ways)) = object.get(key) {
                least = least.max(ways.iter().map(|way| self.of(way, depth + 1)).min().unwrap_or(1));
            }
        }
        if let Some(Value::Array(parts)) = object.get("allOf") {
            least = parts.iter().map(|part| self.of(part, depth + 1)).fold(least, usize::max);
        }
        let of_kind = match object.get("type") {
            Some(Value::String(kind)) => self.of_kind(kind, schema, depth),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                kinds.map(|kind| self.of_kind(kind, schema, depth)).min().unwrap_or(1)
            }
            _ => 1,
        };
        least.max(of_kind)
    }

    fn of_kind(&mut self, kind: &str, schema: &Value, depth: usize) -> usize {
        let count =
            |key: &str| schema[key].as_u64().map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX));
        match kind {
            "string" => count("minLength").saturating_add(2),
            "array" => {
                let items = count("minItems");
                let first: Vec<&Value> =
                    schema["prefixItems"].as_array().into_iter().flatten().take(items).collect();
                let rest = items - first.len();
                let first =
                    first.into_iter().map(|item| self.of(item, depth + 1)).fold(0, usize::saturating_add);
                let rest =
                    if rest > 0 { self.of(&schema["items"], depth + 1).saturating_mul(rest) } else { 0 };
                // Brackets and commas.
                first.saturating_add(rest).saturating_add(items.saturating_sub(1)).saturating_add(2)
            }
            "object" => {
                let required: Vec<&str> =
                    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let members = required.iter().map(|name| {
                    let key = written(&Value::from(*name)) + 1;
                    key.saturating_add(self.of(&schema["properties"][*name], depth + 1))
                });
                let members = members.fold(0, usize::saturating_add);
                members.saturating_add(required.len().saturating_sub(1)).saturating_add(2)
            }
            "boolean" | "null" => 4,
            _ => 1,
        }
    }
}

/// Characters of a value written without spaces.
fn written(value: &Value) -> usize {
    value.to_string().chars().count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lower_bound_is_the_length_of_the_shortest_value() {
        for (schema, shortest) in [
            (json!({}), "0"),
            (json!(true), "0"),
            (json!({"type": "string", "minLength": 3}), r#""aaa""#),
            (json!({"type": ["string", "null"]}), r#""""#),
            (json!({"const": {"a": [1, "é"]}}), r#"{"a":[1,"é"]}"#),
            (json!({"enum": ["long", "a", 123]}), r#""a""#),
            (json!({"type": "array", "minItems": 3, "items": {"type": "boolean"}}), "[true,true,true]"),
            (
                json!({"type": "array", "minItems": 2, "prefixItems": [{"const": "x"}], "items": {"type": "null"}}),
                r#"["x",null]"#,
            ),
            (
                json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"$ref": "#/$defs/s"}, "c": {}},
                    "$defs": {"s": {"type": "string", "minLength": 2}}}),
                r#"{"a":"aa","b":0}"#,
            ),
            (json!({"anyOf": [{"type": "null"}, {"type": "string", "minLength": 9}]}), "null"),
            (json!({"allOf": [{"type": "string"}, {"type": "string", "minLength": 9}]}), r#""aaaaaaaaa""#),
        ] {
            assert_eq!(characters(&schema), shortest.chars().count(), "{schema}");
        }
        // Endless recursion, and lengths beyond any limit, are cut off here.
        let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["a"],
            "properties": {"a": {"$ref": "#/$defs/a"}}}}});
        assert!(characters(&endless) > 20);
        let loops = json!({"$ref": "#"});
        assert_eq!(characters(&loops), 1);
        let huge = json!({"type": "array", "minItems": u64::MAX, "items": {"type": "string", "minLength": u64::MAX}});
        assert_eq!(characters(&huge), usize::MAX);
    }
}
