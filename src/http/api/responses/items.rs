//! Output items of a response. An item without its text is one in progress.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::super::client_tools::{ClientTool, ToolKind, input_of};
use super::super::format::Format;
use super::super::write::{self, TokenText};
use crate::generate::TokenLogprobs;

/// What all kinds of items have.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "minItems": 1, "items": {"type": "object", "required": ["id", "type", "status"], "properties": {
        "id": {"type": "string"}, "type": {"enum": ["message", "reasoning", "function_call", "custom_tool_call", "tool_search_call"]},
        "status": {"enum": ["completed", "incomplete"]}}}})
}

/// The id of the item at a place of the output: from the response's own.
pub(super) fn id(format: &Format, prefix: &str, place: usize) -> String {
    let own = format.id.strip_prefix("resp_").unwrap_or(&format.id);
    format!("{prefix}_{own}_{place}")
}

fn status(done: bool) -> &'static str {
    if done { "completed" } else { "in_progress" }
}

/// Marks the last item of a reply that was cut off.
pub(super) fn cut(item: &mut Value) {
    item["status"] = "incomplete".into();
}

pub(super) fn reasoning(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.map(reasoning_part).into_iter().collect();
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status(text.is_some())})
}

/// `said`: its text and the logprobs of that.
pub(super) fn message(id: &str, said: Option<(&str, Vec<Value>)>) -> Value {
    let status = status(said.is_some());
    let content: Vec<Value> = said.map(|(text, scores)| text_part(text, scores)).into_iter().collect();
    json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
}

/// The prefix of a call's id.
pub(super) fn call_prefix(kind: ToolKind) -> &'static str {
    match kind {
        ToolKind::Function => "fc",
        ToolKind::Custom => "ctc",
        ToolKind::Search => "tsc",
    }
}

/// A call in the form of the client's tool. `arguments`: those of the function that the model called.
pub(super) fn call(id: &str, call_id: &str, tool: &ClientTool, arguments: Option<&str>) -> Value {
    let (status, text) = (status(arguments.is_some()), arguments.unwrap_or(""));
    let mut item = match tool.kind {
        ToolKind::Function => json!({"id": id, "type": "function_call", "status": status, "call_id": call_id,
            "name": tool.name, "arguments": text}),
        ToolKind::Custom => {
            json!({"id": id, "type": "custom_tool_call", "status": status, "call_id": call_id,
            "name": tool.name, "input": input_of(text)})
        }
        ToolKind::Search => {
            json!({"id": id, "type": "tool_search_call", "status": status, "call_id": call_id,
            "execution": "client", "arguments": search_arguments(text)})
        }
    };
    if let Some(namespace) = &tool.namespace {
        item["namespace"] = namespace.as_str().into();
    }
    item
}

/// The object that the arguments are; what is none is given as it stands.
fn search_arguments(text: &str) -> Value {
    match text {
        "" => json!({}),
        text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

pub(super) fn text_part(text: &str, scores: Vec<Value>) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": scores})
}

/// Logprobs of those tokens that are the answer's.
pub(super) fn logprobs(show: &TokenText<'_>, logprobs: &[TokenLogprobs], in_answer: &[bool]) -> Vec<Value> {
    // Read back, so that each number is the decimal that the other routes write.
    let value = |entry| serde_json::from_slice(&write::document(&show.scored(entry))).unwrap_or_default();
    logprobs.iter().zip(in_answer).filter(|(_, in_answer)| **in_answer).map(|(e, _)| value(e)).collect()
}

pub(super) fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}
