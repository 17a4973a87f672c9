//! A kernel that could compute an op: its function, and the tiles and rows that its launch has.

use super::Lost;
use super::op::{Product, TunedOp};
use crate::cuda::kernels::tiled::{self, Part, Rows, Slots, Variant};
use crate::cuda::kernels::{tiled_linear, tiled_swiglu};
use crate::cuda::matrix::Format;
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
    /// A variant that ships.
    pub(super) fn of(product: Product, format: Format, variant: &Variant) -> Self {
        let function = match product {
            Product::Linear => tiled_linear::function(variant, format),
            Product::Swiglu => tiled_swiglu::function(variant, format),
        };
        Self { variant: *variant, function }
    }

    /// The variants that ship, in the order of [`Variant::ALL`].
    pub fn shipped(op: &TunedOp) -> Vec<Self> {
        Variant::ALL.iter().map(|variant| Self::of(op.product, op.format, variant)).collect()
    }

    /// Whether this device was never lost with it.
    pub fn is_usable(&self, lost: &[Lost]) -> bool {
        lost.iter().all(|lost| lost.function != self.function)
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
