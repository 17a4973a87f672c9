//! Turns, tools and choices of Anthropic's dialect in the words of chat.

use serde_json::{Value, json};

use super::super::structured::{self, check_members};
use super::super::tools::{self, ToolChoice};
use super::super::unknown::Unknown;
use super::super::values::Free;
use super::super::{ApiError, HostedTools, documents, images, messages};
use super::client_tools;
use crate::generate::ChatPrompt;
use perigee_text::grammar::{AnswerFormat, JsonStyle};

/// How the result of a tool that failed begins.
const FAILED: &str = "Error: ";

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
            Some("assistant") => assistant(&turn["content"], &path, &mut messages)?,
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

/// The parts that a block stands for, where it is one that user and tools may say.
fn parts(block: &Value, path: &str) -> Result<Vec<Value>, ApiError> {
    let string =
        |field: &str| block[field].as_str().ok_or_else(|| ApiError::missing(format!("{path}.{field}")));
    match block["type"].as_str() {
        Some("text") => Ok(vec![documents::text(string("text")?)]),
        Some("image") => Ok(vec![images::block(path, &block["source"])?]),
        Some("document") => documents::block(path, block),
        Some("search_result") => documents::search_result(path, block),
        // A search among the client's tools found it; it is declared.
        Some("tool_reference") => Ok(vec![documents::text(&format!("{}\n", string("tool_name")?))]),
        kind => Err(refused(kind, path)),
    }
}

/// The content of a tool's result: a string, or a list with images; texts alone are one string. The result of a failed tool begins
/// with `Error: `, since prompts have no other place for it.
fn results(block: &Value, path: &str) -> Result<Value, ApiError> {
    let content = &block["content"];
    // What a service's tool returned has a form of the tool's own.
    let of_a_service = block["type"] != "tool_result";
    let is_own = |block: &Value| block["type"].as_str().is_some_and(|kind| kind.ends_with("_result"));
    let mut said = match content {
        Value::String(text) => vec![documents::text(text)],
        Value::Null => Vec::new(),
        Value::Object(_) if of_a_service => vec![documents::text(&plain(content).to_string())],
        Value::Array(blocks) if of_a_service && blocks.iter().any(is_own) => {
            vec![documents::text(&plain(content).to_string())]
        }
        Value::Array(blocks) => {
            let mut said = Vec::new();
            for (index, block) in blocks.iter().enumerate() {
                said.extend(parts(block, &format!("{path}.content[{index}]"))?);
            }
            said
        }
        _ => {
            return Err(ApiError::invalid_type(
                &format!("{path}.content"),
                "a string or a list of blocks is expected",
            ));
        }
    };
    if block["is_error"] == true {
        said.insert(0, documents::text(FAILED));
    }
    let texts: Option<String> = said.iter().map(|part| part["text"].as_str()).collect();
    Ok(texts.map_or(Value::Array(said), Value::String))
}

/// A service's result without what only the service can read.
fn plain(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(plain).collect(),
        Value::Object(members) => {
            let is_base64 = members.get("type").is_some_and(|kind| kind == "base64");
            let shown = |name: &str| !(name.starts_with("encrypted_") || is_base64 && name == "data");
            let members = members.iter().filter(|(name, value)| shown(name) && !value.is_null());
            Value::Object(members.map(|(name, value)| (name.clone(), plain(value))).collect())
        }
        other => other.clone(),
    }
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

/// Whether a block is what a tool returned, the client's or a service's (`web_search_tool_result`, `mcp_tool_result`, ...).
fn is_result(block: &Value) -> bool {
    block["type"].as_str().is_some_and(|kind| kind.ends_with("tool_result"))
}

/// The message with a tool's result.
fn result(block: &Value, path: &str) -> Result<Value, ApiError> {
    let id = block["tool_use_id"].as_str();
    let id = id.ok_or_else(|| ApiError::missing(format!("{path}.tool_use_id")))?;
    Ok(json!({"role": "tool", "tool_call_id": id, "content": results(block, path)?}))
}

/// Results of tools become turns of their own, in their order among the texts.
fn user(content: &Value, path: &str, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    if content.is_string() {
        messages.push(json!({"role": "user", "content": content}));
        return Ok(());
    }
    let mut said: Vec<Value> = Vec::new();
    let flush = |said: &mut Vec<Value>, messages: &mut Vec<Value>| {
        if !said.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(said)}));
        }
    };
    for (index, block) in blocks(content, path)?.into_iter().enumerate() {
        let path = format!("{path}.content[{index}]");
        if is_result(block) {
            flush(&mut said, messages);
            messages.push(result(block, &path)?);
        } else {
            said.extend(parts(block, &path)?);
        }
    }
    flush(&mut said, messages);
    Ok(())
}

/// The text, reasoning and calls of an assistant's turn before the next result.
#[derive(Default)]
struct Turn {
    text: String,
    reasoning: Option<String>,
    calls: Vec<Value>,
}

impl Turn {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_none() && self.calls.is_empty()
    }

    fn message(self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if let Some(reasoning) = self.reasoning {
            message["reasoning_content"] = reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        message
    }

    fn block(&mut self, block: &Value, path: &str) -> Result<(), ApiError> {
        let string =
            |field: &str| block[field].as_str().ok_or_else(|| ApiError::missing(format!("{path}.{field}")));
        match block["type"].as_str() {
            Some("text") => self.text.push_str(string("text")?),
            Some("thinking") => self.reasoning.get_or_insert_default().push_str(string("thinking")?),
            // Encrypted elsewhere, and of no use here.
            Some("redacted_thinking") => {}
            // Of the client, or one that a service ran: `server_tool_use`, `mcp_tool_use`.
            Some(kind) if kind.ends_with("tool_use") => {
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
                self.calls.push(json!({"id": string("id")?, "type": "function",
                    "function": {"name": string("name")?, "arguments": input}}));
            }
            kind => return Err(refused(kind, path)),
        }
        Ok(())
    }
}

/// One message, unless a service ran a tool within the turn: its result stands between two.
fn assistant(content: &Value, path: &str, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    if content.is_string() {
        messages.push(json!({"role": "assistant", "content": content}));
        return Ok(());
    }
    let before = messages.len();
    let mut turn = Turn::default();
    for (index, block) in blocks(content, path)?.into_iter().enumerate() {
        let path = format!("{path}.content[{index}]");
        if is_result(block) {
            if !turn.is_empty() {
                messages.push(std::mem::take(&mut turn).message());
            }
            messages.push(result(block, &path)?);
        } else {
            turn.block(block, &path)?;
        }
    }
    if !turn.is_empty() || messages.len() == before {
        messages.push(turn.message());
    }
    Ok(())
}

/// The functions among the tools. A tool of a type of Anthropic's own has no schema: it is one that the client runs, or it is left out
/// or refused.
pub(super) fn declared(
    tools: Option<Free>,
    hosted: HostedTools,
    unknown: &mut Unknown,
) -> Result<Vec<Value>, ApiError> {
    let mut declared = Vec::new();
    for (index, tool) in tools::entries(tools)?.into_iter().enumerate() {
        let path = format!("tools[{index}]");
        match tool["type"].as_str().filter(|kind| *kind != "custom" && tool["input_schema"].is_null()) {
            Some(kind) => match client_tools::function(kind, &tool["name"]) {
                Some(function) => declared.push(tools::tool(function, &path, "input_schema")?),
                None => hosted.leave_out(kind, &path, unknown)?,
            },
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
