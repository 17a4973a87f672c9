//! Strings to token ids and back: tokenizer, chat template, incremental detokenizer, stop strings, reply parser.
//!
//! Knows no compute, no engine and no HTTP. Everything that follows a reply as it grows (`Detokenizer`, `StopMatcher`,
//! `ReplyParser`) can be taken back to an earlier state, so that a rewound reply continues as if it had never gone further.

pub mod markers;
mod added_tokens;
mod slicer;
mod tiktoken;
mod char_classes;
mod kimi_split;
mod bpe;
mod tokenizer;
mod detokenizer;
mod stop;
mod stop_regex;
mod builtin_templates;
mod jinja;
mod sentinel;
mod tool_declaration;
mod call_ids;
mod reply_parser;
mod chat_template;
#[cfg(test)]
mod test_data;

pub use chat_template::{
    ChatTemplate, Family, PromptPart, RenderOptions, RenderedPrompt, TemplateError, family_of,
};
pub use detokenizer::Detokenizer;
pub use reply_parser::{
    ReplyEnd, ReplyFormat, ReplyParser, ReplyPiece, ReplyStart, ToolCall, WholeReply, whole_reply,
};
pub use stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS, StopError, StopMatch, StopMatcher, StopOptions};
pub use stop_regex::{MAX_STOP_PATTERN_BYTES, MAX_STOP_PATTERNS, PatternError, PatternMatcher, StopPatterns};
pub use tokenizer::{Specials, Tokenizer, TokenizerError};
