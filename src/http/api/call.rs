//! A checked request for replies, and the one place where its fields become what the walk is given.

use super::error::{ApiError, Words};
use super::format::{Format, Kind};
use super::params::{MAX_BIAS_COPIES, Shared};
use super::unknown::Unknown;
use crate::generate::{ChatReply, GenerateRequest, Prompt, ReasoningField};
use perigee_text::grammar::GrammarSpec;

/// A checked request for replies.
pub(crate) struct Call {
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) request_id: Option<String>,
    pub(super) format: Format,
    pub(super) request: GenerateRequest,
    /// What errors of the walk call the fields, where the client has other names for them.
    pub(super) words: Words,
    /// Names that no reader knows.
    pub(super) unknown: Unknown,
}

/// What a route has beside the fields that all have.
pub(super) struct Own {
    pub(super) kind: Kind,
    pub(super) model: Option<String>,
    pub(super) prompts: Vec<Prompt>,
    /// For conversations.
    pub(super) chat: Option<ChatReply>,
    /// Under which names reasoning is given; `None` leaves it out.
    pub(super) reasoning: Option<ReasoningField>,
    /// Most reply tokens of a request that names no limit; `None` = all that fits.
    pub(super) default_max_tokens: Option<u32>,
    /// Alternatives reported per reply token; `None` = no logprobs.
    pub(super) logprobs: Option<u32>,
    /// The prompt comes first in the text.
    pub(super) echo: bool,
    /// Text that comes first in the content.
    pub(super) echoed_content: Option<String>,
    pub(super) grammar: Option<GrammarSpec>,
}

/// The call that a route's own fields and the shared ones make.
pub(super) fn call(own: Own, shared: Shared) -> Result<Call, ApiError> {
    let mut sampling = shared.sampling;
    if own.grammar.is_some() && sampling.allowed_token_ids.is_some() {
        return Err(ApiError::invalid_value(
            "allowed_token_ids",
            "given together with a reply that must have a shape; use one of them",
        ));
    }
    let copies = own.prompts.len() * shared.n as usize;
    if sampling.logit_bias.len().saturating_mul(copies) > MAX_BIAS_COPIES {
        return Err(ApiError::invalid_value(
            "logit_bias",
            format!(
                "{} entries for {copies} replies are more than {MAX_BIAS_COPIES} in all",
                sampling.logit_bias.len()
            ),
        ));
    }
    let prompt_logprobs = sampling.prompt_logprobs.is_some();
    sampling.logprobs = own.logprobs;
    if let Some(top) = own.logprobs.filter(|_| own.echo) {
        sampling.prompt_logprobs = Some(sampling.prompt_logprobs.map_or(top, |p| p.max(top)));
    }
    Ok(Call {
        model: own.model,
        stream: shared.stream,
        request_id: shared.request_id,
        words: &[],
        unknown: Unknown::default(),
        format: Format {
            kind: own.kind,
            id: String::new(),
            created: 0,
            model: String::new(),
            include_usage: shared.include_usage,
            continuous_usage: shared.continuous_usage,
            logprobs: own.logprobs.is_some(),
            prompt_logprobs,
            echo: own.echo,
            echoed_content: own.echoed_content,
            reasoning: own.reasoning,
            echoed: None,
            return_token_ids: shared.return_token_ids,
            tokens_as_ids: shared.tokens_as_ids,
            applied: shared.applied,
        },
        request: GenerateRequest {
            prompts: own.prompts,
            n: shared.n,
            sampling,
            max_tokens: shared.max_tokens,
            default_max_tokens: own.default_max_tokens,
            ignore_eos: shared.ignore_eos,
            stop: shared.stop,
            stop_patterns: shared.stop_patterns,
            bad_words: shared.bad_words,
            include_stop: shared.include_stop,
            skip_special_tokens: shared.skip_special_tokens,
            truncate: shared.truncate,
            chat: own.chat,
            echo: own.echo,
            priority: shared.priority,
            share: None,
            deadline: None,
            cache_salt: shared.cache_salt,
            guard: shared.guard,
            speculation: shared.speculation,
            prediction: shared.prediction,
            grammar: own.grammar,
        },
    })
}
