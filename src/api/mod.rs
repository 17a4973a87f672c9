//! Wire types: requests as clients write them, answers as clients read them.
//!
//! Parses once into values that cannot be wrong, and writes answers. Does not know HTTP transport or the engine.

mod anthropic;
mod call;
mod chat;
mod completions;
mod conversation;
mod error;
mod foreign;
mod guard;
mod json;
mod messages;
mod models;
mod render;
mod responses;
mod openapi;
mod reference_page;
mod params;
mod reasoning;
mod service;
mod stream;
mod structured;
mod tokenize;
mod tools;
mod unknown;
mod values;
mod write;

pub use error::ApiError;
pub use models::ModelCard;
pub use openapi::{openapi, openapi_page, openapi_routes};
pub use params::is_request_id;
pub use render::{Rendered, render_request};
pub use service::{Answer, Api, Hold, RequestBody, Summary};
pub use stream::EventStream;
pub use unknown::UnknownFields;

use crate::generate::{ReasoningField, ReasoningSwitch};
pub(crate) use call::Call;

/// What requests are checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Token ids below this exist.
    pub(crate) vocab_size: usize,
    /// Most replies of one request, over all prompts.
    pub(crate) max_prompts: usize,
    /// What can be chosen about reasoning.
    pub(crate) reasoning: ReasoningSwitch,
    /// Under which names reasoning is given.
    pub(crate) reasoning_field: ReasoningField,
    /// Whether a request may choose how it is watched for loops.
    pub(crate) guard_choice: bool,
    /// What becomes of fields that are unknown.
    pub(crate) unknown_fields: UnknownFields,
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
            guard_choice: true,
            unknown_fields,
        }
    }
}
