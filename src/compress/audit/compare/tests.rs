//! Comparisons whose outcome is known.

use std::path::Path;

use super::*;
use crate::test_folder::{self, Tiny, VOCAB};
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::host::reference::ReferenceBackend;

/// The same small network with some bytes changed.
fn folder(dir: &Path, edit: impl Fn(&str, &mut Vec<u8>)) {
    test_folder::write(dir, &Tiny::default());
    for (shard, mut tensors) in test_folder::read(dir) {
        tensors.iter_mut().for_each(|(spec, bytes)| edit(&spec.name, bytes));
        test_folder::write_shard(dir, &shard, &tensors);
    }
}

fn run(a: &Path, b: &Path, options: &PassOptions) -> Comparison {
    let (a, b) = (Checkpoint::open(a).unwrap(), Checkpoint::open(b).unwrap());
    let tokenizer = Tokenizer::load(&|name: &str| a.file(name).map(|bytes| bytes.into_owned())).unwrap();
    let documents = Documents::parse("t.txt", b"hello there, general\n\nsecond text\n").unwrap();
    fn open<'a>(c: &'a Checkpoint, options: &PassOptions) -> TextPass<'a, ReferenceBackend> {
        TextPass::open(ReferenceBackend, c, options).unwrap()
    }
    compare(
        &mut open(&a, options),
        &mut open(&b, options),
        &tokenizer,
        &documents,
        options,
        0.01,
        &mut |_| (),
    )
    .unwrap()
}

#[test]
fn a_checkpoint_equals_itself() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path(), |_, _| ());
    for options in [PassOptions::default(), PassOptions { context: 8, step: 3, ..PassOptions::default() }] {
        let found = run(dir.path(), dir.path(), &options);
        assert_eq!((found.mean_kl, found.max_kl, found.top1_agreement), (0.0, 0.0, 1.0));
        assert_eq!(found.perplexity[0], found.perplexity[1]);
        assert_eq!(found.layer_errors, [0.0; 3]);
        assert_eq!((found.first_above, found.tokens, found.documents), (None, 33, 2));
        assert!(found.text().contains("first layer above 0.01: none"), "{}", found.text());
    }
    let found = run(dir.path(), dir.path(), &PassOptions { max_tokens: Some(5), ..Default::default() });
    assert_eq!((found.tokens, found.scored, found.documents), (5, 4, 1));
}

#[test]
fn a_head_of_zeros_predicts_every_token_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    folder(&a, |_, _| ());
    folder(&b, |name, bytes| {
        if name == "lm_head.weight" {
            bytes.fill(0)
        }
    });
    let found = run(&a, &b, &PassOptions::default());
    assert!((found.perplexity[1] - VOCAB as f64).abs() < 1e-9, "{:?}", found.perplexity);
    assert!(found.perplexity[0] != found.perplexity[1]);
    assert_eq!(found.layer_errors, [0.0; 3]);
    // KL from a uniform distribution is log V minus the entropy: between 0 and log V.
    assert!(found.mean_kl > 0.0 && found.max_kl < (VOCAB as f64).ln());
    // The other way round it is not the same number.
    assert!((run(&b, &a, &PassOptions::default()).mean_kl - found.mean_kl).abs() > 1e-6);
}

#[test]
fn the_first_layer_that_differs_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    folder(&a, |_, _| ());
    folder(&b, |name, bytes| {
        if name.contains("layers.1.mlp.shared_experts.down_proj") {
            bytes.fill(0)
        }
    });
    let found = run(&a, &b, &PassOptions::default());
    assert_eq!(found.first_above, Some(1));
    assert_eq!(found.layer_errors[0], 0.0);
    assert!(found.layer_errors[2] > 0.01 && found.mean_kl > 0.0);
}

#[test]
fn other_networks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    folder(&a, |_, _| ());
    folder(&b, |_, _| ());
    let config = std::fs::read_to_string(b.join("config.json")).unwrap();
    std::fs::write(
        b.join("config.json"),
        config.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2"),
    )
    .unwrap();
    let open = |dir: &Path| Checkpoint::open(dir).unwrap();
    assert!(TextPass::open(ReferenceBackend, &open(&b), &PassOptions::default()).is_err());
    assert_eq!(log_softmax(&[0.0, 0.0]), [-(2f64.ln()); 2]);
    assert_eq!(top(&[1.0, 3.0, 3.0]), 1);
}
