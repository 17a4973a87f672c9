//! KV events: routers learn which prefixes are cached here, and send requests to the server that has them.
//!
//! The scheduler notes which blocks get and lose names. [`Feed`], on the engine's thread, turns names into
//! contents (`contents.rs`): a text is cached if it is cached in any form of attention. [`publish`] sends the
//! events over ZeroMQ in the one form that all consumers read (`wire.rs`, `zmtp.rs`). Does not know the
//! engine.

pub mod config;
mod contents;
mod feed;
mod publisher;
mod wire;
mod zmtp;

pub use config::{Config, Shape};
pub use feed::Feed;
pub use publisher::{Publisher, Sockets, StartError, listen, publish, unusable_addresses};
