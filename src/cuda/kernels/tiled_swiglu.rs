//! Twin of `kernels/tiled_swiglu.cu`: the first product of the experts on tensor cores.

use super::plain;
use super::tiled::{self, FUNCTIONS, Rows, Slots, Variant, names};
use crate::cuda::matrix::Format;
use crate::cuda::tiled::Tiled;
use crate::cuda::{Driver, Kernel, Stream};
use crate::ops::OpError;

/// The declaration.
pub const KERNEL: Kernel = plain("tiled_swiglu", &NAMES, 255);

const NAMES: [&str; FUNCTIONS] = names!("tiled_swiglu");

/// The function of a variant for a format.
pub fn function(variant: &Variant, format: Format) -> &'static str {
    tiled::function(&NAMES, variant, format)
}

/// Enqueues `y = silu(gate x) * up x` of all slots: x and y bf16, y's rows slots; `matrix` has pairs of gate and up.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    variant: &Variant,
    matrix: &Tiled,
    slots: Slots<'_>,
    rows: [Rows; 2],
) -> Result<(), OpError> {
    tiled::launch(stream, &NAMES, variant, matrix, slots, rows, false)
}
