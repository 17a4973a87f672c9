//! The nested `format` of structural tags, as xgrammar, vLLM and SGLang write it.

use serde_json::Value;

use super::{ApiError, StructuralFormat, StructuralTag, check_members, object, schema, texts};

/// Deepest nesting that is read; the format's own bound is below it.
const MAX_DEPTH: usize = 32;

/// The types of formats that are read.
pub(super) const TYPES: [&str; 9] = [
    "any_text",
    "const_string",
    "json_schema",
    "or",
    "regex",
    "sequence",
    "tag",
    "tags_with_separator",
    "triggered_tags",
];

/// Reads a format.
pub(super) fn format(path: &str, value: &Value, depth: usize) -> Result<StructuralFormat, ApiError> {
    if depth > MAX_DEPTH {
        return Err(ApiError::invalid_value(path, format!("formats are nested more than {MAX_DEPTH} deep")));
    }
    let fields = object(path, value)?;
    let at = |member: &str| format!("{path}.{member}");
    let member = |name: &str| fields.get(name).ok_or_else(|| ApiError::missing(at(name)));
    let text = |name: &str| match member(name)? {
        Value::String(text) => Ok(text.clone()),
        _ => Err(ApiError::invalid_type(&at(name), "a string is expected")),
    };
    let flag = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::invalid_type(&at(name), "true or false is expected")),
    };
    let list = |name: &str| match member(name)? {
        Value::Array(list) => Ok(list),
        _ => Err(ApiError::invalid_type(&at(name), "a list is expected")),
    };
    let formats = |name: &str| -> Result<Vec<StructuralFormat>, ApiError> {
        let numbered = list(name)?.iter().enumerate();
        numbered.map(|(number, part)| format(&format!("{path}.{name}[{number}]"), part, depth + 1)).collect()
    };
    let tags = || -> Result<Vec<StructuralTag>, ApiError> {
        let numbered = list("tags")?.iter().enumerate();
        numbered.map(|(number, part)| tag(&format!("{path}.tags[{number}]"), part, depth + 1)).collect()
    };
    let kind = match fields.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(_) => return Err(ApiError::invalid_type(&at("type"), "a string is expected")),
        None => return Err(ApiError::missing(at("type"))),
    };
    let members: &[&str] = match kind {
        "const_string" => &["type", "value"],
        "json_schema" => &["type", "json_schema", "style"],
        "regex" => &["type", "pattern"],
        "any_text" => &["type"],
        "sequence" | "or" => &["type", "elements"],
        "tag" => &["type", "begin", "content", "end"],
        "triggered_tags" => &["type", "triggers", "tags", "at_least_one", "stop_after_first"],
        "tags_with_separator" => &["type", "tags", "separator", "at_least_one", "stop_after_first"],
        other => {
            return Err(ApiError::unknown_value(at("type"), other, &TYPES.join(", ")));
        }
    };
    check_members(path, fields, members)?;
    Ok(match kind {
        "const_string" => StructuralFormat::Text(text("value")?),
        "json_schema" => {
            if fields.get("style").is_some_and(|style| !style.is_null() && style != "json") {
                return Err(ApiError::unsupported(at("style"), "a style of arguments but json"));
            }
            StructuralFormat::Json(schema(&at("json_schema"), member("json_schema")?)?)
        }
        "regex" => StructuralFormat::Regex(text("pattern")?),
        "any_text" => StructuralFormat::AnyText,
        "sequence" => StructuralFormat::Sequence(formats("elements")?),
        "or" => StructuralFormat::Choice(formats("elements")?),
        "tag" => StructuralFormat::Tag(Box::new(tag(path, value, depth)?)),
        "triggered_tags" => StructuralFormat::Triggered {
            triggers: texts(&at("triggers"), member("triggers")?)?,
            tags: tags()?,
            at_least_one: flag("at_least_one")?,
            stop_after_first: flag("stop_after_first")?,
        },
        _ => StructuralFormat::Separated {
            tags: tags()?,
            separator: text("separator")?,
            at_least_one: flag("at_least_one")?,
            stop_after_first: flag("stop_after_first")?,
        },
    })
}

/// Reads a tag, with or without its type.
fn tag(path: &str, value: &Value, depth: usize) -> Result<StructuralTag, ApiError> {
    let fields = object(path, value)?;
    check_members(path, fields, &["type", "begin", "content", "end"])?;
    let text = |name: &str| match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(ApiError::invalid_type(&format!("{path}.{name}"), "a string is expected")),
        None => Err(ApiError::missing(format!("{path}.{name}"))),
    };
    let content = fields.get("content").ok_or_else(|| ApiError::missing(format!("{path}.content")))?;
    let content = format(&format!("{path}.content"), content, depth + 1)?;
    Ok(StructuralTag { begin: text("begin")?, content, end: text("end")? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_type_is_read() {
        let tag = json!({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"});
        let own =
            StructuralTag { begin: "<a>".into(), content: StructuralFormat::AnyText, end: "</a>".into() };
        for (value, expected) in [
            (json!({"type": "const_string", "value": "abc"}), StructuralFormat::Text("abc".into())),
            (json!({"type": "regex", "pattern": "a+"}), StructuralFormat::Regex("a+".into())),
            (
                json!({"type": "json_schema", "json_schema": {"type": "null"}}),
                StructuralFormat::Json(json!({"type": "null"})),
            ),
            (
                json!({"type": "sequence", "elements": [tag, {"type": "or", "elements": [{"type": "any_text"}]}]}),
                StructuralFormat::Sequence(vec![
                    StructuralFormat::Tag(Box::new(own.clone())),
                    StructuralFormat::Choice(vec![StructuralFormat::AnyText]),
                ]),
            ),
            (
                json!({"type": "triggered_tags", "triggers": ["<"], "tags": [tag], "at_least_one": true}),
                StructuralFormat::Triggered {
                    triggers: vec!["<".into()],
                    tags: vec![own.clone()],
                    at_least_one: true,
                    stop_after_first: false,
                },
            ),
            (
                json!({"type": "tags_with_separator", "separator": "\n", "tags": [tag], "stop_after_first": true}),
                StructuralFormat::Separated {
                    tags: vec![own.clone()],
                    separator: "\n".into(),
                    at_least_one: false,
                    stop_after_first: true,
                },
            ),
        ] {
            assert_eq!(format("f", &value, 0), Ok(expected), "{value}");
        }
        for (value, param) in [
            (json!(3), "f"),
            (json!({}), "f.type"),
            (json!({"type": "qwen_xml_parameter"}), "f.type"),
            (json!({"type": "const_string"}), "f.value"),
            (json!({"type": "const_string", "value": "a", "vlaue": 1}), "f.vlaue"),
            (json!({"type": "or", "elements": [{"type": "regex", "pattern": 1}]}), "f.elements[0].pattern"),
            (
                json!({"type": "tag", "begin": "<a>", "content": {"type": "none"}, "end": "x"}),
                "f.content.type",
            ),
            (
                json!({"type": "tags_with_separator", "separator": "", "tags": [{"begin": 1}]}),
                "f.tags[0].content",
            ),
        ] {
            let error = format("f", &value, 0).expect_err(&value.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{value}: {}", error.message);
        }
    }
}
