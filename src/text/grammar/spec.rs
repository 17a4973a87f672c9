//! The constraint on a reply, as a request states it.

use serde_json::Value;

use super::{Grammar, JsonStyle, StructuralTags, ToolCalls};

/// A constraint on a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct GrammarSpec {
    /// Format of the answer.
    pub format: AnswerFormat,
    /// The request field behind the constraint, for messages.
    pub field: &'static str,
}

impl GrammarSpec {
    /// Places of the rules that the grammar of this constraint does not enforce: the request field,
    /// the tool and the keywords, joined by dots.
    pub fn not_enforced(&self, grammar: &Grammar) -> Vec<String> {
        let field = match self.format {
            AnswerFormat::Tools(_) => "tools",
            _ => self.field,
        };
        grammar.advice().iter().map(|place| format!("{field}.{place}")).collect()
    }
}

/// Format of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerFormat {
    /// A JSON value that the schema allows.
    Json {
        /// A JSON Schema.
        schema: Value,
        /// Notation of the JSON.
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
    /// Whether the whole answer is structured, without free text.
    pub fn is_structure(&self) -> bool {
        match self {
            Self::Json { .. } | Self::Regex(_) | Self::Choice(_) | Self::Grammar(_) => true,
            Self::Tags(_) => false,
            Self::Tools(calls) => calls.is_forced(),
        }
    }
}

/// The part of a reply before the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// None: the answer begins at once.
    #[default]
    None,
    /// The prompt ends inside a thought: the answer begins after its end marker.
    Open,
    /// The model may open a thought itself.
    Possible,
}
