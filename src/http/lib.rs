//! HTTP, outermost first: connections and routes (`server/`), wire types (`api/`), and the walk of a request without
//! either (`generate/generator.rs`).
//!
//! Knows the engine by its handle alone, and no device.

#![forbid(unsafe_code)]

pub mod generate;
pub mod api;
pub mod server;
