//! Twin of `kernels/experts.cu`: the two products of the experts' FFNs.

use bytemuck::{Pod, Zeroable};

use super::plain;
use super::route::Worklist;
use crate::weights::{Format, Matrix, WeightParams};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = plain!("experts", &FUNCTIONS, 128);

/// Functions of the first product in the order of [`Format`], then those of the second.
const FUNCTIONS: [&str; 2 * Format::COUNT] = [
    "experts_up_f32",
    "experts_up_bf16",
    "experts_up_nvfp4",
    "experts_up_mxfp4",
    "experts_up_int4",
    "experts_up_fp8",
    "experts_down_f32",
    "experts_down_bf16",
    "experts_down_nvfp4",
    "experts_down_mxfp4",
    "experts_down_int4",
    "experts_down_fp8",
];

/// Threads of a block: 8 warps.
const THREADS: u32 = 256;
/// Slots of a tile at most.
pub const TILE_ROWS: usize = 8;

/// `ExpertsUpParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct UpParams {
    /// `[E, I, D]`.
    pub gate: WeightParams,
    /// `[E, I, D]`.
    pub up: WeightParams,
    /// `[T, D]` f32.
    pub x: u64,
    /// `[1]` i32, or 0: slots are the rows, all of expert 0.
    pub num_tiles: u64,
    /// Triples of i32.
    pub tiles: u64,
    /// Slots ordered by expert.
    pub slots: u64,
    /// `[slots, I]` f32.
    pub inner: u64,
    /// Slots of a row of x.
    pub top_k: i32,
    /// Without tiles: number of slots.
    pub num_slots: i32,
}

/// `ExpertsDownParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct DownParams {
    /// `[E, D, I]`.
    pub down: WeightParams,
    /// `[slots, I]` f32.
    pub inner: u64,
    /// As in [`UpParams`].
    pub num_tiles: u64,
    /// Triples of i32.
    pub tiles: u64,
    /// Slots ordered by expert.
    pub slots: u64,
    /// `[slots, D]` f32.
    pub out: u64,
    /// Without tiles: number of slots.
    pub num_slots: i32,
    /// Zero.
    pub padding: i32,
}

/// SwiGLU matrices of one or many experts.
#[derive(Debug, Clone, Copy)]
pub struct Experts {
    /// `[E, I, D]`.
    pub gate: Matrix,
    /// `[E, I, D]`.
    pub up: Matrix,
    /// `[E, D, I]`.
    pub down: Matrix,
}

/// The slots of a launch.
#[derive(Debug, Clone, Copy)]
pub enum Slots<'a> {
    /// Slot t is row t, of expert 0.
    Rows(usize),
    /// As routed.
    Routed(&'a Worklist),
}

impl Slots<'_> {
    /// num_tiles, tiles, slots, number of slots, most tiles.
    fn parts(self) -> (u64, u64, u64, usize, usize) {
        match self {
            Slots::Rows(count) => (0, 0, 0, count, count.div_ceil(TILE_ROWS)),
            Slots::Routed(list) => (list.num_tiles, list.tiles, list.slots, 0, list.max_tiles),
        }
    }
}

/// Enqueues `inner = silu(gate x) * up x` of all slots, slot s reading row s / `top_k` of x.
pub fn launch_up<D: Driver>(
    stream: &mut Stream<D>,
    experts: &Experts,
    slots: Slots<'_>,
    top_k: usize,
    x: u64,
    inner: u64,
) -> Result<(), OpError> {
    let name = FUNCTIONS[experts.gate.format as usize];
    let (num_tiles, tiles, list, num_slots, max_tiles) = slots.parts();
    let params = UpParams {
        gate: experts.gate.params,
        up: experts.up.params,
        x,
        num_tiles,
        tiles,
        slots: list,
        inner,
        top_k: top_k as i32,
        num_slots: num_slots as i32,
    };
    let grid = [experts.gate.out_features.div_ceil(8) as u32, max_tiles as u32, 1];
    stream.launch(name, LaunchShape { grid, threads: THREADS, shared_bytes: 0 }, &params)
}

/// Enqueues `out = down inner` of all slots.
pub fn launch_down<D: Driver>(
    stream: &mut Stream<D>,
    experts: &Experts,
    slots: Slots<'_>,
    inner: u64,
    out: u64,
) -> Result<(), OpError> {
    let name = FUNCTIONS[Format::COUNT + experts.down.format as usize];
    let (num_tiles, tiles, list, num_slots, max_tiles) = slots.parts();
    let params = DownParams {
        down: experts.down.params,
        inner,
        num_tiles,
        tiles,
        slots: list,
        out,
        num_slots: num_slots as i32,
        padding: 0,
    };
    let grid = [experts.down.out_features.div_ceil(16) as u32, max_tiles as u32, 1];
    stream.launch(name, LaunchShape { grid, threads: THREADS, shared_bytes: 0 }, &params)
}
