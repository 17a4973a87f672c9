//! The model and the engine on the CUDA backend, over the emulator.

use std::sync::{Arc, Mutex};

use perigee::boot::engine::{BackendChoice, EngineOptions, start_on};
use perigee::cuda::{Arch, CudaBackend};
use perigee::engine::EngineEvent;
use perigee::model::Blueprint;
use perigee::model::checkpoint::Checkpoint;
use perigee::ops::CacheDType;
use perigee::sampling::SamplingParams;
use perigee::scheduler;
use perigee::telemetry::Metrics;

use super::{Counts, EmulatedDriver, backend};
use crate::golden::{check, golden_folder};

#[test]
fn golden_logits_and_greedy_continuations() {
    for (arch, seed) in [(Arch::Sm80, None), (Arch::Sm90a, Some(7)), (Arch::Sm120a, None)] {
        if backend(arch, seed).is_none() {
            return;
        }
        check(|| backend(arch, seed).unwrap(), CacheDType::F32, 1e-3, seed.is_none());
    }
}

/// A step of decoding is one upload before the layers, one before sampling and one download; the layers are replayed.
#[test]
fn a_decode_step_is_three_transfers_and_one_replay() {
    const REQUESTS: usize = 7;
    const TOKENS: u32 = 12;
    let Some(driver) = EmulatedDriver::new(Arch::Sm90a, None) else { return };
    let counts = driver.counts.clone();
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let options = EngineOptions {
        backend: BackendChoice::Reference,
        scheduler: scheduler::Config {
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: 128,
            ..Default::default()
        },
        block_size: 16,
        cache_bytes: 0,
        num_blocks: 64,
        cache_dtype: None,
        prefix_caching: true,
        latent_norm_eps: None,
    };
    let metrics = Arc::new(Metrics::new("golden", true));
    let backend = CudaBackend::new(driver).unwrap();
    let engine =
        start_on(backend, CacheDType::Bf16, &checkpoint, blueprint, &options, metrics, &mut |_| ()).unwrap();
    let at_ready = *counts.lock().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let streams: Vec<_> = (0..REQUESTS as u32)
            .map(|i| {
                let request = perigee::engine::EngineRequest {
                    prompt: vec![i + 1; 3].into(),
                    sampling: SamplingParams {
                        temperature: 1.0,
                        max_tokens: TOKENS,
                        seed: u64::from(i),
                        ..Default::default()
                    },
                    priority: 0,
                    deadline: None,
                    cache_salt: None,
                    guard: None,
                    constraint: None,
                };
                engine.handle.submit(request).unwrap()
            })
            .collect();
        for mut stream in streams {
            let mut tokens = 0;
            while let Some(event) = stream.next().await {
                tokens += u32::from(matches!(event, EngineEvent::Token { .. }));
            }
            assert_eq!(tokens, TOKENS);
        }
    });
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    check_counts(at_ready, &counts);
}

fn check_counts(at_ready: Counts, counts: &Mutex<Counts>) {
    let end = *counts.lock().unwrap();
    let steps = end.downloads - at_ready.downloads;
    println!("{at_ready:?} {end:?}");
    assert!(steps > 11, "{steps}");
    assert_eq!(end.allocations, at_ready.allocations, "memory is allocated while serving");
    assert_eq!(end.loads, at_ready.loads);
    // The first step has more rows in absorbed form than a recording; all others are replayed.
    assert_eq!(end.replays - at_ready.replays, steps - 1);
    assert_eq!(end.uploads - at_ready.uploads, 2 * steps);
}
