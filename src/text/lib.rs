//! Strings to token ids and back: tokenizer, chat template, incremental detokenizer, stop strings,
//! reply parser, and grammars for structured output.
//!
//! Knows no compute, no engine and no HTTP. The types that follow a growing reply (`Detokenizer`,
//! `StopMatcher`, `ReplyParser`) can be restored to an earlier state, so that a rewound reply
//! continues exactly as one that never had the discarded tokens. Each folder names only
//! folders above it in the list below.

#![forbid(unsafe_code)]

pub mod markers;
mod tokenizer;
mod reply;
mod template;
#[cfg(test)]
mod test_data;
pub mod grammar;

pub use reply::{
    ArgumentsForm, MAX_STOP_BYTES, MAX_STOP_PATTERN_BYTES, MAX_STOP_PATTERNS, MAX_STOP_STRINGS, PatternError,
    PatternMatcher, ReplyEnd, ReplyFormat, ReplyParser, ReplyPiece, ReplyStart, StopError, StopMatch,
    StopMatcher, StopOptions, StopPatterns, ToolCall, WholeReply, whole_reply,
};
pub use template::{ChatTemplate, Family, RenderOptions, RenderedPrompt, TemplateError, family_of};
pub use template::{civil, days_from_civil};
pub use tokenizer::{Detokenizer, Specials, Tokenizer, TokenizerError};
