//! The network: hyperparameters, names, weights, and the forward pass over a `Backend`.
//!
//! Knows the Kimi K2 family (DeepSeek-V3 layout). Does not know which backend runs it, how sequences are scheduled, or text.

pub mod config;
mod blueprint;
mod forward;
mod rope;
mod weight_names;
mod weights;

pub use blueprint::{Blueprint, BlueprintError, YarnScaling};
pub use forward::{ChosenExperts, ForwardInput, LayerObserver, Model, Workspace};
pub use rope::RopeTable;
pub use weights::{LoadError, Weights};
