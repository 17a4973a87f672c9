//! The bounds of requests that depend on the model and the operator.

use super::hosted::HostedTools;
use super::unknown::UnknownFields;
use crate::generate::{ReasoningField, ReasoningSwitch};

/// What requests are checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Token ids below this exist.
    pub(super) vocab_size: usize,
    /// Most replies of one request, over all prompts.
    pub(super) max_prompts: usize,
    /// What can be chosen about reasoning.
    pub(super) reasoning: ReasoningSwitch,
    /// Under which names reasoning is given.
    pub(super) reasoning_field: ReasoningField,
    /// Whether arguments must be JSON objects where no tool is `strict`.
    pub(super) json_arguments: bool,
    /// Whether a request may choose how it is watched for loops.
    pub(super) guard_choice: bool,
    /// What becomes of fields that are unknown.
    pub(super) unknown_fields: UnknownFields,
    /// What becomes of tools that only their own service can run.
    pub(super) hosted_tools: HostedTools,
}

#[cfg(test)]
impl Default for Limits {
    fn default() -> Self {
        let reasoning = ReasoningSwitch { reasons: true, can_disable: true };
        let reasoning_field = ReasoningField::Both;
        let unknown_fields = UnknownFields::Ignore;
        Self {
            vocab_size: 512,
            max_prompts: 8,
            reasoning,
            reasoning_field,
            json_arguments: false,
            guard_choice: true,
            unknown_fields,
            hosted_tools: HostedTools::Ignore,
        }
    }
}
