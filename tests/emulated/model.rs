//! The model and the engine on the CUDA backend, over the emulator.

use std::path::Path;
use std::sync::{Arc, Mutex};

use perigee::boot::engine::{BackendChoice, EngineOptions, start_on};
use perigee::boot::equipped::Equipped;
use perigee::nano;
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_cuda::{Arch, CudaBackend};
use perigee_decoding::sampling::SamplingParams;
use perigee_decoding::speculation;
use perigee_engine::scheduler;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Model, Weights};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::{
    Activations, AttentionForm, BlockId, CacheDtype, Calibrate, Capacity, Parallelism, Row, StepPlan,
    TokenSource,
};
use perigee_telemetry::Metrics;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::{Counts, TestDriver, backend};
use crate::eagle3;
use crate::engine::{Reply, finish, options, request, run_all, runtime};
use crate::golden::{
    BLOCK_SIZE, NUM_BLOCKS, argmax, check_typical, golden_folder, golden_prompts, largest_difference, load,
    load_folder, step,
};
use crate::mtp;
use crate::quantized::expected_logits;

/// Logits of one prompt of each folder, in both forms and in chunks, within 1e-3 of an independent implementation.
#[test]
fn golden_logits_in_both_forms_and_in_chunks() {
    for (name, arch, seed) in [
        ("kimi", Arch::Sm90a, Some(7)),
        ("thinking", Arch::Sm80, None),
        ("moonlight", Arch::Sm120a, Some(8)),
        ("grouped", Arch::Sm90a, None),
    ] {
        let Some(backend) = backend(arch, seed, Activations::F32) else { return };
        let mut model = load(backend, name, CacheDtype::F32);
        let prompt = &golden_prompts(name)[1];
        for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
            let whole = step(&mut model, &prompt.token_ids, 0, form);
            let off = largest_difference(&whole, &prompt.logits);
            println!("{name} {form:?}: {off:e}");
            assert!(off <= 1e-3, "{name} {form:?}: {off}");
            let mut chunked = Vec::new();
            for (c, chunk) in prompt.token_ids.chunks(5).enumerate() {
                chunked.extend(step(&mut model, chunk, c * 5, form));
            }
            assert!(whole == chunked, "{name} {form:?}: chunks of 5 change bits");
        }
    }
}

/// States, logits and drafts of an Eagle3 draft are those of an independent implementation, and so are its whole runs.
#[test]
fn golden_drafts() {
    if backend(Arch::Sm90a, None, Activations::F32).is_none() {
        return;
    }
    eagle3::check(|| backend(Arch::Sm90a, Some(5), Activations::F32).unwrap(), &eagle3::DRAFTS);
}

/// Logits of a prediction layer are those of a one-layer network over the rows that it is fed.
#[test]
fn prediction_layers_compute_what_they_should() {
    if backend(Arch::Sm90a, None, Activations::F32).is_none() {
        return;
    }
    mtp::check(|| backend(Arch::Sm90a, Some(6), Activations::F32).unwrap());
}

/// Replies with a draft model, recorded steps and rewinds included, have the bits that they have without one.
#[test]
fn drafts_change_no_bits() {
    for (draft, arithmetic, dtype) in [
        (
            "draft-mla",
            Activations::Bf16,
            CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false }),
        ),
        ("draft-llama", Activations::F32, CacheDtype::Bf16),
    ] {
        let target = eagle3::oracle().join("target");
        let config = speculation::Config {
            method: speculation::Method::Eagle3,
            draft: Some(eagle3::oracle().join(draft)),
            adaptive: false,
            max_tokens: 3,
            ..speculation::Config::default()
        };
        let Some(straight) = replies(&target, None, arithmetic, dtype) else { return };
        let drafted = replies(&target, Some(config), arithmetic, dtype).unwrap();
        for (drafted, straight) in drafted.iter().zip(&straight) {
            assert_eq!(drafted.bits(), straight.bits(), "{draft}");
        }
        let accepted: usize = drafted.iter().map(|reply| reply.drafted.0).sum();
        println!("{draft}: {accepted} drafted tokens accepted");
        assert!(accepted > 0, "{draft}");
    }
}

/// The same of a prediction layer, which foresees most of the reply.
#[test]
fn a_prediction_layer_changes_no_bits() {
    let folder = tempfile::tempdir().unwrap();
    mtp::write_foreseeing(folder.path(), |_| ());
    let fp8 = CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false });
    for (arithmetic, dtype) in [(Activations::F32, CacheDtype::F32), (Activations::Bf16, fp8)] {
        let Some(straight) = replies(folder.path(), None, arithmetic, dtype) else { return };
        let drafted = replies(folder.path(), Some(mtp::with_mtp()), arithmetic, dtype).unwrap();
        for (drafted, straight) in drafted.iter().zip(&straight) {
            assert_eq!(drafted.bits(), straight.bits());
        }
        let sum = |count: fn(&Reply) -> usize| drafted.iter().map(count).sum::<usize>();
        let (accepted, rejected) = (sum(|reply| reply.drafted.0), sum(|reply| reply.drafted.1));
        println!("{accepted} drafted tokens accepted, {rejected} rejected");
        assert!(accepted > rejected, "{accepted} accepted, {rejected} rejected");
    }
}

/// Replies of a checkpoint with these drafts; `None` without NVRTC.
fn replies(
    folder: &Path,
    speculation: Option<speculation::Config>,
    arithmetic: Activations,
    dtype: CacheDtype,
) -> Option<Vec<Reply>> {
    let backend = backend(Arch::Sm90a, Some(3), arithmetic)?;
    let checkpoint = Checkpoint::open(folder).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut options = options();
    options.scheduler.max_num_seqs = 4;
    options.scheduler.max_num_batched_tokens = 32;
    options.scheduler.max_model_len = 128;
    options.num_blocks = 32;
    options.speculation = speculation.unwrap_or(options.speculation);
    let metrics = Arc::new(Metrics::new("golden", true));
    let equipped = Equipped::new(backend, dtype);
    let engine = start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ()).unwrap();
    let requests = (0..3).map(|i| {
        let temperature = [0.0, 1.0, 0.7][i];
        let params = SamplingParams { temperature, max_tokens: 10, seed: i as u64, ..Default::default() };
        request(&eagle3::prompt_ids(1 + i), params)
    });
    let replies = runtime().block_on(run_all(&engine.handle, requests.collect()));
    finish(engine);
    Some(replies)
}

/// On tensor cores the logits of one prompt of each folder are near those of an independent implementation.
#[test]
fn tensor_cores_stay_near_golden_logits() {
    let mut differences = Vec::new();
    for (name, arch) in [("kimi", Arch::Sm90a), ("thinking", Arch::Sm80), ("moonlight", Arch::Sm120a)] {
        let Some(backend) = backend(arch, None, Activations::Bf16) else { return };
        let mut model = load(backend, name, CacheDtype::Bf16);
        let prompt = &golden_prompts(name)[1];
        for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
            let logits = step(&mut model, &prompt.token_ids, 0, form);
            let vocab = model.blueprint().vocab_size;
            let rows = logits.chunks(vocab).zip(prompt.logits.chunks(vocab));
            differences.extend(rows.map(|(a, b)| largest_difference(a, b)));
        }
    }
    check_typical(differences);
}

/// A golden network whose heads have the sizes of Kimi K2's, by zeros: prompts are attended by kernels for these sizes on B200 and B300, whole
/// and in chunks with the same bits, near the golden logits.
#[test]
fn heads_of_real_sizes_stay_near_golden_logits() {
    let folder = tempfile::tempdir().unwrap();
    write_with_wide_heads("moonlight", folder.path());
    let mut differences = Vec::new();
    for (arch, seed) in [(Arch::Sm100a, Some(4)), (Arch::Sm103a, None)] {
        let Some(backend) = backend(arch, seed, Activations::Bf16) else { return };
        let mut model = load_folder(backend, folder.path(), CacheDtype::Bf16);
        let prompt = &golden_prompts("moonlight")[1];
        let whole = step(&mut model, &prompt.token_ids, 0, AttentionForm::Expanded);
        let mut chunked = Vec::new();
        for (c, chunk) in prompt.token_ids.chunks(9).enumerate() {
            chunked.extend(step(&mut model, chunk, c * 9, AttentionForm::Expanded));
        }
        assert!(whole == chunked, "{arch}: chunks of 9 change bits");
        let vocab = model.blueprint().vocab_size;
        let rows = whole.chunks(vocab).zip(prompt.logits.chunks(vocab));
        differences.extend(rows.map(|(a, b)| largest_difference(a, b)));
    }
    // By `mma.sync` the median is 0.146, with heads of these sizes and of their own: products of every kind are rounded.
    differences.sort_by(f32::total_cmp);
    let median = differences[differences.len() / 2];
    assert!(median < 0.18, "median {median}");
}

/// Writes a golden network without scaled rotations with heads of 128 + 64 and 128 in place of 64 + 32 and 64. The new values are 0, and every
/// second pair of a rotation is new: the others have the angles that they had. Queries make up for the smaller factor on scores.
fn write_with_wide_heads(name: &str, to: &Path) {
    const HEADS: usize = 4;
    let config = std::fs::read_to_string(golden_folder(name).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert!(config["rope_scaling"].is_null());
    for (key, old, new) in
        [("qk_nope_head_dim", 64, 128), ("qk_rope_head_dim", 32, 64), ("v_head_dim", 64, 128)]
    {
        assert_eq!(config[key], old);
        config[key] = new.into();
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    // Of each new row of a head or of a latent's projection the old one.
    let plain = |row: usize| (row < 64).then_some(row);
    let rotated = |row: usize| (row % 4 < 2).then(|| row / 4 * 2 + row % 4);
    let query = |row: usize| if row < 128 { plain(row) } else { rotated(row - 128).map(|old| 64 + old) };
    let up = |row: usize| if row < 128 { plain(row) } else { plain(row - 128).map(|old| 64 + old) };
    let down = |row: usize| if row < 128 { Some(row) } else { rotated(row - 128).map(|old| 128 + old) };
    let bytes = std::fs::read(golden_folder(name).join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut wide: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in stored.tensors() {
        let mut shape = view.shape().to_vec();
        let row_bytes = view.data().len() / shape[0];
        // Parts of so many bytes, of each of `groups` groups of `old` the new ones.
        let spread =
            |groups: usize, part: usize, old: usize, new: usize, map: &dyn Fn(usize) -> Option<usize>| {
                let old_part = |group: usize, at: usize| &view.data()[(group * old + at) * part..][..part];
                let parts = (0..groups).flat_map(|group| (0..new).map(move |row| (group, row)));
                let zeros = vec![0; part];
                let bytes = parts
                    .map(|(group, row)| map(row).map_or(zeros.clone(), |at| old_part(group, at).to_vec()));
                bytes.collect::<Vec<_>>().concat()
            };
        let data = if name.ends_with("self_attn.q_proj.weight") {
            shape[0] *= 2;
            let larger = |bf16: &[u8]| {
                let value = half::bf16::from_le_bytes([bf16[0], bf16[1]]).to_f32();
                half::bf16::from_f32(value * std::f32::consts::SQRT_2).to_le_bytes()
            };
            spread(HEADS, row_bytes, 96, 192, &query).chunks(2).flat_map(larger).collect()
        } else if name.ends_with("kv_a_proj_with_mqa.weight") {
            shape[0] += 32;
            spread(1, row_bytes, 160, 192, &down)
        } else if name.ends_with("kv_b_proj.weight") {
            shape[0] *= 2;
            spread(HEADS, row_bytes, 128, 256, &up)
        } else if name.ends_with("o_proj.weight") {
            shape[1] *= 2;
            spread(shape[0] * HEADS, 2, 64, 128, &plain)
        } else {
            view.data().to_vec()
        };
        wide.push((name, view.dtype(), shape, data));
    }
    let views = wide
        .iter()
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Rows of several sequences in one step have the bits that they have alone, with padding and in an eager step.
#[test]
fn logits_do_not_depend_on_company() {
    for arithmetic in [Activations::F32, Activations::Bf16] {
        let Some(backend) = backend(Arch::Sm90a, Some(3), arithmetic) else { return };
        company_changes_no_bits(backend);
    }
}

fn company_changes_no_bits(backend: CudaBackend<TestDriver>) {
    let mut model =
        load(backend, "kimi", CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false }));
    let blocks: Vec<BlockId> = (0..64).map(BlockId).collect();
    let tables = [&blocks[..8], &blocks[8..16], &blocks[16..24]];
    let tokens =
        |seq: usize, len: usize| (0..len).map(move |i| TokenSource::from((7 * seq + 3 * i) as u32 % 500));
    let prompts = [17, 3, 9];
    let mut run = |sequences: &[usize], start: &[usize; 3], expanded: usize| -> Vec<f32> {
        let mut plan = StepPlan::default();
        for seq in sequences {
            let (first, end) = (start[*seq], prompts[*seq]);
            let ids = tokens(*seq, end).skip(first);
            plan.add(ids, first, expanded.min(end), tables[*seq], BLOCK_SIZE);
            plan.logits_rows.push(Row(plan.num_rows() as u32 - 1));
        }
        model.forward(&plan).unwrap();
        model.read_logits(0..sequences.len()).unwrap().to_vec()
    };
    let whole = [0; 3];
    let together = run(&[0, 1, 2], &whole, 12);
    let alone: Vec<f32> = (0..3).flat_map(|seq| run(&[seq], &whole, 12)).collect();
    assert!(together == alone, "prompts");
    // The last token of each once more: recorded steps of four rows, then of one.
    let last = prompts.map(|len| len - 1);
    let together = run(&[2, 0, 1], &last, 0);
    let alone: Vec<f32> = [2, 0, 1].into_iter().flat_map(|seq| run(&[seq], &last, 0)).collect();
    assert!(together == alone, "decoding");
}

/// A checkpoint with experts in NVFP4.
#[test]
fn a_modelopt_export_gives_the_expected_logits() {
    if let Some(gpu) = backend(Arch::Sm90a, Some(5), Activations::F32) {
        expected_logits("emulated GPU", gpu);
    }
}

/// The embedded model writes the same tokens as on the CPU.
#[test]
fn nano_says_what_it_says_on_the_cpu() {
    fn greedy<B: Calibrate>(mut backend: B) -> Vec<u32> {
        let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
        let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
        let weights = Weights::load(&checkpoint, &blueprint, &mut backend, &mut |_, _| ()).unwrap();
        let cache = blueprint.cache_shape(NUM_BLOCKS, BLOCK_SIZE, CacheDtype::Bf16);
        let eps = blueprint.rms_norm_eps;
        let capacity = Capacity {
            max_tokens: 32,
            max_logits_rows: 32,
            max_num_seqs: 4,
            block_size: BLOCK_SIZE,
            cache_dtype: cache.dtype,
        };
        let vocab = blueprint.vocab_size;
        let mut model = Model::new(backend, blueprint, weights, eps, capacity, &cache).unwrap();
        let mut tokens: Vec<u32> = (0..10).map(|i| 40 + 13 * i).collect();
        let mut start = 0;
        while tokens.len() < 18 {
            let logits = step(&mut model, &tokens[start..], start, AttentionForm::Absorbed);
            start = tokens.len();
            tokens.push(argmax(&logits[logits.len() - vocab..]));
        }
        tokens
    }
    for (arithmetic, activations) in
        [(Activations::F32, Activations::F32), (Activations::Bf16, Activations::Bf16)]
    {
        let Some(driver) = TestDriver::new(Arch::Sm90a, None) else { return };
        let counts = driver.counts.clone();
        let gpu = CudaBackend::new(driver, arithmetic).unwrap();
        let cpu = CpuBackend::new(CpuOptions { activations, ..Default::default() });
        assert_eq!(greedy(gpu), greedy(cpu), "{arithmetic:?}");
        let Counts { lane_instructions, execution, .. } = *counts.lock().unwrap();
        let rate = lane_instructions as f64 / execution.as_secs_f64() / 1e6;
        println!("{arithmetic:?}: {lane_instructions} lane instructions in {execution:?}, {rate:.0} M/s");
    }
}

/// A step of decoding is one upload before the layers, one before sampling and one download; the layers are replayed.
#[test]
fn a_decode_step_is_three_transfers_and_one_replay() {
    const REQUESTS: u64 = 8;
    const TOKENS: u32 = 12;
    let Some(driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    let counts = driver.counts.clone();
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let options = EngineOptions {
        backend: BackendChoice::Reference,
        scheduler: scheduler::Config {
            max_num_seqs: 12,
            max_num_batched_tokens: 64,
            max_model_len: 128,
            ..Default::default()
        },
        block_size: 16,
        cache_bytes: 0,
        num_blocks: 64,
        fp4_activations: None,
        cache_dtype: None,
        prefix_caching: true,
        latent_norm_eps: None,
        tower: None,
        tiers: None,
        launch_times: None,
        memory_utilization: 1.0,
        parallelism: Parallelism::default_of(1),
        divides_if_small: None,
        wire: Default::default(),
        speculation: perigee_decoding::speculation::Config::off(),
    };
    let metrics = Arc::new(Metrics::new("golden", true));
    let backend = CudaBackend::new(driver, Activations::Bf16).unwrap();
    let equipped = Equipped::new(backend, CacheDtype::Bf16);
    let engine = start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ()).unwrap();
    let at_ready = *counts.lock().unwrap();
    let wanted = |prompt: &[u32], seed| {
        request(prompt, SamplingParams { temperature: 1.0, max_tokens: TOKENS, seed, ..Default::default() })
    };
    // The first has more rows than a recording, in the first of its steps. Whichever of the others the engine sees together, no step of
    // theirs has.
    let others = (1..REQUESTS).map(|i| wanted(&[i as u32 + 1], i)).collect();
    for requests in [vec![wanted(&[1; 21], 0)], others] {
        for reply in runtime().block_on(run_all(&engine.handle, requests)) {
            assert_eq!(reply.tokens.len(), TOKENS as usize);
        }
    }
    finish(engine);
    check_counts(at_ready, &counts, REQUESTS);
}

fn check_counts(at_ready: Counts, counts: &Mutex<Counts>, sequences: u64) {
    let end = *counts.lock().unwrap();
    let steps = end.downloads - at_ready.downloads;
    println!("{at_ready:?} {end:?}");
    assert!(steps > 11, "{steps}");
    assert_eq!(end.allocations, at_ready.allocations, "memory is allocated while serving");
    assert_eq!(end.loads, at_ready.loads);
    // The first prompt has more rows in absorbed form than a recording; all other steps are replayed.
    assert_eq!(end.replays - at_ready.replays, steps - 1);
    // Embedding and first norm, and three layers of eleven launches at most, of twelve rows too; a GPU does not say.
    assert!(matches!(end.recorded, 0 | 35), "{} launches are recorded", end.recorded);
    // And one for each sequence that starts.
    assert_eq!(end.uploads - at_ready.uploads, 2 * steps + sequences);
}
