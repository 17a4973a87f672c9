//! `/v1/chat/completions`: the request's fields and the whole answer.

use super::guard;
use super::json::{Free, Int, Shape, parse, wire_object};
use super::messages::{self, Messages};
use super::params::{SharedBody, int, token_limit};
use super::reasoning::ReasoningBody;
use super::stream::{Format, Kind};
use super::structured::StructuredBody;
use super::tools::{self, ToolChoice};
use super::write::{self, TokenText};
use super::{ApiError, Call, Limits};
use crate::generate::{
    Calls, ChatPrompt, ChatReply, FullReply, GenerateRequest, Prompt, Replies, SamplingDefaults, SamplingMode,
};

wire_object! {
    /// The fields that only chat has.
    struct ChatBody {
        messages: Messages,
        max_completion_tokens: Int,
        logprobs: bool,
        top_logprobs: Int,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Free,
        tool_choice: Free,
        parallel_tool_calls: bool,
        // What follows is read only to be refused when it asks for something.
        chat_template: Shape,
        documents: Shape,
        functions: Shape,
        function_call: Shape,
        modalities: Free,
        audio: Shape,
        echo: bool,
    }
}

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let (chat, (reasoning, (shared, structured))) =
        parse::<(ChatBody, (ReasoningBody, (SharedBody, StructuredBody)))>(body)?;
    chat.refuse_unavailable()?;
    let reasoning = reasoning.check(limits.reasoning)?;
    let tools = tools::check(chat.tools)?;
    let choice = tools::check_choice(chat.tool_choice, &tools)?;
    let parallel_calls = chat.parallel_tool_calls.unwrap_or(true);
    let grammar = tools::grammar(&choice, &tools, parallel_calls, structured.check()?)?;
    let conversation = messages::check(chat.messages)?;
    let continue_final_message = conversation.continues(chat.continue_final_message)?;
    if continue_final_message && chat.add_generation_prompt == Some(true) {
        return Err(ApiError::invalid_value(
            "add_generation_prompt",
            "not allowed together with a final message that is to be continued",
        ));
    }
    let model = shared.model.clone();
    let max_tokens = match token_limit("max_completion_tokens", chat.max_completion_tokens, 1)? {
        None => token_limit("max_tokens", shared.max_tokens, 1)?,
        some => some,
    };
    let mode = match reasoning.thinks.unwrap_or(defaults.thinks) {
        true => SamplingMode::Thinking,
        false => SamplingMode::Instant,
    };
    let shared = shared.check(limits, defaults, max_tokens, mode)?;
    let top_logprobs = int("top_logprobs", chat.top_logprobs, 0, super::params::MAX_TOP_LOGPROBS)?;
    let wants_logprobs = chat.logprobs.unwrap_or(false);
    if top_logprobs.is_some_and(|top| top > 0) && !wants_logprobs {
        return Err(ApiError::invalid_value("top_logprobs", "only allowed together with `logprobs: true`"));
    }
    let calls = match choice {
        ToolChoice::None => Calls::Forbidden,
        _ => Calls::Wanted,
    };
    let mut sampling = shared.sampling;
    sampling.logprobs = wants_logprobs.then(|| top_logprobs.unwrap_or(0) as u32);
    let prompt_logprobs = sampling.prompt_logprobs.is_some();
    Ok(Call {
        model,
        stream: shared.stream,
        request_id: shared.request_id,
        format: Format {
            kind: Kind::Chat,
            id: String::new(),
            created: 0,
            model: String::new(),
            include_usage: shared.include_usage,
            continuous_usage: shared.continuous_usage,
            logprobs: wants_logprobs,
            prompt_logprobs,
            echo: false,
            reasoning: reasoning.include.then_some(limits.reasoning_field),
            echoed: None,
            return_token_ids: shared.return_token_ids,
            tokens_as_ids: shared.tokens_as_ids,
            applied: shared.applied,
        },
        request: GenerateRequest {
            prompts: vec![Prompt::Chat(ChatPrompt {
                messages: conversation.messages,
                tools,
                add_generation_prompt: chat.add_generation_prompt.unwrap_or(!continue_final_message),
                continue_final_message,
                kwargs: reasoning.kwargs,
            })],
            chat: Some(ChatReply { calls, parallel_calls, budget: reasoning.budget }),
            n: shared.n,
            sampling,
            max_tokens: shared.max_tokens,
            default_max_tokens: defaults.max_new_tokens,
            ignore_eos: shared.ignore_eos,
            stop: shared.stop,
            include_stop: shared.include_stop,
            skip_special_tokens: shared.skip_special_tokens,
            truncate: shared.truncate,
            echo: false,
            priority: shared.priority,
            deadline: None,
            cache_salt: shared.cache_salt,
            guard: shared.guard,
            grammar,
        },
    })
}

impl ChatBody {
    fn refuse_unavailable(&self) -> Result<(), ApiError> {
        let given = |shape: &Option<Shape>| shape.as_ref().is_some_and(|s| !s.is_empty());
        for (name, value, what) in [
            ("functions", &self.functions, "calling functions (`tools` is their successor)"),
            ("chat_template", &self.chat_template, "a chat template of the request's own"),
            ("documents", &self.documents, "grounding in documents"),
            ("audio", &self.audio, "audio"),
        ] {
            if given(value) {
                return Err(ApiError::unsupported(name, what));
            }
        }
        if self.function_call.as_ref().is_some_and(|v| !v.is_text("none") && !v.is_text("auto")) {
            return Err(ApiError::unsupported("function_call", "calling functions"));
        }
        if self.echo == Some(true) {
            return Err(ApiError::unsupported("echo", "echoing a conversation"));
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
pub(super) fn whole(format: &Format, show: &TokenText<'_>, replies: &Replies, full: &[FullReply]) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    format.head(&mut out, "chat.completion");
    write::raw(&mut out, ",\"choices\":");
    write::list(&mut out, full.iter().enumerate(), |out, (index, reply)| {
        write::raw(out, "{\"index\":");
        write::number(out, index as u64);
        write::raw(out, ",\"message\":");
        message(out, format, reply);
        write::raw(out, ",\"logprobs\":");
        if format.logprobs {
            show.chat_logprobs(out, &reply.logprobs)
        } else {
            write::raw(out, "null")
        }
        out.push(b',');
        write::finish(out, &reply.finish);
        guard::events(out, replies.guard_events(index), show);
        if format.return_token_ids {
            write::raw(out, ",\"token_ids\":");
            write::token_ids(out, &reply.tokens);
        }
        out.push(b'}');
    });
    if format.return_token_ids {
        write::raw(&mut out, ",\"prompt_token_ids\":");
        write::token_ids(&mut out, &replies.prompt(0).tokens);
    }
    if format.prompt_logprobs {
        write::raw(&mut out, ",\"prompt_logprobs\":");
        show.prompt_logprobs(&mut out, &full[0].prompt_logprobs);
    }
    out.push(b',');
    write::usage(&mut out, replies.usage());
    write::applied(&mut out, &format.applied);
    out.push(b'}');
    out
}

/// The assistant's message. Its content is null where there is reasoning or a call and no answer.
fn message(out: &mut Vec<u8>, format: &Format, reply: &FullReply) {
    let said = &reply.said;
    write::raw(out, "{\"role\":\"assistant\",\"content\":");
    if said.content.is_empty() && (said.reasoning.is_some() || !said.calls.is_empty()) {
        write::raw(out, "null");
    } else {
        write::string(out, &said.content);
    }
    write::raw(out, ",\"refusal\":null");
    if let (Some(reasoning), Some(field)) = (&said.reasoning, format.reasoning) {
        out.push(b',');
        write::reasoning(out, field, reasoning);
    }
    if !said.calls.is_empty() {
        write::raw(out, ",\"tool_calls\":");
        write::list(out, &said.calls, |out, call| {
            write::raw(out, "{\"id\":");
            write::string(out, &call.id);
            write::raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
            write::string(out, &call.name);
            write::raw(out, ",\"arguments\":");
            write::string(out, &call.arguments);
            write::raw(out, "}}");
        });
    }
    out.push(b'}');
}
