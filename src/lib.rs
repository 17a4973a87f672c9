//! Perigee: a serving appliance for the Kimi K2 family of models.
//!
//! The modules below stand in layer order, ground to roof: a module names only modules above its own line
//! here (see `docs/architecture.md`; `tests/layering.rs` checks it). Two walks make the tree readable:
//! a request (`generate/generator.rs`) and a boot (`boot/run.rs`).

pub mod tensor;
pub mod quant;
pub mod sampling;
pub mod guard;
pub mod telemetry;
pub mod ops;
pub mod cpu;
pub mod model;
pub mod scheduler;
pub mod engine;
pub mod text;
pub mod grammar;
pub mod generate;
pub mod api;
pub mod server;
pub mod compress;
pub mod measure;
pub mod config;
pub mod nano;
pub mod boot;
pub mod cli;
