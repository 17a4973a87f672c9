//! Twin of `kernels/vision.cu`: a vision tower between its products.

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = plain!("vision", &FUNCTIONS, 128);

const FUNCTIONS: [&str; 7] = [
    "vision_patches",
    "vision_positions",
    "vision_norm",
    "vision_qkv",
    "vision_attend",
    "vision_bias",
    "vision_place",
];

/// Threads of a block, except of attention.
const THREADS: u32 = 256;
/// Queries of a block of attention, and its threads.
const QUERIES: usize = 16;
const ATTEND_THREADS: u32 = 128;
/// Most values of a head.
pub const MAX_HEAD: usize = 128;
/// A row of a step that is no row of a picture.
pub const NO_ROW: u32 = u32::MAX;

/// `VisionPatchesParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct PatchesParams {
    /// u8, of one picture.
    pub pixels: u64,
    /// `[3, 256]` f32.
    pub levels: u64,
    /// `[count, columns]` f32.
    pub to: u64,
    /// The same in bf16, or 0.
    pub rounded: u64,
    /// Patch of the first row.
    pub first: i32,
    /// Patches of a row of the picture.
    pub cols: i32,
    /// At least 588.
    pub columns: i32,
    /// Zero.
    pub padding: i32,
}

/// `VisionPositionsParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct PositionsParams {
    /// `[table_rows, table_cols, W]` f32.
    pub table: u64,
    /// `[rows * cols, W]` f32.
    pub positions: u64,
    /// Patches of a column of the grid.
    pub rows: i32,
    /// Patches of a row of the grid.
    pub cols: i32,
    /// Rows of the table.
    pub table_rows: i32,
    /// Columns of the table.
    pub table_cols: i32,
    /// W.
    pub width: i32,
    /// Zero.
    pub padding: i32,
}

/// `VisionNormParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct NormParams {
    /// `[., W]` f32.
    pub source: u64,
    /// `[count]` u32, row of the source; 0: 0, 1, ...
    pub rows: u64,
    /// `[W]` f32.
    pub gain: u64,
    /// `[W]` f32.
    pub bias: u64,
    /// `[count, W]` f32.
    pub to: u64,
    /// The same in bf16, or 0.
    pub rounded: u64,
    /// W.
    pub width: i32,
    /// Added to the variance.
    pub eps: f32,
}

/// `VisionQkvParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct QkvParams {
    /// `[count, 3 * W]` f32.
    pub x: u64,
    /// `[3 * W]` f32.
    pub bias: u64,
    /// `[count, E]` f32, cosines then sines.
    pub rotations: u64,
    /// `[count, 3 * W]` f32.
    pub qkv: u64,
    /// W.
    pub width: i32,
    /// E.
    pub head_dim: i32,
}

/// `VisionAttendParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct AttendParams {
    /// `[P, 3 * W]` f32, at the picture's first patch.
    pub qkv: u64,
    /// `[P, W]` f32, there.
    pub attended: u64,
    /// The same in bf16, or 0.
    pub rounded: u64,
    /// Patches of the picture.
    pub patches: i32,
    /// H.
    pub num_heads: i32,
    /// E, even, at most [`MAX_HEAD`].
    pub head_dim: i32,
    /// Factor on the scores.
    pub scale: f32,
}

/// What follows a product and its bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// GELU by its tanh form.
    Tanh,
    /// GELU.
    Exact,
    /// Added to the rows at this address, `[count, columns]` f32; they may be where the sums go.
    Add(u64),
    /// Nothing.
    Set,
}

impl After {
    /// The source's number of the mode, and the address of what is added or 0.
    pub fn params(self) -> (i32, u64) {
        match self {
            Self::Tanh => (0, 0),
            Self::Exact => (1, 0),
            Self::Add(added) => (2, added),
            Self::Set => (3, 0),
        }
    }
}

/// `VisionBiasParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct BiasParams {
    /// `[count, columns]` f32.
    pub x: u64,
    /// `[columns]` f32.
    pub bias: u64,
    /// `[count, columns]` f32, or 0.
    pub added: u64,
    /// `[., columns]` f32.
    pub to: u64,
    /// `[count, columns]` bf16, or 0.
    pub rounded: u64,
    /// `[count]` u32, row of `to`; 0: 0, 1, ...
    pub rows: u64,
    /// Values of a row.
    pub columns: i32,
    /// Mode of an [`After`].
    pub mode: i32,
}

/// `VisionPlaceParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct PlaceParams {
    /// `[T]` u32, kept row, or [`NO_ROW`].
    pub media: u64,
    /// `[., D]` f32.
    pub kept: u64,
    /// `[T, D]` f32.
    pub hidden: u64,
    /// D.
    pub columns: i64,
}

/// Parameters of a function that runs a block per row.
pub trait PerRow: bytemuck::NoUninit {
    /// Name of the function.
    const FUNCTION: &'static str;
}

impl PerRow for PatchesParams {
    const FUNCTION: &'static str = "vision_patches";
}

impl PerRow for PositionsParams {
    const FUNCTION: &'static str = "vision_positions";
}

impl PerRow for NormParams {
    const FUNCTION: &'static str = "vision_norm";
}

impl PerRow for QkvParams {
    const FUNCTION: &'static str = "vision_qkv";
}

impl PerRow for BiasParams {
    const FUNCTION: &'static str = "vision_bias";
}

impl PerRow for PlaceParams {
    const FUNCTION: &'static str = "vision_place";
}

/// Enqueues a function over `num_rows` rows.
pub fn launch<D: Driver, P: PerRow>(
    stream: &mut Stream<D>,
    num_rows: usize,
    params: &P,
) -> Result<(), OpError> {
    let shape = LaunchShape { grid: [num_rows as u32, 1, 1], threads: THREADS, shared_bytes: 0 };
    stream.launch(P::FUNCTION, shape, params)
}

/// Enqueues the attention of one picture.
pub fn launch_attend<D: Driver>(stream: &mut Stream<D>, params: &AttendParams) -> Result<(), OpError> {
    let blocks = (params.patches as usize).div_ceil(QUERIES) as u32;
    let grid = [blocks, params.num_heads as u32, 1];
    stream.launch("vision_attend", LaunchShape { grid, threads: ATTEND_THREADS, shared_bytes: 0 }, params)
}
