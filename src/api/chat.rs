//! `/v1/chat/completions`: the request's fields and the whole answer.

use super::json::{Free, Int, Shape, parse, wire_object};
use super::messages::{self, Messages};
use super::params::{SharedBody, int, token_limit};
use super::stream::{Format, Kind};
use super::structured::StructuredBody;
use super::write::{self, TokenText};
use super::{ApiError, Call, Limits};
use crate::generate::{ChatPrompt, FullReply, GenerateRequest, Prompt, Replies, SamplingDefaults};

wire_object! {
    /// The fields that only chat has.
    struct ChatBody {
        messages: Messages,
        max_completion_tokens: Int,
        logprobs: bool,
        top_logprobs: Int,
        add_generation_prompt: bool,
        continue_final_message: bool,
        chat_template_kwargs: Free,
        // What follows is read only to be refused when it asks for something.
        chat_template: Shape,
        documents: Shape,
        tools: Shape,
        tool_choice: Shape,
        functions: Shape,
        function_call: Shape,
        modalities: Free,
        audio: Shape,
        echo: bool,
    }
}

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let (chat, (shared, structured)) = parse::<(ChatBody, (SharedBody, StructuredBody))>(body)?;
    chat.refuse_unavailable()?;
    let model = shared.model.clone();
    let max_tokens = match token_limit("max_completion_tokens", chat.max_completion_tokens, 1)? {
        None => token_limit("max_tokens", shared.max_tokens, 1)?,
        some => some,
    };
    let shared = shared.check(limits, defaults, max_tokens)?;
    let top_logprobs = int("top_logprobs", chat.top_logprobs, 0, super::params::MAX_TOP_LOGPROBS)?;
    let wants_logprobs = chat.logprobs.unwrap_or(false);
    if top_logprobs.is_some_and(|top| top > 0) && !wants_logprobs {
        return Err(ApiError::invalid_value("top_logprobs", "only allowed together with `logprobs: true`"));
    }
    let kwargs = match chat.chat_template_kwargs.map(|f| f.0) {
        None => None,
        Some(serde_json::Value::Object(kwargs)) => Some(kwargs),
        Some(_) => return Err(ApiError::invalid_value("chat_template_kwargs", "an object is expected")),
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
            return_token_ids: shared.return_token_ids,
            tokens_as_ids: shared.tokens_as_ids,
        },
        request: GenerateRequest {
            prompts: vec![Prompt::Chat(ChatPrompt {
                messages: messages::check(chat.messages)?,
                add_generation_prompt: chat.add_generation_prompt.unwrap_or(true),
                kwargs,
            })],
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
            grammar: structured.check()?,
        },
    })
}

impl ChatBody {
    fn refuse_unavailable(&self) -> Result<(), ApiError> {
        let given = |shape: &Option<Shape>| shape.as_ref().is_some_and(|s| !s.is_empty());
        for (name, value, what) in [
            ("tools", &self.tools, "calling tools"),
            ("functions", &self.functions, "calling functions"),
            ("chat_template", &self.chat_template, "a chat template of the request's own"),
            ("documents", &self.documents, "grounding in documents"),
            ("audio", &self.audio, "audio"),
        ] {
            if given(value) {
                return Err(ApiError::unsupported(name, what));
            }
        }
        for (name, value) in [("tool_choice", &self.tool_choice), ("function_call", &self.function_call)] {
            if value.as_ref().is_some_and(|v| !v.is_text("none") && !v.is_text("auto")) {
                return Err(ApiError::unsupported(name, "calling tools"));
            }
        }
        if self.continue_final_message == Some(true) {
            return Err(ApiError::unsupported("continue_final_message", "continuing a message"));
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
        write::raw(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
        write::string(out, &reply.text);
        write::raw(out, ",\"refusal\":null},\"logprobs\":");
        if format.logprobs {
            show.chat_logprobs(out, &reply.logprobs)
        } else {
            write::raw(out, "null")
        }
        out.push(b',');
        write::finish(out, &reply.finish);
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
    out.push(b'}');
    out
}
