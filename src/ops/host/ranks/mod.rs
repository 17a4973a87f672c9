//! Several backends as one: each is a rank that holds its share of weights and cache (`share.rs`) and exchanges values with the others
//! inside the operations that sum over ranks (`exchange.rs`). `group.rs` is the backend that they make, `rank.rs` what a backend on
//! the host is as one of them.

mod share;
mod exchange;
mod group;
mod rank;

pub use exchange::Member;
pub use group::{Group, Rank};
pub use share::Share;

pub(in crate::host) use rank::{RankCache, RankState};
