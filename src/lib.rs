//! Perigee: a serving appliance for the Kimi K2 family of models.
//!
//! The house is a workspace of crates, lowest first. A crate names only those above its own line here (cargo refuses
//! anything else):
//!
//! | crate | what it is |
//! |---|---|
//! | `perigee-numbers` | element types, number formats, worker threads |
//! | `perigee-decoding` | from a row of logits to a token: sampler, guard, drafts without a network |
//! | `perigee-telemetry` | metrics and logs, which every crate below may record to |
//! | `perigee-text` | strings and token ids in both directions, grammars for structured output |
//! | `perigee-ops` | the operations of a model, and what computes them on the host with the reference |
//! | `perigee-cpu` | the fast CPU backend |
//! | `perigee-cuda` | the GPU backend |
//! | `perigee-model` | the network, the checkpoint files of its weights, the pictures that its tower reads |
//! | `perigee-engine` | scheduler, step loop, blocks beyond the device, what routers are told of the cache |
//! | `perigee-http` | a request without HTTP, wire types, connections and routes |
//! | `perigee-compress` | offline work on checkpoints |
//! | `perigee` | this crate: settings, the embedded model, the boot, the subcommands |
//!
//! A first reading follows one of two walks: a request (`http/generate/generator.rs`) or a boot (`boot/run.rs`).
//! `docs/architecture.md` is the map.

#![forbid(unsafe_code)]

pub mod config;
pub mod nano;
pub mod measure;
pub mod boot;
pub mod cli;
