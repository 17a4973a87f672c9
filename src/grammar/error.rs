//! Why a reply cannot be constrained as asked.

/// What is wrong with a grammar, or with asking for it here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The JSON Schema says something that cannot be enforced, or nothing that can be satisfied.
    #[error("the JSON Schema cannot be enforced: {0}")]
    Schema(String),
    /// The regular expression, grammar or tags are malformed or use what is not supported.
    #[error("{0}")]
    Syntax(String),
    /// Too large.
    #[error("too many {what}: at most {limit} are allowed")]
    Limit {
        /// What there is too much of, and the setting that says so.
        what: &'static str,
        /// How much there may be.
        limit: usize,
    },
    /// Compiling took too long.
    #[error(
        "the grammar was not compiled within {limit_s} s (structured_output.compile_timeout_s); make it simpler, or try again under less load"
    )]
    TooSlow {
        /// Seconds.
        limit_s: u32,
    },
    /// It was stopped from outside.
    #[error("compiling the grammar was stopped")]
    Stopped,
    /// The vocabulary lacks a token that the format needs.
    #[error("this model's vocabulary has no {0} token, which calling tools needs")]
    NoMarker(&'static str),
    /// No end of the reply was found, so that none can be promised.
    #[error(
        "no value that the schema allows was found: the shortest has at least {least} characters, and the search ended {why}"
    )]
    NoEnd {
        /// Characters that every value has.
        least: usize,
        /// Where the search ended.
        why: String,
    },
    /// The compiler failed.
    #[error("the grammar could not be compiled: {0}")]
    Internal(String),
}
