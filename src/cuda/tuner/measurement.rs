//! What was measured of one op, and what follows from it.

use serde::{Deserialize, Serialize};

use super::MARGIN;
use super::op::TunedOp;

/// One candidate of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// Name of the variant.
    pub variant: String,
    /// Median time of a launch; `None` if it was refused.
    pub micros: Option<f64>,
    /// Why it must not be used.
    pub refused: Option<String>,
}

/// All candidates of an op.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The op.
    pub op: TunedOp,
    /// The op as measured: a large one with fewer experts or outputs.
    pub measured: TunedOp,
    /// Rows of the timed launch, over all matrices.
    pub num_slots: usize,
    /// Bytes that the timed launch moves at least: weights, inputs, outputs.
    pub least_bytes: u64,
    /// Variant that is used unless another one wins.
    pub default: String,
    /// Every candidate, the first one being that which the others are compared with.
    pub tried: Vec<Tried>,
    /// The vendor's product, its unpacked weights included, if it was tried.
    pub vendor: Option<Tried>,
    /// Largest difference of the first candidate from the f32 kernel, as `ops/tolerance.rs` defines it; `None`: not a
    /// number.
    pub error: Option<f32>,
    /// Bytes per second of a copy on the device in the same run, reads and writes.
    pub copy_bandwidth: f64,
    /// Seconds since 1970.
    pub date: u64,
}

impl Measurement {
    /// Time of an accepted candidate.
    pub fn micros(&self, variant: &str) -> Option<f64> {
        self.tried.iter().find(|tried| tried.variant == variant).and_then(|tried| tried.micros)
    }

    /// Refused candidates with the reasons.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &str)> {
        let refusal = |tried: &'_ Tried| tried.refused.is_some();
        let refused = self.tried.iter().filter(move |tried| refusal(tried));
        refused.filter_map(|tried| Some((tried.variant.as_str(), tried.refused.as_deref()?)))
    }

    /// Accepted candidates, the fastest first.
    pub fn ranking(&self) -> Vec<(&str, f64)> {
        let timed = self.tried.iter().filter_map(|tried| Some((tried.variant.as_str(), tried.micros?)));
        let mut ranking: Vec<(&str, f64)> = timed.collect();
        ranking.sort_by(|a, b| a.1.total_cmp(&b.1));
        ranking
    }

    /// The fastest candidate if it beats the default by more than [`MARGIN`], or if the default is refused; else the
    /// default. `None`: every candidate is refused.
    pub fn choice(&self) -> Option<&str> {
        let (fastest, micros) = *self.ranking().first()?;
        match self.micros(&self.default) {
            Some(default) if micros >= default * (1.0 - MARGIN) => Some(&self.default),
            _ => Some(fastest),
        }
    }

    /// Whether the vendor's product is right and faster than the choice by more than [`MARGIN`].
    pub fn vendor_wins(&self) -> bool {
        let chosen = self.choice().and_then(|choice| self.micros(choice));
        let vendor = self.vendor.as_ref().and_then(|tried| tried.micros);
        vendor.zip(chosen).is_some_and(|(vendor, chosen)| vendor < chosen * (1.0 - MARGIN))
    }

    /// Share of the time that moving [`Measurement::least_bytes`] at the speed of a copy would take.
    pub fn share_of_floor(&self, micros: f64) -> f64 {
        self.least_bytes as f64 / self.copy_bandwidth * 1e6 / micros
    }

    /// Whether the numbers are numbers; a file may hold anything.
    pub(super) fn is_sound(&self) -> bool {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let tried = |tried: &Tried| {
            tried.micros.is_none_or(positive) && tried.micros.is_some() != tried.refused.is_some()
        };
        positive(self.copy_bandwidth) && self.tried.iter().chain(&self.vendor).all(tried)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::op::{Bucket, Product};
    use super::*;
    use crate::weights::Format;

    /// `default` is split16x8.
    pub(in super::super) fn measurement(
        product: Product,
        times: &[(&str, f64)],
        refused: &[&str],
    ) -> Measurement {
        let op = TunedOp {
            rows: Bucket::UpTo8,
            product,
            format: Format::Nvfp4,
            out_features: 64,
            in_features: 128,
            count: 4,
            terms: 0,
        };
        let timed = times.iter().map(|(name, micros)| Tried {
            variant: (*name).into(),
            micros: Some(*micros),
            refused: None,
        });
        let refused = refused.iter().map(|name| Tried {
            variant: (*name).into(),
            micros: None,
            refused: Some("it has other bits".into()),
        });
        Measurement {
            op,
            measured: op,
            num_slots: 32,
            least_bytes: 1000,
            default: "split16x8".into(),
            tried: timed.chain(refused).collect(),
            vendor: None,
            error: Some(1e-6),
            copy_bandwidth: 1e9,
            date: 0,
        }
    }

    #[test]
    fn the_default_stays_unless_it_loses_by_more_than_the_margin() {
        let check = |times: &[(&str, f64)], refused: &[&str], expected: Option<&str>| {
            assert_eq!(measurement(Product::Linear, times, refused).choice(), expected, "{times:?}");
        };
        check(&[("split16x8", 100.0), ("split32x8", 97.01)], &[], Some("split16x8"));
        check(&[("split16x8", 100.0), ("split32x8", 96.9)], &[], Some("split32x8"));
        check(&[("split16x8", 100.0), ("split32x8", 110.0)], &[], Some("split16x8"));
        check(&[("split16x8", 100.0)], &["split32x8"], Some("split16x8"));
        check(&[("block32x48", 120.0), ("split32x8", 110.0)], &["split16x8"], Some("split32x8"));
        check(&[], &["split16x8", "split32x8"], None);
    }

    #[test]
    fn the_vendors_product_wins_by_more_than_the_margin() {
        let wins = |micros: Option<f64>, times: &[(&str, f64)]| {
            let refused = micros.is_none().then(|| "it is not finite".into());
            let vendor = Some(Tried { variant: "cuBLASLt".into(), micros, refused });
            Measurement { vendor, ..measurement(Product::Linear, times, &[]) }.vendor_wins()
        };
        let times = [("split16x8", 100.0), ("split32x8", 50.0)];
        assert!(wins(Some(48.4), &times) && !wins(Some(48.6), &times));
        assert!(!wins(None, &times) && !wins(Some(1.0), &[]));
        assert!(!measurement(Product::Linear, &times, &[]).vendor_wins());
    }

    #[test]
    fn the_floor_is_a_copy_of_the_bytes() {
        // 1000 bytes at 1 GB/s are 1 us.
        assert_eq!(measurement(Product::Linear, &[], &[]).share_of_floor(4.0), 0.25);
    }
}
