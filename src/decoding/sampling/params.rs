//! Validated sampling parameters of a request.

use std::fmt;
use std::sync::Arc;

use super::{BadWords, BlockRule, Draw, History, TokenMask};

/// Validated sampling parameters of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass, in (0, 1].
    pub top_p: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keep tokens with probability at least `min_p` times the best one's, in [0, 1].
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or reply; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token in the reply.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logit of every token in the reply.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, -100..100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws: draw `i` of a reply depends on (seed, position) alone.
    pub seed: u64,
    /// Most reply tokens; at least 1 (0 only with prompt logprobs or echo).
    pub max_tokens: u32,
    /// Stop tokens are forbidden before this many reply tokens.
    pub min_tokens: u32,
    /// Token ids that end the reply (end-of-turn tokens unless `ignore_eos`, and the request's own).
    pub stop_token_ids: Vec<u32>,
    /// Number of most likely tokens reported per reply token, the whole row at most: `None` reports nothing, `Some(0)` the chosen token's
    /// logprob only.
    pub logprobs: Option<u32>,
    /// Ids that are reported beside the most likely ones, ascending; only where `logprobs` is set.
    pub logprob_token_ids: Vec<u32>,
    /// As `logprobs`, for prompt tokens.
    pub prompt_logprobs: Option<u32>,
    /// Rule that ends the reply's reasoning in time; `None` = no rule.
    pub block_rule: Option<Arc<BlockRule>>,
    /// Ids that may be sampled, at least one; `None` = all. Excludes any other constraint.
    pub allowed_token_ids: Option<Arc<TokenMask>>,
    /// Token sequences that must not occur in the reply. A grammar that allows no other token takes
    /// precedence.
    pub bad_words: Option<Arc<BadWords>>,
}

impl Default for SamplingParams {
    /// Sampling at temperature 1, sixteen tokens, no stop token.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            max_tokens: 16,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            logprobs: None,
            logprob_token_ids: Vec::new(),
            prompt_logprobs: None,
            block_rule: None,
            allowed_token_ids: None,
            bad_words: None,
        }
    }
}

/// The range of a sampling field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// Least value, or the bound below it.
    pub low: f64,
    /// Greatest value.
    pub high: f64,
    /// `low` itself is outside.
    pub above: bool,
}

impl Range {
    pub(super) const fn from_to(low: f64, high: f64) -> Self {
        Self { low, high, above: false }
    }

    const fn above_zero(high: f64) -> Self {
        Self { low: 0.0, high, above: true }
    }

    /// Whether a value is inside, also after rounding to f32; a NaN never is.
    pub fn contains(&self, value: f64) -> bool {
        let low = if self.above { value as f32 > self.low as f32 } else { value >= self.low };
        low && value <= self.high
    }

    /// `from 0 to 2`, or `above 0, at most 1`: what stands behind "must be".
    pub(super) fn bounds(&self) -> String {
        format!("{}{self}", if self.above { "" } else { "from " })
    }
}

/// `0 to 2`, or `above 0, at most 1`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.above {
            true => write!(f, "above {}, at most {}", self.low, self.high),
            false => write!(f, "{} to {}", self.low, self.high),
        }
    }
}

/// The range of every sampling field that is a real number.
#[derive(Debug)]
pub struct Limits {
    /// Softmax temperature.
    pub temperature: Range,
    /// Nucleus mass.
    pub top_p: Range,
    /// Share of the best token's probability.
    pub min_p: Range,
    /// Divisor of logits.
    pub repetition_penalty: Range,
    /// Subtracted once per token.
    pub presence_penalty: Range,
    /// Subtracted per occurrence.
    pub frequency_penalty: Range,
    /// Added to the logit of one token.
    pub logit_bias: Range,
}

/// The ranges that requests, settings, checkpoints and the OpenAPI document share.
pub const LIMITS: Limits = Limits {
    temperature: Range::from_to(0.0, 2.0),
    top_p: Range::above_zero(1.0),
    min_p: Range::from_to(0.0, 1.0),
    repetition_penalty: Range::above_zero(10.0),
    presence_penalty: Range::from_to(-2.0, 2.0),
    frequency_penalty: Range::from_to(-2.0, 2.0),
    logit_bias: Range::from_to(-100.0, 100.0),
};

/// Most entries of `logit_bias`: above the vocabulary of every model of the family.
pub const MAX_LOGIT_BIAS: usize = 262_144;

impl SamplingParams {
    /// Checks every field against its range. Errors: the first field outside its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        for (field, value, range) in [
            ("temperature", self.temperature, LIMITS.temperature),
            ("top_p", self.top_p, LIMITS.top_p),
            ("min_p", self.min_p, LIMITS.min_p),
            ("repetition_penalty", self.repetition_penalty, LIMITS.repetition_penalty),
            ("presence_penalty", self.presence_penalty, LIMITS.presence_penalty),
            ("frequency_penalty", self.frequency_penalty, LIMITS.frequency_penalty),
        ] {
            check(range.contains(value.into()), field, || (value.to_string(), range.to_string()))?;
        }
        let entries = self.logit_bias.len();
        check(entries <= MAX_LOGIT_BIAS, "logit_bias", || {
            (format!("{entries} entries"), format!("at most {MAX_LOGIT_BIAS} entries"))
        })?;
        for &(token, bias) in &self.logit_bias {
            check(LIMITS.logit_bias.contains(bias.into()), "logit_bias", || {
                (format!("{bias} for token {token}"), LIMITS.logit_bias.to_string())
            })?;
        }
        check(self.min_tokens <= self.max_tokens, "min_tokens", || {
            (self.min_tokens.to_string(), format!("at most max_tokens, {}", self.max_tokens))
        })
    }

    /// The draw of the reply token at `position`, without a mask.
    pub fn draw<'a>(&'a self, history: &'a History, position: u64, forbidden: &'a [u32]) -> Draw<'a> {
        Draw {
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            top_k: self.top_k,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            position,
            logit_bias: &self.logit_bias,
            forbidden,
            history,
            mask: None,
        }
    }

    /// Whether a penalty is on and the sequence must keep a `History`.
    pub fn uses_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// A sampling parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field}: {value} is out of range, allowed: {allowed}")]
pub struct SamplingError {
    /// Name of the request field.
    pub field: &'static str,
    /// Given value.
    pub value: String,
    /// Allowed values.
    pub allowed: String,
}

fn check(
    holds: bool,
    field: &'static str,
    value_and_allowed: impl FnOnce() -> (String, String),
) -> Result<(), SamplingError> {
    if holds {
        return Ok(());
    }
    let (value, allowed) = value_and_allowed();
    Err(SamplingError { field, value, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_range() {
        let good = SamplingParams::default();
        let edges = SamplingParams {
            temperature: 2.0,
            top_p: 1.0,
            top_k: u32::MAX,
            min_p: 1.0,
            repetition_penalty: 10.0,
            presence_penalty: -2.0,
            frequency_penalty: 2.0,
            logit_bias: vec![(7, -100.0); MAX_LOGIT_BIAS],
            max_tokens: 5,
            min_tokens: 5,
            logprobs: Some(u32::MAX),
            prompt_logprobs: Some(0),
            ..good.clone()
        };
        assert_eq!((good.validate(), edges.validate()), (Ok(()), Ok(())));
        type Spoil = fn(&mut SamplingParams);
        let bad: &[(&str, Spoil)] = &[
            ("temperature: 2.1 is out of range, allowed: 0 to 2", |p| p.temperature = 2.1),
            ("temperature: -0.1", |p| p.temperature = -0.1),
            ("temperature: NaN", |p| p.temperature = f32::NAN),
            ("top_p: 0 is out of range, allowed: above 0, at most 1", |p| p.top_p = 0.0),
            ("top_p: 1.01", |p| p.top_p = 1.01),
            ("top_p: NaN", |p| p.top_p = f32::NAN),
            ("min_p: -1", |p| p.min_p = -1.0),
            ("min_p: NaN", |p| p.min_p = f32::NAN),
            ("repetition_penalty: 0 ", |p| p.repetition_penalty = 0.0),
            ("repetition_penalty: inf", |p| p.repetition_penalty = f32::INFINITY),
            ("presence_penalty: 2.5", |p| p.presence_penalty = 2.5),
            ("frequency_penalty: -2.5", |p| p.frequency_penalty = -2.5),
            ("frequency_penalty: NaN", |p| p.frequency_penalty = f32::NAN),
            ("logit_bias: 101 for token 3", |p| p.logit_bias = vec![(3, 101.0)]),
            ("logit_bias: NaN for token 3", |p| p.logit_bias = vec![(3, f32::NAN)]),
            ("logit_bias: 262145 entries is out of range, allowed: at most 262144 entries", |p| {
                p.logit_bias = vec![(0, 0.0); MAX_LOGIT_BIAS + 1];
            }),
            ("min_tokens: 17 is out of range, allowed: at most max_tokens, 16", |p| p.min_tokens = 17),
        ];
        for (message, spoil) in bad {
            let mut params = SamplingParams::default();
            spoil(&mut params);
            let error = params.validate().unwrap_err().to_string();
            assert!(error.starts_with(message), "{error} does not start with {message}");
        }
    }
}
