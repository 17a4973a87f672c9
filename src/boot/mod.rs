//! The boot walk, from loaded settings to a server that accepts requests, and the shutdown.

mod draft_source;
pub mod engine;
pub mod equipped;
mod error;
pub(crate) mod gpu;
pub mod gpu_watch;
mod host_memory;
mod kv_identity;
mod machine;
pub mod memory_plan;
mod open_files;
mod progress;
mod reload;
mod run;
mod sampling_defaults;
mod self_test;
pub mod sight;
mod signals;
mod stations;
mod tuned_ops;
mod watchdog;

pub(crate) use error::{BootError, chain};
pub(crate) use host_memory::available_memory;
pub(crate) use machine::shortcomings;
pub(crate) use open_files::files_needed;
pub(crate) use reload::Load;
pub(crate) use run::serve;
pub(crate) use sampling_defaults::{ModelDefaults, sampling_defaults};
pub(crate) use stations::{load_sight, load_text, open_checkpoint, read_blueprint};
pub(crate) use tuned_ops::tuned_ops;
