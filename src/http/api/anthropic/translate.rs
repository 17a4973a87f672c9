//! Turns, tools and choices of Anthropic's dialect in the words of chat.

use serde_json::{Value, json};

use super::super::structured::{self, check_members};
use super::super::tools::{self, ToolChoice};
use super::super::unknown::Unknown;
use super::super::values::Free;
use super::super::{ApiError, HostedTools, images, messages};
use crate::generate::ChatPrompt;
use perigee_text::grammar::{AnswerFormat, JsonStyle};

/// The messages that say the same.
pub(super) fn turns(system: Option<Free>, turns: Option<Free>) -> Result<ChatPrompt, ApiError> {
    let mut messages = Vec::new();
    if let Some(Free(system)) = system {
        let text = match system {
            Value::String(text) => text,
            blocks => texts(&blocks, "system")?.join("\n\n"),
        };
        messages.push(json!({"role": "system", "content": text}));
    }
    let Value::Array(turns) = turns.ok_or_else(|| ApiError::missing("messages"))?.0 else {
        return Err(ApiError::invalid_type("messages", "a list is expected"));
    };
    for (index, turn) in turns.iter().enumerate() {
        let path = format!("messages[{index}]");
        match turn["role"].as_str() {
            Some("user") => user(&turn["content"], &path, &mut messages)?,
            Some("assistant") => messages.push(assistant(&turn["content"], &path)?),
            Some("system") => {
                messages.push(json!({"role": "system", "content": texts(&turn["content"], &path)?.concat()}));
            }
            _ => return Err(ApiError::invalid_value(format!("{path}.role"), "allowed: user, assistant")),
        }
    }
    // A turn of the assistant at the end is the beginning of the reply.
    let partial =
        messages.last().is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
    messages::prompt("messages", messages, partial)
}

/// A string, or the texts of a list of text blocks.
fn texts(content: &Value, path: &str) -> Result<Vec<String>, ApiError> {
    let blocks = match content {
        Value::String(text) => return Ok(vec![text.clone()]),
        Value::Null => return Ok(Vec::new()),
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::invalid_type(path, "a string or a list of blocks is expected")),
    };
    let text = |(index, block): (usize, &Value)| match (block["type"].as_str(), &block["text"]) {
        (Some("text"), Value::String(text)) => Ok(text.clone()),
        (kind, _) => Err(refused(kind, &format!("{path}[{index}]"))),
    };
    blocks.iter().enumerate().map(text).collect()
}

/// What a tool returned: a string, or a list of texts and images; texts alone are one string.
fn results(content: &Value, path: &str) -> Result<Value, ApiError> {
    let Some(blocks) =
        content.as_array().filter(|blocks| blocks.iter().any(|block| block["type"] == "image"))
    else {
        return Ok(texts(content, path)?.concat().into());
    };
    let part = |(index, block): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        match (block["type"].as_str(), &block["text"]) {
            (Some("image"), _) => images::block(&path, &block["source"]),
            (Some("text"), Value::String(text)) => Ok(json!({"type": "text", "text": text})),
            (kind, _) => Err(refused(kind, &path)),
        }
    };
    blocks.iter().enumerate().map(part).collect()
}

fn refused(kind: Option<&str>, path: &str) -> ApiError {
    match kind {
        None => ApiError::missing(format!("{path}.type")),
        Some("text") => ApiError::missing(format!("{path}.text")),
        Some(kind) => {
            let shown: String = kind.chars().take(32).collect();
            ApiError::unsupported(path, &format!("a block of type {shown} here"))
        }
    }
}

fn blocks<'a>(content: &'a Value, path: &str) -> Result<Vec<&'a Value>, ApiError> {
    match content {
        Value::Array(blocks) => Ok(blocks.iter().collect()),
        Value::Null => Err(ApiError::missing(format!("{path}.content"))),
        _ => Err(ApiError::invalid_type(
            &format!("{path}.content"),
            "a string or a list of blocks is expected",
        )),
    }
}

/// Results of tools become turns of their own, in their order among the texts.
fn user(content: &Value, path: &str, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    if content.is_string() {
        messages.push(json!({"role": "user", "content": content}));
        return Ok(());
    }
    let mut parts: Vec<Value> = Vec::new();
    let flush = |parts: &mut Vec<Value>, messages: &mut Vec<Value>| {
        if !parts.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(parts)}));
        }
    };
    for (index, block) in blocks(content, path)?.into_iter().enumerate() {
        let path = format!("{path}.content[{index}]");
        match (block["type"].as_str(), &block["text"]) {
            (Some("text"), Value::String(text)) => parts.push(json!({"type": "text", "text": text})),
            (Some("image"), _) => parts.push(images::block(&path, &block["source"])?),
            (Some("tool_result"), _) => {
                flush(&mut parts, messages);
                let id = block["tool_use_id"].as_str();
                let id = id.ok_or_else(|| ApiError::missing(format!("{path}.tool_use_id")))?;
                let content = results(&block["content"], &format!("{path}.content"))?;
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
            (kind, _) => return Err(refused(kind, &path)),
        }
    }
    flush(&mut parts, messages);
    Ok(())
}

fn assistant(content: &Value, path: &str) -> Result<Value, ApiError> {
    if content.is_string() {
        return Ok(json!({"role": "assistant", "content": content}));
    }
    let (mut text, mut reasoning, mut calls) = (String::new(), None::<String>, Vec::new());
    for (index, block) in blocks(content, path)?.into_iter().enumerate() {
        let path = format!("{path}.content[{index}]");
        let string =
            |field: &str| block[field].as_str().ok_or_else(|| ApiError::missing(format!("{path}.{field}")));
        match block["type"].as_str() {
            Some("text") => text.push_str(string("text")?),
            Some("thinking") => reasoning.get_or_insert_default().push_str(string("thinking")?),
            // Encrypted elsewhere, and of no use here.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let input = match &block["input"] {
                    Value::Null => json!({}),
                    input if input.is_object() => input.clone(),
                    _ => {
                        return Err(ApiError::invalid_type(
                            &format!("{path}.input"),
                            "an object is expected",
                        ));
                    }
                };
                calls.push(json!({"id": string("id")?, "type": "function",
                    "function": {"name": string("name")?, "arguments": input}}));
            }
            kind => return Err(refused(kind, &path)),
        }
    }
    let mut message = json!({"role": "assistant", "content": text});
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

/// The functions among the tools. A tool without a schema whose type is Anthropic's own is left out or refused.
pub(super) fn declared(
    tools: Option<Free>,
    hosted: HostedTools,
    unknown: &mut Unknown,
) -> Result<Vec<Value>, ApiError> {
    let mut declared = Vec::new();
    for (index, tool) in tools::entries(tools)?.into_iter().enumerate() {
        let path = format!("tools[{index}]");
        match tool["type"].as_str().filter(|kind| *kind != "custom" && tool["input_schema"].is_null()) {
            Some(kind) => hosted.leave_out(kind, &path, unknown)?,
            None => declared.push(tools::tool(tools::flat(&tool, "input_schema"), &path, "input_schema")?),
        }
    }
    Ok(declared)
}

/// What an answer of the format is.
pub(super) fn shape(format: &Value, path: &str) -> Result<AnswerFormat, ApiError> {
    if let Value::Object(members) = format {
        check_members(path, members, &["type", "schema", "name", "description"])?;
    }
    let at = format!("{path}.schema");
    match (format["type"].as_str(), &format["schema"]) {
        (Some("json_schema"), Value::Null) => Err(ApiError::missing(at)),
        (Some("json_schema"), schema) => {
            Ok(AnswerFormat::Json { schema: structured::schema(&at, schema)?, style: JsonStyle::default() })
        }
        _ => Err(ApiError::invalid_value(format!("{path}.type"), "allowed: json_schema")),
    }
}

/// The choice, and whether a reply may have more than one call.
pub(super) fn tool_choice(choice: Option<Free>) -> Result<(Option<ToolChoice>, bool), ApiError> {
    let Some(Free(choice)) = choice else { return Ok((None, true)) };
    let chosen = match (choice["type"].as_str(), &choice["name"]) {
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("none"), _) => ToolChoice::None,
        (Some("any"), _) => ToolChoice::Required,
        (Some("tool"), Value::String(name)) => ToolChoice::Named(name.clone()),
        (Some("tool"), _) => return Err(ApiError::missing("tool_choice.name")),
        _ => return Err(ApiError::invalid_value("tool_choice.type", "allowed: auto, any, tool, none")),
    };
    Ok((Some(chosen), choice["disable_parallel_tool_use"] != true))
}
