//! Scoring as evaluation harnesses do it: their requests, their slices, against logits computed without a server.

use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_ops::{Activations, AttentionForm, CacheDtype};
use serde_json::{Value, json};

use crate::golden::{golden_folder, load_folder, step};
use crate::serve::{Served, log_softmax, runtime};

/// Context and continuation of one multiple-choice answer.
struct Item {
    context: Vec<u32>,
    continuation: Vec<u32>,
}

fn items(vocab: u32) -> Vec<Item> {
    let mut rng = fastrand::Rng::with_seed(21);
    let mut items = Vec::new();
    for _ in 0..6 {
        // Answers of one question share its context, as in MMLU, so that the prefix cache is met.
        let context: Vec<u32> = (0..rng.usize(1..90)).map(|_| rng.u32(0..vocab)).collect();
        for _ in 0..3 {
            let continuation = (0..rng.usize(1..6)).map(|_| rng.u32(0..vocab)).collect();
            items.push(Item { context: context.clone(), continuation });
        }
    }
    items
}

/// The sum of the continuation's logprobs and whether each of its tokens is the most likely one: what the harness makes of a choice.
fn harness(choice: &Value, context_len: usize) -> (f64, bool) {
    let tokens = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    let tops = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    let scored = &tokens[context_len..tokens.len() - 1];
    let sum = scored.iter().map(|value| value.as_f64().unwrap()).sum();
    let greedy = scored.iter().zip(&tops[context_len..]).all(|(value, top)| {
        let best =
            top.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        value.as_f64().unwrap() == best
    });
    (sum, greedy)
}

#[test]
fn loglikelihoods_are_those_of_a_direct_computation() {
    for name in ["kimi", "moonlight"] {
        let backend = CpuBackend::new(CpuOptions { activations: Activations::F32, ..Default::default() });
        let mut model = load_folder(backend, &golden_folder(name), CacheDtype::F32);
        let vocab = model.blueprint().vocab_size;
        let mut items = items(vocab as u32);
        // Some answers are what the model would say: their flag must be true.
        for item in items.iter_mut().step_by(4) {
            let logits = step(&mut model, &item.context, 0, AttentionForm::Expanded);
            let row = &logits[logits.len() - vocab..];
            let best = (0..vocab).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            item.continuation = vec![best as u32];
        }
        let direct: Vec<(f64, bool)> = items
            .iter()
            .map(|item| {
                let ids = [&item.context[..], &item.continuation].concat();
                let logits = step(&mut model, &ids, 0, AttentionForm::Expanded);
                let mut greedy = true;
                let mut sum = 0.0;
                for at in item.context.len()..ids.len() {
                    let row = &logits[(at - 1) * vocab..at * vocab];
                    sum += log_softmax(row)[ids[at] as usize];
                    greedy &= row.iter().all(|&other| other <= row[ids[at] as usize]);
                }
                (sum, greedy)
            })
            .collect();
        assert!(direct.iter().any(|(_, greedy)| *greedy) && direct.iter().any(|(_, greedy)| !greedy));
        let served = Served::start(Some(&golden_folder(name)), &[]);
        let mut worst = 0f64;
        runtime().block_on(async {
            for batch in [1, 5] {
                let mut got = Vec::new();
                for items in items.chunks(batch) {
                    let prompts: Vec<Vec<u32>> =
                        items.iter().map(|item| [&item.context[..], &item.continuation].concat()).collect();
                    let body = json!({"model": null, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1,
                        "seed": 1234, "echo": true});
                    let answer = served.post("/v1/completions", &body).await;
                    let choices = answer["choices"].as_array().unwrap();
                    assert_eq!(choices.len(), items.len());
                    for (index, (choice, item)) in choices.iter().zip(items).enumerate() {
                        assert_eq!(choice["index"], index);
                        got.push(harness(choice, item.context.len()));
                    }
                }
                for (number, (got, expected)) in got.iter().zip(&direct).enumerate() {
                    worst = worst.max((got.0 - expected.0).abs());
                    assert!((got.0 - expected.0).abs() <= 1e-5, "{name} item {number}: {got:?}, directly {expected:?}");
                    assert_eq!(got.1, expected.1, "{name} item {number}: greedy");
                }
            }
        });
        println!("{name}: largest difference of a loglikelihood {worst:e}");
        assert_eq!(served.terminate(), Some(0));
    }
}
