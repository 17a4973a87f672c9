//! Binds a checkpoint's tensors to the network and uploads them.
//!
//! First everything is checked (missing, unexpected, wrongly shaped and unusable tensors, all in one error), then uploaded in
//! layer order, so that a bad checkpoint costs no upload.

use super::blueprint::Blueprint;
use super::weight_names::WeightNames;
use crate::checkpoint::Checkpoint;
use crate::ops::{Backend, ExpertMatrices, HostMatrix, OpError};
use crate::tensor::TensorView;

/// How many entries of one kind an error lists before it counts the rest.
const MAX_LISTED: usize = 1000;

/// Why a checkpoint could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Names, shapes or dtypes do not fit the configuration.
    #[error("{source_name} does not fit its config.json:\n{problems}")]
    Mismatch {
        /// Checkpoint.
        source_name: String,
        /// One problem per line.
        problems: String,
    },
    /// A backend refused a tensor.
    #[error("tensor {name}: {source}")]
    Upload {
        /// Tensor or group.
        name: String,
        /// Reason.
        source: OpError,
    },
}

/// Attention weights of one layer.
pub(super) struct AttentionWeights<B: Backend> {
    pub(super) input_norm: B::Vector,
    pub(super) query: QueryWeights<B>,
    pub(super) kv_a: B::Matrix,
    pub(super) kv_a_norm: B::Vector,
    pub(super) kv_up: B::KvUp,
    pub(super) output: B::Matrix,
}

/// The two ways a query is made.
pub(super) enum QueryWeights<B: Backend> {
    /// `q_b(norm(q_a(x)))`.
    Latent { a: B::Matrix, norm: B::Vector, b: B::Matrix },
    /// `q_proj(x)` (Moonlight).
    Direct(B::Matrix),
}

/// FFN weights of one layer.
pub(super) enum FfnWeights<B: Backend> {
    /// One SwiGLU.
    Dense(B::Experts),
    /// Router, routed experts, shared expert.
    Moe { router: B::Router, routed: B::Experts, shared: Option<B::Experts> },
}

/// One layer.
pub(super) struct LayerWeights<B: Backend> {
    pub(super) attention: AttentionWeights<B>,
    pub(super) post_attention_norm: B::Vector,
    pub(super) ffn: FfnWeights<B>,
}

/// All weights, uploaded.
pub struct Weights<B: Backend> {
    pub(super) embed_tokens: B::Matrix,
    pub(super) layers: Vec<LayerWeights<B>>,
    pub(super) final_norm: B::Vector,
    /// `None`: the embedding table is the head.
    pub(super) head: Option<B::Matrix>,
}

/// A checked checkpoint, ready to upload.
struct Binder<'a, B> {
    checkpoint: &'a Checkpoint,
    names: WeightNames,
    blueprint: &'a Blueprint,
    backend: &'a mut B,
}

impl<B: Backend> Weights<B> {
    /// Checks and uploads. `progress(done, total)` is called after every layer, in layers.
    pub fn load(
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
        backend: &mut B,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LoadError> {
        let names = check(checkpoint, blueprint)?;
        let mut binder = Binder { checkpoint, names, blueprint, backend };
        let total = blueprint.num_layers + 1;
        let embed_tokens = binder.matrix(&binder.names.embed_tokens())?;
        let mut layers = Vec::with_capacity(blueprint.num_layers);
        for layer in 0..blueprint.num_layers {
            layers.push(binder.layer(layer)?);
            progress(layer + 1, total);
        }
        let final_norm = binder.vector(&binder.names.final_norm())?;
        let head = match blueprint.tie_word_embeddings {
            true => None,
            false => Some(binder.matrix(&binder.names.head())?),
        };
        progress(total, total);
        Ok(Self { embed_tokens, layers, final_norm, head })
    }
}

/// Compares what is there with what the blueprint needs; lists every problem.
fn check(checkpoint: &Checkpoint, blueprint: &Blueprint) -> Result<WeightNames, LoadError> {
    let names = WeightNames::detect(|name| checkpoint.tensor(name).is_some());
    let expected = names.expected(blueprint);
    let (mut missing, mut quantized, mut wrong, mut unexpected) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (name, shape) in &expected {
        let stem = name.trim_end_matches(".weight");
        let packed = [
            format!("{stem}.weight_packed"),
            format!("{stem}.weight_scale_inv"),
            format!("{stem}.weight_scale"),
        ];
        match checkpoint.tensor(name) {
            _ if packed.iter().any(|p| checkpoint.tensor(p).is_some()) => quantized.push(name.clone()),
            None => missing.push(name.clone()),
            Some(view) if view.shape != shape.as_slice() => {
                wrong.push(format!("{name}: shape {:?}, expected {shape:?}", view.shape));
            }
            Some(TensorView { dtype, .. }) if !dtype.is_float() => {
                wrong.push(format!("{name}: dtype {dtype}, expected BF16, F16 or F32"));
            }
            Some(_) => {}
        }
    }
    let known: std::collections::HashSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    for name in checkpoint.names().filter(|name| !known.contains(name) && !names.may_skip(name, blueprint)) {
        let stem = ["_packed", "_shape", "_scale", "_scale_inv"].iter().find_map(|s| name.strip_suffix(s));
        if !stem.is_some_and(|stem| known.contains(stem)) {
            unexpected.push(name.to_string());
        }
    }
    let groups = [
        ("missing", missing),
        ("quantized (this version serves BF16, F16 and F32 weights)", quantized),
        ("wrong", wrong),
        ("unexpected", unexpected),
    ];
    let mut lines = Vec::new();
    for (kind, list) in groups.iter().filter(|(_, list)| !list.is_empty()) {
        lines.push(format!("{} {kind}:", list.len()));
        lines.extend(list.iter().take(MAX_LISTED).map(|entry| format!("  {entry}")));
        if list.len() > MAX_LISTED {
            lines.push(format!("  ... and {} more", list.len() - MAX_LISTED));
        }
    }
    if lines.is_empty() {
        return Ok(names);
    }
    Err(LoadError::Mismatch { source_name: checkpoint.source().to_string(), problems: lines.join("\n") })
}

impl<'a, B: Backend> Binder<'a, B> {
    fn view(&self, name: &str) -> TensorView<'a> {
        self.checkpoint.tensor(name).expect("check() found every expected tensor")
    }

    fn matrix(&mut self, name: &str) -> Result<B::Matrix, LoadError> {
        let view = self.view(name);
        let uploaded = self.backend.load_matrix(&HostMatrix::new(view));
        uploaded.map_err(|source| LoadError::Upload { name: name.into(), source })
    }

    fn vector(&mut self, name: &str) -> Result<B::Vector, LoadError> {
        let view = self.view(name);
        self.backend.load_vector(&view).map_err(|source| LoadError::Upload { name: name.into(), source })
    }

    fn ffn(&self, layer: usize, stem: &str) -> ExpertMatrices<'a> {
        let view = |proj: &str| self.view(&self.names.layer(layer, &format!("{stem}.{proj}.weight")));
        ExpertMatrices {
            gate_proj: view("gate_proj").into(),
            up_proj: view("up_proj").into(),
            down_proj: view("down_proj").into(),
        }
    }

    fn experts(&mut self, layer: usize, stems: &[String]) -> Result<B::Experts, LoadError> {
        let views: Vec<_> = stems.iter().map(|stem| self.ffn(layer, stem)).collect();
        let uploaded = self.backend.load_experts(&views);
        uploaded.map_err(|source| LoadError::Upload { name: self.names.layer(layer, &stems[0]), source })
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights<B>, LoadError> {
        let name = |rest: &str| self.names.layer(layer, rest);
        let post_attention_norm = name("post_attention_layernorm.weight");
        let attention = self.attention(layer)?;
        let post_attention_norm = self.vector(&post_attention_norm)?;
        let ffn = match self.blueprint.is_moe(layer) {
            false => FfnWeights::Dense(self.experts(layer, &["mlp".into()])?),
            true => self.moe(layer)?,
        };
        Ok(LayerWeights { attention, post_attention_norm, ffn })
    }

    fn attention(&mut self, layer: usize) -> Result<AttentionWeights<B>, LoadError> {
        let names = self.names.clone();
        let name = |rest: &str| names.layer(layer, &format!("self_attn.{rest}.weight"));
        let query = match self.blueprint.q_lora_rank {
            Some(_) => QueryWeights::Latent {
                a: self.matrix(&name("q_a_proj"))?,
                norm: self.vector(&name("q_a_layernorm"))?,
                b: self.matrix(&name("q_b_proj"))?,
            },
            None => QueryWeights::Direct(self.matrix(&name("q_proj"))?),
        };
        let kv_b = name("kv_b_proj");
        let kv_up = self.backend.load_kv_up(&self.view(&kv_b).into(), &self.blueprint.mla);
        Ok(AttentionWeights {
            input_norm: self.vector(&names.layer(layer, "input_layernorm.weight"))?,
            query,
            kv_a: self.matrix(&name("kv_a_proj_with_mqa"))?,
            kv_a_norm: self.vector(&name("kv_a_layernorm"))?,
            kv_up: kv_up.map_err(|source| LoadError::Upload { name: kv_b, source })?,
            output: self.matrix(&name("o_proj"))?,
        })
    }

    fn moe(&mut self, layer: usize) -> Result<FfnWeights<B>, LoadError> {
        let gate = self.names.layer(layer, "mlp.gate.weight");
        let bias = self.names.layer(layer, "mlp.gate.e_score_correction_bias");
        let (weight_view, bias_view) = (self.view(&gate), self.view(&bias));
        let router = self.backend.load_router(&weight_view.into(), &bias_view, &self.blueprint.router);
        let stems: Vec<String> =
            (0..self.blueprint.router.num_experts).map(|e| format!("mlp.experts.{e}")).collect();
        Ok(FfnWeights::Moe {
            router: router.map_err(|source| LoadError::Upload { name: gate, source })?,
            routed: self.experts(layer, &stems)?,
            shared: match self.blueprint.num_shared_experts {
                0 => None,
                _ => Some(self.experts(layer, &["mlp.shared_experts".into()])?),
            },
        })
    }
}
