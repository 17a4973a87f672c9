//! The answer that is not streamed, and what both kinds of answers share.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::format::Format;
use super::super::write;
use super::signature::Signature;
use crate::generate::{self, Finish, FullReply, Replies};

/// The answer of `/v1/messages/count_tokens`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CountTokensAnswer {
    pub(crate) input_tokens: usize,
}

/// The whole message; without an end it is one that begins.
#[derive(Serialize, JsonSchema)]
pub(crate) struct MessagesAnswer<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    kind: &'a str,
    #[schemars(extend("const" = "assistant"))]
    role: &'a str,
    model: &'a str,
    content: Vec<Block<'a>>,
    #[schemars(required, transform = stop_reasons)]
    stop_reason: Option<&'a str>,
    stop_sequence: Option<&'a str>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_arguments: Option<Vec<&'static str>>,
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Block<'a> {
    Thinking {
        thinking: &'a str,
        signature: String,
    },
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        #[schemars(with = "Map<String, Value>")]
        input: Cow<'a, RawValue>,
    },
}

/// Prompt tokens that came from the prefix cache or are new in it are counted apart from the others.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Usage {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
    output_tokens_details: OutputTokens,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct OutputTokens {
    thinking_tokens: usize,
}

/// The end of a message, as a stream has it.
#[derive(Serialize)]
pub(super) struct End<'a> {
    stop_reason: Option<&'a str>,
    stop_sequence: Option<&'a str>,
}

/// Adds the reasons to a schema.
fn stop_reasons(schema: &mut Schema) {
    *schema = json_schema!({"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]});
}

impl<'a> MessagesAnswer<'a> {
    pub(crate) fn of(format: &'a Format, replies: &Replies, full: &'a [FullReply]) -> Self {
        let reply = full.first();
        let content = reply.map(|reply| blocks(format, reply)).unwrap_or_default();
        let tool_arguments = reply.and_then(|reply| write::tool_arguments(&reply.forms));
        let message = Self::new(format, content, reply.map(|reply| &reply.finish), replies.usage());
        Self { tool_arguments, ..message }
    }

    pub(super) fn new(
        format: &'a Format,
        content: Vec<Block<'a>>,
        finish: Option<&'a Finish>,
        usage: generate::Usage,
    ) -> Self {
        let End { stop_reason, stop_sequence } = End::of(finish, format, usage);
        let (id, model, usage) = (&*format.id, &*format.model, Usage::from(usage));
        let (kind, role, tool_arguments) = ("message", "assistant", None);
        Self { id, kind, role, model, content, stop_reason, stop_sequence, usage, tool_arguments }
    }
}

fn blocks<'a>(format: &Format, reply: &'a FullReply) -> Vec<Block<'a>> {
    let said = &reply.said;
    let thinking = said.reasoning.as_deref().filter(|text| format.reasoning.is_some() && !text.is_empty());
    let thinking = thinking.map(|thinking| Block::Thinking { thinking, signature: Signature::of(thinking) });
    let text = Some(&*said.content).filter(|text| !text.is_empty()).map(|text| Block::Text { text });
    let calls =
        said.calls.iter().map(|call| Block::ToolUse { id: &call.id, name: &call.name, input: input(call) });
    thinking.into_iter().chain(text).chain(calls).collect()
}

/// The arguments of a call. An input is an object: arguments that are none stand in one under the
/// key that Anthropic's documentation of streamed tool inputs proposes.
fn input(call: &generate::ToolCall) -> Cow<'_, RawValue> {
    match serde_json::from_str::<&RawValue>(&call.arguments) {
        Ok(value) if value.get().starts_with('{') => Cow::Borrowed(value),
        _ => {
            let wrapped = json!({"INVALID_JSON": call.arguments}).to_string();
            Cow::Owned(RawValue::from_string(wrapped).expect("an object"))
        }
    }
}

/// The input of a call that begins.
pub(super) fn no_input() -> Cow<'static, RawValue> {
    Cow::Borrowed(serde_json::from_str("{}").expect("an object"))
}

impl<'a> End<'a> {
    /// A reply that the context ended is told from one that ended where the client had set its limit.
    pub(super) fn of(finish: Option<&'a Finish>, format: &Format, usage: generate::Usage) -> Self {
        let context_ended = format.max_tokens.is_some_and(|limit| usage.completion_tokens < limit as usize);
        let stop_reason = finish.map(|finish| match finish {
            Finish::EndOfTurn | Finish::StopToken(_) => "end_turn",
            Finish::ToolCalls => "tool_use",
            Finish::StopString(_) => "stop_sequence",
            Finish::Length if context_ended => "model_context_window_exceeded",
            // A reply that was stopped in a loop is a cut one.
            Finish::Length | Finish::Repetition { .. } => "max_tokens",
        });
        let stop_sequence = match finish {
            Some(Finish::StopString(text)) => Some(&**text),
            _ => None,
        };
        Self { stop_reason, stop_sequence }
    }
}

impl From<generate::Usage> for Usage {
    fn from(usage: generate::Usage) -> Self {
        let (read, written) = (usage.cached_tokens, usage.cache_written_tokens);
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(read + written),
            cache_creation_input_tokens: written,
            cache_read_input_tokens: read,
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokens { thinking_tokens: usage.reasoning_tokens },
        }
    }
}
