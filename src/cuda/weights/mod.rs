//! Weights on the device: in the rows of the checkpoint (`matrix.rs`), or in tiles (`tiles.rs`), which the packer makes of rows.

mod matrix;
mod tiles;

pub use matrix::{Format, Matrix, WeightParams};
pub use tiles::{Tiled, TiledWeight};

pub(super) use matrix::{Layout, Pieces, scale_bytes};
pub(super) use tiles::{TILE, UNIT, tile_bytes};
