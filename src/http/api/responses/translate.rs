//! Items, tools and choices of `/v1/responses` in the words of chat.

use serde_json::{Map, Value, json};

use super::super::tools;
use super::super::values::Free;
use super::super::{ApiError, images, messages};
use crate::generate::ChatPrompt;

/// Whose words an item can be.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// The messages that say the same.
pub(super) fn turns(instructions: Option<String>, input: Option<Free>) -> Result<ChatPrompt, ApiError> {
    let mut turns = Turns::default();
    if let Some(instructions) = instructions {
        turns.messages.push(json!({"role": "system", "content": instructions}));
    }
    match input.ok_or_else(|| ApiError::missing("input"))?.0 {
        Value::String(text) => turns.messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                turns.item(item, &format!("input[{index}]"))?;
            }
        }
        _ => return Err(ApiError::invalid_type("input", "a string or a list of items is expected")),
    }
    turns.flush();
    messages::prompt("input", turns.messages, false)
}

/// Messages, and the assistant's turn that is being put together of several items.
#[derive(Default)]
struct Turns {
    messages: Vec<Value>,
    open: Option<Value>,
}

impl Turns {
    fn flush(&mut self) {
        self.messages.extend(self.open.take());
    }

    fn item(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let string = |field: &str| {
            item[field]
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| ApiError::missing(format!("{path}.{field}")))
        };
        match item["type"].as_str() {
            None | Some("message") => {
                let role = string("role")?;
                if !ROLES.contains(&role.as_str()) {
                    let path = format!("{path}.role");
                    return Err(ApiError::unknown_value(path, &role, &ROLES.join(", ")));
                }
                if role != "assistant" {
                    let content = content(&item["content"], &format!("{path}.content"))?;
                    self.flush();
                    self.messages.push(json!({"role": role, "content": content}));
                } else {
                    let text = text(&item["content"], &format!("{path}.content"))?;
                    // Only reasoning goes before the words of its turn.
                    if self
                        .open
                        .as_ref()
                        .is_some_and(|open| open["content"] != "" || open.get("tool_calls").is_some())
                    {
                        self.flush();
                    }
                    self.turn()["content"] = text.into();
                }
            }
            Some("reasoning") => {
                self.flush();
                let parts = [&item["content"], &item["summary"]];
                let texts =
                    parts.into_iter().find_map(|parts| parts.as_array().filter(|parts| !parts.is_empty()));
                let texts = texts.into_iter().flatten().filter_map(|part| part["text"].as_str());
                let reasoning: String = texts.collect();
                self.turn()["reasoning_content"] = reasoning.into();
            }
            Some("function_call") => {
                let call = json!({"id": string("call_id")?, "type": "function",
                    "function": {"name": string("name")?, "arguments": string("arguments")?}});
                let turn = self.turn();
                match turn.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => turn["tool_calls"] = json!([call]),
                }
            }
            Some("function_call_output") => {
                self.flush();
                let output = content(&item["output"], &format!("{path}.output"))?;
                self.messages
                    .push(json!({"role": "tool", "tool_call_id": string("call_id")?, "content": output}));
            }
            Some(kind) => {
                let shown: String = kind.chars().take(32).collect();
                return Err(ApiError::unsupported(path, &format!("an item of type {shown}")));
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> &mut Value {
        self.open.get_or_insert_with(|| json!({"role": "assistant", "content": ""}))
    }
}

/// A string, or a list of texts and images; texts alone are one string.
fn content(content: &Value, path: &str) -> Result<Value, ApiError> {
    let is_image = |part: &Value| part["type"].as_str().is_some_and(|kind| images::IMAGES.contains(&kind));
    let Some(parts) = content.as_array().filter(|parts| parts.iter().any(is_image)) else {
        return text(content, path).map(Value::String);
    };
    let part = |(index, part): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        match part["type"].as_str().filter(|_| is_image(part)) {
            Some(_) if !part["file_id"].is_null() => {
                Err(ApiError::unsupported(format!("{path}.file_id"), "an image of an uploaded file"))
            }
            Some(kind) => images::part(&path, kind, part.get("image_url").cloned()),
            None => Ok(json!({"type": "text", "text": part_text(part, &path)?})),
        }
    };
    parts.iter().enumerate().map(part).collect()
}

/// A string, or the texts of a list of parts.
fn text(content: &Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        Value::Null => return Err(ApiError::missing(path)),
        _ => return Err(ApiError::invalid_type(path, "a string or a list of parts is expected")),
    };
    let part = |(index, part): (usize, &Value)| part_text(part, &format!("{path}[{index}]"));
    parts.iter().enumerate().map(part).collect()
}

/// The text of a part.
fn part_text(part: &Value, path: &str) -> Result<String, ApiError> {
    let field = if part["type"] == "refusal" { "refusal" } else { "text" };
    match (part["type"].as_str(), part[field].as_str()) {
        (Some("input_text" | "output_text" | "text" | "refusal"), Some(text)) => Ok(text.to_owned()),
        (Some("input_text" | "output_text" | "text" | "refusal"), None) => {
            Err(ApiError::missing(format!("{path}.{field}")))
        }
        (Some(kind), _) if images::IMAGES.contains(&kind) => {
            Err(ApiError::invalid_value(path, "an image has no place in a message of the assistant"))
        }
        (Some(kind), _) => Err(images::refused(path, kind)),
        (None, _) => Err(ApiError::missing(format!("{path}.type"))),
    }
}

/// Here a function's fields stand beside its type.
pub(super) fn declared(tools: Option<Free>) -> Result<Vec<Value>, ApiError> {
    let tool = |(index, tool): (usize, Value)| {
        let path = format!("tools[{index}]");
        if tool["type"] != "function" {
            let shown: String = tool["type"].as_str().unwrap_or("none").chars().take(32).collect();
            return Err(ApiError::unsupported(format!("{path}.type"), &format!("a tool of type {shown}")));
        }
        let fields = ["name", "description", "parameters", "strict"].into_iter();
        let fields = fields.filter(|field| !tool[field].is_null());
        let function: Map<_, _> = fields.map(|field| (field.to_owned(), tool[field].clone())).collect();
        tools::tool(function.into(), &path, "parameters")
    };
    tools::entries(tools)?.into_iter().enumerate().map(tool).collect()
}
