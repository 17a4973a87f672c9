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
mod unique;

use std::collections::HashSet;

use serde_json::{Map, Number, Value, json};

use self::complement::Complement;
use self::document::Document;
use super::GrammarError;
use super::pattern::{Pattern, Texts};

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
            (
                Self::Schema,
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
            ) => Self::Named,
            (Self::Schema, "default" | "examples") => Self::Note,
            (Self::Schema, _) => {
                let keyword = DATA.into_iter().find(|keyword| *keyword == key);
                keyword.map_or(Self::Schema, Self::Data)
            }
            (data, _) => data,
        }
    }
}

/// A walk over all values of a schema, which checks its bounds and rewrites the schemas in it.
struct Walk<'a> {
    style: &'a JsonStyle,
    is_local: bool,
    max_values: usize,
    /// Values that may still come.
    left: usize,
    /// Different key patterns.
    patterns: HashSet<String>,
    /// Key patterns that rules on names became.
    written_patterns: HashSet<String>,
    /// Sum of the squares of the lengths of all keys.
    key_lengths: usize,
    /// The schema as the client wrote it.
    document: Document<'a>,
    unenforced: Unenforced,
    steps: &'a mut usize,
    /// Keys from the root to the value.
    path: Vec<String>,
    /// Places that some `$ref` points to.
    references: HashSet<String>,
    /// Whether the compiler reads the value as a schema: values of unknown keywords, and definitions
    /// that nothing refers to, it does not read.
    is_certain: bool,
    advice: Vec<String>,
    /// Places of schemas, and the member that a copy of each requires.
    tagged: Vec<(String, String)>,
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
                if place == Place::Schema {
                    self.expand(object)?;
                }
                self.members(object, place, depth)?;
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

    fn members(
        &mut self,
        object: &mut Map<String, Value>,
        place: Place,
        depth: usize,
    ) -> Result<(), GrammarError> {
        let mut lost = Vec::new();
        for (key, value) in object.iter_mut() {
            let was_certain = self.is_certain;
            self.path.push(key.clone());
            self.is_certain = self.reads(place, key, was_certain);
            let walked = self.value(value, place.below(key), depth + 1);
            self.is_certain = was_certain;
            self.path.pop();
            match walked {
                Err(GrammarError::Schema(_))
                    if matches!((place, place.below(key)), (Place::Schema, Place::Data(_)))
                        && self.unenforced == Unenforced::Advice =>
                {
                    lost.push(key.clone());
                }
                walked => walked?,
            }
        }
        for key in lost {
            object.shift_remove(&key);
            self.advise(&key);
        }
        Ok(())
    }

    /// Whether the compiler reads the value at the end of the path as a schema, where it reads the
    /// one around it or not.
    fn reads(&self, place: Place, key: &str, around: bool) -> bool {
        let inside = match place {
            Place::Schema => is_rule(key),
            // The value of `$defs` itself, and what else has names.
            Place::Named => {
                !matches!(self.path.iter().rev().nth(1).map(String::as_str), Some("$defs" | "definitions"))
            }
            Place::Data(_) | Place::Note => true,
        };
        if around && inside {
            return true;
        }
        let escaped = |key: &String| format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        let bytes: usize = self.path.iter().map(String::len).sum();
        !self.references.is_empty()
            && bytes <= MAX_PLACE_BYTES
            && self.references.contains(&self.path.iter().map(escaped).collect::<String>())
    }

    /// Names a rule of the schema at the end of the path as not enforced.
    fn advise(&mut self, keyword: &str) {
        if self.advice.len() < MAX_ADVICE && self.is_certain {
            let place = self.place(keyword);
            self.advice.push(place);
        }
    }

    fn place(&self, keyword: &str) -> String {
        let mut place = self.path.join(".");
        if !place.is_empty() {
            place.push('.');
        }
        place + keyword
    }

    /// What becomes of a rule that cannot be enforced. Returns the value that stays.
    fn unenforced(&mut self, keyword: &str, value: Value, why: &str) -> Result<Option<Value>, GrammarError> {
        match self.unenforced {
            Unenforced::Advice => {
                self.advise(keyword);
                Ok(None)
            }
            Unenforced::Refused if self.is_certain => {
                Err(GrammarError::Schema(format!("`{}`: {why}", self.place(keyword))))
            }
            // The compiler refuses it where it comes to it after all.
            Unenforced::Refused => Ok(Some(value)),
        }
    }

    /// Writes rules that the compiler does not know in others.
    fn expand(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        self.drop_without_effect(object);
        for keyword in UNSUPPORTED {
            let Some(value) = object.get(keyword).cloned() else { continue };
            if self.unenforced(keyword, value, "this keyword cannot be enforced")?.is_none() {
                object.shift_remove(keyword);
            }
        }
        if self.unenforced == Unenforced::Advice
            && let Some(reference) = object.get("$ref").and_then(Value::as_str)
            && self.document.target(reference).is_none()
            && !reference.starts_with(&format!("#/{TAGGED}/"))
        {
            object.shift_remove("$ref");
            self.advise("$ref");
        }
        self.rewrite(object, "not", |walk, object, value| {
            let other = walk.complement().of(value)?;
            unique::join(object, other);
            Ok(())
        })?;
        self.rewrite(object, "if", |walk, object, value| walk.conditional(object, value))?;
        if !object.contains_key("if") {
            object.shift_remove("then");
            object.shift_remove("else");
        }
        self.rewrite(object, "dependentRequired", |_, object, value| dependent(object, value))?;
        self.rewrite(object, "propertyNames", |walk, object, value| walk.names(object, value))?;
        if object.get("uniqueItems") == Some(&Value::Bool(true)) {
            object.shift_remove("uniqueItems");
            // Texts and numbers that come twice cannot be ruled out by a grammar.
            if !unique::expand(self.document, object) {
                self.advise("uniqueItems");
            }
        }
        self.rewrite_one_of(object)
    }

    /// Takes a rule out of a schema after `write` has put it into other keywords.
    fn rewrite(
        &mut self,
        object: &mut Map<String, Value>,
        keyword: &'static str,
        write: impl FnOnce(&mut Self, &mut Map<String, Value>, &Value) -> Result<(), String>,
    ) -> Result<(), GrammarError> {
        let Some(value) = object.shift_remove(keyword) else { return Ok(()) };
        let Err(why) = write(self, object, &value) else { return Ok(()) };
        let why = format!("it has no form that can be enforced: {why}");
        if let Some(value) = self.unenforced(keyword, value, &why)? {
            object.insert(keyword.into(), value);
        }
        Ok(())
    }

    fn complement(&mut self) -> Complement<'_, '_> {
        Complement { document: self.document, steps: self.steps, fuel: COMPLEMENT_FUEL }
    }

    /// `if` with `then` and `else`, as a choice of two.
    fn conditional(&mut self, object: &mut Map<String, Value>, condition: &Value) -> Result<(), String> {
        let other = self.complement().of(condition)?;
        let then = object.shift_remove("then").unwrap_or(true.into());
        let otherwise = object.shift_remove("else").unwrap_or(true.into());
        let ways = json!([{"allOf": [condition, then]}, {"allOf": [other, otherwise]}]);
        unique::join(object, json!({"anyOf": ways}));
        Ok(())
    }

    fn names(&mut self, object: &mut Map<String, Value>, rule: &Value) -> Result<(), String> {
        let mut changed = object.clone();
        names::expand(self.document, &mut changed, rule, self.steps)?;
        let patterns = changed.get("patternProperties").and_then(Value::as_object);
        if patterns.is_some_and(|patterns| patterns.keys().any(|key| key.len() > MAX_WRITTEN_BYTES)) {
            return Err("its pattern is too long".into());
        }
        self.written_patterns.extend(patterns.into_iter().flat_map(Map::keys).cloned());
        *object = changed;
        Ok(())
    }

    fn rewrite_one_of(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let Some(Value::Array(branches)) = object.get("oneOf") else { return Ok(()) };
        let branches = branches.clone();
        let mut beside = object.clone();
        beside.shift_remove("oneOf");
        let found = one_of::disjoint(self.document, &beside.into(), &branches, self.steps);
        let ways = match found {
            Ok(found) => found.branches.into_iter().map(|branch| self.branch(branch)).collect(),
            Err(why) => match self.unenforced("oneOf", branches.into(), &why)? {
                Some(_) => return Ok(()),
                // As advice, any of the branches.
                None => object["oneOf"].as_array().cloned().unwrap_or_default(),
            },
        };
        // In its place: the order of the keywords is the order of the members.
        let ways = Value::Array(ways);
        let (keyword, rule) = match (object.contains_key("anyOf"), object.contains_key("allOf")) {
            (false, _) => ("anyOf", ways),
            (true, false) => ("allOf", json!([{"anyOf": ways}])),
            (true, true) => {
                object.shift_remove("oneOf");
                unique::join(object, json!({"anyOf": ways}));
                return Ok(());
            }
        };
        let renamed = |(key, value): (String, Value)| {
            if key == "oneOf" { (keyword.to_owned(), rule.clone()) } else { (key, value) }
        };
        *object = std::mem::take(object).into_iter().map(renamed).collect();
        Ok(())
    }

    /// The schema of a branch with all that is joined with it.
    fn branch(&mut self, branch: one_of::Branch) -> Value {
        let mut parts = Vec::new();
        match (&branch.tag, one_of::is_reference(&branch.schema).and_then(document::pointer)) {
            (Some(tag), Some(place)) => {
                let copy = (place, tag.clone());
                let known = self.tagged.iter().position(|known| *known == copy);
                let number = known.unwrap_or_else(|| {
                    self.tagged.push(copy);
                    self.tagged.len() - 1
                });
                parts.push(json!({"$ref": format!("#/{TAGGED}/{number}")}));
            }
            (Some(tag), None) => {
                let mut schema = branch.schema;
                require(&mut schema, tag);
                parts.push(schema);
            }
            (None, _) => parts.push(branch.schema),
        }
        parts.extend(branch.with);
        if parts.len() == 1 { parts.remove(0) } else { json!({"allOf": parts}) }
    }

    /// Adds the copies of schemas whose tag is required. They may have such branches in turn.
    fn copies(&mut self, root: &mut Value) -> Result<(), GrammarError> {
        let mut copies = Vec::new();
        while let Some((place, tag)) = self.tagged.get(copies.len()).cloned() {
            let mut copy = self.document.0.pointer(&place).cloned().unwrap_or(true.into());
            require(&mut copy, &tag);
            self.path = place.split('/').skip(1).map(str::to_owned).collect();
            self.value(&mut copy, Place::Schema, 1)?;
            copies.push(copy);
        }
        if let Value::Object(root) = root
            && !copies.is_empty()
        {
            root.insert(TAGGED.into(), copies.into());
        }
        Ok(())
    }

    /// Leaves out keywords that say nothing as they stand.
    fn drop_without_effect(&self, object: &mut Map<String, Value>) {
        let has = |object: &Map<String, Value>, key: &str| object.contains_key(key);
        if !has(object, "contains") {
            object.shift_remove("minContains");
            object.shift_remove("maxContains");
        }
        if !has(object, "if") {
            object.shift_remove("then");
            object.shift_remove("else");
        } else if !has(object, "then") && !has(object, "else") {
            object.shift_remove("if");
        }
        for keyword in ["$dynamicAnchor", "$recursiveAnchor"] {
            object.shift_remove(keyword);
        }
        for keyword in ["unevaluatedItems", "unevaluatedProperties"] {
            if object.get(keyword).is_some_and(document::is_any) {
                object.shift_remove(keyword);
            }
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            if object.get(keyword).and_then(Value::as_object).is_some_and(Map::is_empty) {
                object.shift_remove(keyword);
            }
        }
        // No rule; the compiler refuses the keyword whatever its value.
        if object.get("uniqueItems") == Some(&Value::Bool(false)) {
            object.shift_remove("uniqueItems");
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
        let count = self.patterns.union(&self.written_patterns).count();
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

    fn prepare(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
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
        self.write_pattern(object)?;
        self.write_format(object);
        self.write_key_patterns(object)?;
        open_ends_of_flags(object);
        let counted = refuse_counted_keys(object).map_err(|refusal| ("minProperties", refusal));
        for checked in [counted, narrow_open_end(object)] {
            match checked {
                Err((keyword, _)) if self.unenforced == Unenforced::Advice => {
                    object.shift_remove(keyword);
                    self.advise(keyword);
                }
                checked => checked.map_err(|(_, refusal)| refusal)?,
            }
        }
        Ok(())
    }

    /// Writes formats that are told apart here as patterns, and leaves out those that nobody tells
    /// apart.
    fn write_format(&mut self, object: &mut Map<String, Value>) {
        let Some(format) = object.get("format").and_then(Value::as_str) else { return };
        let own = formats::pattern(format);
        if own.is_none() && is_known_format(format) {
            return;
        }
        object.shift_remove("format");
        let written = own.and_then(|pattern| Pattern::read(&pattern).ok()?.expressions(self.steps).ok());
        for expression in written.into_iter().flatten() {
            add_pattern(object, expression);
        }
    }

    /// Writes `pattern` in the compiler's dialect.
    fn write_pattern(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let Some(pattern) = object.get("pattern").and_then(Value::as_str) else { return Ok(()) };
        let written = Pattern::read(pattern).and_then(|pattern| pattern.expressions(self.steps));
        match written {
            Ok(written) => {
                object.shift_remove("pattern");
                written.into_iter().for_each(|expression| add_pattern(object, expression));
            }
            Err(why) => match self.unenforced("pattern", REFUSED_PATTERN.into(), &why.to_string())? {
                Some(refused) => drop(object.insert("pattern".into(), refused)),
                None => drop(object.shift_remove("pattern")),
            },
        }
        Ok(())
    }

    /// Writes the keys of `patternProperties` in the compiler's dialect.
    fn write_key_patterns(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let Some(Value::Object(patterns)) = object.get("patternProperties") else { return Ok(()) };
        let mut written: Map<String, Value> = Map::new();
        for (pattern, schema) in patterns.clone() {
            let expression = Pattern::read(&pattern)
                .and_then(|pattern| Texts { all: vec![pattern], none: Vec::new() }.expression(self.steps));
            match expression {
                Ok(Some(expression)) => match written.get_mut(&expression) {
                    Some(same) => *same = json!({"allOf": [same.take(), schema]}),
                    None => drop(written.insert(expression, schema)),
                },
                // No key matches.
                Ok(None) => {}
                Err(why) => {
                    let why = format!("{pattern:?}: {why}");
                    match self.unenforced("patternProperties", json!({REFUSED_PATTERN: true}), &why)? {
                        Some(refused) => drop(object.insert("patternProperties".into(), refused)),
                        None => {
                            object.shift_remove("patternProperties");
                            // Members that the pattern allows would be forbidden.
                            object.shift_remove("additionalProperties");
                        }
                    }
                    return Ok(());
                }
            }
        }
        object.insert("patternProperties".into(), written.into());
        Ok(())
    }
}

/// Adds an expression of the compiler's dialect that strings must match.
fn add_pattern(object: &mut Map<String, Value>, expression: String) {
    if !object.contains_key("pattern") {
        object.insert("pattern".into(), expression.into());
        return;
    }
    // With its type, the compiler merges it with strings alone.
    let more = match object.get("type").is_some_and(|kind| kind == "string") {
        true => json!({"type": "string", "pattern": expression}),
        false => json!({"pattern": expression}),
    };
    unique::join(object, more);
}

/// Makes a member one that an object must have.
fn require(schema: &mut Value, name: &str) {
    let Value::Object(object) = schema else { return };
    if !document::types(&[object]).contains(&"object") {
        *schema = false.into();
        return;
    }
    object.insert("type".into(), "object".into());
    match object.get_mut("required") {
        Some(Value::Array(names)) => {
            if !names.iter().any(|known| known == name) {
                names.push(name.into());
            }
        }
        _ => drop(object.insert("required".into(), json!([name]))),
    }
}

/// `dependentRequired`: for each member, none of it, or those that it needs.
fn dependent(object: &mut Map<String, Value>, rule: &Value) -> Result<(), String> {
    let rule = rule.as_object().ok_or("it is no object")?;
    if rule.len() > MAX_DEPENDENCIES {
        return Err(format!("it names more than {MAX_DEPENDENCIES} members"));
    }
    for (name, needed) in rule {
        unique::join(object, json!({"anyOf": [{"properties": {name: false}}, {"required": needed}]}));
    }
    Ok(())
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
///
/// Errors: the keyword, and why it leaves no room.
fn narrow_open_end(object: &mut Map<String, Value>) -> Result<(), (&'static str, GrammarError)> {
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
            let why = format!("`{open}` {bound} leaves too little room below the other bound");
            return Err((open, GrammarError::Schema(why)));
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
