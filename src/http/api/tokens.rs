//! `/inference/v1/generate`: token ids in, token ids out, in vLLM's form, for frontends that render prompts and parse
//! replies themselves.
//!
//! A request is one of `/v1/completions` whose parameters of sampling stand in a member of their own, and is read as
//! one: fields, limits and meanings are the same.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::call::Call;
use super::chunks::{ChoiceEvents, Source};
use super::completions;
use super::format::{Format, Kind};
use super::json;
use super::unknown::Unknown;
use super::values::{AnyValue, Free, List, TokenId};
use super::write::{self, ChatLogprobs, PromptLogprobs, StopReason, TokenText, Usage};
use super::{ApiError, Limits};
use crate::generate::{FullReply, Replies, ReplyPart, SamplingDefaults};

/// Most ids of a prompt.
const MAX_IDS: usize = 4_194_304;
/// The member with the parameters of sampling.
const PARAMS: &str = "sampling_params";
/// Fields of a completion that are no parameters of sampling; their values stand beside [`PARAMS`], or nowhere.
const NO_PARAMS: [&str; 9] = [
    "prompt",
    "model",
    "stream",
    "stream_options",
    "request_id",
    "cache_salt",
    "priority",
    "echo",
    "parse_special",
];
/// What errors of the walk call the fields here.
const WORDS: &[(&str, &str)] = &[
    ("prompt", "token_ids"),
    ("max_tokens", "sampling_params.max_tokens"),
    ("logprobs", "sampling_params.logprobs"),
    ("prompt_logprobs", "sampling_params.prompt_logprobs"),
    ("n", "sampling_params.n"),
];

/// The fields.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TokensRequest {
    /// The prompt, used as it is.
    #[schemars(required, length(min = 1))]
    token_ids: Option<List<TokenId, MAX_IDS>>,
    /// Fields of /v1/completions that say how tokens are drawn, when a reply ends and what is reported of its tokens.
    #[schemars(extend("type" = "object"))]
    sampling_params: Option<Free>,
    /// One of the names of /v1/models.
    model: Option<String>,
    /// Whether the reply comes as server-sent events while it is made.
    stream: Option<bool>,
    /// Only together with `stream: true`.
    #[schemars(extend("type" = "object"))]
    stream_options: Option<Free>,
    /// The id in the answer; made when absent.
    #[schemars(regex(pattern = "^[!-~]{1,128}$"))]
    request_id: Option<String>,
    /// Prefixes are shared only between requests with the same salt.
    #[schemars(length(min = 1, max = 128))]
    cache_salt: Option<String>,
    /// Lower runs first.
    #[schemars(extend("type" = "integer"))]
    priority: Option<Free>,
    // Read to be refused when they ask for something.
    #[schemars(skip)]
    features: Option<AnyValue>,
    #[schemars(skip)]
    kv_transfer_params: Option<AnyValue>,
}

/// Reads and checks a request.
pub(super) fn read(body: &[u8], limits: &Limits, defaults: &SamplingDefaults) -> Result<Call, ApiError> {
    let (own, mut unknown) = json::read::<TokensRequest>(body, limits)?;
    for (name, value, what) in [
        ("features", &own.features, "a prompt with images that another server has read"),
        ("kv_transfer_params", &own.kv_transfer_params, "KV transfer"),
    ] {
        if value.as_ref().is_some_and(|value| !value.is_empty()) {
            return Err(ApiError::unsupported(name, what));
        }
    }
    let completion = completion(own, &mut unknown)?;
    let body = serde_json::to_vec(&completion).expect("a value serialises");
    let call = completions::read(&body, limits, defaults).map_err(|error| {
        let field = |param: &str| param.split(['.', '[']).next().unwrap_or_default().to_owned();
        error.within(PARAMS, |param| !NO_PARAMS.contains(&&*field(param))).in_words(&WORDS[..1])
    })?;
    call.unknown.names().for_each(|name| unknown.add(&format!("{PARAMS}.{name}")));
    let mut call = Call { words: WORDS, unknown, ..call };
    call.format.kind = Kind::Tokens;
    // Frontends without a tokenizer of their own could not tell single bytes apart.
    call.format.tokens_as_ids = true;
    call.request.default_max_tokens = defaults.max_new_tokens;
    Ok(call)
}

/// The completion that is asked for.
fn completion(own: TokensRequest, unknown: &mut Unknown) -> Result<Value, ApiError> {
    let ids = own.token_ids.ok_or_else(|| ApiError::missing("token_ids"))?;
    let mut body = match own.sampling_params.map(|params| params.0) {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(ApiError::invalid_type(PARAMS, "an object is expected")),
    };
    for name in NO_PARAMS {
        if body.remove(name).is_some_and(|value| !value.is_null()) {
            unknown.add(&format!("{PARAMS}.{name}"));
        }
    }
    let ids: Vec<i64> = ids.0.into_iter().map(|id| id.0).collect();
    for (name, value) in [
        ("prompt", json!(ids)),
        ("model", json!(own.model)),
        ("stream", json!(own.stream)),
        ("stream_options", json!(own.stream_options.map(|options| options.0))),
        ("request_id", json!(own.request_id)),
        ("cache_salt", json!(own.cache_salt)),
        ("priority", json!(own.priority.map(|priority| priority.0))),
    ] {
        body.insert(name.into(), value);
    }
    Ok(Value::Object(body))
}

/// The answer that is not streamed.
#[derive(Serialize, JsonSchema)]
pub(super) struct TokensAnswer<'a> {
    request_id: &'a str,
    model: &'a str,
    created: u64,
    #[schemars(length(min = 1))]
    choices: Vec<Choice<'a>>,
    usage: Usage,
    prompt_logprobs: Option<PromptLogprobs>,
    kv_transfer_params: (),
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Choice<'a> {
    index: usize,
    logprobs: Option<ChatLogprobs<'a>>,
    #[schemars(transform = write::finish_reasons)]
    finish_reason: &'a str,
    stop_reason: StopReason<'a>,
    token_ids: &'a [u32],
}

impl<'a> TokensAnswer<'a> {
    pub(super) fn of(
        format: &'a Format,
        show: &TokenText<'a>,
        replies: &'a Replies,
        full: &'a [FullReply],
    ) -> Self {
        let choice = |(index, reply): (usize, &'a FullReply)| Choice {
            index,
            logprobs: format.logprobs.then(|| show.chat_logprobs(&reply.logprobs)),
            finish_reason: write::finish_reason(&reply.finish),
            stop_reason: StopReason::from(&reply.finish),
            token_ids: &reply.tokens,
        };
        let scored = full.first().filter(|_| format.prompt_logprobs);
        Self {
            request_id: &format.id,
            model: &format.model,
            created: format.created,
            choices: full.iter().enumerate().map(choice).collect(),
            usage: Usage::from(replies.usage()),
            prompt_logprobs: scored.map(|reply| show.prompt_logprobs(&reply.prompt_logprobs)),
            kv_transfer_params: (),
        }
    }
}

/// A chunk of the streamed answer.
#[derive(Serialize)]
struct Chunk<'a> {
    request_id: &'a str,
    choices: Vec<ChunkChoice<'a>>,
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'a str>,
    token_ids: &'a [u32],
}

/// The events of the streamed answer.
pub(super) struct TokenEvents;

impl TokenEvents {
    /// What is new in a choice.
    pub(super) fn event(out: &mut Vec<u8>, source: Source<'_>, index: usize, part: &ReplyPart) {
        let format = source.format;
        let choice = match part {
            ReplyPart::Prompt { .. } => return,
            ReplyPart::Pieces { tokens, .. } if tokens.is_empty() => return,
            ReplyPart::Pieces { tokens, logprobs, .. } => ChunkChoice {
                index,
                logprobs: format.logprobs.then(|| source.show().chat_logprobs(logprobs)),
                finish_reason: None,
                token_ids: tokens,
            },
            ReplyPart::Finished(finish) => ChunkChoice {
                index,
                logprobs: None,
                finish_reason: Some(write::finish_reason(finish)),
                token_ids: &[],
            },
        };
        let usage = format.continuous_usage.then(|| source.usage());
        Self::chunk(out, &Chunk { request_id: &format.id, choices: vec![choice], usage });
    }

    /// The usage where it was asked for, and the last line.
    pub(super) fn end(out: &mut Vec<u8>, source: Source<'_>) {
        if source.format.include_usage {
            let usage = Some(source.usage());
            Self::chunk(out, &Chunk { request_id: &source.format.id, choices: Vec::new(), usage });
        }
        write::raw(out, "data: [DONE]\n\n");
    }

    /// An error in place of what would follow.
    pub(super) fn error(out: &mut Vec<u8>, error: &ApiError) {
        ChoiceEvents::error(out, error);
    }

    fn chunk(out: &mut Vec<u8>, chunk: &Chunk<'_>) {
        write::raw(out, "data: ");
        write::json(out, chunk);
        write::raw(out, "\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Prompt;

    fn call(body: &Value) -> Result<Call, ApiError> {
        read(body.to_string().as_bytes(), &Limits::default(), &SamplingDefaults::default())
    }

    #[test]
    fn parameters_mean_what_they_mean_for_completions() {
        let call = call(&json!({"token_ids": [1, 2], "request_id": "r", "stream": true, "priority": 3,
            "stream_options": {"include_usage": true}, "sampling_params": {"temperature": 0, "logprobs": 2, "n": 2,
                "stop_token_ids": [7], "detokenize": false, "echo": true, "prompt": "x"}}))
        .unwrap();
        let request = &call.request;
        assert_eq!(request.prompts, [Prompt::Tokens(vec![1, 2])]);
        assert_eq!((request.n, request.priority, request.max_tokens), (2, 3, None));
        assert_eq!((request.sampling.temperature, request.sampling.logprobs), (0.0, Some(2)));
        assert_eq!(request.default_max_tokens, SamplingDefaults::default().max_new_tokens, "not 16");
        assert!(call.stream && call.format.include_usage && !call.format.echo);
        let named = ["sampling_params.prompt", "sampling_params.echo", "sampling_params.detokenize"];
        assert_eq!(call.unknown.names().collect::<Vec<_>>(), named);
    }

    #[test]
    fn refusals_name_the_place() {
        for (body, param) in [
            (json!({}), "token_ids"),
            (json!({"token_ids": []}), "token_ids"),
            (json!({"token_ids": [512]}), "token_ids"),
            (json!({"token_ids": "x"}), "token_ids"),
            (json!({"token_ids": [1], "sampling_params": []}), "sampling_params"),
            (json!({"token_ids": [1], "sampling_params": {"temperature": 3}}), "sampling_params.temperature"),
            (json!({"token_ids": [1], "sampling_params": {"n": "x"}}), "sampling_params.n"),
            (
                json!({"token_ids": [1], "sampling_params": {"use_beam_search": true}}),
                "sampling_params.use_beam_search",
            ),
            (json!({"token_ids": [1], "stream_options": {}}), "stream_options"),
            (json!({"token_ids": [1], "cache_salt": "a/b"}), "cache_salt"),
            (json!({"token_ids": [1], "features": {"mm_hashes": {}}}), "features"),
            (
                json!({"token_ids": [1], "kv_transfer_params": {"do_remote_decode": true}}),
                "kv_transfer_params",
            ),
        ] {
            let error = call(&body).map(|_| ()).expect_err(&body.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
            assert!(error.message.contains(&format!("`{param}`")), "{}", error.message);
        }
    }
}
