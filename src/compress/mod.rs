//! Offline work on checkpoints: a folder in, a smaller folder out, shard by shard with bounded memory, and a report of what was lost.
//!
//! Knows names of modules as released checkpoints spell them, and the dialects of those who read the result. Knows no engine, no
//! server, no clock: progress is told by callbacks.

pub mod dialect;
mod journal;
mod modules;
mod parallel;
pub mod quantize;
pub mod recipe;
pub mod report;
mod source;

pub use modules::ModuleClass;
pub use quantize::{Progress, QuantizeError, quantize};
pub use recipe::{Dialect, ModuleSet, Options, OptionsError, TargetFormat};
pub use report::{ClassReport, Report};
