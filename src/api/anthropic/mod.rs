//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's dialect over the same walk as chat.
//!
//! A request is translated into a chat request and read as one, so that both dialects have the same limits and meanings.

mod answer;
mod events;
mod translate;

pub(super) use answer::whole;
pub(super) use events::BlockEvents;

use super::json::{Free, Int, parse, wire_object};
use super::stream::Kind;
use super::{ApiError, Call, Limits, chat};
use crate::generate::SamplingDefaults;

/// What the fields of a chat request are called here.
pub(super) const WORDS: &[(&str, &str)] = &[
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    (".function.parameters", ".input_schema"),
    (".function", ""),
];

wire_object! {
    /// The fields that are translated; unknown ones are ignored, as beta features come and go.
    struct MessagesBody {
        model: String,
        max_tokens: Int,
        messages: Free,
        system: Free,
        stop_sequences: Free,
        stream: bool,
        temperature: Free,
        top_p: Free,
        top_k: Free,
        tools: Free,
        tool_choice: Free,
        thinking: Free,
        output_config: Free,
        output_format: Free,
    }
}

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let body = parse::<MessagesBody>(body)?;
    if body.max_tokens.is_none() {
        return Err(ApiError::missing("max_tokens"));
    }
    translated(body, limits, defaults)
}

/// Reads and checks a request whose tokens are to be counted.
pub(super) fn read_to_count(
    body: &[u8],
    limits: &Limits,
    defaults: &SamplingDefaults,
) -> Result<Call, ApiError> {
    translated(parse::<MessagesBody>(body)?, limits, defaults)
}

fn translated(body: MessagesBody, limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let chat = translate::to_chat(body)?.to_string();
    let mut call = chat::read(chat.as_bytes(), limits, defaults)?;
    call.format.kind = Kind::Messages;
    Ok(call)
}

#[cfg(test)]
mod tests;
