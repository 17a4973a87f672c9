//! The response object: the whole answer, and what the events of a stream repeat of it.

use serde_json::{Value, json};

use super::super::format::Format;
use super::super::write::TokenText;
use super::items;
use crate::generate::{Finish, FullReply, Usage};

/// The answer that is not streamed.
pub(crate) fn whole(format: &Format, show: &TokenText<'_>, usage: Usage, full: &[FullReply]) -> Vec<u8> {
    let Some(reply) = full.first() else { return Vec::new() };
    let mut output = Vec::new();
    let said = &reply.said;
    if let Some(reasoning) = said.reasoning.as_ref().filter(|r| format.reasoning.is_some() && !r.is_empty()) {
        output.push(items::reasoning(&items::id(format, "rs", output.len()), Some(reasoning)));
    }
    // Every response has an item.
    if !said.content.is_empty() || (output.is_empty() && said.calls.is_empty()) {
        let scores = items::logprobs(show, &reply.logprobs, &reply.in_answer);
        let id = items::id(format, "msg", output.len());
        output.push(items::message(&id, Some((&said.content, scores))));
    }
    for call in &said.calls {
        output.push(items::call(
            &items::id(format, "fc", output.len()),
            &call.id,
            &call.name,
            Some(&call.arguments),
        ));
    }
    if let Some(last) = output.last_mut().filter(|_| reply.finish.is_cut()) {
        items::cut(last);
    }
    response(format, output, Some((usage, &reply.finish))).to_string().into_bytes()
}

/// The response object; without an end it is one in progress.
pub(super) fn response(format: &Format, output: Vec<Value>, end: Option<(Usage, &Finish)>) -> Value {
    let cut = matches!(end, Some((_, finish)) if finish.is_cut());
    let mut response = json!({
        "id": format.id,
        "object": "response",
        "created_at": format.created,
        "status": if cut { "incomplete" } else if end.is_some() { "completed" } else { "in_progress" },
        "error": null,
        "incomplete_details": if cut { json!({"reason": "max_output_tokens"}) } else { Value::Null },
        "model": format.model,
        "output": output,
        "usage": null,
    });
    if let Some((usage, _)) = end {
        response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        });
    }
    if let (Value::Object(fields), Some(echoed)) = (&mut response, &format.echoed) {
        fields.extend(echoed.clone());
    }
    response
}
