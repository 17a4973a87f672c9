//! Structured output: schemas, regular expressions, grammars, choices, tags and tool calls become constraints on tokens.
//!
//! The parsing is llguidance's. What is ours: the words of requests, the family's tool-call markers as tokens, and that a reply always gets
//! to its end within its budget. Compiling takes milliseconds and is bounded; it never happens on the engine's thread. Knows text and
//! the constraint trait of `sampling`; knows no engine and no wire format.

mod budget;
mod closing;
mod compiler;
pub mod config;
mod error;
mod expansion;
mod gbnf;
mod json_place;
mod least;
mod matcher;
mod schema;
mod source;
mod spec;
mod structural_tag;
mod tool_choice;
mod vocabulary;
#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;

pub use compiler::{Grammar, Grammars};
pub use config::Config;
pub use error::GrammarError;
pub use schema::JsonStyle;
pub use spec::{AnswerFormat, GrammarSpec, Reasoning};
pub use structural_tag::{StructuralTag, StructuralTags};
pub use tool_choice::{ToolCalls, ToolFunction, ToolMode};
