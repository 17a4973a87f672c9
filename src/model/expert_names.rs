//! Layer and expert of a tensor, from its name: part of a routed expert, part of a router, or neither.
//!
//! Only the path matters (`layers.L.mlp.experts.E.`, `layers.L.mlp.gate.`), in any spelling of what is before it. The last words do not: `weight`,
//! `weight_packed`, `weight_scale_2` and a partner of an unknown format belong to the same expert.

use std::fmt;

/// Role of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role<'a> {
    /// Belongs to one routed expert.
    Expert(ExpertName<'a>),
    /// Belongs to the router of a layer: weight, selection bias, scales of a quantized router.
    Router {
        /// Layer.
        layer: usize,
        /// What follows `mlp.gate.`.
        rest: &'a str,
    },
    /// Under `mlp.experts.` but of no single expert.
    Stacked {
        /// Layer.
        layer: usize,
    },
    /// Anything else.
    Other,
}

/// The name of an expert's tensor, cut at its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertName<'a> {
    before: &'a str,
    /// Layer.
    pub layer: usize,
    /// Expert id.
    pub expert: u32,
    after: &'a str,
}

impl ExpertName<'_> {
    /// The same tensor of another expert.
    pub fn renamed(&self, expert: u32) -> String {
        format!("{}{expert}{}", self.before, self.after)
    }
}

impl fmt::Display for ExpertName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.before, self.expert, self.after)
    }
}

/// Reads a name.
pub fn role(name: &str) -> Role<'_> {
    let Some((at, layer)) = layer_of(name) else { return Role::Other };
    let rest = &name[at..];
    if let Some(rest) = rest.strip_prefix("mlp.gate.") {
        return Role::Router { layer, rest };
    }
    let Some(id_and_after) = rest.strip_prefix("mlp.experts.") else { return Role::Other };
    let digits = id_and_after.split('.').next().unwrap_or_default();
    match number(digits) {
        Some(expert) if id_and_after.len() > digits.len() => Role::Expert(ExpertName {
            before: &name[..name.len() - id_and_after.len()],
            layer,
            expert: expert as u32,
            after: &id_and_after[digits.len()..],
        }),
        _ => Role::Stacked { layer },
    }
}

/// Where the words after `layers.L.` begin, and L.
pub fn layer_of(name: &str) -> Option<(usize, usize)> {
    let at = match name.starts_with("layers.") {
        true => 0,
        false => name.find(".layers.")? + 1,
    };
    let digits_at = at + "layers.".len();
    let digits = name[digits_at..].split('.').next()?;
    let layer = number(digits)?;
    Some((digits_at + digits.len() + 1, layer)).filter(|(at, _)| *at <= name.len())
}

/// A decimal without sign or leading zeros: what a writer of names makes of an index, so that renaming is one to one.
fn number(digits: &str) -> Option<usize> {
    let plain = digits == "0" || (!digits.starts_with('0') && digits.len() <= 9);
    let number = digits.parse().ok()?;
    (plain && digits.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let expert = |name: &str| match role(name) {
            Role::Expert(e) => Some((e.layer, e.expert, e.renamed(7))),
            _ => None,
        };
        for (name, expected) in [
            (
                "model.layers.1.mlp.experts.383.gate_proj.weight",
                Some((1, 383, "model.layers.1.mlp.experts.7.gate_proj.weight")),
            ),
            (
                "language_model.model.layers.60.mlp.experts.0.down_proj.weight_packed",
                Some((60, 0, "language_model.model.layers.60.mlp.experts.7.down_proj.weight_packed")),
            ),
            ("layers.2.mlp.experts.3.x", Some((2, 3, "layers.2.mlp.experts.7.x"))),
            ("model.layers.1.mlp.experts.03.up_proj.weight", None),
            ("model.layers.1.mlp.experts.+3.up_proj.weight", None),
            ("model.layers.1.mlp.experts.3", None),
            ("model.layers.1.mlp.shared_experts.up_proj.weight", None),
            ("model.layers.01.mlp.experts.3.x", None),
            ("model.layers.1.mlp.experts.99999999999999999999.x", None),
        ] {
            assert_eq!(expert(name), expected.map(|(l, e, r)| (l, e, r.to_owned())), "{name}");
        }
        for (name, expected) in [
            ("model.layers.3.mlp.gate.weight", Role::Router { layer: 3, rest: "weight" }),
            (
                "model.layers.3.mlp.gate.e_score_correction_bias",
                Role::Router { layer: 3, rest: "e_score_correction_bias" },
            ),
            ("model.layers.3.mlp.gate_proj.weight", Role::Other),
            ("model.layers.3.mlp.experts.gate_up_proj", Role::Stacked { layer: 3 }),
            ("model.layers.3.self_attn.o_proj.weight", Role::Other),
            ("vision_tower.encoder.blocks.0.mlp.fc0.weight", Role::Other),
            ("model.layers.3", Role::Other),
            ("model.layers.", Role::Other),
            ("", Role::Other),
        ] {
            assert_eq!(role(name), expected, "{name}");
        }
    }
}
