//! The operations of this crate, computed on the host.
//!
//! A backend on the host is a set of smaller operations (`ops.rs`). From every such set `backend.rs`,
//! `draft.rs`, `mtp.rs` and `tower.rs` compose the operations of a model, of drafts and of towers, and
//! `sampler.rs` samples for all of them. `reference.rs` is the slow, plain set that every other backend is
//! tested against, within `tolerance.rs`; the crate `perigee-cpu` is the fast one.
//!
//! `ranks/` makes one backend of several.

mod ops;
mod sampler;
mod ranks;
mod backend;
mod gqa;
mod draft;
mod mtp;
mod tower;
pub mod reference;

pub use ops::{Gelu, HostOps};
pub use ranks::{
    BlockParts, ExpertPieces, ExpertProjection, Group, Member, Piece, Rank, Share, copied_values,
};
