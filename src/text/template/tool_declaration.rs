//! Declared tools in the prompts of K2.5 and later: TypeScript types in one namespace.
//!
//! The output equals the released encoder's to the byte, its Python habits included (`None`,
//! `True`, `0.5`), because the models were trained on it. A schema that the encoder refuses, and a
//! list without functions, have no TypeScript: the prompt then carries JSON.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::jinja::{python_float, python_json};

/// Deepest nesting of schemas; requests have a lower limit.
const MAX_DEPTH: usize = 128;
/// Most bytes of a declaration: references cannot repeat text, but indentation grows with depth.
const MAX_BYTES: usize = 16 << 20;

/// A tool with the keys of every object in it sorted; lists keep their order.
pub(super) fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(entries) => {
            let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
            entries.sort_by_key(|entry| entry.0);
            Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        plain => plain.clone(),
    }
}

/// The TypeScript of tools with sorted keys; `None` where the prompt falls back to JSON.
pub(super) fn typescript(tools: &[Value]) -> Option<String> {
    let mut blocks = Vec::new();
    for tool in tools.iter().filter(|tool| tool["type"] == "function") {
        match &tool["function"] {
            Value::Object(function) if !function.is_empty() => blocks.push(function_block(function).ok()?),
            Value::Object(_) | Value::Null => {}
            _ => return None,
        }
    }
    let text = format!("# Tools\n\n## functions\nnamespace functions {{\n{}\n}}\n", blocks.join("\n"));
    (!blocks.is_empty() && text.len() <= MAX_BYTES).then_some(text)
}

/// Marks the places where the released encoder raises an error.
#[derive(Debug)]
struct Refused;

type Encoded<T> = Result<T, Refused>;

/// Definitions that the references of one function may name.
#[derive(Default)]
struct Definitions<'a> {
    by_name: Vec<(&'a str, &'a Value)>,
    /// Indices in `by_name`.
    index: HashMap<&'a str, usize>,
    /// Whether `#` was used, which gives the root a name.
    names_root: bool,
    depth: usize,
}

fn function_block(function: &Map<String, Value>) -> Encoded<String> {
    let empty = Map::new();
    let root = match function.get("parameters") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(root)) => root,
        Some(_) => return Err(Refused),
    };
    let mut definitions = Definitions::default();
    let object = definitions.object(root)?;
    let named = definitions.names_root;
    let mut lines = Vec::new();
    if named {
        lines.push(format!("interface parameters {}", definitions.fields_alone(root)?));
    }
    let mut at = 0;
    while at < definitions.by_name.len() {
        let (name, schema) = definitions.by_name[at];
        at += 1;
        if let Value::Object(fields) = schema {
            lines.extend(described(fields.get("description"), "")?);
        }
        let node = definitions.read(schema)?;
        lines.push(format!("interface {name} {}", definitions.print(&node, "")?));
    }
    lines.extend(described(function.get("description"), "")?);
    let name = match function.get("name") {
        None => "function",
        Some(Value::String(name)) => name,
        Some(_) => return Err(Refused),
    };
    let parameters =
        if named { "parameters".to_owned() } else { definitions.print(&Type::Object(object), "")? };
    lines.push(format!("type {name} = (_: {parameters}) => any;"));
    Ok(lines.join("\n"))
}

/// The part of a schema that the encoder reads.
enum Type<'a> {
    /// Finished text: scalars, references, enumerations, unions of names.
    Text(String),
    Object(Object<'a>),
    /// The type and schema of the items, if the array has one.
    Array(Option<(Box<Type<'a>>, &'a Value)>),
    AnyOf(Vec<Type<'a>>),
}

struct Object<'a> {
    /// In key order; the flag says whether a field is required.
    fields: Vec<(&'a str, bool, Type<'a>, &'a Value)>,
    additional: Option<Box<Type<'a>>>,
}

impl<'a> Definitions<'a> {
    fn read(&mut self, schema: &'a Value) -> Encoded<Type<'a>> {
        let fields = match schema {
            Value::Bool(true) => return Ok(Type::Text("any".into())),
            Value::Bool(false) => return Ok(Type::Text("null".into())),
            Value::Object(fields) => fields,
            _ => return Err(Refused),
        };
        if self.depth == MAX_DEPTH {
            return Err(Refused);
        }
        self.depth += 1;
        let node = self.read_object(fields);
        self.depth -= 1;
        node
    }

    fn read_object(&mut self, fields: &'a Map<String, Value>) -> Encoded<Type<'a>> {
        if let Some(reference) = fields.get("$ref") {
            return self.reference(reference).map(Type::Text);
        }
        if let Some(members) = fields.get("anyOf") {
            let members = members.as_array().ok_or(Refused)?;
            return members.iter().map(|member| self.read(member)).collect::<Encoded<_>>().map(Type::AnyOf);
        }
        if let Some(values) = fields.get("enum") {
            return enumeration(values, fields.get("type")).map(Type::Text);
        }
        match fields.get("type") {
            Some(Value::Array(names)) => union(names).map(Type::Text),
            Some(Value::String(name)) => match name.as_str() {
                "object" => self.object(fields).map(Type::Object),
                "array" => self.array(fields.get("items")),
                "integer" => Ok(Type::Text("number".into())),
                scalar => Ok(Type::Text(scalar.into())),
            },
            None if fields.is_empty() => Ok(Type::Text("any".into())),
            _ => Err(Refused),
        }
    }

    fn reference(&mut self, reference: &Value) -> Encoded<String> {
        let path = reference.as_str().ok_or(Refused)?;
        if path == "#" {
            self.names_root = true;
            return Ok("parameters".into());
        }
        let name = path.strip_prefix("#/$defs/").ok_or(Refused)?;
        if self.index.contains_key(name) { Ok(name.into()) } else { Err(Refused) }
    }

    fn array(&mut self, items: Option<&'a Value>) -> Encoded<Type<'a>> {
        let items = match items {
            None | Some(Value::Null | Value::Bool(false)) => None,
            Some(Value::Object(fields)) if fields.is_empty() => None,
            Some(Value::Array(list)) if list.is_empty() => None,
            Some(items) => Some((Box::new(self.read(items)?), items)),
        };
        Ok(Type::Array(items))
    }

    fn object(&mut self, fields: &'a Map<String, Value>) -> Encoded<Object<'a>> {
        match fields.get("$defs") {
            None | Some(Value::Null) => {}
            Some(Value::Object(definitions)) => {
                for (name, schema) in definitions {
                    match self.index.entry(name) {
                        Entry::Occupied(known) => self.by_name[*known.get()].1 = schema,
                        Entry::Vacant(new) => {
                            new.insert(self.by_name.len());
                            self.by_name.push((name, schema));
                        }
                    }
                }
            }
            Some(_) => return Err(Refused),
        }
        let additional = match fields.get("additionalProperties") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(false)) => Some(Type::Text("never".into())),
            Some(schema) => Some(self.read(schema)?),
        };
        let mut read = Vec::new();
        if let Some(properties) = fields.get("properties") {
            let properties = properties.as_object().ok_or(Refused)?;
            let required: HashSet<&str> = match fields.get("required") {
                Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
                Some(_) if !properties.is_empty() => return Err(Refused),
                _ => HashSet::new(),
            };
            for (name, schema) in properties {
                let name = name.as_str();
                read.push((name, required.contains(name), self.read(schema)?, schema));
            }
        }
        Ok(Object { fields: read, additional: additional.map(Box::new) })
    }

    /// The root's fields for the interface that names it: in key order, without the entry for additional ones.
    fn fields_alone(&mut self, root: &'a Map<String, Value>) -> Encoded<String> {
        let object = self.object(root)?;
        let fields: Vec<_> = object.fields.iter().collect();
        self.print_fields(&fields, None, "")
    }

    fn print(&self, node: &Type<'a>, indent: &str) -> Encoded<String> {
        match node {
            Type::Text(text) => Ok(text.clone()),
            Type::AnyOf(members) => {
                let members: Encoded<Vec<String>> =
                    members.iter().map(|member| self.print(member, indent)).collect();
                members.map(|members| members.join(" | "))
            }
            Type::Array(None) => Ok("Array<any>".into()),
            Type::Array(Some((items, schema))) => {
                let inner = format!("{indent}  ");
                let docs = docs(schema, &inner, false)?;
                if docs.is_empty() {
                    return Ok(format!("Array<{}>", self.print(items, indent)?));
                }
                Ok(format!("Array<\n{}\n{inner}{}\n{indent}>", docs.join("\n"), self.print(items, &inner)?))
            }
            Type::Object(object) => {
                let mut fields: Vec<_> = object.fields.iter().collect();
                fields.sort_by_key(|field| !field.1);
                self.print_fields(&fields, object.additional.as_deref(), indent)
            }
        }
    }

    fn print_fields(
        &self,
        fields: &[&(&'a str, bool, Type<'a>, &'a Value)],
        additional: Option<&Type<'a>>,
        indent: &str,
    ) -> Encoded<String> {
        let inner = format!("{indent}  ");
        let mut entries = Vec::new();
        for (name, required, node, schema) in fields {
            let mut lines = docs(schema, &inner, true)?;
            let mark = if *required { "" } else { "?" };
            lines.push(format!("{inner}{name}{mark}: {}", self.print(node, &inner)?));
            entries.push(lines.join("\n"));
        }
        if let Some(additional) = additional {
            entries.push(format!("{inner}[k: string]: {}", self.print(additional, &inner)?));
        }
        if entries.is_empty() {
            return Ok("{}".into());
        }
        Ok(format!("{{\n{}\n{indent}}}", entries.join(",\n")))
    }
}

/// Comment lines of a description; nothing for an absent or empty one. An empty line stays empty.
fn described(description: Option<&Value>, indent: &str) -> Encoded<Vec<String>> {
    match description {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(text
            .split('\n')
            .map(|line| if line.is_empty() { String::new() } else { format!("{indent}// {line}") })
            .collect()),
        Some(_) => Err(Refused),
    }
}

/// Comment lines of a field or an item: description, constraints, default.
fn docs(schema: &Value, indent: &str, with_default: bool) -> Encoded<Vec<String>> {
    let Value::Object(fields) = schema else { return Ok(Vec::new()) };
    let mut lines = described(fields.get("description"), indent)?;
    let constraints: Vec<String> = constraint_keys(fields)
        .iter()
        .filter_map(|key| Some(format!("{key}: {}", python_text(fields.get(*key)?))))
        .collect();
    if !constraints.is_empty() {
        lines.push(format!("{indent}// {}", constraints.join(", ")));
    }
    let default = fields.get("default").filter(|default| with_default && !default.is_null());
    if let Some(default) = default {
        let shown = match default {
            Value::Bool(_) | Value::Number(_) => python_text(default),
            other => python_json(other),
        };
        lines.push(format!("{indent}// Default: {shown}"));
    }
    Ok(lines)
}

/// Keys printed for a schema's kind, sorted. A schema given by reference, `anyOf` or `enum` has
/// none.
fn constraint_keys(fields: &Map<String, Value>) -> &'static [&'static str] {
    if ["$ref", "anyOf", "enum"].iter().any(|key| fields.contains_key(*key)) {
        return &[];
    }
    match fields.get("type").and_then(Value::as_str) {
        Some("string") => &["maxLength", "minLength", "pattern"],
        Some("number" | "integer") => &["maximum", "minimum"],
        Some("array") => &["maxItems", "minItems"],
        _ => &[],
    }
}

fn enumeration(values: &Value, kind: Option<&Value>) -> Encoded<String> {
    let values = values.as_array().ok_or(Refused)?;
    let kind = match kind {
        None => None,
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(Value::Array(kinds)) => {
            let names: Option<Vec<&str>> = kinds.iter().map(Value::as_str).collect();
            match names.ok_or(Refused)?.as_slice() {
                [one] => Some(*one),
                ["null", other] | [other, "null"] => Some(*other),
                _ => return Err(Refused),
            }
        }
        Some(_) => return Err(Refused),
    };
    let fits = |value: &Value| match kind {
        _ if value.is_null() => true,
        Some("string") => value.is_string(),
        Some("number") => value.is_number() || value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64() || value.is_boolean(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !values.iter().all(fits) {
        return Err(Refused);
    }
    let shown = values.iter().map(|value| match value {
        Value::String(text) => format!("\"{text}\""),
        other => python_text(other),
    });
    Ok(shown.collect::<Vec<_>>().join(" | "))
}

fn union(names: &[Value]) -> Encoded<String> {
    let shown: Encoded<Vec<&str>> = names
        .iter()
        .map(|name| match name.as_str() {
            Some("object") => Ok("{}"),
            Some("array") => Ok("Array<any>"),
            Some("integer" | "number") => Ok("number"),
            Some("string") => Ok("string"),
            Some("boolean") => Ok("boolean"),
            Some("null") => Ok("null"),
            _ => Err(Refused),
        })
        .collect();
    shown.map(|shown| shown.join(" | "))
}

/// Python's `str` of a value.
fn python_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => python_repr(other),
    }
}

fn python_repr(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => python_float(float),
            _ => number.to_string(),
        },
        Value::String(text) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let mut shown = String::from(quote);
            for c in text.chars() {
                match c {
                    '\\' => shown.push_str("\\\\"),
                    '\n' => shown.push_str("\\n"),
                    '\r' => shown.push_str("\\r"),
                    '\t' => shown.push_str("\\t"),
                    c if c == quote => shown.extend(['\\', c]),
                    c if c < ' ' || c == '\u{7f}' => shown.push_str(&format!("\\x{:02x}", c as u32)),
                    c => shown.push(c),
                }
            }
            shown.push(quote);
            shown
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(python_repr).collect::<Vec<_>>().join(", "))
        }
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| {
                format!("{}: {}", python_repr(&Value::String(key.clone())), python_repr(value))
            });
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests;
