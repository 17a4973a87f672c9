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

    /// The variants that ship and suit the op, in the order of [`Variant::ALL`].
    pub fn shipped(op: &TunedOp) -> Vec<Self> {
        let suiting = Variant::ALL.iter().filter(|variant| variant.suits(op.in_features));
        suiting.map(|variant| Self::of(op.product, op.format, variant)).collect()
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

#[cfg(test)]
mod tests {
    use super::super::op::Bucket;
    use super::*;

    #[test]
    fn warps_by_themselves_are_tried_for_few_inputs_alone() {
        let names = |in_features| -> Vec<&str> {
            let (rows, product, format) = (Bucket::UpTo8, Product::Linear, Format::Nvfp4);
            let op = TunedOp { rows, product, format, out_features: 7168, in_features, count: 384 };
            Candidate::shipped(&op).iter().map(|candidate| candidate.variant.name).collect()
        };
        assert_eq!(names(2048).len(), Variant::ALL.len());
        let long = names(8192);
        assert_eq!((long.len(), long.contains(&"wide16x8")), (Variant::ALL.len() - 1, false));
    }
}
