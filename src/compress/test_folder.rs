//! Small random checkpoints for the tests of this module.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;

use perigee_model::checkpoint::{Checkpoint, ShardWriter, TensorSpec, write_index};
use perigee_numbers::tensor::Dtype;

/// A tensor with its bytes.
pub(super) type Tensor = (TensorSpec, Vec<u8>);

/// How the linears of experts are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Plain,
    Nvfp4,
    Int4,
}

/// What to make.
#[derive(Debug, Clone)]
pub(super) struct Tiny {
    pub(super) seed: u64,
    pub(super) experts: usize,
    pub(super) top_k: usize,
    pub(super) groups: usize,
    pub(super) format: Format,
    pub(super) packed_router: bool,
    pub(super) wrapper: bool,
    pub(super) single_file: bool,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            seed: 1,
            experts: 8,
            top_k: 2,
            groups: 1,
            format: Format::Plain,
            packed_router: false,
            wrapper: false,
            single_file: false,
        }
    }
}

/// Layers, the first one dense.
pub(super) const LAYERS: usize = 3;
/// Hidden size, and width of an expert.
pub(super) const HIDDEN: usize = 32;
/// Token ids: bytes.
pub(super) const VOCAB: usize = 256;

struct Maker {
    rng: fastrand::Rng,
    tensors: Vec<Tensor>,
}

impl Maker {
    fn add(&mut self, name: String, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.push((TensorSpec::new(name, dtype, shape), bytes));
    }

    fn values(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| (self.rng.f32() + self.rng.f32() - 1.0) * size).collect()
    }

    fn bf16(&mut self, name: String, shape: &[usize], size: f32) {
        let values = self.values(shape.iter().product(), size);
        let bytes = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        self.add(name, Dtype::BF16, shape, bytes);
    }

    fn ones(&mut self, name: String, count: usize) {
        let bytes = (0..count).flat_map(|_| half::bf16::ONE.to_le_bytes()).collect();
        self.add(name, Dtype::BF16, &[count], bytes);
    }

    fn bytes(&mut self, count: usize, range: std::ops::Range<u8>) -> Vec<u8> {
        (0..count).map(|_| self.rng.u8(range.clone())).collect()
    }

    fn linear(&mut self, stem: String, [out, width]: [usize; 2], format: Format) {
        match format {
            Format::Plain => self.bf16(format!("{stem}.weight"), &[out, width], 0.6),
            Format::Nvfp4 => {
                let codes = self.bytes(out * width / 2, 0..255);
                self.add(format!("{stem}.weight"), Dtype::U8, &[out, width / 2], codes);
                let scales = self.bytes(out * width / 16, 0x20..0x50);
                self.add(format!("{stem}.weight_scale"), Dtype::F8_E4M3, &[out, width / 16], scales);
                let scale = (0.02 + 0.02 * self.rng.f32()).to_le_bytes().to_vec();
                self.add(format!("{stem}.weight_scale_2"), Dtype::F32, &[], scale);
                let input = (0.1 + self.rng.f32()).to_le_bytes().to_vec();
                self.add(format!("{stem}.input_scale"), Dtype::F32, &[], input);
            }
            Format::Int4 => {
                let codes = self.bytes(out * width / 2, 0..255);
                self.add(format!("{stem}.weight_packed"), Dtype::I32, &[out, width / 8], codes);
                let values = self.values(out * width / 32, 0.1);
                let scales = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
                self.add(format!("{stem}.weight_scale"), Dtype::BF16, &[out, width / 32], scales);
                let shape = [out as i32, width as i32].iter().flat_map(|d| d.to_le_bytes()).collect();
                self.add(format!("{stem}.weight_shape"), Dtype::I32, &[2], shape);
            }
        }
    }
}

/// Writes the folder.
pub(super) fn write(dir: &Path, tiny: &Tiny) {
    let prefix = if tiny.wrapper { "language_model.model." } else { "model." };
    let mut shards: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
    let mut maker = Maker { rng: fastrand::Rng::with_seed(tiny.seed), tensors: Vec::new() };
    let d = HIDDEN;
    for layer in 0..LAYERS {
        let name = |rest: &str| format!("{prefix}layers.{layer}.{rest}");
        maker.ones(name("input_layernorm.weight"), d);
        maker.ones(name("post_attention_layernorm.weight"), d);
        maker.bf16(name("self_attn.q_proj.weight"), &[2 * 12, d], 0.3);
        maker.bf16(name("self_attn.kv_a_proj_with_mqa.weight"), &[16 + 4, d], 0.3);
        maker.ones(name("self_attn.kv_a_layernorm.weight"), 16);
        maker.bf16(name("self_attn.kv_b_proj.weight"), &[2 * 16, 16], 0.3);
        maker.bf16(name("self_attn.o_proj.weight"), &[d, 16], 0.3);
        let mut ffn = |stem: String, width: usize, format: Format| {
            maker.linear(format!("{stem}.gate_proj"), [width, d], format);
            maker.linear(format!("{stem}.up_proj"), [width, d], format);
            maker.linear(format!("{stem}.down_proj"), [d, width], format);
        };
        if layer == 0 {
            ffn(name("mlp"), 64, Format::Plain);
        } else {
            (0..tiny.experts).for_each(|e| ffn(name(&format!("mlp.experts.{e}")), d, tiny.format));
            ffn(name("mlp.shared_experts"), d, Format::Plain);
            match tiny.packed_router {
                false => maker.bf16(name("mlp.gate.weight"), &[tiny.experts, d], 1.0),
                true => maker.linear(name("mlp.gate"), [tiny.experts, d], Format::Nvfp4),
            }
            let bias = maker.values(tiny.experts, 0.1).iter().flat_map(|b| b.to_le_bytes()).collect();
            maker.add(name("mlp.gate.e_score_correction_bias"), Dtype::F32, &[tiny.experts], bias);
        }
        let shard = format!("model-{:05}-of-{:05}.safetensors", layer + 1, LAYERS + 1);
        shards.insert(shard, std::mem::take(&mut maker.tensors));
    }
    let head = if tiny.wrapper { "language_model.lm_head.weight" } else { "lm_head.weight" };
    maker.bf16(format!("{prefix}embed_tokens.weight"), &[VOCAB, d], 1.0);
    maker.ones(format!("{prefix}norm.weight"), d);
    maker.bf16(head.into(), &[VOCAB, d], 0.5);
    if tiny.wrapper {
        maker.bf16("vision_tower.patch_embed.proj.bias".into(), &[7], 0.5);
    }
    shards.insert(format!("model-{0:05}-of-{0:05}.safetensors", LAYERS + 1), maker.tensors);
    if tiny.single_file {
        let all = std::mem::take(&mut shards).into_values().flatten().collect();
        shards.insert("model.safetensors".into(), all);
    }
    fs::create_dir_all(dir).unwrap();
    shards.iter().for_each(|(name, tensors)| write_shard(dir, name, tensors));
    if !tiny.single_file {
        index(dir, &shards);
    }
    fs::write(dir.join("config.json"), format!("{:#}\n", config(tiny))).unwrap();
    fs::write(dir.join("chat_template.jinja"), "{{ messages }}\n").unwrap();
    fs::create_dir_all(dir.join("assets")).unwrap();
    fs::write(dir.join("assets/notes.txt"), [0, 159, 146, 150]).unwrap();
    fs::write(dir.join("tiktoken.model"), tiktoken()).unwrap();
}

/// One token per byte.
fn tiktoken() -> String {
    use base64::Engine as _;
    (0..=255u8).map(|b| format!("{} {b}\n", base64::engine::general_purpose::STANDARD.encode([b]))).collect()
}

/// Writes a shard.
pub(super) fn write_shard(dir: &Path, name: &str, tensors: &[Tensor]) {
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let mut shard = ShardWriter::create(dir, name, &specs).unwrap();
    tensors.iter().for_each(|(spec, data)| shard.write(&spec.name, data).unwrap());
    shard.finish().unwrap();
}

/// Writes the index of these shards.
pub(super) fn index(dir: &Path, shards: &BTreeMap<String, Vec<Tensor>>) {
    let map =
        shards.iter().flat_map(|(shard, list)| list.iter().map(|(s, _)| (s.name.clone(), shard.clone())));
    let total = shards.values().flatten().map(|(_, data)| data.len() as u64).sum();
    write_index(dir, &map.collect(), total).unwrap();
}

/// All tensors of a folder by shard.
pub(super) fn read(dir: &Path) -> BTreeMap<String, Vec<Tensor>> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let mut shards: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
    for name in checkpoint.names() {
        let view = checkpoint.tensor(name).unwrap();
        let tensor = (TensorSpec::new(name, view.dtype, view.shape), view.bytes.to_vec());
        shards.entry(checkpoint.shard_of(name).unwrap().into()).or_default().push(tensor);
    }
    shards
}

fn config(tiny: &Tiny) -> serde_json::Value {
    let text = json!({
        "model_type": "kimi_k2", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "first_k_dense_replace": 1, "intermediate_size": 64, "moe_intermediate_size": HIDDEN, "n_routed_experts": tiny.experts,
        "n_shared_experts": 1, "num_experts_per_tok": tiny.top_k, "n_group": tiny.groups, "topk_group": tiny.groups.div_ceil(2),
        "num_attention_heads": 2, "q_lora_rank": null, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 8, "routed_scaling_factor": 2.827, "norm_topk_prob": true, "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0, "max_position_embeddings": 4096, "eos_token_id": 1, "tie_word_embeddings": false,
        "quantization_config": {"ignore": ["lm_head", format!("model.layers.1.mlp.experts.{}.up_proj", tiny.experts - 1)]}
    });
    match tiny.wrapper {
        false => text,
        true => json!({"model_type": "kimi_k25", "text_config": text, "eos_token_id": 1}),
    }
}
