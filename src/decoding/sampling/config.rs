//! Defaults for what requests leave open.

use super::LIMITS;
use super::rules::{GenerationOverride, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sampling values for requests that leave them open. A value set here goes before the checkpoint's; a request's own goes
/// before both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether the checkpoint's generation_config.json gives the defaults of keys that are not set here.
    pub use_generation_config: bool,
    /// Softmax temperature, 0 to 2; 0 is greedy. Larger: more varied replies.
    pub temperature: Option<f32>,
    /// Nucleus mass, above 0, at most 1. Larger: more varied replies.
    pub top_p: Option<f32>,
    /// Number of most likely tokens kept, 0 = all. Larger: more varied replies.
    pub top_k: Option<u32>,
    /// Share of the best token's probability that a token needs, 0 to 1. Larger: less varied replies.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen in prompt or reply, above 0, at most 10; 1 is off. Larger: fewer repetitions, also honest
    /// ones.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logits of tokens in the reply, -2 to 2. Larger: fewer repetitions, also honest ones.
    pub presence_penalty: Option<f32>,
    /// Subtracted per occurrence from the logits of tokens in the reply, -2 to 2. Larger: fewer repetitions, also honest ones.
    pub frequency_penalty: Option<f32>,
    /// Most reply tokens; not set = what the model's length leaves. Larger: longer replies hold their KV blocks longer.
    pub max_tokens: Option<u32>,
    /// Values in the form of vLLM's --override-generation-config (temperature, top_p, top_k, min_p, repetition_penalty,
    /// presence_penalty, frequency_penalty, max_new_tokens), as JSON in a string or as a table. They go before the checkpoint's file and
    /// behind the keys above.
    pub override_generation_config: Option<GenerationOverride>,
    /// What requests may ask for, by field (the ones above, and n): policy.FIELD has default, pin (in place of whatever is asked), only
    /// (a value or a list; anything else is refused, the first is the default), min and max with outside = "clamp" or "reject". A table, or JSON in a string.
    pub policy: Option<Rules>,
    /// The same for requests with thinking; a field here goes before the one in policy.
    pub thinking: Option<Rules>,
    /// The same for requests without thinking.
    pub instant: Option<Rules>,
    /// Whether a request that does not say thinks; not set = as the model's family does. Decides which of the rules above apply.
    pub assume_thinking: Option<bool>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            use_generation_config: true,
            temperature: None,
            top_p: None,
            top_k: None,
            min_p: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            max_tokens: None,
            override_generation_config: None,
            policy: None,
            thinking: None,
            instant: None,
            assume_thinking: None,
        }
    }
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (key, value, range) in [
            ("temperature", self.temperature, LIMITS.temperature),
            ("min_p", self.min_p, LIMITS.min_p),
            ("presence_penalty", self.presence_penalty, LIMITS.presence_penalty),
            ("frequency_penalty", self.frequency_penalty, LIMITS.frequency_penalty),
            ("top_p", self.top_p, LIMITS.top_p),
            ("repetition_penalty", self.repetition_penalty, LIMITS.repetition_penalty),
        ] {
            if value.is_some_and(|v| !range.contains(v.into())) {
                problems.push((key, format!("must be {}", range.bounds())));
            }
        }
        for (key, rules) in
            [("policy", &self.policy), ("thinking", &self.thinking), ("instant", &self.instant)]
        {
            problems.extend(rules.as_ref().and_then(Rules::problem).map(|problem| (key, problem)));
        }
        let given = self.override_generation_config.as_ref();
        problems.extend(given.and_then(|o| o.problem()).map(|p| ("override_generation_config", p)));
        if self.max_tokens == Some(0) {
            problems.push(("max_tokens", "must be at least 1".into()));
        }
        problems
    }
}
