//! A kernel that could compute an op: its function, and the tiles and rows that its launch has.

use super::Lost;
use super::op::{Product, TunedOp};
use crate::kernels::tiled::{self, Part, Rows, Slots, Variant};
use crate::kernels::{tiled_linear, tiled_swiglu};
use crate::weights::{Format, Tiled};
use crate::{Driver, Stream};
use perigee_ops::OpError;

/// One way to compute an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Name and geometry.
    pub variant: Variant,
    /// Function of a loaded program; takes the parameters of the shipped ones.
    pub function: &'static str,
}

impl Candidate {
    /// A variant that ships, for products of so many inputs; `None` if it does not suit them.
    pub(super) fn of(
        product: Product,
        format: Format,
        in_features: usize,
        variant: &Variant,
    ) -> Option<Self> {
        let function = match product {
            Product::Linear => tiled_linear::function(variant, format),
            Product::Swiglu => tiled_swiglu::function(variant, format),
        };
        let suits = variant.suits(in_features, product == Product::Linear);
        function.filter(|_| suits).map(|function| Self { variant: *variant, function })
    }

    /// The variants that ship and suit the op, in the order of [`Variant::ALL`].
    pub fn shipped(op: &TunedOp) -> Vec<Self> {
        // Routed rows are in no order for panels.
        let sensible = Variant::ALL.iter().filter(|variant| {
            variant.rows <= op.rows.most() && (!variant.schedule.reads_panels() || op.count == 1)
        });
        sensible.filter_map(|variant| Self::of(op.product, op.format, op.in_features, variant)).collect()
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
    fn variants_are_tried_where_they_suit() {
        let names_of = |product, in_features, rows| -> Vec<&str> {
            let format = Format::Nvfp4;
            let op = TunedOp { rows, product, format, out_features: 7168, in_features, count: 384 };
            Candidate::shipped(&op).iter().map(|candidate| candidate.variant.name).collect()
        };
        let names = |in_features, rows| names_of(Product::Linear, in_features, rows);
        let (short, long) = (names(2048, Bucket::UpTo8), names(8192, Bucket::UpTo8));
        assert!(short.contains(&"wide16x8") && !long.contains(&"wide16x8"));
        // Gate and up have no norm behind them.
        assert!(names_of(Product::Swiglu, 7168, Bucket::UpTo8).contains(&"wide16x8"));
        // Blocks of more rows than a step has are tried for prompts.
        assert!(!short.contains(&"block32x96") && names(2048, Bucket::Above).contains(&"block32x96"));
        // And 128 rows are of BF16, those in panels of one matrix.
        assert_eq!((short.len(), long.len()), (Variant::ALL.len() - 4, Variant::ALL.len() - 5));
        let panels = |name, format, count| {
            let (rows, product) = (Bucket::Above, Product::Linear);
            let op = TunedOp { rows, product, format, out_features: 7168, in_features: 8192, count };
            Candidate::shipped(&op).iter().any(|candidate| candidate.variant.name == name)
        };
        for (name, format) in
            [("panel32x128", Format::Bf16), ("tcgen32x256", Format::Bf16), ("tcgen32x256", Format::Int4)]
        {
            assert!(panels(name, format, 1) && !panels(name, format, 8), "{name}");
        }
        assert!(!panels("tcgen32x256", Format::Fp8, 1) && !panels("panel32x128", Format::Int4, 1));
    }
}
