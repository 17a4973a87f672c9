//! The operations a model of this family needs, and their specification.
//!
//! `backend.rs` is the seam between the model and the devices. A backend on the host is a set of smaller operations
//! (`host_ops.rs`) with everything around them in `host.rs`; `reference.rs` is the slow, obvious one that every other backend is
//! tested against, within `tolerance.rs`.

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
mod host;
pub mod reference;
pub mod tolerance;

pub use backend::{Activation, Backend, Calibrate, Routed};
pub use error::OpError;
pub use host_ops::HostOps;
pub use index::{BlockId, KvSlot, Row, SeqSlot, TokenId};
pub use plan::{StepPlan, TokenSource};
pub use rope::RopeTable;
pub use sample::{Outcomes, RowFlags, RowOutcome, Rule, SampleRow, SampleRows, SlotSpec, Ticket};
pub use segment::{AttentionForm, Segment};
pub use shapes::{
    AttentionInMatrices, CacheDType, CacheShape, Capacity, ExpertMatrices, MlaShape, ModelShape,
    QueryMatrices, RouterShape, peak,
};

pub(crate) use error::expect;
