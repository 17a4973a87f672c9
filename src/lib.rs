//! Perigee: a serving appliance for the Kimi K2 family of models.
//!
//! Twelve crates, here lowest first. A crate names the crates of its manifest, all above its own line; cargo
//! refuses circles.
//!
//! | crate | what it is |
//! |---|---|
//! | `perigee-numbers` | element types, number formats, worker threads |
//! | `perigee-decoding` | from a row of logits to a token: sampler, guard, drafts without a network |
//! | `perigee-telemetry` | metrics and logs, for the crates below it here |
//! | `perigee-text` | strings and token ids in both directions, grammars for structured output |
//! | `perigee-ops` | the operations of a model, and the host's backends, the reference among them |
//! | `perigee-cpu` | the fast CPU backend |
//! | `perigee-cuda` | the GPU backend |
//! | `perigee-model` | the network, the checkpoint files of its weights, the images that its tower reads |
//! | `perigee-engine` | scheduler, step loop, blocks beyond the device, cache events for routers |
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
