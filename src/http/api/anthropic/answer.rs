//! The answer that is not streamed, and what both kinds of answers share.

use serde_json::Value;

use super::super::format::Format;
use super::super::write;
use crate::generate::{Finish, FullReply, Replies, Usage};

/// The whole message.
pub(crate) fn whole(format: &Format, replies: &Replies, full: &[FullReply]) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    head(&mut out, format);
    write::raw(&mut out, ",\"content\":[");
    if let Some(reply) = full.first() {
        content(&mut out, format, reply);
    }
    write::raw(&mut out, "],");
    stop(&mut out, full.first().map(|reply| &reply.finish));
    out.push(b',');
    usage(&mut out, replies.usage());
    out.push(b'}');
    out
}

fn content(out: &mut Vec<u8>, format: &Format, reply: &FullReply) {
    let said = &reply.said;
    let mut first = true;
    let mut begin = |out: &mut Vec<u8>, start: &str| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        write::raw(out, start);
    };
    if let Some(reasoning) = said.reasoning.as_ref().filter(|r| format.reasoning.is_some() && !r.is_empty()) {
        begin(out, "{\"type\":\"thinking\",\"thinking\":");
        write::string(out, reasoning);
        write::raw(out, ",\"signature\":\"\"}");
    }
    if !said.content.is_empty() {
        begin(out, "{\"type\":\"text\",\"text\":");
        write::string(out, &said.content);
        out.push(b'}');
    }
    for call in &said.calls {
        begin(out, "{\"type\":\"tool_use\",\"id\":");
        write::string(out, &call.id);
        write::raw(out, ",\"name\":");
        write::string(out, &call.name);
        write::raw(out, ",\"input\":");
        // Only a call that was cut off has arguments that are no object; the stop reason says so.
        let is_object = serde_json::from_str::<Value>(&call.arguments).is_ok_and(|value| value.is_object());
        write::raw(out, if is_object { &call.arguments } else { "{}" });
        out.push(b'}');
    }
}

/// `{"id":...,"model":...`, the brace open.
pub(super) fn head(out: &mut Vec<u8>, format: &Format) {
    write::raw(out, "{\"id\":");
    write::string(out, &format.id);
    write::raw(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    write::string(out, &format.model);
}

/// `"stop_reason":...,"stop_sequence":...`.
pub(super) fn stop(out: &mut Vec<u8>, finish: Option<&Finish>) {
    write::raw(out, "\"stop_reason\":");
    write::raw(
        out,
        match finish {
            None => "null",
            Some(Finish::EndOfTurn | Finish::StopToken(_)) => "\"end_turn\"",
            Some(Finish::ToolCalls) => "\"tool_use\"",
            Some(Finish::StopString(_)) => "\"stop_sequence\"",
            // A reply that was stopped in a loop is a cut one.
            Some(Finish::Length | Finish::Repetition { .. }) => "\"max_tokens\"",
        },
    );
    write::raw(out, ",\"stop_sequence\":");
    match finish {
        Some(Finish::StopString(text)) => write::string(out, text),
        _ => write::raw(out, "null"),
    }
}

/// `"usage":{...}`: prompt tokens that came from the prefix cache or are new in it are counted apart from the others.
pub(super) fn usage(out: &mut Vec<u8>, usage: Usage) {
    let (read, written) = (usage.cached_tokens, usage.cache_written_tokens);
    write::raw(out, "\"usage\":{\"input_tokens\":");
    write::number(out, usage.prompt_tokens.saturating_sub(read + written) as u64);
    write::raw(out, ",\"cache_creation_input_tokens\":");
    write::number(out, written as u64);
    write::raw(out, ",\"cache_read_input_tokens\":");
    write::number(out, usage.cached_tokens as u64);
    write::raw(out, ",\"output_tokens\":");
    write::number(out, usage.completion_tokens as u64);
    write::raw(out, ",\"output_tokens_details\":{\"thinking_tokens\":");
    write::number(out, usage.reasoning_tokens as u64);
    write::raw(out, "}}");
}
