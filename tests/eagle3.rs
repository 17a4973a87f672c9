//! Eagle3 drafts against an independent implementation (`tests/golden/eagle3`, see its README).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use perigee::boot::engine::{BackendChoice, EngineError, EngineOptions, StartedEngine, start_engine};
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_decoding::sampling::{History, Sampler, SamplingParams};
use perigee_decoding::speculation::{self, Method};
use perigee_engine::kv_tiers::TierOptions;
use perigee_engine::scheduler::FinishReason;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, DraftBlueprint, Drafter, Eagle3Drafter, Model};
use perigee_numbers::quant::nvfp4::BlockScales;
use perigee_numbers::quant::{Packing, TensorScale};
use perigee_ops::host::Group;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{
    Activations, Backend, BlockId, CacheDtype, Calibrate, Capacity, DraftInput, Row, StepPlan, TokenSource,
};
use perigee_telemetry::Metrics;
use safetensors::Dtype;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::engine::{Reply, finish, greedy, options, prompt, request, run_all, runtime};
use crate::golden::{BLOCK_SIZE, NUM_BLOCKS, argmax, golden_path, largest_difference, load_folder};

pub(crate) const DRAFTS: [&str; 2] = ["draft-mla", "draft-llama"];
/// Drafted tokens of a step.
const K: usize = 3;
/// Largest difference of states, hidden states and logits in f32; they spread over 2 to 12.
const TOLERANCE: f32 = 1e-3;
/// Hidden size of target and drafts.
const D: usize = 64;

/// `tests/golden/eagle3`.
pub(crate) fn oracle() -> PathBuf {
    golden_path("eagle3")
}

/// Writes the folder of a draft of the oracle, or of one of its variants, to `to`.
pub(crate) fn write_draft(draft: &str, variant: Option<&str>, to: &Path) {
    let folder = oracle().join(draft);
    let changed = variant.map(|name| folder.join("variants").join(name));
    let config = changed.as_ref().unwrap_or(&folder).join("config.json");
    std::fs::copy(config, to.join("config.json")).unwrap();
    let files = [Some(folder.join("model.safetensors")), changed.map(|path| path.join("extra.safetensors"))];
    let bytes: Vec<Vec<u8>> =
        files.into_iter().flatten().filter_map(|path| std::fs::read(path).ok()).collect();
    let mut tensors: HashMap<String, TensorView<'_>> = HashMap::new();
    let files: Vec<_> = bytes.iter().map(|bytes| SafeTensors::deserialize(bytes).unwrap()).collect();
    for (name, view) in files.iter().flat_map(SafeTensors::tensors) {
        if variant != Some("no_embed") || name != "embed_tokens.weight" {
            tensors.insert(name, view);
        }
    }
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
}

/// Numbers of the oracle by name.
struct Expected(Vec<u8>);

impl Expected {
    fn read(path: &Path) -> Self {
        Self(std::fs::read(path.join("expected.safetensors")).unwrap())
    }

    fn words(&self, name: &str) -> Option<Vec<[u8; 4]>> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let view = tensors.tensor(name).ok()?;
        Some(view.data().chunks_exact(4).map(|word| word.try_into().unwrap()).collect())
    }

    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        Some(self.words(name)?.into_iter().map(f32::from_le_bytes).collect())
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        let words = self.words(name).unwrap_or_else(|| panic!("{name} is missing"));
        words.into_iter().map(i32::from_le_bytes).collect()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.ints(name).into_iter().map(|id| id as u32).collect()
    }
}

/// A prompt of the oracle.
pub(crate) fn prompt_ids(prompt: usize) -> Vec<u32> {
    Expected::read(&oracle().join(DRAFTS[0])).ids(&format!("prompt_{prompt}.token_ids"))
}

/// The oracle's target with a draft beside it, and the draft's target ids.
fn open<B: Backend>(mut new: impl FnMut() -> B, draft: &str, variant: Option<&str>) -> Model<B> {
    let folder = tempfile::tempdir().unwrap();
    write_draft(draft, variant, folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let blueprint = DraftBlueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut backend = new();
    let capacity = Capacity {
        max_tokens: 512,
        max_logits_rows: 512,
        max_num_seqs: 8,
        block_size: BLOCK_SIZE,
        cache_dtype: CacheDtype::F32,
    };
    let cache = blueprint.cache_shape(NUM_BLOCKS, BLOCK_SIZE, CacheDtype::F32);
    let drafter = Eagle3Drafter::load(&checkpoint, &blueprint, 8, &mut backend, &capacity, &cache).unwrap();
    let model = load_folder(backend, &oracle().join("target"), CacheDtype::F32);
    blueprint.check(model.blueprint()).unwrap();
    model.with_draft(Some(Drafter::Eagle3(drafter)))
}

/// A plan of one sequence that owns every block in reverse order, with logits of all rows.
pub(crate) fn plan_of(tokens: &[u32], start: usize, expanded_until: usize) -> StepPlan {
    let blocks: Vec<BlockId> = (0..NUM_BLOCKS as u32).rev().map(BlockId).collect();
    let mut plan = StepPlan::default();
    let ids = tokens.iter().map(|id| TokenSource::from(*id));
    plan.add(ids, start, expanded_until, &blocks, BLOCK_SIZE);
    plan.logits_rows = (0..tokens.len() as u32).map(Row).collect();
    plan
}

pub(crate) fn rows(range: std::ops::Range<usize>) -> Vec<Row> {
    range.map(|row| Row(row as u32)).collect()
}

/// Runs the target over tokens from position `start` on; logits of all rows.
fn target<B: Calibrate>(model: &mut Model<B>, tokens: &[u32], start: usize) -> Vec<f32> {
    model.forward(&plan_of(tokens, start, 0)).unwrap();
    model.read_logits(0..tokens.len()).unwrap().to_vec()
}

/// Runs the draft over the first rows of the target's last step; logits of all of them.
fn extend<B: Calibrate>(model: &mut Model<B>, shifted: &[u32], start: usize, expanded: usize) -> Vec<f32> {
    let source = rows(0..shifted.len());
    model.draft(&plan_of(shifted, start, expanded), DraftInput::Captured(&source)).unwrap();
    model.read_draft_logits().unwrap().to_vec()
}

/// Drafts greedily after the last slot of the draft's last step, of which `logits` are the last row:
/// tokens, logits and hidden states of the steps.
fn draft<B: Calibrate>(
    model: &mut Model<B>,
    slot: usize,
    row: usize,
    logits: &[f32],
) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let mut hidden = model.read_draft().output[row * D..(row + 1) * D].to_vec();
    let (mut tokens, mut all) = (vec![argmax(logits)], logits.to_vec());
    for step in 1..K {
        let source = rows(if step == 1 { row..row + 1 } else { 0..1 });
        let plan = plan_of(&tokens[step - 1..], slot + step, 0);
        model.draft(&plan, DraftInput::Own(&source)).unwrap();
        let logits = model.read_draft_logits().unwrap().to_vec();
        hidden.extend_from_slice(&model.read_draft().output);
        tokens.push(argmax(&logits));
        all.extend(logits);
    }
    (tokens, all, hidden)
}

/// The target's ids of a draft's logits; all for a draft with the whole vocabulary.
fn target_ids(draft: &str) -> Option<Vec<usize>> {
    let bytes = std::fs::read(oracle().join(draft).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor("d2t").ok()?;
    let offsets = view.data().chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().unwrap()));
    Some(offsets.enumerate().map(|(row, offset)| (row as i64 + offset) as usize).collect())
}

/// Columns of logits `[rows, vocab]` that the draft has; the others are minus infinity.
fn drafted_columns(logits: &[f32], vocab: usize, ids: Option<&[usize]>) -> Vec<f32> {
    let Some(ids) = ids else { return logits.to_vec() };
    let mut kept = Vec::new();
    for row in logits.chunks_exact(vocab) {
        assert_eq!(row.iter().filter(|logit| **logit > f32::NEG_INFINITY).count(), ids.len());
        kept.extend(ids.iter().map(|id| row[*id]));
    }
    kept
}

#[derive(Default)]
struct Worst(f32);

impl Worst {
    fn check(&mut self, what: &str, got: &[f32], expected: Option<Vec<f32>>) {
        let Some(expected) = expected else { return };
        // Variants hold the last rows of the logits.
        let difference = largest_difference(&got[got.len() - expected.len()..], &expected);
        assert!(difference <= TOLERANCE, "{what}: {difference}");
        self.0 = self.0.max(difference);
    }
}

/// One prompt: states, fused states, hidden states, logits and drafts.
fn check_prompt<B: Calibrate>(
    model: &mut Model<B>,
    expected: &Expected,
    prompt: usize,
    ids: Option<&[usize]>,
    expanded: bool,
    worst: &mut Worst,
) {
    let at = |name: &str| format!("prompt_{prompt}.{name}");
    let (tokens, shifted) = (expected.ids(&at("token_ids")), expected.ids(&at("shifted_ids")));
    let (n, vocab) = (tokens.len(), model.blueprint().vocab_size);
    target(model, &tokens, 0);
    let logits = extend(model, &shifted, 0, if expanded { n } else { 0 });
    let read = model.read_draft();
    let aux: Vec<f32> = (0..n)
        .flat_map(|row| read.states.iter().flat_map(move |state| &state[row * D..(row + 1) * D]))
        .copied()
        .collect();
    worst.check("aux", &aux, expected.floats(&at("aux")));
    worst.check("fused", &read.input, expected.floats(&at("fused")));
    worst.check("hidden", &read.output, expected.floats(&at("hidden")));
    worst.check("logits", &drafted_columns(&logits, vocab, ids), expected.floats(&at("logits")));
    let (drafts, logits, hidden) = draft(model, n - 1, n - 1, &logits[(n - 1) * vocab..]);
    worst.check("draft.logits", &drafted_columns(&logits, vocab, ids), expected.floats(&at("draft.logits")));
    worst.check("draft.hidden", &hidden, expected.floats(&at("draft.hidden")));
    assert_eq!(drafts, expected.ids(&at("draft.token_ids")), "drafts of prompt {prompt}");
}

/// The whole greedy run of a prompt: what is proposed and accepted at each step.
fn check_run<B: Calibrate>(model: &mut Model<B>, expected: &Expected, prompt: usize) {
    let at = |name: &str| format!("prompt_{prompt}.{name}");
    let mut tokens = expected.ids(&at("token_ids"));
    let (n, vocab) = (tokens.len(), model.blueprint().vocab_size);
    let mut logits = target(model, &tokens, 0);
    tokens.push(argmax(&logits[(n - 1) * vocab..]));
    let mut drafted = extend(model, &tokens[1..], 0, 0);
    let (mut lens, mut proposed, mut accepted, mut emitted) = (vec![], vec![], vec![], vec![]);
    let mut start = 0;
    while tokens.len() - n < 24 {
        // The draft's last slot is that of the last token but one.
        let (len, row) = (tokens.len(), tokens.len() - 2 - start);
        let (drafts, ..) = draft(model, len - 2, row, &drafted[row * vocab..(row + 1) * vocab]);
        let checked: Vec<u32> = [tokens[len - 1]].into_iter().chain(drafts.iter().copied()).collect();
        logits = target(model, &checked, len - 1);
        let sampled: Vec<u32> = logits.chunks_exact(vocab).map(argmax).collect();
        let held = drafts.iter().zip(&sampled).take_while(|(draft, token)| draft == token).count();
        tokens.extend_from_slice(&sampled[..held + 1]);
        start = len - 1;
        drafted = extend(model, &tokens[len..], start, 0);
        lens.push(len as i32);
        proposed.extend(drafts);
        accepted.push(held as i32);
        emitted.extend((0..=K).map(|i| if i <= held { sampled[i] as i32 } else { -1 }));
    }
    assert_eq!(lens, expected.ints(&at("spec.seq_len")), "prompt {prompt}");
    assert_eq!(proposed, expected.ids(&at("spec.proposed")), "prompt {prompt}");
    assert_eq!(accepted, expected.ints(&at("spec.accepted")), "prompt {prompt}");
    assert_eq!(emitted, expected.ints(&at("spec.emitted")), "prompt {prompt}");
    assert_eq!(tokens[n..n + 24], expected.ids(&at("spec.tokens")), "prompt {prompt}");
}

pub(crate) fn check<B: Calibrate>(new: impl Fn() -> B, drafts: &[&str]) {
    let mut worst = Worst::default();
    for name in drafts {
        let (folder, ids) = (oracle().join(name), target_ids(name));
        let expected = Expected::read(&folder);
        let mut model = open(&new, name, None);
        for prompt in 0..4 {
            for expanded in [false, true] {
                check_prompt(&mut model, &expected, prompt, ids.as_deref(), expanded, &mut worst);
            }
            check_run(&mut model, &expected, prompt);
        }
        for entry in std::fs::read_dir(folder.join("variants")).unwrap() {
            let path = entry.unwrap().path();
            let variant = path.file_name().unwrap().to_str().unwrap();
            let mut model = open(&new, name, Some(variant));
            println!("{name}/{variant}");
            let mut variant = Expected::read(&path);
            // The prompt's ids are in the draft's own file.
            variant.0 = with_ids(&variant.0, &expected);
            check_prompt(&mut model, &variant, 2, ids.as_deref(), false, &mut worst);
        }
    }
    println!("largest difference: {:e} (allowed {TOLERANCE:e})", worst.0);
}

/// The tensors of a variant with the ids of prompt 2.
fn with_ids(variant: &[u8], base: &Expected) -> Vec<u8> {
    let (variant, base) =
        (SafeTensors::deserialize(variant).unwrap(), SafeTensors::deserialize(&base.0).unwrap());
    let mut tensors: HashMap<String, TensorView<'_>> = variant.tensors().into_iter().collect();
    for name in ["prompt_2.token_ids", "prompt_2.shifted_ids"] {
        tensors.insert(name.into(), base.tensor(name).unwrap());
    }
    safetensors::serialize(tensors, None).unwrap()
}

#[test]
fn drafts_of_the_reference_backend_match_the_golden_ones() {
    check(|| ReferenceBackend, &DRAFTS);
}

#[test]
fn drafts_of_the_cpu_backend_match_the_golden_ones() {
    check(exact_cpu, &DRAFTS);
}

#[test]
fn drafts_on_ranks_match_the_golden_ones() {
    check(|| Group::new(vec![exact_cpu(), exact_cpu()]).unwrap(), &DRAFTS);
}

fn exact_cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { activations: Activations::F32, ..Default::default() })
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = logits.iter().map(|logit| (f64::from(logit - greatest) / f64::from(temperature)).exp());
    let powers: Vec<f64> = powers.collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Draft and target draw with the same noise. Where their distributions differ by `d` (half the sum of the
/// differences), both draw the same token with a chance of at least (1 - d) / (1 + d) (Daliri, Musco and Suresh,
/// arXiv 2408.07978); rejection sampling keeps 1 - d.
#[test]
fn acceptance_with_shared_noise_is_not_below_its_bound() {
    const DRAWS: u64 = 100;
    println!("| draft | temperature | d | bound | accepted | rejection sampling |");
    for name in DRAFTS {
        let expected = Expected::read(&oracle().join(name));
        let mut model = open(|| ReferenceBackend, name, None);
        let vocab = model.blueprint().vocab_size;
        // Pairs of rows that guess the same token.
        let mut pairs: Vec<(Vec<f32>, Vec<f32>)> = Vec::new();
        for prompt in [2, 3] {
            let at = |what: &str| format!("prompt_{prompt}.{what}");
            let text = [expected.ids(&at("token_ids")), expected.ids(&at("spec.tokens"))].concat();
            let logits = target(&mut model, &text, 0);
            let drafted = extend(&mut model, &text[1..], 0, 0);
            let rows = logits.chunks_exact(vocab).skip(1).zip(drafted.chunks_exact(vocab));
            pairs.extend(rows.map(|(target, draft)| (target.to_vec(), draft.to_vec())));
        }
        for temperature in [0.3f32, 0.7, 1.0, 1.5] {
            let (mut distance, mut bound, mut accepted) = (0.0, 0.0, 0);
            let (mut sampler, history) = (Sampler::default(), History::new(&[]));
            for (position, (target, draft)) in pairs.iter().enumerate() {
                let (p, q) = (softmax(target, temperature), softmax(draft, temperature));
                let d = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
                distance += d;
                bound += (1.0 - d) / (1.0 + d);
                for seed in 0..DRAWS {
                    let params = SamplingParams { temperature, seed, ..Default::default() };
                    let draw = params.draw(&history, position as u64, &[]);
                    let mut token = |row: &[f32]| {
                        let survey = sampler.survey(row);
                        sampler.draw(row, survey, &draw).unwrap()
                    };
                    accepted += usize::from(token(target) == token(draft));
                }
            }
            let rows = pairs.len() as f64;
            let (d, bound, accepted) = (distance / rows, bound / rows, accepted as f64 / rows / DRAWS as f64);
            println!("| {name} | {temperature} | {d:.3} | {bound:.3} | {accepted:.3} | {:.3} |", 1.0 - d);
            assert!(accepted >= bound, "{name} at {temperature}: {accepted} of {bound}");
        }
    }
}

/// The oracle's target served with the draft of a folder.
fn serve(
    backend: BackendChoice,
    draft: Option<&Path>,
    edit: impl FnOnce(&mut EngineOptions),
) -> Result<StartedEngine, EngineError> {
    let checkpoint = Checkpoint::open(&oracle().join("target")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut options = EngineOptions { backend, num_blocks: 256, ..options() };
    options.scheduler.max_model_len = 1024;
    if let Some(folder) = draft {
        options.speculation = speculation::Config {
            method: Method::Eagle3,
            draft: Some(folder.into()),
            adaptive: false,
            max_tokens: K,
            ..speculation::Config::default()
        };
    }
    edit(&mut options);
    start_engine(&checkpoint, blueprint, &options, Arc::new(Metrics::new("golden", true)), &mut |_| ())
}

pub(crate) fn cpu(activations: Activations) -> BackendChoice {
    BackendChoice::Cpu(CpuOptions { activations, ..Default::default() })
}

/// The engine accepts what the oracle accepts, step by step: slots, shift, states and rewinds are right.
#[test]
fn the_engine_accepts_as_many_drafts_as_the_oracle() {
    for name in DRAFTS {
        for chunk in [512, 3] {
            let expected = Expected::read(&oracle().join(name));
            let edit = |options: &mut EngineOptions| options.scheduler.max_prefill_tokens = chunk;
            let engine = serve(cpu(Activations::F32), Some(&oracle().join(name)), edit).unwrap();
            for i in 0..4 {
                let at = |what: &str| format!("prompt_{i}.{what}");
                let ids = expected.ids(&at("token_ids"));
                let replies = runtime().block_on(run_all(&engine.handle, vec![request(&ids, greedy(24))]));
                assert_eq!(replies[0].tokens, expected.ids(&at("spec.tokens")), "{name} prompt {i}");
                // The last step of the oracle may pass the end of the reply.
                let accepted = expected.ints(&at("spec.accepted"));
                let all: i32 = accepted.iter().sum();
                let least: i32 = accepted[..accepted.len() - 1].iter().sum();
                let got = replies[0].drafted.0 as i32;
                assert!(
                    (least..=all).contains(&got),
                    "{name} prompt {i}: {got} of {least} to {all} accepted"
                );
            }
            finish(engine);
        }
    }
}

/// Requests of many kinds, at once, in few blocks: the same bits with a draft model as without.
fn drafts_change_no_bits(backend: BackendChoice, draft: &str) {
    let cases = (0..24).map(|i| {
        let params = SamplingParams {
            temperature: [0.0, 1.0, 0.7][i % 3],
            top_k: [0, 40][i % 2],
            top_p: [1.0, 0.9][i / 2 % 2],
            repetition_penalty: [1.12, 1.0][i % 2],
            frequency_penalty: [0.0, 0.3][i / 2 % 2],
            min_tokens: [0, 5][i % 2],
            max_tokens: [1, 2, 17, 40][i % 4],
            seed: i as u64 / 2,
            logprobs: Some(2),
            ..Default::default()
        };
        request(&prompt([1, 15, 16, 33, 70][i % 5], i as u64 / 3), params)
    });
    let cases: Vec<_> = cases.collect();
    let run = |draft: Option<&Path>, num_blocks: usize, chunk: usize| -> Vec<Reply> {
        let engine = serve(backend.clone(), draft, |options| {
            options.scheduler.max_model_len = 128;
            (options.num_blocks, options.scheduler.max_prefill_tokens) = (num_blocks, chunk);
        })
        .unwrap();
        let replies = runtime().block_on(run_all(&engine.handle, cases.clone()));
        finish(engine);
        replies
    };
    let straight = run(None, 256, 512);
    for (num_blocks, chunk) in [(256, 512), (9, 7)] {
        let drafted = run(Some(&oracle().join(draft)), num_blocks, chunk);
        for (i, (reply, straight)) in drafted.iter().zip(&straight).enumerate() {
            assert_eq!(reply.bits(), straight.bits(), "{draft}, {num_blocks} blocks, request {i}");
            assert_eq!(reply.finish, straight.finish);
        }
        assert!(drafted.iter().map(|reply| reply.drafted.0).sum::<usize>() > 0);
    }
}

#[test]
fn draft_models_change_no_bits() {
    drafts_change_no_bits(cpu(Activations::F32), "draft-mla");
    drafts_change_no_bits(cpu(Activations::Bf16), "draft-llama");
    drafts_change_no_bits(BackendChoice::Reference, "draft-mla");
}

/// A cached prefix brings the draft's keys along: a prompt said again is drafted for as well as the first time.
#[test]
fn a_prefix_hit_drafts_as_well() {
    let prompt = [prompt_ids(3), prompt_ids(2)].concat();
    for chunk in [512, 7] {
        let edit = |options: &mut EngineOptions| options.scheduler.max_prefill_tokens = chunk;
        let engine = serve(cpu(Activations::F32), Some(&oracle().join("draft-mla")), edit).unwrap();
        let ask =
            || runtime().block_on(run_all(&engine.handle, vec![request(&prompt, greedy(24))])).remove(0);
        let (first, second) = (ask(), ask());
        assert_eq!(first.bits(), second.bits());
        assert!(second.cached_tokens >= 48 && first.cached_tokens == 0, "{}", second.cached_tokens);
        assert_eq!(first.drafted, second.drafted);
        assert!(first.drafted.0 > 0);
        finish(engine);
    }
}

/// So do blocks that left the cache and came back, for both kinds of layers.
#[test]
fn a_displaced_prefix_drafts_as_well() {
    let (long, other) = ([prompt_ids(3), prompt_ids(2)].concat(), prompt(1000, 9));
    for draft in DRAFTS {
        let edit = |options: &mut EngineOptions| {
            options.num_blocks = 64;
            options.tiers = Some(TierOptions { host_bytes: 256 << 20, disk: None });
        };
        let engine = serve(cpu(Activations::F32), Some(&oracle().join(draft)), edit).unwrap();
        let ask = |prompt: &[u32]| {
            runtime().block_on(run_all(&engine.handle, vec![request(prompt, greedy(20))])).remove(0)
        };
        let (first, _, second) = (ask(&long), ask(&other), ask(&long));
        assert_eq!(first.bits(), second.bits());
        assert!(second.cached_tokens >= 48, "{}", second.cached_tokens);
        assert_eq!(first.drafted, second.drafted);
        assert!(first.drafted.0 > 0);
        finish(engine);
    }
}

/// A draft with every linear of the layer packed.
fn packed_draft(packing: Packing) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_draft("draft-mla", None, folder.path());
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in stored.tensors() {
        let (shape, data) = (view.shape().to_vec(), view.data());
        let whole_groups = shape.last().is_some_and(|columns| columns.is_multiple_of(32));
        let Some(stem) = name.strip_suffix("_proj.weight").filter(|_| whole_groups) else {
            tensors.push((name, view.dtype(), shape, data.to_vec()));
            continue;
        };
        let values: Vec<f32> =
            data.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
        let packed = packing.pack(&values, [shape[0], shape[1]]).unwrap();
        let mut put = |part: &str, dtype, shape: &[usize], bytes| {
            tensors.push((format!("{stem}_proj.{part}"), dtype, shape.to_vec(), bytes));
        };
        let half_width = [shape[0], shape[1] / 2];
        match (packing, packed.tensor_scale) {
            (Packing::Nvfp4(_), TensorScale::Multiply(scale)) => {
                put("weight", Dtype::U8, &half_width, packed.codes);
                put("weight_scale", Dtype::F8_E4M3, &packed.scale_shape, packed.scales);
                put("weight_scale_2", Dtype::F32, &[], scale.to_le_bytes().to_vec());
            }
            (Packing::Mxfp4 { .. }, _) => {
                put("weight", Dtype::U8, &half_width, packed.codes);
                put("weight_scale", Dtype::U8, &packed.scale_shape, packed.scales);
            }
            (Packing::Int4Group32, _) => {
                put("weight_packed", Dtype::I32, &[shape[0], shape[1] / 8], packed.codes);
                put("weight_scale", Dtype::BF16, &packed.scale_shape, packed.scales);
                let declared = shape.iter().flat_map(|d| (*d as i32).to_le_bytes()).collect();
                put("weight_shape", Dtype::I32, &[2], declared);
            }
            _ => {
                put("weight", Dtype::F8_E4M3, &shape, packed.codes);
                put("weight_scale", Dtype::F32, &packed.scale_shape, packed.scales);
            }
        }
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    folder
}

/// Drafts in every packed format load as targets do, and draft nearly as well.
#[test]
fn packed_drafts_are_loaded() {
    let ids = prompt_ids(2);
    let plain = Expected::read(&oracle().join("draft-mla"));
    let accepted: i32 = plain.ints("prompt_2.spec.accepted").iter().sum();
    for packing in [
        Packing::Nvfp4(BlockScales::Max),
        Packing::Mxfp4 { smallest_scale: 1 },
        Packing::Int4Group32,
        Packing::Fp8Tensor,
    ] {
        let folder = packed_draft(packing);
        let engine = serve(cpu(Activations::F32), Some(folder.path()), |_| ()).unwrap();
        let replies = runtime().block_on(run_all(&engine.handle, vec![request(&ids, greedy(24))]));
        assert_eq!(replies[0].tokens, plain.ids("prompt_2.spec.tokens"), "{packing:?}");
        println!("{packing:?}: {} of {accepted} accepted", replies[0].drafted.0);
        assert!(2 * replies[0].drafted.0 as i32 > accepted, "{packing:?}: {:?}", replies[0].drafted);
        finish(engine);
    }
}

/// A draft whose logits are no numbers is switched off, and the reply is what it was.
#[test]
fn a_draft_of_nans_is_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(oracle().join("draft-mla/config.json"), folder.path().join("config.json")).unwrap();
    let bytes = std::fs::read(oracle().join("draft-mla/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let nans: Vec<u8> = half::bf16::NAN.to_le_bytes().repeat(D);
    let broken = tensors.tensors().into_iter().map(|(name, view)| match name.as_str() {
        "norm.weight" => (name, TensorView::new(view.dtype(), vec![D], &nans).unwrap()),
        _ => (name, view),
    });
    let all: HashMap<String, TensorView<'_>> = broken.collect();
    std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(all, None).unwrap())
        .unwrap();
    let engine = serve(cpu(Activations::F32), Some(folder.path()), |_| ()).unwrap();
    let expected = Expected::read(&oracle().join("draft-mla"));
    let ids = expected.ids("prompt_2.token_ids");
    let replies = runtime().block_on(run_all(&engine.handle, vec![request(&ids, greedy(24))]));
    assert_eq!(replies[0].tokens, expected.ids("prompt_2.spec.tokens"));
    assert_eq!((replies[0].finish, replies[0].drafted), (FinishReason::Length, (0, 0)));
    finish(engine);
}

#[test]
fn drafts_that_cannot_be_used_are_refused() {
    let refusal = |backend: BackendChoice, folder: &Path| {
        serve(backend, Some(folder), |_| ()).err().expect("it is refused").to_string()
    };
    let folder = tempfile::tempdir().unwrap();
    // A map that leaves the target's vocabulary.
    std::fs::copy(oracle().join("draft-llama/config.json"), folder.path().join("config.json")).unwrap();
    let bytes = std::fs::read(oracle().join("draft-llama/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let map: Vec<u8> =
        tensors.tensor("d2t").unwrap().data().chunks(8).flat_map(|_| 600i64.to_le_bytes()).collect();
    let wrong = tensors.tensors().into_iter().map(|(name, view)| match name.as_str() {
        "d2t" => (name, TensorView::new(view.dtype(), view.shape().to_vec(), &map).unwrap()),
        _ => (name, view),
    });
    let all: HashMap<String, TensorView<'_>> = wrong.collect();
    std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(all, None).unwrap())
        .unwrap();
    let text = refusal(cpu(Activations::F32), folder.path());
    assert!(text.contains("d2t: row 0 has offset 600"), "{text}");
    let text = refusal(cpu(Activations::F32), &oracle().join("target"));
    assert!(text.contains("architectures"), "{text}");
    let text = refusal(cpu(Activations::F32), Path::new("/nowhere"));
    assert!(text.starts_with("speculation.draft"), "{text}");
}
