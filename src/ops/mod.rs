//! The operations a model of this family needs, as one trait, and their specification.
//!
//! `backend.rs` is the seam between the model and the devices; `reference.rs` is the slow, obvious
//! implementation every other one is tested against, within `tolerance.rs`.

mod backend;
mod segment;
pub mod reference;
pub mod tolerance;

pub use backend::{
    Backend, CacheDType, CacheShape, ExpertMatrices, HostMatrix, MlaShape, OpError, RouterShape, peak,
};
pub use segment::{AttentionForm, Segment};
