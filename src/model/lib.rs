//! The network: hyperparameters, names, weights, and the forward pass over a `Backend`; the checkpoint files
//! of its weights (`checkpoint/`), and the images that its tower reads (`vision/`).
//!
//! Knows the Kimi K2 family (DeepSeek-V3 layout). Does not know which backend runs it, the
//! scheduling of sequences, or text.

pub mod checkpoint;
mod activations;
mod active_bytes;
pub mod config;
mod blueprint;
mod declared;
mod draft;
mod draft_tensors;
mod eagle3;
mod mtp;
mod drafter;
pub mod expert_names;
mod foreign_form;
mod forward;
mod inspection;
mod inventory;
mod kv_scales;
mod layer_runner;
mod observed;
mod layer_stream;
mod read_ahead;
mod rope;
mod scale_pass;
mod tower;
mod weight_names;
mod weights;
pub mod vision;

pub use activations::Fp4Activations;
pub use active_bytes::active_bytes;
pub use blueprint::{Blueprint, BlueprintError, YarnScaling};
pub use declared::{DeclaredQuantization, DeclaredScheme};
pub use draft::{DraftAttention, DraftBlueprint, DraftMismatch};
pub use draft_tensors::DraftTensors;
pub use drafter::Drafter;
pub use eagle3::Eagle3Drafter;
pub use forward::{BlockRead, Model};
pub use inspection::{ClassLine, Inspection, ProblemLists, ScaleLine, VisionTower};
pub use inventory::{Holding, Inventory, Linear, Problems};
pub use kv_scales::{KvScaleError, KvScales};
pub use layer_stream::{LayerStream, StreamError};
pub use mtp::{MtpDrafter, MtpLayer};
pub use observed::{ChosenExperts, FfnInputs, LayerInputs, LayerObserver, NoObserver};
pub use read_ahead::{ExpertOrder, Uploads};
pub use scale_pass::ScalePass;
pub use tower::{Tower, TowerBlueprint, TowerInventory};
pub use weight_names::{ModuleClass, is_kv_scale};
pub use weights::{LoadError, Weights};
