//! Hyperparameters of a checkpoint, parsed once from `config.json`; parsing checks every value.
//!
//! Accepts `kimi_k2`, `deepseek_v3` (Moonlight too) and the multimodal wrappers `kimi_k25`,
//! `kimi_vl` (their text part), with YaRN under `rope_scaling` or `rope_parameters`, keyed `type`
//! or `rope_type`.

use serde_json::{Map, Value};

use perigee_ops::{CacheDtype, CacheShape, FfnUnits, MlaShape, ModelShape, RouterShape};

/// Largest accepted value of a dimension without a limit in `LIMITS`.
const MAX_DIM: u64 = 1 << 22;

/// Limits of single fields: 10 to 100 times the values of the family, and small enough that the
/// bytes of a network, a cache or a workspace stay below 2^63 in every combination.
const LIMITS: [(&str, u64); 23] = [
    ("num_hidden_layers", 1 << 12),
    ("first_k_dense_replace", 1 << 12),
    ("num_nextn_predict_layers", 1 << 8),
    ("n_routed_experts", 1 << 14),
    ("n_shared_experts", 1 << 8),
    ("num_experts_per_tok", 1 << 10),
    ("hidden_size", 1 << 17),
    ("intermediate_size", 1 << 18),
    ("moe_intermediate_size", 1 << 18),
    ("num_attention_heads", 1 << 11),
    ("q_lora_rank", 1 << 17),
    ("kv_lora_rank", 1 << 15),
    ("qk_nope_head_dim", 1 << 12),
    ("qk_rope_head_dim", 1 << 12),
    ("v_head_dim", 1 << 12),
    ("vt_num_hidden_layers", 1 << 12),
    ("vt_hidden_size", 1 << 17),
    ("vt_intermediate_size", 1 << 18),
    ("vt_num_attention_heads", 1 << 11),
    ("init_pos_emb_height", 1 << 12),
    ("init_pos_emb_width", 1 << 12),
    ("pos_emb_height", 1 << 12),
    ("pos_emb_width", 1 << 12),
];

/// Largest config.json that is parsed, bytes. Parsed JSON takes up to twenty times the size of its
/// text.
const MAX_CONFIG_BYTES: usize = 16 << 20;

/// YaRN context extension. Peng et al., arXiv 2309.00071.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct YarnScaling {
    /// Context extension factor s.
    pub factor: f64,
    /// Rotations above which a dimension is extrapolated.
    pub beta_fast: f64,
    /// Rotations below which a dimension is interpolated.
    pub beta_slow: f64,
    /// Numerator of the cos/sin multiplier; absent in some files.
    pub mscale: Option<f64>,
    /// Denominator of the multiplier; its square scales the softmax.
    pub mscale_all_dim: Option<f64>,
    /// Context length before extension.
    pub original_max_position_embeddings: usize,
}

/// The network's sizes and switches.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// `model_type` of the text part.
    pub model_type: String,
    /// `model_type` of the whole checkpoint (differs for multimodal wrappers).
    pub wrapper_type: String,
    /// Rows of the embedding table and of the head.
    pub vocab_size: usize,
    /// D, the width of the residual stream.
    pub hidden_size: usize,
    /// Layers of the network, without extra prediction layers.
    pub num_layers: usize,
    /// Layers below this index have a dense FFN.
    pub first_k_dense_replace: usize,
    /// Width of the dense FFN.
    pub intermediate_size: usize,
    /// Width of one routed expert.
    pub moe_intermediate_size: usize,
    /// Shared experts (one FFN of this many times the expert width).
    pub num_shared_experts: usize,
    /// Rank of the query's latent; `None`: queries are projected directly from the residual stream.
    pub q_lora_rank: Option<usize>,
    /// Attention sizes and softmax scale.
    pub mla: MlaShape,
    /// Router sizes.
    pub router: RouterShape,
    /// Epsilon of the norms of the residual stream.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Context extension; `None` without one.
    pub yarn: Option<YarnScaling>,
    /// Longest context, tokens.
    pub max_position_embeddings: usize,
    /// Whether the embedding table is also the head.
    pub tie_word_embeddings: bool,
    /// Extra prediction layers after the last one; no part of the network, the first may draft.
    pub num_nextn_predict_layers: usize,
    /// `eos_token_id` of config.json (one or a list).
    pub eos_token_ids: Vec<u32>,
}

/// A `config.json` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BlueprintError {
    /// Not JSON.
    #[error("config.json is not valid JSON")]
    Json(#[from] serde_json::Error),
    /// The file is larger than `MAX_CONFIG_BYTES`.
    #[error("config.json has {bytes} bytes, more than the {limit} that are parsed")]
    TooLong {
        /// Size of the file.
        bytes: usize,
        /// Largest size that is parsed.
        limit: usize,
    },
    /// A field is missing.
    #[error("config.json: field `{0}` is missing")]
    Missing(String),
    /// A field has a value outside the served range.
    #[error("config.json: field `{field}` is {value}, expected {expected}")]
    Invalid {
        /// Field name.
        field: String,
        /// Value in the file.
        value: String,
        /// Values that are served.
        expected: String,
    },
}

/// Reads fields of one JSON object; errors carry the field's name.
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(super) fn present(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    pub(super) fn invalid(name: &str, value: &Value, expected: &str) -> BlueprintError {
        let mut value = value.to_string();
        if let Some((at, _)) = value.char_indices().nth(80) {
            value.truncate(at);
        }
        BlueprintError::Invalid { field: name.into(), value, expected: expected.into() }
    }

    pub(super) fn size_opt(&self, name: &str) -> Result<Option<usize>, BlueprintError> {
        let Some(value) = self.present(name) else { return Ok(None) };
        let limit = LIMITS.iter().find(|(field, _)| *field == name).map_or(MAX_DIM, |(_, limit)| *limit);
        match value.as_u64() {
            Some(n) if n <= limit => Ok(Some(n as usize)),
            _ => Err(Self::invalid(name, value, &format!("an integer between 0 and {limit}"))),
        }
    }

    pub(super) fn size(&self, name: &str) -> Result<usize, BlueprintError> {
        match self.size_opt(name)? {
            Some(0) => Err(Self::invalid(name, &self.0[name], "at least 1")),
            Some(n) => Ok(n),
            None => Err(BlueprintError::Missing(name.into())),
        }
    }

    pub(super) fn float_opt(&self, name: &str) -> Result<Option<f64>, BlueprintError> {
        let Some(value) = self.present(name) else { return Ok(None) };
        match value.as_f64() {
            Some(f) if f.is_finite() => Ok(Some(f)),
            _ => Err(Self::invalid(name, value, "a finite number")),
        }
    }

    pub(super) fn positive(&self, name: &str, default: Option<f64>) -> Result<f64, BlueprintError> {
        match self.float_opt(name)?.or(default) {
            Some(f) if (f as f32).is_normal() && f > 0.0 => Ok(f),
            Some(_) => Err(Self::invalid(name, &self.0[name], "a positive number of single precision")),
            None => Err(BlueprintError::Missing(name.into())),
        }
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, BlueprintError> {
        match self.present(name) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(value) => Err(Self::invalid(name, value, "true or false")),
        }
    }

    pub(super) fn one_of(&self, name: &str, allowed: &[&str], default: &str) -> Result<(), BlueprintError> {
        match self.present(name) {
            None if allowed.contains(&default) => Ok(()),
            Some(Value::String(s)) if allowed.contains(&s.as_str()) => Ok(()),
            Some(value) => Err(Self::invalid(name, value, &allowed.join(" or "))),
            None => Err(BlueprintError::Missing(name.into())),
        }
    }
}

impl Blueprint {
    /// Parses the bytes of a `config.json`.
    pub fn parse(config_json: &[u8]) -> Result<Self, BlueprintError> {
        let root = parse_json(config_json)?;
        let Value::Object(root) = &root else {
            return Err(BlueprintError::Missing("model_type (the file is not a JSON object)".into()));
        };
        let wrapper_type = match root.get("model_type") {
            Some(Value::String(s)) => s.clone(),
            Some(value) => return Err(Fields::invalid("model_type", value, "a string")),
            None => return Err(BlueprintError::Missing("model_type".into())),
        };
        let text = match (wrapper_type.as_str(), root.get("text_config")) {
            ("kimi_k2" | "deepseek_v3", _) => root,
            ("kimi_k25" | "kimi_vl", Some(Value::Object(text))) => text,
            ("kimi_k25" | "kimi_vl", _) => return Err(BlueprintError::Missing("text_config".into())),
            (_, _) => {
                let expected = "kimi_k2, kimi_k25, kimi_vl or deepseek_v3";
                return Err(Fields::invalid("model_type", &root["model_type"], expected));
            }
        };
        let model_type = match text.get("model_type") {
            None => wrapper_type.clone(),
            Some(Value::String(kind))
                if matches!(kind.as_str(), "kimi_k2" | "deepseek_v3") || *kind == wrapper_type =>
            {
                kind.clone()
            }
            Some(other) => {
                return Err(Fields::invalid("text_config.model_type", other, "kimi_k2 or deepseek_v3"));
            }
        };
        let mut blueprint = Self::parse_text(&Fields(text), model_type, wrapper_type)?;
        let eos = root.get("eos_token_id").or_else(|| text.get("eos_token_id"));
        blueprint.eos_token_ids = token_ids(eos);
        Ok(blueprint)
    }

    fn parse_text(f: &Fields<'_>, model_type: String, wrapper_type: String) -> Result<Self, BlueprintError> {
        f.one_of("scoring_func", &["sigmoid"], "sigmoid")?;
        f.one_of("topk_method", &["noaux_tc"], "noaux_tc")?;
        f.one_of("hidden_act", &["silu"], "silu")?;
        if !f.flag("rope_interleave", true)? {
            return Err(Fields::invalid("rope_interleave", &Value::Bool(false), "true"));
        }
        if f.flag("attention_bias", false)? {
            return Err(Fields::invalid("attention_bias", &Value::Bool(true), "false"));
        }
        if let Some(freq @ 2..) = f.size_opt("moe_layer_freq")? {
            return Err(Fields::invalid("moe_layer_freq", &freq.into(), "1"));
        }
        let (rope_theta, yarn) = parse_rope(f)?;
        let (nope, rope) = (f.size("qk_nope_head_dim")?, f.size("qk_rope_head_dim")?);
        if !rope.is_multiple_of(2) {
            return Err(Fields::invalid("qk_rope_head_dim", &rope.into(), "an even number"));
        }
        let mla = MlaShape {
            num_heads: f.size("num_attention_heads")?,
            qk_nope_head_dim: nope,
            qk_rope_head_dim: rope,
            v_head_dim: f.size("v_head_dim")?,
            kv_lora_rank: f.size("kv_lora_rank")?,
            scale: softmax_scale(nope + rope, yarn.as_ref()),
        };
        let num_layers = f.size("num_hidden_layers")?;
        let first_k_dense_replace = f.size_opt("first_k_dense_replace")?.unwrap_or(0).min(num_layers);
        Ok(Self {
            model_type,
            wrapper_type,
            vocab_size: f.size("vocab_size")?,
            hidden_size: f.size("hidden_size")?,
            num_layers,
            first_k_dense_replace,
            intermediate_size: f.size("intermediate_size")?,
            moe_intermediate_size: f.size("moe_intermediate_size")?,
            num_shared_experts: f.size_opt("n_shared_experts")?.unwrap_or(0),
            q_lora_rank: f.size_opt("q_lora_rank")?.filter(|rank| *rank > 0),
            mla,
            router: parse_router(f)?,
            rms_norm_eps: f.positive("rms_norm_eps", Some(1e-6))? as f32,
            rope_theta,
            yarn,
            max_position_embeddings: f.size("max_position_embeddings")?,
            tie_word_embeddings: f.flag("tie_word_embeddings", false)?,
            num_nextn_predict_layers: f.size_opt("num_nextn_predict_layers")?.unwrap_or(0),
            eos_token_ids: Vec::new(),
        })
    }

    /// Whether layer `layer` has routed experts.
    pub fn is_moe(&self, layer: usize) -> bool {
        layer >= self.first_k_dense_replace
    }

    /// Weights that one token multiplies: the network without the embedding table and without the
    /// experts that are not chosen.
    pub fn active_weights_per_token(&self) -> usize {
        let (m, d) = (&self.mla, self.hidden_size);
        let q_out = m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim);
        let query = match self.q_lora_rank {
            Some(q) => q * d + q_out * q,
            None => q_out * d,
        };
        let kv = m.latent_dim() * d + m.num_heads * (m.qk_nope_head_dim + m.v_head_dim) * m.kv_lora_rank;
        let attention = query + kv + d * m.num_heads * m.v_head_dim;
        let chosen = self.router.top_k + self.num_shared_experts;
        let experts = chosen * 3 * self.moe_intermediate_size * d + self.router.num_experts * d;
        let ffn = |layer| if self.is_moe(layer) { experts } else { 3 * self.intermediate_size * d };
        (0..self.num_layers).map(|layer| attention + ffn(layer)).sum::<usize>() + self.vocab_size * d
    }

    /// Sizes for the backend's operations.
    pub fn shape(&self, latent_norm_eps: f32) -> ModelShape {
        ModelShape {
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            q_lora_rank: self.q_lora_rank,
            mla: self.mla,
            router: self.router,
            ffn: FfnUnits {
                routed: self.moe_intermediate_size,
                shared: self.num_shared_experts * self.moe_intermediate_size,
                dense: self.intermediate_size,
            },
            rms_norm_eps: self.rms_norm_eps,
            latent_norm_eps,
        }
    }

    /// Shape of the KV cache with `num_blocks` blocks.
    pub fn cache_shape(&self, num_blocks: usize, block_size: usize, dtype: CacheDtype) -> CacheShape {
        CacheShape {
            num_layers: self.num_layers,
            num_blocks,
            block_size,
            latent_dim: self.mla.latent_dim(),
            rope_dim: self.mla.qk_rope_head_dim,
            dtype,
        }
    }
}

fn parse_router(f: &Fields<'_>) -> Result<RouterShape, BlueprintError> {
    let shape = RouterShape {
        num_experts: f.size("n_routed_experts")?,
        top_k: f.size("num_experts_per_tok")?,
        n_group: f.size_opt("n_group")?.unwrap_or(1).max(1),
        topk_group: f.size_opt("topk_group")?.unwrap_or(1).max(1),
        norm_topk_prob: f.flag("norm_topk_prob", true)?,
        routed_scaling_factor: f.positive("routed_scaling_factor", Some(1.0))? as f32,
    };
    if !shape.num_experts.is_multiple_of(shape.n_group) {
        return Err(Fields::invalid("n_group", &shape.n_group.into(), "a divisor of n_routed_experts"));
    }
    if shape.topk_group > shape.n_group {
        return Err(Fields::invalid("topk_group", &shape.topk_group.into(), "at most n_group"));
    }
    let eligible = shape.num_experts / shape.n_group * shape.topk_group;
    if shape.top_k > eligible {
        let expected = format!("at most {eligible}, the experts of topk_group groups");
        return Err(Fields::invalid("num_experts_per_tok", &shape.top_k.into(), &expected));
    }
    Ok(shape)
}

/// The JSON of a `config.json` of bounded size.
pub(super) fn parse_json(config_json: &[u8]) -> Result<Value, BlueprintError> {
    if config_json.len() > MAX_CONFIG_BYTES {
        return Err(BlueprintError::TooLong { bytes: config_json.len(), limit: MAX_CONFIG_BYTES });
    }
    Ok(serde_json::from_slice(config_json)?)
}

/// Base and context extension under `rope_scaling` or `rope_parameters`.
pub(super) fn parse_rope(f: &Fields<'_>) -> Result<(f64, Option<YarnScaling>), BlueprintError> {
    let nested = match f.present("rope_scaling").or_else(|| f.present("rope_parameters")) {
        None => None,
        Some(Value::Object(map)) => Some(Fields(map)),
        Some(value) => return Err(Fields::invalid("rope_scaling", value, "an object or null")),
    };
    let inner = nested.as_ref().map(|nested| nested.float_opt("rope_theta")).transpose()?.flatten();
    let theta = match f.float_opt("rope_theta")?.or(inner) {
        Some(t) if t > 1.0 => t,
        Some(t) => return Err(Fields::invalid("rope_theta", &t.into(), "a number above 1")),
        None => 10000.0,
    };
    let Some(r) = nested else { return Ok((theta, None)) };
    if let Some(factor) = r.present("attention_factor") {
        return Err(Fields::invalid(
            "rope_scaling.attention_factor",
            factor,
            "none: mscale and mscale_all_dim say it",
        ));
    }
    let kind = r.present("rope_type").or_else(|| r.present("type"));
    match kind.map(|k| (k, k.as_str())) {
        Some((_, Some("yarn"))) => {}
        None | Some((_, Some("default"))) => return Ok((theta, None)),
        Some((value, _)) => return Err(Fields::invalid("rope_scaling.type", value, "yarn or default")),
    }
    let yarn = YarnScaling {
        factor: r.positive("factor", None)?,
        beta_fast: r.positive("beta_fast", Some(32.0))?,
        beta_slow: r.positive("beta_slow", Some(1.0))?,
        mscale: r.float_opt("mscale")?,
        mscale_all_dim: r.float_opt("mscale_all_dim")?,
        original_max_position_embeddings: match r.size_opt("original_max_position_embeddings")? {
            Some(n) if n > 0 => n,
            _ => return Err(BlueprintError::Missing("rope_scaling.original_max_position_embeddings".into())),
        },
    };
    Ok((theta, Some(yarn)))
}

/// g(s, m) = 0.1 m ln s + 1, and 1 for s <= 1.
pub(super) fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// Softmax scale of MLA: YaRN's factor enters it squared.
pub(super) fn softmax_scale(qk_head_dim: usize, yarn: Option<&YarnScaling>) -> f32 {
    let plain = (qk_head_dim as f64).powf(-0.5);
    let g = match yarn {
        Some(YarnScaling { factor, mscale_all_dim: Some(m), .. }) if *m != 0.0 => yarn_mscale(*factor, *m),
        _ => 1.0,
    };
    (plain * g * g) as f32
}

/// A token id or a list of them; anything else is an empty list.
pub(crate) fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(single) => id(single).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn k2(edit: impl Fn(&mut Value)) -> Result<Blueprint, BlueprintError> {
        let mut config = serde_json::json!({
            "model_type": "kimi_k2", "vocab_size": 163840, "hidden_size": 7168, "num_hidden_layers": 61,
            "first_k_dense_replace": 1, "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
            "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "routed_scaling_factor": 2.827, "rms_norm_eps": 1e-5,
            "rope_theta": 50000.0, "max_position_embeddings": 262144, "eos_token_id": 163586,
            "rope_scaling": {"type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
        });
        edit(&mut config);
        Blueprint::parse(config.to_string().as_bytes())
    }

    #[test]
    fn softmax_scales_of_the_releases() {
        assert!((k2(|_| ()).unwrap().mla.scale - 0.144_679_63).abs() < 1e-7);
        let first = k2(|c| c["rope_scaling"]["factor"] = 32.0.into()).unwrap();
        assert!((first.mla.scale - 0.130_860_8).abs() < 1e-7);
        let moonlight = k2(|c| c["rope_scaling"] = Value::Null).unwrap();
        assert!((moonlight.mla.scale - 0.072_168_78).abs() < 1e-7);
    }

    #[test]
    fn new_spelling_and_wrapper_mean_the_same() {
        let old = k2(|_| ()).unwrap();
        let new = k2(|c| {
            let mut rope = c["rope_scaling"].take();
            rope["rope_type"] = rope["type"].take();
            rope["rope_theta"] = c["rope_theta"].take();
            c["rope_parameters"] = rope;
        })
        .unwrap();
        assert_eq!(old, new);
        let wrapped = k2(|c| {
            let text = c.take();
            *c = serde_json::json!({"model_type": "kimi_k25", "text_config": text, "eos_token_id": [163586, 163585]});
        })
        .unwrap();
        assert_eq!(wrapped.model_type, "kimi_k2");
        assert_eq!(wrapped.wrapper_type, "kimi_k25");
        assert_eq!(wrapped.eos_token_ids, [163586, 163585]);
        assert_eq!(wrapped.mla, old.mla);
    }

    #[test]
    fn errors_name_the_field() {
        let message = |edit: &dyn Fn(&mut Value)| k2(edit).unwrap_err().to_string();
        assert!(message(&|c| c["hidden_size"] = Value::Null).contains("`hidden_size` is missing"));
        assert!(message(&|c| c["hidden_size"] = (-1).into()).contains("`hidden_size` is -1"));
        assert!(message(&|c| c["vocab_size"] = (1u64 << 40).into()).contains("vocab_size"));
        assert!(message(&|c| c["scoring_func"] = "softmax".into()).contains("scoring_func"));
        assert!(message(&|c| c["num_experts_per_tok"] = 385.into()).contains("num_experts_per_tok"));
        assert!(message(&|c| c["model_type"] = "llama".into()).contains("model_type"));
        let foreign = message(&|c| {
            let text = c.take();
            *c = serde_json::json!({"model_type": "kimi_k25", "text_config": text});
            c["text_config"]["model_type"] = "qwen3_moe".into();
        });
        assert!(foreign.contains("`text_config.model_type` is \"qwen3_moe\""), "{foreign}");
        assert!(message(&|c| c["rope_scaling"]["type"] = "linear".into()).contains("rope_scaling.type"));
        assert!(message(&|c| c["qk_rope_head_dim"] = 63.into()).contains("even"));
    }
}
