//! Output items of a response. An item without its text is one in progress.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::super::format::Format;
use super::super::write::{self, TokenText};
use crate::generate::TokenLogprobs;

/// What all kinds of items have.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "minItems": 1, "items": {"type": "object", "required": ["id", "type", "status"], "properties": {
        "id": {"type": "string"}, "type": {"enum": ["message", "reasoning", "function_call"]},
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

pub(super) fn call(id: &str, call_id: &str, name: &str, arguments: Option<&str>) -> Value {
    json!({"id": id, "type": "function_call", "status": status(arguments.is_some()), "call_id": call_id, "name": name,
        "arguments": arguments.unwrap_or("")})
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
