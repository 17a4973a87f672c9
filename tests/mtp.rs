//! Multi-token prediction layers. No release of the family and no package has one to compare with: what the layer computes is checked
//! against networks of one layer whose embeddings are the fused rows, written from the paper's formula here.

use std::path::Path;
use std::sync::Arc;

use perigee::boot::engine::{BackendChoice, EngineError, EngineOptions, StartedEngine, start_engine};
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_decoding::sampling::SamplingParams;
use perigee_decoding::speculation::{self, Method};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Drafter, Model, MtpDrafter, MtpLayer};
use perigee_ops::host::Group;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{
    Activations, Backend, CacheDtype, Calibrate, Capacity, ContextSplit, DraftInput, Parallelism,
};
use perigee_telemetry::Metrics;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::eagle3::{cpu, oracle, plan_of, prompt_ids, rows};
use crate::engine::{Reply, finish, greedy, options, prompt, request, run_all, runtime};
use crate::golden::{BLOCK_SIZE, NUM_BLOCKS, largest_difference, load_folder};

/// Hidden size of the oracle's target.
const D: usize = 64;
/// Drafted tokens of a step.
const K: usize = 3;
/// Largest difference of logits in f32; they spread over 2 to 12.
const TOLERANCE: f32 = 1e-3;

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn floats(name: impl Into<String>, shape: &[usize], values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (name.into(), Dtype::F32, shape.to_vec(), bytes)
}

/// Weights in front of a prediction layer and behind it.
#[derive(Clone)]
struct Fusion {
    enorm: Vec<f32>,
    hnorm: Vec<f32>,
    /// `[D, 2 D]`.
    eh_proj: Vec<f32>,
    norm: Vec<f32>,
}

impl Fusion {
    fn random() -> Self {
        let mut random = noise(7);
        let mut gains = || (0..D).map(|_| 1.0 + 0.3 * random()).collect();
        let (enorm, hnorm, norm) = (gains(), gains(), gains());
        Self { enorm, hnorm, eh_proj: (0..2 * D * D).map(|_| 0.15 * random()).collect(), norm }
    }

    /// The input of the layer for a token's embedding and the hidden state in front of it.
    fn fuse(&self, embedding: &[f32], hidden: &[f32]) -> Vec<f32> {
        let joined = [normed(embedding, &self.enorm), normed(hidden, &self.hnorm)].concat();
        self.eh_proj
            .chunks_exact(2 * D)
            .map(|row| {
                row.iter().zip(&joined).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32
            })
            .collect()
    }
}

/// Numbers from -1 to 1.
fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn normed(values: &[f32], gain: &[f32]) -> Vec<f32> {
    let mean = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64;
    let scale = 1.0 / (mean + 1e-6).sqrt();
    values.iter().zip(gain).map(|(v, gain)| (f64::from(*v) * scale) as f32 * gain).collect()
}

/// Layers of the oracle's target (MoE ones) under other numbers, with these tensors beside them.
fn write(to: &Path, layers: &[usize], vocab: usize, num_predictions: usize, tensors: Vec<Tensor>) {
    let config = std::fs::read(oracle().join("target/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["num_hidden_layers"] = json!(layers.len() - num_predictions);
    config["num_nextn_predict_layers"] = json!(num_predictions);
    config["first_k_dense_replace"] = json!(0);
    config["vocab_size"] = json!(vocab);
    for id in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        config.as_object_mut().unwrap().remove(id);
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(oracle().join("target/model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut all = tensors;
    for (name, view) in stored.tensors() {
        let mut put =
            |name: String| all.push((name, view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        if name == "model.norm.weight" {
            put(name);
            continue;
        }
        let Some((number, rest)) = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'))
        else {
            continue;
        };
        for (layer, _) in layers.iter().enumerate().filter(|(_, from)| from.to_string() == number) {
            put(format!("model.layers.{layer}.{rest}"));
        }
    }
    let views = all.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The tensors of a prediction layer besides those of a decoder layer.
fn prediction(layer: usize, fusion: &Fusion) -> Vec<Tensor> {
    let name = |rest: &str| format!("model.layers.{layer}.{rest}");
    vec![
        floats(name("enorm.weight"), &[D], &fusion.enorm),
        floats(name("hnorm.weight"), &[D], &fusion.hnorm),
        floats(name("eh_proj.weight"), &[D, 2 * D], &fusion.eh_proj),
        floats(name("shared_head.norm.weight"), &[D], &fusion.norm),
    ]
}

fn identity() -> Vec<f32> {
    (0..D * D).map(|i| f32::from(i / D == i % D)).collect()
}

/// Embeddings `[vocab, D]` of tokens in a vocabulary of `D` tokens, whose logits are the last norm's output.
fn small_vocabulary(embeddings: &[f32]) -> Vec<Tensor> {
    let mut table = embeddings.to_vec();
    table.resize(D * D, 0.0);
    vec![floats("model.embed_tokens.weight", &[D, D], &table), floats("lm_head.weight", &[D, D], &identity())]
}

fn capacity() -> Capacity {
    Capacity {
        max_tokens: 512,
        max_logits_rows: 512,
        max_num_seqs: 8,
        block_size: BLOCK_SIZE,
        cache_dtype: CacheDtype::F32,
    }
}

/// A folder's model with its prediction layer beside it.
fn open<B: Backend>(mut backend: B, folder: &Path) -> Model<B> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let layer = MtpLayer::find(&checkpoint, &blueprint, blueprint.rms_norm_eps).unwrap().unwrap();
    let cache = layer.cache_shape(NUM_BLOCKS, BLOCK_SIZE, CacheDtype::F32);
    let drafter = MtpDrafter::load(&checkpoint, &layer, &mut backend, &capacity(), &cache).unwrap();
    load_folder(backend, folder, CacheDtype::F32).with_draft(Some(Drafter::Mtp(Box::new(drafter))))
}

/// Hidden states, first and further drafts equal those of a one-layer network fed with the fused rows.
pub(crate) fn check<B: Calibrate>(new: impl Fn() -> B) {
    let mut random = noise(11);
    let embeddings: Vec<f32> = (0..D * D).map(|_| random()).collect();
    let fusion = Fusion::random();
    let folder = tempfile::tempdir().unwrap();
    let tensors = [small_vocabulary(&embeddings), prediction(2, &fusion)].concat();
    write(folder.path(), &[6, 7, 5], D, 1, tensors);
    let tokens: Vec<u32> = prompt_ids(3).iter().map(|id| id % D as u32).collect();
    let (n, followed) = (tokens.len() - 1, &tokens[1..]);
    let embedding = |token: u32| &embeddings[token as usize * D..][..D];

    for expanded in [0, n] {
        let mut model = open(new(), folder.path());
        // With the identity for a head, logits are the final norm's output.
        model.forward(&plan_of(&tokens[..n], 0, 0)).unwrap();
        let hidden = model.read_logits(0..n).unwrap().to_vec();
        model.draft(&plan_of(followed, 0, expanded), DraftInput::Captured(&rows(0..n))).unwrap();
        let mut drafted = model.read_draft_logits().unwrap().to_vec();
        let mut fused: Vec<f32> =
            (0..n).flat_map(|row| fusion.fuse(embedding(followed[row]), &hidden[row * D..][..D])).collect();
        // Each further step reads its own output.
        for (step, token) in [9, 41].into_iter().enumerate() {
            let last = drafted[(n + step - 1) * D..].to_vec();
            fused.extend(fusion.fuse(embedding(token), &last));
            let source = rows(if step == 0 { n - 1..n } else { 0..1 });
            model.draft(&plan_of(&[token], n + step, 0), DraftInput::Own(&source)).unwrap();
            drafted.extend_from_slice(model.read_draft_logits().unwrap());
        }

        let one_layer = tempfile::tempdir().unwrap();
        let mut tensors = small_vocabulary(&fused);
        tensors.push(floats("model.norm.weight", &[D], &fusion.norm));
        write_plain(one_layer.path(), 5, tensors);
        let mut expected = load_folder(new(), one_layer.path(), CacheDtype::F32);
        let ids: Vec<u32> = (0..n as u32 + 2).collect();
        expected.forward(&plan_of(&ids, 0, expanded)).unwrap();
        let expected = expected.read_logits(0..n + 2).unwrap();
        let difference = largest_difference(&drafted, expected);
        println!("largest difference: {difference:e} (allowed {TOLERANCE:e})");
        assert!(difference <= TOLERANCE, "{difference}");
    }
}

/// A network of one layer of the oracle's, with its last norm among `tensors`.
fn write_plain(to: &Path, layer: usize, tensors: Vec<Tensor>) {
    write(to, &[layer], D, 0, vec![]);
    let bytes = std::fs::read(to.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut views: Vec<_> =
        stored.tensors().into_iter().filter(|(name, _)| name != "model.norm.weight").collect();
    views.extend(tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    }));
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn the_layer_computes_what_the_paper_says() {
    check(|| ReferenceBackend);
    let cpu = || CpuBackend::new(CpuOptions { activations: Activations::F32, ..Default::default() });
    check(cpu);
    check(|| Group::new(vec![cpu(), cpu()]).unwrap());
    let parallelism = Parallelism { expert_groups: 1, context: ContextSplit::Whole };
    check(|| Group::with(vec![cpu(), cpu()], parallelism).unwrap());
}

/// A checkpoint of one layer whose prediction layer nearly knows the next token: the same layer, over the same text without
/// its first token. `edit` changes the prediction layer's tensors.
pub(crate) fn write_foreseeing(to: &Path, edit: impl FnOnce(&mut Vec<Tensor>)) {
    const VOCAB: usize = 512;
    let bytes = std::fs::read(oracle().join("target/model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let read = |name: &str| -> Vec<f32> {
        let data = stored.tensor(name).unwrap().data();
        data.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    };
    // The norm of the fusion leaves such embeddings as they are.
    let embeddings: Vec<f32> =
        read("model.embed_tokens.weight").chunks_exact(D).flat_map(|row| normed(row, &[1.0; D])).collect();
    let eh_proj = (0..2 * D * D).map(|i| f32::from(i / (2 * D) == i % (2 * D))).collect();
    let ones = vec![1.0; D];
    let fusion = Fusion { enorm: ones.clone(), hnorm: ones, eh_proj, norm: read("model.norm.weight") };
    let mut tensors = prediction(1, &fusion);
    edit(&mut tensors);
    tensors.push(floats("model.embed_tokens.weight", &[VOCAB, D], &embeddings));
    tensors.push(floats("lm_head.weight", &[VOCAB, D], &read("lm_head.weight")));
    write(to, &[7, 7], VOCAB, 1, tensors);
}

/// Speculation with the prediction layer, every draft checked whole.
pub(crate) fn with_mtp() -> speculation::Config {
    speculation::Config {
        method: Method::Mtp,
        adaptive: false,
        max_tokens: K,
        ..speculation::Config::default()
    }
}

fn serve(
    backend: BackendChoice,
    folder: &Path,
    edit: impl FnOnce(&mut EngineOptions),
) -> Result<StartedEngine, EngineError> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut options = EngineOptions { backend, num_blocks: 256, ..options() };
    options.scheduler.max_model_len = 1024;
    options.speculation = with_mtp();
    edit(&mut options);
    start_engine(&checkpoint, blueprint, &options, Arc::new(Metrics::new("golden", true)), &mut |_| ())
}

#[test]
fn a_prediction_layer_changes_no_bits() {
    let folder = tempfile::tempdir().unwrap();
    write_foreseeing(folder.path(), |_| ());
    let cases = (0..24).map(|i| {
        let params = SamplingParams {
            temperature: [0.0, 1.0, 0.7][i % 3],
            top_k: [0, 40][i % 2],
            repetition_penalty: [1.12, 1.0][i % 2],
            max_tokens: [1, 2, 17, 40][i % 4],
            seed: i as u64 / 2,
            logprobs: Some(2),
            ..Default::default()
        };
        request(&prompt([1, 15, 16, 33, 70][i % 5], i as u64 / 3), params)
    });
    let cases: Vec<_> = cases.collect();
    let run = |backend: &BackendChoice, method: Method, num_blocks: usize, chunk: usize| -> Vec<Reply> {
        let engine = serve(backend.clone(), folder.path(), |options| {
            options.scheduler.max_model_len = 128;
            options.speculation.method = method;
            (options.num_blocks, options.scheduler.max_prefill_tokens) = (num_blocks, chunk);
        })
        .unwrap();
        let replies = runtime().block_on(run_all(&engine.handle, cases.clone()));
        finish(engine);
        replies
    };
    for backend in [cpu(Activations::F32), cpu(Activations::Bf16), BackendChoice::Reference] {
        let straight = run(&backend, Method::Off, 256, 512);
        for (num_blocks, chunk) in [(256, 512), (9, 7)] {
            let drafted = run(&backend, Method::Mtp, num_blocks, chunk);
            for (i, (reply, straight)) in drafted.iter().zip(&straight).enumerate() {
                assert_eq!(reply.bits(), straight.bits(), "{num_blocks} blocks, request {i}");
                assert_eq!(reply.finish, straight.finish);
            }
            let sum = |count: fn(&Reply) -> usize| drafted.iter().map(count).sum::<usize>();
            let (accepted, rejected) = (sum(|reply| reply.drafted.0), sum(|reply| reply.drafted.1));
            println!("{num_blocks} blocks: {accepted} accepted, {rejected} rejected");
            // Places, shift and cache are right: a layer that foresees is believed.
            assert!(accepted > 2 * rejected, "{accepted} accepted, {rejected} rejected");
        }
    }
}

/// A cached prefix brings the layer's keys along.
#[test]
fn a_prefix_hit_predicts_as_well() {
    let folder = tempfile::tempdir().unwrap();
    write_foreseeing(folder.path(), |_| ());
    let engine = serve(cpu(Activations::F32), folder.path(), |_| ()).unwrap();
    let ask =
        || runtime().block_on(run_all(&engine.handle, vec![request(&prompt(70, 3), greedy(24))])).remove(0);
    let (first, second) = (ask(), ask());
    assert_eq!(first.bits(), second.bits());
    assert!(second.cached_tokens >= 48 && first.cached_tokens == 0, "{}", second.cached_tokens);
    assert_eq!(first.drafted, second.drafted);
    assert!(first.drafted.0 > 0);
    finish(engine);
}

#[test]
fn a_layer_of_nans_is_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let run = |edit: fn(&mut Vec<Tensor>), method: Method| {
        write_foreseeing(folder.path(), edit);
        let engine =
            serve(cpu(Activations::F32), folder.path(), |options| options.speculation.method = method)
                .unwrap();
        let reply =
            runtime().block_on(run_all(&engine.handle, vec![request(&prompt(20, 1), greedy(24))])).remove(0);
        finish(engine);
        reply
    };
    let straight = run(|_| (), Method::Off);
    let broken = run(
        |tensors| {
            let norm = tensors.last_mut().unwrap();
            norm.3 = f32::NAN.to_le_bytes().repeat(D);
        },
        Method::Mtp,
    );
    assert_eq!((broken.bits(), broken.drafted), (straight.bits(), (0, 0)));
}

#[test]
fn layers_that_cannot_be_used_are_refused_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let start = |edit: fn(&mut Vec<Tensor>), method: Method| {
        write_foreseeing(folder.path(), edit);
        serve(cpu(Activations::F32), folder.path(), |options| options.speculation.method = method)
    };
    let missing: fn(&mut Vec<Tensor>) =
        |tensors| tensors.retain(|tensor| !tensor.0.ends_with("eh_proj.weight"));
    let text = start(missing, Method::Mtp).err().unwrap().to_string();
    assert!(text.contains("model.layers.1.eh_proj"), "{text}");
    let half: fn(&mut Vec<Tensor>) = |tensors| {
        let eh_proj = tensors.iter_mut().find(|tensor| tensor.0.ends_with("eh_proj.weight")).unwrap();
        *eh_proj = floats(eh_proj.0.clone(), &[D, D], &identity());
    };
    let text = start(half, Method::Mtp).err().unwrap().to_string();
    assert!(text.contains("eh_proj.weight: shape [64, 64], expected [64, 128]"), "{text}");
    // Nobody asked for it by name.
    finish(start(half, Method::Auto).unwrap());

    let plain = oracle().join("target");
    let text = serve(cpu(Activations::F32), &plain, |_| ()).err().unwrap().to_string();
    assert!(text.contains("num_nextn_predict_layers is 0"), "{text}");
}
