//! The operations of the models of this family, and their specification.
//!
//! `backend.rs` is the interface between the model and the devices. Three traits beside it are for further
//! networks: a draft network (`draft.rs`), a prediction layer of the target (`mtp.rs`), and a vision tower
//! (`tower.rs`). Results of backends are compared within `tolerance.rs`.
//!
//! `host/` computes the operations on the host; the other files define them.

#![forbid(unsafe_code)]

mod error;
mod index;
mod segment;
mod shapes;
mod rope;
mod plan;
mod sample;
mod split;
mod backend;
mod draft;
mod mtp;
mod picture;
mod tower;
pub mod tolerance;
pub mod host;

pub use backend::{Absent, Activation, Backend, Calibrate, Layers, Routed, Storage, Upcoming};
pub use draft::{
    DraftActivations, DraftAttentionMatrices, DraftAttentionShape, DraftInput, DraftMatrices, DraftOps,
    DraftShape, GqaShape, NUM_STATES,
};
pub use error::{OpError, expect};
pub use index::{BlockId, KvSlot, Row, SeqSlot, TokenId};
pub use mtp::{FusionMatrices, MtpOps};
pub use picture::{MERGE_SIDE, PATCH_SIDE, PATCH_VALUES, Picture};
pub use plan::{StepPlan, TokenSource};
pub use rope::RopeTable;
pub use sample::{Outcomes, RowFlags, RowOutcome, Rule, SampleRow, SampleRows, SlotSpec, Ticket};
pub use segment::{AttentionForm, LatentSpan, Segment};
pub use shapes::{
    Activations, AttentionInMatrices, CacheDtype, CacheShape, Capacity, ExpertMatrices, FfnUnits,
    MemoryNeeds, MlaShape, ModelShape, Preferences, QueryMatrices, RouterShape, RowForms, peak,
};
pub use split::{AttentionExchange, ContextSplit, ExpertSplit, Parallelism, Split};
pub use tower::{
    BiasedMatrix, GridIndex, NormVectors, TOWER_NORM_EPS, TowerBlockMatrices, TowerCapacity, TowerMatrices,
    TowerOps, TowerShape, cubic_taps, patch_rotation,
};
