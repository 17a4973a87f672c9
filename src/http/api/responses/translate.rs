//! Items and choices of `/v1/responses` in the words of chat.

use serde_json::{Map, Value, json};

use super::super::client_tools::{arguments_of, function_name};
use super::super::values::Free;
use super::super::{ApiError, images, messages};
use super::tools::Tools;
use crate::generate::ChatPrompt;

/// Whose words an item can be.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// The messages that say the same; `history` are the items that the input goes on from. Tools that stand among
/// the items are added to `tools`. Second: places and types of the items that are left out.
pub(super) fn turns(
    instructions: Option<String>,
    history: &[Value],
    items: &[Value],
    tools: &mut Tools,
) -> Result<(ChatPrompt, Vec<(String, String)>), ApiError> {
    let mut turns = Turns { tools, left_out: Vec::new(), messages: Vec::new(), open: None };
    if let Some(instructions) = instructions {
        turns.messages.push(json!({"role": "system", "content": instructions}));
    }
    for (field, items) in [("previous_response_id", history), ("input", items)] {
        for (index, item) in items.iter().enumerate() {
            turns.item(item, &format!("{field}[{index}]"))?;
        }
    }
    turns.flush();
    Ok((messages::prompt("input", turns.messages, false)?, turns.left_out))
}

/// Messages, and the assistant's turn that is being put together of several items.
struct Turns<'a> {
    tools: &'a mut Tools,
    /// Places and types of items that only their own server understands.
    left_out: Vec<(String, String)>,
    messages: Vec<Value>,
    open: Option<Value>,
}

impl Turns<'_> {
    fn flush(&mut self) {
        self.messages.extend(self.open.take());
    }

    /// Adds an item. An item of an unknown type is left out, unless it has the words of somebody: these are
    /// never dropped.
    fn item(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let kind = match item["type"].as_str() {
            None | Some("message") => return self.message(item, path),
            Some(kind) => kind,
        };
        if let Some(tool) = kind.strip_suffix("_call") {
            return self.call(item, tool, path);
        }
        match kind {
            "reasoning" => self.reasoning(item),
            "item_reference" => {
                return Err(ApiError::unknown_item(path, item["id"].as_str().unwrap_or_default()));
            }
            "additional_tools" => drop(self.load(item, path)?),
            "tool_search_output" => {
                let names = self.load(item, path)?.join("\n");
                self.result(string(item, "call_id", path)?, names.into());
            }
            _ if kind.ends_with("_call_output") => {
                let output = output(&item["output"], &format!("{path}.output"))?;
                self.result(string(item, "call_id", path)?, output);
            }
            _ if item["role"].is_null() && item["content"].is_null() => self.leave_out(kind, path),
            _ => {
                let shown: String = kind.chars().take(32).collect();
                return Err(ApiError::unsupported(path, &format!("an item of type {shown}")));
            }
        }
        Ok(())
    }

    fn message(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let role = string(item, "role", path)?;
        if !ROLES.contains(&role.as_str()) {
            return Err(ApiError::unknown_value(format!("{path}.role"), &role, &ROLES.join(", ")));
        }
        let path = format!("{path}.content");
        if role != "assistant" {
            let content = content(&item["content"], &path)?;
            self.flush();
            self.messages.push(json!({"role": role, "content": content}));
            return Ok(());
        }
        let text = text(&item["content"], &path)?;
        // Only reasoning goes before the words of its turn.
        let has_said = |open: &Value| open["content"] != "" || open.get("tool_calls").is_some();
        if self.open.as_ref().is_some_and(has_said) {
            self.flush();
        }
        self.turn()["content"] = text.into();
        Ok(())
    }

    fn reasoning(&mut self, item: &Value) {
        self.flush();
        let parts = [&item["content"], &item["summary"]];
        let texts = parts.into_iter().find_map(|parts| parts.as_array().filter(|parts| !parts.is_empty()));
        let reasoning: String =
            texts.into_iter().flatten().filter_map(|part| part["text"].as_str()).collect();
        // What is encrypted is not for this server.
        if !reasoning.is_empty() {
            self.turn()["reasoning_content"] = reasoning.into();
        }
    }

    /// A call of the `tool` that its item's type names. A hosted tool's call has no id; with its outcome it
    /// is a call and its result, and without it says nothing.
    fn call(&mut self, item: &Value, tool: &str, path: &str) -> Result<(), ApiError> {
        let outcome = ["output", "outputs", "results"].into_iter().map(|field| &item[field]);
        let outcome = outcome.into_iter().find(|value| !value.is_null());
        let is_clients = matches!(tool, "function" | "custom_tool") || item["call_id"].is_string();
        if !is_clients && outcome.is_none() {
            self.leave_out(&format!("{tool}_call"), path);
            return Ok(());
        }
        let id = if is_clients { string(item, "call_id", path)? } else { path.to_owned() };
        let (name, arguments) = match tool {
            "function" => (string(item, "name", path)?, arguments(&item["arguments"])),
            "custom_tool" => (string(item, "name", path)?, Some(arguments_of(&string(item, "input", path)?))),
            _ => (item["name"].as_str().unwrap_or(tool).to_owned(), arguments(&item["arguments"])),
        };
        let arguments = match arguments {
            Some(arguments) => arguments,
            None if tool == "function" => return Err(ApiError::missing(format!("{path}.arguments"))),
            None => json!(own_fields(item)).to_string(),
        };
        let name = function_name(item["namespace"].as_str(), &name);
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let turn = self.turn();
        match turn.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => turn["tool_calls"] = json!([call]),
        }
        if let Some(outcome) = outcome.filter(|_| !is_clients) {
            self.result(id, outcome.as_str().map_or_else(|| outcome.to_string(), str::to_owned).into());
        }
        Ok(())
    }

    fn result(&mut self, call_id: String, content: Value) {
        self.flush();
        self.messages.push(json!({"role": "tool", "tool_call_id": call_id, "content": content}));
    }

    fn load(&mut self, item: &Value, path: &str) -> Result<Vec<String>, ApiError> {
        let path = format!("{path}.tools");
        let tools = item["tools"].as_array().ok_or_else(|| ApiError::missing(&*path))?;
        self.tools.load(tools, &path)
    }

    fn leave_out(&mut self, kind: &str, path: &str) {
        self.left_out.push((path.to_owned(), kind.to_owned()));
    }

    fn turn(&mut self) -> &mut Value {
        self.open.get_or_insert_with(|| json!({"role": "assistant", "content": ""}))
    }
}

fn string(item: &Value, field: &str, path: &str) -> Result<String, ApiError> {
    item[field].as_str().map(str::to_owned).ok_or_else(|| ApiError::missing(format!("{path}.{field}")))
}

/// Arguments as the text of their JSON.
fn arguments(arguments: &Value) -> Option<String> {
    match arguments {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The fields that only this type of item has: what a tool without named arguments was asked to do.
fn own_fields(item: &Value) -> Map<String, Value> {
    const COMMON: [&str; 9] =
        ["type", "id", "call_id", "status", "name", "namespace", "output", "outputs", "results"];
    let members = item.as_object().into_iter().flatten();
    let own = members.filter(|(name, value)| !COMMON.contains(&name.as_str()) && !value.is_null());
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The output of a call: content where it has the form of it, else the text of its JSON.
fn output(output: &Value, path: &str) -> Result<Value, ApiError> {
    let is_content = match output {
        Value::Array(parts) => parts.iter().all(|part| part["type"].is_string()),
        Value::Object(_) => false,
        _ => true,
    };
    if is_content { content(output, path) } else { Ok(output.to_string().into()) }
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

/// `tool_choice` with the names that the model knows. What is chosen among hosted tools cannot be called.
pub(super) fn choice(choice: Option<Free>) -> Option<Free> {
    let Free(mut choice) = choice?;
    let plain = |tool: &mut Value| {
        if tool["type"] == "custom" {
            tool["type"] = "function".into();
        }
        if let (Some(namespace), Some(name)) = (tool["namespace"].as_str(), tool["name"].as_str()) {
            tool["name"] = function_name(Some(namespace), name).into();
        }
    };
    if choice.is_object() {
        plain(&mut choice);
    }
    if let Some(tools) = choice.get_mut("tools").and_then(Value::as_array_mut) {
        tools.retain(|tool| matches!(tool["type"].as_str(), None | Some("function" | "custom")));
        tools.iter_mut().filter(|tool| tool.is_object()).for_each(plain);
    }
    Some(Free(choice))
}
