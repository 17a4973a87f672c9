//! Items, tools and choices of `/v1/responses` in the words of chat.

use serde_json::{Map, Value, json};

use super::super::ApiError;
use super::super::values::Free;

/// Whose words an item can be.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// The messages that say the same.
pub(super) fn turns(instructions: Option<String>, input: Option<Free>) -> Result<Value, ApiError> {
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
    Ok(turns.messages.into())
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
                let (role, text) = (string("role")?, text(&item["content"], &format!("{path}.content"))?);
                if !ROLES.contains(&role.as_str()) {
                    let shown: String = role.chars().take(32).collect();
                    let message = format!("`{shown}` is unknown, allowed: {}", ROLES.join(", "));
                    return Err(ApiError::invalid_value(format!("{path}.role"), message));
                }
                if role != "assistant" {
                    self.flush();
                    self.messages.push(json!({"role": role, "content": text}));
                } else {
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
                let output = text(&item["output"], &format!("{path}.output"))?;
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

/// A string, or the texts of a list of parts.
fn text(content: &Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        Value::Null => return Err(ApiError::missing(path)),
        _ => return Err(ApiError::invalid_type(path, "a string or a list of parts is expected")),
    };
    let part = |(index, part): (usize, &Value)| {
        let field = if part["type"] == "refusal" { "refusal" } else { "text" };
        match (part["type"].as_str(), part[field].as_str()) {
            (Some("input_text" | "output_text" | "text" | "refusal"), Some(text)) => Ok(text.to_owned()),
            (Some("input_text" | "output_text" | "text" | "refusal"), None) => {
                Err(ApiError::missing(format!("{path}[{index}].{field}")))
            }
            (Some(kind), _) => {
                let shown: String = kind.chars().take(32).collect();
                Err(ApiError::unsupported(format!("{path}[{index}]"), &format!("content of type {shown}")))
            }
            (None, _) => Err(ApiError::missing(format!("{path}[{index}].type"))),
        }
    };
    parts.iter().enumerate().map(part).collect()
}

/// Here a function's fields stand beside its type.
pub(super) fn tools(tools: &Value) -> Result<Value, ApiError> {
    let tools = tools.as_array().ok_or_else(|| ApiError::invalid_type("tools", "a list is expected"))?;
    let tool = |(index, tool): (usize, &Value)| {
        if tool["type"] != "function" {
            let shown: String = tool["type"].as_str().unwrap_or("none").chars().take(32).collect();
            return Err(ApiError::unsupported(
                format!("tools[{index}].type"),
                &format!("a tool of type {shown}"),
            ));
        }
        let mut function = Map::new();
        for field in ["name", "description", "parameters", "strict"] {
            if !tool[field].is_null() {
                function.insert(field.into(), tool[field].clone());
            }
        }
        Ok(json!({"type": "function", "function": function}))
    };
    tools.iter().enumerate().map(tool).collect()
}

pub(super) fn tool_choice(choice: Free) -> Free {
    let Value::Object(fields) = &choice.0 else { return choice };
    let function = |name: Option<&Value>| json!({"type": "function", "function": {"name": name}});
    Free(match fields.get("type").and_then(Value::as_str) {
        Some("function") => function(fields.get("name")),
        Some("allowed_tools") => {
            let tools = fields.get("tools").and_then(Value::as_array);
            let named: Option<Vec<Value>> =
                tools.map(|tools| {
                    tools
                        .iter()
                        .map(|tool| {
                            if tool["type"] == "function" { function(tool.get("name")) } else { tool.clone() }
                        })
                        .collect()
                });
            json!({"type": "allowed_tools", "allowed_tools": {"mode": fields.get("mode"), "tools": named}})
        }
        _ => return choice,
    })
}

/// `text.format`, where chat has the schema one level deeper.
pub(super) fn response_format(format: Value) -> Value {
    if format["type"] != "json_schema" {
        return format;
    }
    let mut schema = format;
    if let Value::Object(fields) = &mut schema {
        fields.remove("type");
        fields.entry("name").or_insert_with(|| "output".into());
    }
    json!({"type": "json_schema", "json_schema": schema})
}
