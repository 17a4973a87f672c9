//! Binds a checkpoint's tensors to the network and uploads them.
//!
//! All checks come first (missing, unexpected, wrongly shaped and unusable tensors, in one error);
//! the upload follows in layer order. A bad checkpoint thus costs no upload.

use std::collections::{BTreeSet, HashMap};

use super::activations::{Fp4Activations, InputScales, is_of_ffn};
use super::blueprint::Blueprint;
use super::checkpoint::Checkpoint;
use super::inventory::{Inventory, Linear, Problems, parts};
use super::read_ahead::{ReadAhead, Uploads};
use super::scale_pass::ScalePass;
use super::weight_names::WeightNames;
use perigee_numbers::quant::{PackedMatrix, RecognizeError, StoredMatrix, recognize};
use perigee_numbers::tensor::TensorView;
use perigee_ops::{AttentionInMatrices, Backend, ExpertMatrices, ExpertSplit, OpError, QueryMatrices, Split};

/// Reason why a checkpoint cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Names, shapes or dtypes do not fit the configuration.
    #[error("{source_name} does not fit its config.json:\n{problems}")]
    Mismatch {
        /// Folder of the checkpoint, or `(embedded)`.
        source_name: String,
        /// One problem per line.
        problems: String,
    },
    /// No linear of an FFN has the format that a form of activations needs.
    #[error("device.activations {}: no FFN of {source_name} has {} weights, only {found}: set it to bf16", asked.name(), asked.format().name())]
    NoSuchWeights {
        /// Form that is asked for.
        asked: Fp4Activations,
        /// Folder of the checkpoint, or `(embedded)`.
        source_name: String,
        /// Formats of the FFNs' weights.
        found: String,
    },
    /// A form of activations needs a scale that the checkpoint has not.
    #[error(
        "{name}: no input_scale is stored, and device.activations nvfp4 needs one: nvfp4x2, nvfp4x3 and bf16 do not"
    )]
    NoInputScale {
        /// Name of the linear.
        name: String,
    },
    /// A linear cannot be read.
    #[error("{name}: {source}")]
    Stored {
        /// Name of the linear.
        name: String,
        /// Error of the recognition.
        source: RecognizeError,
    },
    /// A backend refused a tensor.
    #[error("tensor {name}: {source}")]
    Upload {
        /// Name of the tensor or group.
        name: String,
        /// Error of the backend.
        source: OpError,
    },
}

impl LoadError {
    /// Errors: `problems` is not empty.
    pub fn check(checkpoint: &Checkpoint, problems: &Problems) -> Result<(), LoadError> {
        if problems.is_empty() {
            return Ok(());
        }
        let source_name = checkpoint.source().to_string();
        Err(LoadError::Mismatch { source_name, problems: problems.to_string() })
    }
}

/// Errors: activations are asked for in a form that meets the weights of no FFN.
fn check_activations(
    checkpoint: &Checkpoint,
    linears: &[Linear],
    asked: Option<Fp4Activations>,
) -> Result<(), LoadError> {
    let Some(asked) = asked else { return Ok(()) };
    let ffns = linears.iter().filter(|linear| is_of_ffn(linear.class));
    let formats: BTreeSet<_> = ffns.map(|linear| linear.layout.dialect.format_name()).collect();
    if formats.contains(asked.format().name()) {
        return Ok(());
    }
    let found = formats.into_iter().collect::<Vec<_>>().join(" and ");
    Err(LoadError::NoSuchWeights { asked, source_name: checkpoint.source().to_string(), found })
}

/// Attention weights of one layer.
pub(super) struct AttentionWeights<B: Backend> {
    /// Gain of the layer's first norm.
    pub(super) norm: B::Vector,
    pub(super) input: B::AttentionIn,
    pub(super) kv_up: B::KvUp,
    pub(super) output: B::Matrix,
}

/// FFN weights of one layer.
pub(super) enum FfnWeights<B: Backend> {
    /// One SwiGLU FFN.
    Dense(B::Experts),
    /// Router, routed experts, shared expert.
    Moe { router: B::Router, routed: B::Experts, shared: Option<B::Experts> },
}

pub(super) struct LayerWeights<B: Backend> {
    pub(super) attention: AttentionWeights<B>,
    pub(super) post_attention_norm: B::Vector,
    pub(super) ffn: FfnWeights<B>,
}

/// All weights of a network, uploaded.
pub struct Weights<B: Backend> {
    pub(super) embed_tokens: B::Matrix,
    pub(super) layers: Vec<LayerWeights<B>>,
    pub(super) final_norm: B::Vector,
    /// `None`: the embedding table is the head.
    pub(super) head: Option<B::Matrix>,
}

/// A checkpoint with all tensors of its network, all usable.
pub(super) struct Bindings<'a> {
    checkpoint: &'a Checkpoint,
    names: WeightNames,
    /// Repaired block scales by linear; linears without repairs are absent.
    repaired: HashMap<String, Vec<u8>>,
    /// Form of the rows in front of FFNs with 4-bit weights.
    activations: Option<Fp4Activations>,
}

impl<'a> Bindings<'a> {
    /// Checks names, shapes, dtypes and scales, and that `activations` meet weights of their format.
    pub(super) fn check(
        checkpoint: &'a Checkpoint,
        inventory: Inventory,
        activations: Option<Fp4Activations>,
    ) -> Result<Self, LoadError> {
        LoadError::check(checkpoint, &inventory.problems)?;
        check_activations(checkpoint, &inventory.linears, activations)?;
        let mut scales = ScalePass::run(checkpoint, &inventory.linears, false);
        let wrong = std::mem::take(&mut scales.faults);
        LoadError::check(checkpoint, &Problems { wrong, ..Default::default() })?;
        inventory.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        if scales.num_repaired > 0 {
            tracing::warn!(
                scales = scales.num_repaired,
                matrices = scales.repaired.len(),
                "NaN or negative block scales on blocks whose codes are all zero are taken as 1"
            );
        }
        Ok(Self { checkpoint, names: inventory.names, repaired: scales.repaired, activations })
    }

    /// The embedding table, `[vocab, D]`, in its stored format.
    pub(super) fn embedding(&self) -> TensorView<'a> {
        self.view(&self.names.embed_tokens())
    }

    pub(super) fn layer<B: Backend>(
        &self,
        layer: usize,
        blueprint: &Blueprint,
        backend: &mut B,
    ) -> Result<LayerWeights<B>, LoadError> {
        let weights = Binder { bindings: self, blueprint, backend }.layer(layer);
        // The upload copies: the mapped pages are not needed any more.
        self.checkpoint.release_under(&self.names.layer_stem(layer));
        weights
    }

    /// Uploads the final norm and the head; `None`: the embedding table is the head.
    pub(super) fn head<B: Backend>(
        &self,
        blueprint: &Blueprint,
        backend: &mut B,
    ) -> Result<(B::Vector, Option<B::Matrix>), LoadError> {
        let mut binder = Binder { bindings: self, blueprint, backend };
        let final_norm = binder.vector(&self.names.final_norm())?;
        let head = match blueprint.tie_word_embeddings {
            true => None,
            false => Some(binder.matrix(&self.names.head(), binder.by_vocabulary())?),
        };
        Ok((final_norm, head))
    }

    pub(super) fn embed_tokens<B: Backend>(
        &self,
        blueprint: &Blueprint,
        backend: &mut B,
    ) -> Result<B::Matrix, LoadError> {
        Binder { bindings: self, blueprint, backend }.table(&self.names.embed_tokens())
    }

    pub(super) fn view(&self, name: &str) -> TensorView<'a> {
        self.checkpoint.tensor(name).expect("the inventory found every wanted tensor")
    }
}

impl<B: Backend> Weights<B> {
    /// Checks and uploads. `progress(done, total)` is called after every layer and counts bytes of
    /// the checkpoint.
    pub fn load(
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
        backend: &mut B,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let inventory = Inventory::take(checkpoint, blueprint);
        Self::load_inventory(checkpoint, blueprint, inventory, None, backend, &Uploads::default(), progress)
    }

    /// [`Weights::load`] with an inventory taken before (for the memory plan), rows of the FFNs in a form of their own, and a backend
    /// that reports its uploads.
    pub fn load_inventory(
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
        inventory: Inventory,
        activations: Option<Fp4Activations>,
        backend: &mut B,
        uploads: &Uploads,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let bindings = Bindings::check(checkpoint, inventory, activations)?;
        let reading = ReadAhead::plan(checkpoint, &bindings.names, blueprint, uploads);
        let mut section = 0;
        // Ends the section before and begins the next one.
        let mut begin_section = || {
            let start = if section == 0 { 0 } else { reading.end_of(section - 1) };
            uploads.meter.begin(start, reading.end_of(section));
            progress(start, reading.total());
            section += 1;
        };
        let weights = reading.run(&uploads.meter, || {
            begin_section();
            let embed_tokens = bindings.embed_tokens(blueprint, backend)?;
            let mut layers = Vec::with_capacity(blueprint.num_layers);
            for layer in 0..blueprint.num_layers {
                begin_section();
                layers.push(bindings.layer(layer, blueprint, backend)?);
            }
            begin_section();
            let (final_norm, head) = bindings.head(blueprint, backend)?;
            Ok(Self { embed_tokens, layers, final_norm, head })
        })?;
        checkpoint.release_under("");
        progress(reading.total(), reading.total());
        Ok(weights)
    }
}

/// Logs input scales of an FFN, or of a layer's experts, that are missing or differ.
fn report(layer: usize, stem: &str, scales: InputScales) {
    let InputScales { num_missing, num_found, spread, .. } = scales;
    if num_missing > 0 && num_found > 0 {
        tracing::warn!(
            layer,
            stem,
            missing = num_missing,
            "linears without input_scale take the largest of their layer"
        );
    }
    if spread > 1.0 {
        tracing::debug!(
            layer,
            stem,
            spread,
            "the largest input_scale of the layer is taken for all its experts"
        );
    }
}

/// Uploads weights to one backend.
struct Binder<'a, 'm, B> {
    bindings: &'a Bindings<'m>,
    blueprint: &'a Blueprint,
    backend: &'a mut B,
}

impl<'a, B: Backend> Binder<'a, '_, B> {
    /// A linear in its stored format, with repaired scales.
    fn stored(&self, name: &str) -> Result<StoredMatrix<'a>, LoadError> {
        let (_, matrix) = recognize(parts(self.bindings.checkpoint, name))
            .map_err(|source| LoadError::Stored { name: name.into(), source })?;
        Ok(match (matrix, self.bindings.repaired.get(name)) {
            (StoredMatrix::Packed(packed), Some(bytes)) => {
                PackedMatrix { scales: TensorView { bytes, ..packed.scales }, ..packed }.into()
            }
            (matrix, _) => matrix,
        })
    }

    fn table(&mut self, name: &str) -> Result<B::Matrix, LoadError> {
        let uploaded = self.backend.load_table(&self.bindings.view(name).into(), self.by_vocabulary());
        uploaded.map_err(|source| LoadError::Upload { name: name.into(), source })
    }

    fn by_vocabulary(&self) -> Split {
        Split::Rows { num_units: self.blueprint.vocab_size }
    }

    fn matrix(&mut self, name: &str, split: Split) -> Result<B::Matrix, LoadError> {
        let stored = self.stored(name)?;
        let uploaded = self.backend.load_matrix(&stored, split);
        uploaded.map_err(|source| LoadError::Upload { name: name.into(), source })
    }

    fn vector(&mut self, name: &str) -> Result<B::Vector, LoadError> {
        let view = self.bindings.view(name);
        self.backend.load_vector(&view).map_err(|source| LoadError::Upload { name: name.into(), source })
    }

    fn ffn(&self, layer: usize, stem: &str) -> Result<ExpertMatrices<'a>, LoadError> {
        let stored = |proj: &str| self.stored(&self.bindings.names.layer(layer, &format!("{stem}.{proj}")));
        Ok(ExpertMatrices {
            gate_proj: stored("gate_proj")?,
            up_proj: stored("up_proj")?,
            down_proj: stored("down_proj")?,
            input: None,
            inner: None,
        })
    }

    fn experts(
        &mut self,
        layer: usize,
        stems: &[String],
        split: ExpertSplit,
    ) -> Result<B::Experts, LoadError> {
        let mut views = stems.iter().map(|stem| self.ffn(layer, stem)).collect::<Result<Vec<_>, _>>()?;
        if let Some(activations) = self.bindings.activations {
            let linear =
                |stem: &String, proj: &str| self.bindings.names.layer(layer, &format!("{stem}.{proj}"));
            let of = |stem| ["gate_proj", "up_proj", "down_proj"].map(|proj| linear(stem, proj));
            let names: Vec<_> = stems.iter().map(of).collect();
            let scales = activations.set(self.bindings.checkpoint, &names, &mut views);
            report(layer, &stems[0], scales.map_err(|name| LoadError::NoInputScale { name })?);
        }
        let uploaded = self.backend.load_experts(&views, split);
        uploaded
            .map_err(|source| LoadError::Upload { name: self.bindings.names.layer(layer, &stems[0]), source })
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights<B>, LoadError> {
        let name = |rest: &str| self.bindings.names.layer(layer, rest);
        let post_attention_norm = name("post_attention_layernorm.weight");
        let attention = self.attention(layer)?;
        let post_attention_norm = self.vector(&post_attention_norm)?;
        let ffn = match self.blueprint.is_moe(layer) {
            false => FfnWeights::Dense(self.experts(layer, &["mlp".into()], ExpertSplit::Units)?),
            true => self.moe(layer)?,
        };
        Ok(LayerWeights { attention, post_attention_norm, ffn })
    }

    fn attention(&mut self, layer: usize) -> Result<AttentionWeights<B>, LoadError> {
        let names = self.bindings.names.clone();
        let name = |rest: &str| names.layer(layer, &format!("self_attn.{rest}"));
        let norm = |rest: &str| names.layer(layer, &format!("self_attn.{rest}.weight"));
        let query = match self.blueprint.q_lora_rank {
            Some(_) => QueryMatrices::Latent {
                a: self.stored(&name("q_a_proj"))?,
                norm: self.bindings.view(&norm("q_a_layernorm")),
                b: self.stored(&name("q_b_proj"))?,
            },
            None => QueryMatrices::Direct(self.stored(&name("q_proj"))?),
        };
        let kv_a = name("kv_a_proj_with_mqa");
        let input = AttentionInMatrices {
            query,
            kv_a: self.stored(&kv_a)?,
            kv_a_norm: self.bindings.view(&norm("kv_a_layernorm")),
        };
        let input = self.backend.load_attention_in(&input, &self.blueprint.mla);
        let kv_b = name("kv_b_proj");
        let stored = self.stored(&kv_b)?;
        let kv_up = self.backend.load_kv_up(&stored, &self.blueprint.mla);
        Ok(AttentionWeights {
            norm: self.vector(&names.layer(layer, "input_layernorm.weight"))?,
            input: input.map_err(|source| LoadError::Upload { name: kv_a, source })?,
            kv_up: kv_up.map_err(|source| LoadError::Upload { name: kv_b, source })?,
            output: self.matrix(&name("o_proj"), Split::Cols { num_units: self.blueprint.mla.num_heads })?,
        })
    }

    fn moe(&mut self, layer: usize) -> Result<FfnWeights<B>, LoadError> {
        let gate = self.bindings.names.layer(layer, "mlp.gate");
        let bias = self.bindings.names.layer(layer, "mlp.gate.e_score_correction_bias");
        let (weight, bias) = (self.stored(&gate)?, self.bindings.view(&bias));
        let router = self.backend.load_router(&weight, &bias, &self.blueprint.router);
        let stems: Vec<String> =
            (0..self.blueprint.router.num_experts).map(|e| format!("mlp.experts.{e}")).collect();
        Ok(FfnWeights::Moe {
            router: router.map_err(|source| LoadError::Upload { name: gate, source })?,
            routed: self.experts(layer, &stems, ExpertSplit::Experts)?,
            shared: match self.blueprint.num_shared_experts {
                0 => None,
                _ => Some(self.experts(layer, &["mlp.shared_experts".into()], ExpertSplit::Units)?),
            },
        })
    }
}
