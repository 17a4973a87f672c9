//! The forward pass against logits of an independent implementation (`tests/golden/logits`, see its README).

use std::env;
use std::path::{Path, PathBuf};

use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Fp4Activations, Inventory, LoadError, Model, Uploads, Weights};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::host::Group;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{
    Activations, AttentionForm, Backend, BlockId, CacheDtype, Calibrate, Capacity, Row, StepPlan, TokenSource,
};

const FOLDERS: [&str; 4] = ["kimi", "thinking", "moonlight", "grouped"];
pub(crate) const BLOCK_SIZE: usize = 16;
pub(crate) const NUM_BLOCKS: usize = 64;

/// `tests/golden/NAME`, a file or a folder. `TEST_GOLDEN` is where tests that were carried to another machine find it.
pub(crate) fn golden_path(name: &str) -> PathBuf {
    let golden = env::var_os("TEST_GOLDEN")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"), PathBuf::from);
    let path = golden.join(name);
    assert!(path.exists(), "golden data is missing: {}", path.display());
    path
}

/// `tests/golden/logits/NAME`.
pub(crate) fn golden_folder(name: &str) -> PathBuf {
    golden_path("logits").join(name)
}

/// One prompt of a golden folder.
pub(crate) struct GoldenPrompt {
    /// `[n]`.
    pub(crate) token_ids: Vec<u32>,
    /// `[n, vocab]`.
    pub(crate) logits: Vec<f32>,
    /// `[24]`.
    pub(crate) greedy: Vec<u32>,
}

/// The four prompts of a golden folder.
pub(crate) fn golden_prompts(name: &str) -> Vec<GoldenPrompt> {
    let bytes = std::fs::read(golden_folder(name).join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: String| -> Vec<u32> {
        let view = tensors.tensor(&name).unwrap();
        view.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let floats = |name: String| -> Vec<f32> {
        let view = tensors.tensor(&name).unwrap();
        view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    (0..4)
        .map(|i| GoldenPrompt {
            token_ids: ids(format!("prompt_{i}.token_ids")),
            logits: floats(format!("prompt_{i}.logits")),
            greedy: ids(format!("prompt_{i}.greedy")),
        })
        .collect()
}

pub(crate) fn load<B: Backend>(backend: B, name: &str, dtype: CacheDtype) -> Model<B> {
    load_folder(backend, &golden_folder(name), dtype)
}

/// The model of a folder, with room for 1024 tokens of 8 sequences.
pub(crate) fn load_folder<B: Backend>(backend: B, folder: &Path, dtype: CacheDtype) -> Model<B> {
    load_for(backend, folder, dtype, 8)
}

/// The same for so many sequences.
pub(crate) fn load_for<B: Backend>(
    backend: B,
    folder: &Path,
    dtype: CacheDtype,
    max_num_seqs: usize,
) -> Model<B> {
    load_with(backend, folder, dtype, max_num_seqs, None).unwrap()
}

/// The same with rows of the FFNs in another form.
pub(crate) fn load_with<B: Backend>(
    mut backend: B,
    folder: &Path,
    dtype: CacheDtype,
    max_num_seqs: usize,
    activations: Option<Fp4Activations>,
) -> Result<Model<B>, LoadError> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let inventory = Inventory::take(&checkpoint, &blueprint);
    let (uploads, progress) = (Uploads::default(), &mut |_, _| ());
    let weights = Weights::load_inventory(
        &checkpoint,
        &blueprint,
        inventory,
        activations,
        &mut backend,
        &uploads,
        progress,
    )?;
    let cache = blueprint.cache_shape(NUM_BLOCKS, BLOCK_SIZE, dtype);
    let eps = blueprint.rms_norm_eps;
    let capacity = Capacity {
        max_tokens: 512,
        max_logits_rows: 512,
        max_num_seqs,
        block_size: BLOCK_SIZE,
        cache_dtype: dtype,
    };
    Ok(Model::new(backend, blueprint, weights, eps, capacity, &cache).unwrap())
}

/// Logits `[len, vocab]` of positions `start..start + len` of one sequence that owns every block in reverse order.
pub(crate) fn step<B: Calibrate>(
    model: &mut Model<B>,
    tokens: &[u32],
    start: usize,
    form: AttentionForm,
) -> Vec<f32> {
    let end = start + tokens.len();
    step_until(model, tokens, start, if form == AttentionForm::Expanded { end } else { 0 })
}

/// The same, in expanded form below a position.
pub(crate) fn step_until<B: Calibrate>(
    model: &mut Model<B>,
    tokens: &[u32],
    start: usize,
    expanded_until: usize,
) -> Vec<f32> {
    let blocks: Vec<BlockId> = (0..NUM_BLOCKS as u32).rev().map(BlockId).collect();
    let mut plan = StepPlan::default();
    let ids = tokens.iter().map(|id| TokenSource::from(*id));
    plan.add(ids, start, expanded_until, &blocks, BLOCK_SIZE);
    plan.logits_rows = (0..tokens.len() as u32).map(Row).collect();
    model.forward(&plan).unwrap();
    model.read_logits(0..tokens.len()).unwrap().to_vec()
}

pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

pub(crate) fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a))).unwrap() as u32
}

/// Checks every prompt of every folder: logits in both forms, whole and in chunks; greedy continuations when `greedy`.
fn check<B: Calibrate>(new: impl Fn() -> B, dtype: CacheDtype, tolerance: f32, greedy: bool) {
    let mut worst = 0f32;
    for name in FOLDERS {
        let mut model = load(new(), name, dtype);
        for (i, prompt) in golden_prompts(name).into_iter().enumerate() {
            let vocab = model.blueprint().vocab_size;
            for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
                let whole = step(&mut model, &prompt.token_ids, 0, form);
                let difference = largest_difference(&whole, &prompt.logits);
                worst = worst.max(difference);
                assert!(difference <= tolerance, "{name} prompt {i} {form:?}: {difference} > {tolerance}");
                let mut chunked = Vec::new();
                for (c, chunk) in prompt.token_ids.chunks(5).enumerate() {
                    chunked.extend(step(&mut model, chunk, c * 5, form));
                }
                assert!(whole == chunked, "{name} prompt {i} {form:?}: chunks of 5 change bits");
            }
            if greedy {
                let mut reply = vec![argmax(&prompt.logits[prompt.logits.len() - vocab..])];
                while reply.len() < prompt.greedy.len() {
                    let position = prompt.token_ids.len() + reply.len() - 1;
                    let row = step(&mut model, &reply[reply.len() - 1..], position, AttentionForm::Absorbed);
                    reply.push(argmax(&row));
                }
                assert_eq!(reply, prompt.greedy, "{name} prompt {i}: greedy continuation");
            }
        }
    }
    println!("largest logit difference over all folders: {worst:e} (allowed {tolerance:e})");
}

/// With rounded activations a router may pick another of two nearly equal experts, and in these tiny random networks that moves a logit by 1
/// or more. So the typical position is checked, and that such picks stay rare.
fn check_rounded<B: Calibrate>(new: impl Fn() -> B, dtype: CacheDtype) {
    let mut differences = Vec::new();
    for name in FOLDERS {
        let mut model = load(new(), name, dtype);
        for prompt in golden_prompts(name) {
            let vocab = model.blueprint().vocab_size;
            for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
                let whole = step(&mut model, &prompt.token_ids, 0, form);
                let rows = whole.chunks(vocab).zip(prompt.logits.chunks(vocab));
                differences.extend(rows.map(|(a, b)| largest_difference(a, b)));
            }
        }
    }
    check_typical(differences);
}

/// The bounds of rounded activations on the largest difference of each position.
pub(crate) fn check_typical(mut differences: Vec<f32>) {
    differences.sort_by(f32::total_cmp);
    let at = |share: f64| differences[(differences.len() as f64 * share) as usize];
    println!("logit difference: median {}, 90 % below {}, largest {}", at(0.5), at(0.9), at(0.999));
    assert!(at(0.5) < 0.1, "median {}", at(0.5));
    assert!(at(0.75) < 0.2, "upper quartile {}", at(0.75));
}

fn cpu(activations: Activations) -> CpuBackend {
    CpuBackend::new(CpuOptions { activations, ..Default::default() })
}

#[test]
fn cpu_backend_in_f32_mode_matches_golden_logits() {
    check(|| cpu(Activations::F32), CacheDtype::F32, 1e-3, true);
}

#[test]
fn cpu_backend_in_bf16_mode_stays_near_golden_logits() {
    check_rounded(|| cpu(Activations::Bf16), CacheDtype::Bf16);
}

#[test]
fn reference_backend_matches_golden_logits() {
    check(|| ReferenceBackend, CacheDtype::F32, 1e-3, true);
}

/// `world` ranks with one thread each.
pub(crate) fn cpu_ranks(world: usize, activations: Activations) -> Group<CpuBackend> {
    let options = CpuOptions { activations, threads: 1, ..Default::default() };
    Group::new((0..world).map(|_| CpuBackend::new(options)).collect()).unwrap()
}

/// Heads, inner units, experts, vocabulary and cached positions are split over ranks: the logits are those of one backend, in both forms and
/// in chunks, and so is what greedy decoding writes.
#[test]
fn two_and_four_cpu_ranks_match_golden_logits() {
    for world in [2, 4] {
        check(|| cpu_ranks(world, Activations::F32), CacheDtype::F32, 1e-3, true);
    }
}

#[test]
fn two_cpu_ranks_in_bf16_mode_stay_near_golden_logits() {
    check_rounded(|| cpu_ranks(2, Activations::Bf16), CacheDtype::Bf16);
}

#[test]
fn two_reference_ranks_match_golden_logits() {
    let ranks = || Group::new(vec![ReferenceBackend, ReferenceBackend]).unwrap();
    check(ranks, CacheDtype::F32, 1e-3, true);
}

/// More ranks than heads, and blocks that do not part evenly: said before anything is computed, with the setting.
#[test]
fn what_cannot_be_split_is_refused() {
    let folder = golden_folder("kimi");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut eight = cpu_ranks(8, Activations::F32);
    let loaded = Weights::load(&checkpoint, &blueprint, &mut eight, &mut |_, _| ());
    let error = loaded.err().unwrap();
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("device.ranks"), "{reason}");

    let mut three = cpu_ranks(3, Activations::F32);
    let weights = Weights::load(&checkpoint, &blueprint, &mut three, &mut |_, _| ()).unwrap();
    let cache = blueprint.cache_shape(NUM_BLOCKS, BLOCK_SIZE, CacheDtype::F32);
    let capacity = Capacity {
        max_tokens: 8,
        max_logits_rows: 8,
        max_num_seqs: 1,
        block_size: BLOCK_SIZE,
        cache_dtype: cache.dtype,
    };
    let reason = Model::new(three, blueprint, weights, 1e-6, capacity, &cache).err().unwrap().to_string();
    assert!(reason.contains("kv_cache.block_size") && reason.contains("device.ranks"), "{reason}");
}

/// Ranks that hold no position of a sequence yet, and a cache of codes.
#[test]
fn ranks_with_an_fp8_cache_give_what_one_backend_gives() {
    for row_scales in [true, false] {
        let dtype = CacheDtype::Fp8(CachedRowFormat { row_scales, rope_codes: false });
        for name in FOLDERS {
            let mut one = load(cpu(Activations::F32), name, dtype);
            let mut ranks = load(cpu_ranks(4, Activations::F32), name, dtype);
            let prompt = &golden_prompts(name)[3].token_ids;
            for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
                for len in [1, 3, prompt.len()] {
                    let expected = step(&mut one, &prompt[..len], 0, form);
                    let got = step(&mut ranks, &prompt[..len], 0, form);
                    let vocab = expected.len() / len;
                    let rows = expected.chunks(vocab).zip(got.chunks(vocab));
                    let mut differences: Vec<f32> = rows.map(|(a, b)| largest_difference(a, b)).collect();
                    differences.sort_by(f32::total_cmp);
                    // A value at the edge between two codes may fall to either side, and that may move a router: rarely.
                    let median = differences[len / 2];
                    assert!(median < 0.01, "{name} {form:?} {len} tokens: {median}");
                }
            }
        }
    }
}
