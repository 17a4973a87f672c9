//! Weights in tiles, as the kernels on tensor cores read them (`kernels/include/tile.cuh`).

use bytemuck::{Pod, Zeroable};

use super::matrix::Format;

/// Outputs of a tile.
pub(crate) const TILE: usize = 16;
/// Inputs of a tile.
pub(crate) const UNIT: usize = 128;

/// `TiledWeight` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TiledWeight {
    /// `[E, tiles, units]` tiles.
    pub codes: u64,
    /// As codes; FP8: f32 of the lower outputs, `[rows / scale_rows, scale_groups]` each expert.
    pub scales: u64,
    /// FP8: of the upper outputs.
    pub upper_scales: u64,
    /// `[E, 2]` f32 of the lower and the upper outputs.
    pub factors: u64,
    /// Bytes of an expert.
    pub codes_stride: i64,
    /// Bytes of an expert.
    pub scales_stride: i64,
    /// Rows of tiles.
    pub tiles: i32,
    /// Units of 128 inputs.
    pub units: i32,
    /// K.
    pub columns: i32,
    /// Outputs of a matrix.
    pub rows: i32,
    /// Outputs of a matrix from a tile to the next.
    pub tile_rows: i32,
    /// First upper output of tile 0.
    pub upper_row: i32,
    /// FP8: rows that share a scale.
    pub scale_rows: i32,
    /// FP8: scales of a row.
    pub scale_groups: i32,
}

/// Matrices `[N, K]` in tiles, one or one of each expert; or pairs of them, 8 outputs of each in a tile.
#[derive(Debug, Clone, Copy)]
pub struct Tiled {
    /// Format of all of them.
    pub format: Format,
    /// N of a matrix.
    pub out_features: usize,
    /// K.
    pub in_features: usize,
    /// Number of matrices or pairs.
    pub count: usize,
    /// Address and layout for the kernels.
    pub weight: TiledWeight,
}

impl Tiled {
    /// Rows of tiles.
    pub fn tiles(&self) -> usize {
        self.weight.tiles as usize
    }
}

/// Bytes of codes and scales of one tile.
pub(crate) const fn tile_bytes(format: Format) -> (usize, usize) {
    let values = TILE * UNIT;
    match format {
        Format::F32 => (4 * values, 0),
        Format::Bf16 => (2 * values, 0),
        Format::Fp8 => (values, 0),
        Format::Nvfp4 | Format::Int4 => (values / 2, values / 16),
        Format::Mxfp4 => (values / 2, values / 32),
    }
}
