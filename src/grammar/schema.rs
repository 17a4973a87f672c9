//! Prepares clients' JSON Schemas for the grammar compiler.
//!
//! The compiler refuses rules it cannot enforce by name; no schema is loosened. Changes here only
//! narrow the notation of the JSON (bounded whitespace), never its content. Keys come in the order
//! of the schema, which the compiler enforces.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::GrammarError;

/// Deepest nesting of values in a schema.
const MAX_SCHEMA_DEPTH: usize = 64;
/// Most comparisons of a key pattern with another pattern or with a key; each takes some ten
/// microseconds.
const MAX_KEY_COMPARISONS: usize = 20_000;
/// Whitespace between the parts of a JSON text: enough for pretty printing, and bounded so that a
/// model cannot write spaces forever.
const WHITESPACE: &str = r"[ \t\n\r]{1,40}";

/// Notation of the JSON of a schema.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct JsonStyle {
    /// Whether whitespace between the parts is forbidden.
    pub compact: bool,
    /// Regular expression for the whitespace between two parts.
    pub whitespace_pattern: Option<String>,
    /// Whether objects without a rule of their own allow only the members they name.
    pub closed_objects: bool,
}

/// Checks the schema's size (`max_values` over all levels) and adds the compiler's settings to it.
pub(super) fn ready(schema: &Value, style: &JsonStyle, max_values: usize) -> Result<Value, GrammarError> {
    let mut left = max_values;
    check(schema, 0, &mut left, max_values)?;
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // `true` allows every value; the compiler refuses `false` itself.
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"not": {}}),
        _ => return Err(GrammarError::Schema("a schema is an object".into())),
    };
    // An `$id` only names the base of remote references, and those are refused, so any text may
    // stand there.
    let local = !says_ref(&schema, &|target| !target.starts_with('#'));
    visit(&mut schema, &mut |object| {
        if style.closed_objects
            && object.contains_key("properties")
            && !object.contains_key("additionalProperties")
        {
            object.insert("additionalProperties".into(), false.into());
        }
        if local {
            object.shift_remove("$id");
        }
        refuse_counted_keys(object)?;
        refuse_many_patterns(object)?;
        narrow_open_end(object)
    })?;
    let mut own = Map::new();
    if style.compact {
        own.insert("whitespace_flexible".into(), false.into());
    } else {
        let pattern = style.whitespace_pattern.as_deref().unwrap_or(WHITESPACE);
        own.insert("whitespace_pattern".into(), pattern.into());
    }
    if let Value::Object(root) = &mut schema {
        // Members of these names are settings of the compiler, so the client's are replaced.
        root.insert("x-guidance".into(), own.into());
    }
    Ok(schema)
}

/// A schema for a tool's arguments, which are objects even where the tool's schema leaves that
/// open.
pub(super) fn of_arguments(parameters: Option<&Value>) -> Value {
    let mut schema = match parameters {
        Some(Value::Object(schema)) => schema.clone(),
        _ => Map::new(),
    };
    if !["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"]
        .iter()
        .any(|key| schema.contains_key(*key))
    {
        schema.insert("type".into(), "object".into());
    }
    Value::Object(schema)
}

/// `"key":` of every member that some object of the schema requires, each once, added to `keys`.
pub(super) fn required_keys(schema: &Value, keys: &mut Vec<Vec<u8>>) {
    let mut known: HashSet<Vec<u8>> = keys.iter().cloned().collect();
    add_required_keys(schema, keys, &mut known);
}

fn add_required_keys(schema: &Value, keys: &mut Vec<Vec<u8>>, known: &mut HashSet<Vec<u8>>) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Array(required)) = object.get("required") {
                for name in required.iter().filter(|name| name.is_string()) {
                    let key = format!("{name}:").into_bytes();
                    if known.insert(key.clone()) {
                        keys.push(key);
                    }
                }
            }
            object.values().for_each(|value| add_required_keys(value, keys, known));
        }
        Value::Array(list) => list.iter().for_each(|value| add_required_keys(value, keys, known)),
        _ => {}
    }
}

fn check(value: &Value, depth: usize, left: &mut usize, limit: usize) -> Result<(), GrammarError> {
    if depth > MAX_SCHEMA_DEPTH {
        return Err(GrammarError::Limit { what: "nesting of the schema", limit: MAX_SCHEMA_DEPTH });
    }
    *left = left.checked_sub(1).ok_or(GrammarError::Limit {
        what: "values in the schema (structured_output.max_schema_values)",
        limit,
    })?;
    match value {
        Value::Array(list) => list.iter().try_for_each(|value| check(value, depth + 1, left, limit)),
        Value::Object(object) => object.values().try_for_each(|value| check(value, depth + 1, left, limit)),
        _ => Ok(()),
    }
}

/// Keywords whose value is a schema, and those whose value is a list or a map of schemas.
const HOLD_ONE: [&str; 3] = ["items", "additionalProperties", "not"];
const HOLD_SEVERAL: [&str; 8] =
    ["properties", "patternProperties", "$defs", "definitions", "prefixItems", "anyOf", "oneOf", "allOf"];

/// A change to one schema.
type Change<'c> = dyn FnMut(&mut Map<String, Value>) -> Result<(), GrammarError> + 'c;

/// Calls `change` on every schema within the schema, itself included.
fn visit(schema: &mut Value, change: &mut Change<'_>) -> Result<(), GrammarError> {
    let Value::Object(object) = schema else { return Ok(()) };
    change(object)?;
    for key in HOLD_ONE {
        if let Some(inner) = object.get_mut(key) {
            visit(inner, change)?;
        }
    }
    for key in HOLD_SEVERAL {
        match object.get_mut(key) {
            Some(Value::Object(inner)) => inner.values_mut().try_for_each(|inner| visit(inner, change))?,
            Some(Value::Array(inner)) => inner.iter_mut().try_for_each(|inner| visit(inner, change))?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether some `$ref` of the schema has a target that `like` accepts.
fn says_ref(value: &Value, like: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::Object(object) => {
            object.get("$ref").and_then(Value::as_str).is_some_and(like)
                || object.values().any(|v| says_ref(v, like))
        }
        Value::Array(list) => list.iter().any(|v| says_ref(v, like)),
        _ => false,
    }
}

/// Refuses counts of keys that are not named: the compiler cannot tell a repeated key from a new
/// one.
fn refuse_counted_keys(object: &Map<String, Value>) -> Result<(), GrammarError> {
    let least = object.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let required = object.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    if least > 1 && least > required {
        return Err(GrammarError::Schema(format!(
            "`minProperties` {least} is more than 1 and than the required members"
        )));
    }
    Ok(())
}

/// Refuses many key patterns: the compiler compares each with all others and with every named key.
fn refuse_many_patterns(object: &Map<String, Value>) -> Result<(), GrammarError> {
    let count = |key: &str| object.get(key).and_then(Value::as_object).map_or(0, Map::len);
    let patterns = count("patternProperties");
    if patterns * (patterns + count("properties")) > MAX_KEY_COMPARISONS {
        let what =
            "comparisons of the patterns in `patternProperties` with each other and with the named members";
        return Err(GrammarError::Limit { what, limit: MAX_KEY_COMPARISONS });
    }
    Ok(())
}

/// Narrows an exclusive bound by a millionth. The compiler lets a whole number pass as a value
/// above an exclusive bound if the other bound lies within the same whole number (0 as a number
/// above 0 and at most 0.5); it respects the narrowed bound, whose meaning is almost the same.
fn narrow_open_end(object: &mut Map<String, Value>) -> Result<(), GrammarError> {
    const STEP: f64 = 1e-6;
    let number = |object: &Map<String, Value>, key: &str| object.get(key).and_then(Value::as_f64);
    for (open, closed, other_open, other, inward) in [
        ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum", STEP),
        ("exclusiveMaximum", "maximum", "exclusiveMinimum", "minimum", -STEP),
    ] {
        let Some(bound) = number(object, open).filter(|bound| bound.fract() == 0.0) else { continue };
        let far = [other_open, other]
            .into_iter()
            .filter_map(|key| number(object, key))
            .map(|far| (far - bound) * inward.signum());
        let far = far.fold(f64::INFINITY, f64::min);
        if far >= 1.0 || object.get("type") == Some(&json!("integer")) {
            continue;
        }
        if far <= STEP {
            return Err(GrammarError::Schema(format!(
                "`{open}` {bound} leaves too little room below the other bound"
            )));
        }
        object.shift_remove(open);
        let inside = bound + inward;
        let given = number(object, closed).unwrap_or(inside);
        let tighter = if inward > 0.0 { given.max(inside) } else { given.min(inside) };
        object.insert(closed.into(), tighter.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_request_do_not_reach_the_compiler() {
        let hostile = json!({"type": "object", "x-guidance": {"lenient": true, "whitespace_flexible": true}});
        let ready = ready(&hostile, &JsonStyle::default(), 100).unwrap();
        assert_eq!(ready["x-guidance"], json!({"whitespace_pattern": WHITESPACE}));
    }

    #[test]
    fn sizes_are_bounded() {
        let mut deep = json!({});
        for _ in 0..MAX_SCHEMA_DEPTH + 1 {
            deep = json!({"items": deep});
        }
        let error = ready(&deep, &JsonStyle::default(), 1000).unwrap_err().to_string();
        assert!(error.contains("64"), "{error}");
        let wide = json!({"enum": vec![0; 1000]});
        let error = ready(&wide, &JsonStyle::default(), 1000).unwrap_err().to_string();
        assert!(error.contains("1000"), "{error}");
        assert!(ready(&json!([]), &JsonStyle::default(), 9).is_err());
    }

    #[test]
    fn arguments_are_objects() {
        assert_eq!(of_arguments(None), json!({"type": "object"}));
        assert_eq!(of_arguments(Some(&json!({}))), json!({"type": "object"}));
        assert_eq!(of_arguments(Some(&json!({"$ref": "#/$defs/A"}))), json!({"$ref": "#/$defs/A"}));
    }

    #[test]
    fn closed_objects_and_required_keys() {
        let schema = json!({"properties": {"a": {"properties": {"b": {}}, "required": ["b", "é"]}}, "required": ["a"],
                            "anyOf": [{"properties": {}, "additionalProperties": true}]});
        let style = JsonStyle { closed_objects: true, ..JsonStyle::default() };
        let closed = ready(&schema, &style, 100).unwrap();
        assert_eq!(closed["additionalProperties"], false);
        assert_eq!(closed["properties"]["a"]["additionalProperties"], false);
        assert_eq!(closed["anyOf"][0]["additionalProperties"], true);
        let mut keys = Vec::new();
        required_keys(&schema, &mut keys);
        assert_eq!(keys, ["\"a\":", "\"b\":", "\"é\":"].map(|key| key.as_bytes().to_vec()));
    }
}
