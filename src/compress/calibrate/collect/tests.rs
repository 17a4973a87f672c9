//! Collected saliency against a direct computation in f64 that shares nothing with the engine, and all the way to an audited folder.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::audit::{AuditOptions, AuditOutcome, audit};
use crate::prune::plan_file::ExpertPlan;
use crate::prune::prune;
use crate::prune::rewrite::expert_layers;
use crate::prune::select::Criterion;
use crate::test_folder::{self, HIDDEN, Tiny};
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_ops::Activations;
use perigee_ops::host::reference::ReferenceBackend;

const TEXT: &str =
    "the quick brown fox\njumps over the lazy dog 0123456789\n\nPACK MY BOX with five dozen jugs!\n\nzz\n";

/// A network whose attention and dense layer add nothing: what enters the experts can be computed by hand.
fn folder(dir: &Path) {
    test_folder::write(dir, &Tiny { experts: 16, top_k: 3, ..Tiny::default() });
    for (shard, mut tensors) in test_folder::read(dir) {
        for (spec, bytes) in &mut tensors {
            if spec.name.ends_with("o_proj.weight") || spec.name.contains("layers.0.mlp.down_proj") {
                bytes.fill(0);
            }
        }
        test_folder::write_shard(dir, &shard, &tensors);
    }
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f64> {
    checkpoint.tensor(name).expect(name).to_f32().into_iter().map(f64::from).collect()
}

fn product(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn ffn(checkpoint: &Checkpoint, stem: &str, x: &[f64]) -> Vec<f64> {
    let matrix = |name: &str| values(checkpoint, &format!("{stem}.{name}.weight"));
    let (gate, up) = (product(&matrix("gate_proj"), x), product(&matrix("up_proj"), x));
    let hidden: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    product(&matrix("down_proj"), &hidden)
}

/// Sums and counts of the two MoE layers, token by token; tokens are the text's bytes.
fn direct(checkpoint: &Checkpoint, tokens: &[u8]) -> BTreeMap<usize, Vec<(f64, u64)>> {
    let mut statistics: BTreeMap<usize, Vec<(f64, u64)>> = BTreeMap::new();
    let embeddings = values(checkpoint, "model.embed_tokens.weight");
    for token in tokens {
        let mut hidden = embeddings[*token as usize * HIDDEN..(*token as usize + 1) * HIDDEN].to_vec();
        for layer in [1, 2] {
            let stem = format!("model.layers.{layer}.mlp");
            let mean: f64 = hidden.iter().map(|h| h * h).sum::<f64>() / HIDDEN as f64;
            let x: Vec<f64> = hidden.iter().map(|h| h / (mean + 1e-5).sqrt()).collect();
            let logits = product(&values(checkpoint, &format!("{stem}.gate.weight")), &x);
            let scores: Vec<f64> = logits.iter().map(|z| 1.0 / (1.0 + (-z).exp())).collect();
            let bias = values(checkpoint, &format!("{stem}.gate.e_score_correction_bias"));
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| (scores[*b] + bias[*b]).total_cmp(&(scores[*a] + bias[*a])));
            let chosen = &order[..3];
            let sum: f64 = chosen.iter().map(|e| scores[*e]).sum();
            let layer_statistics = statistics.entry(layer).or_insert_with(|| vec![(0.0, 0); scores.len()]);
            let mut out = ffn(checkpoint, &format!("{stem}.shared_experts"), &x);
            for e in chosen {
                let y = ffn(checkpoint, &format!("{stem}.experts.{e}"), &x);
                let weight = scores[*e] / sum;
                layer_statistics[*e].0 += weight * y.iter().map(|v| v * v).sum::<f64>().sqrt();
                layer_statistics[*e].1 += 1;
                out.iter_mut().zip(&y).for_each(|(o, y)| *o += 2.827 * weight * y);
            }
            hidden.iter_mut().zip(&out).for_each(|(h, o)| *h += o);
        }
    }
    statistics
}

fn collected<B: Calibrate>(backend: B, dir: &Path, options: &PassOptions) -> Saliency {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let tokenizer =
        Tokenizer::load(&|name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned())).unwrap();
    let documents = Documents::parse("t.txt", TEXT.as_bytes()).unwrap();
    let mut pass = TextPass::open(backend, &checkpoint, options).unwrap();
    collect(&mut pass, &checkpoint, &tokenizer, &documents, None, options, &mut |_| ()).unwrap()
}

#[test]
fn saliency_plan_order_and_audit_are_those_of_a_direct_computation() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    folder(&from);
    let checkpoint = Checkpoint::open(&from).unwrap();
    let tokens: Vec<u8> = TEXT.replace("\n\n", "\n").into_bytes();
    let expected = direct(&checkpoint, &tokens);
    let cpu = CpuBackend::new(CpuOptions { activations: Activations::F32, ..Default::default() });
    let options = PassOptions::default();
    let short = PassOptions { context: 11, step: 4, ..PassOptions::default() };
    let reference = collected(ReferenceBackend, &from, &options);
    for (what, saliency) in [
        ("reference", &reference),
        ("cpu", &collected(cpu, &from, &options)),
        // Attention adds nothing here, so cutting the text changes nothing either.
        ("short windows", &collected(ReferenceBackend, &from, &short)),
    ] {
        assert_eq!(saliency.texts()[0].tokens, tokens.len() as u64, "{what}");
        assert_eq!(saliency.texts()[0].documents, 3, "{what}");
        for (layer, expected) in &expected {
            let found = saliency.layer(*layer).unwrap();
            let counts: Vec<u64> = expected.iter().map(|(_, count)| *count).collect();
            assert_eq!(found.counts().unwrap(), counts, "{what}, layer {layer}");
            assert_eq!(counts.iter().sum::<u64>(), 3 * tokens.len() as u64);
            for (e, (got, (sum, count))) in found.reap().unwrap().iter().zip(expected).enumerate() {
                let want = if *count == 0 { 0.0 } else { sum / *count as f64 };
                assert!(
                    (got - want).abs() <= 1e-5 * want,
                    "{what}, layer {layer}, expert {e}: {got}, {want}"
                );
            }
        }
        assert_eq!(saliency.layers().count(), 2);
    }

    // The plan is that of the direct scores, in ascending order of ids; the folder made by it passes.
    let layers = expert_layers(&checkpoint).unwrap();
    let source = SourceId::of(&checkpoint);
    let plan = ExpertPlan::from_saliency(source, &layers, 8, Criterion::Reap, &reference).unwrap();
    for layer in plan.layers() {
        let scores: Vec<f64> = expected[&layer.layer]
            .iter()
            .map(|(sum, count)| if *count == 0 { 0.0 } else { sum / *count as f64 })
            .collect();
        let mut order: Vec<u32> = (0..16).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b)));
        let mut best = order[..8].to_vec();
        best.sort_unstable();
        assert_eq!(layer.keep, best, "layer {}", layer.layer);
        assert_eq!(layer.counts.as_deref(), reference.layer(layer.layer).unwrap().counts());
    }
    prune(&checkpoint, &plan, &to, &mut |_| ()).unwrap();
    let report = audit(&from, &to, &AuditOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(report.outcome, AuditOutcome::Passed, "{:?}", report.faults);
    // The pruned folder runs.
    assert_eq!(collected(ReferenceBackend, &to, &options).layer(1).unwrap().num_experts(), 8);
}

#[test]
fn statistics_of_two_halves_add_up_to_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let tokenizer =
        Tokenizer::load(&|name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned())).unwrap();
    let options = PassOptions::default();
    let mut pass = TextPass::open(ReferenceBackend, &checkpoint, &options).unwrap();
    let only: BTreeSet<usize> = [2].into();
    let mut run = |text: &str| {
        let documents = Documents::parse("t.txt", text.as_bytes()).unwrap();
        collect(&mut pass, &checkpoint, &tokenizer, &documents, Some(&only), &options, &mut |_| ()).unwrap()
    };
    let (whole, mut first, second) = (run("ab cd\n\nef\n"), run("ab cd\n"), run("ef\n"));
    first.merge(&second).unwrap();
    assert_eq!(first.layers().map(|(layer, _)| layer).collect::<Vec<_>>(), [2]);
    let (a, b) = (first.layer(2).unwrap(), whole.layer(2).unwrap());
    assert_eq!(a.counts(), b.counts());
    for (x, y) in a.reap().unwrap().iter().zip(b.reap().unwrap()) {
        assert!((x - y).abs() <= 1e-12 * y.abs(), "{x} {y}");
    }
    let error = |layers: &[usize], pass: &mut TextPass<'_, ReferenceBackend>| {
        let documents = Documents::parse("t.txt", b"a").unwrap();
        let layers = layers.iter().copied().collect();
        collect(pass, &checkpoint, &tokenizer, &documents, Some(&layers), &options, &mut |_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(error(&[0], &mut pass).contains("layer 0 has no routed experts"));
    assert!(error(&[1, 9], &mut pass).contains("layer 9"));
}
