//! Defaults for what requests leave open.

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
        }
    }
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (key, value, low, high) in [
            ("temperature", self.temperature, 0.0, 2.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
        ] {
            if value.is_some_and(|v| !(low..=high).contains(&v)) {
                problems.push((key, format!("must be from {low} to {high}")));
            }
        }
        for (key, value, high) in
            [("top_p", self.top_p, 1.0), ("repetition_penalty", self.repetition_penalty, 10.0)]
        {
            if value.is_some_and(|v| !(v > 0.0 && v <= high)) {
                problems.push((key, format!("must be above 0, at most {high}")));
            }
        }
        if self.max_tokens == Some(0) {
            problems.push(("max_tokens", "must be at least 1".into()));
        }
        problems
    }
}
