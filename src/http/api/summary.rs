//! What a request cost.

use std::sync::Arc;
use std::time::Duration;

use crate::generate::{Replies, Timeline, Usage};

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
    /// Names in the request that no reader knows, and rules of schemas that are not enforced, fit for a header.
    pub ignored_fields: Option<Arc<str>>,
    /// `request_id` of the body.
    pub request_id: Option<String>,
}

impl Summary {
    /// Replies whose times are kept.
    const MAX_TIMELINES: usize = 16;

    /// Takes counts and times of the replies so far.
    pub(super) fn count(&mut self, replies: &Replies) {
        self.usage = replies.usage();
        self.ttft = replies.time_to_first_token();
        self.timelines = replies.timelines(Self::MAX_TIMELINES);
    }
}
