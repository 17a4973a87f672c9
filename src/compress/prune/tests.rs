//! Small folders, pruned.

use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::fingerprint::SourceId;
use crate::prune::plan_file::{ExpertPlan, LayerPlan};
use crate::prune::rewrite::expert_layers;
use crate::prune::select::Criterion;
use crate::test_folder::{self, Format, LAYERS, Tiny};

const SINGLE_FILE: &str = "model.safetensors";

fn random_plan(dir: &Path, keep: usize) -> ExpertPlan {
    let source = Checkpoint::open(dir).unwrap();
    ExpertPlan::random(SourceId::of(&source), &expert_layers(&source).unwrap(), keep, 5).unwrap()
}

fn run(source: &Path, plan: &ExpertPlan, target: &Path) -> Result<PruneReport, PruneError> {
    prune(&Checkpoint::open(source).unwrap(), plan, target, &mut |_| ())
}

/// All files of a folder by relative name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

#[test]
fn survivors_move_with_all_their_tensors_in_every_format() {
    for (format, packed_router, wrapper, single_file) in [
        (Format::Plain, false, false, false),
        (Format::Nvfp4, true, true, false),
        (Format::Int4, false, true, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        test_folder::write(&from, &Tiny { format, packed_router, wrapper, single_file, ..Tiny::default() });
        let plan = random_plan(&from, 3);
        let report = run(&from, &plan, &to).unwrap();
        let (source, target) = (Checkpoint::open(&from).unwrap(), Checkpoint::open(&to).unwrap());
        let prefix = if wrapper { "language_model.model." } else { "model." };
        let mut checked = 0;
        for layer in plan.layers() {
            for (new, old) in layer.keep.iter().enumerate() {
                let stem = |id: usize| format!("{prefix}layers.{}.mlp.experts.{id}.", layer.layer);
                for name in source.names().filter(|name| name.starts_with(&stem(*old as usize))) {
                    let renamed = name.replacen(&stem(*old as usize), &stem(new), 1);
                    let (a, b) = (source.tensor(name).unwrap(), target.tensor(&renamed).expect(&renamed));
                    assert_eq!((a.dtype, a.shape, a.bytes), (b.dtype, b.shape, b.bytes), "{renamed}");
                    checked += 1;
                }
                for rest in ["weight", "e_score_correction_bias", "weight_scale"] {
                    let name = format!("{prefix}layers.{}.mlp.gate.{rest}", layer.layer);
                    let Some(a) = source.tensor(&name) else { continue };
                    let b = target.tensor(&name).unwrap();
                    assert_eq!((b.shape[0], b.dtype), (3, a.dtype));
                    let row = a.bytes.len() / a.shape[0];
                    let old = *old as usize;
                    assert_eq!(b.bytes[new * row..(new + 1) * row], a.bytes[old * row..(old + 1) * row]);
                }
            }
        }
        let parts = if format == Format::Plain {
            1
        } else if format == Format::Nvfp4 {
            4
        } else {
            3
        };
        assert_eq!(checked, (LAYERS - 1) * 3 * 3 * parts);
        assert_eq!(report.tensors[0] - report.tensors[1], (LAYERS - 1) * 5 * 3 * parts);
        assert_eq!(target.num_tensors(), report.tensors[1]);
        assert_eq!(report.files_copied, 3);
        let config = fs::read_to_string(to.join("config.json")).unwrap();
        assert!(config.contains("\"n_routed_experts\": 3,"));
        assert_eq!(fs::read(to.join("assets/notes.txt")).unwrap(), [0, 159, 146, 150]);
        assert_eq!(ExpertPlan::parse(&fs::read(to.join(PLAN_FILE)).unwrap()).unwrap(), plan);
        if !single_file {
            let index: serde_json::Value =
                serde_json::from_slice(&fs::read(to.join(INDEX_FILE)).unwrap()).unwrap();
            assert_eq!(index["metadata"]["total_size"], target.bytes());
        }
    }
}

#[test]
fn a_cut_run_continues_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (from, whole) = (dir.path().join("a"), dir.path().join("whole"));
    test_folder::write(&from, &Tiny::default());
    let plan = random_plan(&from, 4);
    run(&from, &plan, &whole).unwrap();
    let expected = files(&whole);
    // A cut run is a folder with the job file and any part of the other files, the last one perhaps under its partial name.
    let job = {
        let probe = dir.path().join("probe");
        open_target(&Checkpoint::open(&from).unwrap(), &plan, &probe).unwrap();
        fs::read(probe.join(JOB_FILE)).unwrap()
    };
    let order: Vec<&String> = expected.keys().filter(|name| name.ends_with("safetensors")).collect();
    for cut in 0..=order.len() {
        let to = dir.path().join(format!("cut{cut}"));
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join(JOB_FILE), &job).unwrap();
        order[..cut].iter().for_each(|name| fs::write(to.join(name), &expected[*name]).unwrap());
        if let Some(next) = order.get(cut) {
            let bytes = &expected[*next];
            fs::write(to.join(format!(".{next}.partial")), &bytes[..bytes.len() / 2]).unwrap();
            // A file of that name that is not the planned one is written again.
            fs::write(to.join(next), &bytes[..bytes.len() - 1]).unwrap();
        }
        let report = run(&from, &plan, &to).unwrap();
        assert_eq!(report.shards_resumed, cut);
        assert_eq!(files(&to), expected, "cut after {cut} shards");
    }
}

#[test]
fn targets_in_use_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    test_folder::write(&from, &Tiny::default());
    let plan = random_plan(&from, 4);
    let check = |target: &Path, expected: &str| {
        let error = run(&from, &plan, target).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&from, "overlaps");
    check(&from.join("assets"), "overlaps");
    fs::create_dir_all(&to).unwrap();
    fs::write(to.join("mine.txt"), "x").unwrap();
    check(&to, "not empty");
    assert_eq!(files(&to).keys().collect::<Vec<_>>(), ["mine.txt"]);
    fs::remove_file(to.join("mine.txt")).unwrap();
    fs::write(to.join(JOB_FILE), "{}").unwrap();
    check(&to, "another source, plan or version");
    fs::remove_file(to.join(JOB_FILE)).unwrap();
    run(&from, &plan, &to).unwrap();
    check(&to, "not empty");
}

#[test]
fn what_cannot_be_pruned_is_named_before_anything_is_written() {
    let check = |edit: &dyn Fn(&mut test_folder::Tensor), expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        test_folder::write(&from, &Tiny { single_file: true, ..Tiny::default() });
        let plan = random_plan(&from, 4);
        let mut tensors = test_folder::read(&from).remove(SINGLE_FILE).unwrap();
        tensors.iter_mut().for_each(edit);
        test_folder::write_shard(&from, SINGLE_FILE, &tensors);
        let error = run(&from, &plan, &to).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!to.exists());
    };
    let router = |spec: &TensorSpec| spec.name.ends_with("layers.1.mlp.gate.weight");
    check(
        &|(spec, _)| {
            if router(spec) {
                spec.shape = vec![4, 64]
            }
        },
        "rows that share a scale",
    );
    check(
        &|(spec, _)| {
            if router(spec) {
                spec.name = "model.layers.1.mlp.gate.weight_shape".into();
            }
        },
        "is not [8, columns]",
    );
    check(
        &|(spec, _)| {
            if router(spec) {
                spec.name = "model.layers.0.mlp.gate.weight".into()
            }
        },
        "without routed",
    );
    check(
        &|(spec, _)| {
            if router(spec) {
                spec.name = "model.layers.1.mlp.experts.gate_up_proj".into();
            }
        },
        "of no single expert",
    );
}

#[test]
fn gaps_in_expert_ids_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = |name: &str| (TensorSpec::new(name, perigee_numbers::tensor::Dtype::U8, [1]), vec![0]);
    let list = [tensor("model.layers.1.mlp.experts.0.x"), tensor("model.layers.1.mlp.experts.2.x")];
    test_folder::write_shard(dir.path(), SINGLE_FILE, &list);
    let error = expert_layers(&Checkpoint::open(dir.path()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("layers.1.mlp.experts.1.*"), "{error}");
}

#[test]
fn stale_weights_beside_the_shards_are_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    test_folder::write(&from, &Tiny::default());
    fs::write(from.join("consolidated.safetensors"), "x").unwrap();
    fs::create_dir(from.join(".cache")).unwrap();
    let report = run(&from, &random_plan(&from, 4), &to).unwrap();
    assert_eq!(report.files_left_out, ["consolidated.safetensors"]);
    assert!(!to.join("consolidated.safetensors").exists() && !to.join(".cache").exists());
}

#[test]
fn a_plan_may_keep_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    test_folder::write(&from, &Tiny::default());
    let layer =
        |layer| LayerPlan { layer, num_source: 8, keep: (0..8).collect(), saliency: None, counts: None };
    let criterion = Criterion::Given { note: "all".into() };
    let plan =
        ExpertPlan::new(SourceId::default(), criterion, vec![], vec![layer(1), layer(2)], vec![]).unwrap();
    run(&from, &plan, &to).unwrap();
    let (mut a, mut b) = (files(&from), files(&to));
    for name in ["config.json", INDEX_FILE, PLAN_FILE] {
        a.remove(name);
        b.remove(name);
    }
    assert!(a.iter().all(|(name, bytes)| b.get(name) == Some(bytes) || name.ends_with("safetensors")));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
}
