//! Twin of `kernels/route.cu`: the choice of experts, and the worklist of their products.

use bytemuck::{Pod, Zeroable};

use super::ahead::Ahead;
use super::{linear, plain, rms_norm};
use crate::weights::{Format, Matrix};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::{OpError, RouterShape};

/// The declaration.
pub const KERNEL: Kernel =
    plain!("route", &["route", "route_f32", "route_bf16", "norm_route_f32", "norm_route_bf16", "tiles"], 128);

/// Choice of a row that is not there.
pub const NO_EXPERT: u32 = u32::MAX;

/// Most routed experts.
pub const MAX_EXPERTS: usize = 1024;
/// Most expert groups.
pub const MAX_GROUPS: usize = 32;

/// Most rows whose logits and choice are one launch.
pub const FUSED_ROWS: usize = 8;

/// Most rows whose norm, logits and choice are one launch.
pub const NORM_ROWS: usize = 8 * MANY_TILES;

/// Blocks of 8 rows of `norm_route_f32` and `norm_route_bf16`.
const MANY_TILES: usize = 64;

/// Words of their counts: turns and blocks of 8 rows done, and of each such block normalised rows and blocks with its logits.
pub const PROGRESS_WORDS: usize = 2 + 2 * MANY_TILES;

/// Threads of a block of `route_f32` and `route_bf16`, and of those with norms.
const FUSED_THREADS: usize = 256;

/// Outputs of a block of `route_f32` and `route_bf16`.
const LINEAR_COLUMNS: usize = 8;

/// Rows of a block of `route`, a warp each.
const ROUTE_ROWS: usize = 4;

/// `TilesParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct TilesParams {
    /// `[num_slots]` u32.
    pub chosen: u64,
    /// `[num_slots]` u32, by expert.
    pub slots: u64,
    /// Triples of expert, first, count.
    pub tiles: u64,
    /// `[1]` i32.
    pub num_tiles: u64,
    /// T * K.
    pub num_slots: i32,
    /// Experts of this device.
    pub num_experts: i32,
    /// Slots of a tile at most.
    pub tile_rows: i32,
    /// Number of the first expert of this device.
    pub first_expert: u32,
}

/// The routed experts of a device: all, or a rank's run of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Held {
    /// Number of the first one.
    pub first: u32,
    /// Number of experts.
    pub count: u32,
}

impl Held {
    /// No expert.
    pub const NONE: Self = Self { first: 0, count: 0 };

    /// All of so many.
    pub fn all(count: usize) -> Self {
        Self { first: 0, count: count as u32 }
    }

    /// Whether an expert is among them.
    pub fn has(&self, expert: u32) -> bool {
        expert.wrapping_sub(self.first) < self.count
    }
}

/// `RouteParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RouteParams {
    /// `[T, E]` f32.
    pub logits: u64,
    /// `[E]` f32.
    pub bias: u64,
    /// `[1]` u32; rows from it on choose no expert.
    pub num_rows: u64,
    /// `[T, K]` u32.
    pub chosen: u64,
    /// `[T, K]` f32.
    pub weights: u64,
    /// `[1]` u32, 0 before and after a launch.
    pub blocks_done: u64,
    /// Worklist of these rows; `slots` 0: none is written.
    pub list: TilesParams,
    /// Rows of the launch.
    pub padded_rows: i32,
    /// E.
    pub num_experts: i32,
    /// K.
    pub top_k: i32,
    /// Expert groups.
    pub n_group: i32,
    /// Groups that remain eligible.
    pub topk_group: i32,
    /// Whether weights are divided by their sum.
    pub normalise: i32,
    /// Factor on the weights.
    pub scaling_factor: f32,
    /// Zero.
    pub padding: i32,
}

/// `LinearRouteParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct LinearRouteParams {
    linear: linear::Params,
    route: RouteParams,
    ahead: Ahead,
}

/// `NormRouteParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct NormRouteParams {
    norm: rms_norm::Params,
    linear: linear::Params,
    route: RouteParams,
    progress: u64,
}

/// Slots ordered by expert and cut into tiles, in device memory.
#[derive(Debug, Clone, Copy)]
pub struct Worklist {
    /// `[1]` i32.
    pub num_tiles: u64,
    /// Triples of expert, first, count.
    pub tiles: u64,
    /// `[num_slots]` u32.
    pub slots: u64,
    /// Slots of a tile at most.
    pub tile_rows: usize,
    /// Most tiles that `num_slots` can have.
    pub max_tiles: usize,
    /// Experts of this device; tiles count from the first.
    pub held: Held,
}

/// Most tiles of `num_slots` slots over `num_experts` experts: full ones, and a partial one of each expert.
pub fn max_tiles(num_slots: usize, num_experts: usize, tile_rows: usize) -> usize {
    num_slots.min(num_slots / tile_rows + num_experts)
}

/// The router's choice in device memory.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// `[T, K]` u32.
    pub chosen: u64,
    /// `[T, K]` f32.
    pub weights: u64,
    /// `[1]` u32, 0.
    pub blocks_done: u64,
}

impl Worklist {
    /// Parameters for the slots whose experts are at `chosen`.
    fn params(&self, num_slots: usize, chosen: u64) -> TilesParams {
        TilesParams {
            chosen,
            slots: self.slots,
            tiles: self.tiles,
            num_tiles: self.num_tiles,
            num_slots: num_slots as i32,
            num_experts: self.held.count as i32,
            tile_rows: self.tile_rows as i32,
            first_expert: self.held.first,
        }
    }
}

impl RouteParams {
    fn new(
        shape: &RouterShape,
        padded_rows: usize,
        [logits, bias, num_rows]: [u64; 3],
        choice: Choice,
        list: Option<&Worklist>,
    ) -> Self {
        let num_slots = padded_rows * shape.top_k;
        let list = list.map(|list| list.params(num_slots, choice.chosen));
        Self {
            logits,
            bias,
            num_rows,
            chosen: choice.chosen,
            weights: choice.weights,
            blocks_done: choice.blocks_done,
            list: list.unwrap_or_else(TilesParams::zeroed),
            padded_rows: padded_rows as i32,
            num_experts: shape.num_experts as i32,
            top_k: shape.top_k as i32,
            n_group: shape.n_group as i32,
            topk_group: shape.topk_group as i32,
            normalise: i32::from(shape.norm_topk_prob),
            scaling_factor: shape.routed_scaling_factor,
            padding: 0,
        }
    }
}

/// Enqueues the choice for `padded_rows` rows from their logits `[T, E]`, and with `list` their worklist. Addresses of
/// logits, bias and number of rows.
pub fn launch_route<D: Driver>(
    stream: &mut Stream<D>,
    shape: &RouterShape,
    padded_rows: usize,
    addresses: [u64; 3],
    choice: Choice,
    list: Option<&Worklist>,
) -> Result<(), OpError> {
    let params = RouteParams::new(shape, padded_rows, addresses, choice, list);
    let grid = [padded_rows.div_ceil(ROUTE_ROWS) as u32, 1, 1];
    stream.launch("route", LaunchShape { grid, threads: 32 * ROUTE_ROWS as u32, shared_bytes: 0 }, &params)
}

/// The function that computes the logits too, for up to [`FUSED_ROWS`] rows; `None` for weights in other formats, and for more slots
/// than a block has threads.
pub fn fused_function(weight: &Matrix, shape: &RouterShape) -> Option<&'static str> {
    match weight.format {
        _ if FUSED_ROWS * shape.top_k > FUSED_THREADS => None,
        Format::F32 => Some("route_f32"),
        Format::Bf16 => Some("route_bf16"),
        _ => None,
    }
}

/// The router of up to [`FUSED_ROWS`] rows in one launch.
#[derive(Debug, Clone, Copy)]
pub struct FusedRoute<'a> {
    /// Sizes and rules.
    pub shape: &'a RouterShape,
    /// Rows of the launch.
    pub padded_rows: usize,
    /// `[E, D]`.
    pub weight: &'a Matrix,
    /// `[T, D]`.
    pub x: linear::Rows,
    /// Addresses of logits, bias and number of rows.
    pub addresses: [u64; 3],
    /// Where the choice is written.
    pub choice: Choice,
    /// Where the worklist is written.
    pub list: &'a Worklist,
}

impl FusedRoute<'_> {
    /// Parameters of a launch that fetches `ahead` meanwhile.
    pub(super) fn params(&self, ahead: Ahead) -> LinearRouteParams {
        let logits = linear::Rows { address: self.addresses[0], stride: self.weight.out_features };
        let (rows, list) = (self.padded_rows, Some(self.list));
        LinearRouteParams {
            linear: linear::Params::new(rows, self.weight, self.x, 0, logits, linear::Output::Set),
            route: RouteParams::new(self.shape, rows, self.addresses, self.choice, list),
            ahead,
        }
    }

    /// Blocks of a launch.
    pub(super) fn blocks(&self) -> u32 {
        self.weight.out_features.div_ceil(LINEAR_COLUMNS) as u32
    }
}

/// Enqueues by `function` the logits of rows of x, their choice and their worklist; `ahead` is fetched meanwhile.
pub fn launch_fused<D: Driver>(
    stream: &mut Stream<D>,
    function: &'static str,
    route: &FusedRoute<'_>,
    ahead: Ahead,
) -> Result<(), OpError> {
    let grid = [route.blocks(), 1, 1];
    let shape = LaunchShape { grid, threads: FUSED_THREADS as u32, shared_bytes: 0 };
    stream.launch(function, shape, &route.params(ahead))
}

/// The function that normalises rows and computes their logits too, for up to [`NORM_ROWS`] rows, and the experts of a block; `None` for
/// weights in other formats.
pub fn norm_function(weight: &Matrix) -> Option<(&'static str, usize)> {
    match weight.format {
        Format::F32 => Some(("norm_route_f32", 2 * LINEAR_COLUMNS)),
        Format::Bf16 => Some(("norm_route_bf16", 3 * LINEAR_COLUMNS)),
        _ => None,
    }
}

/// Enqueues by a [`norm_function`] the norms of up to [`NORM_ROWS`] rows, their logits, choice and worklist. `progress` is at
/// [`PROGRESS_WORDS`] zeros.
pub fn launch_with_norms<D: Driver>(
    stream: &mut Stream<D>,
    (function, block_columns): (&'static str, usize),
    shape: &RouterShape,
    padded_rows: usize,
    weight: &Matrix,
    norm: rms_norm::Params,
    addresses: [u64; 3],
    choice: Choice,
    list: &Worklist,
    progress: u64,
) -> Result<(), OpError> {
    let x = linear::Rows { address: norm.normed, stride: weight.in_features };
    let logits = linear::Rows { address: addresses[0], stride: weight.out_features };
    let choice = Choice { blocks_done: 0, ..choice };
    let params = NormRouteParams {
        norm,
        linear: linear::Params::new(padded_rows, weight, x, 0, logits, linear::Output::Set),
        route: RouteParams::new(shape, padded_rows, addresses, choice, Some(list)),
        progress,
    };
    let blocks = weight.out_features.div_ceil(block_columns) * padded_rows.div_ceil(NORM_ROWS / MANY_TILES);
    let grid = [(padded_rows + blocks) as u32, 1, 1];
    stream.launch(function, LaunchShape { grid, threads: FUSED_THREADS as u32, shared_bytes: 0 }, &params)
}

/// Enqueues the worklist of `num_slots` slots whose experts are at `chosen`.
pub fn launch_tiles<D: Driver>(
    stream: &mut Stream<D>,
    num_slots: usize,
    chosen: u64,
    list: &Worklist,
) -> Result<(), OpError> {
    let shape = LaunchShape { grid: [1, 1, 1], threads: MAX_EXPERTS as u32, shared_bytes: 0 };
    stream.launch("tiles", shape, &list.params(num_slots, chosen))
}
