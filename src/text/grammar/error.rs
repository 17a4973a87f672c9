//! Reasons why a reply cannot be constrained as requested.

/// A fault of a grammar, or of the request for one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The JSON Schema contains a rule that cannot be enforced, or allows no value.
    #[error("the JSON Schema cannot be enforced: {0}")]
    Schema(String),
    /// The regular expression, grammar or tags are malformed or use an unsupported feature.
    #[error("{0}")]
    Syntax(String),
    /// The schema of a tool's arguments is refused.
    #[error("the tool `{name}`: {reason}")]
    Tool {
        /// Name of the tool.
        name: String,
        /// The reason for the refusal.
        reason: Box<GrammarError>,
    },
    /// A part of the grammar exceeds its limit.
    #[error("too many {what}: at most {limit} are allowed")]
    Limit {
        /// The counted part, and the setting with its limit.
        what: &'static str,
        /// Most that are allowed.
        limit: usize,
    },
    /// Compiling took too long.
    #[error(
        "the grammar was not compiled within {limit_s} s (structured_output.compile_timeout_s); make it simpler"
    )]
    TooSlow {
        /// `structured_output.compile_timeout_s`, seconds.
        limit_s: u32,
    },
    /// The compilation was stopped from outside.
    #[error("compiling the grammar was stopped")]
    Stopped,
    /// The vocabulary lacks a token that the format needs.
    #[error("this model's vocabulary has no {0} token, which calling tools needs")]
    NoMarker(&'static str),
    /// No end of the reply was found, so that no end can be promised.
    #[error(
        "no value that the schema allows was found: the shortest has at least {least} characters, and the search ended {why}"
    )]
    NoEnd {
        /// Lower bound on the characters of every value.
        least: usize,
        /// The bound at which the search ended.
        why: String,
    },
    /// The compiler failed.
    #[error("the grammar could not be compiled: {0}")]
    Internal(String),
}

impl GrammarError {
    /// Whether the request's own grammar is refused, rather than every grammar at this moment.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Schema(_)
            | Self::Syntax(_)
            | Self::Tool { .. }
            | Self::Limit { .. }
            | Self::NoEnd { .. } => true,
            Self::TooSlow { .. } | Self::Stopped | Self::NoMarker(_) | Self::Internal(_) => false,
        }
    }

    /// The refusal of the schema of this tool.
    pub(super) fn of_tool(self, name: &str) -> Self {
        Self::Tool { name: name.to_owned(), reason: Box::new(self) }
    }
}
