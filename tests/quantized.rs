//! Quantized checkpoints against what the reference packages made of them (`tests/golden/quant`, see its README).

use std::path::{Path, PathBuf};

use perigee_cpu::{CpuBackend, CpuOptions, Isa};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Inventory, LoadError, ModuleClass, Weights};
use perigee_numbers::quant::{Dialect, StoredMatrix, check_scales, recognize};
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{Activations, AttentionForm, CacheDtype, Calibrate};
use serde_json::json;

use crate::golden::{cpu_ranks, golden_folder, golden_path, largest_difference, load_folder, step};
use crate::serve::{Served, log_softmax, runtime};

/// `tests/golden/quant/NAME`.
fn quant_golden(name: &str) -> PathBuf {
    golden_path("quant").join(name)
}

/// Tensors of one file, by name.
struct File(Vec<u8>);

impl File {
    fn open(name: &str) -> Self {
        Self(std::fs::read(quant_golden(name)).unwrap())
    }

    /// Every tensor with its shape and dtype in our words.
    fn tensors(&self) -> Vec<(String, Dtype, Vec<usize>, &[u8])> {
        let tensors = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        let dtype = |dtype: safetensors::Dtype| match dtype {
            safetensors::Dtype::F32 => Dtype::F32,
            safetensors::Dtype::BF16 => Dtype::BF16,
            safetensors::Dtype::U8 => Dtype::U8,
            safetensors::Dtype::I32 => Dtype::I32,
            safetensors::Dtype::I64 => Dtype::I64,
            safetensors::Dtype::F8_E4M3 => Dtype::F8_E4M3,
            other => panic!("{other:?} in golden data"),
        };
        let whole = |name: &str| {
            let view = tensors.tensor(name).unwrap();
            (name.to_string(), dtype(view.dtype()), view.shape().to_vec(), view.data())
        };
        let mut list: Vec<_> = tensors.names().into_iter().map(whole).collect();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        list
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every matrix of a golden file is recognised as `dialect` and dequantized to the reference's bits.
fn check_file(name: &str, prefix: &str, dialect: Dialect) {
    let file = File::open(name);
    let tensors = file.tensors();
    let find = |wanted: &str| {
        let found = tensors.iter().find(|(name, ..)| name == wanted);
        found.map(|(_, dtype, shape, bytes)| TensorView { dtype: *dtype, shape, bytes })
    };
    let mut matrices: Vec<&str> =
        tensors.iter().filter_map(|(name, ..)| name.rsplit_once('.')).map(|(stem, _)| stem).collect();
    matrices.dedup();
    let mut checked = 0;
    for matrix in matrices.into_iter().filter(|stem| stem.starts_with(prefix)) {
        let (layout, stored) = recognize(|part| find(&format!("{matrix}.{part}")))
            .unwrap_or_else(|e| panic!("{name} {matrix}: {e}"));
        assert_eq!(layout.dialect, dialect, "{name} {matrix}");
        let packed = stored.packed().unwrap();
        assert_eq!(check_scales(packed), Default::default(), "{name} {matrix}: scales");
        let values = packed.to_f32();
        if let Some(exact) = find(&format!("{matrix}.dequant_f32")) {
            // A zero's sign may differ: code 8 decodes to minus zero.
            let clean = |values: Vec<f32>| bits(&values.iter().map(|v| v + 0.0).collect::<Vec<_>>());
            assert_eq!(clean(values.clone()), clean(exact.to_f32()), "{name} {matrix}: f32");
            checked += 1;
        }
        for rounded in ["dequant_bf16", "dequant"] {
            if let Some(rounded) = find(&format!("{matrix}.{rounded}")) {
                let ours: Vec<f32> = values.iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect();
                let differing = ours.iter().zip(rounded.to_f32()).filter(|(a, b)| **a != *b).count();
                assert_eq!(differing, 0, "{name} {matrix}: bf16");
                checked += 1;
            }
        }
    }
    assert!(checked > 0, "{name} {prefix}: nothing was compared");
}

#[test]
fn every_golden_matrix_is_recognised_and_dequantized_exactly() {
    check_file("nvfp4_modelopt.safetensors", "", Dialect::ModeloptNvfp4);
    check_file("nvfp4_compressed_tensors.safetensors", "", Dialect::CompressedTensorsNvfp4);
    check_file("int4_g32_compressed_tensors.safetensors", "", Dialect::CompressedTensorsInt4);
    check_file("mxfp4_quark.safetensors", "", Dialect::QuarkMxfp4);
    check_file("mxfp4_compressed_tensors.safetensors", "", Dialect::CompressedTensorsMxfp4);
    check_file("fp8.safetensors", "ds_f32.", Dialect::Fp8BlockInv);
    check_file("fp8.safetensors", "ct.", Dialect::Fp8Block);
    check_file("fp8.safetensors", "modelopt.", Dialect::Fp8Block);
}

#[test]
fn a_matrix_with_one_scale_is_its_codes_times_it() {
    let file = File::open("fp8.safetensors");
    let tensors = file.tensors();
    let (layout, stored) = recognize(|part| {
        let found = tensors.iter().find(|(name, ..)| *name == format!("per_tensor.w_c.{part}"));
        found.map(|(_, dtype, shape, bytes)| TensorView { dtype: *dtype, shape, bytes })
    })
    .unwrap();
    assert_eq!((layout.dialect, layout.shape), (Dialect::Fp8Tensor, [200, 320]));
    // No dequantized copy is stored; the source differs by half a step of E4M3 at most.
    let inputs = File::open("inputs.safetensors");
    let inputs = inputs.tensors();
    let (_, dtype, shape, bytes) = inputs.iter().find(|(name, ..)| name == "w_c").unwrap();
    let source = TensorView { dtype: *dtype, shape, bytes }.to_f32();
    let (mut error, mut power) = (0f64, 0f64);
    for (a, b) in stored.to_f32().iter().zip(&source) {
        error += f64::from(a - b).powi(2);
        power += f64::from(*b).powi(2);
    }
    assert!((error / power).sqrt() < 0.04, "{}", (error / power).sqrt());
}

/// A folder that is no whole model: what of its single expert is recognised, and its values against the golden matrices it is made of.
fn check_folder(folder: &str, dialect: Dialect, golden: &str, cases: [(&str, &str); 2]) {
    let checkpoint = Checkpoint::open(&quant_golden(folder)).unwrap();
    let file = File::open(golden);
    let tensors = file.tensors();
    for (proj, matrix) in cases {
        let stem = format!("language_model.model.layers.1.mlp.experts.0.{proj}");
        let (layout, stored) = recognize(|part| checkpoint.tensor(&format!("{stem}.{part}"))).unwrap();
        assert_eq!(layout.dialect, dialect, "{folder} {proj}");
        let name = format!("{matrix}.dequant_f32");
        let (_, dtype, shape, bytes) = tensors.iter().find(|(n, ..)| *n == name).unwrap();
        assert_eq!(shape.as_slice(), layout.shape);
        let expected = TensorView { dtype: *dtype, shape, bytes }.to_f32();
        assert!(stored.to_f32() == expected, "{folder} {proj}: values");
    }
    for plain in ["mlp.gate", "mlp.shared_experts.gate_proj", "self_attn.q_a_proj"] {
        let stem = format!("language_model.model.layers.1.{plain}");
        let (layout, _) = recognize(|part| checkpoint.tensor(&format!("{stem}.{part}"))).unwrap();
        assert_eq!(layout.dialect.format(), None, "{folder} {plain}");
    }
}

#[test]
fn the_small_folders_hold_the_golden_matrices() {
    check_folder(
        "tiny_ct_int4_kimi_names",
        Dialect::CompressedTensorsInt4,
        "int4_g32_compressed_tensors.safetensors",
        [("gate_proj", "amax7.w_a"), ("down_proj", "amax7.w_b")],
    );
    check_folder(
        "tiny_quark_mxfp4_from_int4",
        Dialect::QuarkMxfp4,
        "mxfp4_quark.safetensors",
        [("gate_proj", "from_int4.w_a"), ("down_proj", "from_int4.w_b")],
    );
}

const TINY: &str = "tiny_modelopt_nvfp4_kvfp8";

/// Token ids `[2, 24]` and logits `[2, 24, 256]` of the whole model with dequantized NVFP4 experts, computed in F32.
fn tiny_expected() -> Vec<(Vec<u32>, Vec<f32>)> {
    let bytes = std::fs::read(quant_golden(TINY).join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        let view = tensors.tensor(name).unwrap();
        view.data().chunks_exact(4).map(|b| b.try_into().unwrap()).collect()
    };
    let ids: Vec<u32> = words("input_ids").into_iter().map(u32::from_le_bytes).collect();
    let logits: Vec<f32> =
        words("logits_f32_nvfp4_weights_a16").into_iter().map(f32::from_le_bytes).collect();
    let prompts = ids.chunks(24).zip(logits.chunks(24 * 256));
    prompts.map(|(ids, logits)| (ids.to_vec(), logits.to_vec())).collect()
}

#[test]
fn a_modelopt_export_gives_the_expected_logits() {
    expected_logits("reference", ReferenceBackend);
    for isa in Isa::supported() {
        let options = CpuOptions { threads: 2, activations: Activations::F32, isa };
        expected_logits(&isa.to_string(), CpuBackend::new(options));
    }
    expected_logits("two ranks", cpu_ranks(2, Activations::F32));
}

/// Checks the logits of the modelopt export, in both forms.
pub(crate) fn expected_logits<B: Calibrate>(what: &str, backend: B) {
    let mut model = load_folder(backend, &quant_golden(TINY), CacheDtype::F32);
    let mut worst = 0f32;
    for (ids, expected) in tiny_expected() {
        for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
            worst = worst.max(largest_difference(&step(&mut model, &ids, 0, form), &expected));
        }
    }
    println!("{what}: largest logit difference {worst:e}");
    assert!(worst <= 1e-4, "{what}: {worst:e}");
}

#[test]
fn an_inventory_tells_what_is_stored_where() {
    let checkpoint = Checkpoint::open(&quant_golden(TINY)).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let inventory = Inventory::take(&checkpoint, &blueprint);
    assert!(inventory.problems.is_empty(), "{}", inventory.problems);
    assert_eq!(inventory.warnings, Vec::<String>::new());
    assert_eq!((inventory.kv_scales.len(), inventory.num_input_scales, inventory.experts_stored), (4, 12, 4));
    let routed = inventory.holdings[&(ModuleClass::RoutedExperts, "nvfp4".into())];
    assert_eq!((routed.modules, routed.parameters), (12, 12 * 64 * 128));
    assert_eq!(routed.bytes, 12 * (64 * 64 + 64 * 8 + 4));
    assert!(
        inventory
            .declared
            .as_ref()
            .is_some_and(|declared| declared.kv_cache && declared.method == "modelopt")
    );
    // What is loaded, plus the scales that are not, is everything.
    let loaded: u64 = inventory.loaded_bytes().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(loaded + 4 * 4 + 12 * 4, checkpoint.bytes());
}

/// A folder with the golden model's files, which a test may change, and a tokenizer, which the golden model lacks.
pub(crate) fn servable_copy(source: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (from, names) in [
        (
            golden_folder("kimi"),
            &["tokenizer.json", "tokenizer_config.json", "tiktoken.model", "chat_template.jinja"][..],
        ),
        (source.to_path_buf(), &["config.json", "model.safetensors"][..]),
    ] {
        for name in names.iter().filter(|name| from.join(name).is_file()) {
            std::fs::copy(from.join(name), dir.path().join(name)).unwrap();
        }
    }
    dir
}

#[test]
fn a_quantized_checkpoint_over_http() {
    for backend in ["reference", "cpu"] {
        quantized_over_http(backend);
    }
}

fn quantized_over_http(backend: &str) {
    let folder = servable_copy(&quant_golden(TINY));
    let served = Served::start(Some(folder.path()), &[&format!("device.backend={backend}")]);
    runtime().block_on(async {
        for (ids, expected) in tiny_expected() {
            let body = json!({
                "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 1, "ignore_eos": true
            });
            let reply = served.post("/v1/completions", &body).await;
            let logprobs = reply["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("logprobs");
            assert_eq!(logprobs.len(), ids.len() + 1);
            for position in 1..ids.len() {
                let golden = log_softmax(&expected[(position - 1) * 256..position * 256]);
                let (got, wanted) = (logprobs[position].as_f64().unwrap(), golden[ids[position] as usize]);
                assert!((got - wanted).abs() <= 1e-3, "position {position}: {got}, expected {wanted}");
            }
        }
    });
    assert_eq!(served.terminate(), Some(0));
}

/// The tiny model with its tensors renamed to another spelling.
fn renamed(rename: impl Fn(&str) -> String) -> tempfile::TempDir {
    let dir = servable_copy(&quant_golden(TINY));
    let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let list: Vec<_> = tensors.tensors().into_iter().map(|(name, view)| (rename(&name), view)).collect();
    let file = safetensors::serialize(list, None).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    dir
}

#[test]
fn other_spellings_of_the_same_model_are_bound() {
    let nested = |name: &str| match name {
        "lm_head.weight" => "language_model.lm_head.weight".to_string(),
        name => format!("language_model.{name}"),
    };
    let legacy_layers =
        |name: &str| nested(name).replace("language_model.model.layers.", "language_model.layers.");
    let legacy = |name: &str| nested(name).replace("language_model.model.", "language_model.");
    let transformers_5 = |name: &str| match name {
        "lm_head.weight" => name.to_string(),
        name => format!("model.language_{name}"),
    };
    let deeper = |name: &str| format!("model.{name}");
    let quantizers = |name: &str| {
        name.replace(".weight_scale_2", ".weight_quantizer._double_scale")
            .replace(".weight_scale", ".weight_quantizer._scale")
            .replace(".input_scale", ".input_quantizer.scale")
    };
    let rename: [&dyn Fn(&str) -> String; 6] =
        [&nested, &legacy_layers, &legacy, &transformers_5, &deeper, &quantizers];
    for rename in rename {
        let folder = renamed(rename);
        let mut model = load_folder(ReferenceBackend, folder.path(), CacheDtype::F32);
        let (ids, expected) = tiny_expected().remove(0);
        let logits = step(&mut model, &ids, 0, AttentionForm::Expanded);
        assert!(largest_difference(&logits, &expected) <= 1e-4);
    }
}

/// The tiny model's tensors, to be changed and written again.
pub(crate) struct Tensors(pub(crate) Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    pub(crate) fn tiny() -> Self {
        let bytes = std::fs::read(quant_golden(TINY).join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let own = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            (name, view.dtype(), view.shape().to_vec(), view.data().to_vec())
        };
        Self(tensors.tensors().into_iter().map(own).collect())
    }

    pub(crate) fn get(&mut self, name: &str) -> &mut (String, safetensors::Dtype, Vec<usize>, Vec<u8>) {
        self.0.iter_mut().find(|t| t.0 == name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(crate) fn put(&mut self, name: &str, dtype: safetensors::Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.0.retain(|t| t.0 != name);
        self.0.push((name.into(), dtype, shape.to_vec(), bytes));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let before = self.0.len();
        self.0.retain(|t| t.0 != name);
        assert_eq!(self.0.len() + 1, before, "no tensor {name}");
    }

    /// The file. Panics where shapes and bytes disagree: what the format's own crate refuses is made by hand.
    pub(crate) fn file(&self) -> Vec<u8> {
        let views = self.0.iter().map(|(name, dtype, shape, bytes)| {
            (name.clone(), safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    /// A folder with the golden configuration.
    pub(crate) fn folder(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.safetensors"), self.file()).unwrap();
        std::fs::copy(quant_golden(TINY).join("config.json"), dir.path().join("config.json")).unwrap();
        dir
    }
}

/// Every linear of the tiny model quantized in place to another format: the network takes any module in any format.
#[test]
fn any_module_may_have_any_format() {
    let mut tensors = Tensors::tiny();
    let names: Vec<String> = tensors.0.iter().map(|t| t.0.clone()).collect();
    let is_linear = |name: &String| {
        name.ends_with("_proj.weight")
            || name.ends_with("_mqa.weight")
            || name.ends_with("mlp.gate.weight")
            || name == "lm_head.weight"
    };
    let mut formats = Vec::new();
    let mut next = 0;
    for name in names.iter().filter(|name| is_linear(name) && !name.contains(".experts.")) {
        let shape = tensors.get(name).2.clone();
        let stem = name.trim_end_matches(".weight");
        let (out, columns) = (shape[0], shape[1]);
        let codes = |bytes: usize| -> Vec<u8> { (0..bytes).map(|k| (k * 37 % 251) as u8 & 0x7e).collect() };
        tensors.remove(name);
        let mut put = |part: &str, dtype, shape: &[usize], bytes| {
            tensors.put(&format!("{stem}.{part}"), dtype, shape, bytes)
        };
        use safetensors::Dtype::{BF16, F8_E4M3, F32, I32, U8};
        let format = if columns % 32 == 0 { next } else { 3 };
        next = if columns % 32 == 0 { (next + 1) % 4 } else { next };
        match format {
            0 => {
                put("weight", U8, &[out, columns / 2], codes(out * columns / 2));
                put("weight_scale", U8, &[out, columns / 32], vec![120; out * columns / 32]);
            }
            1 => {
                put("weight_packed", I32, &[out, columns / 8], codes(out * columns / 2));
                put("weight_scale", BF16, &[out, columns / 32], [0x80, 0x3c].repeat(out * columns / 32));
                let declared = [out as i32, columns as i32].iter().flat_map(|d| d.to_le_bytes()).collect();
                put("weight_shape", I32, &[2], declared);
            }
            2 => {
                put("weight_packed", U8, &[out, columns / 2], codes(out * columns / 2));
                put("weight_scale", F8_E4M3, &[out, columns / 16], vec![0x40; out * columns / 16]);
                put("weight_global_scale", F32, &[1], 1e3f32.to_le_bytes().to_vec());
            }
            _ => {
                put("weight", F8_E4M3, &[out, columns], codes(out * columns));
                put("weight_scale", F32, &[out, 1], 1e-3f32.to_le_bytes().repeat(out));
            }
        }
        formats.push(format);
    }
    assert!((0..4).all(|f| formats.iter().filter(|g| **g == f).count() >= 3), "{formats:?}");
    let packed = tensors.folder();

    // The same values, expanded to F32 by hand, are the same network.
    let checkpoint = Checkpoint::open(packed.path()).unwrap();
    let mut plain = Tensors::tiny();
    for name in &names {
        let Some(stem) = name.strip_suffix(".weight") else { continue };
        let Ok((layout, matrix)) = recognize(|part| checkpoint.tensor(&format!("{stem}.{part}"))) else {
            continue;
        };
        if let StoredMatrix::Packed(matrix) = matrix {
            let bytes = matrix.to_f32().iter().flat_map(|v| v.to_le_bytes()).collect();
            plain.put(name, safetensors::Dtype::F32, &layout.shape, bytes);
            plain.0.retain(|t| t.0 == *name || !t.0.starts_with(&format!("{stem}.weight")));
        }
    }
    let plain = plain.folder();
    let (ids, _) = tiny_expected().remove(0);
    let logits = [packed.path(), plain.path()].map(|folder| {
        let mut model = load_folder(ReferenceBackend, folder, CacheDtype::F32);
        step(&mut model, &ids, 0, AttentionForm::Expanded)
    });
    assert!(logits[0].iter().all(|v| v.is_finite()));
    assert!(logits[0] == logits[1], "difference {}", largest_difference(&logits[0], &logits[1]));
    // Codes that the CPU multiplies from their packed form, against the specification.
    for isa in Isa::supported() {
        let options = CpuOptions { threads: 2, activations: Activations::F32, isa };
        let mut model = load_folder(CpuBackend::new(options), packed.path(), CacheDtype::F32);
        let got = step(&mut model, &ids, 0, AttentionForm::Expanded);
        assert!(largest_difference(&got, &logits[0]) <= 1e-3, "{isa}");
    }
}

/// The experts of a layer in one tensor for gate and up and one for down, codes and scales alike, as transformers 5 saves
/// them; a numbered file, no index, and what a calibration and an older library left.
#[test]
fn packed_experts_without_an_index_compute_the_same() {
    let mut tensors = Tensors::tiny();
    let stem = "model.layers.1.mlp.experts.";
    let experts =
        (0..).take_while(|e| tensors.0.iter().any(|t| t.0 == format!("{stem}{e}.up_proj.weight"))).count();
    let mut packed: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (to, halves) in [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])] {
        for (part, suffix) in [("weight", ""), ("weight_scale", "_scale"), ("weight_scale_2", "_scale_2")] {
            let (mut bytes, mut of_half) = (Vec::new(), Vec::new());
            for expert in 0..experts {
                for half in halves {
                    let one = tensors.get(&format!("{stem}{expert}.{half}.{part}")).clone();
                    bytes.extend(one.3);
                    of_half = vec![(one.1, one.2)];
                }
            }
            let (dtype, shape) = of_half.remove(0);
            let shape = match shape[..] {
                [] | [1] => vec![experts, halves.len()],
                [rows, columns] => vec![experts, rows * halves.len(), columns],
                _ => panic!("{part} has shape {shape:?}"),
            };
            packed.push((format!("{stem}{to}{suffix}"), dtype, shape, bytes));
        }
    }
    tensors.0.retain(|t| !t.0.starts_with(stem));
    tensors.0.extend(packed);
    for (name, shape) in [
        ("model.layers.1.self_attn.k_bmm_quantizer._amax", &[1][..]),
        ("model.layers.1.self_attn.o_proj.output_scale", &[1]),
        ("model.layers.1.self_attn.rotary_emb.cos_cached", &[8, 16]),
        ("vision_tower.patch_embed.proj.bias", &[4]),
    ] {
        tensors.put(name, safetensors::Dtype::F32, shape, vec![0; 4 * shape.iter().product::<usize>()]);
    }
    let folder = tensors.folder();
    let file = |name: &str| folder.path().join(name);
    std::fs::rename(file("model.safetensors"), file("model-00001-of-00001.safetensors")).unwrap();
    let (ids, expected) = tiny_expected().remove(0);
    let mut model = load_folder(ReferenceBackend, folder.path(), CacheDtype::F32);
    let logits = step(&mut model, &ids, 0, AttentionForm::Expanded);
    assert!(largest_difference(&logits, &expected) <= 1e-4);
}

#[test]
fn nan_scales_of_empty_blocks_change_nothing_and_others_are_refused() {
    let scale = "model.layers.1.mlp.experts.2.up_proj.weight_scale";
    let codes = "model.layers.1.mlp.experts.2.up_proj.weight";
    let logits = |tensors: &Tensors| {
        let folder = tensors.folder();
        let (ids, _) = tiny_expected().remove(1);
        let mut model = load_folder(ReferenceBackend, folder.path(), CacheDtype::F32);
        step(&mut model, &ids, 0, AttentionForm::Expanded)
    };
    let mut tensors = Tensors::tiny();
    // Row 3, block 5 of a [64, 128] matrix: eight bytes of codes, one scale.
    tensors.get(codes).3[3 * 64 + 5 * 8..3 * 64 + 6 * 8].copy_from_slice(&[0, 0x80, 0x08, 0x88, 0, 0, 0, 0]);
    let clean = logits(&tensors);
    for bad in [0x7f, 0xff, 0xb8] {
        tensors.get(scale).3[3 * 8 + 5] = bad;
        assert!(logits(&tensors) == clean, "scale {bad:#x}");
    }
    tensors.get(codes).3[3 * 64 + 5 * 8] = 0x10;
    let folder = tensors.folder();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let loaded = Weights::load(&checkpoint, &blueprint, &mut ReferenceBackend, &mut |_, _| ());
    let Err(error @ LoadError::Mismatch { .. }) = loaded.map(|_| ()) else {
        panic!("loaded a negative scale")
    };
    let text = error.to_string();
    assert!(text.contains(scale) && text.contains("row 3, block 5: scale 0xb8 is -1"), "{text}");
}
