//! Checkpoints in forms that are not read, told by the names of their tensors: one sentence instead of thousands of
//! missing and unexpected names.

use super::expert_names::{Role, role};
use super::weight_names::tower_prefix;

/// A form, and what to do about it.
struct Form {
    /// Whether a tensor's name, also cut at its last word, shows the form.
    shows: fn(name: &str, module: &str, last: &str) -> bool,
    what: &'static str,
}

const FORMS: [Form; 7] = [
    Form {
        shows: |_, _, last| matches!(last, "qweight" | "qzeros" | "g_idx"),
        what: "AutoGPTQ's or AutoAWQ's form (qweight, qzeros), which is not read; quantize with llm-compressor to \
               compressed-tensors (INT4, group 32, symmetric), or with perigee quantize from the BF16 or FP8 release",
    },
    Form {
        shows: |_, _, last| {
            matches!(last, "absmax" | "quant_map" | "nested_absmax") || last.starts_with("bitsandbytes")
        },
        what: "bitsandbytes' form, which is not read; use the BF16 or FP8 release",
    },
    Form {
        shows: |_, module, last| matches!(last, "scales" | "biases") && !module.is_empty(),
        what: "MLX's form (scales and biases beside the weights), which is not read; use the safetensors of the release",
    },
    Form {
        shows: |_, module, _| {
            module.split('.').any(|word| matches!(word, "lora_A" | "lora_B" | "lora_embedding_A"))
        },
        what: "an adapter (LoRA) beside or without its base model; merge it into the base model and save that",
    },
    Form {
        shows: |name, module, _| {
            let is_stacked = matches!(role(name), Role::Stacked { .. });
            module.split('.').any(|word| word.starts_with("fused_qkv_a_proj"))
                || (module.ends_with(".gate_up_proj") && !is_stacked)
        },
        what: "the fused form of a serving engine's own files (sharded state), which is not read; use the release",
    },
    Form {
        shows: |_, module, _| {
            module.ends_with(".attn.wkv_a") || module.ends_with(".attn.wo") && module.starts_with("layers.")
        },
        what: "the form of DeepSeek's own inference code (convert.py), which is not read; use the release it was made from",
    },
    Form {
        shows: |name, _, last| {
            let part = name.split_once(".mlp.experts.").map_or("", |(_, part)| part);
            matches!(role(name), Role::Stacked { .. })
                && part.starts_with(char::is_alphabetic)
                && !last.contains("scale")
        },
        what: "packed experts (one tensor for the experts of a layer) in a form that is not read: gate_up_proj [experts, \
               2 x width, hidden] with gate above up, and down_proj [experts, hidden, width], are; save the model again with \
               one tensor per expert (save_original_format=True in transformers 5)",
    },
];

/// The form of a checkpoint with these names, if it is one that is not read; a whole sentence.
pub(super) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    for name in names.filter(|name| tower_prefix(name).is_none()) {
        let (module, last) = name.rsplit_once('.').unwrap_or(("", name));
        if let Some(form) = FORMS.iter().find(|form| (form.shows)(name, module, last)) {
            return Some(format!("the checkpoint has tensors such as {name}: {}", form.what));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_are_not_read_have_a_sentence() {
        for (name, expected) in [
            ("model.layers.1.mlp.experts.0.gate_proj.qweight", "AutoGPTQ"),
            ("model.layers.1.self_attn.o_proj.weight.absmax", "bitsandbytes"),
            ("model.layers.1.mlp.switch_mlp.gate_proj.scales", "MLX"),
            ("base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight", "LoRA"),
            ("model.layers.1.mlp.experts.w13_weight", "packed experts"),
            ("model.layers.1.self_attn.fused_qkv_a_proj_with_mqa.weight", "fused form"),
            ("model.layers.0.mlp.gate_up_proj.weight", "fused form"),
            ("layers.0.attn.wkv_a.weight", "DeepSeek's own"),
            ("model.layers.1.mlp.experts.gate_up_proj_blocks", "packed experts"),
        ] {
            let form = of(["model.norm.weight", name].into_iter()).unwrap_or_default();
            assert!(form.contains(expected) && form.contains(name), "{name}: {form}");
        }
    }

    #[test]
    fn usual_names_are_of_no_foreign_form() {
        let names = [
            "model.layers.1.mlp.experts.0.gate_proj.weight_packed",
            "model.layers.1.mlp.gate.e_score_correction_bias",
            "model.layers.1.mlp.shared_experts.up_proj.weight",
            "model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
            "vision_tower.encoder.blocks.0.wqkv.bias",
            "model.layers.1.self_attn.rotary_emb.inv_freq",
            "lm_head.weight",
        ];
        assert_eq!(of(names.into_iter()), None);
    }
}
