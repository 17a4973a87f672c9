//! `perigee quantize`: folders in every format and dialect, against direct quantization and against the reference packages' own exports;
//! interrupted runs.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use perigee::nano;
use perigee_compress::{Options, QuantizeError, Report, quantize};
use perigee_model::ModuleClass;
use perigee_model::checkpoint::{Checkpoint, ShardWriter, TensorSpec, write_file, write_index};
use perigee_numbers::quant::distortion::Distortion;
use perigee_numbers::quant::{PackedBuffer, PackedFormat, PackedMatrix, Packing, TensorScale};
use perigee_numbers::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::golden::golden_path;

/// Every format with every dialect it has.
const TARGETS: [(&str, Option<&str>, &str); 8] = [
    ("nvfp4", Some("max"), "modelopt"),
    ("nvfp4", Some("sweep"), "modelopt"),
    ("nvfp4", Some("sweep"), "compressed-tensors"),
    ("mxfp4", None, "quark"),
    ("mxfp4", None, "compressed-tensors"),
    ("int4-g32", None, "compressed-tensors"),
    ("fp8", None, "deepseek"),
    ("fp8", None, "modelopt"),
];

fn options(format: &str, scales: Option<&str>, modules: &str, dialect: &str) -> Options {
    Options::parse(format, scales, Some(modules), Some(dialect)).unwrap()
}

fn run(source: &Path, target: &Path, options: &Options) -> Result<Report, QuantizeError> {
    quantize(&Checkpoint::open(source).unwrap(), target, options, None, 2, &mut |_| ())
}

/// The embedded model as a folder, its weights in one file.
fn nano_folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in nano::FILES {
        write_file(dir.path(), name, bytes).unwrap();
    }
    dir
}

/// A folder of owned tensors, `per_shard` to a file in the order of their names.
fn folder(tensors: &[(TensorSpec, Vec<u8>)], per_shard: usize, config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut weight_map = BTreeMap::new();
    for (i, chunk) in tensors.chunks(per_shard).enumerate() {
        let name = format!("model-{:05}.safetensors", i + 1);
        let specs: Vec<TensorSpec> = chunk.iter().map(|(spec, _)| spec.clone()).collect();
        let mut shard = ShardWriter::create(dir.path(), &name, &specs).unwrap();
        for (spec, bytes) in chunk {
            shard.write(&spec.name, bytes).unwrap();
            weight_map.insert(spec.name.clone(), name.clone());
        }
        shard.finish().unwrap();
    }
    write_index(dir.path(), &weight_map, 0).unwrap();
    write_file(dir.path(), "config.json", config.to_string().as_bytes()).unwrap();
    dir
}

fn owned(name: &str, view: &TensorView) -> (TensorSpec, Vec<u8>) {
    (TensorSpec::new(name, view.dtype, view.shape), view.bytes.to_vec())
}

/// The embedded model in many small shards.
fn nano_in_shards(per_shard: usize) -> TempDir {
    let source = Checkpoint::from_embedded(nano::FILES).unwrap();
    let tensors: Vec<_> = source.names().map(|name| owned(name, &source.tensor(name).unwrap())).collect();
    let config = serde_json::from_slice(&source.file("config.json").unwrap()).unwrap();
    let dir = folder(&tensors, per_shard, &config);
    write_file(dir.path(), "tokenizer_config.json", &source.file("tokenizer_config.json").unwrap()).unwrap();
    dir
}

fn scalar(view: &TensorView) -> f32 {
    assert_eq!(view.len(), 1);
    view.to_f32()[0]
}

/// A packed module of a result, read by the names of section 0 of the sheet.
fn packed<'a>(
    folder: &'a Checkpoint,
    module: &str,
    target: (&str, &str),
    shape: [usize; 2],
) -> PackedMatrix<'a> {
    let get = |last: &str, dtype, dims: &[usize]| {
        let view = folder.tensor(&format!("{module}.{last}")).unwrap_or_else(|| panic!("{module}.{last}"));
        assert_eq!((view.dtype, view.shape), (dtype, dims), "{module}.{last}");
        view
    };
    let [out, width] = shape;
    let half = [out, width / 2];
    let new = |format, codes: TensorView<'a>, scales, scale| {
        PackedMatrix::new(format, shape, codes.bytes, scales, scale).unwrap()
    };
    match target {
        ("nvfp4", "modelopt") => {
            assert_eq!(scalar(&get("input_scale", Dtype::F32, &[])), 1.0);
            let scale = TensorScale::Multiply(scalar(&get("weight_scale_2", Dtype::F32, &[])));
            let scales = get("weight_scale", Dtype::F8_E4M3, &[out, width / 16]);
            new(PackedFormat::Nvfp4, get("weight", Dtype::U8, &half), scales, scale)
        }
        ("nvfp4", _) => {
            assert_eq!(scalar(&get("input_global_scale", Dtype::F32, &[1])), 1.0);
            let scale = TensorScale::Divide(scalar(&get("weight_global_scale", Dtype::F32, &[1])));
            let scales = get("weight_scale", Dtype::F8_E4M3, &[out, width / 16]);
            new(PackedFormat::Nvfp4, get("weight_packed", Dtype::U8, &half), scales, scale)
        }
        ("mxfp4", dialect) => {
            let codes = if dialect == "quark" { "weight" } else { "weight_packed" };
            let scales = get("weight_scale", Dtype::U8, &[out, width / 32]);
            new(PackedFormat::Mxfp4, get(codes, Dtype::U8, &half), scales, TensorScale::None)
        }
        ("int4-g32", _) => {
            let stated = get("weight_shape", Dtype::I32, &[2]);
            let numbers: Vec<i32> =
                stated.bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
            assert_eq!(numbers, [out as i32, width as i32]);
            let codes = get("weight_packed", Dtype::I32, &[out, width / 8]);
            let scales = get("weight_scale", Dtype::BF16, &[out, width / 32]);
            new(PackedFormat::Int4Group32, codes, scales, TensorScale::None)
        }
        ("fp8", "modelopt") => {
            assert_eq!(scalar(&get("input_scale", Dtype::F32, &[])), 1.0);
            let codes = get("weight", Dtype::F8_E4M3, &[out, width]);
            new(PackedFormat::Fp8Tensor, codes, get("weight_scale", Dtype::F32, &[]), TensorScale::None)
        }
        _ => {
            let scales = get("weight_scale_inv", Dtype::F32, &[out.div_ceil(128), width.div_ceil(128)]);
            new(
                PackedFormat::Fp8Block,
                get("weight", Dtype::F8_E4M3, &[out, width]),
                scales,
                TensorScale::None,
            )
        }
    }
}

/// Direct quantization of a module, under the range that gate and up share.
fn direct(source: &Checkpoint, module: &str, packing: Packing) -> PackedBuffer {
    let values = |module: &str| source.tensor(&format!("{module}.weight")).unwrap().to_f32();
    let amax = |values: &[f32]| values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let own = values(module);
    let mut range = amax(&own);
    for (one, other) in [("gate_proj", "up_proj"), ("up_proj", "gate_proj")] {
        if let Some(stem) = module.strip_suffix(one) {
            range = range.max(amax(&values(&format!("{stem}{other}"))));
        }
    }
    let shape = source.tensor(&format!("{module}.weight")).unwrap().shape;
    packing.pack_with_amax(&own, [shape[0], shape[1]], range).unwrap()
}

/// Checks a result against its source, module by module, and its report. Returns the number of packed modules.
fn check_result(from: &Path, to: &Path, options: &Options, target: (&str, &str), report: &Report) -> usize {
    let (source, result) = (Checkpoint::open(from).unwrap(), Checkpoint::open(to).unwrap());
    let mut expected_names = Vec::new();
    let mut lost: BTreeMap<ModuleClass, (u64, Distortion)> = BTreeMap::new();
    let mut num_packed = 0;
    for name in source.names() {
        let view = source.tensor(name).unwrap();
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let class = ModuleClass::of(module);
        if !options.modules().has(class) {
            let copied = result.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!((copied.dtype, copied.shape, copied.bytes), (view.dtype, view.shape, view.bytes));
            expected_names.push(name.to_owned());
            continue;
        }
        num_packed += 1;
        let shape = [view.shape[0], view.shape[1]];
        let got = packed(&result, module, target, shape);
        let expected = direct(&source, module, options.packing());
        let expected = expected.matrix().unwrap();
        assert!(got.codes == expected.codes && got.scales.bytes == expected.scales.bytes, "{module}");
        assert_eq!(got.tensor_scale, expected.tensor_scale, "{module}");
        let entry = lost.entry(class).or_default();
        entry.0 += 1;
        entry.1.merge(&Distortion::of(&view.to_f32(), &got.to_f32()));
        let prefix = format!("{module}.");
        expected_names.extend(result.names().filter(|n| n.starts_with(&prefix)).map(str::to_owned));
    }
    expected_names.sort();
    assert_eq!(result.names().collect::<Vec<_>>(), expected_names, "nothing but these");
    for (class, (count, expected)) in lost {
        let row = report.classes.iter().find(|row| row.class == class).unwrap();
        assert_eq!((row.count, row.stored.as_str()), (count, options.packing().format().name()));
        let error = row.distortion().relative();
        assert!((error / expected.relative() - 1.0).abs() < 1e-6, "{class:?}: {error}");
    }
    num_packed
}

/// Files of a folder, sub-folders not expected.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
        })
        .collect()
}

fn same_files(got: &Path, expected: &Path) {
    let (got, expected) = (files(got), files(expected));
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in &expected {
        assert!(got[name] == *bytes, "{name} differs");
    }
}

fn json_file(dir: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(dir.join(name)).unwrap()).unwrap()
}

#[test]
fn nano_in_every_format_dialect_and_set_of_modules() {
    let from = nano_folder();
    for (format, scales, dialect) in TARGETS {
        for (modules, expected) in
            [("experts", 96), ("experts+shared", 96 + 12), ("all-but-attention", 96 + 12 + 3)]
        {
            let to = tempfile::tempdir().unwrap();
            let options = options(format, scales, modules, dialect);
            let report = run(from.path(), to.path(), &options).unwrap();
            let num = check_result(from.path(), to.path(), &options, (format, dialect), &report);
            assert_eq!(num, expected, "{format} {modules}");
            println!("{}", report.table());

            let (source, result) = (files(from.path()), files(to.path()));
            for name in
                ["generation_config.json", "tokenizer_config.json", "tiktoken.model", "chat_template.jinja"]
            {
                assert_eq!(source[name], result[name], "{name}");
            }
            let mut names: Vec<_> = source.keys().cloned().collect();
            names.extend(["model.safetensors.index.json".into(), "perigee-quantize.json".into()]);
            if dialect == "modelopt" {
                names.push("hf_quant_config.json".into());
            }
            names.sort();
            assert_eq!(result.keys().cloned().collect::<Vec<_>>(), names);

            let config = json_file(to.path(), "config.json");
            let method = &config["quantization_config"]["quant_method"];
            assert_eq!(method, if dialect == "deepseek" { "fp8" } else { dialect });
            assert_eq!(config["text_config"]["hidden_size"], 192);
            let index = json_file(to.path(), "model.safetensors.index.json");
            let opened = Checkpoint::open(to.path()).unwrap();
            assert_eq!(index["metadata"]["total_size"], opened.bytes());
            assert_eq!(index["weight_map"].as_object().unwrap().len(), opened.num_tensors());
        }
    }
}

/// `tests/golden/quant/NAME`.
fn golden(name: &str) -> PathBuf {
    golden_path("quant").join(name)
}

#[test]
fn kimi_int4_to_mxfp4_is_quarks_own_conversion() {
    let to = tempfile::tempdir().unwrap();
    let options = options("mxfp4", None, "experts", "quark");
    run(&golden("tiny_ct_int4_kimi_names"), to.path(), &options).unwrap();
    let (ours, theirs) = (
        Checkpoint::open(to.path()).unwrap(),
        Checkpoint::open(&golden("tiny_quark_mxfp4_from_int4")).unwrap(),
    );
    assert_eq!(ours.names().collect::<Vec<_>>(), theirs.names().collect::<Vec<_>>());
    for name in theirs.names() {
        let (a, b) = (ours.tensor(name).unwrap(), theirs.tensor(name).unwrap());
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{name}");
        // Quark stores minus zero as code 0; down_proj is `w_b`, on whose row 35 of subnormals the packages disagree.
        let row_bytes = a.bytes.len() / a.shape.first().copied().unwrap_or(1);
        let plain = |byte: u8| {
            let zero = |code: u8| if code == 8 { 0 } else { code };
            if name.ends_with("proj.weight") && a.dtype == Dtype::U8 {
                zero(byte & 15) | zero(byte >> 4) << 4
            } else {
                byte
            }
        };
        for (i, (x, y)) in a.bytes.iter().zip(b.bytes).enumerate() {
            let skip = name.contains("down_proj") && i / row_bytes == 35;
            assert!(skip || plain(*x) == plain(*y), "{name}: byte {i}: {x:#x}, expected {y:#x}");
        }
    }
    assert_eq!(
        json_file(to.path(), "config.json"),
        json_file(&golden("tiny_quark_mxfp4_from_int4"), "config.json")
    );
}

#[test]
fn bf16_to_nvfp4_is_modelopts_own_export() {
    let export = Checkpoint::open(&golden("tiny_modelopt_nvfp4_kvfp8")).unwrap();
    let bytes =
        fs::read(golden("tiny_modelopt_nvfp4_kvfp8").join("source_experts_bf16.safetensors")).unwrap();
    let experts = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    for name in export.names() {
        if !name.contains(".experts.") && !name.ends_with("_proj.k_scale") && !name.ends_with("_proj.v_scale")
        {
            tensors.push(owned(name, &export.tensor(name).unwrap()));
        }
    }
    // [4, 128, 128] with gate above up, and [4, 128, 64].
    let (gate_up, down) =
        (experts.tensor("experts.gate_up_proj").unwrap(), experts.tensor("experts.down_proj").unwrap());
    for e in 0..4 {
        let stem = format!("model.layers.1.mlp.experts.{e}");
        let half = 64 * 128 * 2;
        let both = &gate_up.data()[e * 2 * half..][..2 * half];
        for (name, shape, bytes) in [
            ("gate_proj", [64, 128], &both[..half]),
            ("up_proj", [64, 128], &both[half..]),
            ("down_proj", [128, 64], &down.data()[e * half..][..half]),
        ] {
            let spec = TensorSpec::new(format!("{stem}.{name}.weight"), Dtype::BF16, shape);
            tensors.push((spec, bytes.to_vec()));
        }
    }
    let mut config = json_file(&golden("tiny_modelopt_nvfp4_kvfp8"), "config.json");
    let theirs = config["quantization_config"].take();
    let from = folder(&tensors, 7, &config);
    let to = tempfile::tempdir().unwrap();
    run(from.path(), to.path(), &options("nvfp4", Some("max"), "experts", "modelopt")).unwrap();
    let ours = Checkpoint::open(to.path()).unwrap();
    let mut num_experts = 0;
    for name in export.names().filter(|n| !n.ends_with("k_scale") && !n.ends_with("v_scale")) {
        let (a, b) = (ours.tensor(name).unwrap(), export.tensor(name).unwrap());
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{name}");
        // Theirs were measured on random tokens.
        if !name.ends_with("input_scale") {
            assert!(a.bytes == b.bytes, "{name}");
            num_experts += usize::from(name.ends_with("weight_scale_2"));
        }
    }
    assert_eq!(num_experts, 12);
    let mine = &json_file(to.path(), "config.json")["quantization_config"];
    for key in ["config_groups", "ignore", "quant_algo", "quant_method"] {
        assert_eq!(mine[key], theirs[key], "{key}");
    }
    assert!(mine.get("kv_cache_scheme").is_none());
    let (mine, theirs) = (
        json_file(to.path(), "hf_quant_config.json"),
        json_file(&golden("tiny_modelopt_nvfp4_kvfp8"), "hf_quant_config.json"),
    );
    assert_eq!(mine["quantization"]["exclude_modules"], theirs["quantization"]["exclude_modules"]);
    assert_eq!(mine["quantization"]["group_size"], theirs["quantization"]["group_size"]);
    assert_eq!(mine["quantization"]["kv_cache_quant_algo"], Value::Null);
}

#[test]
fn packed_sources_are_dequantized_and_what_is_not_chosen_becomes_bf16() {
    let from = nano_folder();
    for (format, dialect) in [("fp8", "deepseek"), ("int4-g32", "compressed-tensors")] {
        let (middle, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        run(from.path(), middle.path(), &options(format, None, "experts+shared", dialect)).unwrap();
        let options = options("nvfp4", Some("sweep"), "experts", "modelopt");
        let report = run(middle.path(), to.path(), &options).unwrap();
        let (source, result) =
            (Checkpoint::open(middle.path()).unwrap(), Checkpoint::open(to.path()).unwrap());
        for (module, shape) in [
            ("model.layers.2.mlp.experts.5.down_proj", [192, 96]),
            ("model.layers.2.mlp.shared_experts.up_proj", [96, 192]),
        ] {
            let values = packed(&source, module, (format, dialect), shape).to_f32();
            if module.contains("shared") {
                let view = result.tensor(&format!("{module}.weight")).unwrap();
                let rounded: Vec<f32> = values.iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect();
                assert_eq!((view.dtype, view.shape, view.to_f32()), (Dtype::BF16, &shape[..], rounded));
            } else {
                let expected = options.packing().pack(&values, shape).unwrap();
                let got = packed(&result, module, ("nvfp4", "modelopt"), shape);
                assert_eq!((got.codes, got.scales.bytes), (&expected.codes[..], &expected.scales[..]));
            }
        }
        assert!(!result.names().any(|n| n.ends_with("_inv") || n.ends_with("weight_shape")));
        let shared = report.classes.iter().find(|c| c.class == ModuleClass::SharedExperts).unwrap();
        assert_eq!((shared.stored.as_str(), shared.count), ("bf16", 12));
    }
}

#[test]
fn int4_without_weight_shape_is_read_as_with_it() {
    let module = "model.layers.1.mlp.experts.0.gate_proj";
    let stored = |last: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
        (TensorSpec::new(format!("{module}.{last}"), dtype, shape), bytes)
    };
    let shape = [4i32, 32].iter().flat_map(|d| d.to_le_bytes()).collect();
    let tensors = [
        stored("weight_packed", Dtype::I32, &[4, 4], (0..64u8).map(|i| i.wrapping_mul(37)).collect()),
        stored("weight_scale", Dtype::BF16, &[4, 1], vec![0x3c; 8]),
        stored("weight_shape", Dtype::I32, &[2], shape),
    ];
    let options = options("nvfp4", None, "experts", "modelopt");
    let shards = [2, 3].map(|num_tensors| {
        let (from, to) = (folder(&tensors[..num_tensors], 9, &json!({})), tempfile::tempdir().unwrap());
        run(from.path(), to.path(), &options).unwrap();
        fs::read(to.path().join("model-00001.safetensors")).unwrap()
    });
    assert!(shards[0] == shards[1]);
}

#[test]
fn bad_sources_and_targets_are_refused_by_name() {
    let module = "model.layers.1.mlp.experts.0.gate_proj";
    let tensor = |last: &str, dtype: Dtype, shape: &[usize], fill: u8| {
        let spec = TensorSpec::new(format!("{module}.{last}"), dtype, shape);
        let bytes = vec![fill; spec.bytes().unwrap()];
        (spec, bytes)
    };
    let nvfp4 = options("nvfp4", None, "experts", "modelopt");
    let refuse = |tensors: &[(TensorSpec, Vec<u8>)], expected: &str| {
        let (from, to) = (folder(tensors, 9, &json!({})), tempfile::tempdir().unwrap());
        let text = run(from.path(), to.path(), &nvfp4).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    };
    let weight = |dtype, shape: &[usize], fill| tensor("weight", dtype, shape, fill);
    refuse(&[weight(Dtype::BF16, &[4, 24], 0)], "nvfp4 needs a multiple of 16 columns, got 24; choose other");
    refuse(&[weight(Dtype::F32, &[4, 32], 0xff)], "row 0 has a value that is not finite");
    refuse(
        &[weight(Dtype::U8, &[4, 32], 0), tensor("weight_scale", Dtype::U8, &[4, 2], 0)],
        "gate_proj: is mxfp4 already; the source must be BF16",
    );
    refuse(&[weight(Dtype::U8, &[4, 32], 0)], "weight is U8, so weight_scale is needed");
    refuse(&[weight(Dtype::F8_E4M3, &[4, 32], 0)], "so weight_scale_inv or weight_scale is needed");
    refuse(
        &[weight(Dtype::F8_E4M3, &[4, 32], 0), tensor("weight_scale_inv", Dtype::F32, &[2, 2], 0)],
        "weight_scale_inv has shape [2, 2], expected [1, 1]",
    );
    refuse(
        &[weight(Dtype::BF16, &[4, 32], 0), tensor("weight_scale", Dtype::F32, &[1, 1], 0)],
        "weight is BF16, which does not go with the weight_scale stored beside it",
    );
    refuse(&[tensor("weight_scale", Dtype::BF16, &[4, 1], 0)], "neither weight nor weight_packed is stored");
    refuse(
        &[weight(Dtype::F8_E4M3, &[4, 32], 0x7f), tensor("weight_scale_inv", Dtype::F32, &[1, 1], 0)],
        "not finite",
    );
    refuse(
        &[tensor("weight_packed", Dtype::I32, &[4, 4], 0)],
        "weight_packed is I32, so weight_scale is needed",
    );
    let int4 = [
        tensor("weight_packed", Dtype::I32, &[4, 4], 0),
        tensor("weight_scale", Dtype::BF16, &[4, 1], 0),
        tensor("weight_shape", Dtype::I32, &[2], 0xff),
    ];
    refuse(&int4, "weight_shape says [-1, -1], the codes are of a [4, 32] matrix");
    for (last, expected) in [("weight_zero_point", "asymmetric"), ("weight_g_idx", "actorder")] {
        let [codes, scales, _] = int4.clone();
        refuse(&[codes, scales, tensor(last, Dtype::I32, &[4], 0)], expected);
    }
    refuse(
        &[(TensorSpec::new("lm_head.weight", Dtype::BF16, [1, 16]), vec![0; 32])],
        "no module that --modules",
    );

    let from = nano_folder();
    let refuse = |to: &Path, options: &Options, expected: &str| {
        let text = run(from.path(), to, options).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    };
    refuse(from.path(), &nvfp4, "overlaps the source");
    refuse(&from.path().join("inside"), &nvfp4, "overlaps the source");
    let to = tempfile::tempdir().unwrap();
    write_file(to.path(), "diary.txt", b"dear").unwrap();
    refuse(to.path(), &nvfp4, "is not empty (diary.txt is there)");
    assert_eq!(files(to.path()).remove("diary.txt").unwrap(), b"dear");
    let to = tempfile::tempdir().unwrap();
    run(from.path(), to.path(), &nvfp4).unwrap();
    let other = options("nvfp4", Some("sweep"), "experts", "modelopt");
    refuse(to.path(), &other, "it was begun as: nvfp4 scales max");
    let before = files(to.path());
    let report = run(from.path(), to.path(), &nvfp4).unwrap();
    assert_eq!((report.resumed_shards, files(to.path()) == before), (1, true), "a finished folder stays");
    let weights = from.path().join("model.safetensors");
    fs::File::options().write(true).open(&weights).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    refuse(to.path(), &nvfp4, "the source, its dates or the program changed");
    fs::remove_file(from.path().join("config.json")).unwrap();
    refuse(&to.path().join("new"), &nvfp4, "config.json of the source cannot be used");
}

#[test]
fn an_interrupted_run_is_taken_up_wherever_it_stopped() {
    let from = nano_in_shards(23);
    let options = options("nvfp4", Some("sweep"), "all-but-attention", "modelopt");
    let whole = tempfile::tempdir().unwrap();
    let report = run(from.path(), whole.path(), &options).unwrap();
    assert!(report.shards > 5, "{}", report.shards);
    for stop in 0..14 {
        let to = tempfile::tempdir().unwrap();
        let source = Checkpoint::open(from.path()).unwrap();
        let mut steps = 0;
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            let mut step = |_: &perigee_compress::Progress| {
                steps += 1;
                assert!(steps <= stop * 13, "stopped by the test");
            };
            quantize(&source, to.path(), &options, None, 2, &mut step).map(|_| ())
        }));
        if stopped.is_err() {
            // What a kill would leave besides, and a shard that was cut off after it was recorded.
            fs::write(to.path().join(".model-00001.safetensors.partial"), b"rest").unwrap();
            if stop % 2 == 0 && to.path().join("model-00001.safetensors").exists() {
                fs::write(to.path().join("model-00001.safetensors"), b"short").unwrap();
            }
        }
        let again = run(from.path(), to.path(), &options).unwrap();
        assert_eq!(again.classes, report.classes);
        let _ = fs::remove_file(to.path().join(".model-00001.safetensors.partial"));
        same_files(to.path(), whole.path());
    }
}

#[test]
fn a_killed_process_is_taken_up_byte_for_byte() {
    let from = nano_in_shards(12);
    let whole = tempfile::tempdir().unwrap();
    let start = |to: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
        command.arg("quantize").arg(from.path()).arg(to);
        command.args(["--format", "nvfp4", "--scales", "sweep", "--threads", "1", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let output = start(whole.path()).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["resumed_shards"], 0);
    let num_shards = report["shards"].as_u64().unwrap() as usize;
    assert!(num_shards >= 12, "{num_shards}");
    let mut killed = 0;
    for after in 0..20 {
        let to = tempfile::tempdir().unwrap();
        let mut child = start(to.path());
        // As soon as so many shards have their names, wherever that finds it. A run that is faster than this loop is just not killed.
        let finished = |dir: &Path| {
            let names = fs::read_dir(dir).unwrap().filter_map(|e| e.ok()?.file_name().into_string().ok());
            names.filter(|name| name.starts_with("model-") && name.ends_with(".safetensors")).count()
        };
        while finished(to.path()) < after * num_shards / 20 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        killed += usize::from(!status.success());
        let output = start(to.path()).wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        same_files(to.path(), whole.path());
        let again: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(again["classes"], report["classes"]);
    }
    println!("{killed} of 20 runs were killed before their end");
}

#[test]
fn wrong_options_are_wrong_use() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_perigee")).arg("quantize").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (args, expected) in [
        (&["a", "b", "--format", "int8"][..], "--format \"int8\" is not known; choose one of nvfp4"),
        (&["a", "b", "--format", "fp8", "--dialect", "quark"], "choose deepseek"),
        (&["a", "b"], "--format"),
    ] {
        let (code, text) = run(args);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    let (code, text) = run(&["/nowhere/at/all", "b", "--format", "fp8"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("it is not a folder"), "{text}");
}
