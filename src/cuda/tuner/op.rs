//! What is tuned: one product of one shape, for about so many rows of each matrix.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::weights::{Format, PanelFormat, Panels, Tiled};
use perigee_numbers::quant::ActivationForm;

/// Scale of the tensor of rows of variance 1: the largest value without saturation is 43.
const SCALE: f32 = 0.016;

/// A kernel with variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Product {
    /// `y = x W^T`: projections, and the second product of the experts.
    Linear,
    /// `y = silu(gate x) * up x`: the first product of the experts.
    Swiglu,
}

impl Product {
    /// Name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Swiglu => "swiglu",
        }
    }

    /// Matrices of an expert.
    pub(super) fn matrices(self) -> usize {
        match self {
            Self::Linear => 1,
            Self::Swiglu => 2,
        }
    }

    /// Bytes of an output value.
    pub(super) fn value_bytes(self) -> usize {
        match self {
            Self::Linear => 4,
            Self::Swiglu => 2,
        }
    }
}

/// Rows of x for each matrix. A bucket begins where another variant is the default, and the last one at prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Bucket {
    /// 1 to 8.
    #[serde(rename = "1-8")]
    UpTo8,
    /// 9 to 16.
    #[serde(rename = "9-16")]
    UpTo16,
    /// 17 to 32.
    #[serde(rename = "17-32")]
    UpTo32,
    /// 33 to 96.
    #[serde(rename = "33-96")]
    UpTo96,
    /// 97 and more.
    #[serde(rename = "97+")]
    Above,
}

impl Bucket {
    /// All, in the order in which they are tuned: decode steps first.
    pub const ALL: [Self; 5] = [Self::UpTo8, Self::UpTo16, Self::UpTo32, Self::UpTo96, Self::Above];

    /// The bucket of so many rows.
    pub fn of(rows: usize) -> Self {
        match rows {
            0..=8 => Self::UpTo8,
            9..=16 => Self::UpTo16,
            17..=32 => Self::UpTo32,
            33..=96 => Self::UpTo96,
            _ => Self::Above,
        }
    }

    /// Most rows of blocks that are tried: small ones for all, for what a step has more or less of than it needs.
    pub(super) fn most(self) -> usize {
        if self == Self::Above { usize::MAX } else { 64 }
    }

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::UpTo8 => "1-8",
            Self::UpTo16 => "9-16",
            Self::UpTo32 => "17-32",
            Self::UpTo96 => "33-96",
            Self::Above => "97+",
        }
    }

    /// Numbers of rows that are checked; the last one is timed, which blocks of rows of every variant divide unevenly or
    /// fill. Of a long prompt each of many experts has few.
    pub(super) fn rows(self, routed: bool) -> [usize; 3] {
        match self {
            Self::UpTo8 => [1, 5, 8],
            Self::UpTo16 => [9, 13, 16],
            Self::UpTo32 => [17, 27, 32],
            Self::UpTo96 => [33, 50, 64],
            Self::Above if routed => [97, 130, 192],
            Self::Above => [97, 200, 1024],
        }
    }
}

/// One op to tune.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedOp {
    /// Rows of each matrix; first, so that an order by this type has decode steps in front.
    pub rows: Bucket,
    /// The kernel.
    pub product: Product,
    /// Format of the weights.
    pub format: Format,
    /// N of a matrix.
    pub out_features: usize,
    /// K.
    pub in_features: usize,
    /// Number of matrices, or of pairs of them: experts.
    pub count: usize,
    /// Terms of rows in 4-bit floats, of weights in panels; 0: rows in bf16, of weights in tiles.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub terms: usize,
}

fn is_zero(terms: &usize) -> bool {
    *terms == 0
}

impl TunedOp {
    /// The op of a product with `matrix` of `num_slots` rows, spread over all its matrices.
    pub fn of(product: Product, matrix: &Tiled, num_slots: usize) -> Self {
        Self {
            rows: Bucket::of(num_slots.div_ceil(matrix.count.max(1))),
            product,
            format: matrix.format,
            out_features: matrix.out_features,
            in_features: matrix.in_features,
            count: matrix.count,
            terms: 0,
        }
    }

    /// The op of a product with panels of `num_slots` rows in so many terms.
    pub(super) fn of_panels(product: Product, panels: &Panels, terms: usize, num_slots: usize) -> Self {
        Self {
            rows: Bucket::of(num_slots.div_ceil(panels.count.max(1))),
            product,
            format: match panels.format {
                PanelFormat::Nvfp4 => Format::Nvfp4,
                PanelFormat::Mxfp4 => Format::Mxfp4,
            },
            out_features: panels.out_features,
            in_features: panels.in_features,
            count: panels.count,
            terms,
        }
    }

    /// Form of rows in 4-bit floats with roughly normal values, if the op has such rows.
    pub(super) fn form(&self) -> Option<ActivationForm> {
        self.form_of(SCALE)
    }

    /// Form of the rows of y, if they are in 4-bit floats: of the first product, whose outliers are multiplied with one another.
    pub(super) fn inner_form(&self) -> Option<ActivationForm> {
        self.form_of(16.0 * SCALE).filter(|_| self.product == Product::Swiglu)
    }

    fn form_of(&self, scale: f32) -> Option<ActivationForm> {
        match self.format {
            _ if self.terms == 0 => None,
            Format::Mxfp4 => Some(ActivationForm::Mxfp4),
            _ => Some(ActivationForm::Nvfp4 { scale, terms: self.terms as u8 }),
        }
    }

    /// Whether the vendor's library may compute it, from weights unpacked for each launch: with the rows of a prompt that pays.
    pub(super) fn may_be_the_vendors(&self) -> bool {
        let Self { rows, product, format, count, .. } = *self;
        (rows, product, format, count) == (Bucket::Above, Product::Linear, Format::Bf16, 1)
    }

    /// Bytes of the weights of one expert.
    pub(super) fn expert_bytes(&self) -> usize {
        // Bits of 16 weights with their scales.
        let bits = match self.format {
            Format::F32 => 512,
            Format::Bf16 => 256,
            Format::Fp8 => 128,
            Format::Nvfp4 | Format::Int4 => 72,
            Format::Mxfp4 => 68,
        };
        (self.product.matrices() * self.out_features * self.in_features).div_ceil(16) * bits / 8
    }

    /// The op with fewer experts, or fewer outputs, where its weights exceed `max_bytes`.
    pub(super) fn within(mut self, max_bytes: usize) -> Self {
        let fitting = max_bytes / self.expert_bytes().max(1);
        self.count = self.count.min(fitting.max(1));
        if fitting == 0 {
            let rows = self.out_features * max_bytes / self.expert_bytes().max(1);
            // A multiple of what shares a scale.
            self.out_features = (rows / 128 * 128).max(128).min(self.out_features);
        }
        self
    }
}

impl fmt::Display for TunedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, product, format, out_features, in_features, count, terms } = self;
        let (product, format, rows) = (product.name(), format.name(), rows.name());
        write!(f, "{product}-{format}-{out_features}x{in_features}-x{count}-rows{rows}")?;
        if *terms > 0 { write!(f, "-terms{terms}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(out_features: usize, count: usize) -> TunedOp {
        let (rows, product, format) = (Bucket::UpTo8, Product::Swiglu, Format::Nvfp4);
        TunedOp { rows, product, format, out_features, in_features: 7168, count, terms: 0 }
    }

    #[test]
    fn buckets_are_those_of_the_defaults() {
        use crate::kernels::tiled::Variant;
        for rows in 1..200 {
            let bucket = Bucket::of(rows);
            for measured in [false, true].map(|routed| bucket.rows(routed)) {
                assert_eq!(Variant::preferred(rows), Variant::preferred(measured[2]), "{rows}");
                assert!(measured.iter().all(|rows| Bucket::of(*rows) == bucket));
            }
        }
    }

    #[test]
    fn a_large_op_is_measured_in_part() {
        // 2 * 2048 * 7168 * 0.5625 bytes.
        assert_eq!(op(2048, 384).expert_bytes(), 16_515_072);
        assert_eq!(op(2048, 384).within(512 << 20).count, 32);
        assert_eq!(op(2048, 4).within(512 << 20), op(2048, 4));
        let part = op(163_840, 1).within(64 << 20);
        assert!(part.out_features.is_multiple_of(128) && part.expert_bytes() <= 64 << 20, "{part}");
        assert_eq!(op(40, 3).within(1), TunedOp { count: 1, ..op(40, 3) });
    }

    #[test]
    fn names_say_everything() {
        assert_eq!(op(2048, 384).to_string(), "swiglu-nvfp4-2048x7168-x384-rows1-8");
        let json = serde_json::to_string(&op(2048, 384)).unwrap();
        assert_eq!(serde_json::from_str::<TunedOp>(&json).unwrap(), op(2048, 384), "{json}");
        let in_terms = TunedOp { terms: 3, ..op(2048, 384) };
        assert_eq!(in_terms.to_string(), "swiglu-nvfp4-2048x7168-x384-rows1-8-terms3");
        let json = serde_json::to_string(&in_terms).unwrap();
        assert_eq!(serde_json::from_str::<TunedOp>(&json).unwrap(), in_terms, "{json}");
    }
}
