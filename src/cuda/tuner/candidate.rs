//! A kernel that could compute an op: its function, and the tiles and rows that its launch has.

use super::op::{Product, TunedOp};
use crate::cuda::kernels::tiled::{self, Part, Rows, Slots, Variant};
use crate::cuda::kernels::{tiled_linear, tiled_swiglu};
use crate::cuda::tiled::Tiled;
use crate::cuda::{Driver, Stream};
use crate::ops::OpError;

/// One way to compute an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Name and geometry.
    pub variant: Variant,
    /// Function of a loaded program; takes the parameters of the shipped ones.
    pub function: &'static str,
}

impl Candidate {
    /// The variants that ship, in the order of [`Variant::ALL`].
    pub fn shipped(op: &TunedOp) -> Vec<Self> {
        let function = match op.product {
            Product::Linear => tiled_linear::function,
            Product::Swiglu => tiled_swiglu::function,
        };
        let of = |variant: &Variant| Self { variant: *variant, function: function(variant, op.format) };
        Variant::ALL.iter().map(of).collect()
    }

    /// Enqueues the product.
    pub(super) fn launch<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        matrix: &Tiled,
        slots: Slots<'_>,
        rows: [Rows; 2],
    ) -> Result<(), OpError> {
        let [x, y] = rows;
        let part = Part { matrix, slots, x, y };
        tiled::launch_function(stream, self.function, &self.variant, &[part], false, None)
    }
}
