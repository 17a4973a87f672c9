//! Structured output: schemas, regular expressions, grammars, choices, tags and tool calls become
//! constraints on tokens.
//!
//! llguidance parses. This module adds the vocabulary of requests, the family's tool-call markers
//! as tokens, and the guarantee that a reply reaches its end within its budget. Compiling takes
//! milliseconds, is bounded, and never runs on the engine's thread. Knows text and the constraint
//! trait of `sampling`; knows no engine and no wire format.

mod budget;
mod closing;
mod compiled;
mod compiler;
pub mod config;
mod error;
mod expansion;
mod gbnf;
mod json_place;
mod least;
mod matcher;
mod notation;
mod parser;
mod pattern;
mod schema;
mod source;
mod spec;
mod structural_tag;
mod tool_choice;
mod vocabulary;
#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod suite_tests;
#[cfg(test)]
mod tests;

pub use compiled::Grammar;
pub use compiler::Grammars;
pub use config::Config;
pub use error::GrammarError;
pub use schema::JsonStyle;
pub use spec::{AnswerFormat, GrammarSpec, Reasoning};
pub use structural_tag::{StructuralFormat, StructuralTag, StructuralTags};
pub use tool_choice::{ToolCalls, ToolFunction, ToolMode};
