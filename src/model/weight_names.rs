//! Translates checkpoint names: the only file with the spellings of released checkpoints.

use serde::{Deserialize, Serialize};

use super::Blueprint;
use super::expert_names::layer_of;

/// Names of one checkpoint's tensors: what is before the words that every checkpoint of the family has.
///
/// K2, K2-Thinking and Moonlight have `model.` there, K2.5+ and Kimi-VL `language_model.model.`, what transformers 5
/// saves of them `model.language_model.`; an early re-quantized K2.5 has its layers, and only them or all, under
/// `language_model.`. All are found from the tensors, whatever is before the words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WeightNames {
    /// Prefix of `embed_tokens` and `norm`.
    outer: String,
    /// Prefix of `layers.`.
    layers: String,
    /// Name of the head, without `.weight`.
    head: String,
    /// Layers behind the last one that have the tensors of a prediction layer, sorted.
    prediction_layers: Vec<usize>,
}

/// Why a stored tensor is no part of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Skipped {
    /// Computed from the configuration, counted there, or stored twice: nothing to say of it.
    Known,
    /// Belongs to a prediction layer that the configuration does not count.
    UncountedLayer,
    /// Belongs to a vision tower that the configuration does not describe.
    StrayTower,
    /// Left by a calibration; it describes activations, which are not quantized.
    Calibration,
}

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
    /// Finds the spelling of a network with `num_layers` layers in the names of its checkpoint; the plain one if no
    /// name is known.
    ///
    /// The shortest prefix counts: prediction layers have an embedding and a head of their own further down.
    pub(super) fn detect<'a>(names: impl Iterator<Item = &'a str>, num_layers: usize) -> Self {
        let mut found = [const { None::<&str> }; 3];
        let mut predicting: Vec<(&str, usize)> = Vec::new();
        for name in names.filter(|name| !Self::is_vision(name)) {
            let stems = [
                name.strip_suffix("embed_tokens.weight"),
                name.strip_suffix("layers.0.input_layernorm.weight"),
                name.strip_suffix(".weight").or_else(|| name.strip_suffix(".weight_packed")),
            ];
            let head = |stem: &str| stem == "lm_head" || stem.ends_with(".lm_head");
            for (at, stem) in stems.into_iter().enumerate() {
                let fits =
                    |stem: &str| if at == 2 { head(stem) } else { stem.is_empty() || stem.ends_with('.') };
                if let Some(stem) = stem.filter(|stem| fits(stem))
                    && found[at].is_none_or(|other| (stem.len(), stem) < (other.len(), other))
                {
                    found[at] = Some(stem);
                }
            }
            if let Some((before, layer)) = prediction_layer(name).filter(|(_, layer)| *layer >= num_layers) {
                predicting.push((before, layer));
            }
        }
        let [outer, layers, head] = found;
        let layers = layers.or(outer).unwrap_or("model.").to_owned();
        let outer = outer.unwrap_or(&layers).to_owned();
        // A head that is not stored is missed beside the inner `model.`.
        let beside = outer.strip_suffix("model.").filter(|rest| rest.is_empty() || rest.ends_with('.'));
        let head = head.map_or_else(|| format!("{}lm_head", beside.unwrap_or(&outer)), str::to_owned);
        predicting.retain(|(before, _)| *before == layers);
        let mut prediction_layers: Vec<usize> = predicting.into_iter().map(|(_, layer)| layer).collect();
        prediction_layers.sort_unstable();
        prediction_layers.dedup();
        Self { outer, layers, head, prediction_layers }
    }

    pub(super) fn embed_tokens(&self) -> String {
        format!("{}embed_tokens.weight", self.outer)
    }

    pub(super) fn final_norm(&self) -> String {
        format!("{}norm.weight", self.outer)
    }

    /// Name of the head, without `.weight`.
    pub(super) fn head(&self) -> String {
        self.head.clone()
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
            visit(&self.head, Head, Wanted::Linear([b.vocab_size, d]));
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

    /// Whether a name belongs to the vision parts of a multimodal wrapper, whatever is before their words.
    pub(super) fn is_vision(name: &str) -> bool {
        tower_prefix(name).is_some()
    }

    /// Why an unwanted tensor may be stored; `None` if it may not: a checkpoint with tensors that nobody knows is
    /// another network's.
    pub(super) fn skipped(&self, name: &str, b: &Blueprint) -> Option<Skipped> {
        let is_head = || name.strip_prefix(&self.head).is_some_and(|rest| rest.starts_with(".weight"));
        let is_rotary = name.split('.').any(|word| word == "rotary_emb");
        if is_rotary || is_kv_scale(name) || (b.tie_word_embeddings && is_head()) {
            return Some(Skipped::Known);
        }
        if Self::is_vision(name) {
            let has_tower = b.wrapper_type != b.model_type;
            return Some(if has_tower { Skipped::Known } else { Skipped::StrayTower });
        }
        let layer = name.strip_prefix(&self.layers).and_then(|n| n.strip_prefix("layers."));
        let index = layer.and_then(|n| n.split('.').next()).and_then(|n| n.parse::<usize>().ok());
        match index {
            Some(i) if i >= b.num_layers && i < b.num_layers + b.num_nextn_predict_layers => {
                Some(Skipped::Known)
            }
            Some(i) if self.prediction_layers.binary_search(&i).is_ok() => Some(Skipped::UncountedLayer),
            _ => is_calibration(name).then_some(Skipped::Calibration),
        }
    }
}

/// What is before a prediction layer's `layers.`, and its number, from a tensor that only such layers have.
fn prediction_layer(name: &str) -> Option<(&str, usize)> {
    let (at, layer) = layer_of(name)?;
    let fusion = ["eh_proj.", "enorm.", "hnorm."].iter().any(|word| name[at..].starts_with(word));
    let before = name[..at].rfind("layers.")?;
    fusion.then_some((&name[..before], layer))
}

/// What is before the words of the vision parts; `None` for other tensors.
pub(super) fn tower_prefix(name: &str) -> Option<&str> {
    ["vision_tower.", "mm_projector.", "multi_modal_projector."].iter().find_map(|word| {
        let (before, _) = name.split_once(word)?;
        (before.is_empty() || before.ends_with('.')).then_some(before)
    })
}

/// Whether a tensor is what a calibration leaves beside a weight and nothing here reads: ranges and scales of
/// activations, or of weights that are stored as plain values. What changes the result of a product is none.
fn is_calibration(name: &str) -> bool {
    let mut words = name.rsplit('.');
    let last = words.next().unwrap_or_default().trim_start_matches('_');
    let of_quantizer = words.any(|word| word.ends_with("_quantizer"));
    let is_range = matches!(last, "amax" | "amin" | "min_val" | "max_val" | "weight_amax" | "input_amax");
    let is_scale = matches!(last, "scale" | "scale_2" | "double_scale" | "global_scale" | "zero_point");
    let of_activations = matches!(
        last,
        "input_scale"
            | "input_global_scale"
            | "input_zero_point"
            | "output_scale"
            | "output_zero_point"
            | "k_zero_point"
            | "v_zero_point"
            | "q_zero_point"
    );
    is_range || of_activations || (of_quantizer && is_scale)
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

    fn detect(names: &[&str]) -> WeightNames {
        WeightNames::detect(names.iter().copied(), 2)
    }

    /// Regression: only the prefixes of known releases were found, and what transformers 5 saves was missing whole.
    #[test]
    fn spellings_are_found_from_the_tensors() {
        for (outer, layers, head) in [
            ("model.", "model.", "lm_head"),
            ("language_model.model.", "language_model.model.", "language_model.lm_head"),
            ("language_model.model.", "language_model.", "language_model.lm_head"),
            ("model.language_model.", "model.language_model.", "lm_head"),
            ("model.language_model.model.", "model.language_model.model.", "model.language_model.lm_head"),
            ("model.model.", "model.model.", "model.lm_head"),
            ("", "", "lm_head"),
        ] {
            let [embedding, norm] =
                [format!("{outer}embed_tokens.weight"), format!("{layers}layers.0.input_layernorm.weight")];
            // A prediction layer has an embedding of its own.
            let deeper = format!("{layers}layers.2.embed_tokens.weight");
            let names = detect(&[&deeper, &norm, &embedding, &format!("{head}.weight")]);
            assert_eq!((&*names.outer, &*names.layers, &*names.head), (outer, layers, head));
        }
    }

    #[test]
    fn names_that_are_not_stored_are_the_nearest_ones() {
        let missing = |names: &[&str]| detect(names).head;
        assert_eq!(missing(&[]), "lm_head");
        assert_eq!(missing(&["language_model.model.embed_tokens.weight"]), "language_model.lm_head");
        assert_eq!(missing(&["vision_tower.embed_tokens.weight"]), "lm_head");
        assert_eq!(
            detect(&["a.model.layers.0.input_layernorm.weight"]).embed_tokens(),
            "a.model.embed_tokens.weight"
        );
    }

    #[test]
    fn layers_behind_the_last_are_told_by_their_fusion() {
        let names = detect(&[
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.1.eh_proj.weight",
            "model.layers.2.eh_proj.weight",
            "model.layers.2.enorm.weight",
            "model.layers.3.input_layernorm.weight",
            "draft.layers.4.hnorm.weight",
        ]);
        assert_eq!(names.prediction_layers, [2]);
    }

    #[test]
    fn what_a_calibration_leaves_is_told_from_what_changes_a_product() {
        for name in [
            "model.layers.1.mlp.experts.0.gate_proj.input_quantizer._amax",
            "model.layers.1.self_attn.k_bmm_quantizer._amax",
            "model.layers.1.self_attn.q_bmm_quantizer._scale",
            "model.layers.1.self_attn.o_proj.output_scale",
            "model.layers.1.self_attn.o_proj.output_quantizer.zero_point",
            "model.layers.1.mlp.gate.input_scale",
        ] {
            assert!(is_calibration(name), "{name}");
        }
        for name in [
            "model.layers.1.self_attn.o_proj.input_quantizer._pre_quant_scale",
            "model.layers.1.self_attn.o_proj.pre_quant_scale",
            "model.layers.1.self_attn.o_proj.scale",
            "model.layers.1.self_attn.o_proj.bias",
            "model.layers.1.mlp.gate.weight_scale",
        ] {
            assert!(!is_calibration(name), "{name}");
        }
    }
}
