//! The sum of every part's own settings, where each value came from, and the command line.
//!
//! Defaults in code < the site file < a profile < the environment < flags. Every value keeps its origin, and
//! all problems of a load are reported together. Only `boot/` and `cli/` use the whole: every other part gets
//! its own section. This is the only module that reads the environment.

pub mod args;
pub mod device;
pub mod parallel;
mod coerce;
mod error;
mod load;
mod nearest;
mod origin;
mod profiles;
mod schema;
mod settings;
mod show;
mod sources;
mod toml_text;
mod vllm_flags;

pub use device::DeviceConfig;
pub use error::{ConfigError, ConfigErrors};
pub use load::{Checked, Loaded, check, load};
pub use origin::Origin;
pub use parallel::ParallelConfig;
pub use profiles::{ProfileSummary, list as list_profiles};
pub use schema::{json_schema, reference_toml};
pub use settings::{Settings, Violation};
pub use show::{show_json, show_table, tidy};
pub use sources::{Environment, FlagValue, LoadRequest};
