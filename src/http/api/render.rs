//! What a request becomes before the model sees it: the routes that end in `/render`, and `perigee render`.

use super::format::Kind;
use super::write;
use super::{ApiError, Limits, UnknownFields, chat};
use crate::generate::{EncodedPrompt, ModelText, ReasoningField, ReasoningSwitch, SamplingDefaults};

/// A chat request's prompt.
pub type Rendered = EncodedPrompt;

/// The answer of a `/render` route: an object for a conversation, a list with an object per prompt for texts. The ids have two names: vLLM's,
/// which routers that look for cached prefixes read, and the one that replies have for them.
pub(super) fn rendered(kind: Kind, prompts: &[EncodedPrompt], model: &str, max_model_len: usize) -> Vec<u8> {
    let size: usize = prompts.iter().map(|prompt| 128 + prompt.text.len() + prompt.tokens.len() * 14).sum();
    let mut out = Vec::with_capacity(size);
    match prompts {
        [prompt] if kind != Kind::Completion => {
            one(&mut out, "chat.completion.prompt", prompt, model, max_model_len);
        }
        _ => write::list(&mut out, prompts, |out, prompt| {
            one(out, "text_completion.prompt", prompt, model, max_model_len);
        }),
    }
    out
}

fn one(out: &mut Vec<u8>, object: &str, prompt: &EncodedPrompt, model: &str, max_model_len: usize) {
    write::raw(out, "{\"object\":");
    write::string(out, object);
    write::raw(out, ",\"model\":");
    write::string(out, model);
    write::raw(out, ",\"prompt\":");
    write::string(out, &prompt.text);
    write::raw(out, ",\"count\":");
    write::number(out, prompt.tokens.len() as u64);
    write::raw(out, ",\"max_model_len\":");
    write::number(out, max_model_len as u64);
    for name in [",\"token_ids\":", ",\"prompt_token_ids\":"] {
        write::raw(out, name);
        write::token_ids(out, &prompt.tokens);
    }
    out.push(b'}');
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
