//! Settings of speculation.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Drafts of reply tokens that the model checks several at a time. They change the speed of a reply, never its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Source of drafts: "off"; "ngram" = what followed the latest like place in the request's own prompt and reply; "suffix" = what
    /// followed most often, there or in finished replies with the same cache salt; "eagle3" = the draft model of `speculation.draft`;
    /// "mtp" = the checkpoint's own prediction layer (`num_nextn_predict_layers`); "auto" = suffix, and the draft model or prediction layer
    /// where there is one, for each sequence whichever is likely to hold longer.
    pub method: Method,
    /// Folder of an Eagle3 draft model that was trained for this model; methods "auto" and "eagle3". `perigee inspect` says what it fits.
    /// Unset: the embedded model has its own, other models have none.
    pub draft: Option<PathBuf>,
    /// Base of the draft model's rotary frequencies, 0 = as its config.json says. Some drafts were trained with another base than the
    /// one they are published with; compare acceptance.
    pub rope_theta: f64,
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
        Self {
            method: Method::Auto,
            draft: None,
            rope_theta: 0.0,
            max_tokens: 8,
            adaptive: true,
            min_match: 1,
            reply_tokens: 1 << 20,
        }
    }
}

/// Source of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// `Suffix`, and `Eagle3` or `Mtp` where there is such a draft.
    Auto,
    /// None.
    Off,
    /// What followed the latest like place in the sequence itself (prompt lookup).
    Ngram,
    /// What followed most often, in the sequence or in finished replies (arXiv 2411.04975).
    Suffix,
    /// A draft model alone (arXiv 2503.01840).
    Eagle3,
    /// The checkpoint's multi-token prediction layer alone (arXiv 2412.19437, section 2.2).
    Mtp,
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

    /// Whether drafts follow like places in texts.
    pub fn follows_text(&self) -> bool {
        self.votes() || self.method == Method::Ngram
    }

    /// Whether a draft model runs, where there is one.
    pub fn asks_model(&self) -> bool {
        matches!(self.method, Method::Auto | Method::Eagle3 | Method::Mtp)
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
        if !(self.rope_theta == 0.0 || self.rope_theta.is_finite() && self.rope_theta > 1.0) {
            problems.push(("rope_theta", "must be above 1, or 0 for the draft's own".into()));
        }
        problems
    }
}
