//! The boot walk, from loaded settings to a server that accepts requests, and the shutdown.

pub mod engine;
pub mod memory_plan;
mod progress;
mod run;
mod signals;

pub(crate) use run::{
    BootError, chain, load_text, open_checkpoint, read_blueprint, sampling_defaults, serve,
};
