//! A checkpoint of Kimi K2's shape with few layers and random weights, so that a machine can be measured before a model is there.
//!
//! Shapes: config.json of Kimi-K2.6. Formats: MLPs in NVFP4 as modelopt writes it (`weight` U8 `[N, K/2]`, `weight_scale` F8_E4M3
//! `[N, K/16]`, `weight_scale_2` F32), the rest in BF16. Its replies are noise.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use perigee_model::checkpoint::{ShardWriter, TensorSpec, WriteError, is_complete, write_file, write_index};
use perigee_numbers::tensor::Dtype;

/// Random bytes that the tensors are cut from, each from a place of its own. No multiple of a row's, so that rows differ.
const POOL_BYTES: usize = (32 << 20) + 2;
/// Bytes between the places of tensors that follow each other.
const STRIDE: usize = 1_048_578;
/// Standard deviation of the weights, `initializer_range` of the released configuration.
const DEVIATION: f32 = 0.02;
/// Root mean square of the sixteen codes of E2M1.
const CODE_RMS: f32 = 2.926;

/// Says in config.json that the folder may be written again.
const WRITTEN_BY: &str = "perigee bench checkpoint";

/// Sizes of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandIn {
    /// D.
    hidden: usize,
    vocab: usize,
    heads: usize,
    q_lora_rank: usize,
    kv_lora_rank: usize,
    nope: usize,
    rope: usize,
    value: usize,
    /// Width of the dense layer.
    dense: usize,
    /// Width of an expert.
    expert: usize,
    /// Routed experts of a layer.
    experts: usize,
    top_k: usize,
    /// Layers with experts, behind a dense one.
    moe_layers: usize,
}

/// One file: its name and its tensors.
struct Shard {
    name: String,
    tensors: Vec<TensorSpec>,
}

impl StandIn {
    /// Kimi K2's sizes with one dense layer and `moe_layers` of `experts` routed experts.
    pub fn kimi_k2(moe_layers: usize, experts: usize) -> Self {
        Self {
            hidden: 7168,
            vocab: 163_840,
            heads: 64,
            q_lora_rank: 1536,
            kv_lora_rank: 512,
            nope: 128,
            rope: 64,
            value: 128,
            dense: 18_432,
            expert: 2048,
            experts,
            top_k: 8,
            moe_layers,
        }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.shards().iter().flat_map(|shard| &shard.tensors).map(bytes).sum()
    }

    /// Writes the folder, which is created; a shard that is there complete is kept. `progress` is called with bytes written or kept.
    ///
    /// Errors: those of writing; a folder with the config.json of another checkpoint.
    pub fn write(&self, dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), WriteError> {
        fs::create_dir_all(dir).map_err(|error| WriteError::Io { path: dir.to_owned(), error })?;
        let config = dir.join("config.json");
        if let Ok(text) = fs::read(&config)
            && serde_json::from_slice::<Value>(&text)
                .ok()
                .is_none_or(|found| found["written_by"] != WRITTEN_BY)
        {
            return Err(WriteError::Foreign(config));
        }
        let pools = Pools::new();
        let (mut weight_map, mut done, mut number) = (BTreeMap::new(), 0, 0);
        let shards = self.shards();
        for Shard { name, tensors } in &shards {
            let kept = is_complete(dir, name, tensors)?;
            let mut shard = match kept {
                true => None,
                false => Some(ShardWriter::create(dir, name, tensors)?),
            };
            for tensor in tensors {
                number += 1;
                if let Some(shard) = &mut shard {
                    pools.write(shard, tensor, number)?;
                }
                done += bytes(tensor);
                progress(done);
                weight_map.insert(tensor.name.clone(), name.clone());
            }
            shard.map(ShardWriter::finish).transpose()?;
        }
        write_index(dir, &weight_map, done)?;
        write_file(dir, "config.json", format!("{:#}\n", self.config()).as_bytes())
    }

    /// A shard for each layer, and one for embedding, last norm and head. The names do not depend on the number of layers, so that a
    /// folder of fewer layers can have the same files.
    fn shards(&self) -> Vec<Shard> {
        let mut shards: Vec<Shard> = (0..=self.moe_layers)
            .map(|layer| Shard { name: format!("layer-{layer}.safetensors"), tensors: self.layer(layer) })
            .collect();
        let table = [self.vocab, self.hidden];
        shards.push(Shard {
            name: "ends.safetensors".into(),
            tensors: vec![
                TensorSpec::new("model.embed_tokens.weight", Dtype::BF16, table),
                TensorSpec::new("model.norm.weight", Dtype::BF16, [self.hidden]),
                TensorSpec::new("lm_head.weight", Dtype::BF16, table),
            ],
        });
        shards
    }

    fn layer(&self, layer: usize) -> Vec<TensorSpec> {
        let stem = format!("model.layers.{layer}");
        let (d, heads) = (self.hidden, self.heads);
        let mut tensors = Vec::new();
        let mut plain = |name: &str, shape: &[usize]| {
            tensors.push(TensorSpec::new(format!("{stem}.{name}.weight"), Dtype::BF16, shape));
        };
        plain("input_layernorm", &[d]);
        plain("post_attention_layernorm", &[d]);
        plain("self_attn.q_a_proj", &[self.q_lora_rank, d]);
        plain("self_attn.q_a_layernorm", &[self.q_lora_rank]);
        plain("self_attn.q_b_proj", &[heads * (self.nope + self.rope), self.q_lora_rank]);
        plain("self_attn.kv_a_proj_with_mqa", &[self.kv_lora_rank + self.rope, d]);
        plain("self_attn.kv_a_layernorm", &[self.kv_lora_rank]);
        plain("self_attn.kv_b_proj", &[heads * (self.nope + self.value), self.kv_lora_rank]);
        plain("self_attn.o_proj", &[d, heads * self.value]);
        if layer == 0 {
            swiglu(&mut tensors, &format!("{stem}.mlp"), d, self.dense);
            return tensors;
        }
        plain("mlp.gate", &[self.experts, d]);
        let bias = format!("{stem}.mlp.gate.e_score_correction_bias");
        tensors.push(TensorSpec::new(bias, Dtype::F32, [self.experts]));
        swiglu(&mut tensors, &format!("{stem}.mlp.shared_experts"), d, self.expert);
        for expert in 0..self.experts {
            swiglu(&mut tensors, &format!("{stem}.mlp.experts.{expert}"), d, self.expert);
        }
        tensors
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "dtype": "bfloat16", "vocab_size": self.vocab,
            "hidden_size": self.hidden, "num_hidden_layers": self.moe_layers + 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            "intermediate_size": self.dense, "moe_intermediate_size": self.expert, "n_routed_experts": self.experts,
            "n_shared_experts": 1, "num_experts_per_tok": self.top_k, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.827, "hidden_act": "silu",
            "num_attention_heads": self.heads, "num_key_value_heads": self.heads, "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": self.kv_lora_rank, "qk_nope_head_dim": self.nope, "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value, "attention_bias": false, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
            "rope_scaling": {
                "type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096
            },
            "max_position_embeddings": 262_144, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1,
            "quantization_config": {
                "quant_method": "modelopt", "quant_algo": "NVFP4",
                "ignore": ["lm_head", "model.embed_tokens", "*self_attn*", "*mlp.gate"]
            }
        });
        config["written_by"] = json!(WRITTEN_BY);
        config
    }
}

/// Bytes of a tensor.
fn bytes(tensor: &TensorSpec) -> u64 {
    tensor.bytes().unwrap_or(0) as u64
}

/// Gate, up and down of an MLP in NVFP4.
fn swiglu(tensors: &mut Vec<TensorSpec>, stem: &str, hidden: usize, width: usize) {
    let linears =
        [("gate_proj", [width, hidden]), ("up_proj", [width, hidden]), ("down_proj", [hidden, width])];
    for (name, [out, input]) in linears {
        let name = |part: &str| format!("{stem}.{name}.{part}");
        tensors.push(TensorSpec::new(name("weight"), Dtype::U8, [out, input / 2]));
        tensors.push(TensorSpec::new(name("weight_scale"), Dtype::F8_E4M3, [out, input / 16]));
        tensors.push(TensorSpec::new(name("weight_scale_2"), Dtype::F32, []));
    }
}

/// Random bytes of each type.
struct Pools {
    /// BF16, with [`DEVIATION`].
    values: Vec<u8>,
    /// Pairs of E2M1.
    codes: Vec<u8>,
    /// E4M3, of 0.5 to 2.
    scales: Vec<u8>,
}

impl Pools {
    fn new() -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        // A sum of two has a triangular distribution, whose deviation is 1/sqrt(6) of its half width.
        let mut value = || (rng.f32() + rng.f32() - 1.0) * DEVIATION * 6f32.sqrt();
        let values = (0..POOL_BYTES / 2).flat_map(|_| half::bf16::from_f32(value()).to_le_bytes()).collect();
        let mut codes = vec![0; POOL_BYTES];
        rng.fill(&mut codes);
        let scales = (0..POOL_BYTES).map(|_| rng.u8(0x30..=0x40)).collect();
        Self { values, codes, scales }
    }

    /// Writes a tensor's data: gains of norms are 1, biases 0.
    fn write(&self, shard: &mut ShardWriter, tensor: &TensorSpec, number: usize) -> Result<(), WriteError> {
        let size = bytes(tensor) as usize;
        let pool = match (tensor.dtype, tensor.shape.len()) {
            (Dtype::U8, _) => &self.codes,
            (Dtype::F8_E4M3, _) => &self.scales,
            (Dtype::F32, 0) => return shard.write(&tensor.name, &(DEVIATION / CODE_RMS).to_le_bytes()),
            (Dtype::F32, _) => return shard.write(&tensor.name, &vec![0; size]),
            (_, 1) => return shard.write(&tensor.name, &half::bf16::ONE.to_le_bytes().repeat(size / 2)),
            _ => &self.values,
        };
        let (mut at, mut rest) = (number * STRIDE % POOL_BYTES, size);
        while rest > 0 {
            let part = &pool[at..POOL_BYTES.min(at + rest)];
            shard.append(&tensor.name, part)?;
            rest -= part.len();
            at = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_model::checkpoint::Checkpoint;
    use perigee_model::{Blueprint, Inspection};

    fn small(moe_layers: usize) -> StandIn {
        StandIn {
            hidden: 128,
            vocab: 256,
            heads: 2,
            q_lora_rank: 32,
            kv_lora_rank: 32,
            nope: 16,
            rope: 8,
            value: 16,
            dense: 96,
            expert: 32,
            experts: 8,
            top_k: 2,
            moe_layers,
        }
    }

    #[test]
    fn what_is_written_is_a_servable_checkpoint_of_the_shape() {
        let dir = tempfile::tempdir().unwrap();
        let stand_in = small(2);
        let mut seen = 0;
        stand_in.write(dir.path(), &mut |done| seen = done).unwrap();
        assert_eq!(seen, stand_in.bytes());
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
        let shape = (blueprint.num_layers, blueprint.first_k_dense_replace, blueprint.router.num_experts);
        assert_eq!(shape, (3, 1, 8));
        let inspection = Inspection::new(&checkpoint, &blueprint, true);
        assert!(inspection.servable, "{inspection:?}");
        // The deviation of what the codes say is that of the plain weights.
        let linear = checkpoint.tensor("model.layers.1.mlp.gate.weight").unwrap();
        let plain: Vec<f32> = linear.to_f32();
        let square = plain.iter().map(|value| value * value).sum::<f32>() / plain.len() as f32;
        assert!((0.018..0.022).contains(&square.sqrt()), "{square}");
    }

    #[test]
    fn a_folder_of_fewer_layers_has_the_same_files() {
        let [more, fewer] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        small(2).write(more.path(), &mut |_| ()).unwrap();
        let shards = ["layer-0.safetensors", "layer-1.safetensors", "ends.safetensors"];
        for shard in shards {
            std::fs::hard_link(more.path().join(shard), fewer.path().join(shard)).unwrap();
        }
        let inode = |dir: &Path| {
            use std::os::unix::fs::MetadataExt;
            shards.map(|shard| dir.join(shard).metadata().unwrap().ino())
        };
        small(1).write(fewer.path(), &mut |_| ()).unwrap();
        assert_eq!(inode(fewer.path()), inode(more.path()));
        let tensors: usize = small(1).shards().iter().map(|shard| shard.tensors.len()).sum();
        assert_eq!(Checkpoint::open(fewer.path()).unwrap().names().count(), tensors);
        // A file of another shape is not kept.
        StandIn { experts: 4, ..small(1) }.write(fewer.path(), &mut |_| ()).unwrap();
        assert_ne!(inode(fewer.path())[1], inode(more.path())[1]);
        assert_eq!(inode(fewer.path())[0], inode(more.path())[0]);
    }

    #[test]
    fn another_checkpoint_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.json");
        for text in ["{\"model_type\": \"kimi_k2\"}", "broken"] {
            fs::write(&config, text).unwrap();
            let refused = small(1).write(dir.path(), &mut |_| ()).unwrap_err().to_string();
            assert!(refused.contains("config.json belongs to another checkpoint"), "{refused}");
            assert_eq!(fs::read_to_string(&config).unwrap(), text);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}
