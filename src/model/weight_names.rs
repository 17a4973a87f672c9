//! Translates checkpoint names: the only file with the spellings of released checkpoints.

use serde::{Deserialize, Serialize};

use super::Blueprint;

/// Names of one checkpoint's tensors. K2, K2-Thinking and Moonlight use `model.`, K2.5+ and Kimi-VL
/// `language_model.model.`; an early re-quantized K2.5 has its layers, and only them or all, under
/// `language_model.` without the inner `model.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WeightNames {
    /// Prefix of `embed_tokens` and `norm`.
    outer: &'static str,
    /// Prefix of `layers.`.
    layers: &'static str,
    /// Name of the head, without `.weight`.
    head: &'static str,
}

/// Released (prefix, head) pairs, the commonest first.
const SPELLINGS: [(&str, &str); 3] = [
    ("model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
    ("language_model.", "language_model.lm_head"),
];

/// Part of the network that a tensor belongs to: reports and the memory plan group by it, recipes of
/// a quantization choose by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleClass {
    /// `embed_tokens`.
    Embedding,
    /// `lm_head`.
    Head,
    /// Projections of self attention.
    Attention,
    /// FFN of the first layers (`first_k_dense_replace`).
    // Names of earlier versions in `perigee-quantize.json`: here and below.
    #[serde(alias = "dense-mlp")]
    DenseFfn,
    /// Shared experts.
    SharedExperts,
    /// Routed experts.
    RoutedExperts,
    /// Router weight and selection bias.
    Router,
    /// Gains of all norms.
    #[serde(alias = "norm")]
    Norms,
    /// Vision tower and projector; not loaded.
    Vision,
    /// Activation and KV scales, inverse frequencies, prediction layers, unexpected tensors; not
    /// loaded.
    Other,
}

impl ModuleClass {
    /// All classes, in the order of reports.
    pub const ALL: [ModuleClass; 10] = [
        ModuleClass::Embedding,
        ModuleClass::Head,
        ModuleClass::Attention,
        ModuleClass::DenseFfn,
        ModuleClass::SharedExperts,
        ModuleClass::RoutedExperts,
        ModuleClass::Router,
        ModuleClass::Norms,
        ModuleClass::Vision,
        ModuleClass::Other,
    ];

    /// The class of a module's name, such as `model.layers.3.mlp.experts.7.up_proj`, in any spelling.
    pub fn of(module: &str) -> Self {
        let words: Vec<&str> = module.split('.').collect();
        let has = |word: &str| words.contains(&word);
        let last = words.last().copied().unwrap_or_default();
        let is_projection = matches!(last, "gate_proj" | "up_proj" | "down_proj");
        if has("vision_tower") || has("mm_projector") || has("multi_modal_projector") {
            ModuleClass::Vision
        } else if last.ends_with("norm") {
            ModuleClass::Norms
        } else if has("self_attn") {
            ModuleClass::Attention
        } else if has("shared_experts") && is_projection {
            ModuleClass::SharedExperts
        } else if has("experts") && is_projection {
            ModuleClass::RoutedExperts
        } else if has("mlp") && is_projection {
            ModuleClass::DenseFfn
        } else if words.ends_with(&["mlp", "gate"]) {
            ModuleClass::Router
        } else if last == "embed_tokens" {
            ModuleClass::Embedding
        } else if last == "lm_head" {
            ModuleClass::Head
        } else {
            ModuleClass::Other
        }
    }

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ModuleClass::Embedding => "embedding",
            ModuleClass::Head => "head",
            ModuleClass::Attention => "attention",
            ModuleClass::DenseFfn => "dense ffn",
            ModuleClass::SharedExperts => "shared experts",
            ModuleClass::RoutedExperts => "routed experts",
            ModuleClass::Router => "router",
            ModuleClass::Norms => "norms",
            ModuleClass::Vision => "vision",
            ModuleClass::Other => "other",
        }
    }

    /// Whether the tensors of the class are loaded to serve text.
    pub fn is_loaded(self) -> bool {
        !matches!(self, ModuleClass::Vision | ModuleClass::Other)
    }
}

/// Kind of binding of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A weight `[out, in]` in any format; the name is without `.weight`.
    Linear([usize; 2]),
    /// A plain float tensor of this shape, bound by its whole name.
    Floats(Vec<usize>),
}

impl WeightNames {
    /// Detects the spelling from the names for which `has` is true; the plain spelling if no name
    /// is known.
    pub(super) fn detect(has: impl Fn(&str) -> bool) -> Self {
        let layers = |prefix: &str| has(&format!("{prefix}layers.0.input_layernorm.weight"));
        let embedding = |prefix: &str| has(&format!("{prefix}embed_tokens.weight"));
        let prefixes = || SPELLINGS.iter().map(|(prefix, _)| *prefix);
        let with_embedding = prefixes().find(|prefix| embedding(prefix));
        let layers = match with_embedding.filter(|prefix| layers(prefix)) {
            Some(prefix) => prefix,
            None => prefixes().find(|prefix| layers(prefix)).or(with_embedding).unwrap_or(SPELLINGS[0].0),
        };
        let outer = with_embedding.unwrap_or(layers);
        let usual =
            SPELLINGS.iter().find(|(prefix, _)| *prefix == outer).map_or("lm_head", |(_, head)| *head);
        let stored =
            |head: &str| ["weight", "weight_packed"].iter().any(|part| has(&format!("{head}.{part}")));
        let head = match stored(usual) {
            true => usual,
            false => SPELLINGS.iter().map(|(_, head)| *head).find(|head| stored(head)).unwrap_or(usual),
        };
        Self { outer, layers, head }
    }

    pub(super) fn embed_tokens(&self) -> String {
        format!("{}embed_tokens.weight", self.outer)
    }

    pub(super) fn final_norm(&self) -> String {
        format!("{}norm.weight", self.outer)
    }

    /// Name of the head, without `.weight`.
    pub(super) fn head(&self) -> String {
        self.head.to_string()
    }

    pub(super) fn layer_stem(&self, layer: usize) -> String {
        format!("{}layers.{layer}", self.layers)
    }

    pub(super) fn layer(&self, layer: usize, rest: &str) -> String {
        format!("{}layers.{layer}.{rest}", self.layers)
    }

    /// Number of names that [`WeightNames::for_each_wanted`] visits.
    pub(super) fn num_wanted(b: &Blueprint) -> usize {
        let dense = b.first_k_dense_replace.min(b.num_layers);
        let per_moe = 3 * b.router.num_experts + 3 * usize::from(b.num_shared_experts > 0) + 2;
        let attention = if b.q_lora_rank.is_some() { 9 } else { 7 };
        3 + b.num_layers * attention + dense * 3 + (b.num_layers - dense) * per_moe
            - usize::from(b.tie_word_embeddings)
    }

    /// Visits every tensor that the network binds, in binding order.
    pub(super) fn for_each_wanted(&self, b: &Blueprint, mut visit: impl FnMut(&str, ModuleClass, Wanted)) {
        use ModuleClass::*;
        let d = b.hidden_size;
        visit(&self.embed_tokens(), Embedding, Wanted::Floats(vec![b.vocab_size, d]));
        for layer in 0..b.num_layers {
            self.for_each_of_attention(b, layer, &mut visit);
            let mut ffn = |stem: &str, class, width: usize| {
                // Formatted in place: a release has 70,000 such names.
                let mut name = self.layer(layer, stem);
                let stem = name.len();
                for (proj, shape) in
                    [(".gate_proj", [width, d]), (".up_proj", [width, d]), (".down_proj", [d, width])]
                {
                    name.truncate(stem);
                    name.push_str(proj);
                    visit(&name, class, Wanted::Linear(shape));
                }
            };
            if !b.is_moe(layer) {
                ffn("mlp", DenseFfn, b.intermediate_size);
                continue;
            }
            for expert in 0..b.router.num_experts {
                ffn(&format!("mlp.experts.{expert}"), RoutedExperts, b.moe_intermediate_size);
            }
            if b.num_shared_experts > 0 {
                ffn("mlp.shared_experts", SharedExperts, b.moe_intermediate_size * b.num_shared_experts);
            }
            let experts = b.router.num_experts;
            visit(&self.layer(layer, "mlp.gate"), Router, Wanted::Linear([experts, d]));
            let bias = self.layer(layer, "mlp.gate.e_score_correction_bias");
            visit(&bias, Router, Wanted::Floats(vec![experts]));
        }
        visit(&self.final_norm(), Norms, Wanted::Floats(vec![d]));
        if !b.tie_word_embeddings {
            visit(self.head, Head, Wanted::Linear([b.vocab_size, d]));
        }
    }

    fn for_each_of_attention(
        &self,
        b: &Blueprint,
        layer: usize,
        visit: &mut impl FnMut(&str, ModuleClass, Wanted),
    ) {
        let (d, m) = (b.hidden_size, &b.mla);
        let norms = [
            ("input_layernorm", d),
            ("post_attention_layernorm", d),
            ("self_attn.kv_a_layernorm", m.kv_lora_rank),
        ];
        let mut norm = |rest: &str, size: usize| {
            let name = self.layer(layer, &format!("{rest}.weight"));
            visit(&name, ModuleClass::Norms, Wanted::Floats(vec![size]));
        };
        norms.into_iter().for_each(|(rest, size)| norm(rest, size));
        b.q_lora_rank.into_iter().for_each(|q| norm("self_attn.q_a_layernorm", q));
        let mut linear = |rest: &str, shape: [usize; 2]| {
            visit(
                &self.layer(layer, &format!("self_attn.{rest}")),
                ModuleClass::Attention,
                Wanted::Linear(shape),
            );
        };
        let q_out = m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim);
        match b.q_lora_rank {
            Some(q) => {
                linear("q_a_proj", [q, d]);
                linear("q_b_proj", [q_out, q]);
            }
            None => linear("q_proj", [q_out, d]),
        }
        linear("kv_a_proj_with_mqa", [m.latent_dim(), d]);
        linear("kv_b_proj", [m.num_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank]);
        linear("o_proj", [d, m.num_heads * m.v_head_dim]);
    }

    /// Whether a name belongs to the vision parts of a multimodal wrapper.
    pub(super) fn is_vision(name: &str) -> bool {
        ["vision_tower.", "mm_projector.", "multi_modal_projector."].iter().any(|p| name.starts_with(p))
    }

    /// Whether an unwanted tensor may be stored: inverse frequencies (always recomputed), extra
    /// prediction layers, a tied head's copy, the vision parts of a multimodal wrapper, scales of
    /// the KV cache.
    pub(super) fn may_skip(&self, name: &str, b: &Blueprint) -> bool {
        let is_head = || name.strip_prefix(self.head).is_some_and(|rest| rest.starts_with(".weight"));
        if name.ends_with(".rotary_emb.inv_freq") || (b.tie_word_embeddings && is_head()) {
            return true;
        }
        if Self::is_vision(name) {
            return b.wrapper_type != b.model_type;
        }
        if is_kv_scale(name) {
            return true;
        }
        let layer = name.strip_prefix(self.layers).and_then(|n| n.strip_prefix("layers."));
        let index = layer.and_then(|n| n.split('.').next()).and_then(|n| n.parse::<usize>().ok());
        index.is_some_and(|i| i >= b.num_layers && i < b.num_layers + b.num_nextn_predict_layers)
    }
}

/// Whether a tensor is a scale of the KV cache or of attention beside it, in any of the spellings (section 2.6 of the
/// formats: `k_proj.k_scale`, `attn.k_scale`, `kv_scale`; `q_scale` and `prob_scale` belong to attention in FP8).
pub fn is_kv_scale(name: &str) -> bool {
    let suffix = name.rsplit_once('.').map_or("", |(_, suffix)| suffix);
    matches!(suffix, "k_scale" | "v_scale" | "kv_scale" | "q_scale" | "prob_scale") && name.contains("attn.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_release_have_their_class() {
        for (module, class) in [
            ("model.layers.3.mlp.experts.7.up_proj", ModuleClass::RoutedExperts),
            ("language_model.model.layers.3.mlp.shared_experts.gate_proj", ModuleClass::SharedExperts),
            ("model.layers.0.mlp.down_proj", ModuleClass::DenseFfn),
            ("model.layers.1.mlp.gate", ModuleClass::Router),
            ("model.layers.1.self_attn.kv_a_proj_with_mqa", ModuleClass::Attention),
            ("model.layers.1.self_attn.kv_a_layernorm", ModuleClass::Norms),
            ("model.norm", ModuleClass::Norms),
            ("language_model.lm_head", ModuleClass::Head),
            ("model.embed_tokens", ModuleClass::Embedding),
            ("vision_tower.encoder.blocks.0.mlp.fc0", ModuleClass::Vision),
            ("mm_projector.proj.0", ModuleClass::Vision),
            ("model.layers.61.eh_proj", ModuleClass::Other),
            ("", ModuleClass::Other),
        ] {
            assert_eq!(ModuleClass::of(module), class, "{module}");
        }
    }
}
