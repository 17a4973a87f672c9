//! Messages of a conversation: roles, content parts, and what may stand in them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::values::{Free, Idle, List, TextOr};
use super::{ApiError, images};
use crate::generate::ChatPrompt;

/// Most messages of a conversation.
const MAX_MESSAGES: usize = 16_384;
/// Most parts of one message's content.
const MAX_PARTS: usize = 4096;

/// One message as it stands in the body.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    role: Option<String>,
    content: Option<Content>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Free>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    partial: Option<bool>,
    prefix: Option<bool>,
    tools: Option<Free>,
    #[expect(dead_code, reason = "clients send it back of an answer")]
    refusal: Option<Idle>,
    #[expect(dead_code, reason = "clients send it back of an answer")]
    annotations: Option<Idle>,
}

/// What the roles have in common is less than what they do not: each has a schema of its own.
impl JsonSchema for Message {
    fn schema_name() -> Cow<'static, str> {
        "Message".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let part = json!({"type": "object", "required": ["type", "text"],
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}}});
        let image = json!({"type": "object", "required": ["type", "image_url"], "properties": {"type": {"const": "image_url"},
            "image_url": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["url"], "properties": {
                "url": {"type": "string", "description": "A data: URL of a png, jpeg, webp, gif or bmp file."},
                "detail": {"enum": ["auto", "low", "high"]}}}]}}});
        let words = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": part}]});
        let text =
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [part, image]}}]});
        let call = json!({"type": "object", "required": ["id", "function"], "properties": {
            "id": {"type": "string"}, "type": {"const": "function"}, "function": {"type": "object", "required": ["name", "arguments"],
                "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}}}});
        json_schema!({"anyOf": [
            {"type": "object", "required": ["role", "content"], "properties": {
                "role": {"enum": ["system", "developer", "user"]}, "content": text, "name": {"type": "string"}}},
            {"type": "object", "required": ["role", "content"], "properties": {
                "role": {"const": "assistant"}, "content": {"anyOf": [words, {"type": "null"}]}, "name": {"type": "string"},
                "reasoning_content": {"type": "string", "description": "Reasoning of an earlier reply; `reasoning` is the same."},
                "tool_calls": {"type": "array", "items": call}}},
            {"type": "object", "required": ["role", "content", "tool_call_id"], "properties": {
                "role": {"const": "tool"}, "content": text, "tool_call_id": {"type": "string"}}},
        ]})
    }
}

/// One part of a message's content.
#[derive(Debug, Deserialize)]
pub(super) struct Part {
    r#type: Option<String>,
    text: Option<String>,
    refusal: Option<String>,
    /// A URL, or an object with one.
    image_url: Option<Free>,
    /// The same under another name.
    image: Option<Free>,
    #[expect(dead_code, reason = "accepted, and means nothing")]
    cache_control: Option<Idle>,
    #[expect(dead_code, reason = "accepted, and means nothing")]
    annotations: Option<Idle>,
}

/// `messages`.
pub(super) type Messages = List<Message, MAX_MESSAGES>;

/// `content`: a string or a list of parts.
type Content = TextOr<Part, MAX_PARTS>;

/// The prompt of checked messages, as the objects that chat templates read. A dialect has made them of what stands in its `field`.
/// `partial`: the last one is an unfinished turn of the assistant.
pub(super) fn prompt(field: &str, mut messages: Vec<Value>, partial: bool) -> Result<ChatPrompt, ApiError> {
    let images = images::take(&mut messages);
    match messages.len() {
        0 => Err(ApiError::invalid_value(field, "the list is empty: at least one message is needed")),
        1..=MAX_MESSAGES => Ok(ChatPrompt {
            messages,
            images,
            tools: Vec::new(),
            add_generation_prompt: !partial,
            continue_final_message: partial,
            kwargs: None,
        }),
        _ => Err(ApiError::invalid_type(field, format!("more than {MAX_MESSAGES} entries"))),
    }
}

/// Applies the fields that say how the prompt ends. Only a message of the assistant can be continued.
pub(super) fn end(
    prompt: &mut ChatPrompt,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
) -> Result<(), ApiError> {
    let continues = continue_final_message.unwrap_or(prompt.continue_final_message);
    if continues && prompt.messages.last().is_none_or(|last| last["role"] != "assistant") {
        return Err(ApiError::invalid_value(
            "continue_final_message",
            "the last message is not the assistant's: there is nothing to continue",
        ));
    }
    prompt.continue_final_message = continues;
    prompt.add_generation_prompt = add_generation_prompt.unwrap_or(!continues);
    Ok(())
}

/// Checks the messages.
pub(super) fn check(messages: Option<Messages>) -> Result<ChatPrompt, ApiError> {
    let messages = messages.ok_or_else(|| ApiError::missing("messages"))?.0;
    let last = messages.len().saturating_sub(1);
    let mut partial = false;
    let mut checked = Vec::with_capacity(messages.len());
    for (i, message) in messages.into_iter().enumerate() {
        let path = format!("messages[{i}]");
        for (name, value) in [("partial", message.partial), ("prefix", message.prefix)] {
            if value != Some(true) {
                continue;
            }
            if i != last || message.role.as_deref() != Some("assistant") {
                return Err(ApiError::invalid_value(
                    format!("{path}.{name}"),
                    "only allowed on the last message, and only if its role is assistant",
                ));
            }
            partial = true;
        }
        checked.push(message.check(&path)?);
    }
    prompt("messages", checked, partial)
}

impl Message {
    fn check(self, path: &str) -> Result<Value, ApiError> {
        // A newer generation's prompts declare tools there; dropped, they would be missed without a word.
        if self.tools.is_some_and(|Free(tools)| tools.as_array().is_none_or(|tools| !tools.is_empty())) {
            return Err(ApiError::invalid_value(
                format!("{path}.tools"),
                "this model's prompts have no tools in messages: declare them in the request's `tools`",
            ));
        }
        let role = self.role.ok_or_else(|| ApiError::missing(format!("{path}.role")))?;
        let known = ["system", "developer", "user", "assistant", "tool"];
        if !known.contains(&role.as_str()) {
            return Err(ApiError::unknown_value(format!("{path}.role"), &role, &known.join(", ")));
        }
        let mut message = Map::new();
        let may_be_empty = role == "assistant" || role == "tool";
        message.insert("role".into(), role.as_str().into());
        match self.content {
            Some(Content::Text(text)) => drop(message.insert("content".into(), Value::String(text))),
            Some(Content::List(parts)) => {
                let parts: Result<Vec<Value>, ApiError> = parts
                    .into_iter()
                    .enumerate()
                    .map(|(i, part)| part.check(&format!("{path}.content[{i}]")))
                    .collect();
                message.insert("content".into(), Value::Array(parts?));
            }
            None if may_be_empty => drop(message.insert("content".into(), Value::Null)),
            None => return Err(ApiError::missing(format!("{path}.content"))),
        }
        if let Some(name) = self.name {
            message.insert("name".into(), name.into());
        }
        if role == "tool" {
            let id = self.tool_call_id.ok_or_else(|| ApiError::missing(format!("{path}.tool_call_id")))?;
            message.insert("tool_call_id".into(), id.into());
        }
        if role == "assistant" {
            if let Some(Free(calls)) = self.tool_calls {
                message.insert("tool_calls".into(), check_calls(calls, path)?);
            }
            if let Some(reasoning) = self.reasoning_content.or(self.reasoning) {
                message.insert("reasoning_content".into(), reasoning.into());
            }
        }
        Ok(Value::Object(message))
    }
}

impl Part {
    fn check(self, path: &str) -> Result<Value, ApiError> {
        let kind = self.r#type.as_deref().ok_or_else(|| ApiError::missing(format!("{path}.type")))?;
        let text = match kind {
            _ if images::IMAGES.contains(&kind) => {
                let image = if kind == "image" { self.image.or(self.image_url) } else { self.image_url };
                return images::part(path, kind, image.map(|Free(image)| image));
            }
            "text" | "input_text" | "output_text" => {
                self.text.ok_or_else(|| ApiError::missing(format!("{path}.text")))?
            }
            "refusal" => self.refusal.ok_or_else(|| ApiError::missing(format!("{path}.refusal")))?,
            other => return Err(images::refused(path, other)),
        };
        Ok(json!({"type": "text", "text": text}))
    }
}

/// Calls of an earlier turn: what templates read of them must be there, or they would print nonsense into the prompt.
fn check_calls(calls: Value, path: &str) -> Result<Value, ApiError> {
    let Value::Array(list) = &calls else {
        return Err(ApiError::invalid_value(format!("{path}.tool_calls"), "a list of calls is expected"));
    };
    for (i, call) in list.iter().enumerate() {
        let path = format!("{path}.tool_calls[{i}]");
        let function = &call["function"];
        let fields = [("id", call["id"].is_string()), ("function.name", function["name"].is_string())];
        if let Some((field, _)) = fields.iter().find(|(_, there)| !there) {
            return Err(ApiError::invalid_value(format!("{path}.{field}"), "a string is expected"));
        }
        if !(function["arguments"].is_string() || function["arguments"].is_object()) {
            return Err(ApiError::invalid_value(
                format!("{path}.function.arguments"),
                "a string of JSON or an object is expected",
            ));
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    #[derive(Deserialize, JsonSchema)]
    struct Body {
        messages: Option<Messages>,
    }

    fn read(messages: &str) -> Result<Vec<Value>, ApiError> {
        check(parse::<Body>(format!("{{\"messages\": {messages}}}").as_bytes())?.messages).map(|c| c.messages)
    }

    #[test]
    fn every_role_and_form_of_content() {
        let messages = read(
            r#"[{"role": "developer", "content": "d", "name": "x"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "reasoning": "r",
                 "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "content": null, "tool_call_id": "functions.f:0"}]"#,
        )
        .unwrap();
        assert_eq!(messages[0], json!({"role": "developer", "content": "d", "name": "x"}));
        assert_eq!(messages[1]["content"][1]["text"], "b");
        assert_eq!(messages[2]["reasoning_content"], "r");
        assert_eq!(messages[3]["tool_call_id"], "functions.f:0");
    }

    #[test]
    fn refusals_name_the_place() {
        for (messages, param) in [
            ("[]", "messages"),
            ("null", "messages"),
            ("{}", "messages"),
            (r#"["x"]"#, "messages[0]"),
            (r#"[{"content": "x"}]"#, "messages[0].role"),
            (r#"[{"role": "king", "content": "x"}]"#, "messages[0].role"),
            (r#"[{"role": "system", "content": "", "tools": [{}]}]"#, "messages[0].tools"),
            (r#"[{"role": "user", "content": "x", "tools": "x"}]"#, "messages[0].tools"),
            (r#"[{"role": "user"}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": 3}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": [{}]}]"#, "messages[0].content[0].type"),
            (r#"[{"role": "user", "content": [{"type": "text"}]}]"#, "messages[0].content[0].text"),
            (
                r#"[{"role": "user", "content": [{"type": "text", "text": 1}]}]"#,
                "messages[0].content[0].text",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#,
                "messages[0].content[0].image_url.url",
            ),
            (r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#, "messages[0].content[0].image_url"),
            (r#"[{"role": "user", "content": [{"type": "video_url"}]}]"#, "messages[0].content[0]"),
            (r#"[{"role": "user", "content": [{"type": "x"}]}]"#, "messages[0].content[0].type"),
            (r#"[{"role": "tool", "content": "x"}]"#, "messages[0].tool_call_id"),
            (r#"[{"role": "user", "content": "x", "partial": true}]"#, "messages[0].partial"),
            (
                r#"[{"role": "assistant", "content": "x", "prefix": true}, {"role": "user", "content": "x"}]"#,
                "messages[0].prefix",
            ),
            (r#"[{"role": "assistant", "tool_calls": {}}]"#, "messages[0].tool_calls"),
            (r#"[{"role": "assistant", "tool_calls": [{}]}]"#, "messages[0].tool_calls[0].id"),
            (
                r#"[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]"#,
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            let error = read(messages).expect_err(messages);
            assert_eq!(error.param.as_deref(), Some(param), "{messages}: {}", error.message);
        }
    }
}
