//! Eagle3 drafts: what their `config.json` says and which target they fit.
//!
//! Two architectures are published: `Eagle3DeepseekV2ForCausalLM`, or V3 (one MLA layer, the drafts of
//! Kimi), and `LlamaForCausalLMEagle3`, or `Eagle3LlamaForCausalLM` (one GQA layer, often with a reduced vocabulary). EAGLE-3, Li et
//! al., arXiv 2503.01840.

use serde::Serialize;
use serde_json::Value;

use super::blueprint::{
    Blueprint, BlueprintError, Fields, YarnScaling, parse_json, parse_rope, softmax_scale,
};
use super::checkpoint::Checkpoint;
use super::rope;
use perigee_ops::{
    CacheDtype, CacheShape, DraftAttentionShape, DraftShape, GqaShape, MlaShape, NUM_STATES, RopeTable,
};

/// Attention of the draft's layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftAttention {
    /// Multi-head latent attention, with the sizes of the draft's own configuration.
    Mla {
        /// Heads.
        num_heads: usize,
        /// Rank of the query's latent; `None`: queries are projected directly.
        q_lora_rank: Option<usize>,
        /// Values of the latent.
        kv_lora_rank: usize,
        /// Values of a query and key head without rotation.
        qk_nope_head_dim: usize,
        /// Values of the rope part of a head.
        qk_rope_head_dim: usize,
        /// Values of a value head.
        v_head_dim: usize,
        /// Softmax scale, YaRN's factor included.
        scale: f32,
    },
    /// Grouped-query attention with rotation of the halves of a head.
    Gqa {
        /// Query heads.
        num_heads: usize,
        /// Key and value heads.
        num_kv_heads: usize,
        /// Values of a head.
        head_dim: usize,
    },
}

/// Sizes and switches of a draft.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftBlueprint {
    /// Attention of the layer.
    pub attention: DraftAttention,
    /// Width of the draft's residual stream.
    pub hidden_size: usize,
    /// Width of the target's residual stream.
    pub target_hidden_size: usize,
    /// Ids of the embedding table, which are the target's.
    pub vocab_size: usize,
    /// Rows of the draft's head.
    pub draft_vocab_size: usize,
    /// Width of the FFN.
    pub intermediate_size: usize,
    /// Epsilon of every norm of the draft.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Context extension; `None` without one.
    pub yarn: Option<YarnScaling>,
    /// Layers of the target as the file names them; `None` if it names none.
    pub layer_ids: Option<[usize; NUM_STATES]>,
    /// Each hidden state of the target is normalised by itself (`fc_norm`).
    pub fc_norm: bool,
    /// The three hidden states side by side are normalised together (`norm_before_fc`).
    pub norm_before_fc: bool,
    /// The residual stream begins with the normalised state (`norm_before_residual`).
    pub norm_before_residual: bool,
    /// The next step is fed the state behind the last norm (`norm_output`).
    pub norm_output: bool,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// The embedding table is the head.
    pub tie_word_embeddings: bool,
}

/// A draft that does not go with a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the draft's {field} is {draft}, the target's {target}: take the draft that was trained for this target"
)]
pub struct DraftMismatch {
    /// Field of `config.json`.
    pub field: &'static str,
    /// Value of the draft.
    pub draft: usize,
    /// Value of the target.
    pub target: usize,
}

impl DraftBlueprint {
    /// Whether a `config.json` is that of an Eagle3 draft.
    pub fn is_draft(config_json: &[u8]) -> bool {
        parse_json(config_json).is_ok_and(|root| architecture(&root).is_some())
    }

    /// Parses the bytes of a draft's `config.json`; checks every value.
    pub fn parse(config_json: &[u8]) -> Result<Self, BlueprintError> {
        let root = parse_json(config_json)?;
        let (Some(is_mla), Value::Object(map)) = (architecture(&root), &root) else {
            return Err(BlueprintError::Missing("architectures (an Eagle3 draft's)".into()));
        };
        let f = Fields(map);
        f.one_of("hidden_act", &["silu"], "silu")?;
        for bias in ["attention_bias", "mlp_bias"] {
            if f.flag(bias, false)? {
                return Err(Fields::invalid(bias, &Value::Bool(true), "false"));
            }
        }
        if let Some(layers @ (0 | 2..)) = f.size_opt("num_hidden_layers")? {
            return Err(Fields::invalid("num_hidden_layers", &layers.into(), "1"));
        }
        let hidden_size = f.size("hidden_size")?;
        let num_heads = f.size("num_attention_heads")?;
        let (rope_theta, yarn) = parse_rope(&f)?;
        let attention = if is_mla {
            let (nope, rope) = (f.size("qk_nope_head_dim")?, f.size("qk_rope_head_dim")?);
            DraftAttention::Mla {
                num_heads,
                q_lora_rank: f.size_opt("q_lora_rank")?.filter(|rank| *rank > 0),
                kv_lora_rank: f.size("kv_lora_rank")?,
                qk_nope_head_dim: nope,
                qk_rope_head_dim: even("qk_rope_head_dim", rope)?,
                v_head_dim: f.size("v_head_dim")?,
                scale: softmax_scale(nope + rope, yarn.as_ref()),
            }
        } else {
            let num_kv_heads = f.size_opt("num_key_value_heads")?.unwrap_or(num_heads);
            if num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
                let expected = "a divisor of num_attention_heads";
                return Err(Fields::invalid("num_key_value_heads", &num_kv_heads.into(), expected));
            }
            let head_dim = f.size_opt("head_dim")?.unwrap_or(hidden_size / num_heads);
            DraftAttention::Gqa { num_heads, num_kv_heads, head_dim: even("head_dim", head_dim)? }
        };
        let vocab_size = f.size("vocab_size")?;
        let draft_vocab_size = f.size_opt("draft_vocab_size")?.unwrap_or(vocab_size);
        if draft_vocab_size == 0 || draft_vocab_size > vocab_size {
            let expected = format!("from 1 to vocab_size, {vocab_size}");
            return Err(Fields::invalid("draft_vocab_size", &draft_vocab_size.into(), &expected));
        }
        let inner = match f.present("eagle_config") {
            Some(Value::Object(inner)) => Some(Fields(inner)),
            _ => None,
        };
        // The flag stands in `eagle_config` or beside it.
        let flag = |name: &str| match &inner {
            Some(inner) if inner.present(name).is_some() => inner.flag(name, false),
            _ => f.flag(name, false),
        };
        let ids = "eagle_aux_hidden_state_layer_ids";
        let ids = f.present(ids).or_else(|| inner.as_ref().and_then(|inner| inner.present(ids)));
        Ok(Self {
            attention,
            hidden_size,
            target_hidden_size: f.size_opt("target_hidden_size")?.unwrap_or(hidden_size),
            vocab_size,
            draft_vocab_size,
            intermediate_size: f.size("intermediate_size")?,
            rms_norm_eps: f.positive("rms_norm_eps", Some(1e-6))? as f32,
            rope_theta,
            yarn,
            // An empty list, as modelopt writes it, means the default.
            layer_ids: ids
                .filter(|ids| ids.as_array().is_none_or(|ids| !ids.is_empty()))
                .map(layer_ids)
                .transpose()?,
            // The second name is an older one.
            fc_norm: flag("fc_norm")? || flag("use_aux_norm")?,
            norm_before_fc: flag("norm_before_fc")?,
            norm_before_residual: flag("norm_before_residual")?,
            norm_output: flag("norm_output")?,
            logit_scale: f.positive("logit_scale", Some(1.0))? as f32,
            tie_word_embeddings: f.flag("tie_word_embeddings", false)?,
        })
    }

    /// The layers of a target of `num_layers` layers whose inputs the draft reads; `num_layers` is
    /// the output of the last one.
    ///
    /// Two numberings are published: inputs of layers, and, where the first id is 1, outputs of
    /// layers. A file without ids means `(2, n / 2, n - 3)`.
    pub fn reads(&self, num_layers: usize) -> [usize; NUM_STATES] {
        match self.layer_ids {
            Some(ids) if ids[0] == 1 => ids.map(|id| id + 1),
            Some(ids) => ids,
            None => [2, num_layers / 2, num_layers.saturating_sub(3)],
        }
    }

    /// Sizes for the backend's operations.
    pub fn shape(&self) -> DraftShape {
        let attention = match self.attention {
            DraftAttention::Mla {
                num_heads,
                q_lora_rank,
                kv_lora_rank,
                qk_nope_head_dim,
                qk_rope_head_dim,
                v_head_dim,
                scale,
            } => DraftAttentionShape::Mla {
                q_lora_rank,
                mla: MlaShape {
                    num_heads,
                    qk_nope_head_dim,
                    qk_rope_head_dim,
                    v_head_dim,
                    kv_lora_rank,
                    scale,
                },
            },
            DraftAttention::Gqa { num_heads, num_kv_heads, head_dim } => {
                DraftAttentionShape::Gqa(GqaShape { num_heads, num_kv_heads, head_dim })
            }
        };
        DraftShape {
            hidden_size: self.hidden_size,
            target_hidden_size: self.target_hidden_size,
            vocab_size: self.vocab_size,
            draft_vocab_size: self.draft_vocab_size,
            intermediate_size: self.intermediate_size,
            attention,
            rms_norm_eps: self.rms_norm_eps,
            norm_before_residual: self.norm_before_residual,
            norm_output: self.norm_output,
            logit_scale: self.logit_scale,
        }
    }

    /// Bytes cached per token on a GPU, which keeps keys and values of grouped queries in bf16 at least.
    pub fn cached_bytes(&self, dtype: CacheDtype) -> usize {
        match (self.shape().attention, dtype) {
            (DraftAttentionShape::Gqa(gqa), CacheDtype::Fp8(_)) => 2 * gqa.cached_dim(),
            _ => self.cache_shape(1, 1, dtype).block_bytes(),
        }
    }

    /// Bytes of the tensors that ranks divide: the FFN, and tables and heads of the whole vocabulary.
    pub fn divided_bytes(&self, files: &Checkpoint) -> u64 {
        let is_divided = |name: &str| {
            let head = self.draft_vocab_size == self.vocab_size && name.contains("lm_head");
            name.contains("embed_tokens") || name.contains(".mlp.") || head
        };
        let divided = files.tensors().filter(|(name, _)| is_divided(name));
        divided.map(|(_, tensor)| tensor.bytes.len() as u64).sum()
    }

    /// Values cached per token, and how many of them are a rope key.
    fn cached_dims(&self) -> (usize, usize) {
        match self.shape().attention {
            DraftAttentionShape::Mla { mla, .. } => (mla.latent_dim(), mla.qk_rope_head_dim),
            DraftAttentionShape::Gqa(gqa) => (gqa.cached_dim(), 0),
        }
    }

    /// Shape of the draft's KV cache with `num_blocks` blocks.
    pub fn cache_shape(&self, num_blocks: usize, block_size: usize, dtype: CacheDtype) -> CacheShape {
        let (latent_dim, rope_dim) = self.cached_dims();
        CacheShape { num_layers: 1, num_blocks, block_size, latent_dim, rope_dim, dtype }
    }

    /// Rotations of the draft, which are not the target's.
    pub fn rope(&self) -> RopeTable {
        let dim = match self.attention {
            DraftAttention::Mla { qk_rope_head_dim, .. } => qk_rope_head_dim,
            DraftAttention::Gqa { head_dim, .. } => head_dim,
        };
        rope::frequencies(dim, self.rope_theta, self.yarn.as_ref())
    }

    /// Errors: the first field in which the draft differs from what the target needs.
    pub fn check(&self, target: &Blueprint) -> Result<(), DraftMismatch> {
        let same = |field, draft, target| match draft == target {
            true => Ok(()),
            false => Err(DraftMismatch { field, draft, target }),
        };
        let width = match self.target_hidden_size == self.hidden_size {
            true => "hidden_size",
            false => "target_hidden_size",
        };
        same(width, self.target_hidden_size, target.hidden_size)?;
        same("vocab_size", self.vocab_size, target.vocab_size)?;
        let reads = self.reads(target.num_layers);
        let ascending = reads.is_sorted() && reads[2] <= target.num_layers;
        if !ascending {
            let field = "eagle_aux_hidden_state_layer_ids";
            return Err(DraftMismatch { field, draft: reads[2], target: target.num_layers });
        }
        Ok(())
    }
}

/// `Some(true)` for a draft with MLA, `Some(false)` for one with GQA.
fn architecture(root: &Value) -> Option<bool> {
    root.get("architectures")?.as_array()?.iter().find_map(|name| match name.as_str()? {
        "Eagle3DeepseekV2ForCausalLM" | "Eagle3DeepseekV3ForCausalLM" => Some(true),
        "LlamaForCausalLMEagle3" | "Eagle3LlamaForCausalLM" => Some(false),
        _ => None,
    })
}

fn even(field: &str, size: usize) -> Result<usize, BlueprintError> {
    match size.is_multiple_of(2) && size > 0 {
        true => Ok(size),
        false => Err(Fields::invalid(field, &size.into(), "an even number")),
    }
}

/// Three ascending ids.
fn layer_ids(value: &Value) -> Result<[usize; NUM_STATES], BlueprintError> {
    let ids: Option<Vec<usize>> =
        value.as_array().and_then(|list| list.iter().map(|id| id.as_u64().map(|id| id as usize)).collect());
    ids.and_then(|ids| <[usize; NUM_STATES]>::try_from(ids).ok())
        .filter(|ids| ids.is_sorted() && ids[NUM_STATES - 1] <= 1 << 12)
        .ok_or_else(|| {
            Fields::invalid("eagle_aux_hidden_state_layer_ids", value, "three ascending layers of the target")
        })
}
