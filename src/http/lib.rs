//! HTTP, lowest first: the walk of a request without HTTP (`generate/generator.rs`), wire types (`api/`),
//! connections and routes (`server/`).
//!
//! Knows the engine by its handle alone, and no device.

#![forbid(unsafe_code)]

pub mod generate;
pub mod api;
pub mod server;
