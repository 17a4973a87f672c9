//! Prepares clients' JSON Schemas for the grammar compiler.
//!
//! Rules that the compiler does not know are written in those it knows, if possible: `pattern` in its
//! dialect, `oneOf`, `not`, `propertyNames`, `if` and `uniqueItems` as other keywords. A rewritten
//! schema never allows a value that the original refuses; now and then it allows fewer. What has no
//! such form is refused by name, or left to advice where the schema only gives advice. Otherwise the
//! changes narrow the notation of the JSON (bounded whitespace), never its content. Keys come in the
//! order of the schema, which the compiler enforces.

mod complement;
mod document;
mod formats;
mod names;
mod one_of;
mod prepare;
mod rewrite;
mod unique;
mod walk;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use self::document::Document;
use self::walk::{Place, Walk};
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
/// Most bytes of a key pattern in the compiler's dialect.
const MAX_WRITTEN_BYTES: usize = 2048;
/// Most work of matching keys with patterns, over the schemas of a request. A state of a pattern
/// can grow with every byte read, so each key counts with the square of its length.
const MAX_KEY_WORK: usize = 20_000_000;
/// Longest path from the root to a schema that some `$ref` is found to point to.
const MAX_PLACE_BYTES: usize = 4096;
/// Most rules that are named as not enforced, for one schema.
const MAX_ADVICE: usize = 16;
/// Schemas that one complement may read.
const COMPLEMENT_FUEL: usize = 400;
/// Most dependencies among members that are written out: each doubles the alternatives.
const MAX_DEPENDENCIES: usize = 4;
/// Whitespace between the parts of a JSON text: enough for pretty printing, and bounded so that a
/// model cannot write spaces forever.
const WHITESPACE: &str = r"[ \t\n\r]{1,40}";
/// Where copies of schemas stand whose tag is required.
const TAGGED: &str = "x-perigee-tagged";
/// A pattern that the compiler refuses.
const REFUSED_PATTERN: &str = "(?=)";

/// The formats of strings that the compiler enforces. Any other format is an annotation.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Rules that have no form in the compiler's keywords.
const UNSUPPORTED: [&str; 9] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Rules of JSON Schema that are enforced.
const RULES: [&str; 34] = [
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "dependentRequired",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
    "uniqueItems",
];

/// Whether the keyword is a rule of JSON Schema on the reply.
fn is_rule(keyword: &str) -> bool {
    RULES.contains(&keyword) || UNSUPPORTED.contains(&keyword)
}

/// Whether strings of the format are told from others.
fn is_known_format(format: &str) -> bool {
    FORMATS.contains(&format)
}

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

/// What becomes of a rule that cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unenforced {
    /// The schema is refused.
    Refused,
    /// The rule is left out, and named.
    Advice,
}

/// Key patterns (`patternProperties`) of a request's schemas.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KeyPatterns {
    pairs: usize,
    bytes: usize,
    work: usize,
}

/// What the schemas of a request share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared {
    key_patterns: KeyPatterns,
    /// Steps left for the conditions in patterns.
    steps: usize,
}

impl Default for Shared {
    fn default() -> Self {
        Self { key_patterns: KeyPatterns::default(), steps: super::pattern::MAX_STEPS }
    }
}

impl Shared {
    /// Counts the steps that another has used.
    pub(super) fn use_steps_of(&mut self, other: &Self) {
        self.steps = other.steps;
    }
}

/// A schema for the compiler.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) schema: Value,
    /// Places of the rules that are not enforced, as keywords joined by dots.
    pub(super) advice: Vec<String>,
}

/// Checks the schema's size (`max_values` over all levels), rewrites its rules, and adds the
/// compiler's settings to it. Adds its key patterns to those of the request.
pub(super) fn ready(
    schema: &Value,
    style: &JsonStyle,
    max_values: usize,
    unenforced: Unenforced,
    shared: &mut Shared,
) -> Result<Ready, GrammarError> {
    let mut ready = match schema {
        Value::Object(_) => schema.clone(),
        // `true` allows every value; the compiler refuses `false` itself.
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"allOf": [false]}),
        _ => return Err(GrammarError::Schema("a schema is an object".into())),
    };
    let mut references = HashSet::new();
    add_references(schema, &mut references, 0);
    let mut walk = Walk {
        style,
        is_local: is_local(schema),
        max_values,
        left: max_values,
        patterns: HashSet::new(),
        written_patterns: HashSet::new(),
        key_lengths: 0,
        document: Document(schema),
        unenforced,
        steps: &mut shared.steps,
        path: Vec::new(),
        references,
        is_certain: true,
        advice: Vec::new(),
        tagged: Vec::new(),
    };
    walk.value(&mut ready, Place::Schema, 0)?;
    walk.copies(&mut ready)?;
    let key_patterns = walk.key_patterns(shared.key_patterns)?;
    let advice = walk.advice;
    shared.key_patterns = key_patterns;
    let mut own = Map::new();
    if style.compact {
        own.insert("whitespace_flexible".into(), false.into());
    } else {
        let pattern = style.whitespace_pattern.as_deref().unwrap_or(WHITESPACE);
        own.insert("whitespace_pattern".into(), pattern.into());
    }
    if let Value::Object(root) = &mut ready {
        // Members of these names are settings of the compiler, so the client's are replaced.
        root.insert("x-guidance".into(), own.into());
    }
    Ok(Ready { schema: ready, advice })
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

/// Adds the places that some `$ref` points to.
fn add_references(value: &Value, references: &mut HashSet<String>, depth: usize) {
    if depth > MAX_SCHEMA_DEPTH {
        return;
    }
    match value {
        Value::Object(object) => {
            let target = object.get("$ref").and_then(Value::as_str);
            references.extend(target.and_then(document::pointer));
            object.values().for_each(|value| add_references(value, references, depth + 1));
        }
        Value::Array(list) => list.iter().for_each(|value| add_references(value, references, depth + 1)),
        _ => {}
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    /// The schema as the compiler reads it.
    fn read(schema: &Value) -> Result<Value, GrammarError> {
        let ready = ready(schema, &JsonStyle::default(), 1000, Unenforced::Refused, &mut Shared::default());
        ready.map(|ready| ready.schema)
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
        let mut shared = Shared::default();
        let mut again =
            |schema: Value| ready(&schema, &JsonStyle::default(), 1000, Unenforced::Refused, &mut shared);
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
    fn as_advice_rules_are_left_out_one_by_one_and_named() {
        let text = json!({"type": "string"});
        let schema = json!({"type": "object", "minProperties": 9, "additionalProperties": false, "properties": {
            "a": {"contains": {}, "type": "array"},
            "b": {"enum": [1, (1_i64 << 53) + 1], "maximum": 5},
            "c": {"type": "string", "pattern": "(a)\\1", "maxLength": 3},
            "d": {"$ref": "https://example.com/s", "type": "string"},
            "e": {"oneOf": [text, {"type": "string", "format": "date"}]},
            "f": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-9},
            "g": {"if": {"items": text}, "then": text, "type": "string"},
            "h": {"$ref": "#/$defs/h"}},
            "$defs": {"h": {"not": {"uniqueItems": true}, "type": "array"}, "unused": {"contains": {}}}});
        let read = |rules| ready(&schema, &JsonStyle::default(), 1000, rules, &mut Shared::default());
        let read_as_advice = read(Unenforced::Advice).unwrap();
        let expected = [
            "properties.a.contains",
            "properties.b.enum",
            "properties.c.pattern",
            "properties.d.$ref",
            "properties.e.oneOf",
            "properties.f.exclusiveMinimum",
            "properties.g.if",
            "$defs.h.not",
            "minProperties",
        ];
        assert_eq!(read_as_advice.advice, expected);
        let properties = &read_as_advice.schema["properties"];
        assert_eq!(properties["a"], json!({"type": "array"}));
        assert_eq!(properties["b"], json!({"maximum": 5}));
        assert_eq!(properties["c"], json!({"type": "string", "maxLength": 3}));
        assert_eq!(properties["d"], text);
        assert_eq!(properties["e"]["anyOf"][0], text);
        assert_eq!(properties["g"], text);
        assert_eq!(read_as_advice.schema["$defs"]["h"], json!({"type": "array"}));
        assert_eq!(read_as_advice.schema["additionalProperties"], false);
        assert!(read(Unenforced::Refused).unwrap_err().to_string().contains("`properties.a.contains`"));
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
        let closed = ready(&schema, &style, 100, Unenforced::Refused, &mut Shared::default()).unwrap().schema;
        assert_eq!(closed["additionalProperties"], false);
        assert_eq!(closed["properties"]["a"]["additionalProperties"], false);
        assert_eq!(closed["anyOf"][0]["additionalProperties"], true);
        let mut keys = Vec::new();
        required_keys(&schema, &mut keys);
        assert_eq!(keys, ["\"a\":", "\"b\":", "\"é\":"].map(|key| key.as_bytes().to_vec()));
    }
}
