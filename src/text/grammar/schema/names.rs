//! `propertyNames` as patterns of the members.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::pattern::{Pattern, Texts};
use super::document::{self, Document};

/// Most names that are written as members.
const MAX_MEMBERS: usize = 500;

/// The names that a schema allows.
enum Names {
    Any,
    /// These, in the order of the schema.
    Few(Vec<String>),
    /// The texts that match.
    Texts(Texts),
}

/// Puts the rule on the names of an object's members into its other keywords.
///
/// Errors: the part of the rule that has no such form.
pub(super) fn expand(
    document: Document<'_>,
    object: &mut Map<String, Value>,
    rule: &Value,
    steps: &mut usize,
) -> Result<(), String> {
    match names(document, rule, steps)? {
        Names::Any => Ok(()),
        Names::Few(names) if names.len() > MAX_MEMBERS => {
            Err(format!("it has more than {MAX_MEMBERS} names"))
        }
        Names::Few(names) if !object.contains_key("patternProperties") => {
            few(object, &names);
            Ok(())
        }
        Names::Few(names) => matching(object, &texts_of(&names), steps),
        Names::Texts(texts) => matching(object, &texts, steps),
    }
}

fn texts_of(names: &[String]) -> Texts {
    Texts { all: vec![Pattern::of_texts(names.iter().map(String::as_str))], none: Vec::new() }
}

fn names(document: Document<'_>, rule: &Value, steps: &mut usize) -> Result<Names, String> {
    let none = || Ok(Names::Few(Vec::new()));
    let Some(parts) = document.parts(rule) else { return none() };
    if !document::types(&parts).contains(&"string") {
        return none();
    }
    let mut texts = Texts::default();
    for part in &parts {
        let count = |keyword: &str| part.get(keyword).and_then(Value::as_f64).map(|count| count as u32);
        if let Some(pattern) = part.get("pattern").and_then(Value::as_str) {
            texts.all.push(Pattern::read(pattern, steps).map_err(|why| format!("its `pattern`: {why}"))?);
        }
        if count("minLength").is_some() || count("maxLength").is_some() {
            texts.all.push(Pattern::of_length(count("minLength").unwrap_or(0), count("maxLength")));
        }
        let formats = ["format", "not", "anyOf", "oneOf", "if", "$dynamicRef"];
        let is_open = |keyword: &&str| match part.get(*keyword) {
            Some(Value::String(format)) if *keyword == "format" => super::is_known_format(format),
            found => found.is_some(),
        };
        if let Some(keyword) = formats.iter().copied().find(|keyword| is_open(keyword)) {
            return Err(format!("its `{keyword}`"));
        }
        let is_lost =
            part.get("$ref").and_then(Value::as_str).is_some_and(|target| document.target(target).is_none());
        if is_lost {
            return Err("its `$ref`".into());
        }
    }
    match document.values(&parts) {
        Some(values) => {
            let named = values.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            if texts.all.is_empty() {
                return Ok(Names::Few(named));
            }
            texts.all.extend(texts_of(&named).all);
            Ok(Names::Texts(texts))
        }
        None if texts.all.is_empty() => Ok(Names::Any),
        None => Ok(Names::Texts(texts)),
    }
}

/// Members of the object that are named: those of `properties`, and those that are required.
fn members(object: &Map<String, Value>) -> Vec<String> {
    let properties =
        object.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned();
    let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
    let mut known = HashSet::new();
    let required = required.filter_map(Value::as_str).map(str::to_owned);
    properties.chain(required).filter(|name| known.insert(name.clone())).collect()
}

/// The member of `properties`, or of another keyword that holds schemas by name.
fn map<'a>(object: &'a mut Map<String, Value>, keyword: &str) -> Option<&'a mut Map<String, Value>> {
    object.entry(keyword).or_insert_with(|| json!({})).as_object_mut()
}

/// Members of these names only: written out, so that they come in the order of the rule.
fn few(object: &mut Map<String, Value>, names: &[String]) {
    let others = object.get("additionalProperties").cloned().unwrap_or(true.into());
    let allowed: HashSet<&String> = names.iter().collect();
    let forbidden: Vec<String> = members(object).into_iter().filter(|name| !allowed.contains(name)).collect();
    let Some(properties) = map(object, "properties") else { return };
    for name in forbidden {
        properties.insert(name, false.into());
    }
    if others != Value::Bool(false) {
        for name in names {
            properties.entry(name.as_str()).or_insert_with(|| others.clone());
        }
    }
    object.insert("additionalProperties".into(), false.into());
}

/// Members whose names match.
fn matching(object: &mut Map<String, Value>, texts: &Texts, steps: &mut usize) -> Result<(), String> {
    let refused = |why: super::super::pattern::Refusal| why.to_string();
    let members = members(object);
    let accepted = texts.accept(members.iter().map(String::as_str), steps).map_err(refused)?;
    let mut named = Vec::new();
    if let Some(properties) = map(object, "properties") {
        for (name, accepted) in members.into_iter().zip(accepted) {
            if accepted {
                named.push(name);
            } else {
                properties.insert(name, false.into());
            }
        }
    }
    let others = object.get("additionalProperties").cloned().unwrap_or(true.into());
    let patterns = object.get("patternProperties").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut narrowed = Map::new();
    let mut rest = texts.clone();
    for (pattern, schema) in patterns {
        let pattern = Pattern::read(&pattern, steps).map_err(refused)?;
        let mut both = texts.clone();
        both.all.push(pattern.clone());
        rest.none.push(pattern);
        if let Some(expression) = both.expression(steps).map_err(refused)? {
            narrowed.insert(expression, schema);
        }
    }
    if others != Value::Bool(false) {
        // A rule for other members is none for those that are named.
        if !document::is_any(&others) && !named.is_empty() {
            rest.none.push(Pattern::of_texts(named.iter().map(String::as_str)));
        }
        if let Some(expression) = rest.expression(steps).map_err(refused)? {
            narrowed.insert(expression, others);
        }
    }
    object.insert("patternProperties".into(), narrowed.into());
    object.insert("additionalProperties".into(), false.into());
    Ok(())
}
