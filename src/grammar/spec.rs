//! What a reply must be, as a request says it.

use serde_json::Value;

use super::{JsonStyle, StructuralTags, ToolCalls};

/// A constraint on a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct GrammarSpec {
    /// What the answer must be.
    pub format: AnswerFormat,
    /// What may come before the answer.
    pub reasoning: Reasoning,
    /// The request's field that asked for it, for messages.
    pub field: &'static str,
}

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerFormat {
    /// A JSON value that the schema allows.
    Json {
        /// A JSON Schema.
        schema: Value,
        /// How it may be written.
        style: JsonStyle,
    },
    /// Text that the regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of a grammar, in Lark's syntax with a rule `start`, or in GBNF with a rule `root`.
    Grammar(String),
    /// Free text with tags in it.
    Tags(StructuralTags),
    /// Calls of tools, in the family's markers.
    Tools(ToolCalls),
}

impl AnswerFormat {
    /// Whether all of the answer is structure, with no free text in it.
    pub fn is_structure(&self) -> bool {
        match self {
            Self::Json { .. } | Self::Regex(_) | Self::Choice(_) | Self::Grammar(_) => true,
            Self::Tags(_) => false,
            Self::Tools(calls) => calls.is_forced(),
        }
    }
}

/// What a reply may begin with before the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// Nothing: the answer begins at once.
    #[default]
    None,
    /// The prompt ends inside a thought: the answer begins after its end marker.
    Open,
    /// The model may open a thought itself.
    Possible,
}
