//! `perigee inspect` and `perigee plan` as programs: a folder with the headers of a whole release, its bytes left out.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::golden::golden_path;

/// Headers of Kimi-K2.5's INT4 release: 64 shards, 208,550 tensors, 595 GB of holes.
struct Release {
    /// Header entries and data bytes per shard.
    shards: Vec<(String, u64)>,
    weight_map: serde_json::Map<String, Value>,
}

impl Release {
    fn add(&mut self, shard: usize, name: &str, dtype: &str, shape: &[usize]) {
        let size = match dtype {
            "BF16" => 2,
            _ => 4,
        };
        let bytes = shape.iter().product::<usize>() as u64 * size;
        let (header, end) = &mut self.shards[shard - 1];
        let comma = if header.is_empty() { "" } else { "," };
        let offsets = format!("[{end},{}]", *end + bytes);
        header.push_str(&format!(
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets}}}"#
        ));
        *end += bytes;
        self.weight_map.insert(name.into(), format!("model-{shard:05}-of-000064.safetensors").into());
    }

    fn write(dir: &Path) {
        let mut release = Self { shards: vec![(String::new(), 0); 64], weight_map: serde_json::Map::new() };
        for layer in 0..61 {
            release.layer(layer);
        }
        release.add(62, "language_model.model.embed_tokens.weight", "BF16", &[163_840, 7168]);
        release.add(62, "language_model.model.norm.weight", "BF16", &[7168]);
        release.add(62, "language_model.lm_head.weight", "BF16", &[163_840, 7168]);
        release.vision();
        for (i, (header, end)) in release.shards.iter().enumerate() {
            let path = dir.join(format!("model-{:05}-of-000064.safetensors", i + 1));
            let mut bytes = (header.len() as u64 + 2).to_le_bytes().to_vec();
            bytes.extend_from_slice(format!("{{{header}}}").as_bytes());
            let total = bytes.len() as u64 + end;
            fs::write(&path, bytes).unwrap();
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(total).unwrap();
        }
        let index = json!({"metadata": {}, "weight_map": release.weight_map});
        fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        fs::write(dir.join("config.json"), config(384).to_string()).unwrap();
    }

    fn layer(&mut self, layer: usize) {
        let shard = layer + 1;
        let p = format!("language_model.model.layers.{layer}");
        let mut add =
            |rest: &str, dtype: &str, shape: &[usize]| self.add(shard, &format!("{p}.{rest}"), dtype, shape);
        add("input_layernorm.weight", "BF16", &[7168]);
        add("post_attention_layernorm.weight", "BF16", &[7168]);
        add("self_attn.q_a_proj.weight", "BF16", &[1536, 7168]);
        add("self_attn.q_a_layernorm.weight", "BF16", &[1536]);
        add("self_attn.q_b_proj.weight", "BF16", &[12288, 1536]);
        add("self_attn.kv_a_proj_with_mqa.weight", "BF16", &[576, 7168]);
        add("self_attn.kv_a_layernorm.weight", "BF16", &[512]);
        add("self_attn.kv_b_proj.weight", "BF16", &[16384, 512]);
        add("self_attn.o_proj.weight", "BF16", &[7168, 8192]);
        let mut dense = |stem: &str, width: usize| {
            add(&format!("{stem}.gate_proj.weight"), "BF16", &[width, 7168]);
            add(&format!("{stem}.up_proj.weight"), "BF16", &[width, 7168]);
            add(&format!("{stem}.down_proj.weight"), "BF16", &[7168, width]);
        };
        if layer == 0 {
            dense("mlp", 18432);
            return;
        }
        dense("mlp.shared_experts", 2048);
        add("mlp.gate.weight", "BF16", &[384, 7168]);
        add("mlp.gate.e_score_correction_bias", "F32", &[384]);
        for expert in 0..384 {
            for (proj, out, columns) in [("gate", 2048, 7168), ("up", 2048, 7168), ("down", 7168, 2048)] {
                let stem = format!("mlp.experts.{expert}.{proj}_proj");
                add(&format!("{stem}.weight_packed"), "I32", &[out, columns / 8]);
                add(&format!("{stem}.weight_scale"), "BF16", &[out, columns / 32]);
                add(&format!("{stem}.weight_shape"), "I32", &[2]);
            }
        }
    }

    fn vision(&mut self) {
        let mut pair = |shard: usize, name: &str, weight: &[usize]| {
            self.add(shard, &format!("{name}.weight"), "BF16", weight);
            self.add(shard, &format!("{name}.bias"), "BF16", &weight[..1]);
        };
        pair(63, "mm_projector.pre_norm", &[1152]);
        pair(63, "mm_projector.proj.0", &[4608, 4608]);
        pair(63, "mm_projector.proj.2", &[7168, 4608]);
        pair(64, "vision_tower.patch_embed.proj", &[1152, 3, 14, 14]);
        for block in 0..27 {
            for (part, shape) in [
                ("norm0", &[1152][..]),
                ("wqkv", &[3456, 1152]),
                ("wo", &[1152, 1152]),
                ("norm1", &[1152]),
                ("mlp.fc0", &[4304, 1152]),
                ("mlp.fc1", &[1152, 4304]),
            ] {
                pair(64, &format!("vision_tower.encoder.blocks.{block}.{part}"), shape);
            }
        }
        pair(64, "vision_tower.encoder.final_layernorm", &[1152]);
        self.add(64, "vision_tower.patch_embed.pos_emb.weight", "BF16", &[64, 64, 1152]);
    }
}

/// A K2.5-like configuration.
fn config(experts: usize) -> Value {
    json!({
        "model_type": "kimi_k25", "text_config": {
            "model_type": "kimi_k2", "vocab_size": 163840, "hidden_size": 7168, "num_hidden_layers": 61,
            "first_k_dense_replace": 1, "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "num_attention_heads": 64,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "routed_scaling_factor": 2.827, "max_position_embeddings": 262144,
            "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "symmetric": true, "actorder": null}}}}
        }
    })
}

fn perigee(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PERIGEE_")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(std::env::temp_dir()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_whole_release_is_inspected_and_planned_from_its_headers() {
    let dir = tempfile::tempdir().unwrap();
    Release::write(dir.path());
    let folder = dir.path().to_str().unwrap();
    let begun = std::time::Instant::now();
    let output = perigee(&["inspect", "--json", folder]);
    println!("inspect of 208,550 tensors: {:.3} s", begun.elapsed().as_secs_f64());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["shards"], &report["tensors"]), (&json!(64), &json!(208_550)));
    assert_eq!((&report["servable"], &report["pruned"]), (&json!(true), &Value::Null));
    assert_eq!(report["parameters"], json!(1_026_408_232_448u64));
    let active = report["active_parameters"].as_u64().unwrap();
    assert!(active.abs_diff(32_860_000_000) < 10_000_000, "{active}");
    let classes = report["classes"].as_array().unwrap();
    let line = |class: &str| classes.iter().find(|line| line["class"] == class).unwrap();
    let routed = line("routed experts");
    assert_eq!((&routed["format"], &routed["modules"]), (&json!("int4-g32"), &json!(69_120)));
    assert_eq!(routed["parameters"], json!(1_014_686_023_680u64));
    let bytes = routed["bytes"].as_f64().unwrap();
    assert!((bytes / 1e9 - 570.8).abs() < 0.1, "{bytes}");
    assert_eq!(line("vision")["parameters"], json!(416_866_032u64 + 54_277_888));
    let of_classes: u64 = classes.iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(of_classes, report["bytes"].as_u64().unwrap());

    let text = stdout(&perigee(&["inspect", folder]));
    for words in [
        "kimi_k25 (kimi_k2)",
        "1026.4 B total, 32.9 B active",
        "int4-g32 by compressed-tensors (69120)",
        "servable: yes",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    // As stored the release fits on eight H200 and, pruned to half and in NVFP4, on four devices of 96 GB.
    let output = perigee(&["plan", folder, "--devices", "8xh200", "--json"]);
    assert!(output.status.success());
    let output = perigee(&[
        "plan",
        folder,
        "--devices",
        "4x96GB",
        "--experts",
        "192",
        "--format",
        "nvfp4",
        "--kv",
        "fp8",
        "--json",
    ]);
    assert!(output.status.success());
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let best = &plan["layouts"][0];
    assert_eq!(best["split"], "kv-by-sequence");
    // The workspace is the engine's, which changes now and then.
    assert!(best["kv_tokens"].as_u64().unwrap().abs_diff(1_322_000) < 13_000, "{best}");
    assert_eq!(format!("{:.0}", best["full_contexts"].as_f64().unwrap()), "5");

    // A shard that is not there yet, and a config.json that names fewer experts than are stored.
    fs::write(dir.path().join("config.json"), config(192).to_string()).unwrap();
    let output = perigee(&["inspect", folder]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(
        text.contains("192 of the release's 384 experts") && text.contains("103680 unexpected"),
        "{text}"
    );
}

#[test]
fn a_configuration_alone_can_be_planned() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    fs::write(&file, config(192).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let of_profile = ["--profile", "kimi-k26-reap192-4x-rtx-pro-6000"];
    let plan = |more: &[&str]| {
        let args = ["plan", file, "--devices", "4xrtx-pro-6000", "--format", "nvfp4"];
        let output = perigee(&[&args[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        stdout(&output)
    };
    for (text, contexts) in [(plan(&[]), "7.5"), (plan(&of_profile), "7.28")] {
        for words in [
            "KV sharded by sequence (parallel.context = device.ranks): fits",
            &format!("full contexts at once            {contexts}"),
            "assumed:",
            "99 %",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
    }
    let output = perigee(&["plan", file, "--devices", "4xrtx-pro-6000"]);
    assert_eq!(output.status.code(), Some(1), "BF16 does not fit");
    assert!(stdout(&output).contains("nothing fits; what would help:"), "{}", stdout(&output));
    for (wrong, words) in [
        (&["--devices", "4xtoaster"][..], "rtx-pro-6000"),
        (&["--devices", "h200", "--format", "int3"], "int4-g32"),
        (&["--devices", "h200", "--kv", "int4"], "expected fp8 or bf16"),
        (&["--devices", "h200", "--utilisation", "2"], "at most 1"),
        (&["--devices", "h200", "--max-model-len", "0"], "--max-model-len 0"),
        (&["--devices", "2xh200", "--profile", "kimi-k26-reap192-4x-rtx-pro-6000"], "device.ranks = 4"),
        (&["--devices", "h200", "--profile", "nobody"], "nobody"),
    ] {
        let output = perigee(&[&["plan", file], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(words), "{wrong:?}: {said}");
    }
    let output = perigee(&["plan", file, "--devices", "h200", "--experts", "500"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--experts 500"));
}

#[test]
fn a_folder_with_nothing_in_it_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let output = perigee(&["inspect", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("holds neither"));
}

/// `perigee inspect` on a draft of the oracle, or one of its variants, for a target; the JSON, or the errors.
fn inspect_draft(draft: &str, variant: Option<&str>, target: &str) -> (Option<i32>, Value, String) {
    let (folder, work) = (golden_path("eagle3").join(draft), tempfile::tempdir().unwrap());
    let config = match variant {
        Some(variant) => folder.join("variants").join(variant).join("config.json"),
        None => folder.join("config.json"),
    };
    fs::copy(config, work.path().join("config.json")).unwrap();
    fs::copy(folder.join("model.safetensors"), work.path().join("model.safetensors")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_perigee"))
        .args(["inspect", "--json", "--target"])
        .args([&golden_path(target), work.path()])
        .output()
        .unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), report, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_draft_says_what_it_fits_and_what_it_reads() {
    let (code, report, errors) = inspect_draft("draft-mla", None, "eagle3/target");
    assert_eq!(code, Some(0), "{report} {errors}");
    assert_eq!(report["attention"]["mla"]["kv_lora_rank"], 64);
    assert_eq!(report["reads_inputs_of_layers"], json!([2, 4, 5]));
    assert_eq!((&report["tensors"]["own_embedding"], &report["mismatch"]), (&json!(true), &Value::Null));
    let (code, report, errors) = inspect_draft("draft-llama", None, "eagle3/target");
    assert_eq!(code, Some(0), "{report} {errors}");
    assert_eq!(report["attention"]["gqa"], json!({"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}));
    assert_eq!(
        (&report["draft_vocab_size"], &report["tensors"]["own_embedding"]),
        (&json!(30), &json!(false))
    );

    // Both numberings, and none.
    for (variant, reads) in [("native_ids", [2, 4, 5]), ("no_ids", [2, 4, 5]), ("last_boundary", [2, 5, 8])] {
        let (code, report, _) = inspect_draft("draft-mla", Some(variant), "eagle3/target");
        assert_eq!((code, &report["reads_inputs_of_layers"]), (Some(0), &json!(reads)), "{variant}");
    }
    let (_, report, _) = inspect_draft("draft-mla", Some("rope_theta_10000"), "eagle3/target");
    assert_eq!(report["rope_theta"], 10000.0);
    for (draft, variant, flags, missing) in [
        ("draft-mla", "eagle31", ["fc_norm", "norm_output"], 3),
        ("draft-llama", "eagle31", ["fc_norm", "norm_output"], 3),
        ("draft-llama", "norm_before_fc", ["norm_before_fc", "norm_before_fc"], 1),
        ("draft-mla", "norm_before_residual", ["norm_before_residual", "norm_before_residual"], 0),
    ] {
        let (code, report, _) = inspect_draft(draft, Some(variant), "eagle3/target");
        assert!(flags.iter().all(|flag| report[flag] == true), "{variant}: {report}");
        // Their norms are not in the plain draft's file.
        assert_eq!(report["tensors"]["missing"].as_array().unwrap().len(), missing, "{variant}: {report}");
        assert_eq!(code, Some(i32::from(missing > 0)));
    }
}

#[test]
fn a_draft_for_another_target_is_refused_with_the_field_that_differs() {
    let (code, report, _) = inspect_draft("draft-mla", None, "logits/kimi");
    assert_eq!(code, Some(1));
    let mismatch = report["mismatch"].as_str().unwrap();
    assert!(mismatch.contains("hidden_size is 64") || mismatch.contains("layer_ids"), "{mismatch}");
    let target = golden_path("eagle3/target");
    let output = Command::new(env!("CARGO_BIN_EXE_perigee"))
        .args(["inspect", "--target"])
        .args([&target, &target])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && errors.contains("is no draft"), "{errors}");
}
