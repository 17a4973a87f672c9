//! A kernel that could compute an op: its function, and the tiles and rows that its launch has.

use super::Lost;
use super::op::{Product, TunedOp};
use super::problem::Problem;
use crate::kernels::tiled::{self, Part, Rows, Slots, Variant};
use crate::kernels::{fp4, fp4_linear, fp4_swiglu, tiled_linear, tiled_swiglu};
use crate::weights::Format;
use crate::{Arch, Driver, Stream};
use perigee_numbers::quant::ActivationForm;
use perigee_ops::OpError;

/// One way to compute an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Name in tables.
    pub name: &'static str,
    /// Rows of x of a block.
    pub rows: usize,
    /// Function of a loaded program; takes the parameters of the shipped ones.
    pub function: &'static str,
    /// What the weights are in.
    weights: Weights,
}

/// Layout of the weights of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// Tiles, multiplied with this geometry.
    Tiles(Variant),
    /// Panels, on these architectures.
    Panels(&'static [Arch]),
}

impl Candidate {
    /// A variant of a product of tiles by a function that takes its parameters.
    pub const fn of_tiles(variant: Variant, function: &'static str) -> Self {
        Self { name: variant.name, rows: variant.rows, function, weights: Weights::Tiles(variant) }
    }

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
        function.filter(|_| suits).map(|function| Self::of_tiles(*variant, function))
    }

    /// Those of a product of panels, for rows in a form.
    pub(super) fn of_panels(product: Product, form: ActivationForm) -> [Self; 4] {
        let functions = match product {
            Product::Linear => fp4_linear::ALL,
            Product::Swiglu => fp4_swiglu::ALL,
        };
        functions.of(form).map(|function| Self {
            name: slots_name(function.slots),
            rows: function.slots,
            function: function.name,
            weights: Weights::Panels(function.archs),
        })
    }

    /// The variants that ship and suit the op, in the order of [`Variant::ALL`]; of panels few slots of a block, then many.
    pub fn shipped(op: &TunedOp) -> Vec<Self> {
        if let Some(form) = op.form() {
            return Self::of_panels(op.product, form).to_vec();
        }
        // Routed rows are in no order for panels.
        let sensible = Variant::ALL.iter().filter(|variant| {
            variant.rows <= op.rows.most() && (!variant.schedule.reads_panels() || op.count == 1)
        });
        sensible.filter_map(|variant| Self::of(op.product, op.format, op.in_features, variant)).collect()
    }

    /// Whether an architecture has its instructions, and the shared memory of its blocks.
    pub fn fits(&self, arch: Arch) -> bool {
        match &self.weights {
            Weights::Tiles(variant) => variant.fits(arch),
            Weights::Panels(archs) => archs.contains(&arch),
        }
    }

    /// Whether this device was never lost with it.
    pub fn is_usable(&self, lost: &[Lost]) -> bool {
        lost.iter().all(|lost| lost.function != self.function)
    }

    /// Enqueues the product with a copy of the weights. What it writes of panels' first product are rows in 4-bit floats, their stride in bytes.
    pub(super) fn launch<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        problem: &Problem,
        copy: usize,
        slots: Slots<'_>,
        y: Rows,
    ) -> Result<(), OpError> {
        match (&self.weights, problem.coded()) {
            (Weights::Panels(_), Some((form, x))) => {
                let part = |y_form| {
                    let matrix = &problem.panels[copy];
                    [fp4::Part { matrix, slots, tile_rows: self.rows, x, form, y, y_form }]
                };
                match problem.op.inner_form() {
                    None => fp4_linear::launch(stream, &part(None)),
                    Some(inner) => fp4_swiglu::launch(stream, &part(Some(inner.into()))),
                }
            }
            (Weights::Tiles(variant), _) => {
                let part = Part { matrix: &problem.copies[copy], slots, x: problem.x(), y };
                tiled::launch_function(stream, self.function, variant, &[part], false, None)
            }
            (Weights::Panels(_), None) => {
                Err(OpError::UnsupportedDtype { op: "tune", dtype: "rows in bf16".into(), backend: "cuda" })
            }
        }
    }
}

/// Name of so many slots of a block in tables.
pub(super) fn slots_name(slots: usize) -> &'static str {
    match slots {
        8 => "slots8",
        32 => "slots32",
        64 => "slots64",
        128 => "slots128",
        _ => "slots256",
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
            let op = TunedOp { rows, product, format, out_features: 7168, in_features, count: 384, terms: 0 };
            Candidate::shipped(&op).iter().map(|candidate| candidate.name).collect()
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
            let op =
                TunedOp { rows, product, format, out_features: 7168, in_features: 8192, count, terms: 0 };
            Candidate::shipped(&op).iter().any(|candidate| candidate.name == name)
        };
        for (name, format) in
            [("panel32x128", Format::Bf16), ("tcgen32x256", Format::Bf16), ("tcgen32x256", Format::Int4)]
        {
            assert!(panels(name, format, 1) && !panels(name, format, 8), "{name}");
        }
        assert!(!panels("tcgen32x256", Format::Fp8, 1) && !panels("panel32x128", Format::Int4, 1));
    }
}
