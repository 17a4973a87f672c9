//! What a reply must be: `response_format`, vLLM's `structured_outputs` and `guided_*`, and the spellings of other servers.
//!
//! One way of saying it per request. What cannot be honoured is an error that names the field; nothing is dropped silently, for a client
//! that asked for JSON relies on getting it.

mod nested_tags;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::ApiError;
use super::values::{Free, List};
use perigee_text::grammar::{
    AnswerFormat, GrammarSpec, JsonStyle, StructuralFormat, StructuralTag, StructuralTags,
};

/// Most texts of a choice.
const MAX_CHOICES: usize = 10_000;

/// The fields, as they stand in the body.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct StructuredBody {
    /// What the reply must be; one such field per request.
    #[schemars(schema_with = "described::response_format")]
    pub(super) response_format: Option<Free>,
    /// Exactly one constraint, and how it is written.
    #[schemars(schema_with = "described::structured_outputs")]
    structured_outputs: Option<Free>,
    /// What the reply must be; one such field per request.
    #[schemars(schema_with = "described::schema")]
    guided_json: Option<Free>,
    /// What the reply must be; one such field per request.
    guided_regex: Option<String>,
    /// What the reply must be; one such field per request.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    guided_choice: Option<List<String, MAX_CHOICES>>,
    /// Lark with a rule `start`, or GBNF with a rule `root`.
    guided_grammar: Option<String>,
    /// Only together with `guided_json`.
    guided_whitespace_pattern: Option<String>,
    /// What the reply must be; one such field per request.
    regex: Option<String>,
    /// What the reply must be; one such field per request.
    ebnf: Option<String>,
    /// A grammar as text, or a schema or an expression in the words of TGI; one such field per request.
    #[schemars(schema_with = "described::grammar")]
    grammar: Option<Free>,
    /// What the reply must be; one such field per request.
    #[schemars(schema_with = "described::schema")]
    json_schema: Option<Free>,
    /// What the reply must be; one such field per request.
    #[schemars(schema_with = "described::tags")]
    structural_tag: Option<Free>,
    /// Ollama's way to ask for JSON: `json`, or a schema.
    #[schemars(extend("anyOf" = [{"enum": ["json", "", null]}, {"type": "object"}]))]
    format: Option<Free>,
    /// Whether the reply must be a JSON object.
    json_mode: Option<bool>,
}

/// Schemas of the fields whose form depends on what stands in them.
mod described {
    use schemars::{Schema, SchemaGenerator, json_schema};
    use serde_json::{Value, json};

    pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["object", "string", "boolean"]})
    }

    pub(super) fn tags(_: &mut SchemaGenerator) -> Schema {
        let properties = json!({
            "structures": {"type": "array", "items": {"type": "object", "required": ["begin", "end"], "properties": {
                "begin": {"type": "string"}, "schema": {"type": "object"}, "end": {"type": "string", "minLength": 1}}}},
            "triggers": {"type": "array", "items": {"type": "string", "minLength": 1}},
            "format": {"type": "object", "required": ["type"], "properties": {"type": {"enum": super::nested_tags::TYPES}}}});
        json_schema!({"type": "object", "anyOf": [{"required": ["structures", "triggers"]}, {"required": ["format"]}], "properties": properties})
    }

    pub(super) fn response_format(generator: &mut SchemaGenerator) -> Schema {
        let closed = |kind: &str, required: &[&str], mut properties: Value| {
            properties["type"] = json!({"const": kind});
            let required = [&["type"], required].concat();
            // Null is the same as leaving a member out.
            let others = json!({"type": "null"});
            json!({"type": "object", "additionalProperties": others, "required": required, "properties": properties})
        };
        let mut tags = tags(generator).to_value();
        tags["required"] = json!(["type"]);
        tags["properties"]["type"] = json!({"const": "structural_tag"});
        let named = json!({"type": "object", "additionalProperties": false, "required": ["name", "schema"], "properties": {
            "name": {"type": "string"}, "description": {"type": ["string", "null"]}, "strict": {"type": ["boolean", "null"]}, "schema": schema(generator)}});
        json_schema!({"oneOf": [
            closed("text", &[], json!({})),
            closed("json_object", &[], json!({"schema": {"type": ["object", "string", "boolean", "null"]}})),
            closed("json_schema", &["json_schema"], json!({"json_schema": named})),
            tags,
            closed("regex", &["regex"], json!({"regex": {"type": "string"}})),
            closed("grammar", &["grammar"], json!({"grammar": {"type": "string"}})),
            closed("ebnf", &["ebnf"], json!({"ebnf": {"type": "string"}})),
            closed("json", &["schema"], json!({"schema": schema(generator)})),
        ]})
    }

    pub(super) fn structured_outputs(generator: &mut SchemaGenerator) -> Schema {
        let choice = json!({"type": "array", "minItems": 1, "maxItems": super::MAX_CHOICES, "items": {"type": "string", "minLength": 1}});
        let (flag, text) = (json!({"type": "boolean"}), json!({"type": "string"}));
        json_schema!({"type": "object", "additionalProperties": false, "properties": {
            "json": schema(generator), "regex": text, "choice": choice, "grammar": text, "json_object": flag, "structural_tag": tags(generator),
            "disable_any_whitespace": flag, "disable_additional_properties": flag, "whitespace_pattern": text, "disable_fallback": flag}})
    }

    pub(super) fn grammar(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, {"type": "object", "required": ["type", "value"], "properties": {
            "type": {"enum": ["json", "regex"]}, "value": schema(generator)}}]})
    }
}

/// A shape and the field that asked for it.
pub(super) type Asked = (&'static str, AnswerFormat);

impl StructuredBody {
    /// What the fields ask for, or the dialect's `own` way of asking; `None` when they ask for nothing.
    pub(super) fn check(self, own: Option<Asked>) -> Result<Option<GrammarSpec>, ApiError> {
        let mut asked: Vec<Asked> = own.into_iter().collect();
        let whitespace = self.guided_whitespace_pattern;
        let style = JsonStyle { whitespace_pattern: whitespace.clone(), ..JsonStyle::default() };
        if let Some(Free(format)) = self.response_format
            && let Some(shape) = response_format("response_format", &format, false)?
        {
            asked.push(("response_format", shape));
        }
        if let Some(Free(outputs)) = self.structured_outputs
            && let Some(shape) = structured_outputs(&outputs)?
        {
            asked.push(("structured_outputs", shape));
        }
        for (name, value) in [("guided_json", self.guided_json), ("json_schema", self.json_schema)] {
            if let Some(Free(value)) = value {
                asked
                    .push((name, AnswerFormat::Json { schema: schema(name, &value)?, style: style.clone() }));
            }
        }
        for (name, value) in [("guided_regex", self.guided_regex), ("regex", self.regex)] {
            asked.extend(value.map(|regex| (name, AnswerFormat::Regex(regex))));
        }
        if let Some(List(texts)) = self.guided_choice {
            asked.push(("guided_choice", choice("guided_choice", texts)?));
        }
        for (name, value) in [("guided_grammar", self.guided_grammar), ("ebnf", self.ebnf)] {
            asked.extend(value.map(|grammar| (name, AnswerFormat::Grammar(grammar))));
        }
        if let Some(Free(value)) = self.grammar {
            asked.push(("grammar", grammar(&value)?));
        }
        if let Some(Free(value)) = self.structural_tag {
            asked.push(("structural_tag", tags("structural_tag", &value)?));
        }
        match self.format.map(|Free(format)| format) {
            None => {}
            Some(Value::String(word)) if word.is_empty() => {}
            Some(Value::String(word)) if word == "json" => asked.push(("format", any_json())),
            Some(Value::String(word)) => {
                return Err(ApiError::unknown_value("format", &word, "json, or a JSON Schema"));
            }
            Some(value) => {
                asked.push((
                    "format",
                    AnswerFormat::Json { schema: schema("format", &value)?, style: style.clone() },
                ));
            }
        }
        if self.json_mode == Some(true) {
            asked.push(("json_mode", any_json()));
        }
        // Clients that serve several servers send one constraint under the name of each.
        if let [(first, shape), others @ ..] = &asked[..]
            && let Some((second, _)) = others.iter().find(|(_, other)| other != shape)
        {
            return Err(ApiError::invalid_value(
                *second,
                format!("given together with `{first}`, which asks for something else; use one of them"),
            ));
        }
        asked.truncate(1);
        let Some((field, shape)) = asked.pop() else {
            return match whitespace {
                Some(_) => Err(ApiError::invalid_value(
                    "guided_whitespace_pattern",
                    "only allowed together with `guided_json`",
                )),
                None => Ok(None),
            };
        };
        Ok(Some(GrammarSpec { format: shape, field }))
    }
}

/// `response_format` of the public API, with the types that other servers added. Where the form is `flat`, a schema's members stand
/// beside the type and its name may be left out.
pub(super) fn response_format(
    path: &str,
    format: &Value,
    flat: bool,
) -> Result<Option<AnswerFormat>, ApiError> {
    let fields = object(path, format)?;
    let at = |member: &str| format!("{path}.{member}");
    let kind = match fields.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(_) => return Err(ApiError::invalid_type(&at("type"), "a string is expected")),
        None => return Err(ApiError::missing(at("type"))),
    };
    let text = |name: &str| match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(ApiError::invalid_type(&at(name), "a string is expected")),
        None => Err(ApiError::missing(at(name))),
    };
    let json = |schema: Value| AnswerFormat::Json { schema, style: JsonStyle::default() };
    let members: &[&str] = match kind {
        "text" => &["type"],
        "json_object" | "json" => &["type", "schema"],
        "json_schema" if flat => &["type", "name", "description", "schema", "strict"],
        "json_schema" => &["type", "json_schema"],
        "regex" => &["type", "regex"],
        "ebnf" => &["type", "ebnf"],
        "grammar" => &["type", "grammar"],
        "structural_tag" => &["type", "structures", "triggers", "format"],
        _ => &[],
    };
    if !members.is_empty() {
        check_members(path, fields, members)?;
    }
    Ok(Some(match kind {
        "text" => return Ok(None),
        // llama.cpp's form of a schema.
        "json_object" => match fields.get("schema").filter(|schema| !schema.is_null()) {
            Some(inner) => json(schema(&at("schema"), inner)?),
            None => json(any_object()),
        },
        "json_schema" if flat => json(named_schema(path, fields, false)?),
        "json_schema" => {
            let path = at("json_schema");
            let inner = fields.get("json_schema").ok_or_else(|| ApiError::missing(&path))?;
            let inner = object(&path, inner)?;
            check_members(&path, inner, &["name", "description", "schema", "strict"])?;
            json(named_schema(&path, inner, true)?)
        }
        "json" => {
            json(schema(&at("schema"), fields.get("schema").ok_or_else(|| ApiError::missing(at("schema")))?)?)
        }
        "regex" => AnswerFormat::Regex(text("regex")?),
        "ebnf" => AnswerFormat::Grammar(text("ebnf")?),
        "grammar" => AnswerFormat::Grammar(text("grammar")?),
        "structural_tag" => tags(path, format)?,
        other => {
            return Err(ApiError::unknown_value(
                at("type"),
                other,
                "text, json_object, json_schema, structural_tag, regex, grammar, ebnf",
            ));
        }
    }))
}

/// Refuses members of other names: what they ask for would be missing from the reply without a word.
pub(super) fn check_members(path: &str, fields: &Map<String, Value>, known: &[&str]) -> Result<(), ApiError> {
    let unknown = fields.iter().find(|(name, value)| !(known.contains(&name.as_str()) || value.is_null()));
    let Some((name, _)) = unknown else { return Ok(()) };
    let shown: String = name.chars().take(32).collect();
    let message = format!("no member has this name, allowed: {}", known.join(", "));
    Err(ApiError::invalid_value(format!("{path}.{shown}"), message))
}

/// A schema and what stands beside it: the public API demands a name, and a client that says something else of `strict` means something.
fn named_schema(path: &str, json_schema: &Map<String, Value>, needs_name: bool) -> Result<Value, ApiError> {
    let at = |member: &str| format!("{path}.{member}");
    let inner = json_schema.get("schema").ok_or_else(|| ApiError::missing(at("schema")))?;
    let schema = schema(&at("schema"), inner)?;
    match json_schema.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        Some(Value::String(_)) => return Err(ApiError::invalid_value(at("name"), "the name is empty")),
        None if !needs_name => {}
        None | Some(Value::Null) => return Err(ApiError::missing(at("name"))),
        Some(_) => return Err(ApiError::invalid_type(&at("name"), "a string is expected")),
    }
    let is =
        |key: &str, fits: fn(&Value) -> bool| json_schema.get(key).is_none_or(|v| v.is_null() || fits(v));
    if !is("strict", Value::is_boolean) {
        return Err(ApiError::invalid_type(&at("strict"), "true or false is expected"));
    }
    if !is("description", Value::is_string) {
        return Err(ApiError::invalid_type(&at("description"), "a string is expected"));
    }
    Ok(schema)
}

/// `structured_outputs` of vLLM.
fn structured_outputs(outputs: &Value) -> Result<Option<AnswerFormat>, ApiError> {
    const NAME: &str = "structured_outputs";
    let fields = object(NAME, outputs)?;
    let mut style = JsonStyle::default();
    let mut asked = Vec::new();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let flag = || {
            value
                .as_bool()
                .ok_or_else(|| ApiError::invalid_type(NAME, format!("`{key}` must be true or false")))
        };
        let text = || {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| ApiError::invalid_type(NAME, format!("`{key}` must be a string")))
        };
        match key.as_str() {
            "json" => asked.push(AnswerFormat::Json {
                schema: schema("structured_outputs.json", value)?,
                style: JsonStyle::default(),
            }),
            "json_object" => {
                if flag()? {
                    asked.push(AnswerFormat::Json { schema: any_object(), style: JsonStyle::default() });
                }
            }
            "regex" => asked.push(AnswerFormat::Regex(text()?)),
            "grammar" => asked.push(AnswerFormat::Grammar(text()?)),
            "choice" => {
                let path = "structured_outputs.choice";
                asked.push(choice(path, texts(path, value)?)?);
            }
            "structural_tag" => asked.push(tags("structured_outputs.structural_tag", value)?),
            "disable_any_whitespace" => style.compact = flag()?,
            "disable_additional_properties" => style.closed_objects = flag()?,
            "whitespace_pattern" => style.whitespace_pattern = Some(text()?),
            // How another server would go about it; the outcome is the same.
            "disable_fallback" | "_backend" | "_backend_was_auto" => {}
            other => {
                let shown: String = other.chars().take(32).collect();
                return Err(ApiError::invalid_value(NAME, format!("`{shown}` is unknown")));
            }
        }
    }
    if asked.len() > 1 {
        return Err(ApiError::invalid_value(NAME, "several constraints are given; use one of them"));
    }
    let Some(mut shape) = asked.pop() else {
        return match fields.is_empty() {
            true => Ok(None),
            false => Err(ApiError::invalid_value(
                NAME,
                "one of json, regex, choice, grammar, json_object, structural_tag is expected",
            )),
        };
    };
    if let AnswerFormat::Json { style: own, .. } = &mut shape {
        *own = style;
    }
    Ok(Some(shape))
}

/// `grammar`: a GBNF or Lark text, or `{"type": "json" | "regex", "value": ...}`.
fn grammar(value: &Value) -> Result<AnswerFormat, ApiError> {
    match value {
        Value::String(text) => Ok(AnswerFormat::Grammar(text.clone())),
        Value::Object(fields) => match (fields.get("type").and_then(Value::as_str), fields.get("value")) {
            (Some("json"), Some(value)) => Ok(AnswerFormat::Json {
                schema: schema("grammar.value", value)?,
                style: JsonStyle::default(),
            }),
            (Some("regex"), Some(Value::String(regex))) => Ok(AnswerFormat::Regex(regex.clone())),
            _ => Err(ApiError::invalid_value("grammar", "`type` must be json or regex, with a `value`")),
        },
        _ => Err(ApiError::invalid_type("grammar", "a string or an object is expected")),
    }
}

/// Structural tags: `structures` and `triggers`.
fn tags(path: &str, value: &Value) -> Result<AnswerFormat, ApiError> {
    // Some clients send the object as a string of JSON.
    let parsed;
    let value = match value {
        Value::String(text) => {
            parsed = serde_json::from_str::<Free>(text)
                .map_err(|error| ApiError::invalid_value(path, format!("not valid JSON: {error}")))?;
            &parsed.0
        }
        other => other,
    };
    let fields = object(path, value)?;
    if let Some(format) = fields.get("format").filter(|format| !format.is_null()) {
        let tags = StructuralTags::of(nested_tags::format(&format!("{path}.format"), format, 0)?);
        return tags
            .map(AnswerFormat::Tags)
            .map_err(|error| ApiError::invalid_value(path, error.to_string()));
    }
    let structures = fields.get("structures").and_then(Value::as_array);
    let structures =
        structures.ok_or_else(|| ApiError::invalid_value(path, "`structures` must be a list"))?;
    let structures: Result<Vec<StructuralTag>, ApiError> = structures
        .iter()
        .enumerate()
        .map(|(number, tag)| {
            let text = |name: &str| {
                tag.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| {
                    ApiError::invalid_value(path, format!("structure {number}: `{name}` must be a string"))
                })
            };
            let schema = match tag.get("schema") {
                Some(inner) => schema(path, inner)?,
                None => any_object(),
            };
            Ok(StructuralTag {
                begin: text("begin")?,
                content: StructuralFormat::Json(schema),
                end: text("end")?,
            })
        })
        .collect();
    let triggers =
        fields.get("triggers").ok_or_else(|| ApiError::invalid_value(path, "`triggers` must be a list"))?;
    let tags = StructuralTags::new(structures?, texts(path, triggers)?);
    tags.map(AnswerFormat::Tags).map_err(|error| ApiError::invalid_value(path, error.to_string()))
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}

fn any_json() -> AnswerFormat {
    AnswerFormat::Json { schema: any_object(), style: JsonStyle::default() }
}

/// A choice among texts: at least one, and none is empty.
fn choice(path: &str, texts: Vec<String>) -> Result<AnswerFormat, ApiError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(ApiError::invalid_value(path, "at least one text is expected, and no text may be empty"));
    }
    Ok(AnswerFormat::Choice(texts))
}

/// A JSON Schema, perhaps as a string of JSON.
pub(super) fn schema(path: &str, value: &Value) -> Result<Value, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value.clone()),
        Value::String(text) => match serde_json::from_str::<Free>(text) {
            Ok(Free(schema @ (Value::Object(_) | Value::Bool(_)))) => Ok(schema),
            Ok(_) => Err(ApiError::invalid_value(path, "the string holds no JSON object")),
            Err(error) => {
                Err(ApiError::invalid_value(path, format!("the string is not valid JSON: {error}")))
            }
        },
        _ => Err(ApiError::invalid_type(path, "a JSON Schema is expected")),
    }
}

fn object<'a>(path: &str, value: &'a Value) -> Result<&'a Map<String, Value>, ApiError> {
    value.as_object().ok_or_else(|| ApiError::invalid_type(path, "an object is expected"))
}

fn texts(path: &str, value: &Value) -> Result<Vec<String>, ApiError> {
    let list =
        value.as_array().ok_or_else(|| ApiError::invalid_type(path, "a list of strings is expected"))?;
    let texts: Option<Vec<String>> = list.iter().map(|item| item.as_str().map(str::to_owned)).collect();
    texts.ok_or_else(|| ApiError::invalid_type(path, "a list of strings is expected"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::json::parse;
    use super::*;

    fn check(body: Value) -> Result<Option<GrammarSpec>, ApiError> {
        parse::<StructuredBody>(body.to_string().as_bytes())?.check(None)
    }

    #[test]
    fn every_way_of_saying_it() {
        let json = |schema: Value| AnswerFormat::Json { schema, style: JsonStyle::default() };
        let object = json!({"type": "object"});
        for (body, field, shape) in [
            (json!({"response_format": {"type": "json_object"}}), "response_format", json(object.clone())),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"a": 1}}}}),
                "response_format",
                json(json!({"a": 1})),
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": {"a": 1}}}),
                "response_format",
                json(json!({"a": 1})),
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": null, "json_schema": null}}),
                "response_format",
                json(object.clone()),
            ),
            (json!({"guided_json": "{\"a\": 1}"}), "guided_json", json(json!({"a": 1}))),
            (json!({"json_schema": {"a": 1}}), "json_schema", json(json!({"a": 1}))),
            (json!({"guided_regex": "a+"}), "guided_regex", AnswerFormat::Regex("a+".into())),
            (json!({"regex": "a+"}), "regex", AnswerFormat::Regex("a+".into())),
            (
                json!({"guided_choice": ["a", "b"]}),
                "guided_choice",
                AnswerFormat::Choice(vec!["a".into(), "b".into()]),
            ),
            (
                json!({"guided_grammar": "start: A"}),
                "guided_grammar",
                AnswerFormat::Grammar("start: A".into()),
            ),
            (json!({"grammar": "root ::= \"a\""}), "grammar", AnswerFormat::Grammar("root ::= \"a\"".into())),
            (json!({"grammar": {"type": "regex", "value": "a"}}), "grammar", AnswerFormat::Regex("a".into())),
            (json!({"format": "json"}), "format", json(object.clone())),
            (json!({"format": {"a": 1}}), "format", json(json!({"a": 1}))),
            (json!({"json_mode": true}), "json_mode", json(object.clone())),
            // Regression: for old and new servers, one text under both names.
            (
                json!({"guided_grammar": "start: A", "structured_outputs": {"grammar": "start: A"}}),
                "structured_outputs",
                AnswerFormat::Grammar("start: A".into()),
            ),
            (
                json!({"regex": "a+", "guided_regex": "a+", "structured_outputs": {"regex": "a+"}}),
                "structured_outputs",
                AnswerFormat::Regex("a+".into()),
            ),
            (
                json!({"structured_outputs": {"json_object": true}}),
                "structured_outputs",
                json(object.clone()),
            ),
            (
                json!({"structured_outputs": {"json": {}, "disable_any_whitespace": true, "disable_additional_properties": true}}),
                "structured_outputs",
                AnswerFormat::Json {
                    schema: json!({}),
                    style: JsonStyle { compact: true, closed_objects: true, whitespace_pattern: None },
                },
            ),
            (
                json!({"structured_outputs": {"choice": ["a"], "regex": null}}),
                "structured_outputs",
                AnswerFormat::Choice(vec!["a".into()]),
            ),
        ] {
            let spec = check(body.clone()).unwrap().unwrap();
            assert_eq!((spec.field, spec.format), (field, shape), "{body}");
        }
        let tag = json!({"begin": "<a>", "schema": {}, "end": "</a>"});
        let tags = json!({"type": "structural_tag", "structures": [tag], "triggers": ["<a"]});
        for body in [
            json!({"response_format": tags}),
            json!({"structured_outputs": {"structural_tag": tags.to_string()}}),
        ] {
            assert!(matches!(check(body).unwrap().unwrap().format, AnswerFormat::Tags(_)));
        }
        for body in [
            json!({}),
            json!({"format": "", "json_mode": false}),
            json!({"response_format": {"type": "text"}}),
            json!({"structured_outputs": {}, "guided_json": null}),
        ] {
            assert_eq!(check(body).unwrap(), None);
        }
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, param) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
            (json!({"response_format": {"type": "text", "schema": {}}}), "response_format.schema"),
            (json!({"response_format": {"type": "json_object", "shema": {}}}), "response_format.shema"),
            (json!({"response_format": {"type": "json_object", "schema": 3}}), "response_format.schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "x": 1}}}),
                "response_format.json_schema.x",
            ),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
                "response_format.json_schema.name",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": {}}}}),
                "response_format.json_schema.name",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": "yes", "schema": {}}}}),
                "response_format.json_schema.strict",
            ),
            (
                json!({"response_format": {"type": "structural_tag", "format": {}}}),
                "response_format.format.type",
            ),
            (
                json!({"response_format": {"type": "structural_tag", "structures": [], "triggers": []}}),
                "response_format",
            ),
            (json!({"guided_json": 1}), "guided_json"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_regex": 1}), "guided_regex"),
            (json!({"guided_choice": [1]}), "guided_choice[0]"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": ["a", ""]}), "guided_choice"),
            (json!({"structured_outputs": {"choice": []}}), "structured_outputs.choice"),
            (json!({"structured_outputs": {"choice": ["a", ""]}}), "structured_outputs.choice"),
            (json!({"format": "yaml"}), "format"),
            (json!({"format": 3}), "format"),
            (json!({"guided_regex": "a+", "structured_outputs": {"regex": "b+"}}), "guided_regex"),
            (json!({"guided_whitespace_pattern": "x"}), "guided_whitespace_pattern"),
            (json!({"grammar": {"type": "xml", "value": 1}}), "grammar"),
            (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs"),
            (json!({"structured_outputs": {"disable_any_whitespace": true}}), "structured_outputs"),
            (json!({"structured_outputs": {"jason": {}}}), "structured_outputs"),
            (json!({"regex": "a", "response_format": {"type": "json_object"}}), "regex"),
        ] {
            let error = check(body.clone()).expect_err(&body.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
            assert_eq!(error.status, 400);
        }
    }
}
