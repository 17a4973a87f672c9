//! Weights on the device: in the rows of the checkpoint (`matrix.rs`), or in tiles (`tiles.rs`) or panels (`panels.rs`), which the packer
//! makes of rows.

mod matrix;
mod panels;
mod tiles;

pub use matrix::{Format, Matrix, WeightParams};
pub use panels::{PanelFormat, PanelWeight, Panels};
pub use tiles::{Tiled, TiledWeight};

pub(super) use matrix::{Layout, Pieces, scale_bytes};
pub(super) use panels::{MAX_TERMS, PANEL_ROWS, STAGE, decode_row, row_bytes};
pub(super) use tiles::{TILE, UNIT, tile_bytes};
