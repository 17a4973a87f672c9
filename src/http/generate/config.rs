//! Settings of the reasoning split.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Under which names reasoning leaves the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningField {
    /// `reasoning_content` and `reasoning`: every client finds it.
    #[default]
    Both,
    /// `reasoning_content` alone.
    ReasoningContent,
    /// `reasoning` alone.
    Reasoning,
}

/// Reasoning of models that think before they answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Most reasoning tokens of a request that names no budget; not set = no limit. When they are used up the reasoning is
    /// closed and the answer begins. Larger: better answers to hard questions, later first words.
    pub budget_tokens: Option<u32>,
    /// Most reasoning tokens of any request, whatever it asks for; not set = no limit. Larger: single requests may hold their
    /// KV blocks longer.
    pub max_budget_tokens: Option<u32>,
    /// Names under which reasoning is given: both, reasoning_content or reasoning. Both costs its bytes twice.
    pub field: ReasoningField,
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        match (self.budget_tokens, self.max_budget_tokens) {
            (Some(budget), Some(most)) if budget > most => {
                vec![("budget_tokens", format!("must be at most max_budget_tokens, {most}"))]
            }
            _ => Vec::new(),
        }
    }

    /// The budget of a request: its own or the default, capped by the operator's limit.
    pub fn budget(&self, asked: Option<Budget>) -> Option<u32> {
        let budget = match asked {
            None => self.budget_tokens,
            Some(Budget::Unlimited) => None,
            Some(Budget::Tokens(tokens)) => Some(tokens),
        };
        match (budget, self.max_budget_tokens) {
            (Some(budget), Some(most)) => Some(budget.min(most)),
            (budget, most) => budget.or(most),
        }
    }
}

/// The reasoning budget that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// No limit of the request's own.
    Unlimited,
    /// At most this many tokens.
    Tokens(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_limit_is_above_all() {
        let config = |budget_tokens, max_budget_tokens| Config {
            budget_tokens,
            max_budget_tokens,
            ..Config::default()
        };
        let some = |tokens| Some(Budget::Tokens(tokens));
        for (config, asked, expected) in [
            (config(None, None), None, None),
            (config(None, None), some(5), Some(5)),
            (config(Some(9), None), None, Some(9)),
            (config(Some(9), None), some(20), Some(20)),
            (config(Some(9), None), Some(Budget::Unlimited), None),
            (config(None, Some(9)), None, Some(9)),
            (config(None, Some(9)), some(20), Some(9)),
            (config(None, Some(9)), Some(Budget::Unlimited), Some(9)),
        ] {
            assert_eq!(config.budget(asked), expected, "{config:?} {asked:?}");
        }
        assert_eq!(config(Some(9), Some(8)).validate().len(), 1);
    }
}
