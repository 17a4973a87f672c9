//! What requests with a grammar may cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds on replies that must be what a schema, a grammar or a tool says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether the calls of a request whose tools are not `strict` must have arguments that are JSON objects, from a call's first token on.
    /// On: no call has to be mended; such a request has a grammar, with its bounds, waits and masks.
    pub json_arguments: bool,
    /// Longest time a request's grammar may take to be compiled, and longest wait for its turn before, seconds, 1 to 600. Larger: more
    /// elaborate schemas, fewer and later refusals under load.
    pub compile_timeout_s: u32,
    /// Grammars compiled at once, 1 to 64. Larger: less waiting, more cores taken from the model while they are compiled.
    pub max_compiling: u32,
    /// Memory of the compiled grammars that are kept for the next request that asks for the same,
    /// bytes, 0 keeps none. What a grammar holds is counted when it is compiled. Larger: fewer
    /// compilations.
    pub cache_bytes: u64,
    /// Most memory of one grammar while it is compiled, and of the parser of one reply, bytes, 1
    /// MiB to 16 GiB. What takes more is refused; a reply whose parser grows beyond goes to its end
    /// on the way that is known. Larger: more elaborate grammars, more memory in the hands of a
    /// request.
    pub max_grammar_bytes: u64,
    /// Most memory of the parsers of all running replies, bytes. Above it a reply whose parser
    /// grows beyond 4 MiB goes to its end on the way that is known. Larger: more elaborate grammars
    /// at once.
    pub max_replies_bytes: u64,
    /// Most states of one grammar's lexer, 1000 to 1000000; one takes 1 to 2 kB. Larger: longer patterns, larger counts in them, more memory
    /// in the hands of a request.
    pub max_lexer_states: u32,
    /// Work that reading one grammar's patterns may take, 10000 to 100000000; 50000 are about a millisecond. Larger: more and longer
    /// patterns, enumerations and limits on lengths, slower compilations.
    pub max_lexer_work: u32,
    /// Work that one token of a reply may take in the grammar's patterns, 10000 to 100000000; 14000 are about a millisecond. Larger: limits on
    /// lengths in the thousands, longer waits of the reply that has them.
    pub max_step_work: u32,
    /// Most symbols of one grammar, 1000 to 10000000; 500000 are a few megabytes of JSON Schema. Larger: larger schemas, more memory in
    /// the hands of a request.
    pub max_grammar_size: u32,
    /// Most values (of any kind, on all levels) in one JSON Schema, 100 to 1000000. Larger: larger schemas and enumerations, slower
    /// compilations.
    pub max_schema_values: u32,
    /// Most bytes of all JSON Schemas of a request as text, 1024 to 67108864. Larger: larger
    /// schemas and more of them, slower compilations.
    pub max_schema_bytes: u32,
    /// Most bytes of a regular expression, a grammar, or all texts of a choice, 1024 to 16777216. Larger: larger ones, slower compilations.
    pub max_source_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            json_arguments: false,
            compile_timeout_s: 10,
            max_compiling: 2,
            cache_bytes: 16 << 20,
            max_grammar_bytes: 64 << 20,
            max_replies_bytes: 256 << 20,
            max_lexer_states: 30_000,
            max_lexer_work: 1_000_000,
            max_step_work: 200_000,
            max_grammar_size: 500_000,
            max_schema_values: 20_000,
            max_schema_bytes: 2 << 20,
            max_source_bytes: 256 * 1024,
        }
    }
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let bounds = [
            ("compile_timeout_s", self.compile_timeout_s, 1, 600),
            ("max_compiling", self.max_compiling, 1, 64),
            ("max_lexer_states", self.max_lexer_states, 1000, 1_000_000),
            ("max_lexer_work", self.max_lexer_work, 10_000, 100_000_000),
            ("max_step_work", self.max_step_work, 10_000, 100_000_000),
            ("max_grammar_size", self.max_grammar_size, 1000, 10_000_000),
            ("max_schema_values", self.max_schema_values, 100, 1_000_000),
            ("max_schema_bytes", self.max_schema_bytes, 1024, 64 << 20),
            ("max_source_bytes", self.max_source_bytes, 1024, 16 << 20),
        ];
        let outside = bounds.into_iter().filter(|(_, value, low, high)| !(low..=high).contains(&value));
        let mut problems: Vec<_> =
            outside.map(|(key, _, low, high)| (key, format!("must be from {low} to {high}"))).collect();
        if !(1 << 20..=16 << 30).contains(&self.max_grammar_bytes) {
            problems.push(("max_grammar_bytes", "must be from 1 MiB to 16 GiB".into()));
        }
        problems
    }
}
