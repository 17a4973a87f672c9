//! A request about a conversation, whatever dialect it was written in: its fields mean the same on every route.

use super::call::Call;
use super::foreign::ForeignBody;
use super::format::Kind;
use super::json::Both;
use super::params::SharedBody;
use super::reasoning::ReasoningBody;
use super::structured::StructuredBody;
use super::tools::{self, ToolChoice};
use super::{ApiError, Limits};
use crate::generate::{Calls, ChatPrompt, ChatReply, Prompt, SamplingDefaults, SamplingMode};
use perigee_text::grammar::GrammarSpec;

/// The fields that every dialect reads from its body beside its own.
pub(super) type CommonBody = Both<ReasoningBody, Both<SharedBody, Both<ForeignBody, StructuredBody>>>;

/// The draft of a request about a conversation. Fields mean the same in every dialect.
///
/// `structured`: what the reply must be, before the tools have their say.
pub(super) fn draft(
    kind: Kind,
    mut prompt: ChatPrompt,
    choice: &ToolChoice,
    parallel_calls: bool,
    structured: Option<GrammarSpec>,
    (reasoning, shared, foreign): (ReasoningBody, SharedBody, ForeignBody),
    max_tokens: Option<u32>,
    limits: &Limits,
    defaults: &SamplingDefaults,
) -> Result<Call, ApiError> {
    foreign.0.check()?;
    let reasoning = reasoning.check(limits.reasoning)?;
    let whole = structured.as_ref().filter(|spec| spec.format.is_structure());
    if let Some(spec) = whole.filter(|_| prompt.continue_final_message) {
        return Err(ApiError::invalid_value(
            spec.field,
            "not allowed together with a final message that is to be continued (`partial`, \
             `continue_final_message`): the reply would begin a second document",
        ));
    }
    let grammar = tools::grammar(choice, &prompt.tools, parallel_calls, structured, limits.json_arguments)?;
    let mode = match reasoning.thinks.unwrap_or(defaults.thinks) {
        true => SamplingMode::Thinking,
        false => SamplingMode::Instant,
    };
    let mut call = shared.draft(kind, limits, defaults, max_tokens, mode)?;
    call.format.reasoning = reasoning.include.then_some(limits.reasoning_field);
    prompt.kwargs = reasoning.kwargs;
    let request = &mut call.request;
    request.prompts = vec![Prompt::Chat(prompt)];
    request.chat = Some(ChatReply {
        calls: if *choice == ToolChoice::None { Calls::Forbidden } else { Calls::Wanted },
        parallel_calls,
        budget: reasoning.budget,
        inline_reasoning: reasoning.inline,
    });
    request.default_max_tokens = defaults.max_new_tokens;
    if kind == Kind::Messages && request.truncate.is_none() {
        // The limit must be given there, and clients send a constant: what does not fit is not asked for.
        request.default_max_tokens = request.max_tokens.take();
    }
    request.grammar = grammar;
    if matches!(kind, Kind::Messages | Kind::Responses) {
        // The operator's default may be another number, for which these answers have no place.
        request.n = 1;
    }
    call.check()?;
    Ok(call)
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
    use serde_json::{Value, json};

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
