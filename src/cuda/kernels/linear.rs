//! Twin of `kernels/linear.cu`: projections.

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::weights::{Format, Matrix, WeightParams};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = plain!("linear", &FUNCTIONS, 128);

/// Functions in the order of [`Format`].
const FUNCTIONS: [&str; Format::COUNT + 1] = [
    "linear_f32",
    "linear_bf16",
    "linear_nvfp4",
    "linear_mxfp4",
    "linear_int4",
    "linear_fp8",
    "linear_bf16_of_many",
];

/// Threads of a block: 8 warps.
const THREADS: u32 = 256;
/// Outputs of a block.
const BLOCK_COLUMNS: usize = 16;
/// Rows of a block.
const BLOCK_ROWS: usize = 8;
/// Outputs of a block of the function of bf16 for many rows, and the least of these; both functions give the same bits.
const MANY_COLUMNS: usize = 24;
const MANY_ROWS: usize = 32;

/// `LinearParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// One matrix.
    pub weight: WeightParams,
    /// Rows of `x_stride` f32.
    pub x: u64,
    /// `[T]` u32, rows of x; 0: 0, 1, ...
    pub rows: u64,
    /// `[T, y_stride]` f32.
    pub y: u64,
    /// Values, a multiple of 8.
    pub x_stride: i64,
    /// Values.
    pub y_stride: i64,
    /// T.
    pub num_rows: i32,
    /// Whether y is added to.
    pub add: i32,
}

/// Rows of activations in device memory.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// Address of the first row.
    pub address: u64,
    /// Values between rows.
    pub stride: usize,
}

/// What happens to y.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// `y = x W^T`.
    Set,
    /// `y += x W^T`.
    Add,
}

impl Params {
    /// The products of `num_rows` rows, `rows` selecting them if it is not 0.
    pub(super) fn new(num_rows: usize, matrix: &Matrix, x: Rows, rows: u64, y: Rows, output: Output) -> Self {
        Self {
            weight: matrix.params,
            x: x.address,
            rows,
            y: y.address,
            x_stride: x.stride as i64,
            y_stride: y.stride as i64,
            num_rows: num_rows as i32,
            add: i32::from(output == Output::Add),
        }
    }
}

/// Enqueues the products of `num_rows` rows, `rows` selecting them if it is not 0.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    matrix: &Matrix,
    x: Rows,
    rows: u64,
    y: Rows,
    output: Output,
) -> Result<(), OpError> {
    let params = Params::new(num_rows, matrix, x, rows, y, output);
    let (function, block_columns) = match matrix.format {
        Format::Bf16 if num_rows >= MANY_ROWS => ("linear_bf16_of_many", MANY_COLUMNS),
        format => (FUNCTIONS[format as usize], BLOCK_COLUMNS),
    };
    let columns = matrix.out_features.div_ceil(block_columns) as u32;
    let grid = [columns, num_rows.div_ceil(BLOCK_ROWS) as u32, 1];
    stream.launch(function, LaunchShape { grid, threads: THREADS, shared_bytes: 0 }, &params)
}
