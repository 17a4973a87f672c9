//! A request about a conversation, whatever dialect it was written in: its fields mean the same on every route.

use serde_json::Value;

use super::call::{Call, Own, call};
use super::foreign::ForeignBody;
use super::format::Kind;
use super::json::Both;
use super::messages;
use super::params::SharedBody;
use super::reasoning::ReasoningBody;
use super::structured::StructuredBody;
use super::tools::{self, ToolChoice};
use super::{ApiError, Limits};
use crate::generate::{Calls, ChatPrompt, ChatReply, Prompt, SamplingDefaults, SamplingMode};
use perigee_text::grammar::GrammarSpec;

/// The fields that every dialect reads from its body beside its own.
pub(super) type CommonBody = Both<ReasoningBody, Both<SharedBody, Both<ForeignBody, StructuredBody>>>;

/// What a dialect has read of a request.
pub(super) struct Conversation {
    pub(super) kind: Kind,
    pub(super) messages: messages::Conversation,
    pub(super) tools: Vec<Value>,
    pub(super) choice: ToolChoice,
    pub(super) parallel_calls: bool,
    /// What the reply must be, before the tools have their say.
    pub(super) structured: Option<GrammarSpec>,
    pub(super) reasoning: ReasoningBody,
    pub(super) shared: SharedBody,
    pub(super) foreign: ForeignBody,
    pub(super) max_tokens: Option<u32>,
    /// Alternatives reported per token; `None` = no logprobs.
    pub(super) logprobs: Option<u32>,
    pub(super) add_generation_prompt: Option<bool>,
    pub(super) continue_final_message: Option<bool>,
    /// The last message comes first in the content, if it is the assistant's.
    pub(super) echo: bool,
}

impl Conversation {
    /// Checks what is left to check.
    pub(super) fn check(self, limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
        self.foreign.0.check()?;
        let reasoning = self.reasoning.check(limits.reasoning)?;
        let continue_final_message = self.messages.continues(self.continue_final_message)?;
        if continue_final_message && self.add_generation_prompt == Some(true) {
            return Err(ApiError::invalid_value(
                "add_generation_prompt",
                "not allowed together with a final message that is to be continued",
            ));
        }
        let whole = self.structured.as_ref().filter(|spec| spec.format.is_structure());
        if let Some(spec) = whole.filter(|_| continue_final_message) {
            return Err(ApiError::invalid_value(
                spec.field,
                "not allowed together with a final message that is to be continued (`partial`, \
                 `continue_final_message`): the reply would begin a second document",
            ));
        }
        let grammar = tools::grammar(&self.choice, &self.tools, self.parallel_calls, self.structured)?;
        let model = self.shared.model.clone();
        let mode = match reasoning.thinks.unwrap_or(defaults.thinks) {
            true => SamplingMode::Thinking,
            false => SamplingMode::Instant,
        };
        let mut shared = self.shared.check(limits, defaults, self.max_tokens, mode)?;
        if matches!(self.kind, Kind::Messages | Kind::Responses) {
            // The operator's default may be another number, for which these answers have no place.
            shared.n = 1;
        }
        let calls = match self.choice {
            ToolChoice::None => Calls::Forbidden,
            _ => Calls::Wanted,
        };
        let echoed_content = self.messages.messages.last().filter(|_| self.echo).and_then(spoken);
        let own = Own {
            kind: self.kind,
            model,
            prompts: vec![Prompt::Chat(ChatPrompt {
                messages: self.messages.messages,
                images: self.messages.images,
                tools: self.tools,
                add_generation_prompt: self.add_generation_prompt.unwrap_or(!continue_final_message),
                continue_final_message,
                kwargs: reasoning.kwargs,
            })],
            chat: Some(ChatReply {
                calls,
                parallel_calls: self.parallel_calls,
                budget: reasoning.budget,
                inline_reasoning: reasoning.inline,
            }),
            reasoning: reasoning.include.then_some(limits.reasoning_field),
            default_max_tokens: defaults.max_new_tokens,
            logprobs: self.logprobs,
            echo: false,
            echoed_content,
            grammar,
        };
        call(own, shared)
    }
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

/// Refuses what a route with one reply, and without token ids in its answer, cannot give.
pub(super) fn refuse_lists(shared: &SharedBody) -> Result<(), ApiError> {
    if shared.n.is_some_and(|n| n.0 > 1) {
        return Err(ApiError::elsewhere("n", "more than one reply"));
    }
    if shared.prompt_logprobs.is_some() {
        return Err(ApiError::elsewhere("prompt_logprobs", "scoring the prompt"));
    }
    if shared.return_token_ids == Some(true) {
        return Err(ApiError::elsewhere("return_token_ids", "token ids in the answer"));
    }
    if shared.stream_options.as_ref().is_some_and(|options| options.continuous_usage_stats == Some(true)) {
        let name = "stream_options.continuous_usage_stats";
        return Err(ApiError::elsewhere(name, "usage in every event"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::chat;
    use super::*;

    /// Regression: the reply began a second document behind the first one.
    #[test]
    fn a_message_that_is_continued_has_no_format_of_its_own() {
        let read = |extra: Value, partial: bool| {
            let last = json!({"role": "assistant", "content": "{", "partial": partial});
            let mut body = json!({"messages": [{"role": "user", "content": "Q"}, last]});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            chat::read(body.to_string().as_bytes(), &Limits::default(), &SamplingDefaults::default())
        };
        let asked = json!({"response_format": {"type": "json_object"}, "continue_final_message": true});
        for (field, extra) in [("response_format", asked), ("guided_regex", json!({"guided_regex": "a+"}))] {
            let Err(error) = read(extra.clone(), true) else { panic!("{extra} was accepted") };
            assert_eq!(error.param.as_deref(), Some(field));
            assert!(error.message.contains("`continue_final_message`"), "{}", error.message);
        }
        let tags = json!({"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]});
        for (extra, partial) in [
            (json!({"guided_regex": "a+"}), false),
            (json!({"structural_tag": tags}), true),
            (json!({}), true),
        ] {
            assert!(read(extra.clone(), partial).is_ok(), "{extra}");
        }
    }
}
