//! Perigee: a serving appliance for the Kimi K2 family of models.
//!
//! The modules below stand in layer order, ground to roof: a module names only modules above its own line
//! here (see `docs/architecture.md`; `tests/layering.rs` checks it). Two walks make the tree readable:
//! a request (`generate/generator.rs`) and a boot (`boot/run.rs`).
//!
//! The subcommands are `cli/`; `perigee serve` is the boot walk.

// Pure parts: values in, values out.
pub mod tensor;
pub mod threads;
pub mod quant;
pub mod sampling;
pub mod guard;

// Figures and logs; the modules that are observed stand below.
pub mod telemetry;

// Compute: the operations, their specification, the backend.
pub mod ops;
pub mod cpu;

// The network, with the checkpoint that it is read from.
pub mod model;

// Serving: what a step computes, the step loop, text, constraints, a request without HTTP.
pub mod scheduler;
pub mod engine;
pub mod text;
pub mod grammar;
pub mod generate;

// HTTP: wire types, connections.
pub mod api;
pub mod server;

// Offline work on checkpoints, and the benchmark.
pub mod compress;
pub mod measure;

// Start: settings, the embedded model, the boot walk, the subcommands.
pub mod config;
pub mod nano;
pub mod boot;
pub mod cli;
