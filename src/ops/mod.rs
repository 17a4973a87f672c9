//! The operations of the models of this family, and their specification.
//!
//! `backend.rs` is the interface between the model and the devices. A backend on the host consists
//! of smaller operations (`host_ops.rs`), completed by `host.rs`; `reference.rs` is the slow, plain
//! one that every other backend is tested against, within `tolerance.rs`.
//!
//! `group.rs` makes one backend of several: each is a rank that holds its share of weights and
//! cache (`share.rs`) and exchanges values with the others inside the operations that sum over
//! ranks (`exchange.rs`).
//!
//! `draft.rs` is what a backend needs to run a draft network beside its own (`host_draft.rs`: on the
//! host), `mtp.rs` what it needs to run a prediction layer of the target (`host_mtp.rs`), `tower.rs` what it needs to see pictures
//! (`host_tower.rs`).

mod error;
mod index;
mod segment;
mod shapes;
mod rope;
mod plan;
mod sample;
mod backend;
mod host_ops;
mod host_sampler;
mod share;
mod exchange;
mod host;
mod host_rank;
mod draft;
mod gqa;
mod host_draft;
mod mtp;
mod host_mtp;
mod picture;
mod tower;
mod host_tower;
mod group;
pub mod reference;
pub mod tolerance;

pub use backend::{Activation, Backend, Calibrate, Layers, Routed, Upcoming};
pub use draft::{
    DraftActivations, DraftAttentionMatrices, DraftAttentionShape, DraftInput, DraftMatrices, DraftOps,
    DraftShape, GqaShape, NUM_STATES,
};
pub use error::OpError;
pub use exchange::Member;
pub use group::{Group, Rank};
pub use host_ops::{Gelu, HostOps};
pub use index::{BlockId, KvSlot, Row, SeqSlot, TokenId};
pub use mtp::{FusionMatrices, MtpOps};
pub use picture::{MERGE_SIDE, PATCH_SIDE, PATCH_VALUES, Picture};
pub use plan::{StepPlan, TokenSource};
pub use rope::RopeTable;
pub use sample::{Outcomes, RowFlags, RowOutcome, Rule, SampleRow, SampleRows, SlotSpec, Ticket};
pub use segment::{AttentionForm, LatentSpan, Segment};
pub use shapes::{
    AttentionInMatrices, CacheDType, CacheShape, Capacity, ExpertMatrices, MemoryNeeds, MlaShape, ModelShape,
    Preferences, QueryMatrices, RouterShape, peak,
};
pub use share::{ExpertSplit, Share, Split};
pub use tower::{
    BiasedMatrix, NormVectors, TOWER_NORM_EPS, TowerBlockMatrices, TowerCapacity, TowerMatrices, TowerOps,
    TowerShape,
};

pub(crate) use error::expect;
pub(crate) use tower::{GridIndex, patch_rotation};
