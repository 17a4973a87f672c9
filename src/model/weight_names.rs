//! Checkpoint words to ours: the only place that knows how released checkpoints spell their tensors.

use super::Blueprint;

/// Names of one checkpoint's tensors. K2, K2-Thinking and Moonlight use `model.`, K2.5+ and Kimi-VL `language_model.model.`,
/// some re-quantized ones `language_model.` without the inner `model.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WeightNames {
    prefix: &'static str,
    head: &'static str,
}

const SPELLINGS: [WeightNames; 3] = [
    WeightNames { prefix: "model.", head: "lm_head.weight" },
    WeightNames { prefix: "language_model.model.", head: "language_model.lm_head.weight" },
    WeightNames { prefix: "language_model.", head: "language_model.lm_head.weight" },
];

impl WeightNames {
    /// The spelling whose embedding table is present; the plain one when none is.
    pub(super) fn detect(has: impl Fn(&str) -> bool) -> Self {
        let found = SPELLINGS.iter().find(|s| has(&s.embed_tokens()));
        found.unwrap_or(&SPELLINGS[0]).clone()
    }

    pub(super) fn embed_tokens(&self) -> String {
        format!("{}embed_tokens.weight", self.prefix)
    }

    pub(super) fn final_norm(&self) -> String {
        format!("{}norm.weight", self.prefix)
    }

    pub(super) fn head(&self) -> String {
        self.head.to_string()
    }

    /// `layers.{layer}.{rest}`.
    pub(super) fn layer(&self, layer: usize, rest: &str) -> String {
        format!("{}layers.{layer}.{rest}", self.prefix)
    }

    /// Every tensor the network binds, with its shape, in binding order.
    pub(super) fn expected(&self, b: &Blueprint) -> Vec<(String, Vec<usize>)> {
        let d = b.hidden_size;
        let mut list = vec![(self.embed_tokens(), vec![b.vocab_size, d])];
        for layer in 0..b.num_layers {
            let mut add = |rest: &str, shape: Vec<usize>| list.push((self.layer(layer, rest), shape));
            add("input_layernorm.weight", vec![d]);
            add("post_attention_layernorm.weight", vec![d]);
            let m = &b.mla;
            let q_out = m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim);
            match b.q_lora_rank {
                Some(q) => {
                    add("self_attn.q_a_proj.weight", vec![q, d]);
                    add("self_attn.q_a_layernorm.weight", vec![q]);
                    add("self_attn.q_b_proj.weight", vec![q_out, q]);
                }
                None => add("self_attn.q_proj.weight", vec![q_out, d]),
            }
            add("self_attn.kv_a_proj_with_mqa.weight", vec![m.latent_dim(), d]);
            add("self_attn.kv_a_layernorm.weight", vec![m.kv_lora_rank]);
            let kv_out = m.num_heads * (m.qk_nope_head_dim + m.v_head_dim);
            add("self_attn.kv_b_proj.weight", vec![kv_out, m.kv_lora_rank]);
            add("self_attn.o_proj.weight", vec![d, m.num_heads * m.v_head_dim]);
            let mut ffn = |stem: &str, width: usize| {
                list.push((self.layer(layer, &format!("{stem}.gate_proj.weight")), vec![width, d]));
                list.push((self.layer(layer, &format!("{stem}.up_proj.weight")), vec![width, d]));
                list.push((self.layer(layer, &format!("{stem}.down_proj.weight")), vec![d, width]));
            };
            if !b.is_moe(layer) {
                ffn("mlp", b.intermediate_size);
                continue;
            }
            for expert in 0..b.router.num_experts {
                ffn(&format!("mlp.experts.{expert}"), b.moe_intermediate_size);
            }
            if b.num_shared_experts > 0 {
                ffn("mlp.shared_experts", b.moe_intermediate_size * b.num_shared_experts);
            }
            list.push((self.layer(layer, "mlp.gate.weight"), vec![b.router.num_experts, d]));
            list.push((self.layer(layer, "mlp.gate.e_score_correction_bias"), vec![b.router.num_experts]));
        }
        list.push((self.final_norm(), vec![d]));
        if !b.tie_word_embeddings {
            list.push((self.head(), vec![b.vocab_size, d]));
        }
        list
    }

    /// Whether a tensor that is not expected may be there all the same: stored inverse frequencies (always recomputed), extra
    /// prediction layers, a tied head's copy, the vision parts of a multimodal wrapper.
    pub(super) fn may_skip(&self, name: &str, b: &Blueprint) -> bool {
        if name.ends_with(".rotary_emb.inv_freq") || (b.tie_word_embeddings && name == self.head) {
            return true;
        }
        if ["vision_tower.", "mm_projector.", "multi_modal_projector."].iter().any(|p| name.starts_with(p)) {
            return b.wrapper_type != b.model_type;
        }
        let layer = name.strip_prefix(self.prefix).and_then(|n| n.strip_prefix("layers."));
        let index = layer.and_then(|n| n.split('.').next()).and_then(|n| n.parse::<usize>().ok());
        index.is_some_and(|i| i >= b.num_layers && i < b.num_layers + b.num_nextn_predict_layers)
    }
}
