//! Twin of `kernels/repack.cu`: weights from the checkpoint's rows into tiles, and back.

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::{Driver, Format, Kernel, LaunchShape, Stream, Tiled};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = plain!(
    "repack",
    &["repack_bf16", "repack_fp8", "repack_nvfp4", "repack_mxfp4", "repack_int4", "unpack_bf16"],
    64
);

/// Tiles of a block, a warp each.
const BLOCK_TILES: usize = 8;

/// `Half` in the source: where the lower or the upper outputs of tiles come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Half {
    /// Rows of codes, at a multiple of 16.
    pub codes: u64,
    /// Rows of scales.
    pub scales: u64,
    /// Row of the first output of tile 0.
    pub first: i32,
    /// Rows that are there.
    pub rows: i32,
}

/// `RepackParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// Outputs 0 to 7 of tiles.
    pub lower: Half,
    /// Outputs 8 to 15 of tiles.
    pub upper: Half,
    /// `[M, U]` tiles.
    pub codes: u64,
    /// `[M, U]` scales of a tile.
    pub scales: u64,
    /// `[1]` i32: set if a code of eight bits is NaN.
    pub not_numbers: u64,
    /// Rows of a half from a tile to the next.
    pub tile_rows: i32,
    /// M.
    pub tiles: i32,
    /// K.
    pub columns: i32,
    /// U.
    pub units: i32,
}

/// Enqueues the tiles of a slice. [`Format::F32`] has none.
pub fn launch<D: Driver>(stream: &mut Stream<D>, format: Format, params: &Params) -> Result<(), OpError> {
    let name = match format {
        Format::F32 | Format::Bf16 => "repack_bf16",
        Format::Fp8 => "repack_fp8",
        Format::Nvfp4 => "repack_nvfp4",
        Format::Mxfp4 => "repack_mxfp4",
        Format::Int4 => "repack_int4",
    };
    let tiles = params.tiles as usize * params.units as usize;
    let grid = [tiles.div_ceil(BLOCK_TILES) as u32, 1, 1];
    stream.launch(name, LaunchShape { grid, threads: 32 * BLOCK_TILES as u32, shared_bytes: 0 }, params)?;
    // A product may load its first weights before the launch in front of it has ended.
    stream.driver().order_next_launch();
    Ok(())
}

/// `UnpackParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct UnpackParams {
    codes: u64,
    rows: u64,
    tiles: i32,
    units: i32,
    num_rows: i32,
    columns: i32,
}

/// Enqueues the rows `[N, K]` bf16 of one matrix of [`Format::Bf16`] whose tiles are not those of pairs.
pub fn unpack<D: Driver>(stream: &mut Stream<D>, matrix: &Tiled, rows: u64) -> Result<(), OpError> {
    let weight = &matrix.weight;
    let params = UnpackParams {
        codes: weight.codes,
        rows,
        tiles: weight.tiles,
        units: weight.units,
        num_rows: weight.rows,
        columns: weight.columns,
    };
    let grid = [(matrix.tiles() * weight.units as usize).div_ceil(BLOCK_TILES) as u32, 1, 1];
    let shape = LaunchShape { grid, threads: 32 * BLOCK_TILES as u32, shared_bytes: 0 };
    stream.launch("unpack_bf16", shape, &params)
}
