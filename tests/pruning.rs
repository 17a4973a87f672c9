//! `perigee saliency`, `prune`, `audit` and `compare` as commands, on the small networks of `tests/golden/logits`.

use std::path::Path;
use std::process::{Command, Output};

use crate::golden::golden_folder;

fn perigee(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_perigee")).args(args).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ok(args: &[&str]) -> (String, String) {
    let output = perigee(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{args:?}: {out}{err}");
    (out, err)
}

fn fails(args: &[&str], code: i32, expected: &str) {
    let output = perigee(args);
    let all = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {all}");
    assert!(all.contains(expected), "{args:?}: {all}");
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_folder_is_pruned_by_its_saliency_audited_and_compared() {
    for (name, keep) in [("moonlight", "3"), ("grouped", "6"), ("kimi", "5")] {
        let dir = tempfile::tempdir().unwrap();
        let source = golden_folder(name);
        let (source, target) = (path(&source), dir.path().join("pruned"));
        let (words, statistics) = (dir.path().join("words.txt"), dir.path().join("saliency.json"));
        std::fs::write(&words, "one two three\n\nfour, five; six!\n\n7 8 9 10\n").unwrap();
        let (_, coverage) = ok(&["saliency", source, "--text", path(&words), "--out", path(&statistics)]);
        assert!(coverage.contains("experts used, tokens per expert"), "{coverage}");
        // The same text twice would count twice.
        fails(
            &["saliency", source, "--text", path(&words), "--add", path(&statistics)],
            1,
            "is in both and would count twice",
        );
        let prune = ["prune", source, path(&target), "--keep", keep, "--saliency", path(&statistics)];
        let (report, _) = ok(&prune);
        assert!(report.contains(&format!("{keep} of ")) && report.contains("n_routed_experts"), "{report}");
        fails(&prune, 1, "not empty");
        let audit = ["audit", path(&target), "--source", source];
        let (report, _) = ok(&audit);
        assert!(report.contains("audit passed") && report.contains("max abs diff 0.0 / 0.0"), "{report}");
        let (json, _) = ok(&["audit", path(&target), "--source", source, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["verdict"], &json["faults"]["count"]), (&"passed".into(), &0.into()));
        let (json, _) = ok(&["compare", source, path(&target), "--text", path(&words), "--json"]);
        let compared: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(compared["mean_kl"].as_f64().unwrap() > 0.0 && compared["tokens"].as_u64().unwrap() > 10);

        // The last byte of a shard belongs to some tensor: changed, the audit fails.
        let shard = target.join("model.safetensors");
        let mut bytes = std::fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&shard, bytes).unwrap();
        fails(&audit, 1, "audit FAILED");
    }
}

#[test]
fn plans_go_through_files_and_wrong_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = golden_folder("moonlight");
    let (source, target, plan) = (path(&source), dir.path().join("pruned"), dir.path().join("plan.json"));
    let (target, plan) = (path(&target), path(&plan));
    ok(&[
        "prune",
        source,
        target,
        "--keep",
        "4",
        "--criterion",
        "random",
        "--seed",
        "7",
        "--plan-only",
        plan,
    ]);
    assert!(!Path::new(target).exists());
    let written = std::fs::read_to_string(plan).unwrap();
    std::fs::write(plan, written.replacen("\"keep\":[", "\"keep\":[9999,", 1)).unwrap();
    fails(&["prune", source, target, "--plan", plan], 1, "keep");
    std::fs::write(plan, &written).unwrap();
    fails(
        &["prune", path(&golden_folder("kimi")), target, "--plan", plan],
        1,
        "the plan was made for moonlight",
    );
    ok(&["prune", source, target, "--plan", plan]);
    assert_eq!(std::fs::read_to_string(Path::new(target).join("expert_plan.json")).unwrap(), written);
    ok(&["audit", target, "--source", source]);

    fails(&["prune", source, target], 2, "<--plan <FILE>|--keep <N>>");
    fails(&["prune", source, target, "--keep", "4"], 1, "--saliency");
    fails(&["audit", target, "--source", path(dir.path())], 1, "neither model.safetensors.index.json");
    fails(&["saliency", source, "--text", "/nowhere.txt"], 1, "/nowhere.txt");
    fails(&["compare", source, path(&golden_folder("kimi")), "--text", plan, "--limit", "x"], 2, "limit");
}

#[test]
fn quantized_folders_are_audited_and_pruned_like_any_other() {
    let source = golden_folder("kimi");
    let source = path(&source);
    // Relative error of the format on normal weights, near the table of the formats' sheet; these weights are nearly normal.
    for (format, low, high) in
        [("nvfp4", 0.08, 0.11), ("mxfp4", 0.10, 0.14), ("int4-g32", 0.08, 0.12), ("fp8", 0.02, 0.03)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (quantized, pruned) = (dir.path().join("quantized"), dir.path().join("pruned"));
        let (quantized, pruned) = (path(&quantized), path(&pruned));
        ok(&["quantize", source, quantized, "--format", format]);
        let (json, _) = ok(&["audit", quantized, "--source", source, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&json).unwrap();
        let found = &report["quantized"];
        assert_eq!(found["accounted"], report["source"]["tensors"], "{format}");
        let classes = found["classes"].as_array().unwrap();
        assert!(!classes.is_empty() && classes.iter().all(|c| c["source_format"] == "BF16"), "{classes:?}");
        let error = classes[0]["relative_error"].as_f64().unwrap();
        assert!((low..high).contains(&error), "{format}: {error}");

        // A pruned copy of the quantized folder: packed experts through the functional check, and one flipped code is found.
        ok(&["prune", quantized, pruned, "--keep", "7", "--criterion", "random"]);
        let audit = ["audit", pruned, "--source", quantized];
        let (text, _) = ok(&audit);
        assert!(
            text.contains("max abs diff 0.0 / 0.0") && text.contains("layer 1: max abs diff 0.0"),
            "{text}"
        );
        let words = dir.path().join("words.txt");
        std::fs::write(&words, "one two three\n").unwrap();
        let backend = ["--backend", "reference"];
        let compare =
            [&["compare", source, quantized, "--text", path(&words), "--json"][..], &backend].concat();
        let compared: serde_json::Value = serde_json::from_str(&ok(&compare).0).unwrap();
        let kl = compared["mean_kl"].as_f64().unwrap();
        assert!(kl > 0.0 && kl < 5.0, "{format}: {kl}");
        let shard = Path::new(pruned).join("model.safetensors");
        let mut bytes = std::fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 0x11;
        std::fs::write(&shard, bytes).unwrap();
        fails(&audit, 1, "audit FAILED");
    }
}

#[test]
fn folders_that_were_pruned_and_quantized_are_audited_against_the_first_source() {
    let source = golden_folder("kimi");
    let source = path(&source);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let prune = |from: &str, to: &str| {
        ok(&["prune", from, to, "--keep", "5", "--criterion", "random", "--seed", "3"]);
    };
    for (format, low, high) in [("nvfp4", 0.08, 0.11), ("fp8", 0.02, 0.03)] {
        let [pruned, both] = ["pruned", "pruned-and-quantized"].map(|name| at(&format!("{format}-{name}")));
        prune(source, &pruned);
        ok(&["quantize", &pruned, &both, "--format", format]);
        let [quantized, other] =
            ["quantized", "quantized-and-pruned"].map(|name| at(&format!("{format}-{name}")));
        ok(&["quantize", source, &quantized, "--format", format]);
        prune(&quantized, &other);
        for target in [&both, &other] {
            let (json, _) = ok(&["audit", target, "--source", source, "--json"]);
            let report: serde_json::Value = serde_json::from_str(&json).unwrap();
            let found = &report["quantized"];
            assert_eq!(found["accounted"], report["source"]["tensors"], "{target}");
            assert!(found["left_out"].as_u64().unwrap() > 0, "{target}");
            let layers = report["pruned"]["layers"].as_array().unwrap();
            let exact = |l: &serde_json::Value| {
                l["rows_checked"] == 5 && l["max_router_diff"] == 0.0 && l["max_bias_diff"] == 0.0
            };
            assert!(!layers.is_empty() && layers.iter().all(exact), "{layers:?}");
            let functional = &report["pruned"]["functional"];
            assert_eq!(functional["same_selection"], functional["tokens"], "{functional}");
            for error in [&found["classes"][0]["relative_error"], &functional["relative_error"]] {
                assert!((low..2.0 * high).contains(&error.as_f64().unwrap()), "{target}: {error}");
            }
            let error = found["classes"][0]["relative_error"].as_f64().unwrap();
            assert!(error < high, "{target}: {error}");
        }
        // The step that a pruned source has behind it does not matter to what is made of it.
        let (text, _) = ok(&["audit", &both, "--source", &pruned]);
        assert!(text.contains("audit passed") && !text.contains("bias entries"), "{text}");
        // Two experts in each other's place: finite, plausible weights, but not those of the plan.
        let swapped = at(&format!("{format}-swapped"));
        ok(&["prune", &quantized, &swapped, "--keep", "5", "--criterion", "random", "--seed", "3"]);
        swap_experts(Path::new(&swapped));
        fails(&["audit", &swapped, "--source", source], 1, "those of source expert");
        // A plan of other experts than those that the folder holds.
        let (plan, text) = (Path::new(&both).join("expert_plan.json"), "{}");
        ok(&[
            "prune",
            source,
            "unused",
            "--keep",
            "5",
            "--criterion",
            "random",
            "--seed",
            "4",
            "--plan-only",
            path(&plan),
        ]);
        fails(&["audit", &both, "--source", source], 1, "must be source row");
        std::fs::write(&plan, text).unwrap();
        fails(&["audit", &both, "--source", source], 1, "expert_plan.json");
    }
}

/// Gives experts 0 and 1 of every layer each other's names: the names have one length, so the header keeps its own.
fn swap_experts(folder: &Path) {
    let shard = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + len]).unwrap();
    let swapped = header
        .replace(".experts.0.", ".experts.X.")
        .replace(".experts.1.", ".experts.0.")
        .replace(".experts.X.", ".experts.1.");
    bytes[8..8 + len].copy_from_slice(swapped.as_bytes());
    std::fs::write(&shard, bytes).unwrap();
}
