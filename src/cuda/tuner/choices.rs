//! Which variant the backend launches: the measured choice, else the shipped default. One that lost the device is not launched
//! while there is another one.

use std::collections::HashMap;

use super::MARGIN;
use super::candidate::Candidate;
use super::measurement::Measurement;
use super::op::{Product, TunedOp};
use super::table::{Lost, Table};
use crate::Arch;
use crate::kernels::fp4;
use crate::kernels::tiled::Variant;
use crate::weights::{Panels, Tiled};
use perigee_numbers::quant::ActivationForm;

/// Choices by op. They change speed, never a result: all variants give the same bits, but for the vendor's products
/// ([`Choices::by_vendor`]).
#[derive(Debug, Clone, Default)]
pub struct Choices {
    measured: HashMap<TunedOp, Measured>,
    /// Slots of a block of accepted candidates of panels, with their microseconds.
    panels: HashMap<TunedOp, Vec<(usize, f64)>>,
    /// Functions that are not launched.
    lost: Vec<Lost>,
}

/// What a measurement says about the variants that ship.
#[derive(Debug, Clone)]
struct Measured {
    choice: &'static Variant,
    /// Accepted variants with their microseconds.
    accepted: Vec<(&'static Variant, f64)>,
    /// Whether the vendor's product is faster than the choice.
    vendor_wins: bool,
}

impl Measured {
    /// `None`: every variant is refused, or a version with other variants wrote the measurement.
    fn of(measurement: &Measurement) -> Option<Self> {
        let choice = Variant::named(measurement.choice()?)?;
        let ranking = measurement.ranking();
        let accepted = ranking.iter().filter_map(|(name, micros)| Some((Variant::named(name)?, *micros)));
        Some(Self { choice, accepted: accepted.collect(), vendor_wins: measurement.vendor_wins() })
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
        let measurements = || table.measurements.iter();
        let of_panels = |measurement: &Measurement| {
            let form = measurement.op.form()?;
            let candidates = Candidate::of_panels(measurement.op.product, form);
            let accepted = candidates
                .iter()
                .filter_map(|candidate| Some((candidate.rows, measurement.micros(candidate.name)?)));
            Some((measurement.op, accepted.collect()))
        };
        Self {
            measured: measurements().filter_map(of).collect(),
            panels: measurements().filter_map(of_panels).collect(),
            lost: table.lost.clone(),
        }
    }

    /// Slots of a block of both products of experts in panels, for so many slots of rows in a form: those of few or of many slots, as
    /// [`Self::pair`].
    pub(crate) fn panel_slots(
        &self,
        arch: Arch,
        [gate_up, down]: [&Panels; 2],
        form: ActivationForm,
        num_slots: usize,
    ) -> usize {
        let default = fp4::tile_rows(arch, form, num_slots.div_ceil(gate_up.count.max(1)));
        let is_usable = |slots: usize| {
            [Product::Swiglu, Product::Linear].into_iter().all(|product| {
                let mut own = Candidate::of_panels(product, form).into_iter();
                own.all(|one| one.rows != slots || !one.fits(arch) || one.is_usable(&self.lost))
            })
        };
        let all = [1, usize::MAX].map(|slots| fp4::tile_rows(arch, form, slots));
        let usable = || std::iter::once(default).chain(all).filter(|slots| is_usable(*slots));
        let measured = |product, panels| {
            self.panels.get(&TunedOp::of_panels(product, panels, form.num_terms(), num_slots))
        };
        let (first, second) = (measured(Product::Swiglu, gate_up), measured(Product::Linear, down));
        let both = first.zip(second);
        let time = |slots: usize| {
            let of = |times: &[(usize, f64)]| times.iter().find(|time| time.0 == slots).map(|time| time.1);
            both.and_then(|(first, second)| Some((slots, of(first)? + of(second)?)))
        };
        let best = usable().filter_map(time).min_by(|a, b| a.1.total_cmp(&b.1));
        match (usable().find(|slots| *slots == default).and_then(time), best) {
            (Some(usual), Some(best)) if best.1 >= usual.1 * (1.0 - MARGIN) => default,
            (_, Some((slots, _))) => slots,
            (_, None) => usable().next().unwrap_or(default),
        }
    }

    /// The default of so many rows if its blocks have them, else the first usable variant whose blocks do, and that every architecture can
    /// launch: what is taken without a measurement has not been seen on this one.
    pub(crate) fn with_rows(
        &self,
        product: Product,
        matrix: &Tiled,
        rows: usize,
    ) -> Option<&'static Variant> {
        let usable = |variant: &Variant| {
            Candidate::of(product, matrix.format, matrix.in_features, variant)
                .is_some_and(|candidate| candidate.is_usable(&self.lost))
        };
        let others = Variant::ALL.iter().filter(|variant| runs_anywhere(variant));
        let mut all = std::iter::once(Variant::preferred(rows)).chain(others);
        all.find(|variant| variant.rows == rows && usable(variant))
    }

    /// The variant for rows of one matrix.
    pub fn variant(&self, product: Product, matrix: &Tiled, rows: usize) -> &'static Variant {
        if let Some(measured) = self.measured.get(&TunedOp::of(product, matrix, rows)) {
            return measured.choice;
        }
        let preferred = Variant::preferred(rows.div_ceil(matrix.count.max(1)));
        rows_from(preferred).find_map(|rows| self.with_rows(product, matrix, rows)).unwrap_or(preferred)
    }

    /// Whether a product of so many rows was measured to be the vendor's, where those may be used.
    pub fn by_vendor(&self, matrix: &Tiled, rows: usize) -> bool {
        self.measured.get(&TunedOp::of(Product::Linear, matrix, rows)).is_some_and(|op| op.vendor_wins)
    }

    /// The variants of both products of experts for so many slots. Both read one worklist, so their blocks have the same
    /// rows: those with the least sum of both times, the default's unless it loses by more than [`MARGIN`].
    pub fn pair(&self, gate_up: &Tiled, down: &Tiled, num_slots: usize) -> [&'static Variant; 2] {
        let default = Variant::preferred(num_slots.div_ceil(gate_up.count.max(1)));
        let usable = |rows: usize| {
            let second = self.with_rows(Product::Linear, down, rows)?;
            Some([self.with_rows(Product::Swiglu, gate_up, rows)?, second])
        };
        let unmeasured = || rows_from(default).find_map(usable).unwrap_or([default; 2]);
        let first = self.measured.get(&TunedOp::of(Product::Swiglu, gate_up, num_slots));
        let second = self.measured.get(&TunedOp::of(Product::Linear, down, num_slots));
        let (Some(first), Some(second)) = (first, second) else { return unmeasured() };
        let with_rows = |rows: usize| {
            let (a, b) = (first.fastest(rows)?, second.fastest(rows)?);
            Some(([a.0, b.0], a.1 + b.1))
        };
        let usual = with_rows(default.rows);
        let pairs = Variant::ALL.iter().filter_map(|variant| with_rows(variant.rows));
        match (usual, pairs.min_by(|a, b| a.1.total_cmp(&b.1))) {
            (Some(usual), Some(best)) if best.1 >= usual.1 * (1.0 - MARGIN) => usual.0,
            (_, Some(best)) => best.0,
            (_, None) => unmeasured(),
        }
    }
}

/// Whether every architecture can launch a variant.
fn runs_anywhere(variant: &Variant) -> bool {
    Arch::ALL.iter().all(|arch| variant.fits(*arch))
}

/// Rows of the blocks of all variants that run anywhere, behind those of `first`.
fn rows_from(first: &Variant) -> impl Iterator<Item = usize> {
    let anywhere = Variant::ALL.iter().filter(|variant| runs_anywhere(variant));
    std::iter::once(first.rows).chain(anywhere.map(|variant| variant.rows))
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::super::measurement::tests::measurement;
    use super::super::op::Bucket;
    use super::super::table::Identity;
    use super::*;
    use crate::weights::{Format, TiledWeight};

    fn choices(measurements: Vec<Measurement>) -> Choices {
        let mut table = empty();
        table.add(measurements);
        Choices::of(&table)
    }

    fn empty() -> Table {
        let identity = Identity {
            gpu: String::new(),
            multiprocessors: 1,
            memory_clock_mhz: None,
            power_limit_w: None,
            driver: String::new(),
            programs: String::new(),
        };
        Table::new(identity)
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
    fn panels_have_the_slots_that_both_products_are_fastest_with() {
        let weight = crate::weights::PanelWeight::zeroed();
        let format = crate::weights::PanelFormat::Nvfp4;
        let panels = Panels { format, out_features: 64, in_features: 128, count: 4, weight };
        let form = ActivationForm::Nvfp4 { scale: 1.0, terms: 3 };
        let slots = |table: &Table, arch, num_slots| {
            Choices::of(table).panel_slots(arch, [&panels, &panels], form, num_slots)
        };
        let mut table = empty();
        // Of few slots of an expert few, and without a measurement many of more.
        assert_eq!([32, 33].map(|count| slots(&table, Arch::Sm120a, count)), [8, 32]);
        assert_eq!(slots(&table, Arch::Sm100a, 33), 64);
        let of = |product, few, many, bucket| {
            let measured = measurement(product, &[("slots8", few), ("slots32", many)], &[]);
            let op = TunedOp { rows: bucket, terms: 3, ..measured.op };
            Measurement { op, default: "slots32".into(), ..measured }
        };
        table.add(vec![
            of(Product::Swiglu, 4.0, 6.0, Bucket::UpTo16),
            of(Product::Linear, 5.0, 4.0, Bucket::UpTo16),
        ]);
        assert_eq!(slots(&table, Arch::Sm120a, 64), 8);
        assert_eq!(slots(&table, Arch::Sm120a, 65), 32);
        // Within the margin the default stays.
        table.add(vec![of(Product::Swiglu, 4.9, 6.0, Bucket::UpTo16)]);
        assert_eq!(slots(&table, Arch::Sm120a, 64), 32);
        table.lose("fp4_linear_nvfp4x3_32", String::new());
        assert_eq!(slots(&table, Arch::Sm120a, 64), 8);
    }

    #[test]
    fn what_lost_the_device_is_not_launched() {
        let mut table = empty();
        table.add(vec![measurement(Product::Linear, &[("split16x8", 10.0), ("split32x8", 5.0)], &[])]);
        for function in ["tiled_linear_nvfp4_split32x8", "tiled_swiglu_nvfp4_split16x8"] {
            table.lose(function, String::new());
        }
        let variant = |table: &Table, product| Choices::of(table).variant(product, &matrix(), 1).name;
        assert_eq!(variant(&table, Product::Linear), "split16x8");
        assert_eq!(variant(&table, Product::Swiglu), "split32x8");
        let pair =
            |table: &Table| Choices::of(table).pair(&matrix(), &matrix(), 4).map(|variant| variant.name);
        assert_eq!(pair(&table), ["split32x8", "split16x8"]);
        // Blocks of eight rows are left to one of the products alone.
        for function in ["tiled_swiglu_nvfp4_split32x8", "tiled_swiglu_nvfp4_wide16x8"] {
            table.lose(function, String::new());
        }
        assert_eq!(pair(&table), ["split32x16", "split32x16"]);
        assert_eq!(variant(&table, Product::Swiglu), "split32x16");
    }

    #[test]
    fn blocks_that_not_every_architecture_holds_need_a_measurement() {
        let mut table = empty();
        let large = "block32x96";
        assert_eq!(Choices::of(&table).variant(Product::Linear, &matrix(), 1000).name, "block32x64");
        for variant in Variant::ALL.iter().filter(|variant| variant.name != large) {
            table.lose(&format!("tiled_linear_nvfp4_{}", variant.name), String::new());
        }
        assert_eq!(Choices::of(&table).variant(Product::Linear, &matrix(), 1000).name, "block32x64");
        let op = TunedOp::of(Product::Linear, &matrix(), 1000);
        table.add(vec![Measurement { op, ..measurement(Product::Linear, &[(large, 5.0)], &[]) }]);
        assert_eq!(Choices::of(&table).variant(Product::Linear, &matrix(), 1000).name, large);
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
            pair(&[("block32x48", 90.0)], &[("block32x48", 9.0), ("split16x8", 1.0)], &["split16x8"]),
            ["block32x48", "block32x48"]
        );
        let none = choices(Vec::new());
        assert_eq!(none.pair(&matrix(), &matrix(), 32 * 4).map(|v| v.name), ["split16x32", "split16x32"]);
    }
}
