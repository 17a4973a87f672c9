//! Lines of the ledger: one JSON object each.

use serde::{Deserialize, Serialize};

use super::budgets::Budgets;
use crate::api::Summary;

/// Version of the form of the lines.
pub(super) const FORMAT: u32 = 1;

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Line {
    /// The first line of a file: what the files before it come to, so that it is read without them.
    Head(Head),
    /// A request has begun.
    Open(Opened),
    /// A request has ended, however.
    End(Ended),
    /// The process ended before the request did; what it came to is not known.
    Cut(Opened),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) format: u32,
    pub(super) at: String,
    /// The number of the next request.
    pub(super) next: u64,
    /// Requests that had begun before this file and had not ended.
    pub(super) open: Vec<Opened>,
    pub(super) budgets: Budgets,
}

/// The beginning of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Opened {
    /// The number of the request in the ledger, which no other one has.
    pub(super) number: u64,
    /// UTC; of a cut request the time at which that was found.
    pub(super) at: String,
    /// `x-request-id` of its answer.
    pub(super) id: String,
    /// Absent where no keys are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<String>,
    pub(super) route: String,
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Ended {
    #[serde(flatten)]
    pub(super) opened: Opened,
    /// `request_id` of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<String>,
    pub(super) status: u16,
    /// The last reply's ending, or an error's code.
    pub(super) finish: String,
    #[serde(flatten)]
    pub(super) tokens: Tokens,
    /// From the request's head to here.
    pub(super) seconds: f64,
}

/// Tokens of a request, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tokens {
    /// Of prompts, those from the prefix cache and of images among them.
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) image_tokens: u64,
    /// Of replies, those of reasoning among them.
    pub(super) completion_tokens: u64,
    pub(super) reasoning_tokens: u64,
}

impl Tokens {
    pub(super) fn of(summary: &Summary) -> Self {
        let usage = &summary.usage;
        Self {
            prompt_tokens: usage.prompt_tokens as u64,
            cached_tokens: usage.cached_tokens as u64,
            image_tokens: usage.image_tokens as u64,
            completion_tokens: usage.completion_tokens as u64,
            reasoning_tokens: usage.reasoning_tokens as u64,
        }
    }

    /// What budgets and limits count.
    pub(super) fn total(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.image_tokens, other.image_tokens),
            (&mut self.completion_tokens, other.completion_tokens),
            (&mut self.reasoning_tokens, other.reasoning_tokens),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}
