//! Output items of a response. An item without its text is one in progress.

use serde_json::{Value, json};

use super::Format;

/// The id of the item at a place of the output: from the response's own.
pub(super) fn id(format: &Format, prefix: &str, place: usize) -> String {
    let own = format.id.strip_prefix("resp_").unwrap_or(&format.id);
    format!("{prefix}_{own}_{place}")
}

fn status(done: bool) -> &'static str {
    if done { "completed" } else { "in_progress" }
}

pub(super) fn reasoning(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.map(reasoning_part).into_iter().collect();
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status(text.is_some())})
}

pub(super) fn message(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.map(text_part).into_iter().collect();
    json!({"id": id, "type": "message", "role": "assistant", "status": status(text.is_some()), "content": content})
}

pub(super) fn call(id: &str, call_id: &str, name: &str, arguments: Option<&str>) -> Value {
    json!({"id": id, "type": "function_call", "status": status(arguments.is_some()), "call_id": call_id, "name": name,
        "arguments": arguments.unwrap_or("")})
}

pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

pub(super) fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}
