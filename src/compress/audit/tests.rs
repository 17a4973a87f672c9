//! Good folders pass; one wrong byte anywhere does not.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::prune::prune;
use crate::test_folder::{self, Format, Tensor, Tiny};
use perigee_model::checkpoint::TensorSpec;
use perigee_numbers::tensor::Dtype;

/// A source and its pruned copy.
struct Pair {
    _dir: tempfile::TempDir,
    source: PathBuf,
    target: PathBuf,
}

fn pruned(tiny: &Tiny, keep: usize) -> Pair {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("a"), dir.path().join("b"));
    test_folder::write(&source, tiny);
    let checkpoint = Checkpoint::open(&source).unwrap();
    let layers = expert_layers(&checkpoint).unwrap();
    let plan = ExpertPlan::random(SourceId::of(&checkpoint), &layers, keep, 9).unwrap();
    prune(&checkpoint, &plan, &target, &mut |_| ()).unwrap();
    Pair { _dir: dir, source, target }
}

impl Pair {
    fn audit(&self) -> AuditReport {
        audit(&self.source, &self.target, &AuditOptions::default(), &mut |_| ()).unwrap()
    }

    /// Rewrites the target's weights.
    fn edit(&self, edit: impl Fn(&mut Vec<Tensor>)) {
        let mut shards = test_folder::read(&self.target);
        let shard = shards.get_mut("model-00002-of-00004.safetensors").unwrap();
        edit(shard);
        shards.iter().for_each(|(name, tensors)| test_folder::write_shard(&self.target, name, tensors));
        test_folder::index(&self.target, &shards);
    }
}

fn tensor<'a>(tensors: &'a mut [Tensor], ending: &str) -> &'a mut Tensor {
    tensors.iter_mut().find(|(spec, _)| spec.name.ends_with(ending)).expect("the tensor")
}

#[test]
fn pruned_folders_pass_in_every_format() {
    for (format, packed_router, wrapper, groups) in [
        (Format::Plain, false, false, 1),
        (Format::Nvfp4, false, true, 1),
        (Format::Nvfp4, true, false, 1),
        (Format::Int4, false, true, 1),
        (Format::Plain, false, false, 2),
    ] {
        let pair = pruned(&Tiny { format, packed_router, wrapper, groups, ..Tiny::default() }, 4);
        let report = pair.audit();
        assert_eq!(report.outcome, AuditOutcome::Passed, "{format:?}: {:?}", report.faults);
        let found = report.pruned.as_ref().unwrap();
        assert_eq!((found.max_router_diff(), found.max_bias_diff()), (0.0, 0.0));
        assert!(found.layers.iter().all(|l| l.rows_checked == 4 && l.bias_checked == 4));
        assert!(
            found.layers.iter().all(|l| l.expert_tensors > 0 && l.expert_tensors == l.expert_tensors_equal)
        );
        assert_eq!(found.untouched, found.untouched_equal);
        assert_eq!(report.files_equal, 3);
        let functional = found.functional.as_ref().unwrap();
        assert_eq!((functional.max_abs_diff, functional.same_selection), (0.0, 8));
        assert!(functional.rerouted > 0 && functional.experts_run > 1, "{functional:?}");
        assert!(
            report.summary().starts_with("audit passed: 4 of 8 experts, 2 layers, 8 router rows"),
            "{}",
            report.summary()
        );
        assert!(serde_json::to_string(&report).unwrap().contains("\"verdict\":\"passed\""));
    }
}

#[test]
fn the_plan_is_told_from_the_router_rows_where_there_is_no_file() {
    let pair = pruned(&Tiny::default(), 3);
    let with = pair.audit();
    fs::remove_file(pair.target.join(PLAN_FILE)).unwrap();
    let without = pair.audit();
    assert_eq!(without.outcome, AuditOutcome::Passed, "{:?}", without.faults);
    let fingerprint = |r: &AuditReport| r.plan.as_ref().unwrap().fingerprint.clone();
    assert_eq!(fingerprint(&with), fingerprint(&without));
    // Rows out of order are no plan.
    pair.edit(|tensors| {
        let (spec, bytes) = tensor(tensors, "mlp.gate.weight");
        let row = bytes.len() / spec.shape[0];
        let first = bytes[..row].to_vec();
        bytes.copy_within(row..2 * row, 0);
        bytes[row..2 * row].copy_from_slice(&first);
    });
    let error = audit(&pair.source, &pair.target, &AuditOptions::default(), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("no plan"), "{error}");
}

#[test]
fn every_kind_of_damage_is_found() {
    type Edit = &'static dyn Fn(&mut Vec<Tensor>);
    let cases: &[(&str, Edit, &str)] = &[
        (
            "two gate rows",
            &|tensors| {
                let (_, bytes) = tensor(tensors, "mlp.gate.weight");
                let row = bytes.len() / 4;
                let first = bytes[..row].to_vec();
                bytes.copy_within(row..2 * row, 0);
                bytes[row..2 * row].copy_from_slice(&first);
            },
            "mlp.gate.weight: row 0 must be source row",
        ),
        (
            "two experts",
            &|tensors| {
                for (spec, _) in tensors.iter_mut() {
                    if spec.name.contains("experts.0.") {
                        spec.name = spec.name.replace("experts.0.", "experts.1.");
                    } else if spec.name.contains("mlp.experts.1.") {
                        spec.name = spec.name.replace("experts.1.", "experts.0.");
                    }
                }
            },
            "it has the bytes of source expert",
        ),
        (
            "one bias entry",
            &|tensors| {
                let (_, bytes) = tensor(tensors, "e_score_correction_bias");
                bytes[4..8].copy_from_slice(&0.25f32.to_le_bytes());
            },
            "e_score_correction_bias: row 1 must be source row",
        ),
        (
            "one byte of an expert",
            &|tensors| tensor(tensors, "experts.2.down_proj.weight").1[9] ^= 1,
            "experts.2.down_proj.weight: differs at byte 9",
        ),
        (
            "one byte elsewhere",
            &|tensors| tensor(tensors, "self_attn.o_proj.weight").1[0] ^= 1,
            "self_attn.o_proj.weight: differs at byte 0",
        ),
        (
            "an extra tensor",
            &|tensors| {
                let mut extra = tensors[0].clone();
                extra.0.name = "model.extra.weight".into();
                tensors.push(extra);
            },
            "model.extra.weight: extra",
        ),
        (
            "an expert too many",
            &|tensors| {
                let mut extra = tensor(tensors, "mlp.experts.3.up_proj.weight").clone();
                extra.0.name = extra.0.name.replace("experts.3.", "experts.4.");
                tensors.push(extra);
            },
            "experts.4.up_proj.weight: extra; the plan has no such expert",
        ),
        (
            "a missing expert tensor",
            &|tensors| tensors.retain(|(spec, _)| !spec.name.ends_with("mlp.experts.3.up_proj.weight")),
            "experts.3.up_proj.weight: missing; it must hold",
        ),
        (
            "a missing tensor",
            &|tensors| tensors.retain(|(spec, _)| !spec.name.ends_with("input_layernorm.weight")),
            "input_layernorm.weight: missing",
        ),
        (
            "a bias of another dtype",
            &|tensors| {
                let (spec, bytes) = tensor(tensors, "e_score_correction_bias");
                let half =
                    |b: &[u8]| half::bf16::from_f32(f32::from_le_bytes(b.try_into().unwrap())).to_le_bytes();
                *bytes = bytes.chunks(4).flat_map(half).collect();
                spec.dtype = perigee_numbers::tensor::Dtype::BF16;
            },
            "dtype BF16, the source's is F32",
        ),
        (
            "a router with too few rows",
            &|tensors| {
                let (spec, bytes) = tensor(tensors, "mlp.gate.weight");
                bytes.truncate(bytes.len() / 4 * 3);
                spec.shape[0] = 3;
            },
            "mlp.gate.weight: shape [3, 32], expected [4, 32]",
        ),
    ];
    let pair = pruned(&Tiny::default(), 4);
    let good: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(&pair.target)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_file())
        .map(|p| (p.clone(), fs::read(p).unwrap()))
        .collect();
    let restore = || good.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    for (what, edit, expected) in cases {
        pair.edit(edit);
        let report = pair.audit();
        assert_eq!(report.outcome, AuditOutcome::Failed, "{what}");
        assert!(report.faults.listed.iter().any(|f| f.contains(expected)), "{what}: {:?}", report.faults);
        assert!(report.summary().starts_with("audit FAILED"), "{}", report.summary());
        restore();
        assert_eq!(pair.audit().outcome, AuditOutcome::Passed, "{what}: restored");
    }
    // The functional check alone sees a misaligned bias too.
    pair.edit(|tensors| {
        let (_, bytes) = tensor(tensors, "e_score_correction_bias");
        bytes[..4].copy_from_slice(&9f32.to_le_bytes());
    });
    let report = pair.audit();
    assert!(report.faults.listed.iter().any(|f| f.starts_with("functional check")), "{:?}", report.faults);
    assert!(report.pruned.unwrap().functional.unwrap().same_selection < 8);
    restore();

    let file = |name: &str, change: &dyn Fn(String) -> String, expected: &str| {
        let path = pair.target.join(name);
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, change(before)).unwrap();
        let report = pair.audit();
        assert!(report.faults.listed.iter().any(|f| f.contains(expected)), "{name}: {:?}", report.faults);
        restore();
    };
    file(
        "config.json",
        &|t| t.replace("\"n_routed_experts\": 4", "\"n_routed_experts\": 8"),
        "n_routed_experts is 8, expected 4",
    );
    file("config.json", &|t| t.replace("2.827", "1.0"), "routed_scaling_factor");
    file(
        "config.json",
        &|t| t.replace("\"lm_head\"", "\"lm_head\", \"model.layers.1.mlp.experts.4.up_proj\""),
        "experts end at 3",
    );
    file("config.json", &|t| t.replace("\"n_group\": 1", "\"n_group\": 2"), "n_group is 2, expected 1");
    file(
        "model.safetensors.index.json",
        &|t| t.replace("\"total_size\": ", "\"total_size\": 1"),
        "total_size is",
    );
    file("chat_template.jinja", &|t| t + " ", "chat_template.jinja: differs");
    file("old.safetensors", &|_| String::new(), "index does not name");
    fs::remove_file(pair.target.join("old.safetensors")).unwrap();
    assert_eq!(pair.audit().outcome, AuditOutcome::Passed);
}

#[test]
fn a_plan_for_another_source_is_no_audit() {
    let pair = pruned(&Tiny::default(), 4);
    let other = pruned(&Tiny { seed: 2, experts: 9, ..Tiny::default() }, 4);
    let error = audit(&other.source, &pair.target, &AuditOptions::default(), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("not for"), "{error}");
}

#[test]
fn an_equal_copy_is_a_quantization_without_error_and_damage_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("a"), dir.path().join("b"));
    let tiny = Tiny { single_file: true, ..Tiny::default() };
    test_folder::write(&source, &tiny);
    test_folder::write(&target, &tiny);
    let run = || audit(&source, &target, &AuditOptions::default(), &mut |_| ()).unwrap();
    let report = run();
    assert_eq!(report.outcome, AuditOutcome::Passed, "{:?}", report.faults);
    let found = report.quantized.unwrap();
    assert_eq!(
        (found.accounted, found.equal, found.measured),
        (report.source.tensors, report.source.tensors, 0)
    );
    // Other weights under the same names: the error is near sqrt(2), and a fault.
    test_folder::write(&target, &Tiny { seed: 0x9e37_79b9_7f4a_7c15, ..tiny.clone() });
    let report = run();
    assert_eq!(report.outcome, AuditOutcome::Failed);
    let class = |report: &AuditReport| {
        report
            .quantized
            .as_ref()
            .unwrap()
            .classes
            .iter()
            .find(|c| c.class == "routed experts")
            .unwrap()
            .clone()
    };
    assert!((class(&report).relative_error - 2f64.sqrt()).abs() < 0.1, "{:?}", class(&report));
    assert_eq!(class(&report).linears, 2 * 8 * 3);
    // Packed against plain: the classes say which formats.
    test_folder::write(&target, &Tiny { format: Format::Nvfp4, ..tiny });
    let report = run();
    assert_eq!((class(&report).source_format, class(&report).target_format), ("BF16", "nvfp4"));
    assert_eq!(report.quantized.unwrap().added_scales, 2 * 8 * 3);
}

#[test]
fn kv_scales_may_be_left_out_and_other_tensors_not() {
    let dir = tempfile::tempdir().unwrap();
    let (source, target) = (dir.path().join("a"), dir.path().join("b"));
    let tiny = Tiny { single_file: true, ..Tiny::default() };
    test_folder::write(&source, &tiny);
    test_folder::write(&target, &tiny);
    let add = |name: &str| {
        let (shard, mut tensors) = test_folder::read(&source).pop_first().unwrap();
        tensors.push((TensorSpec::new(name, Dtype::F32, []), 1f32.to_le_bytes().to_vec()));
        test_folder::write_shard(&source, &shard, &tensors);
        audit(&source, &target, &AuditOptions::default(), &mut |_| ()).unwrap()
    };
    let report = add("model.layers.1.self_attn.k_proj.k_scale");
    assert_eq!(report.outcome, AuditOutcome::Passed, "{:?}", report.faults);
    assert_eq!(report.quantized.unwrap().dropped_scales, 1);
    let report = add("model.layers.1.self_attn.k_proj.other");
    assert_eq!(report.outcome, AuditOutcome::Failed);
}
