//! Several backends as one. Each is a rank: it holds its share of weights and cache (`share.rs`), and
//! exchanges values with the others inside the operations that sum over ranks (`exchange.rs`); of a cache that is divided it has a part of
//! every block (`block_parts.rs`). `group.rs` is
//! the backend of all ranks, `beside.rs` what it runs beside the network, `rank.rs` a host backend as one rank,
//! `choice.rs` how ranks choose a token together.

mod share;
mod block_parts;
mod exchange;
mod group;
mod pieces;
mod beside;
mod rank;
mod choice;

pub use block_parts::BlockParts;
pub use exchange::Member;
pub use group::{Group, Rank, copied_values};
pub use pieces::{ExpertPieces, ExpertProjection, Piece};
pub use share::Share;

pub(in crate::host) use rank::{RankCache, RankState};
