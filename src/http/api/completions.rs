//! `/v1/completions`: the request's fields and the whole answer.

use std::fmt;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::foreign::ForeignBody;
use super::format::{Format, Kind};
use super::guard;
use super::json::{self, Both};
use super::params::{SharedBody, TopCount, token_id, top_count};
use super::structured::StructuredBody;
use super::values::{AnyValue, Int, MAX_U32, TokenId, inline_schema};
use super::write::{
    self, Applied, CompletionLogprobs, LogprobArrays, Position, PromptLogprobs, StopReason, TokenText, Usage,
    echoed,
};
use super::{ApiError, Limits};
use crate::generate::{FullReply, Prompt, Replies, SamplingDefaults, SamplingMode};

/// Most replies of one request, over all its prompts and copies.
pub(super) const MAX_REPLIES: usize = 1024;
/// Reply tokens of a request that names no limit.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// The fields that only text completions have. What is not described is read only to be refused when it asks for something.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CompletionBody {
    /// A text or its token ids, or a list of either.
    #[schemars(required)]
    prompt: Option<PromptField>,
    /// Log-probabilities of the tokens of the reply, with so many alternatives; -1: the whole vocabulary.
    logprobs: Option<TopCount>,
    /// The prompt comes first in the text; with `logprobs` it is scored.
    echo: Option<bool>,
    /// Whether names of special tokens in the prompt are these tokens: it was rendered elsewhere, and holds no
    /// text that a stranger wrote.
    parse_special: Option<bool>,
    /// Goes before `max_tokens`.
    max_completion_tokens: Option<Int<0, MAX_U32>>,
    #[schemars(skip)]
    suffix: Option<AnyValue>,
    #[schemars(skip)]
    tools: Option<AnyValue>,
    #[schemars(skip)]
    messages: Option<AnyValue>,
    #[schemars(skip)]
    thinking: Option<AnyValue>,
    #[schemars(skip)]
    reasoning_effort: Option<AnyValue>,
    #[schemars(skip)]
    include_reasoning: Option<AnyValue>,
    #[schemars(skip)]
    separate_reasoning: Option<AnyValue>,
    #[schemars(skip)]
    thinking_token_budget: Option<AnyValue>,
    #[schemars(skip)]
    thinking_budget: Option<AnyValue>,
    #[schemars(skip)]
    enable_thinking: Option<AnyValue>,
    #[schemars(skip)]
    think: Option<AnyValue>,
    #[schemars(skip)]
    reasoning: Option<AnyValue>,
}

/// The fields of text completions.
pub(super) type CompletionRequest = Both<CompletionBody, Both<SharedBody, Both<ForeignBody, StructuredBody>>>;

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let (Both(own, Both(shared, Both(foreign, structured))), unknown) =
        json::read::<CompletionRequest>(body, limits)?;
    own.refuse_unavailable()?;
    foreign.0.check()?;
    let echo = own.echo.unwrap_or(false);
    let max_tokens = shared.max_tokens("max_completion_tokens", own.max_completion_tokens.map(|n| n.0), 0)?;
    if max_tokens == Some(0) && !echo {
        return Err(ApiError::invalid_value("max_tokens", "0 is only allowed together with `echo: true`"));
    }
    let logprobs = top_count("logprobs", own.logprobs, limits)?;
    let mut call = shared.draft(Kind::Completion, limits, defaults, max_tokens, SamplingMode::Instant)?;
    let mut prompts = own.prompt.ok_or_else(|| ApiError::missing("prompt"))?.check(limits)?;
    if own.parse_special == Some(true) {
        prompts.iter_mut().for_each(Prompt::recognise_specials);
    }
    let (count, n, most) = (prompts.len(), call.request.n, limits.max_prompts);
    if count * n as usize > most {
        let message = format!("{count} prompts with n = {n} are more than {most} replies");
        return Err(ApiError::invalid_value("prompt", message));
    }
    call.score(logprobs)?;
    (call.format.echo, call.request.echo) = (echo, echo);
    if let Some(top) = logprobs.filter(|_| echo) {
        let scored = &mut call.request.sampling.prompt_logprobs;
        *scored = Some(scored.map_or(top, |own| own.max(top)));
    }
    call.request.prompts = prompts;
    call.request.default_max_tokens = Some(DEFAULT_MAX_TOKENS);
    call.request.grammar = structured.check(None)?;
    call.check()?;
    Ok(Call { unknown, ..call })
}

impl CompletionBody {
    /// Fields of other routes, and what this version does not have.
    fn refuse_unavailable(&self) -> Result<(), ApiError> {
        let reasoning = "the reasoning split of text completions";
        for (name, value, what) in [
            ("suffix", &self.suffix, "filling in before a suffix"),
            ("tools", &self.tools, "calling tools"),
            ("thinking", &self.thinking, reasoning),
            ("separate_reasoning", &self.separate_reasoning, reasoning),
            ("thinking_token_budget", &self.thinking_token_budget, "a reasoning budget"),
            ("thinking_budget", &self.thinking_budget, "a reasoning budget"),
            ("enable_thinking", &self.enable_thinking, reasoning),
            ("think", &self.think, reasoning),
            ("reasoning", &self.reasoning, reasoning),
        ] {
            if value.as_ref().is_some_and(|value| !value.is_empty()) {
                return Err(ApiError::unsupported(name, what));
            }
        }
        if self.include_reasoning.is_some() {
            return Err(ApiError::unsupported("include_reasoning", reasoning));
        }
        if self.reasoning_effort.as_ref().is_some_and(|effort| !effort.is_text("none")) {
            return Err(ApiError::unsupported("reasoning_effort", reasoning));
        }
        if self.messages.as_ref().is_some_and(|messages| self.prompt.is_none() || !messages.is_empty()) {
            return Err(ApiError::invalid_value(
                "messages",
                "this is the route for `prompt`; send messages to /v1/chat/completions",
            ));
        }
        Ok(())
    }
}

/// The answer that is not streamed.
#[derive(Serialize, JsonSchema)]
pub(super) struct CompletionAnswer<'a> {
    id: &'a str,
    #[schemars(extend("const" = "text_completion"))]
    object: &'a str,
    created: u64,
    model: &'a str,
    #[schemars(length(min = 1))]
    choices: Vec<Choice<'a>>,
    system_fingerprint: (),
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_applied: Applied,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Choice<'a> {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    #[schemars(transform = write::finish_reasons)]
    finish_reason: &'a str,
    stop_reason: StopReason<'a>,
    matched_stop: StopReason<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<guard::Found>,
    token_ids: Option<&'a [u32]>,
    prompt_token_ids: Option<&'a [u32]>,
    prompt_logprobs: Option<PromptLogprobs>,
}

impl<'a> CompletionAnswer<'a> {
    pub(super) fn of(
        format: &'a Format,
        show: &TokenText<'a>,
        replies: &'a Replies,
        full: &'a [FullReply],
    ) -> Self {
        let choice = |(index, reply): (usize, &'a FullReply)| {
            let prompt = replies.prompt(index);
            let shown = if format.echo { &prompt.text } else { "" };
            Choice {
                index,
                text: format!("{shown}{}", reply.said.content),
                logprobs: format.logprobs.then(|| logprobs(format, show, &prompt.tokens, reply)),
                finish_reason: write::finish_reason(&reply.finish),
                stop_reason: StopReason::from(&reply.finish),
                matched_stop: StopReason::matched(&reply.finish),
                guard: guard::found(replies.guard_events(index), show),
                token_ids: format.return_token_ids.then_some(&reply.tokens[..]),
                prompt_token_ids: format.return_token_ids.then_some(&prompt.tokens[..]),
                prompt_logprobs: format.prompt_logprobs.then(|| show.prompt_logprobs(&reply.prompt_logprobs)),
            }
        };
        Self {
            id: &format.id,
            object: "text_completion",
            created: format.created,
            model: &format.model,
            choices: full.iter().enumerate().map(choice).collect(),
            system_fingerprint: (),
            usage: Usage::from(replies.usage()),
            sampling_applied: write::applied(&format.applied),
        }
    }
}

/// Scores of the reply, behind those of an echoed prompt.
fn logprobs(format: &Format, show: &TokenText<'_>, prompt: &[u32], reply: &FullReply) -> CompletionLogprobs {
    let mut positions = if format.echo { echoed(prompt, &reply.prompt_logprobs) } else { Vec::new() };
    positions.extend(reply.logprobs.iter().map(Position::Scored));
    LogprobArrays::default().next(show, &positions)
}

/// `prompt`: a string, a list of strings, a list of token ids, or a list of such lists.
#[derive(Debug)]
pub(super) enum PromptField {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<i64>),
    IdLists(Vec<Vec<i64>>),
    /// `[]`
    Nothing,
}

inline_schema!(PromptField, generator => {
    let text = json_schema!({"type": "string", "minLength": 1});
    let ids = json_schema!({"type": "array", "minItems": 1, "items": generator.subschema_for::<TokenId>()});
    let many = |items: &Schema| json_schema!({"type": "array", "minItems": 1, "maxItems": MAX_REPLIES, "items": items});
    json_schema!({"anyOf": [text, many(&text), ids, many(&ids)]})
});

impl PromptField {
    fn check(self, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
        let ids = |ids: Vec<i64>| -> Result<Prompt, ApiError> {
            if ids.is_empty() {
                return Err(ApiError::invalid_value("prompt", "a list of token ids is empty"));
            }
            let ids: Result<_, ApiError> = ids.into_iter().map(|id| token_id("prompt", id, limits)).collect();
            Ok(Prompt::Tokens(ids?))
        };
        let text = |text: String| match text.is_empty() {
            true => Err(ApiError::invalid_value("prompt", "the text is empty: at least one token is needed")),
            false => Ok(Prompt::Text(text)),
        };
        match self {
            Self::Text(one) => Ok(vec![text(one)?]),
            Self::Texts(many) => many.into_iter().map(text).collect(),
            Self::Ids(one) => Ok(vec![ids(one)?]),
            Self::IdLists(many) => many.into_iter().map(ids).collect(),
            Self::Nothing => Err(ApiError::invalid_value("prompt", "the list is empty")),
        }
    }
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = PromptField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of strings, a list of token ids, or a list of lists of token ids")
    }

    fn visit_str<E>(self, v: &str) -> Result<PromptField, E> {
        Ok(PromptField::Text(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<PromptField, E> {
        Ok(PromptField::Text(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptField, A::Error> {
        let mut all = match seq.next_element::<PromptItem>()? {
            None => return Ok(PromptField::Nothing),
            Some(PromptItem::Text(text)) => PromptField::Texts(vec![text]),
            Some(PromptItem::Id(id)) => PromptField::Ids(vec![id]),
            Some(PromptItem::Ids(ids)) => PromptField::IdLists(vec![ids]),
        };
        while let Some(item) = seq.next_element::<PromptItem>()? {
            match (&mut all, item) {
                (PromptField::Texts(list), PromptItem::Text(text)) => list.push(text),
                (PromptField::Ids(list), PromptItem::Id(id)) => list.push(id),
                (PromptField::IdLists(list), PromptItem::Ids(ids)) => list.push(ids),
                _ => return Err(A::Error::custom("the list mixes strings, token ids and lists")),
            }
        }
        Ok(all)
    }
}

enum PromptItem {
    Text(String),
    Id(i64),
    Ids(Vec<i64>),
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = PromptItem;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }
            fn visit_str<E>(self, v: &str) -> Result<PromptItem, E> {
                Ok(PromptItem::Text(v.to_owned()))
            }
            fn visit_i64<E>(self, v: i64) -> Result<PromptItem, E> {
                Ok(PromptItem::Id(v))
            }
            fn visit_u64<E>(self, v: u64) -> Result<PromptItem, E> {
                // Too large for any vocabulary either way; the check names it.
                Ok(PromptItem::Id(i64::try_from(v).unwrap_or(i64::MAX)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptItem, A::Error> {
                let mut ids = Vec::new();
                while let Some(Int(id)) = seq.next_element::<TokenId>()? {
                    ids.push(id);
                }
                Ok(PromptItem::Ids(ids))
            }
        }
        deserializer.deserialize_any(V)
    }
}
