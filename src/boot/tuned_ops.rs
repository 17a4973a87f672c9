//! The ops of a checkpoint whose kernels have variants.

use std::collections::BTreeSet;

use perigee_cuda::Format;
use perigee_cuda::tuner::{Bucket, Product, TunedOp};
use perigee_model::{Blueprint, Fp4Activations, Inventory, Linear, ModuleClass};
use perigee_numbers::quant::{Dialect, FloatType};

/// Every product on tensor cores of one of `ranks` devices, which have whole experts in so many groups, once for each bucket of rows: few rows first,
/// since decode steps have few. Those of FFNs whose rows are in 4-bit floats are there with each number of their terms.
pub(crate) fn tuned_ops(
    inventory: &Inventory,
    blueprint: &Blueprint,
    activations: Option<Fp4Activations>,
    ranks: usize,
    expert_groups: usize,
) -> Vec<TunedOp> {
    let products: BTreeSet<TunedOp> = inventory
        .linears
        .iter()
        .filter_map(|linear| {
            let (product, count) = product_of(linear, blueprint)?;
            let is_routed = linear.class == ModuleClass::RoutedExperts;
            let groups = if is_routed { expert_groups } else { 1 };
            let [out_features, in_features] = part_of(linear, ranks / groups);
            let count = count.div_ceil(groups);
            let format = format_of(linear.layout.dialect)?;
            let op =
                TunedOp { rows: Bucket::UpTo8, product, format, out_features, in_features, count, terms: 0 };
            let terms =
                activations.filter(|form| is_fp4(linear, *form)).map_or([0; 2], Fp4Activations::terms);
            Some(terms.map(|terms| TunedOp { terms, ..op }))
        })
        .flatten()
        .collect();
    let in_bucket = |rows| products.iter().map(move |op| TunedOp { rows, ..*op });
    Bucket::ALL.into_iter().flat_map(in_bucket).collect()
}

/// Whether rows in front of a linear are in 4-bit floats.
fn is_fp4(linear: &Linear, activations: Fp4Activations) -> bool {
    let is_ffn = [ModuleClass::DenseFfn, ModuleClass::SharedExperts, ModuleClass::RoutedExperts]
        .contains(&linear.class);
    is_ffn && linear.layout.dialect.format() == Some(activations.format())
}

/// `[out, in]` of a rank's part of a linear: heads, ids and inner units are cut.
fn part_of(linear: &Linear, ranks: usize) -> [usize; 2] {
    let [out, in_features] = linear.layout.shape;
    match linear.name.rsplit('.').next().unwrap_or_default() {
        "q_a_proj" | "kv_a_proj_with_mqa" => [out, in_features],
        "o_proj" | "down_proj" => [out, in_features.div_ceil(ranks)],
        _ => [out.div_ceil(ranks), in_features],
    }
}

/// The product that a linear is the (lower) matrix of, and the number of its matrices.
fn product_of(linear: &Linear, blueprint: &Blueprint) -> Option<(Product, usize)> {
    let last = linear.name.rsplit('.').next().unwrap_or_default();
    match (linear.class, last) {
        // Attention multiplies by it in a kernel of its own.
        (ModuleClass::Attention, "kv_b_proj") => None,
        (ModuleClass::Attention | ModuleClass::Head, _) => Some((Product::Linear, 1)),
        (ModuleClass::DenseFfn | ModuleClass::SharedExperts, "gate_proj") => Some((Product::Swiglu, 1)),
        (ModuleClass::DenseFfn | ModuleClass::SharedExperts, "down_proj") => Some((Product::Linear, 1)),
        (ModuleClass::RoutedExperts, "gate_proj") => Some((Product::Swiglu, blueprint.router.num_experts)),
        (ModuleClass::RoutedExperts, "down_proj") => Some((Product::Linear, blueprint.router.num_experts)),
        _ => None,
    }
}

/// The format on the device; `None` for what stays f32.
fn format_of(dialect: Dialect) -> Option<Format> {
    match dialect {
        Dialect::Plain(FloatType::Bf16) => Some(Format::Bf16),
        _ => dialect.format().map(Format::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nano;
    use perigee_model::checkpoint::Checkpoint;

    #[test]
    fn the_embedded_model_has_every_product() {
        let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
        let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
        let inventory = Inventory::take(&checkpoint, &blueprint);
        let ops = tuned_ops(&inventory, &blueprint, None, 1, 1);
        let has = |product, out_features, in_features, count| {
            ops.iter()
                .filter(|op| {
                    (op.product, op.out_features, op.in_features, op.count)
                        == (product, out_features, in_features, count)
                })
                .count()
        };
        let (d, experts) = (blueprint.hidden_size, blueprint.router.num_experts);
        assert_eq!(
            has(Product::Swiglu, blueprint.moe_intermediate_size, d, experts),
            Bucket::ALL.len(),
            "{ops:?}"
        );
        assert_eq!(
            has(Product::Linear, d, blueprint.moe_intermediate_size, experts),
            Bucket::ALL.len(),
            "{ops:?}"
        );
        let values = blueprint.mla.num_heads * blueprint.mla.v_head_dim;
        assert_eq!(has(Product::Linear, d, values, 1), Bucket::ALL.len(), "{ops:?}");
        assert!(ops.is_sorted(), "few rows first");
        let unique: BTreeSet<TunedOp> = ops.iter().copied().collect();
        assert_eq!(unique.len(), ops.len());
        // With rows in 4-bit floats FFNs of another format stay as they are.
        let in_fp4 = tuned_ops(&inventory, &blueprint, Some(Fp4Activations::nvfp4(3)), 1, 1);
        assert_eq!(in_fp4, ops);
        // Of two ranks each has half of the units and of the heads.
        let halves = tuned_ops(&inventory, &blueprint, None, 2, 1);
        let half = |product, out_features, in_features| {
            halves.iter().any(|op| {
                (op.product, op.out_features, op.in_features) == (product, out_features, in_features)
            })
        };
        let units = blueprint.moe_intermediate_size / 2;
        assert!(half(Product::Swiglu, units, d) && half(Product::Linear, d, units), "{halves:?}");
        assert!(half(Product::Linear, d, values / 2), "{halves:?}");
        // Or half of the experts.
        let groups = tuned_ops(&inventory, &blueprint, None, 2, 2);
        let routed = |op: &TunedOp| (op.product, op.out_features, op.count);
        let expected = (Product::Swiglu, blueprint.moe_intermediate_size, experts / 2);
        assert!(groups.iter().any(|op| routed(op) == expected), "{groups:?}");
    }
}
