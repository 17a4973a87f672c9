//! Wire types: requests as clients write them, answers as clients read them.
//!
//! Parses once into values that cannot be wrong, and writes answers. Does not know HTTP transport or the engine.

mod anthropic;
mod call;
#[cfg(test)]
mod calls_tests;
mod chat;
mod chunks;
mod client_tools;
mod completions;
mod conversation;
mod counts;
mod documents;
mod error;
mod fleet;
mod foreign;
mod format;
mod functions;
mod guard;
mod history;
mod hosted;
mod images;
mod json;
mod limits;
mod messages;
mod models;
mod render;
mod responses;
mod routes;
mod openapi;
mod params;
mod reasoning;
mod service;
mod stream;
mod structured;
mod summary;
mod tokenize;
mod tokens;
mod tools;
mod unknown;
mod values;
mod write;

pub use crate::generate::Share;
pub use error::ApiError;
pub use format::Kind;
pub use hosted::HostedTools;
pub use models::ModelCard;
pub use openapi::{openapi, version};
pub use params::is_request_id;
pub use render::{Rendered, render_request};
pub use responses::{Background, Owner};
pub use routes::{Access, Handler, Method, ROUTES, Route};
pub use service::{Answer, Api, Hold, RequestBody};
pub use stream::EventStream;
pub use summary::Summary;
pub use unknown::UnknownFields;

use limits::Limits;
