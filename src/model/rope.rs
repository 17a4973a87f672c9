//! The rotary frequencies of a checkpoint, YaRN included. Peng et al., arXiv 2309.00071.

use super::blueprint::{Blueprint, YarnScaling, yarn_mscale};
use perigee_ops::RopeTable;

/// Rotation table of a checkpoint.
pub(super) fn table(blueprint: &Blueprint) -> RopeTable {
    frequencies(blueprint.mla.qk_rope_head_dim, blueprint.rope_theta, blueprint.yarn.as_ref())
}

/// Rotation table of `dim` values. YaRN applies at all lengths.
pub(super) fn frequencies(dim: usize, theta: f64, yarn: Option<&YarnScaling>) -> RopeTable {
    let extrapolated = |i: usize| theta.powf(-2.0 * i as f64 / dim as f64);
    let Some(yarn) = yarn else {
        return RopeTable {
            inv_freq: (0..dim / 2).map(|i| extrapolated(i) as f32).collect(),
            multiplier: 1.0,
        };
    };
    let (low, high) = correction_range(dim, theta, yarn);
    let inv_freq = (0..dim / 2)
        .map(|i| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let ext = extrapolated(i);
            (ext / yarn.factor * ramp + ext * (1.0 - ramp)) as f32
        })
        .collect();
    let multiplier = match (yarn.mscale, yarn.mscale_all_dim) {
        (Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
            yarn_mscale(yarn.factor, m) / yarn_mscale(yarn.factor, all)
        }
        _ => yarn_mscale(yarn.factor, 1.0),
    };
    RopeTable { inv_freq, multiplier: multiplier as f32 }
}

/// Pair indices between which YaRN blends from extrapolation to interpolation.
fn correction_range(dim: usize, base: f64, yarn: &YarnScaling) -> (f64, f64) {
    let index = |rotations: f64| {
        let length = yarn.original_max_position_embeddings as f64;
        dim as f64 * (length / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
    };
    let low = index(yarn.beta_fast).floor().max(0.0);
    let high = index(yarn.beta_slow).ceil().min(dim as f64 - 1.0);
    if low == high { (low, high + 0.001) } else { (low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inv_freq(factor: f64, beta_fast: f64) -> Vec<f32> {
        let config = serde_json::json!({
            "model_type": "kimi_k2", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8,
            "moe_intermediate_size": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "num_attention_heads": 1,
            "kv_lora_rank": 8, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 8, "rope_theta": 50000.0,
            "max_position_embeddings": 4096,
            "rope_scaling": {"type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": 1.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
        });
        table(&Blueprint::parse(config.to_string().as_bytes()).unwrap()).inv_freq
    }

    fn check(inv_freq: &[f32], expected: &[(usize, f32)]) {
        for (i, want) in expected {
            let got = inv_freq[*i];
            assert!(((got - want) / want).abs() < 1e-6, "inv_freq[{i}]: {got} expected {want}");
        }
    }

    #[test]
    fn inverse_frequencies_of_the_releases() {
        let k25 = [(0, 1.0), (1, 0.713_111_1), (8, 0.066_874_03), (9, 0.043_776_656), (12, 0.011_619_16)];
        check(&inv_freq(64.0, 32.0), &k25);
        check(&inv_freq(64.0, 32.0), &[(19, 1.583_749_9e-4), (20, 1.807_023_4e-5), (31, 4.382_206_5e-7)]);
        let thinking = [(9, 0.047_688_61), (12, 0.017_293_634), (19, 0.001_621_759_9), (20, 1.807_023_4e-5)];
        check(&inv_freq(64.0, 1.0), &thinking);
        check(&inv_freq(32.0, 1.0), &[(19, 0.001_621_759_9), (20, 3.614_046_8e-5), (31, 8.764_413e-7)]);
    }
}
