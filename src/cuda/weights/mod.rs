//! Weights on the device: in the rows of the checkpoint (`matrix.rs`), or in tiles (`tiles.rs`), which `packer.rs` makes of rows.

mod matrix;
mod packer;
mod tiles;

pub use matrix::{Format, Matrix, WeightParams};
pub use packer::Packer;
pub use tiles::{Tiled, TiledWeight};

pub(super) use tiles::{TILE, UNIT};
