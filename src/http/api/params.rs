//! Fields that every route with replies has: ranges, defaults, other names.

use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Number;

use super::call::Call;
use super::client_tools::ClientTools;
use super::format::{Format, Kind};
use super::guard::{self, PatternFields};
use super::unknown::Unknown;
use super::values::{Free, Idle, Int, List, MAX_U32, TextOr, TokenId, between, inline_schema, int};
use super::{ApiError, Limits};
use crate::generate::{Applied, GenerateRequest, SamplingDefaults, SamplingMode, Truncate, TruncateSide};
use perigee_decoding::sampling::{LIMITS, MAX_LOGIT_BIAS, Range, SamplingParams, TokenMask};
use perigee_text::StopPatterns;

/// Most replies per prompt.
pub(super) const MAX_N: i64 = 128;
/// Most stop strings, and bytes in each.
const MAX_STOPS: usize = 32;
const MAX_STOP_BYTES: usize = 256;
/// Most of the request's own stop tokens.
const MAX_STOP_IDS: usize = 256;
/// Most alternatives reported per token, unless it is all of them.
pub(super) const MAX_TOP_LOGPROBS: i64 = 100;
/// Most bad words, and bytes in each.
pub(super) const MAX_BAD_WORDS: usize = 128;
/// Most tokens whose logprobs a request chooses.
const MAX_LOGPROB_IDS: usize = 1024;
const MAX_BAD_WORD_BYTES: usize = 256;
/// Most parts of a prediction.
const MAX_PREDICTION_PARTS: usize = 64;
/// Most entries of `logit_bias` over all replies of a request: each has a copy.
pub(super) const MAX_BIAS_COPIES: usize = 1 << 20;
/// Below this, a temperature that is not 0 is raised to it: logits divided by less overflow.
const MIN_TEMPERATURE: f64 = 0.01;

/// `stream_options`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
    pub(super) continuous_usage_stats: Option<bool>,
    #[schemars(skip)]
    #[expect(dead_code, reason = "accepted, and means nothing")]
    include_obfuscation: Option<Idle>,
}

/// `prediction`, as OpenAI has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PredictionFields {
    #[schemars(extend("enum" = ["content"]))]
    r#type: String,
    content: TextOr<PredictionPart, MAX_PREDICTION_PARTS>,
}

/// A part of a prediction.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PredictionPart {
    #[schemars(extend("enum" = ["text"]))]
    r#type: String,
    text: String,
}

/// The fields, as they stand in the body.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct SharedBody {
    /// One of the names of /v1/models.
    pub(super) model: Option<String>,
    /// Replies per prompt.
    pub(super) n: Option<Int<1, MAX_N>>,
    /// Whether the reply comes as server-sent events while it is made.
    pub(super) stream: Option<bool>,
    /// Only together with `stream: true`.
    pub(super) stream_options: Option<StreamOptions>,
    /// Most reply tokens.
    pub(super) max_tokens: Option<Int<1, MAX_U32>>,
    /// 0 is greedy.
    #[schemars(transform = within(LIMITS.temperature))]
    pub(super) temperature: Option<Number>,
    /// Smallest set of tokens with this probability together; 1 is all.
    #[schemars(transform = within(LIMITS.top_p))]
    pub(super) top_p: Option<Number>,
    /// 0 or -1: all.
    pub(super) top_k: Option<Int<-1, MAX_U32>>,
    /// Least probability, as a share of the likeliest token's; 0 is all.
    #[schemars(transform = within(LIMITS.min_p))]
    pub(super) min_p: Option<Number>,
    /// Divides the logits of tokens that occurred in prompt or reply; 1 is none.
    #[schemars(transform = within(LIMITS.repetition_penalty))]
    pub(super) repetition_penalty: Option<Number>,
    /// Taken from the logits of tokens that occurred in the reply.
    #[schemars(transform = within(LIMITS.presence_penalty))]
    pub(super) presence_penalty: Option<Number>,
    /// The same, times how often they occurred.
    #[schemars(transform = within(LIMITS.frequency_penalty))]
    pub(super) frequency_penalty: Option<Number>,
    /// Token ids to what is added to their logits.
    pub(super) logit_bias: Option<LogitBias>,
    /// Equal seeds give equal replies.
    pub(super) seed: Option<Int<{ i64::MIN }, { i64::MAX }>>,
    /// Texts that end the reply; they are not part of it.
    #[schemars(transform = texts(64))]
    pub(super) stop: Option<Stop>,
    /// Tokens that end the reply.
    pub(super) stop_token_ids: Option<List<TokenId, MAX_STOP_IDS>>,
    /// At most the token limit.
    pub(super) min_tokens: Option<Int<0, MAX_U32>>,
    /// Whether the reply goes on after the end of the turn, for benchmarks.
    pub(super) ignore_eos: Option<bool>,
    /// Whether the text that ended the reply is part of it.
    pub(super) include_stop_str_in_output: Option<bool>,
    /// Whether control tokens are left out of the text; they are by default.
    pub(super) skip_special_tokens: Option<bool>,
    /// Prompt tokens kept; -1: as many as fit. Not 0.
    pub(super) truncate_prompt_tokens: Option<Int<-1, MAX_U32>>,
    /// Which end of the prompt `truncate_prompt_tokens` drops.
    #[schemars(extend("enum" = ["left", "right", null]))]
    pub(super) truncation_side: Option<String>,
    /// Tokens that are among the alternatives of every token of the reply, whatever their rank; only where
    /// logprobs are asked for.
    pub(super) logprob_token_ids: Option<List<TokenId, MAX_LOGPROB_IDS>>,
    /// -1: the whole vocabulary. Not together with `stream: true`.
    pub(super) prompt_logprobs: Option<TopCount>,
    /// Lower runs first.
    pub(super) priority: Option<Int<{ i32::MIN as i64 }, { i32::MAX as i64 }>>,
    /// Prefixes are shared only between requests with the same salt.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[^@/\\\u0000]+$"))]
    pub(super) cache_salt: Option<String>,
    /// The id in the answer, and in the log beside that of the header `x-request-id`; made when absent.
    #[schemars(regex(pattern = "^[!-~]{1,128}$"))]
    pub(super) request_id: Option<String>,
    /// Whether the answer has the token ids of prompt and reply.
    pub(super) return_token_ids: Option<bool>,
    /// Whether `logprobs` names tokens as `token_id:N`.
    pub(super) return_tokens_as_token_ids: Option<bool>,
    /// Only equal to `n`.
    pub(super) best_of: Option<Int<1, MAX_N>>,
    /// How the reply is watched for loops.
    #[schemars(schema_with = "guard::schema")]
    pub(super) repetition_guard: Option<Free>,
    /// vLLM's rule, beside the guard.
    pub(super) repetition_detection: Option<PatternFields>,
    /// The only tokens that a reply may have; not together with a reply that must have a shape.
    #[schemars(length(min = 1))]
    pub(super) allowed_token_ids: Option<List<TokenId, MAX_LOGIT_BIAS>>,
    /// Texts whose tokens a reply must not have, with and without a space before them.
    #[schemars(inner(length(min = 1, max = 64)))]
    pub(super) bad_words: Option<List<String, MAX_BAD_WORDS>>,
    /// Patterns that end the reply like `stop`; without anchors, and of at most 4096 bytes of text.
    #[schemars(transform = texts(None))]
    pub(super) stop_regex: Option<Stop>,
    /// Whether tokens of the reply are drafted and checked several at a time, if the server does that; it changes how long the
    /// reply takes, not what it is.
    pub(super) speculation: Option<bool>,
    /// A text that the reply is expected to repeat for the most part; tokens are drafted from it.
    pub(super) prediction: Option<PredictionFields>,
    /// llama.cpp's name for `max_tokens`; -1 is no limit.
    pub(super) n_predict: Option<Int<-1, MAX_U32>>,
    /// llama.cpp's name for `repetition_penalty`.
    #[schemars(transform = within(LIMITS.repetition_penalty))]
    pub(super) repeat_penalty: Option<Number>,
    /// Tokens to which llama.cpp's penalties look back; only -1, all, where there is a penalty.
    repeat_last_n: Option<Int<-1, MAX_U32>>,
    /// Ollama's name for `max_tokens`; -1 and -2 are no limit.
    num_predict: Option<Int<-2, MAX_U32>>,
    /// TGI's name for `max_tokens`.
    max_new_tokens: Option<Int<1, MAX_U32>>,
    /// The name of `max_tokens` in the Responses API.
    max_output_tokens: Option<Int<1, MAX_U32>>,
    /// Mistral's name for `seed`.
    random_seed: Option<Int<{ i64::MIN }, { i64::MAX }>>,
    /// Anthropic's name for `stop`.
    #[schemars(transform = texts(64))]
    stop_sequences: Option<Stop>,
    /// `false` is a temperature of 0.
    do_sample: Option<bool>,
    /// Tokens that a reply must not have, as a `logit_bias` of -100.
    suppress_tokens: Option<List<TokenId, MAX_LOGIT_BIAS>>,
    /// The same under another name.
    banned_tokens: Option<List<TokenId, MAX_LOGIT_BIAS>>,
    /// Another name for `bad_words`.
    #[schemars(inner(length(min = 1, max = 64)))]
    banned_strings: Option<List<String, MAX_BAD_WORDS>>,
    /// Fields that the Python SDK would put beside the others; they are read as if they stood there.
    #[expect(dead_code, reason = "unpacked before the fields are read")]
    extra_body: Option<Unpacked>,
}

/// `extra_body`, whose members were moved out.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Unpacked {}

/// How many alternatives to report per token; -1 is the whole vocabulary.
pub(super) type TopCount = Int<-1, MAX_TOP_LOGPROBS>;

/// Adds the range to a number's schema.
fn within(range: Range) -> impl FnMut(&mut Schema) {
    move |schema| {
        let least = if range.above { "exclusiveMinimum" } else { "minimum" };
        schema.insert(least.to_owned(), range.low.into());
        schema.insert("maximum".to_owned(), range.high.into());
    }
}

/// Adds to the schema of an optional [`Stop`] that no text is empty, and the most characters of each.
fn texts(most: impl Into<Option<u32>>) -> impl FnMut(&mut Schema) {
    let most = most.into();
    move |schema| {
        for text in ["/anyOf/0/anyOf/0", "/anyOf/0/anyOf/1/items"] {
            if let Some(text) = schema.pointer_mut(text) {
                text["minLength"] = 1.into();
                most.into_iter().for_each(|most| text["maxLength"] = most.into());
            }
        }
    }
}

impl SharedBody {
    /// The token limit: `own` is the route's own name for it, which goes before `max_tokens`.
    pub(super) fn max_tokens(
        &self,
        name: &'static str,
        own: Option<i64>,
        least: i64,
    ) -> Result<Option<u32>, ApiError> {
        let (mut first, mut limit) = (name, token_limit(name, own, least)?);
        if limit.is_none() {
            (first, limit) = ("max_tokens", token_limit("max_tokens", self.max_tokens.map(|n| n.0), least)?);
        }
        for (alias, value) in [
            // For llama.cpp -1 is no limit, for Ollama -2 too.
            ("n_predict", self.n_predict.map(|n| n.0).filter(|n| *n != -1)),
            ("num_predict", self.num_predict.map(|n| n.0).filter(|n| ![-1, -2].contains(n))),
            ("max_new_tokens", self.max_new_tokens.map(|n| n.0)),
            ("max_output_tokens", self.max_output_tokens.map(|n| n.0)),
        ] {
            limit = same(alias, token_limit(alias, value, least)?, first, limit)?;
        }
        Ok(limit)
    }

    /// Checks every field and makes the draft of a request of them, without a prompt. `max_tokens` is given by the route, which knows
    /// its other spellings.
    pub(super) fn draft(
        mut self,
        kind: Kind,
        limits: &Limits,
        defaults: &SamplingDefaults,
        max_tokens: Option<u32>,
        mode: SamplingMode,
    ) -> Result<Call, ApiError> {
        if let Some(Int(best_of)) = self.best_of
            && best_of != self.n.map_or(1, |n| n.0)
        {
            return Err(ApiError::unsupported("best_of", "choosing the best of more replies than `n`"));
        }
        let stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !stream {
            return Err(ApiError::invalid_value(
                "stream_options",
                "only allowed together with `stream: true`",
            ));
        }
        let seed = self.seed.or(self.random_seed).map(|seed| seed.0);
        let mut rules = Rules { defaults, mode, applied: Vec::new() };
        let sampling = self.sampling(&mut rules, limits, max_tokens)?;
        let n = rules.count("n", int("n", self.n)?.map(|n| n as f64), 1.0)?;
        // Open stays open, unless a rule has a value for it.
        let max_tokens = match rules.count("max_tokens", max_tokens.map(f64::from), 0.0)? {
            0 => max_tokens,
            limit => Some(limit),
        };
        let options = self.stream_options.unwrap_or_default();
        let include_usage = options.include_usage.unwrap_or(false);
        let format = Format {
            kind,
            id: String::new(),
            created: 0,
            model: String::new(),
            include_usage,
            // It says where usage stands, not whether.
            continuous_usage: include_usage && options.continuous_usage_stats.unwrap_or(false),
            logprobs: false,
            prompt_logprobs: sampling.prompt_logprobs.is_some(),
            echo: false,
            echoed_content: None,
            functions: false,
            reasoning: None,
            client_tools: ClientTools::default(),
            keep: None,
            echoed: None,
            return_token_ids: self.return_token_ids.unwrap_or(false),
            tokens_as_ids: self.return_tokens_as_token_ids.unwrap_or(false),
            max_tokens,
            applied: rules.applied,
        };
        let request = GenerateRequest {
            prompts: Vec::new(),
            n,
            sampling,
            max_tokens,
            default_max_tokens: None,
            stop: stop_strings(self.stop, self.stop_sequences)?,
            stop_patterns: stop_patterns(self.stop_regex)?,
            bad_words: bad_words([("bad_words", self.bad_words), ("banned_strings", self.banned_strings)])?,
            include_stop: self.include_stop_str_in_output.unwrap_or(false),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            truncate: truncate(self.truncate_prompt_tokens, self.truncation_side)?,
            chat: None,
            echo: false,
            priority: int("priority", self.priority)?.unwrap_or(0) as i32,
            share: None,
            deadline: None,
            cache_salt: cache_salt(self.cache_salt)?,
            guard: guard::choice(self.repetition_guard, self.repetition_detection, limits)?,
            speculation: self.speculation.unwrap_or(true),
            prediction: self.prediction.map(prediction).transpose()?,
            grammar: None,
        };
        let request_id = request_id(self.request_id)?;
        Ok(Call {
            model: self.model,
            stream,
            request_id,
            format,
            request,
            words: &[],
            unknown: Unknown::default(),
            seed,
            drop_oldest: false,
            background: false,
        })
    }

    /// How tokens are drawn. `max_tokens` is as large as can be where none was asked for: the walk fills it in.
    fn sampling(
        &mut self,
        rules: &mut Rules<'_>,
        limits: &Limits,
        max_tokens: Option<u32>,
    ) -> Result<SamplingParams, ApiError> {
        let prompt_logprobs = top_count("prompt_logprobs", self.prompt_logprobs, limits)?;
        if prompt_logprobs.is_some() && self.stream == Some(true) {
            return Err(ApiError::invalid_value("prompt_logprobs", "not available with `stream: true`"));
        }
        let min_tokens = int("min_tokens", self.min_tokens)?.unwrap_or(0) as u32;
        if let Some(max) = max_tokens.filter(|max| min_tokens > *max) {
            let message = format!("{min_tokens} is more than max_tokens, {max}");
            return Err(ApiError::invalid_value("min_tokens", message));
        }
        let penalty = LIMITS.repetition_penalty;
        let repetition_penalty = same(
            "repeat_penalty",
            real("repeat_penalty", &self.repeat_penalty, penalty)?,
            "repetition_penalty",
            real("repetition_penalty", &self.repetition_penalty, penalty)?,
        )?;
        let defaults = rules.defaults;
        let asked = if self.do_sample == Some(false) { Some(0.into()) } else { self.temperature.take() };
        let temperature = rules.real("temperature", &asked, LIMITS.temperature, defaults.temperature)?;
        let top_p = rules.real("top_p", &self.top_p, LIMITS.top_p, defaults.top_p)?;
        let min_p = rules.real("min_p", &self.min_p, LIMITS.min_p, defaults.min_p)?;
        let repetition_penalty =
            rules.value("repetition_penalty", repetition_penalty, defaults.repetition_penalty)?;
        let (asked, range) = (&self.presence_penalty, LIMITS.presence_penalty);
        let presence_penalty = rules.real("presence_penalty", asked, range, defaults.presence_penalty)?;
        let (asked, range) = (&self.frequency_penalty, LIMITS.frequency_penalty);
        let frequency_penalty = rules.real("frequency_penalty", asked, range, defaults.frequency_penalty)?;
        let penalties = [repetition_penalty - 1.0, presence_penalty, frequency_penalty];
        if int("repeat_last_n", self.repeat_last_n)?.is_some_and(|n| n != -1)
            && penalties.iter().any(|penalty| *penalty != 0.0)
        {
            return Err(ApiError::unsupported(
                "repeat_last_n",
                "a penalty that looks back less than the whole reply",
            ));
        }
        let mut logit_bias = logit_bias(self.logit_bias.take(), limits)?;
        for (name, ids) in
            [("suppress_tokens", self.suppress_tokens.take()), ("banned_tokens", self.banned_tokens.take())]
        {
            for Int(id) in ids.map(|list| list.0).unwrap_or_default() {
                logit_bias.push((token_id(name, id, limits)?, LIMITS.logit_bias.low as f32));
            }
        }
        let stop_token_ids = stop_token_ids(self.stop_token_ids.take(), limits)?;
        let allowed_token_ids = allowed(self.allowed_token_ids.take(), limits)?;
        let random_seed = int("random_seed", self.random_seed)?;
        let seed = same("random_seed", random_seed, "seed", int("seed", self.seed)?)?;
        let logprob_token_ids = logprob_token_ids(self.logprob_token_ids.take(), limits)?;
        let top_k = int("top_k", self.top_k)?.map(|k| k.max(0) as f64);
        let top_k = rules.count("top_k", top_k, f64::from(defaults.top_k))?;
        let temperature = match temperature {
            low if low > 0.0 && f64::from(low) < MIN_TEMPERATURE => MIN_TEMPERATURE as f32,
            other => other,
        };
        let greedy = temperature == 0.0;
        let sampling = SamplingParams {
            temperature,
            // Greedy: what would only narrow the choice is off.
            top_p: if greedy { 1.0 } else { top_p },
            top_k: if greedy { 0 } else { top_k },
            min_p: if greedy { 0.0 } else { min_p },
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            seed: seed.map_or_else(|| fastrand::u64(..), |seed| seed as u64),
            min_tokens,
            stop_token_ids,
            logprob_token_ids,
            prompt_logprobs,
            allowed_token_ids,
            max_tokens: max_tokens.unwrap_or(u32::MAX),
            ..SamplingParams::default()
        };
        sampling.validate().map_err(|e| {
            ApiError::invalid_value(e.field, format!("{} is out of range, allowed: {}", e.value, e.allowed))
        })?;
        Ok(sampling)
    }
}

/// The operator's rules for the values that a request leaves open or asks for.
struct Rules<'a> {
    defaults: &'a SamplingDefaults,
    mode: SamplingMode,
    /// Where a rule changed what was asked for.
    applied: Vec<Applied>,
}

impl Rules<'_> {
    fn real(
        &mut self,
        field: &'static str,
        asked: &Option<Number>,
        range: Range,
        default: f32,
    ) -> Result<f32, ApiError> {
        self.value(field, real(field, asked, range)?, default)
    }

    fn value(&mut self, field: &'static str, asked: Option<f32>, default: f32) -> Result<f32, ApiError> {
        Ok(self.ruled(field, asked.map(shortest), f64::from(default))? as f32)
    }

    fn count(&mut self, field: &'static str, asked: Option<f64>, default: f64) -> Result<u32, ApiError> {
        Ok(self.ruled(field, asked, default)?.clamp(0.0, f64::from(u32::MAX)) as u32)
    }

    fn ruled(&mut self, field: &'static str, asked: Option<f64>, default: f64) -> Result<f64, ApiError> {
        Ok(self.defaults.policy.value(self.mode, field, asked, default, &mut self.applied)?)
    }
}

/// The decimal that an f32 was written as.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A token limit.
fn token_limit(name: &'static str, value: Option<i64>, least: i64) -> Result<Option<u32>, ApiError> {
    Ok(between(name, value, least, MAX_U32)?.map(|v| v as u32))
}

/// The value of a field with two names.
fn same<T: PartialEq + std::fmt::Display>(
    name: &'static str,
    value: Option<T>,
    other_name: &'static str,
    other: Option<T>,
) -> Result<Option<T>, ApiError> {
    match (value, other) {
        (Some(value), Some(other)) if value != other => Err(ApiError::invalid_value(
            name,
            format!("{value} differs from `{other_name}`, {other}; send one of them"),
        )),
        (value, other) => Ok(other.or(value)),
    }
}

/// How many alternatives to report.
pub(super) fn top_count(
    name: &'static str,
    value: Option<TopCount>,
    limits: &Limits,
) -> Result<Option<u32>, ApiError> {
    Ok(int(name, value)?.map(|v| match v {
        -1 => limits.vocab_size as u32,
        count => count as u32,
    }))
}

/// `allowed_token_ids`.
fn allowed(
    ids: Option<List<TokenId, MAX_LOGIT_BIAS>>,
    limits: &Limits,
) -> Result<Option<Arc<TokenMask>>, ApiError> {
    const NAME: &str = "allowed_token_ids";
    let Some(List(ids)) = ids else { return Ok(None) };
    if ids.is_empty() {
        return Err(ApiError::invalid_value(NAME, "the list is empty: no token could be sampled"));
    }
    let ids: Result<Vec<u32>, ApiError> = ids.into_iter().map(|Int(id)| token_id(NAME, id, limits)).collect();
    Ok(Some(Arc::new(TokenMask::of(&ids?))))
}

/// `bad_words` and its other name.
fn bad_words(
    named: [(&'static str, Option<List<String, MAX_BAD_WORDS>>); 2],
) -> Result<Vec<String>, ApiError> {
    let mut all = Vec::new();
    for (name, words) in named {
        let words = words.map(|list| list.0).unwrap_or_default();
        if let Some(at) = words.iter().position(|word| !(1..=MAX_BAD_WORD_BYTES).contains(&word.len())) {
            return Err(ApiError::invalid_value(
                name,
                format!("word {at} has {} bytes, allowed: 1 to {MAX_BAD_WORD_BYTES}", words[at].len()),
            ));
        }
        all.extend(words);
    }
    Ok(all)
}

/// `stop_regex`.
fn stop_patterns(patterns: Option<Stop>) -> Result<Option<Arc<StopPatterns>>, ApiError> {
    let Some(patterns) = patterns.map(Stop::texts).filter(|patterns| !patterns.is_empty()) else {
        return Ok(None);
    };
    let patterns = StopPatterns::new(&patterns);
    patterns
        .map(|patterns| Some(Arc::new(patterns)))
        .map_err(|error| ApiError::invalid_value("stop_regex", error.to_string()))
}

fn real(name: &'static str, value: &Option<Number>, range: Range) -> Result<Option<f32>, ApiError> {
    match value.as_ref().and_then(Number::as_f64) {
        Some(v) if !range.contains(v) => {
            Err(ApiError::invalid_value(name, format!("{v} is out of range, allowed: {range}")))
        }
        other => Ok(other.map(|v| v as f32)),
    }
}

fn logit_bias(bias: Option<LogitBias>, limits: &Limits) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(LogitBias(entries)) = bias else { return Ok(Vec::new()) };
    entries
        .into_iter()
        .map(|(key, value)| {
            let id = key.parse::<u32>().ok().filter(|&id| (id as usize) < limits.vocab_size);
            let Some(id) = id else {
                let shown: String = key.chars().take(32).collect();
                let last = limits.vocab_size.saturating_sub(1);
                return Err(ApiError::invalid_value(
                    "logit_bias",
                    format!("`{shown}` is no token id, allowed: 0 to {last}"),
                ));
            };
            if !LIMITS.logit_bias.contains(value) {
                return Err(ApiError::invalid_value(
                    "logit_bias",
                    format!("{value} for token {id} is out of range, allowed: {}", LIMITS.logit_bias),
                ));
            }
            Ok((id, value as f32))
        })
        .collect()
}

fn stop_token_ids(ids: Option<List<TokenId, MAX_STOP_IDS>>, limits: &Limits) -> Result<Vec<u32>, ApiError> {
    let ids = ids.map(|l| l.0).unwrap_or_default();
    ids.into_iter().map(|Int(id)| token_id("stop_token_ids", id, limits)).collect()
}

/// `logprob_token_ids`, ascending.
fn logprob_token_ids(
    ids: Option<List<TokenId, MAX_LOGPROB_IDS>>,
    limits: &Limits,
) -> Result<Vec<u32>, ApiError> {
    let ids = ids.map(|list| list.0).unwrap_or_default().into_iter();
    let ids: Result<Vec<u32>, ApiError> =
        ids.map(|Int(id)| token_id("logprob_token_ids", id, limits)).collect();
    let mut ids = ids?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// A token id of the vocabulary.
pub(super) fn token_id(name: &'static str, id: i64, limits: &Limits) -> Result<u32, ApiError> {
    match u32::try_from(id) {
        Ok(id) if (id as usize) < limits.vocab_size => Ok(id),
        _ => {
            let last = limits.vocab_size.saturating_sub(1);
            Err(ApiError::invalid_value(name, format!("{id} is no token id, allowed: 0 to {last}")))
        }
    }
}

/// `stop` and its other name.
fn stop_strings(stop: Option<Stop>, sequences: Option<Stop>) -> Result<Vec<String>, ApiError> {
    let (name, stop) = match (stop.map(Stop::texts), sequences.map(Stop::texts)) {
        (Some(stop), Some(sequences)) if stop != sequences => {
            return Err(ApiError::invalid_value(
                "stop",
                "given together with `stop_sequences`; use one of them",
            ));
        }
        (None, Some(sequences)) => ("stop_sequences", sequences),
        (stop, _) => ("stop", stop.unwrap_or_default()),
    };
    for (i, string) in stop.iter().enumerate() {
        if string.is_empty() {
            return Err(ApiError::invalid_value(name, format!("string {i} is empty")));
        }
        if string.len() > MAX_STOP_BYTES {
            return Err(ApiError::invalid_value(
                name,
                format!("string {i} has {} bytes, at most {MAX_STOP_BYTES} are allowed", string.len()),
            ));
        }
    }
    Ok(stop)
}

fn truncate(keep: Option<Int<-1, MAX_U32>>, side: Option<String>) -> Result<Option<Truncate>, ApiError> {
    let side = match side.as_deref() {
        None | Some("left") => TruncateSide::Left,
        Some("right") => TruncateSide::Right,
        Some(other) => {
            return Err(ApiError::unknown_value("truncation_side", other, "left, right"));
        }
    };
    match int("truncate_prompt_tokens", keep)? {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncate { keep: None, side })),
        Some(0) => Err(ApiError::invalid_value(
            "truncate_prompt_tokens",
            "0 leaves nothing, allowed: 1 or more, or -1 for what fits",
        )),
        Some(keep) => Ok(Some(Truncate { keep: Some(keep as u32), side })),
    }
}

fn cache_salt(salt: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(salt) = salt else { return Ok(None) };
    let length = salt.chars().count();
    if !(1..=128).contains(&length) {
        return Err(ApiError::invalid_value("cache_salt", format!("{length} characters, allowed: 1 to 128")));
    }
    if salt.contains(['@', '/', '\\', '\0']) {
        return Err(ApiError::invalid_value("cache_salt", "the characters @ / \\ and NUL are not allowed"));
    }
    Ok(Some(salt))
}

/// The predicted text; its length is bounded by the body's.
fn prediction(fields: PredictionFields) -> Result<String, ApiError> {
    if fields.r#type != "content" {
        return Err(ApiError::invalid_value("prediction.type", "allowed: \"content\""));
    }
    match fields.content {
        TextOr::Text(text) => Ok(text),
        TextOr::List(parts) => match parts.iter().find(|part| part.r#type != "text") {
            Some(_) => {
                Err(ApiError::invalid_value("prediction.content", "every part must be of type \"text\""))
            }
            None => Ok(parts.into_iter().map(|part| part.text).collect()),
        },
    }
}

fn request_id(id: Option<String>) -> Result<Option<String>, ApiError> {
    match id {
        Some(id) if !is_request_id(&id) => Err(ApiError::invalid_value(
            "request_id",
            "1 to 128 printable ASCII characters without spaces are allowed",
        )),
        other => Ok(other),
    }
}

/// Whether a client's own request id can be echoed in headers and logs.
pub fn is_request_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}

/// `stop`: a string or a list of strings.
pub(super) type Stop = TextOr<String, MAX_STOPS>;

impl Stop {
    fn texts(self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text],
            Self::List(texts) => texts,
        }
    }
}

/// `logit_bias`: token ids, as JSON keys, to numbers.
#[derive(Debug)]
pub(super) struct LogitBias(Vec<(String, f64)>);

inline_schema!(LogitBias, _generator => json_schema!({
    "type": "object", "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": LIMITS.logit_bias.low, "maximum": LIMITS.logit_bias.high},
}));

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = LogitBias;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids and numbers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Number>()? {
                    if entries.len() == MAX_LOGIT_BIAS {
                        return Err(serde::de::Error::custom(format_args!(
                            "more than {MAX_LOGIT_BIAS} entries"
                        )));
                    }
                    entries.push((key, value.as_f64().unwrap_or(f64::NAN)));
                }
                Ok(LogitBias(entries))
            }
        }
        deserializer.deserialize_map(V)
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;
    use crate::generate::SamplingPolicy;

    fn draft(
        body: &str,
        defaults: &SamplingDefaults,
        max_tokens: Option<u32>,
        mode: SamplingMode,
    ) -> Result<Call, ApiError> {
        let limits = Limits { vocab_size: 512, max_prompts: 8, ..Limits::default() };
        parse::<SharedBody>(body.as_bytes())?.draft(Kind::Chat, &limits, defaults, max_tokens, mode)
    }

    fn check(body: &str) -> Result<Call, ApiError> {
        draft(body, &SamplingDefaults::default(), Some(16), SamplingMode::Instant)
    }

    #[test]
    fn defaults_and_values() {
        let sampling = |body: &str| check(body).unwrap().request.sampling;
        let s = check("{}").unwrap();
        assert_eq!((s.request.n, s.stream), (1, false));
        assert_eq!((s.request.sampling.temperature, s.request.sampling.top_p), (1.0, 1.0));
        let s =
            check(r#"{"temperature": 0, "top_p": 0.5, "top_k": 3, "seed": -1, "stop": "x", "user": null}"#)
                .unwrap()
                .request;
        assert_eq!((s.sampling.top_p, s.sampling.top_k, s.sampling.seed), (1.0, 0, u64::MAX));
        assert_eq!(s.stop, ["x"]);
        assert_eq!(sampling(r#"{"temperature": 0.001}"#).temperature, 0.01);
        assert_eq!(sampling(r#"{"logit_bias": {"5": -100}}"#).logit_bias, [(5, -100.0)]);
        assert_ne!(sampling("{}").seed, sampling("{}").seed);
    }

    #[test]
    fn the_operators_policy_is_law() {
        let rules = |json: &str| serde_json::from_str(json).unwrap();
        let policy = SamplingPolicy {
            both: rules(
                r#"{"n": {"only": 1}, "top_k": {"max": 40}, "max_tokens": {"default": 9, "max": 12}}"#,
            ),
            thinking: rules(r#"{"temperature": {"only": 1}}"#),
            instant: rules(r#"{"temperature": {"pin": 0.6}}"#),
        };
        let defaults = SamplingDefaults { policy: policy.into(), ..SamplingDefaults::default() };
        let check = |body: &str, max_tokens, mode| draft(body, &defaults, max_tokens, mode);
        let open = check("{}", None, SamplingMode::Thinking).unwrap();
        let request = &open.request;
        assert_eq!((request.sampling.temperature, request.n, request.max_tokens), (1.0, 1, Some(9)));
        assert_eq!(open.format.applied, []);
        let body = r#"{"temperature": 0.7, "top_k": 100}"#;
        let asked = check(body, Some(100), SamplingMode::Instant).unwrap();
        let request = &asked.request;
        assert_eq!((request.sampling.temperature, request.sampling.top_k), (0.6, 40));
        assert_eq!(request.max_tokens, Some(12));
        let said: Vec<_> = asked.format.applied.iter().map(|a| (a.field, a.asked, a.applied)).collect();
        assert_eq!(said, [("temperature", 0.7, 0.6), ("top_k", 100.0, 40.0), ("max_tokens", 100.0, 12.0)]);
        for (body, param) in [(r#"{"temperature": 0.5}"#, "temperature"), (r#"{"n": 2}"#, "n")] {
            let error = check(body, None, SamplingMode::Thinking).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)));
            assert!(error.message.contains("only 1 is allowed for this model"), "{}", error.message);
        }
    }

    #[test]
    fn a_minimum_above_sixteen_is_taken() {
        let check = |body: &str, max_tokens| {
            draft(body, &SamplingDefaults::default(), max_tokens, SamplingMode::Instant)
        };
        for (max_tokens, fits) in [(None, true), (Some(17), true), (Some(100), true), (Some(16), false)] {
            let shared = check(r#"{"min_tokens": 17}"#, max_tokens);
            let min_tokens = shared.as_ref().map(|call| call.request.sampling.min_tokens).ok();
            assert_eq!(min_tokens, fits.then_some(17), "{shared:?}");
        }
    }

    #[test]
    fn usage_in_every_chunk_is_only_where_it_stands() {
        for (options, include, continuous) in [
            (r#"{"include_usage": false, "continuous_usage_stats": true}"#, false, false),
            (r#"{"continuous_usage_stats": true}"#, false, false),
            (r#"{"include_usage": true, "continuous_usage_stats": true}"#, true, true),
        ] {
            let s = check(&format!(r#"{{"stream": true, "stream_options": {options}}}"#)).unwrap().format;
            assert_eq!((s.include_usage, s.continuous_usage), (include, continuous), "{options}");
        }
    }

    #[test]
    fn names_of_other_servers_mean_the_same() {
        let s = check(r#"{"repeat_penalty": 1.5}"#).unwrap();
        assert_eq!(s.request.sampling.repetition_penalty, 1.5);
        let limit = |body: &str| {
            parse::<SharedBody>(body.as_bytes())?.max_tokens("max_completion_tokens", Some(7), 1)
        };
        assert_eq!(limit(r#"{"n_predict": 7}"#), Ok(Some(7)));
        assert_eq!(limit(r#"{"n_predict": -1, "max_tokens": 9}"#), Ok(Some(7)));
        assert_eq!(limit(r#"{"n_predict": 8}"#).unwrap_err().param.as_deref(), Some("n_predict"));
    }

    #[test]
    fn harmless_forms_pass() {
        for body in [
            r#"{"best_of": 1, "bad_words": [], "stop_regex": [], "stop": []}"#,
            r#"{"stop_regex": "a+", "allowed_token_ids": [0, 511], "prompt_logprobs": -1, "n": 128}"#,
        ] {
            assert!(check(body).is_ok(), "{body}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, param) in [
            (r#"{"temperature": 2.1}"#, "temperature"),
            (r#"{"top_p": 0}"#, "top_p"),
            (r#"{"top_p": 1e-60}"#, "top_p"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"n": 129}"#, "n"),
            (r#"{"allowed_token_ids": []}"#, "allowed_token_ids"),
            (r#"{"allowed_token_ids": [512]}"#, "allowed_token_ids"),
            (r#"{"logprob_token_ids": [512]}"#, "logprob_token_ids"),
            (r#"{"bad_words": [""]}"#, "bad_words"),
            (r#"{"stop_regex": "("}"#, "stop_regex"),
            (r#"{"stop_regex": "a*"}"#, "stop_regex"),
            (r#"{"prompt_logprobs": 101}"#, "prompt_logprobs"),
            (r#"{"repeat_penalty": 1.5, "repetition_penalty": 1.2}"#, "repeat_penalty"),
            (r#"{"n": 0}"#, "n"),
            (r#"{"stop": ""}"#, "stop"),
            (r#"{"stop": ["a", ""]}"#, "stop"),
            (r#"{"stop": [1]}"#, "stop[0]"),
            (r#"{"stop_token_ids": [512]}"#, "stop_token_ids"),
            (r#"{"logit_bias": {"512": 1}}"#, "logit_bias"),
            (r#"{"logit_bias": {"1": 101}}"#, "logit_bias"),
            (r#"{"logit_bias": {"1": "x"}}"#, "logit_bias"),
            (r#"{"min_tokens": 17}"#, "min_tokens"),
            (r#"{"stream_options": {}}"#, "stream_options"),
            (r#"{"stream": true, "stream_options": {"include_usage": 1}}"#, "stream_options.include_usage"),
            (r#"{"stream": true, "prompt_logprobs": 1}"#, "prompt_logprobs"),
            (r#"{"cache_salt": "a/b"}"#, "cache_salt"),
            (r#"{"cache_salt": ""}"#, "cache_salt"),
            (r#"{"request_id": "a b"}"#, "request_id"),
            (r#"{"truncate_prompt_tokens": 0}"#, "truncate_prompt_tokens"),
            (r#"{"truncation_side": "up"}"#, "truncation_side"),
            (r#"{"best_of": 2}"#, "best_of"),
        ] {
            let error = check(body).expect_err(body);
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
            assert_eq!(error.status, 400);
        }
    }
}
