//! The values that a schema does not allow, as a schema.
//!
//! Where a part of the complement has no schema, it is left out: what remains is still refused by the
//! schema, and a reply that must not meet the schema does not.

use serde_json::{Map, Value, json};

use super::super::pattern::{Pattern, Texts};
use super::document::{self, Document, TYPES, is_note};

/// Deepest nesting of schemas that is looked at.
const MAX_DEPTH: usize = 16;
/// Largest complement, in values.
const MAX_SIZE: usize = 1000;

/// Reads the complements of the schemas of a document.
pub(super) struct Complement<'a, 'b> {
    pub(super) document: Document<'a>,
    /// Steps left for patterns.
    pub(super) steps: &'b mut usize,
    /// Schemas that may still be read.
    pub(super) fuel: usize,
}

impl Complement<'_, '_> {
    /// A schema of values that `schema` does not allow. Errors: the keyword that has no complement.
    pub(super) fn of(&mut self, schema: &Value) -> Result<Value, String> {
        let found = self.at(schema, 0)?;
        if document::size(&found, MAX_SIZE) > MAX_SIZE {
            return Err(format!("more than {MAX_SIZE} values"));
        }
        Ok(found)
    }

    fn at(&mut self, schema: &Value, depth: usize) -> Result<Value, String> {
        let object = match schema {
            Value::Bool(any) => return Ok((!any).into()),
            Value::Object(object) => object,
            _ => return Err("a value that is no schema".into()),
        };
        if depth > MAX_DEPTH || self.fuel == 0 {
            return Err("more nesting than is followed".into());
        }
        self.fuel -= 1;
        let mut ways = Vec::new();
        for (keyword, value) in object.iter().filter(|(keyword, _)| !is_note(keyword)) {
            self.keyword(keyword, value, depth, &mut ways)?;
        }
        ways.retain(|way| *way != Value::Bool(false));
        Ok(match ways.len() {
            0 => false.into(),
            1 => ways.remove(0),
            _ if ways.contains(&Value::Bool(true)) => true.into(),
            _ => json!({"anyOf": ways}),
        })
    }

    /// Adds ways not to meet one keyword.
    fn keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        depth: usize,
        ways: &mut Vec<Value>,
    ) -> Result<(), String> {
        let of_type = |kind: &str, keyword: &str, bound: Value| json!({"type": kind, keyword: bound});
        let list = || value.as_array().map(Vec::as_slice).unwrap_or_default();
        let count = value.as_u64().or_else(|| value.as_f64().map(|count| count as u64));
        let (less, more) =
            (count.and_then(|count| count.checked_sub(1)), count.map(|count| count.saturating_add(1)));
        match keyword {
            "type" => ways.push(other_types(value)),
            "const" => self.other_values(std::slice::from_ref(value), ways),
            "enum" => self.other_values(list(), ways),
            "required" => {
                let names = list().iter().filter_map(Value::as_str);
                ways.extend(names.map(|name| json!({"type": "object", "properties": {name: false}})));
            }
            "properties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    let other = self.at(member, depth + 1)?;
                    if other != Value::Bool(false) {
                        ways.push(json!({"type": "object", "properties": {name: other}, "required": [name]}));
                    }
                }
            }
            "pattern" => {
                let pattern = Pattern::read(value.as_str().unwrap_or_default(), self.steps)
                    .map_err(|why| why.to_string())?;
                let others = Texts { all: Vec::new(), none: vec![pattern] };
                let expression = others.expression(self.steps).map_err(|why| why.to_string())?;
                ways.extend(expression.map(|expression| of_type("string", "pattern", expression.into())));
            }
            "minLength" => ways.extend(less.map(|count| of_type("string", "maxLength", count.into()))),
            "maxLength" => ways.extend(more.map(|count| of_type("string", "minLength", count.into()))),
            "minItems" => ways.extend(less.map(|count| of_type("array", "maxItems", count.into()))),
            "maxItems" => ways.extend(more.map(|count| of_type("array", "minItems", count.into()))),
            "minProperties" => {
                ways.extend(less.map(|count| of_type("object", "maxProperties", count.into())))
            }
            "maxProperties" => {
                ways.extend(more.map(|count| of_type("object", "minProperties", count.into())))
            }
            "minimum" => ways.push(numbers(None, Some(value))),
            "maximum" => ways.push(numbers(Some(value), None)),
            "exclusiveMinimum" if value.is_number() => ways.push(of_type("number", "maximum", value.clone())),
            "exclusiveMaximum" if value.is_number() => ways.push(of_type("number", "minimum", value.clone())),
            "not" => ways.push(value.clone()),
            "allOf" => {
                for part in list() {
                    let other = self.at(part, depth + 1)?;
                    ways.push(other);
                }
            }
            "anyOf" => {
                let others: Result<Vec<Value>, String> =
                    list().iter().map(|part| self.at(part, depth + 1)).collect();
                ways.push(json!({"allOf": others?}));
            }
            "$ref" => {
                let target = value.as_str().and_then(|reference| self.document.target(reference));
                let target = target.ok_or("a reference that leads nowhere")?;
                let other = self.at(target, depth + 1)?;
                ways.push(other);
            }
            "items" | "additionalProperties" | "additionalItems" if document::is_any(value) => {}
            "uniqueItems" if *value == Value::Bool(false) => {}
            known if super::is_rule(known) => return Err(format!("`{known}`")),
            // Keywords of nobody say nothing.
            _ => {}
        }
        Ok(())
    }

    /// Adds schemas of the values that are none of these.
    fn other_values(&mut self, values: &[Value], ways: &mut Vec<Value>) {
        // A list or an object is told apart from all others, which leaves some out.
        let named: Vec<&str> = values.iter().map(document::type_of).collect();
        ways.push(
            json!({"type": TYPES.into_iter().filter(|kind| !named.contains(kind)).collect::<Vec<_>>()}),
        );
        let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        if !texts.is_empty() {
            let others = Texts { all: Vec::new(), none: vec![Pattern::of_texts(texts)] };
            if let Ok(Some(pattern)) = others.expression(self.steps) {
                ways.push(json!({"type": "string", "pattern": pattern}));
            }
        }
        let flags: Vec<bool> = values.iter().filter_map(Value::as_bool).collect();
        if let [flag, rest @ ..] = &flags[..]
            && !rest.contains(&!flag)
        {
            ways.push(json!({"const": !flag}));
        }
        between(values, ways);
    }
}

/// Adds the gaps between the numbers among these values.
fn between(values: &[Value], ways: &mut Vec<Value>) {
    let of = |value: &Value| value.as_f64().unwrap_or(0.0);
    let mut found: Vec<&Value> = values.iter().filter(|value| value.is_number()).collect();
    found.sort_by(|a, b| of(a).total_cmp(&of(b)));
    let Some((first, last)) = found.first().zip(found.last()) else { return };
    ways.push(numbers(None, Some(first)));
    ways.push(numbers(Some(last), None));
    for pair in found.windows(2).filter(|pair| of(pair[0]) < of(pair[1])) {
        ways.push(numbers(Some(pair[0]), Some(pair[1])));
    }
}

/// The numbers above one bound and below another. Whole bounds are narrowed by a millionth: where
/// the other bound is near, the compiler takes such a bound for one of the numbers, and the bounds
/// of several schemas may meet.
fn numbers(above: Option<&Value>, below: Option<&Value>) -> Value {
    const STEP: f64 = 1e-6;
    let mut schema = json!({"type": "number"});
    for (bound, open, closed, inward) in
        [(above, "exclusiveMinimum", "minimum", STEP), (below, "exclusiveMaximum", "maximum", -STEP)]
    {
        let Some(bound) = bound else { continue };
        match bound.as_f64().filter(|bound| bound.fract() == 0.0 && bound.abs() < 1e6) {
            Some(whole) => schema[closed] = (whole + inward).into(),
            None => schema[open] = bound.clone(),
        }
    }
    schema
}

/// The types that are not named. Where integers are, other numbers are left out too: no schema tells
/// them apart.
fn other_types(named: &Value) -> Value {
    let part = Map::from_iter([("type".to_owned(), named.clone())]);
    let named = document::types(&[&part]);
    let others: Vec<&str> = TYPES.into_iter().filter(|kind| !named.contains(kind)).collect();
    if others.is_empty() { false.into() } else { json!({"type": others}) }
}
