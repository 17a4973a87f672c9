//! `/v1/chat/completions`: the request's fields and the whole answer.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::call::Call;
use super::conversation::{self, CommonBody};
use super::format::{Format, Kind};
use super::functions;
use super::guard;
use super::json::{self, Both};
use super::messages::{self, Messages};
use super::params::{TopCount, top_count};
use super::reasoning::Routed;
use super::responses;
use super::tools;
use super::values::{AnyValue, Free, Int, MAX_U32};
use super::write::{self, Applied, ChatLogprobs, PromptLogprobs, StopReason, TokenText, Usage};
use super::{ApiError, Limits, client_tools};
use crate::generate::{self, FullReply, ReasoningField, Replies, SamplingDefaults};

/// The fields that only chat has. What is not described is read only to be refused when it asks for something.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ChatBody {
    /// The conversation, oldest first.
    #[schemars(required, length(min = 1))]
    messages: Option<Messages>,
    /// Goes before `max_tokens`.
    max_completion_tokens: Option<Int<1, MAX_U32>>,
    /// Log-probabilities of the tokens of the reply.
    logprobs: Option<bool>,
    /// Only together with `logprobs: true`; -1: the whole vocabulary.
    top_logprobs: Option<TopCount>,
    /// Whether the prompt ends where the reply begins.
    add_generation_prompt: Option<bool>,
    /// The last message is the beginning of the reply.
    continue_final_message: Option<bool>,
    /// Functions that may be called.
    #[schemars(schema_with = "tools::schema")]
    tools: Option<Free>,
    /// Whether a function may, must or must not be called, or which.
    #[schemars(schema_with = "tools::choice_schema")]
    tool_choice: Option<Free>,
    /// Whether a reply may have more than one call.
    parallel_tool_calls: Option<bool>,
    /// OpenRouter's way to switch reasoning, to limit it, and to leave it out of the answer.
    #[schemars(extend("type" = ["object", "boolean", "null"]))]
    reasoning: Option<Routed>,
    /// The last message comes first in the content, if it is the assistant's.
    echo: Option<bool>,
    /// Only text.
    #[schemars(extend("type" = "array", "items" = {"const": "text"}))]
    modalities: Option<Free>,
    #[schemars(skip)]
    chat_template: Option<AnyValue>,
    #[schemars(skip)]
    documents: Option<AnyValue>,
    /// What `tools` was called before: the call comes back as `function_call`.
    #[schemars(extend("type" = "array", "items" = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}))]
    functions: Option<Free>,
    /// What `tool_choice` was called before.
    #[schemars(extend("anyOf" = [{"enum": ["none", "auto", null]}, {"type": "object", "required": ["name"]}]))]
    function_call: Option<Free>,
    #[schemars(skip)]
    audio: Option<AnyValue>,
    // Of the Responses API: some clients send its form to every URL.
    #[schemars(skip)]
    input: Option<Free>,
    #[schemars(skip)]
    instructions: Option<String>,
}

/// The fields of chat.
pub(super) type ChatRequest = Both<ChatBody, CommonBody>;

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let (Both(mut own, common), mut unknown) = json::read::<ChatRequest>(body, limits)?;
    let Both(mut reasoning, Both(shared, Both(foreign, structured))) = common;
    own.refuse_unavailable()?;
    reasoning.routed = own.reasoning;
    let client_tools = client_tools::take_custom(&mut own.tools, &mut own.tool_choice)?;
    let functions = own.functions.is_some();
    let words = if functions || own.function_call.is_some() { functions::WORDS } else { &[] };
    let tools = functions::either(("tools", own.tools), ("functions", functions::tools(own.functions)))?;
    let older_choice = functions::choice(own.function_call)?;
    let choice = functions::either(("tool_choice", own.tool_choice), ("function_call", older_choice))?;
    let one_call = choice.as_ref().is_some_and(|Free(choice)| choice["disable_parallel_tool_use"] == true);
    let named = |error: ApiError| error.in_words(words);
    let tools = tools::check(tools, limits.hosted_tools, &mut unknown).map_err(named)?;
    let choice = tools::choice(choice, false).map_err(named)?;
    let choice = tools::check_choice(choice, &tools).map_err(named)?;
    let top_logprobs = top_count("top_logprobs", own.top_logprobs, limits)?;
    let wants_logprobs = own.logprobs.unwrap_or(false);
    if top_logprobs.is_some_and(|top| top > 0) && !wants_logprobs {
        return Err(ApiError::invalid_value("top_logprobs", "only allowed together with `logprobs: true`"));
    }
    let logprobs = wants_logprobs.then(|| top_logprobs.unwrap_or(0));
    let mut prompt = match own.input {
        Some(_) if own.messages.is_some() => {
            return Err(ApiError::invalid_value("input", "given together with `messages`; use one of them"));
        }
        Some(input) => responses::conversation(own.instructions, input, limits.hosted_tools, &mut unknown)?,
        None => {
            let mut prompt = messages::check(own.messages)?;
            let instructions = own.instructions.map(|text| json!({"role": "system", "content": text}));
            prompt.messages.splice(..0, instructions);
            prompt
        }
    };
    messages::end(&mut prompt, own.continue_final_message, own.add_generation_prompt)?;
    if prompt.continue_final_message && prompt.add_generation_prompt {
        return Err(ApiError::invalid_value(
            "add_generation_prompt",
            "not allowed together with a final message that is to be continued",
        ));
    }
    prompt.tools = tools;
    let echoed_content = prompt.messages.last().filter(|_| own.echo == Some(true)).and_then(spoken);
    let structured = structured.check(None)?;
    let max_tokens = shared.max_tokens("max_completion_tokens", own.max_completion_tokens.map(|n| n.0), 1)?;
    let parallel_calls = own.parallel_tool_calls.unwrap_or(!one_call) && !functions;
    let common = (reasoning, shared, foreign);
    let mut call = conversation::draft(
        Kind::Chat,
        prompt,
        &choice,
        parallel_calls,
        structured,
        common,
        max_tokens,
        limits,
        defaults,
    )?;
    call.score(logprobs)?;
    call.format.echoed_content = echoed_content;
    call.format.functions = functions;
    call.format.client_tools = client_tools;
    Ok(Call { words, unknown, ..call })
}

/// What a message of the assistant says.
fn spoken(message: &Value) -> Option<String> {
    let parts = |parts: &Vec<Value>| parts.iter().filter_map(|part| part["text"].as_str()).collect();
    match &message["content"] {
        _ if message["role"] != "assistant" => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => Some(parts(list)),
        _ => None,
    }
}

impl ChatBody {
    fn refuse_unavailable(&self) -> Result<(), ApiError> {
        let given = |shape: &Option<AnyValue>| shape.as_ref().is_some_and(|s| !s.is_empty());
        for (name, value, what) in [
            ("chat_template", &self.chat_template, "a chat template of the request's own"),
            ("documents", &self.documents, "grounding in documents"),
            ("audio", &self.audio, "audio"),
        ] {
            if given(value) {
                return Err(ApiError::unsupported(name, what));
            }
        }
        if let Some(Free(modalities)) = &self.modalities {
            let text_only = modalities.as_array().is_some_and(|m| m.iter().all(|v| v == "text"));
            if !text_only {
                return Err(ApiError::unsupported("modalities", "anything but text"));
            }
        }
        Ok(())
    }
}

/// The answer that is not streamed.
#[derive(Serialize, JsonSchema)]
pub(super) struct ChatAnswer<'a> {
    id: &'a str,
    #[schemars(extend("const" = "chat.completion"))]
    object: &'a str,
    created: u64,
    model: &'a str,
    #[schemars(length(min = 1))]
    choices: Vec<Choice<'a>>,
    prompt_token_ids: Option<&'a [u32]>,
    prompt_logprobs: Option<PromptLogprobs>,
    system_fingerprint: (),
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_applied: Applied,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Choice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    #[schemars(transform = write::finish_reasons)]
    finish_reason: &'a str,
    stop_reason: StopReason<'a>,
    matched_stop: StopReason<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<guard::Found>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_arguments: Option<Vec<&'static str>>,
    token_ids: Option<&'a [u32]>,
}

/// The assistant's message.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Message<'a> {
    #[schemars(extend("const" = "assistant"))]
    role: &'a str,
    content: Option<String>,
    refusal: (),
    reasoning_content: Option<&'a str>,
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    tool_calls: Vec<ToolCall<'a>>,
    /// The call, where the request has `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<Function<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ToolCall<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["function", "custom"]))]
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Function<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<Custom<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Custom<'a> {
    name: &'a str,
    input: Cow<'a, str>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<'a> ChatAnswer<'a> {
    pub(super) fn of(
        format: &'a Format,
        show: &TokenText<'a>,
        replies: &'a Replies,
        full: &'a [FullReply],
    ) -> Self {
        let choice = |(index, reply): (usize, &'a FullReply)| Choice {
            index,
            message: Message::of(format, reply),
            logprobs: format.logprobs.then(|| show.chat_logprobs(&reply.logprobs)),
            finish_reason: format.finish_reason(&reply.finish),
            stop_reason: StopReason::from(&reply.finish),
            matched_stop: StopReason::matched(&reply.finish),
            guard: guard::found(replies.guard_events(index), show),
            tool_arguments: write::tool_arguments(&reply.forms),
            token_ids: format.return_token_ids.then_some(&reply.tokens[..]),
        };
        Self {
            id: &format.id,
            object: "chat.completion",
            created: format.created,
            model: &format.model,
            choices: full.iter().enumerate().map(choice).collect(),
            prompt_token_ids: format.return_token_ids.then(|| &replies.prompt(0).tokens[..]),
            prompt_logprobs: format.prompt_logprobs.then(|| show.prompt_logprobs(&full[0].prompt_logprobs)),
            system_fingerprint: (),
            usage: Usage::from(replies.usage()),
            sampling_applied: write::applied(&format.applied),
        }
    }
}

impl<'a> Message<'a> {
    /// The content is null where there is reasoning or a call and no answer.
    fn of(format: &Format, reply: &'a FullReply) -> Self {
        let said = &reply.said;
        let echoed = format.echoed_content.as_deref().unwrap_or_default();
        let is_empty = said.content.is_empty() && echoed.is_empty();
        let says_else = said.reasoning.is_some() || !said.calls.is_empty();
        let reasoning = said.reasoning.as_deref();
        let named = |other| reasoning.filter(|_| format.reasoning.is_some_and(|field| field != other));
        Self {
            role: "assistant",
            content: (!(is_empty && says_else)).then(|| format!("{echoed}{}", said.content)),
            refusal: (),
            reasoning_content: named(ReasoningField::Reasoning),
            reasoning: named(ReasoningField::ReasoningContent),
            tool_calls: said
                .calls
                .iter()
                .filter(|_| !format.functions)
                .map(|call| ToolCall::of(format, call))
                .collect(),
            function_call: said.calls.first().filter(|_| format.functions).map(Function::of),
        }
    }
}

impl<'a> ToolCall<'a> {
    fn of(format: &Format, call: &'a generate::ToolCall) -> Self {
        let generate::ToolCall { id, name, arguments } = call;
        if format.client_tools.is_custom(name) {
            let custom = Custom { name, input: client_tools::input_of(arguments) };
            return Self { id, kind: "custom", function: None, custom: Some(custom) };
        }
        Self { id, kind: "function", function: Some(Function::of(call)), custom: None }
    }
}

impl<'a> Function<'a> {
    fn of(call: &'a generate::ToolCall) -> Self {
        Self { name: &call.name, arguments: &call.arguments }
    }
}
