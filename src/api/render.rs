//! What a chat request becomes before the model sees it: `/v1/chat/completions/render` and `perigee render`.

use super::write;
use super::{ApiError, Limits, UnknownFields, chat};
use crate::generate::{EncodedPrompt, ModelText, ReasoningField, ReasoningSwitch, SamplingDefaults};

/// A chat request's prompt.
pub type Rendered = EncodedPrompt;

/// The answer of the route.
pub(super) fn answer(prompt: &EncodedPrompt, max_model_len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + prompt.text.len() + prompt.tokens.len() * 7);
    write::raw(&mut out, "{\"object\":\"chat.completion.prompt\",\"prompt\":");
    write::string(&mut out, &prompt.text);
    write::raw(&mut out, ",\"count\":");
    write::number(&mut out, prompt.tokens.len() as u64);
    write::raw(&mut out, ",\"max_model_len\":");
    write::number(&mut out, max_model_len as u64);
    write::raw(&mut out, ",\"prompt_token_ids\":");
    write::token_ids(&mut out, &prompt.tokens);
    out.push(b'}');
    out
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
        unknown_fields: UnknownFields::Ignore,
    };
    let mut prompts = chat::read(body, &limits, defaults)?.request.prompts;
    let prompt = prompts.pop().ok_or_else(|| ApiError::missing("messages"))?;
    Ok(text.encode(prompt, true)?)
}
