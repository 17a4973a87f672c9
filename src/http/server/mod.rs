//! HTTP: listening, connections, routes, server-sent events, health.
//!
//! Knows the wire types, the request walk behind them, and the settings of images. Does not know the engine or
//! the scheduler.

mod accept;
mod activity;
mod admission;
mod api_key;
mod answer;
mod audit;
mod body;
mod clients;
mod compression;
pub mod config;
mod connection;
mod content_coding;
mod fetch;
mod handlers;
mod ledger;
mod listener;
mod moment;
mod network;
mod open;
mod operator;
mod overflow;
mod page;
mod path;
mod ready;
mod refusal;
mod remote_images;
mod request_log;
mod response;
mod room;
mod routes;
mod shared;
mod socket;
#[cfg(test)]
mod test_certificate;
mod timed;
mod tls;
mod traces;

pub use api_key::{ApiKey, KeyLimits, Secret};
pub use config::Config;
pub use fetch::{FetchError, Fetcher, Rules, RulesError};
pub use ledger::{Ledger, LedgerConfig, LedgerError};
pub use listener::{Control, Drained, Server, StartError};
pub use operator::Operator;
pub use ready::Readiness;
pub use remote_images::RemoteImages;
pub use tls::{Tls, TlsError, read_certificates};
pub use traces::{Endpoint, EndpointError, Traces};
