//! Settings of speculation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Drafts of reply tokens that the model checks several at a time. They change the speed of a reply, never its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Source of drafts: "off"; "ngram" = what followed the latest like place in the request's own prompt and reply; "suffix" = what
    /// followed most often, there or in finished replies with the same cache salt; "auto" = suffix.
    pub method: Method,
    /// Most drafted tokens of a sequence in a step. Larger: faster copies of long passages, more workspace.
    pub max_tokens: usize,
    /// Whether drafts are shortened, down to nothing, where the measured cost of their rows exceeds what they are likely to save. If not,
    /// every draft is checked whole.
    pub adaptive: bool,
    /// Tokens that must be equal before a passage is taken for a like place. Larger: fewer and better drafts.
    pub min_match: usize,
    /// Tokens of finished replies kept for method "suffix", 0 = none; about 24 bytes each. Larger: drafts from longer ago.
    pub reply_tokens: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { method: Method::Auto, max_tokens: 8, adaptive: true, min_match: 1, reply_tokens: 1 << 20 }
    }
}

/// Source of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The best of those that need no checkpoint: `Suffix`.
    Auto,
    /// None.
    Off,
    /// What followed the latest like place in the sequence itself (prompt lookup).
    Ngram,
    /// What followed most often, in the sequence or in finished replies (arXiv 2411.04975).
    Suffix,
}

impl Config {
    /// Largest `max_tokens`.
    pub const MAX_TOKENS: usize = 64;

    /// No drafts.
    pub fn off() -> Self {
        Self { method: Method::Off, ..Self::default() }
    }

    /// Whether anything is drafted.
    pub fn is_on(&self) -> bool {
        self.method != Method::Off
    }

    /// Whether drafts follow the likeliest continuation of several places, finished replies
    /// included.
    pub fn votes(&self) -> bool {
        matches!(self.method, Method::Auto | Method::Suffix)
    }

    /// Rows of a sequence in a step that checks the longest draft.
    pub fn max_rows(&self) -> usize {
        if self.is_on() { 1 + self.max_tokens } else { 1 }
    }

    /// Keys outside their limits, with the limit.
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (key, value, low, high) in [
            ("max_tokens", self.max_tokens, 1, Self::MAX_TOKENS),
            ("min_match", self.min_match, 1, super::Occurrences::MAX_MATCH),
            ("reply_tokens", self.reply_tokens, 0, 1 << 30),
        ] {
            if !(low..=high).contains(&value) {
                problems.push((key, format!("must be from {low} to {high}")));
            }
        }
        problems
    }
}
