//! Wire types: requests as clients write them, answers as clients read them.
//!
//! Parses once into values that cannot be wrong, and writes answers. Does not know HTTP transport or the engine.

mod chat;
mod completions;
mod error;
mod json;
mod messages;
mod models;
mod openapi;
mod params;
mod service;
mod stream;
mod structured;
mod tokenize;
mod write;

pub use error::ApiError;
pub use models::ModelCard;
pub use openapi::{openapi, openapi_page, openapi_routes};
pub use params::is_request_id;
pub use service::{Answer, Api, Summary};
pub use stream::EventStream;

use crate::generate::GenerateRequest;
use stream::Format;

/// What requests are checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Token ids below this exist.
    pub(crate) vocab_size: usize,
    /// Most replies of one request, over all prompts.
    pub(crate) max_prompts: usize,
}

/// A checked request for replies.
pub(crate) struct Call {
    model: Option<String>,
    stream: bool,
    request_id: Option<String>,
    format: Format,
    request: GenerateRequest,
}
