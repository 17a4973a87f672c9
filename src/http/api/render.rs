//! What a request becomes before the model sees it: the routes that end in `/render`, and `perigee render`.

use schemars::JsonSchema;
use serde::Serialize;

use super::format::Kind;
use super::write;
use super::{ApiError, HostedTools, Limits, UnknownFields, chat};
use crate::generate::{EncodedPrompt, ModelText, ReasoningField, ReasoningSwitch, SamplingDefaults};

/// A chat request's prompt.
pub type Rendered = EncodedPrompt;

/// The answer of a `/render` route for a conversation. The ids have two names: vLLM's, which routers that look for cached prefixes read,
/// and the one that replies have for them.
#[derive(Serialize, JsonSchema)]
pub(super) struct RenderAnswer<'a> {
    object: &'a str,
    model: &'a str,
    prompt: &'a str,
    count: usize,
    max_model_len: usize,
    token_ids: &'a [u32],
    prompt_token_ids: &'a [u32],
}

/// The answer of a `/render` route: an object for a conversation, a list with an object per prompt for texts.
pub(super) fn rendered(kind: Kind, prompts: &[EncodedPrompt], model: &str, max_model_len: usize) -> Vec<u8> {
    let is_text = kind == Kind::Completion;
    let answers = prompts.iter().map(|EncodedPrompt { text, tokens, .. }| RenderAnswer {
        object: if is_text { "text_completion.prompt" } else { "chat.completion.prompt" },
        model,
        prompt: text,
        count: tokens.len(),
        max_model_len,
        token_ids: tokens,
        prompt_token_ids: tokens,
    });
    let answers: Vec<RenderAnswer<'_>> = answers.collect();
    match &answers[..] {
        [answer] if !is_text => write::document(answer),
        answers => write::document(answers),
    }
}

/// Renders the body of a chat request without a server. The request is checked as the server would.
pub fn render_request(
    body: &[u8],
    text: &ModelText,
    defaults: &SamplingDefaults,
) -> Result<Rendered, ApiError> {
    let limits = Limits {
        vocab_size: text.tokenizer.vocab_size(),
        max_prompts: 1,
        reasoning: ReasoningSwitch::of(&text.template, &text.tokenizer),
        reasoning_field: ReasoningField::default(),
        guard_choice: true,
        json_arguments: false,
        unknown_fields: UnknownFields::Ignore,
        hosted_tools: HostedTools::Ignore,
    };
    let mut prompts = chat::read(body, &limits, defaults)?.request.prompts;
    let prompt = prompts.pop().ok_or_else(|| ApiError::missing("messages"))?;
    Ok(text.encode(prompt, true)?)
}
