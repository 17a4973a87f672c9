//! What a request becomes before the model sees it: the routes that end in `/render`, and `perigee render`.

use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::format::Kind;
use super::params::MAX_TOP_LOGPROBS;
use super::write::{self, Pairs};
use super::{ApiError, HostedTools, Limits, UnknownFields, chat};
use crate::generate::{
    EncodedPrompt, GenerateRequest, ModelText, ReasoningField, ReasoningSwitch, SamplingDefaults,
};
use perigee_text::Tokenizer;

/// A chat request's prompt.
pub type Rendered = EncodedPrompt;

/// The answer of a `/render` route for a conversation: the prompt, and what `/inference/v1/generate` takes to answer it.
/// The ids have two names: vLLM's, which routers that look for cached prefixes read, and the one that replies have for them.
#[derive(Serialize, JsonSchema)]
pub(super) struct RenderAnswer<'a> {
    object: &'a str,
    model: &'a str,
    prompt: &'a str,
    count: usize,
    max_model_len: usize,
    token_ids: &'a [u32],
    prompt_token_ids: &'a [u32],
    /// Where each token begins and ends in the prompt, in characters; null for a prompt with images.
    #[schemars(with = "Option<Vec<[usize; 2]>>")]
    token_offsets: Option<Vec<(usize, usize)>>,
    request_id: &'a str,
    sampling_params: Params<'a>,
    stream: bool,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<&'a str>,
    priority: i32,
    features: (),
    kv_transfer_params: (),
}

/// Parameters of sampling, in the words of `/v1/completions`.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Params<'a> {
    n: u32,
    temperature: f32,
    top_p: f32,
    top_k: u32,
    min_p: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    min_tokens: u32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    logit_bias: Option<Pairs<u32, f32>>,
    stop: &'a [String],
    stop_token_ids: &'a [u32],
    include_stop_str_in_output: bool,
    ignore_eos: bool,
    skip_special_tokens: bool,
    bad_words: &'a [String],
    logprobs: Option<i64>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    logprob_token_ids: &'a [u32],
    prompt_logprobs: Option<i64>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct StreamOptions {
    include_usage: bool,
    continuous_usage_stats: bool,
}

impl<'a> Params<'a> {
    fn of(request: &'a GenerateRequest, seed: Option<i64>) -> Self {
        let sampling = &request.sampling;
        let top =
            |top: Option<u32>| top.map(i64::from).map(|top| if top > MAX_TOP_LOGPROBS { -1 } else { top });
        Self {
            n: request.n,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed,
            max_tokens: request.max_tokens.or(request.default_max_tokens),
            min_tokens: sampling.min_tokens,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            logit_bias: (!sampling.logit_bias.is_empty()).then(|| Pairs(sampling.logit_bias.clone())),
            stop: &request.stop,
            stop_token_ids: &sampling.stop_token_ids,
            include_stop_str_in_output: request.include_stop,
            ignore_eos: request.ignore_eos,
            skip_special_tokens: request.skip_special_tokens,
            bad_words: &request.bad_words,
            logprobs: top(sampling.logprobs),
            logprob_token_ids: &sampling.logprob_token_ids,
            prompt_logprobs: top(sampling.prompt_logprobs),
        }
    }
}

/// The answer of a `/render` route: an object for a conversation, a list with an object per prompt for texts.
pub(super) fn rendered(
    call: &Call,
    prompts: &[EncodedPrompt],
    tokenizer: &Tokenizer,
    max_model_len: usize,
) -> Vec<u8> {
    let (format, request) = (&call.format, &call.request);
    let is_text = format.kind == Kind::Completion;
    let options = StreamOptions {
        include_usage: format.include_usage,
        continuous_usage_stats: format.continuous_usage,
    };
    let mut options = call.stream.then_some(options);
    let answers = prompts.iter().map(|prompt| RenderAnswer {
        object: if is_text { "text_completion.prompt" } else { "chat.completion.prompt" },
        model: &format.model,
        prompt: &prompt.text,
        count: prompt.tokens.len(),
        max_model_len,
        token_ids: &prompt.tokens,
        prompt_token_ids: &prompt.tokens,
        token_offsets: prompt.images.is_empty().then(|| offsets(&prompt.tokens, tokenizer)),
        request_id: &format.id,
        sampling_params: Params::of(request, call.seed),
        stream: call.stream,
        stream_options: options.take(),
        cache_salt: request.cache_salt.as_deref(),
        priority: request.priority,
        features: (),
        kv_transfer_params: (),
    });
    let answers: Vec<RenderAnswer<'_>> = answers.collect();
    match &answers[..] {
        [answer] if !is_text => write::document(answer),
        answers => write::document(answers),
    }
}

/// Where each token begins and ends, in characters. A token of a part of a character covers all of it.
fn offsets(tokens: &[u32], tokenizer: &Tokenizer) -> Vec<(usize, usize)> {
    let mut begun = 0;
    let place = |id: &u32| {
        let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
        // A byte that continues a character begins none (RFC 3629, section 3).
        let begins = |byte: &u8| byte & 0xC0 != 0x80;
        let start = begun - usize::from(begun > 0 && !bytes.first().is_none_or(begins));
        begun += bytes.iter().filter(|byte| begins(byte)).count();
        (start, begun)
    };
    tokens.iter().map(place).collect()
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
