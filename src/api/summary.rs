//! What a request cost.

use std::sync::Arc;
use std::time::Duration;

use crate::generate::{Timeline, Usage};

/// What a request cost, for its log line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Token counts.
    pub usage: Usage,
    /// From the walk's start to the first token.
    pub ttft: Option<Duration>,
    /// The last reply's ending, or an error's code; empty while none has ended.
    pub finish: &'static str,
    /// Events of the guard in all choices of a whole answer; `None` where nothing was generated.
    pub guard_events: Option<usize>,
    /// When things happened to the replies, the first 16 of them.
    pub timelines: Vec<Timeline>,
    /// Names in the request that no reader knows, fit for a header.
    pub ignored_fields: Option<Arc<str>>,
}

impl Summary {
    /// Replies whose times are kept.
    pub(super) const MAX_TIMELINES: usize = 16;

    /// The summary of a request that only asked for its tokens.
    pub(super) fn counted(prompt_tokens: usize, ignored_fields: Option<Arc<str>>) -> Self {
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Self { usage, ignored_fields, ..Self::default() }
    }
}
