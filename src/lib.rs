//! Perigee: a serving appliance for the Kimi K2 family of models.
//!
//! The modules below are listed in layer order, lowest first: a module names only modules above its own line
//! here (see `docs/architecture.md`; `tests/layering.rs` checks it). A first reading follows one of two walks:
//! a request (`generate/generator.rs`) or a boot (`boot/run.rs`).
//!
//! The subcommands are in `cli/`; `perigee serve` runs `boot/run.rs`.

// Pure parts (results depend on arguments alone), and the worker threads.
pub mod tensor;
pub mod threads;
pub mod quant;
pub mod sampling;
pub mod guard;
pub mod speculation;

// Metrics and logs, which every module below may record to.
pub mod telemetry;

// Compute: the operations of a model, what computes them on the host with the reference, the fast CPU backend, the GPU backend.
pub mod ops;
pub mod host;
pub mod cpu;
pub mod cuda;

// The network, and the checkpoint files that its weights are read from.
pub mod model;

// Images of requests, from a client's bytes to the patches that the tower reads.
pub mod vision;

// Serving: the scheduler, what routers are told of its cache, blocks beyond the device, the step loop, tokenizer and templates, grammars, a request without HTTP.
pub mod scheduler;
pub mod kv_events;
pub mod kv_tiers;
pub mod engine;
pub mod text;
pub mod grammar;
pub mod generate;

// HTTP: wire types, connections and routes.
pub mod api;
pub mod server;

// Offline work on checkpoints, and the benchmark.
pub mod compress;
pub mod measure;

// Start: settings, the embedded model, the boot, the subcommands.
pub mod config;
pub mod nano;
pub mod boot;
pub mod cli;
