//! Tensors of Eagle3 drafts: their names, what a folder lacks, and binding them for a backend.

use serde::Serialize;

use super::checkpoint::Checkpoint;
use super::draft::{DraftAttention, DraftBlueprint};
use super::inventory::parts;
use super::weights::LoadError;
use perigee_numbers::quant::{Layout, RecognizeError, StoredMatrix, recognize};
use perigee_numbers::tensor::{Dtype, ElementType, TensorView};
use perigee_ops::{DraftAttentionMatrices, DraftMatrices, ExpertMatrices, NUM_STATES, QueryMatrices};

/// What a draft's folder holds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DraftTensors {
    /// Weights of the draft, unpacked.
    pub parameters: u64,
    /// Stored bytes of all tensors.
    pub bytes: u64,
    /// Stored formats, with the number of linears of each.
    pub formats: Vec<(&'static str, usize)>,
    /// Whether the draft has an embedding table of its own; if not, the target's is used.
    pub own_embedding: bool,
    /// Tensors that are needed and not stored.
    pub missing: Vec<String>,
    /// Tensors that cannot be used, with the reason.
    pub wrong: Vec<String>,
    #[serde(skip)]
    names: DraftNames,
}

/// Spelling of a draft's tensor names: they may begin with `model.`, and the layer is called
/// `midlayer` or `layers.0`.
#[derive(Debug, Clone, Default)]
struct DraftNames {
    prefix: &'static str,
    layer: String,
}

impl DraftNames {
    fn of(checkpoint: &Checkpoint) -> Self {
        let has = |name: &str| checkpoint.tensor(name).is_some();
        let prefix = if has("model.norm.weight") { "model." } else { "" };
        let is_midlayer = has(&format!("{prefix}midlayer.hidden_norm.weight"));
        Self { prefix, layer: format!("{prefix}{}", if is_midlayer { "midlayer" } else { "layers.0" }) }
    }

    fn top(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    fn layer(&self, rest: &str) -> String {
        format!("{}.{rest}", self.layer)
    }

    /// The head stands beside the layers, with the prefix or without.
    fn head(&self, checkpoint: &Checkpoint) -> String {
        let name = self.top("lm_head");
        let known = Layout::of(parts(checkpoint, &name)).is_ok();
        if known { name } else { "lm_head".into() }
    }
}

/// A tensor of a draft: name without prefix, and shape.
enum Wanted {
    Linear(String, [usize; 2]),
    Floats(String, usize),
}

impl DraftTensors {
    /// Looks for every tensor of the draft; reads headers alone.
    pub fn take(checkpoint: &Checkpoint, draft: &DraftBlueprint) -> Self {
        let names = DraftNames::of(checkpoint);
        let mut found = Self {
            bytes: checkpoint.tensors().map(|(_, view)| view.bytes.len() as u64).sum(),
            own_embedding: checkpoint.tensor(&names.top("embed_tokens.weight")).is_some(),
            ..Self::default()
        };
        let head = names.head(checkpoint);
        for wanted in draft.wanted(&names, head, found.own_embedding) {
            match wanted {
                Wanted::Linear(name, shape) => found.linear(checkpoint, &name, shape),
                Wanted::Floats(name, len) => match checkpoint.tensor(&name) {
                    None => found.missing.push(name),
                    Some(view) if view.shape != [len] => {
                        let got = view.shape;
                        found.wrong.push(format!("{name}: shape {got:?}, expected [{len}]"));
                    }
                    Some(view) => found.parameters += view.len() as u64,
                },
            }
        }
        found.names = names;
        found
    }

    fn linear(&mut self, checkpoint: &Checkpoint, name: &str, shape: [usize; 2]) {
        match Layout::of(parts(checkpoint, name)) {
            Ok(layout) if layout.shape == shape => {
                self.parameters += (shape[0] * shape[1]) as u64;
                let format = layout.dialect.format_name();
                match self.formats.iter_mut().find(|(known, _)| *known == format) {
                    Some((_, count)) => *count += 1,
                    None => self.formats.push((format, 1)),
                }
            }
            Ok(layout) => {
                let got = layout.shape;
                self.wrong.push(format!("{name}.weight: shape {got:?}, expected {shape:?}"));
            }
            Err(RecognizeError::NoWeight { found: None }) => {
                self.missing.push(format!("{name}.weight"));
            }
            Err(error) => self.wrong.push(format!("{name}: {error}")),
        }
    }
}

impl DraftBlueprint {
    fn wanted(&self, names: &DraftNames, head: String, own_embedding: bool) -> Vec<Wanted> {
        let (d, states) = (self.hidden_size, NUM_STATES * self.target_hidden_size);
        let mut wanted = Vec::new();
        let mut linear = |name: String, shape| wanted.push(Wanted::Linear(name, shape));
        linear(names.top("fc"), [d, states]);
        if !self.tie_word_embeddings {
            linear(head, [self.draft_vocab_size, d]);
        }
        if own_embedding {
            linear(names.top("embed_tokens"), [self.vocab_size, d]);
        }
        let attention = |rest: &str| names.layer(&format!("self_attn.{rest}"));
        let mut norms = vec![
            (names.top("norm"), d),
            (names.layer("input_layernorm"), d),
            (names.layer("hidden_norm"), d),
            (names.layer("post_attention_layernorm"), d),
        ];
        match self.attention {
            DraftAttention::Mla {
                num_heads: heads,
                q_lora_rank,
                kv_lora_rank,
                qk_nope_head_dim: nope,
                qk_rope_head_dim: rope,
                v_head_dim: v,
                ..
            } => {
                match q_lora_rank {
                    Some(rank) => {
                        linear(attention("q_a_proj"), [rank, 2 * d]);
                        linear(attention("q_b_proj"), [heads * (nope + rope), rank]);
                        norms.push((attention("q_a_layernorm"), rank));
                    }
                    None => linear(attention("q_proj"), [heads * (nope + rope), 2 * d]),
                }
                linear(attention("kv_a_proj_with_mqa"), [kv_lora_rank + rope, 2 * d]);
                linear(attention("kv_b_proj"), [heads * (nope + v), kv_lora_rank]);
                linear(attention("o_proj"), [d, heads * v]);
                norms.push((attention("kv_a_layernorm"), kv_lora_rank));
            }
            DraftAttention::Gqa { num_heads, num_kv_heads, head_dim } => {
                linear(attention("q_proj"), [num_heads * head_dim, 2 * d]);
                linear(attention("k_proj"), [num_kv_heads * head_dim, 2 * d]);
                linear(attention("v_proj"), [num_kv_heads * head_dim, 2 * d]);
                linear(attention("o_proj"), [d, num_heads * head_dim]);
            }
        }
        let width = self.intermediate_size;
        linear(names.layer("mlp.gate_proj"), [width, d]);
        linear(names.layer("mlp.up_proj"), [width, d]);
        linear(names.layer("mlp.down_proj"), [d, width]);
        if self.fc_norm {
            norms.extend(
                (0..NUM_STATES).map(|i| (names.top(&format!("fc_norm.{i}")), self.target_hidden_size)),
            );
        }
        if self.norm_before_fc {
            norms.push((names.top("input_norm"), states));
        }
        wanted.extend(norms.into_iter().map(|(name, len)| Wanted::Floats(format!("{name}.weight"), len)));
        if self.draft_vocab_size < self.vocab_size {
            wanted.push(Wanted::Floats(names.top("d2t"), self.draft_vocab_size));
        }
        wanted
    }
}

impl DraftTensors {
    /// Binds every tensor of a draft.
    ///
    /// Errors: tensors that are missing or cannot be used, all of them; a vocabulary map that does not
    /// name ascending ids of the target.
    pub fn bind<'a>(
        &self,
        checkpoint: &'a Checkpoint,
        draft: &DraftBlueprint,
    ) -> Result<DraftMatrices<'a>, LoadError> {
        let (names, mut wrong) = (&self.names, self.wrong.clone());
        let target_ids = match draft.draft_vocab_size < draft.vocab_size {
            true => {
                let name = names.top("d2t");
                let ids = checkpoint.tensor(&name).map(|map| target_ids(&map, draft.vocab_size));
                ids.transpose().unwrap_or_else(|reason| {
                    wrong.push(format!("{name}: {reason}"));
                    None
                })
            }
            false => None,
        };
        if !self.missing.is_empty() || !wrong.is_empty() {
            let missing = self.missing.iter().map(|name| format!("  {name} is missing"));
            let lines = missing.chain(wrong.iter().map(|reason| format!("  {reason}")));
            return Err(LoadError::Mismatch {
                source_name: checkpoint.source().to_string(),
                problems: lines.collect::<Vec<_>>().join("\n"),
            });
        }
        let stored = |name: String| -> Result<StoredMatrix<'a>, LoadError> {
            match recognize(parts(checkpoint, &name)) {
                Ok((_, matrix)) => Ok(matrix),
                Err(source) => Err(LoadError::Stored { name, source }),
            }
        };
        let gain = |name: String| checkpoint.tensor(&format!("{name}.weight")).expect("it was found before");
        let attention = |rest: &str| names.layer(&format!("self_attn.{rest}"));
        let projections = match draft.attention {
            DraftAttention::Mla { q_lora_rank, .. } => DraftAttentionMatrices::Mla {
                query: Box::new(match q_lora_rank {
                    Some(_) => QueryMatrices::Latent {
                        a: stored(attention("q_a_proj"))?,
                        norm: gain(attention("q_a_layernorm")),
                        b: stored(attention("q_b_proj"))?,
                    },
                    None => QueryMatrices::Direct(stored(attention("q_proj"))?),
                }),
                kv_a: stored(attention("kv_a_proj_with_mqa"))?,
                kv_a_norm: gain(attention("kv_a_layernorm")),
                kv_up: stored(attention("kv_b_proj"))?,
            },
            DraftAttention::Gqa { .. } => DraftAttentionMatrices::Gqa {
                q: stored(attention("q_proj"))?,
                k: stored(attention("k_proj"))?,
                v: stored(attention("v_proj"))?,
            },
        };
        let state_norm = |state: usize| gain(names.top(&format!("fc_norm.{state}")));
        Ok(DraftMatrices {
            embed_tokens: match self.own_embedding {
                true => Some(stored(names.top("embed_tokens"))?),
                false => None,
            },
            states_norm: draft.norm_before_fc.then(|| gain(names.top("input_norm"))),
            state_norms: draft.fc_norm.then(|| std::array::from_fn::<_, NUM_STATES, _>(state_norm)),
            fc: stored(names.top("fc"))?,
            input_layernorm: gain(names.layer("input_layernorm")),
            hidden_norm: gain(names.layer("hidden_norm")),
            attention: projections,
            o_proj: stored(attention("o_proj"))?,
            post_attention_layernorm: gain(names.layer("post_attention_layernorm")),
            mlp: ExpertMatrices {
                gate_proj: stored(names.layer("mlp.gate_proj"))?,
                up_proj: stored(names.layer("mlp.up_proj"))?,
                down_proj: stored(names.layer("mlp.down_proj"))?,
                input: None,
                inner: None,
            },
            norm: gain(names.top("norm")),
            lm_head: match draft.tie_word_embeddings {
                true => None,
                false => Some(stored(names.head(checkpoint))?),
            },
            target_ids,
        })
    }
}

/// The target's ids of the rows of a reduced head: `d2t` holds the distance of each from its row.
fn target_ids(map: &TensorView<'_>, vocab_size: usize) -> Result<Vec<u32>, String> {
    let offset = |bytes: &[u8]| match map.dtype {
        Dtype::I64 => bytes.try_into().map(i64::from_le_bytes).ok(),
        Dtype::I32 => bytes.try_into().map(|bytes| i64::from(i32::from_le_bytes(bytes))).ok(),
        _ => None,
    };
    let width = map.dtype.element_bytes().unwrap_or(1);
    let mut ids = Vec::with_capacity(map.len());
    for (row, bytes) in map.bytes.chunks_exact(width).enumerate() {
        let Some(offset) = offset(bytes) else { return Err(format!("dtype {}, expected I64", map.dtype)) };
        let id = offset.checked_add(row as i64).and_then(|id| u32::try_from(id).ok());
        match id.filter(|id| (*id as usize) < vocab_size && ids.last().is_none_or(|last| last < id)) {
            Some(id) => ids.push(id),
            None => {
                return Err(format!(
                    "row {row} has offset {offset}, expected ascending ids below {vocab_size}"
                ));
            }
        }
    }
    Ok(ids)
}
