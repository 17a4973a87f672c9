//! From the text of a reply to its parts: reasoning, answer and tool calls; stop strings and stop patterns.

pub(super) mod call_ids;
mod calls;
mod declared_tool;
mod format;
mod mend;
mod parser;
mod piece;
mod stop;
mod stop_regex;
mod unquote;

pub use calls::ToolCall;
pub use format::ReplyFormat;
pub use mend::ArgumentsForm;
pub use parser::{ReplyEnd, ReplyParser, ReplyStart, whole_reply};
pub use piece::{ReplyPiece, WholeReply};
pub use stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS, StopError, StopMatch, StopMatcher, StopOptions};
pub use stop_regex::{MAX_STOP_PATTERN_BYTES, MAX_STOP_PATTERNS, PatternError, PatternMatcher, StopPatterns};
