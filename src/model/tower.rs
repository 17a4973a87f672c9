//! The vision tower of a checkpoint: sizes, tensor names, upload, and running it beside the network.
//!
//! MoonViT with its projector as `kimi_k25` and `kimi_vl` checkpoints hold it. A checkpoint whose tower was dropped serves text alone.

use serde_json::Value;

use super::blueprint::{Blueprint, BlueprintError, Fields, parse_json};
use super::checkpoint::Checkpoint;
use super::inventory::{Problems, parts};
use super::weight_names::tower_prefix;
use super::weights::LoadError;
use perigee_numbers::quant::{Layout, StoredMatrix, recognize};
use perigee_numbers::tensor::{ElementType, TensorView};
use perigee_ops::{
    BiasedMatrix, NormVectors, OpError, PATCH_SIDE, PATCH_VALUES, Picture, TowerBlockMatrices, TowerCapacity,
    TowerMatrices, TowerOps, TowerShape,
};

/// Sizes of a checkpoint's tower, and the token that stands for its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TowerBlueprint {
    /// Sizes for the operations.
    pub shape: TowerShape,
    /// Id of the token in the prompt; each stands for one row.
    pub media_token_id: u32,
}

/// Names of a tower's tensors in one checkpoint.
struct TowerNames {
    /// What is before `vision_tower.`: nothing in releases, `model.` where transformers 5 saved them.
    prefix: String,
    /// Norm and linears of the projector.
    projector: [String; 3],
}

impl TowerNames {
    /// Finds the spelling in the names of a checkpoint; the released one of K2.5 if no name is known.
    fn detect(checkpoint: &Checkpoint) -> Self {
        let stem = |word: &str| {
            checkpoint.names().find_map(|name| {
                let before = tower_prefix(name)?;
                name[before.len()..].starts_with(word).then(|| before.to_owned())
            })
        };
        let prefix = stem("vision_tower.").unwrap_or_default();
        // K2.5 has the one spelling, Kimi-VL the other.
        let projector = match stem("multi_modal_projector.") {
            Some(before) => ["pre_norm", "linear_1", "linear_2"]
                .map(|part| format!("{before}multi_modal_projector.{part}")),
            None => {
                let before = stem("mm_projector.").unwrap_or_else(|| prefix.clone());
                ["pre_norm", "proj.0", "proj.2"].map(|part| format!("{before}mm_projector.{part}"))
            }
        };
        Self { prefix, projector }
    }

    fn tower(&self, rest: &str) -> String {
        format!("{}vision_tower.{rest}", self.prefix)
    }

    fn block(&self, block: usize, rest: &str) -> String {
        self.tower(&format!("encoder.blocks.{block}.{rest}"))
    }

    /// Table of positions, `[rows, columns, W]`.
    fn positions(&self) -> String {
        self.tower("patch_embed.pos_emb.weight")
    }
}

/// What a checkpoint's files say of its tower.
#[derive(Debug, Clone)]
pub enum TowerInventory {
    /// The configuration describes no tower.
    Absent,
    /// The configuration describes a tower, and no tensor of it is stored.
    Dropped,
    /// A whole tower, with the bytes that its tensors take.
    Whole(u64),
}

impl TowerBlueprint {
    /// Parses `vision_config` of a `config.json`, in the released spelling (`vt_` keys), the one of Kimi-VL or the plain one. `None`
    /// if the file has none.
    pub fn parse(config_json: &[u8], text: &Blueprint) -> Result<Option<Self>, BlueprintError> {
        let root = parse_json(config_json)?;
        let config = match root.get("vision_config") {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(config)) => Fields(config),
            Some(value) => return Err(Fields::invalid("vision_config", value, "an object")),
        };
        if !matches!(text.wrapper_type.as_str(), "kimi_k25" | "kimi_vl") {
            return Ok(None);
        }
        let size = |names: &[&str]| match names.iter().find(|name| config.present(name).is_some()) {
            Some(name) => config.size(name),
            None => Err(BlueprintError::Missing(format!("vision_config.{}", names[0]))),
        };
        let exactly = |name: &str, expected: Value| match config.present(name) {
            Some(value) if *value != expected => {
                Err(Fields::invalid(&format!("vision_config.{name}"), value, &expected.to_string()))
            }
            _ => Ok(()),
        };
        exactly("patch_size", PATCH_SIDE.into())?;
        exactly("merge_kernel_size", serde_json::json!([2, 2]))?;
        exactly("merge_type", "sd2_tpool".into())?;
        exactly("pos_emb_type", "divided_fixed".into())?;
        exactly("mm_projector_type", "patchmerger".into())?;
        exactly("projector_hidden_act", "gelu".into())?;
        let shape = TowerShape {
            hidden_size: size(&["vt_hidden_size", "hidden_size"])?,
            num_layers: size(&["vt_num_hidden_layers", "num_hidden_layers"])?,
            num_heads: size(&["vt_num_attention_heads", "num_attention_heads"])?,
            intermediate_size: size(&["vt_intermediate_size", "intermediate_size"])?,
            table_rows: size(&["init_pos_emb_height", "pos_emb_height"])?,
            table_cols: size(&["init_pos_emb_width", "pos_emb_width"])?,
            out_size: text.hidden_size,
            projector_eps: config.positive("projector_ln_eps", Some(1e-5))? as f32,
        };
        let heads = shape.num_heads;
        if !shape.hidden_size.is_multiple_of(4 * heads) {
            let expected =
                format!("a divisor of the tower's width {} that leaves a multiple of 4", shape.hidden_size);
            return Err(Fields::invalid("vision_config.num_attention_heads", &heads.into(), &expected));
        }
        let media = ["media_placeholder_token_id", "image_token_id"].iter().find_map(|name| root.get(name));
        let media_token_id = match media {
            None if text.vocab_size == 163_840 => 163_605,
            None => return Err(BlueprintError::Missing("media_placeholder_token_id".into())),
            Some(id) => match id.as_u64() {
                Some(id) if id < text.vocab_size as u64 => id as u32,
                _ => {
                    let expected = format!("a token id below {}", text.vocab_size);
                    return Err(Fields::invalid("media_placeholder_token_id", id, &expected));
                }
            },
        };
        Ok(Some(Self { shape, media_token_id }))
    }

    /// Every linear, `(name without part, [out, in])`, each with a bias; and every norm.
    fn wanted(&self, names: &TowerNames) -> (Vec<(String, [usize; 2])>, Vec<String>) {
        let s = &self.shape;
        let (w, inner, merged) = (s.hidden_size, s.intermediate_size, s.merged_size());
        let [pre_norm, first, second] = names.projector.clone();
        let mut linears = vec![
            (names.tower("patch_embed.proj"), [w, PATCH_VALUES]),
            (first, [merged, merged]),
            (second, [s.out_size, merged]),
        ];
        let mut norms = vec![names.tower("encoder.final_layernorm"), pre_norm];
        for block in 0..s.num_layers {
            let name = |rest: &str| names.block(block, rest);
            linears.extend([
                (name("wqkv"), [3 * w, w]),
                (name("wo"), [w, w]),
                (name("mlp.fc0"), [inner, w]),
                (name("mlp.fc1"), [w, inner]),
            ]);
            norms.extend([name("norm0"), name("norm1")]);
        }
        (linears, norms)
    }

    /// Compares a checkpoint's tensors with the tower, from headers alone.
    ///
    /// Errors: a tower that is there in part, or whose tensors have other shapes.
    pub fn find(&self, checkpoint: &Checkpoint) -> Result<TowerInventory, LoadError> {
        let names = TowerNames::detect(checkpoint);
        if checkpoint.under(&names.tower("")).next().is_none() {
            return Ok(TowerInventory::Dropped);
        }
        let mut problems = Problems::default();
        let mut bytes = 0;
        let (linears, norms) = self.wanted(&names);
        let mut floats =
            |name: String, shape: &[usize], problems: &mut Problems| match checkpoint.tensor(&name) {
                None => problems.missing.push(name),
                Some(view) if view.shape != shape => {
                    let got = view.shape;
                    problems.wrong.push(format!("{name}: shape {got:?}, expected {shape:?}"));
                }
                Some(view) if !view.dtype.is_float() => {
                    problems.wrong.push(format!("{name}: dtype {}, expected floats", view.dtype));
                }
                Some(view) => bytes += view.bytes.len() as u64,
            };
        let s = &self.shape;
        floats(names.positions(), &[s.table_rows, s.table_cols, s.hidden_size], &mut problems);
        for norm in norms {
            floats(format!("{norm}.weight"), &[s.hidden_size], &mut problems);
            floats(format!("{norm}.bias"), &[s.hidden_size], &mut problems);
        }
        for (name, [out, _]) in &linears {
            floats(format!("{name}.bias"), &[*out], &mut problems);
        }
        for (name, [out, inputs]) in linears {
            match Layout::of(parts(checkpoint, &name)) {
                Ok(layout) if layout.shape == [out, inputs] => bytes += layout.bytes as u64,
                // The patches' projection is stored as a convolution.
                _ if checkpoint.tensor(&format!("{name}.weight")).is_some_and(|view| {
                    view.shape == [out, 3, PATCH_SIDE, PATCH_SIDE]
                        && inputs == PATCH_VALUES
                        && view.dtype.is_float()
                }) =>
                {
                    bytes += 2 * (out * inputs) as u64;
                }
                Ok(layout) => {
                    let (got, expected) = (layout.shape, [out, inputs]);
                    problems.wrong.push(format!("{name}.weight: shape {got:?}, expected {expected:?}"));
                }
                Err(error) => problems.wrong.push(format!("{name}: {error}")),
            }
        }
        LoadError::check(checkpoint, &problems)?;
        Ok(TowerInventory::Whole(bytes))
    }
}

/// A tower's tensors in a checkpoint that [`TowerBlueprint::find`] found whole.
struct Tensors<'a>(&'a Checkpoint, TowerNames);

impl<'a> Tensors<'a> {
    fn floats(&self, name: &str) -> Result<TensorView<'a>, LoadError> {
        let missing = || Problems { missing: vec![name.to_string()], ..Default::default() };
        match self.0.tensor(name) {
            Some(view) => Ok(view),
            None => Err(LoadError::Mismatch {
                source_name: self.0.source().to_string(),
                problems: missing().to_string(),
            }),
        }
    }

    fn norm(&self, name: &str) -> Result<NormVectors<'a>, LoadError> {
        Ok(NormVectors {
            gain: self.floats(&format!("{name}.weight"))?,
            bias: self.floats(&format!("{name}.bias"))?,
        })
    }

    fn linear(&self, name: &str) -> Result<BiasedMatrix<'a>, LoadError> {
        let stored = recognize(parts(self.0, name));
        let weight = stored.map_err(|source| LoadError::Stored { name: name.into(), source })?.1;
        Ok(BiasedMatrix { weight, bias: self.floats(&format!("{name}.bias"))? })
    }

    fn block(&self, block: usize) -> Result<TowerBlockMatrices<'a>, LoadError> {
        let name = |rest: &str| self.1.block(block, rest);
        Ok(TowerBlockMatrices {
            norm0: self.norm(&name("norm0"))?,
            wqkv: self.linear(&name("wqkv"))?,
            wo: self.linear(&name("wo"))?,
            norm1: self.norm(&name("norm1"))?,
            fc0: self.linear(&name("mlp.fc0"))?,
            fc1: self.linear(&name("mlp.fc1"))?,
        })
    }
}

/// An uploaded tower.
pub struct Tower<B: TowerOps> {
    tower: B::Tower,
    num_layers: usize,
}

impl<B: TowerOps> Tower<B> {
    /// Uploads the tower of `checkpoint`, which [`TowerBlueprint::find`] found whole; `levels` are the values of a channel's levels.
    pub fn load(
        checkpoint: &Checkpoint,
        blueprint: &TowerBlueprint,
        levels: [[f32; 256]; 3],
        backend: &mut B,
        capacity: &TowerCapacity,
    ) -> Result<Self, LoadError> {
        let (tensors, shape) = (Tensors(checkpoint, TowerNames::detect(checkpoint)), &blueprint.shape);
        let names = &tensors.1;
        let [pre_norm, first, second] = &names.projector;
        let convolution = tensors.floats(&names.tower("patch_embed.proj.weight"))?;
        let flat = [shape.hidden_size, PATCH_VALUES];
        let host = TowerMatrices {
            levels,
            patch_embed: BiasedMatrix {
                weight: StoredMatrix::Plain(TensorView { shape: &flat, ..convolution }),
                bias: tensors.floats(&names.tower("patch_embed.proj.bias"))?,
            },
            positions: tensors.floats(&names.positions())?,
            blocks: (0..shape.num_layers).map(|block| tensors.block(block)).collect::<Result<_, _>>()?,
            final_norm: tensors.norm(&names.tower("encoder.final_layernorm"))?,
            pre_norm: tensors.norm(pre_norm)?,
            linear_1: tensors.linear(first)?,
            linear_2: tensors.linear(second)?,
        };
        let tower = backend.load_tower(&host, shape, capacity);
        let tower = tower.map_err(|source| LoadError::Upload { name: "vision_tower".into(), source })?;
        checkpoint.release_under(&format!("{}vision_tower", names.prefix));
        Ok(Self { tower, num_layers: shape.num_layers })
    }

    /// Blocks between [`Tower::begin`] and [`Tower::project`].
    pub(super) fn num_blocks(&self) -> usize {
        self.num_layers
    }

    /// See [`TowerOps::begin_pictures`].
    pub(super) fn begin(&mut self, pictures: &[&Picture], backend: &mut B) -> Result<(), OpError> {
        backend.begin_pictures(pictures, &mut self.tower)
    }

    /// See [`TowerOps::tower_block`].
    pub(super) fn block(&mut self, block: usize, backend: &mut B) -> Result<(), OpError> {
        backend.tower_block(block, &mut self.tower)
    }

    /// See [`TowerOps::project_pictures`].
    pub(super) fn project(&mut self, to: &[u32], backend: &mut B) -> Result<(), OpError> {
        backend.project_pictures(to, &mut self.tower)
    }

    /// See [`TowerOps::place_rows`].
    pub(super) fn place(&self, backend: &mut B, workspace: &mut B::Workspace) -> Result<(), OpError> {
        backend.place_rows(&self.tower, workspace)
    }

    /// See [`TowerOps::read_rows`].
    pub(super) fn read_rows(&self, rows: &[u32], backend: &mut B) -> Result<Vec<f32>, OpError> {
        backend.read_rows(rows, &self.tower)
    }

    /// See [`TowerOps::read_encoded`].
    pub(super) fn read_encoded(&mut self, backend: &mut B) -> Result<Vec<f32>, OpError> {
        backend.read_encoded(&mut self.tower)
    }
}
