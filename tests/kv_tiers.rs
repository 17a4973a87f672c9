//! Blocks that leave the cache and come back: the same bits, from host memory and from disk.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use perigee::boot::engine::{BackendChoice, EngineOptions, StartedEngine, start_engine};
use perigee_engine::EngineRequest;
use perigee_engine::kv_tiers::{DiskOptions, TierOptions};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::Activations;
use perigee_telemetry::{Exposition, Metrics};

use crate::engine::{
    Device, Reply, cpu, drawn, finish, has_emulator, options, prompt, request, run, run_all, runtime, start,
};
use crate::golden::golden_folder;

/// Blocks of the cache: two of the prompts below.
const NUM_BLOCKS: usize = 24;
/// Tokens of each prompt, nine blocks and a bit.
const PROMPT_TOKENS: usize = 150;

fn tiny_cache(num_blocks: usize, host_bytes: u64, disk: Option<&Path>) -> EngineOptions {
    let mut options = EngineOptions { num_blocks, ..options() };
    options.scheduler.max_model_len = num_blocks * options.block_size;
    let disk = disk.map(|folder| DiskOptions {
        folder: folder.to_owned(),
        max_bytes: 1 << 30,
        flush: Duration::from_secs(60),
    });
    options.tiers = (host_bytes > 0).then_some(TierOptions { host_bytes, disk });
    options
}

fn requests(tokens: usize, count: usize, max_tokens: u32) -> Vec<EngineRequest> {
    (0..count as u64).map(|i| request(&prompt(tokens, i), drawn(max_tokens, i))).collect()
}

fn bits(replies: &[Reply]) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
    replies.iter().map(Reply::bits).collect()
}

/// Prompts that push each other out of the cache, one after another and all at once, again and again.
fn displaced_prompts_come_back_with_the_same_bits(device: Device, count: usize, max_tokens: u32) {
    displaced_come_back(device, NUM_BLOCKS, PROMPT_TOKENS, count, max_tokens);
}

fn displaced_come_back(device: Device, num_blocks: usize, tokens: usize, count: usize, max_tokens: u32) {
    let runtime = runtime();
    let rounds = |options: &EngineOptions| {
        let engine = start("kimi", device, options);
        let mut rounds = Vec::new();
        for round in 0..3 {
            let requests = requests(tokens, count, max_tokens);
            rounds.push(match round {
                2 => runtime.block_on(run_all(&engine.handle, requests)),
                _ => requests.into_iter().map(|one| runtime.block_on(run(&engine.handle, one))).collect(),
            });
        }
        finish(engine);
        rounds
    };
    let without = rounds(&tiny_cache(num_blocks, 0, None));
    let with = rounds(&tiny_cache(num_blocks, 64 << 20, None));
    for (without, with) in without.iter().zip(&with) {
        assert_eq!(bits(without), bits(with));
    }
    let cached = |round: &[Reply]| round.iter().map(|reply| reply.cached_tokens).collect::<Vec<_>>();
    let all = vec![tokens / 16 * 16; count];
    assert_eq!(cached(&with[0]), vec![0; count]);
    assert_eq!(cached(&with[1]), all);
    assert_eq!(cached(&with[2]), all);
    assert!(cached(&without[1]) < all, "they push each other out");
}

#[test]
fn displaced_prompts_come_back_to_the_cpu() {
    displaced_prompts_come_back_with_the_same_bits(Device::Cpu(cpu(Activations::F32, 1)), 6, 10);
    displaced_prompts_come_back_with_the_same_bits(Device::Cpu(cpu(Activations::Bf16, 2)), 6, 10);
}

#[test]
fn displaced_prompts_come_back_to_the_reference() {
    displaced_prompts_come_back_with_the_same_bits(Device::Reference, 4, 4);
}

#[test]
fn displaced_prompts_come_back_to_every_rank() {
    displaced_prompts_come_back_with_the_same_bits(Device::Ranks(cpu(Activations::F32, 1), 2), 6, 10);
}

#[test]
fn displaced_prompts_come_back_to_a_late_backend() {
    for seed in 0..4 {
        displaced_prompts_come_back_with_the_same_bits(Device::Late(cpu(Activations::F32, 1), seed), 6, 10);
    }
}

#[test]
fn displaced_prompts_come_back_to_an_emulated_gpu() {
    if has_emulator() {
        displaced_come_back(Device::Emulated(Some(1), Activations::F32), 12, 70, 3, 3);
        displaced_come_back(Device::EmulatedRanks(2, Some(1)), 12, 70, 3, 3);
    }
}

/// Host memory for fewer blocks than one prompt has: what is left of a prompt's end is of no use, and nothing breaks.
#[test]
fn host_memory_that_is_too_small_is_of_little_use_and_no_harm() {
    let runtime = runtime();
    let engine = start("kimi", Device::Reference, &tiny_cache(NUM_BLOCKS, 0, None));
    let expected: Vec<Reply> = requests(PROMPT_TOKENS, 4, 4)
        .into_iter()
        .map(|one| runtime.block_on(run(&engine.handle, one)))
        .collect();
    finish(engine);
    for host_bytes in [40_000, 100_000] {
        let engine = start("kimi", Device::Reference, &tiny_cache(NUM_BLOCKS, host_bytes, None));
        for _ in 0..3 {
            let replies = runtime.block_on(run_all(&engine.handle, requests(PROMPT_TOKENS, 4, 4)));
            assert_eq!(bits(&replies), bits(&expected));
        }
        finish(engine);
    }
}

/// An engine with its metrics.
fn start_on_cpu(options: &EngineOptions) -> (StartedEngine, Arc<Metrics>) {
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let metrics = Arc::new(Metrics::new("golden", true));
    let backend = BackendChoice::Cpu(cpu(Activations::F32, 1));
    let options = EngineOptions { backend, ..options.clone() };
    let engine = start_engine(&checkpoint, blueprint, &options, metrics.clone(), &mut |_| ()).unwrap();
    (engine, metrics)
}

fn value(metrics: &Metrics, line: &str) -> u64 {
    let text = metrics.render(Exposition::Text);
    let found = text.lines().find_map(|found| found.strip_prefix(line));
    found.unwrap_or_else(|| panic!("no metric {line}")).trim().parse().unwrap()
}

#[test]
fn prompts_survive_a_restart_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let ask = |engine: &StartedEngine, count| {
        requests(PROMPT_TOKENS, count, 10)
            .into_iter()
            .map(|one| runtime.block_on(run(&engine.handle, one)))
            .collect::<Vec<_>>()
    };
    let (engine, _) = start_on_cpu(&tiny_cache(NUM_BLOCKS, 0, None));
    let expected = ask(&engine, 6);
    finish(engine);

    let options = tiny_cache(NUM_BLOCKS, 64 << 20, Some(folder.path()));
    let (engine, _) = start_on_cpu(&options);
    assert_eq!(bits(&ask(&engine, 6)), bits(&expected));
    finish(engine);

    // What was in the cache at the end is there too.
    let blocks = 6 * (PROMPT_TOKENS / 16) as u64;
    let restart = |expected_blocks: u64| {
        let (engine, metrics) = start_on_cpu(&options);
        let deadline = Instant::now() + Duration::from_secs(60);
        while value(&metrics, r#"perigee_kv_tier_blocks{tier="disk"}"#) < expected_blocks {
            assert!(Instant::now() < deadline, "the folder was not read");
            std::thread::sleep(Duration::from_millis(1));
        }
        (engine, metrics)
    };
    let (engine, metrics) = restart(blocks);
    let replies = ask(&engine, 6);
    assert_eq!(bits(&replies), bits(&expected));
    for reply in &replies {
        assert_eq!(reply.cached_tokens, PROMPT_TOKENS / 16 * 16);
    }
    assert_eq!(value(&metrics, r#"perigee_kv_tier_loaded_blocks_total{tier="disk"}"#), blocks);
    finish(engine);

    // Damaged files are computed again.
    let (engine, metrics) = restart(blocks);
    damage(folder.path());
    let replies = runtime.block_on(run_all(&engine.handle, requests(PROMPT_TOKENS, 6, 10)));
    assert_eq!(bits(&replies), bits(&expected));
    assert!(replies.iter().all(|reply| reply.cached_tokens == 0));
    assert!(value(&metrics, r#"perigee_kv_tier_lost_blocks_total{reason="file"}"#) >= 6);
    finish(engine);
}

/// Flips a bit of every file.
fn damage(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            damage(&path);
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 16;
        std::fs::write(&path, bytes).unwrap();
    }
}
