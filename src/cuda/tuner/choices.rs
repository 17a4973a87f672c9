//! Which variant the backend launches: the measured choice, else the shipped default.

use std::collections::HashMap;

use super::MARGIN;
use super::measurement::Measurement;
use super::op::{Product, TunedOp};
use super::table::Table;
use crate::cuda::kernels::tiled::Variant;
use crate::cuda::tiled::Tiled;

/// Choices by op. They change speed, never a result: all variants give the same bits.
#[derive(Debug, Clone, Default)]
pub struct Choices(HashMap<TunedOp, Measured>);

/// What a measurement says about the variants that ship.
#[derive(Debug, Clone)]
struct Measured {
    choice: &'static Variant,
    /// Accepted variants with their microseconds.
    accepted: Vec<(&'static Variant, f64)>,
}

impl Measured {
    /// `None`: every variant is refused, or a version with other variants wrote the measurement.
    fn of(measurement: &Measurement) -> Option<Self> {
        let choice = Variant::named(measurement.choice()?)?;
        let ranking = measurement.ranking();
        let accepted = ranking.iter().filter_map(|(name, micros)| Some((Variant::named(name)?, *micros)));
        Some(Self { choice, accepted: accepted.collect() })
    }

    /// The fastest accepted variant whose blocks have so many rows.
    fn fastest(&self, rows: usize) -> Option<(&'static Variant, f64)> {
        self.accepted.iter().find(|(variant, _)| variant.rows == rows).copied()
    }
}

impl Choices {
    /// The choices that follow from a table.
    pub fn of(table: &Table) -> Self {
        let of = |measurement: &Measurement| Some((measurement.op, Measured::of(measurement)?));
        Self(table.measurements.iter().filter_map(of).collect())
    }

    /// The variant for rows of one matrix.
    pub fn variant(&self, product: Product, matrix: &Tiled, rows: usize) -> &'static Variant {
        match self.0.get(&TunedOp::of(product, matrix, rows)) {
            Some(measured) => measured.choice,
            None => Variant::preferred(rows.div_ceil(matrix.count.max(1))),
        }
    }

    /// The variants of both products of experts for so many slots. Both read one worklist, so their blocks have the same
    /// rows: those with the least sum of both times, the default's unless it loses by more than [`MARGIN`].
    pub fn pair(&self, gate_up: &Tiled, down: &Tiled, num_slots: usize) -> [&'static Variant; 2] {
        let default = Variant::with_rows(Variant::preferred(num_slots.div_ceil(gate_up.count.max(1))).rows);
        let first = self.0.get(&TunedOp::of(Product::Swiglu, gate_up, num_slots));
        let second = self.0.get(&TunedOp::of(Product::Linear, down, num_slots));
        let (Some(first), Some(second)) = (first, second) else { return [default; 2] };
        let with_rows = |rows: usize| {
            let (a, b) = (first.fastest(rows)?, second.fastest(rows)?);
            Some(([a.0, b.0], a.1 + b.1))
        };
        let usual = with_rows(default.rows);
        let pairs = Variant::ALL.iter().filter_map(|variant| with_rows(variant.rows));
        match (usual, pairs.min_by(|a, b| a.1.total_cmp(&b.1))) {
            (Some(usual), Some(best)) if best.1 >= usual.1 * (1.0 - MARGIN) => usual.0,
            (_, Some(best)) => best.0,
            (_, None) => [default; 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::super::measurement::tests::measurement;
    use super::super::table::Identity;
    use super::*;
    use crate::cuda::matrix::Format;
    use crate::cuda::tiled::TiledWeight;

    fn choices(measurements: Vec<Measurement>) -> Choices {
        let identity = Identity {
            gpu: String::new(),
            multiprocessors: 1,
            memory_clock_mhz: None,
            power_limit_w: None,
            driver: String::new(),
            programs: String::new(),
        };
        let mut table = Table::new(identity);
        table.add(measurements);
        Choices::of(&table)
    }

    fn matrix() -> Tiled {
        let weight = TiledWeight::zeroed();
        Tiled { format: Format::Nvfp4, out_features: 64, in_features: 128, count: 4, weight }
    }

    #[test]
    fn a_choice_holds_for_its_bucket_alone() {
        let times = [("split16x8", 10.0), ("split32x8", 5.0)];
        let choices = choices(vec![measurement(Product::Linear, &times, &[])]);
        let name = |product, slots| choices.variant(product, &matrix(), slots).name;
        assert_eq!(name(Product::Linear, 1), "split32x8");
        assert_eq!(name(Product::Linear, 32), "split32x8");
        assert_eq!(name(Product::Linear, 33), "split32x16");
        assert_eq!(name(Product::Swiglu, 1), "split16x8");
        let other = Tiled { in_features: 256, ..matrix() };
        assert_eq!(choices.variant(Product::Linear, &other, 1).name, "split16x8");
    }

    #[test]
    fn both_products_of_experts_have_the_same_rows() {
        let pair = |first: &[(&str, f64)], second: &[(&str, f64)], refused: &[&str]| {
            let choices = choices(vec![
                measurement(Product::Swiglu, first, refused),
                measurement(Product::Linear, second, &[]),
            ]);
            choices.pair(&matrix(), &matrix(), 32).map(|variant| variant.name)
        };
        // The best of each has other rows; 16 rows are best for the sum.
        let first = [("split16x8", 10.0), ("split32x8", 9.0), ("split32x16", 6.0)];
        let second = [("split16x8", 4.0), ("split32x8", 5.0), ("split32x16", 5.0)];
        assert_eq!(pair(&first, &second, &[]), ["split32x16", "split32x16"]);
        // Of one number of rows each takes its own fastest.
        assert_eq!(pair(&first[..2], &second, &[]), ["split32x8", "split16x8"]);
        // A gain within the margin changes no rows.
        let near = [("split16x8", 10.0), ("split32x16", 9.7)];
        let equal = [("split16x8", 5.0), ("split32x16", 5.0)];
        assert_eq!(pair(&near, &equal, &[]), ["split16x8", "split16x8"]);
        // What is refused is not used, however fast.
        assert_eq!(
            pair(&[("wide16x48", 90.0)], &[("wide16x48", 9.0), ("split16x8", 1.0)], &["split16x8"]),
            ["wide16x48", "wide16x48"]
        );
        let none = choices(Vec::new());
        assert_eq!(none.pair(&matrix(), &matrix(), 32 * 4).map(|v| v.name), ["split16x32", "split16x32"]);
    }
}
