//! Prepares clients' JSON Schemas for the grammar compiler.
//!
//! The compiler refuses rules it cannot enforce by name; no schema is loosened in part. Changes here only
//! narrow the notation of the JSON (bounded whitespace), never its content. Keys come in the order
//! of the schema, which the compiler enforces.

use std::collections::HashSet;

use serde_json::{Map, Number, Value, json};

use super::GrammarError;

/// Deepest nesting of values in a schema.
const MAX_SCHEMA_DEPTH: usize = 64;
/// Most pairs of different key patterns, over the schemas of a request: 4 patterns in one schema.
/// The compiler parses the patterns of a schema and compares each with each other, again whenever
/// it merges the schema with another, up to 50,000 times, and cannot be interrupted. A comparison
/// takes some ten microseconds, up to 200 where the patterns make it hard.
const MAX_PATTERN_PAIRS: usize = 6;
/// Most bytes of different key patterns, over the schemas of a request.
const MAX_PATTERN_BYTES: usize = 512;
/// Most work of matching keys with patterns, over the schemas of a request. A state of a pattern
/// can grow with every byte read, so each key counts with the square of its length.
const MAX_KEY_WORK: usize = 20_000_000;
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

/// Key patterns (`patternProperties`) of a request's schemas.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KeyPatterns {
    pairs: usize,
    bytes: usize,
    work: usize,
}

/// Checks the schema's size (`max_values` over all levels) and adds the compiler's settings to it.
/// Adds its key patterns to those of the request.
pub(super) fn ready(
    schema: &Value,
    style: &JsonStyle,
    max_values: usize,
    key_patterns: &mut KeyPatterns,
) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // `true` allows every value; the compiler refuses `false` itself.
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"not": {}}),
        _ => return Err(GrammarError::Schema("a schema is an object".into())),
    };
    let mut walk = Walk {
        style,
        is_local: is_local(&schema),
        max_values,
        left: max_values,
        patterns: HashSet::new(),
        key_lengths: 0,
    };
    walk.value(&mut schema, Place::Schema, 0)?;
    *key_patterns = walk.key_patterns(*key_patterns)?;
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

/// Whether every `$ref` points into the schema itself.
fn is_local(value: &Value) -> bool {
    match value {
        Value::Object(object) => {
            let target = object.get("$ref").and_then(Value::as_str);
            target.is_none_or(|target| target.starts_with('#')) && object.values().all(is_local)
        }
        Value::Array(list) => list.iter().all(is_local),
        _ => true,
    }
}

/// The meaning of a value in a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A schema or a list of schemas. A `$ref` can make one of the value of an unknown keyword.
    Schema,
    /// Schemas by name.
    Named,
    /// Data for the reply, under this keyword.
    Data(&'static str),
    /// Data without a meaning for the reply.
    Note,
}

/// Keywords whose numbers the reply has, or is compared with.
const DATA: [&str; 6] = ["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

impl Place {
    /// The place of a member.
    fn below(self, key: &str) -> Self {
        match (self, key) {
            (Self::Named, _) => Self::Schema,
            (Self::Schema, "properties" | "patternProperties" | "$defs" | "definitions") => Self::Named,
            (Self::Schema, "default" | "examples") => Self::Note,
            (Self::Schema, _) => {
                let keyword = DATA.into_iter().find(|keyword| *keyword == key);
                keyword.map_or(Self::Schema, Self::Data)
            }
            (data, _) => data,
        }
    }
}

/// A walk over all values of a schema, which checks its bounds and prepares the schemas in it.
struct Walk<'a> {
    style: &'a JsonStyle,
    is_local: bool,
    max_values: usize,
    /// Values that may still come.
    left: usize,
    /// Different key patterns.
    patterns: HashSet<String>,
    /// Sum of the squares of the lengths of all keys.
    key_lengths: usize,
}

impl Walk<'_> {
    fn value(&mut self, value: &mut Value, place: Place, depth: usize) -> Result<(), GrammarError> {
        if depth > MAX_SCHEMA_DEPTH {
            return Err(GrammarError::Limit { what: "nesting of the schema", limit: MAX_SCHEMA_DEPTH });
        }
        self.left = self.left.checked_sub(1).ok_or(GrammarError::Limit {
            what: "values in the schema (structured_output.max_schema_values)",
            limit: self.max_values,
        })?;
        match (value, place) {
            (Value::Object(object), _) => {
                self.count_keys(object);
                for (key, value) in object.iter_mut() {
                    self.value(value, place.below(key), depth + 1)?;
                }
                match place {
                    Place::Schema => self.prepare(object),
                    Place::Named => refuse_counted_keys(object),
                    Place::Data(_) | Place::Note => Ok(()),
                }
            }
            (Value::Array(list), _) => {
                list.iter_mut().try_for_each(|value| self.value(value, place, depth + 1))
            }
            (Value::Number(number), Place::Data(keyword)) => refuse_inexact(keyword, number),
            _ => Ok(()),
        }
    }

    /// Counts keys and key patterns in whatever place: a `$ref` may lead to it.
    fn count_keys(&mut self, object: &Map<String, Value>) {
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let keys = object.keys().map(String::as_str).chain(required.filter_map(Value::as_str));
        let squares = keys.map(|key| key.len().saturating_mul(key.len()));
        self.key_lengths = squares.fold(self.key_lengths, usize::saturating_add);
        // A member that is only called so is a schema, in which some keyword has another value.
        let is_schema = |value: &Value| value.is_object() || value.is_boolean();
        if let Some(Value::Object(patterns)) = object.get("patternProperties")
            && patterns.values().all(is_schema)
        {
            self.patterns.extend(patterns.keys().cloned());
        }
    }

    /// The key patterns of the request so far, with those of this schema.
    fn key_patterns(&self, before: KeyPatterns) -> Result<KeyPatterns, GrammarError> {
        let count = self.patterns.len();
        let pairs = before.pairs + count * count.saturating_sub(1) / 2;
        let bytes = before.bytes + self.patterns.iter().map(String::len).sum::<usize>();
        let work = before.work.saturating_add(count.saturating_mul(self.key_lengths));
        for (what, value, limit) in [
            ("pairs of different patterns in `patternProperties`", pairs, MAX_PATTERN_PAIRS),
            ("bytes of patterns in `patternProperties`", bytes, MAX_PATTERN_BYTES),
            ("bytes of keys, squared and times the patterns in `patternProperties`", work, MAX_KEY_WORK),
        ] {
            if value > limit {
                return Err(GrammarError::Limit { what, limit });
            }
        }
        Ok(KeyPatterns { pairs, bytes, work })
    }

    fn prepare(&self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        if self.style.closed_objects
            && object.contains_key("properties")
            && !object.contains_key("additionalProperties")
        {
            object.insert("additionalProperties".into(), false.into());
        }
        // An `$id` only names the base of remote references, and those are refused, so any text may
        // stand there.
        if self.is_local {
            object.shift_remove("$id");
        }
        // No rule; the compiler refuses the keyword whatever its value.
        if object.get("uniqueItems") == Some(&Value::Bool(false)) {
            object.shift_remove("uniqueItems");
        }
        refuse_counted_keys(object)?;
        open_ends_of_flags(object);
        narrow_open_end(object)
    }
}

/// Refuses an integer that the compiler does not keep: it reads numbers as 64-bit floats, and steps
/// from an exclusive bound to its neighbour.
fn refuse_inexact(keyword: &str, number: &Number) -> Result<(), GrammarError> {
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let neighbour = match keyword {
        "exclusiveMinimum" => 1,
        "exclusiveMaximum" => -1,
        _ => 0,
    };
    // The largest integer of 64 bits is kept, because the conversion back saturates.
    let is_exact = |integer: i128| integer as f64 as i128 == integer || integer == i128::from(i64::MAX);
    match integer {
        Some(integer) if !(is_exact(integer) && is_exact(integer + neighbour)) => {
            Err(GrammarError::Schema(format!(
                "`{keyword}` has the integer {integer}, which a 64-bit float does not hold; send such numbers as strings"
            )))
        }
        _ => Ok(()),
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

/// Turns the exclusive bounds of draft 4, a flag beside a bound, into bounds of their own.
fn open_ends_of_flags(object: &mut Map<String, Value>) {
    for (open, closed) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        if object.get(open) == Some(&Value::Bool(true))
            && object.get(closed).is_some_and(Value::is_number)
            && let Some(bound) = object.shift_remove(closed)
        {
            object.insert(open.into(), bound);
        }
    }
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

    /// The schema as the compiler reads it.
    fn read(schema: &Value) -> Result<Value, GrammarError> {
        ready(schema, &JsonStyle::default(), 1000, &mut KeyPatterns::default())
    }

    fn check_refused(schema: Value, part: &str) {
        let error = read(&schema).expect_err(&schema.to_string()).to_string();
        assert!(error.contains(part), "{schema}: {error}");
    }

    #[test]
    fn settings_of_the_request_do_not_reach_the_compiler() {
        let hostile = json!({"type": "object", "x-guidance": {"lenient": true, "whitespace_flexible": true}});
        let ready = read(&hostile).unwrap();
        assert_eq!(ready["x-guidance"], json!({"whitespace_pattern": WHITESPACE}));
    }

    #[test]
    fn sizes_are_bounded() {
        let mut deep = json!({});
        for _ in 0..MAX_SCHEMA_DEPTH + 1 {
            deep = json!({"items": deep});
        }
        check_refused(deep, "64");
        check_refused(json!({"enum": vec![0; 1000]}), "1000");
        assert!(read(&json!([])).is_err());
    }

    /// `count` key patterns that differ from those of another name.
    fn patterns(name: &str, count: usize) -> Value {
        let patterns: Map<String, Value> =
            (0..count).map(|number| (format!("^{name}{number}"), json!({}))).collect();
        json!({"type": "object", "patternProperties": patterns})
    }

    /// Regression: patterns were counted per object, at some keywords.
    #[test]
    fn key_patterns_are_counted_over_the_whole_schema() {
        let (few, many) = (patterns("a", 4), patterns("a", 5));
        for schema in [
            many.clone(),
            json!({"$ref": "#/x", "x": many}),
            json!({"$ref": "#/x/const", "x": {"const": many}}),
            json!({"$ref": "#/properties", "properties": many}),
            json!({"items": [many]}),
            json!({"items": [{}], "additionalItems": many}),
            json!({"allOf": [few, patterns("b", 1)]}),
            json!({"properties": {"a": few, "b": patterns("b", 1)}}),
        ] {
            check_refused(schema, "patternProperties");
        }
        // The same patterns again are not compared with each other.
        let mut key_patterns = KeyPatterns::default();
        let mut again = |schema: Value| ready(&schema, &JsonStyle::default(), 1000, &mut key_patterns);
        again(json!({"properties": {"a": few, "b": few}})).unwrap();
        let error = again(patterns("b", 2)).unwrap_err();
        assert!(error.to_string().contains("patternProperties"), "the second schema of a request: {error}");
        // A member of that name.
        read(&json!({"properties": {"patternProperties": {"type": "object", "title": "T", "a": {}, "b": {}, "c": {},
            "d": {}, "e": {}, "f": {}}}}))
        .unwrap();
        let long = "k".repeat(5000);
        for schema in [
            json!({"patternProperties": {"(a|b)*a(a|b){1000}": {}}, "properties": {&long: {}}}),
            json!({"patternProperties": {"(a|b)*a(a|b){1000}": {}}, "required": [long]}),
            json!({"patternProperties": {"k".repeat(600): {}}}),
        ] {
            check_refused(schema, "patternProperties");
        }
        read(&json!({"properties": {long: {}}})).unwrap();
    }

    #[test]
    fn counts_of_keys_are_refused_wherever_a_reference_leads() {
        let counted = json!({"minProperties": 3, "required": ["a"]});
        for schema in [
            counted.clone(),
            json!({"$ref": "#/x", "x": counted}),
            json!({"$ref": "#/$defs", "$defs": counted}),
            json!({"items": [counted]}),
        ] {
            check_refused(schema, "minProperties");
        }
        for schema in [
            json!({"const": counted, "default": counted}),
            json!({"minProperties": 2, "required": ["a", "b"]}),
            json!({"properties": {"minProperties": {"type": "integer"}}}),
        ] {
            read(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        }
    }

    /// Regression: the reply had a neighbour of such an integer.
    #[test]
    fn integers_beyond_53_bits_are_refused_by_name() {
        let odd = (1_i64 << 53) + 1;
        for (schema, keyword) in [
            (json!({"const": odd}), "const"),
            (json!({"enum": [1, {"a": [-odd]}]}), "enum"),
            (json!({"properties": {"a": {"minimum": odd}}}), "minimum"),
            (json!({"items": [{"maximum": u64::MAX}]}), "maximum"),
            (json!({"exclusiveMinimum": odd - 1}), "exclusiveMinimum"),
            (json!({"exclusiveMaximum": 1_i64 << 60}), "exclusiveMaximum"),
        ] {
            check_refused(schema, &format!("`{keyword}` has the integer"));
        }
        for schema in [
            json!({"const": odd - 1, "default": odd, "description": odd}),
            json!({"minimum": -(1_i64 << 60), "maximum": i64::MAX}),
            json!({"exclusiveMaximum": odd - 1}),
            json!({"properties": {"const": {"title": "T"}, "maximum": {}}}),
        ] {
            read(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        }
    }

    #[test]
    fn only_schemas_are_prepared() {
        let bound = json!({"minimum": 0, "exclusiveMinimum": true, "maximum": 0.5, "uniqueItems": false, "$id": "a b"});
        let narrowed = json!({"minimum": 1e-6, "maximum": 0.5});
        let schema = json!({"items": [bound], "x": bound, "const": bound, "examples": [bound],
            "properties": {"uniqueItems": false, "$id": bound}});
        let ready = read(&schema).unwrap();
        for place in ["/items/0", "/x", "/properties/$id"] {
            assert_eq!(ready.pointer(place), Some(&narrowed), "{place}");
        }
        assert_eq!(ready["const"], bound);
        assert_eq!(ready["examples"][0], bound);
        assert_eq!(ready["properties"]["uniqueItems"], false);
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
        let closed = ready(&schema, &style, 100, &mut KeyPatterns::default()).unwrap();
        assert_eq!(closed["additionalProperties"], false);
        assert_eq!(closed["properties"]["a"]["additionalProperties"], false);
        assert_eq!(closed["anyOf"][0]["additionalProperties"], true);
        let mut keys = Vec::new();
        required_keys(&schema, &mut keys);
        assert_eq!(keys, ["\"a\":", "\"b\":", "\"é\":"].map(|key| key.as_bytes().to_vec()));
    }
}
