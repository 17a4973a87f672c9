//! Messages of a conversation: roles, content parts, and what may stand in them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::history::OpenCalls;
use super::values::{Free, Idle, List, TextOr};
use super::{ApiError, client_tools, documents, history, images};
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
    /// Where gateways keep the same.
    reasoning_details: Option<Free>,
    thinking_blocks: Option<Free>,
    /// What `tool_calls` was called before.
    function_call: Option<Free>,
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
        let file = json!({"type": "object", "required": ["type", "file"], "properties": {"type": {"const": "file"},
            "file": {"type": "object", "required": ["file_data"], "properties": {"filename": {"type": "string"},
                "file_data": {"type": "string", "description": "A data: URL or base64, of text in UTF-8."}}}}});
        let words = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": part}]});
        let text = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [part, image, file]}}]});
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
    /// A file of text.
    file: Option<Free>,
    /// Reasoning of an earlier turn: `thinking`, or `text` in a part of type `reasoning`.
    thinking: Option<Free>,
    #[expect(dead_code, reason = "of thinking: it is not checked")]
    signature: Option<Idle>,
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
    let (mut partial, mut open) = (false, OpenCalls::default());
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
        checked.push(message.check(&path, &mut open)?);
    }
    prompt("messages", checked, partial)
}

impl Message {
    fn check(self, path: &str, open: &mut OpenCalls) -> Result<Value, ApiError> {
        // A newer generation's prompts declare tools there; dropped, they would be missed without a word.
        if self.tools.is_some_and(|Free(tools)| tools.as_array().is_none_or(|tools| !tools.is_empty())) {
            return Err(ApiError::invalid_value(
                format!("{path}.tools"),
                "this model's prompts have no tools in messages: declare them in the request's `tools`",
            ));
        }
        let mut role = self.role.ok_or_else(|| ApiError::missing(format!("{path}.role")))?;
        let mut tool_call_id = self.tool_call_id;
        if role == "function" {
            let name = self.name.as_ref().ok_or_else(|| ApiError::missing(format!("{path}.name")))?;
            (role, tool_call_id) = ("tool".to_owned(), Some(open.answer_function(name)));
        }
        let known = ["system", "developer", "user", "assistant", "tool"];
        if !known.contains(&role.as_str()) {
            return Err(ApiError::unknown_value(format!("{path}.role"), &role, &known.join(", ")));
        }
        let mut message = Map::new();
        let may_be_empty = role == "assistant" || role == "tool";
        message.insert("role".into(), role.as_str().into());
        let mut thought = String::new();
        match self.content {
            Some(Content::Text(text)) => drop(message.insert("content".into(), Value::String(text))),
            Some(Content::List(parts)) => {
                let mut said = Vec::with_capacity(parts.len());
                for (i, part) in parts.into_iter().enumerate() {
                    match part.thoughts() {
                        Some(text) if role == "assistant" => thought.push_str(&text),
                        _ => said.extend(part.check(&format!("{path}.content[{i}]"))?),
                    }
                }
                message.insert("content".into(), Value::Array(said));
            }
            None if may_be_empty => drop(message.insert("content".into(), Value::Null)),
            None => return Err(ApiError::missing(format!("{path}.content"))),
        }
        if let Some(name) = self.name {
            message.insert("name".into(), name.into());
        }
        if role == "tool" {
            let id = open.answer(tool_call_id, message.get("name").and_then(Value::as_str), path)?;
            message.insert("tool_call_id".into(), id.into());
        }
        if role == "assistant" {
            if let Some(Free(mut calls)) = self.tool_calls {
                client_tools::plain_calls(&mut calls);
                message.insert("tool_calls".into(), open.begin(calls, &format!("{path}.tool_calls"))?);
            } else if let Some(Free(call)) = self.function_call {
                let calls = json!([{"function": call}]);
                message.insert("tool_calls".into(), open.begin(calls, &format!("{path}.function_call"))?);
            }
            // Gateways send empty ones beside the one that says something.
            let kept = [self.reasoning_details, self.thinking_blocks].into_iter().flatten();
            let kept = kept.map(|Free(kept)| history::thoughts(&kept)).chain([thought]);
            let given = [self.reasoning_content, self.reasoning].into_iter().flatten();
            let mut given = given.chain(kept.filter(|text| !text.is_empty())).peekable();
            if given.peek().is_some() {
                let reasoning = given.find(|text| !text.is_empty()).unwrap_or_default();
                message.insert("reasoning_content".into(), reasoning.into());
            }
        }
        Ok(Value::Object(message))
    }
}

impl Part {
    /// The reasoning that it holds, if it is a part of that kind.
    fn thoughts(&self) -> Option<String> {
        match self.r#type.as_deref() {
            Some("thinking") => {
                Some(self.thinking.as_ref().map_or_else(String::new, |Free(kept)| history::thoughts(kept)))
            }
            Some("reasoning") => Some(self.text.clone().unwrap_or_default()),
            // Encrypted elsewhere, and of no use here.
            Some("redacted_thinking") => Some(String::new()),
            _ => None,
        }
    }

    fn check(self, path: &str) -> Result<Vec<Value>, ApiError> {
        let kind = self.r#type.as_deref().ok_or_else(|| ApiError::missing(format!("{path}.type")))?;
        let text = match kind {
            _ if images::IMAGES.contains(&kind) => {
                let image = if kind == "image" { self.image.or(self.image_url) } else { self.image_url };
                return images::part(path, kind, image.map(|Free(image)| image)).map(|part| vec![part]);
            }
            "text" | "input_text" | "output_text" => {
                self.text.ok_or_else(|| ApiError::missing(format!("{path}.text")))?
            }
            "file" => {
                let Free(file) = self.file.ok_or_else(|| ApiError::missing(format!("{path}.file")))?;
                return documents::file(&format!("{path}.file"), &file);
            }
            "refusal" => self.refusal.ok_or_else(|| ApiError::missing(format!("{path}.refusal")))?,
            other => return Err(images::refused(path, other)),
        };
        Ok(vec![documents::text(&text)])
    }
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

    /// Regression: histories that went through other clients and gateways were refused, or lost their reasoning in silence.
    #[test]
    fn histories_of_other_clients_are_read() {
        let messages = read(
            r#"[{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]},
                {"role": "assistant", "content": "", "reasoning_content": "", "reasoning": "REAL",
                 "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": null}}]},
                {"role": "tool", "name": "f", "content": "x"},
                {"role": "assistant", "content": null, "reasoning_content": "",
                 "reasoning_details": [{"type": "reasoning.text", "text": "kept"}], "function_call": {"name": "g", "arguments": "{}"}},
                {"role": "function", "name": "g", "content": "y"},
                {"role": "assistant", "content": "b", "reasoning_content": ""},
                {"role": "user", "content": [{"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}}]}]"#,
        )
        .unwrap();
        assert_eq!(
            messages[0],
            json!({"role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning_content": "hm"})
        );
        assert_eq!(messages[1]["reasoning_content"], "REAL");
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], "{}");
        assert_eq!(messages[2], json!({"role": "tool", "name": "f", "content": "x", "tool_call_id": "c1"}));
        assert_eq!(messages[3]["reasoning_content"], "kept");
        assert_eq!(messages[4]["tool_call_id"], messages[3]["tool_calls"][0]["id"]);
        assert_eq!((&messages[4]["role"], &messages[5]["reasoning_content"]), (&json!("tool"), &json!("")));
        let file: String = messages[6]["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect();
        assert_eq!(file, "<document>\n<title>a.txt</title>\nhi\n</document>\n");
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
            (r#"[{"role": "user", "content": [{"type": "file"}]}]"#, "messages[0].content[0].file"),
            (
                r#"[{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]"#,
                "messages[0].content[0].file.file_id",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]"#,
                "messages[0].content[0].type",
            ),
            (r#"[{"role": "function", "content": "x"}]"#, "messages[0].name"),
            (r#"[{"role": "user", "content": [{"type": "x"}]}]"#, "messages[0].content[0].type"),
            (r#"[{"role": "tool", "content": "x"}]"#, "messages[0].tool_call_id"),
            (r#"[{"role": "user", "content": "x", "partial": true}]"#, "messages[0].partial"),
            (
                r#"[{"role": "assistant", "content": "x", "prefix": true}, {"role": "user", "content": "x"}]"#,
                "messages[0].prefix",
            ),
            (r#"[{"role": "assistant", "tool_calls": {}}]"#, "messages[0].tool_calls"),
            (r#"[{"role": "assistant", "tool_calls": [{}]}]"#, "messages[0].tool_calls[0].function.name"),
            (
                r#"[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": 3}}]}]"#,
                "messages[0].tool_calls[0].function.arguments",
            ),
            (r#"[{"role": "assistant", "function_call": {}}]"#, "messages[0].function_call[0].function.name"),
        ] {
            let error = read(messages).expect_err(messages);
            assert_eq!(error.param.as_deref(), Some(param), "{messages}: {}", error.message);
        }
    }
}
