//! `/v1/responses`: the public API's newer dialect over the same walk as chat. Nothing is stored.
//!
//! A request is translated into a chat request and read as one, so that both have the same limits and meanings.

mod events;
mod items;
mod translate;

use serde_json::{Map, Value, json};

use super::json::{Free, Int, Num, Shape, parse, wire_object};
use super::stream::{Format, Kind};
use super::{ApiError, Call, Limits, chat};
use crate::generate::{Finish, FullReply, SamplingDefaults, Usage};

pub(super) use events::ItemEvents;

/// What the fields of a chat request are called here.
pub(super) const WORDS: &[(&str, &str)] = &[
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    (".function", ""),
];

wire_object! {
    /// The fields that are translated or echoed; unknown ones are ignored.
    struct ResponsesBody {
        model: String,
        input: Free,
        instructions: String,
        max_output_tokens: Int,
        stream: bool,
        temperature: Num,
        top_p: Num,
        tools: Free,
        tool_choice: Free,
        parallel_tool_calls: bool,
        text: Free,
        reasoning: Free,
        metadata: Free,
        previous_response_id: Shape,
        conversation: Shape,
        background: bool,
        prompt: Shape,
    }
}

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let body = parse::<ResponsesBody>(body)?;
    for (name, value, what) in [
        ("previous_response_id", &body.previous_response_id, "going on from a stored response"),
        ("conversation", &body.conversation, "a stored conversation"),
        ("prompt", &body.prompt, "a stored prompt"),
    ] {
        if value.as_ref().is_some_and(|value| !value.is_empty()) {
            return Err(ApiError::unsupported(name, what));
        }
    }
    if body.background == Some(true) {
        return Err(ApiError::unsupported("background", "answering in the background"));
    }
    let echo = echo(&body, defaults);
    let chat = translate::to_chat(body)?.to_string();
    let mut call = chat::read(chat.as_bytes(), limits, defaults)?;
    call.format.kind = Kind::Responses;
    call.format.echoed = Some(echo);
    Ok(call)
}

/// What a response repeats of its request.
fn echo(body: &ResponsesBody, defaults: &SamplingDefaults) -> Map<String, Value> {
    let free = |value: &Option<Free>, absent: Value| value.as_ref().map_or(absent, |value| value.0.clone());
    let fields = json!({
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens.map(|tokens| tokens.0),
        "metadata": free(&body.metadata, json!({})),
        "parallel_tool_calls": body.parallel_tool_calls.unwrap_or(true),
        "previous_response_id": null,
        "reasoning": free(&body.reasoning, json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": body.temperature.map_or(f64::from(defaults.temperature), |t| t.0),
        "text": free(&body.text, json!({"format": {"type": "text"}})),
        "tool_choice": free(&body.tool_choice, json!("auto")),
        "tools": free(&body.tools, json!([])),
        "top_p": body.top_p.map_or(f64::from(defaults.top_p), |p| p.0),
        "truncation": "disabled",
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The answer that is not streamed.
pub(super) fn whole(format: &Format, usage: Usage, full: &[FullReply]) -> Vec<u8> {
    let Some(reply) = full.first() else { return Vec::new() };
    let mut output = Vec::new();
    let said = &reply.said;
    if let Some(reasoning) = said.reasoning.as_ref().filter(|r| format.reasoning.is_some() && !r.is_empty()) {
        output.push(items::reasoning(&items::id(format, "rs", output.len()), Some(reasoning)));
    }
    if !said.content.is_empty() || said.calls.is_empty() {
        output.push(items::message(&items::id(format, "msg", output.len()), Some(&said.content)));
    }
    for call in &said.calls {
        output.push(items::call(
            &items::id(format, "fc", output.len()),
            &call.id,
            &call.name,
            Some(&call.arguments),
        ));
    }
    response(format, output, Some((usage, &reply.finish))).to_string().into_bytes()
}

/// The response object; without an end it is one in progress.
fn response(format: &Format, output: Vec<Value>, end: Option<(Usage, &Finish)>) -> Value {
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

#[cfg(test)]
mod tests;
