//! Tensors in the forms of other packages, under the names that released checkpoints have.
//!
//! Two forms are known. Scales under another name beside the weight: DeepSeek's `.scale`, and the quantizer modules of
//! Quark and ModelOpt (`weight_quantizer.scale`, `input_quantizer._pre_quant_scale`). Routed experts in one tensor of
//! three dimensions, as transformers 5 saves them: `mlp.experts.gate_up_proj` `[E, 2I, H]`, gate above up, and
//! `mlp.experts.down_proj` `[E, H, I]`. Each slice becomes a tensor of its own; no byte is moved. Everything above this
//! folder, the tools that write checkpoints included, sees one form.
//!
//! A name is never given twice: a tensor keeps its own where the other one is stored too.

use std::collections::{HashMap, HashSet};

use super::reader::{Location, Tensor};
use crate::expert_names::{Role, role};
use perigee_numbers::tensor::{Dtype, ElementType};

/// Most experts of a packed tensor; as many as a configuration may have.
const MAX_EXPERTS: usize = 1 << 14;
/// Most tensors that packed ones are cut into: a release has 300,000. A header is not trusted, and each slice costs
/// memory, however small it is.
const MAX_SLICES: usize = 1 << 22;

/// Renames and cuts what is in a foreign form; `tensors` are sorted by name, before and after.
pub(super) fn settle(tensors: &mut Vec<Tensor>) {
    let renamed = rename_scales(tensors);
    let cut = cut_experts(tensors);
    if renamed || cut {
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    }
}

fn find<'a>(tensors: &'a [Tensor], name: &str) -> Option<&'a Tensor> {
    tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok().map(|at| &tensors[at])
}

/// Returns whether a name was changed.
fn rename_scales(tensors: &mut [Tensor]) -> bool {
    let mut names: Vec<(usize, String)> = Vec::new();
    for (at, tensor) in tensors.iter().enumerate() {
        let Some(name) = scale_name(tensors, &tensor.name) else { continue };
        if find(tensors, &name).is_none() {
            names.push((at, name));
        }
    }
    // Two names can mean one: the first keeps it.
    names.sort_by(|a, b| (&a.1, a.0).cmp(&(&b.1, b.0)));
    names.dedup_by(|later, first| later.1 == first.1);
    let any = !names.is_empty();
    names.into_iter().for_each(|(at, name)| tensors[at].name = name);
    any
}

/// The usual name of a scale; `None` for a tensor that has it, or that is no scale of a stored weight.
fn scale_name(tensors: &[Tensor], name: &str) -> Option<String> {
    let (module, part) = name.rsplit_once('.')?;
    // The dtype of the codes, where the weight of a module is packed: a scale beside plain values is a leftover.
    let codes = |module: &str| {
        let part =
            |part: &str| find(tensors, &format!("{module}.{part}")).map(|tensor| tensor.location.dtype);
        part("weight").or_else(|| part("weight_packed")).filter(|dtype| !dtype.is_float())
    };
    if part == "scale" && codes(module) == Some(Dtype::F8_E4M3) {
        return Some(format!("{module}.weight_scale_inv"));
    }
    let (linear, quantizer) = module.rsplit_once('.').unwrap_or(("", module));
    let part = part.trim_start_matches('_');
    if matches!(quantizer, "weight_quantizer" | "input_quantizer")
        && matches!(part, "pre_quant_scale" | "svdquant_lora_a" | "svdquant_lora_b")
    {
        return Some(format!("{linear}.{part}"));
    }
    let usual = match (quantizer, part) {
        ("weight_quantizer", "scale") => "weight_scale",
        ("weight_quantizer", "double_scale" | "scale_2") => "weight_scale_2",
        ("weight_quantizer", "global_scale") => "weight_global_scale",
        ("weight_quantizer", "zero_point") => "weight_zero_point",
        ("input_quantizer", "scale") => return Some(format!("{linear}.input_scale")),
        // The scale of what a projection puts into the cache.
        ("output_quantizer", "scale") => return cache_scale(linear),
        (_, "output_scale") => return cache_scale(module),
        _ => return None,
    };
    codes(linear).map(|_| format!("{linear}.{usual}"))
}

/// The usual name of the KV scale that is the output's of this projection.
fn cache_scale(projection: &str) -> Option<String> {
    match projection.rsplit_once('.')?.1 {
        "k_proj" => Some(format!("{projection}.k_scale")),
        "v_proj" => Some(format!("{projection}.v_scale")),
        _ => None,
    }
}

/// A packed tensor of routed experts.
struct Packed<'a> {
    /// What is before the number of an expert, `...mlp.experts.`.
    stem: &'a str,
    projection: &'a str,
    part: String,
}

impl Packed<'_> {
    /// The projections of an expert that it holds, one above the other.
    fn halves(&self) -> &'static [&'static str] {
        match self.projection {
            "gate_up_proj" => &["gate_proj", "up_proj"],
            "down_proj" => &["down_proj"],
            "gate_proj" => &["gate_proj"],
            _ => &["up_proj"],
        }
    }
}

/// Reads `...mlp.experts.gate_up_proj`, `.down_proj_scale_inv`, `.gate_up_proj.weight_scale` and the like.
fn packed(name: &str) -> Option<Packed<'_>> {
    let Role::Stacked { .. } = role(name) else { return None };
    let at = name.find("mlp.experts.")? + "mlp.experts.".len();
    let (stem, rest) = name.split_at(at);
    let projection = ["gate_up_proj", "down_proj", "gate_proj", "up_proj"]
        .into_iter()
        .find(|word| rest.starts_with(word))?;
    let (projection, suffix) = rest.split_at(projection.len());
    let part = match suffix.trim_start_matches(['.', '_']) {
        "" | "weight" => "weight".to_owned(),
        part @ ("input_scale" | "input_global_scale") => part.to_owned(),
        part @ ("scale" | "scale_inv" | "scale_2" | "packed" | "global_scale") => format!("weight_{part}"),
        part if part.starts_with("weight_") && part != "weight_shape" => part.to_owned(),
        _ => return None,
    };
    Some(Packed { stem, projection, part })
}

/// Returns whether a tensor was cut.
fn cut_experts(tensors: &mut Vec<Tensor>) -> bool {
    // Experts by stem, where no expert has tensors of its own.
    let mut experts: HashMap<&str, usize> = HashMap::new();
    for tensor in tensors.iter() {
        if let Some(packed) = packed(&tensor.name)
            && let [count @ 1..=MAX_EXPERTS, _, _] = *tensor.location.shape
        {
            experts.insert(packed.stem, count);
        }
    }
    if experts.is_empty() {
        return false;
    }
    for tensor in tensors.iter() {
        if let Role::Expert(_) = role(&tensor.name)
            && let Some(at) = tensor.name.find("mlp.experts.")
        {
            experts.remove(&tensor.name[..at + "mlp.experts.".len()]);
        }
    }
    let (mut slices, mut cut) = (Vec::new(), vec![false; tensors.len()]);
    let mut taken = HashSet::new();
    for (tensor, cut) in tensors.iter().zip(&mut cut) {
        let Some(packed) = packed(&tensor.name) else { continue };
        let Some(count) = experts.get(packed.stem).copied() else { continue };
        let is_new =
            packed.halves().iter().all(|half| taken.insert((packed.stem, *half, packed.part.clone())));
        if !is_new || slices.len() + 2 * count > MAX_SLICES {
            continue;
        }
        if let Some(of_tensor) = slices_of(&tensor.location, &packed, count) {
            slices.extend(of_tensor);
            *cut = true;
        }
    }
    if slices.is_empty() {
        return false;
    }
    let mut cut = cut.into_iter();
    tensors.retain(|_| !cut.next().unwrap_or(false));
    tensors.extend(slices);
    true
}

/// The tensors of the experts in a packed one; `None` if its shape does not have that many.
fn slices_of(whole: &Location, packed: &Packed<'_>, count: usize) -> Option<Vec<Tensor>> {
    let halves = packed.halves();
    // One value stands for all experts, one value of an expert for both of its halves.
    let (shape, of_each) = match *whole.shape {
        [] => (&[][..], false),
        [1] if count > 1 => (&[][..], false),
        [first, ref rest @ ..] if first == count => (rest, true),
        _ => return None,
    };
    let shared = shape.iter().all(|dim| *dim == 1);
    let mut shape = shape.to_vec();
    if !shared && halves.len() == 2 {
        if !shape[0].is_multiple_of(2) {
            return None;
        }
        shape[0] /= 2;
    }
    let bytes = (whole.end - whole.start) / if of_each { count } else { 1 };
    let half_bytes = if shared { bytes } else { bytes / halves.len() };
    let mut slices = Vec::with_capacity(count * halves.len());
    for expert in 0..count {
        for (h, half) in halves.iter().enumerate() {
            let start = whole.start
                + if of_each { expert * bytes } else { 0 }
                + if shared { 0 } else { h * half_bytes };
            slices.push(Tensor {
                name: format!("{}{expert}.{half}.{}", packed.stem, packed.part),
                location: Location { start, end: start + half_bytes, shape: shape.clone(), ..whole.clone() },
            });
        }
    }
    Some(slices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
        let bytes = shape.iter().product::<usize>() * dtype.element_bytes().unwrap();
        Tensor {
            name: name.into(),
            location: Location { shard: 0, dtype, shape: shape.into(), start: 8, end: 8 + bytes },
        }
    }

    fn settled(stored: &[(&str, Dtype, &[usize])]) -> Vec<(String, Vec<usize>, std::ops::Range<usize>)> {
        let mut tensors: Vec<Tensor> = stored.iter().map(|(n, d, s)| tensor(n, *d, s)).collect();
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        settle(&mut tensors);
        assert!(tensors.is_sorted_by(|a, b| a.name < b.name), "sorted, and every name once");
        let of = |t: Tensor| (t.name, t.location.shape.to_vec(), t.location.start..t.location.end);
        tensors.into_iter().map(of).collect()
    }

    fn names(stored: &[(&str, Dtype, &[usize])]) -> Vec<String> {
        settled(stored).into_iter().map(|(name, ..)| name).collect()
    }

    /// Regression: scales under the names of DeepSeek, Quark and ModelOpt were missing and unexpected at once.
    #[test]
    fn scales_beside_codes_have_their_usual_names() {
        use Dtype::*;
        assert_eq!(
            names(&[("a.weight", F8_E4M3, &[1, 1]), ("a.scale", F32, &[1, 1])]),
            ["a.weight", "a.weight_scale_inv"]
        );
        assert_eq!(
            names(&[
                ("a.weight", U8, &[1, 1]),
                ("a.weight_quantizer._scale", F8_E4M3, &[1, 1]),
                ("a.weight_quantizer._double_scale", F32, &[]),
                ("a.input_quantizer.scale", F32, &[]),
                ("a.input_quantizer._pre_quant_scale", F32, &[]),
            ]),
            ["a.input_scale", "a.pre_quant_scale", "a.weight", "a.weight_scale", "a.weight_scale_2"]
        );
        assert_eq!(
            names(&[("l.k_proj.output_scale", F32, &[]), ("l.v_proj.output_quantizer.scale", F32, &[])]),
            ["l.k_proj.k_scale", "l.v_proj.v_scale"]
        );
    }

    #[test]
    fn what_is_no_scale_of_codes_keeps_its_name() {
        use Dtype::*;
        for stored in [
            &[("a.scale", F32, &[1, 1][..]), ("a.weight", BF16, &[1, 1])][..],
            &[("a.weight", BF16, &[1, 1]), ("a.weight_quantizer.scale", F32, &[])],
            &[("o_proj.output_scale", F32, &[])],
            // The name is taken.
            &[
                ("a.scale", F32, &[1, 1]),
                ("a.weight", F8_E4M3, &[1, 1]),
                ("a.weight_scale_inv", F32, &[1, 1]),
            ],
        ] {
            let kept: Vec<&str> = stored.iter().map(|(name, ..)| *name).collect();
            assert_eq!(names(stored), kept);
        }
    }

    /// Regression: experts in one tensor, as transformers 5 saves them, were hundreds of missing tensors.
    #[test]
    fn packed_experts_are_tensors_of_their_own() {
        let stem = "model.layers.1.mlp.experts.";
        let name = |rest: &str| format!("{stem}{rest}");
        let cut = settled(&[
            (&name("gate_up_proj"), Dtype::BF16, &[2, 6, 4]),
            (&name("down_proj.weight"), Dtype::BF16, &[2, 4, 3]),
        ]);
        let expected = [
            ("0.down_proj.weight", [4, 3], 8..32),
            ("0.gate_proj.weight", [3, 4], 8..32),
            ("0.up_proj.weight", [3, 4], 32..56),
            ("1.down_proj.weight", [4, 3], 32..56),
            ("1.gate_proj.weight", [3, 4], 56..80),
            ("1.up_proj.weight", [3, 4], 80..104),
        ];
        assert_eq!(cut, expected.map(|(rest, shape, span)| (name(rest), shape.to_vec(), span)));
    }

    #[test]
    fn packed_scales_go_to_their_expert() {
        let stem = "model.layers.1.mlp.experts.";
        let name = |rest: &str| format!("{stem}{rest}");
        let cut = settled(&[
            (&name("gate_up_proj"), Dtype::F8_E4M3, &[2, 256, 128]),
            (&name("gate_up_proj_scale_inv"), Dtype::F32, &[2, 2, 1]),
            (&name("gate_up_proj_scale_2"), Dtype::F32, &[2]),
            (&name("gate_up_proj.input_scale"), Dtype::F32, &[]),
        ]);
        let of = |rest: &str| {
            let (_, shape, span) = cut.iter().find(|(n, ..)| *n == name(rest)).expect(rest);
            (shape.clone(), span.clone())
        };
        assert_eq!(of("1.up_proj.weight_scale_inv"), (vec![1, 1], 20..24));
        assert_eq!(of("1.gate_proj.weight_scale_2"), (vec![], 12..16));
        assert_eq!(of("1.up_proj.weight_scale_2"), (vec![], 12..16));
        assert_eq!(of("1.up_proj.input_scale"), (vec![], 8..12));
        assert_eq!(cut.len(), 4 * 4);
    }

    #[test]
    fn packed_tensors_that_do_not_divide_stay_whole() {
        let stem = "model.layers.1.mlp.experts.";
        let name = |rest: &str| format!("{stem}{rest}");
        let whole = |stored: &[(&str, Dtype, &[usize])]| {
            let mut kept: Vec<String> = stored.iter().map(|(name, ..)| (*name).to_owned()).collect();
            kept.sort();
            assert_eq!(names(stored), kept);
        };
        whole(&[(&name("gate_up_proj"), Dtype::BF16, &[2, 5, 4])]);
        whole(&[(&name("gate_up_proj_bias"), Dtype::BF16, &[2, 6])]);
        whole(&[(&name("gate_up_proj"), Dtype::BF16, &[MAX_EXPERTS + 1, 2, 1])]);
        whole(&[
            (&name("down_proj"), Dtype::BF16, &[2, 4, 3]),
            (&name("0.down_proj.weight"), Dtype::BF16, &[4, 3]),
        ]);
        let twice = [
            (&*name("down_proj"), Dtype::BF16, &[2, 4, 3][..]),
            (&*name("down_proj.weight"), Dtype::BF16, &[2, 4, 3]),
        ];
        assert_eq!(
            names(&twice),
            [name("0.down_proj.weight"), name("1.down_proj.weight"), name("down_proj.weight")]
        );
        whole(&[("model.layers.1.mlp.shared_experts.down_proj", Dtype::BF16, &[2, 4, 3])]);
    }
}
