//! The engine on golden checkpoints: results do not depend on batching, chunking or cache hits, and nothing leaks.

use std::sync::Arc;

use perigee::boot::engine::{BackendChoice, EngineOptions, StartedEngine, start_engine, start_on};
use perigee::boot::equipped::Equipped;
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_cuda::Arch;
use perigee_decoding::sampling::{
    BlockRule, ConstraintBroken, SamplingParams, Taken, TokenConstraint, TokenMask,
};
use perigee_decoding::speculation;
use perigee_engine::scheduler::{self, FinishReason};
use perigee_engine::{EngineEvent, EngineHandle, EngineRequest, TokenLogprobs};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::{Activations, CacheDtype, Parallelism};
use perigee_telemetry::Metrics;

use crate::delayed::Delayed;
use crate::emulated;
use crate::golden::{golden_folder, golden_prompts};

/// Ids and the bits of their logprobs.
pub(crate) type Scores = Vec<(u32, u32)>;

/// A reply with everything the engine says about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub(crate) tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    prompt_logprobs: Vec<TokenLogprobs>,
    pub(crate) cached_tokens: usize,
    pub(crate) finish: FinishReason,
    /// Drafted tokens: accepted and rejected.
    pub(crate) drafted: (usize, usize),
}

impl Reply {
    /// What must be equal bit for bit however the request was run.
    pub(crate) fn bits(&self) -> (Vec<u32>, Scores, Scores) {
        let bits = |list: &[TokenLogprobs]| {
            list.iter().flat_map(|l| &l.top).map(|(id, logprob)| (*id, logprob.to_bits())).collect()
        };
        (self.tokens.clone(), bits(&self.logprobs), bits(&self.prompt_logprobs))
    }
}

/// What the engine runs on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Device {
    Reference,
    Cpu(CpuOptions),
    /// The CPU backend behind a queue, with this seed.
    Late(CpuOptions, u64),
    /// So many ranks of it.
    Ranks(CpuOptions, usize),
    /// The CUDA backend on the emulator, with this order of warps and blocks.
    Emulated(Option<u64>, Activations),
    /// So many emulated devices that share the model, with parts of the cache and a group of experts each.
    EmulatedRanks(usize, Option<u64>),
}

pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        backend: BackendChoice::Reference,
        scheduler: scheduler::Config {
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            max_model_len: 2048,
            expand_min_prompt_tokens: 24,
            ..Default::default()
        },
        block_size: 16,
        cache_bytes: 0,
        num_blocks: 1024,
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
    }
}

pub(crate) fn start(folder: &str, device: Device, options: &EngineOptions) -> StartedEngine {
    let checkpoint = Checkpoint::open(&golden_folder(folder)).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let metrics = Arc::new(Metrics::new("golden", true));
    let choice = |backend| EngineOptions { backend, ..options.clone() };
    let progress = &mut |_| ();
    match device {
        Device::Reference => {
            start_engine(&checkpoint, blueprint, &choice(BackendChoice::Reference), metrics, progress)
        }
        Device::Cpu(cpu) => {
            start_engine(&checkpoint, blueprint, &choice(BackendChoice::Cpu(cpu)), metrics, progress)
        }
        Device::Ranks(each, ranks) => {
            let backend =
                BackendChoice::CpuRanks { ranks, each, parallelism: Parallelism::default_of(ranks) };
            start_engine(&checkpoint, blueprint, &choice(backend), metrics, progress)
        }
        Device::Late(cpu, seed) => {
            let dtype = match cpu.activations {
                Activations::F32 => CacheDtype::F32,
                _ => CacheDtype::Bf16,
            };
            let backend = Delayed::new(CpuBackend::new(cpu), seed);
            start_on(Equipped::new(backend, dtype), &checkpoint, blueprint, options, metrics, progress)
        }
        Device::Emulated(seed, arithmetic) => {
            let backend = emulated::backend(Arch::Sm90a, seed, arithmetic).unwrap();
            let equipped = Equipped::new(backend, CacheDtype::F32);
            start_on(equipped, &checkpoint, blueprint, options, metrics, progress)
        }
        Device::EmulatedRanks(ranks, seed) => {
            let group = emulated::ranks::in_parts(ranks, seed).unwrap();
            let equipped = Equipped::new(group, CacheDtype::F32);
            start_on(equipped, &checkpoint, blueprint, options, metrics, progress)
        }
    }
    .unwrap()
}

pub(crate) fn request(prompt: &[u32], params: SamplingParams) -> EngineRequest {
    EngineRequest {
        prompt: prompt.into(),
        sampling: params,
        priority: 0,
        share: None,
        deadline: None,
        cache_salt: None,
        guard: None,
        constraint: None,
        speculation: Default::default(),
        media: Vec::new(),
    }
}

pub(crate) fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, logprobs: Some(3), ..Default::default() }
}

pub(crate) fn drawn(max_tokens: u32, seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, max_tokens, seed, logprobs: Some(3), ..Default::default() }
}

pub(crate) async fn run(engine: &EngineHandle, request: EngineRequest) -> Reply {
    let mut stream = engine.submit(request).unwrap();
    let mut reply = Reply {
        tokens: vec![],
        logprobs: vec![],
        prompt_logprobs: vec![],
        cached_tokens: 0,
        finish: FinishReason::Error,
        drafted: (0, 0),
    };
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::Started { cached_tokens } => reply.cached_tokens = cached_tokens,
            EngineEvent::PromptLogprobs(logprobs) => reply.prompt_logprobs.push(logprobs),
            EngineEvent::Token { id, logprobs } => {
                reply.tokens.push(id);
                reply.logprobs.extend(logprobs);
            }
            EngineEvent::Guard(event) => panic!("no guard was asked for: {event:?}"),
            EngineEvent::Finished(reason) => reply.finish = reason,
            EngineEvent::Speculated { accepted, rejected } => reply.drafted = (accepted, rejected),
        }
    }
    reply
}

/// Runs all requests at once.
pub(crate) async fn run_all(engine: &EngineHandle, requests: Vec<EngineRequest>) -> Vec<Reply> {
    let mut tasks = Vec::new();
    for request in requests {
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move { run(&engine, request).await }));
    }
    let mut replies = Vec::new();
    for task in tasks {
        replies.push(task.await.unwrap());
    }
    replies
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Ends the engine and checks that it holds nothing any more.
pub(crate) fn finish(engine: StartedEngine) {
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    let snapshot = engine.handle.snapshot();
    assert_eq!(
        (snapshot.waiting, snapshot.waiting_tokens, snapshot.running, snapshot.used_blocks),
        (0, 0, 0, 0)
    );
    assert!(!snapshot.alive);
}

/// A pseudo-random prompt of byte tokens.
pub(crate) fn prompt(len: usize, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u32(0..256)).collect()
}

/// The first `tokens` of the known 24.
fn greedy_matches_golden(device: Device, tokens: usize) {
    for folder in ["kimi", "thinking", "moonlight", "grouped"] {
        let engine = start(folder, device, &options());
        let prompts = golden_prompts(folder);
        let requests = prompts.iter().map(|p| request(&p.token_ids, greedy(tokens as u32))).collect();
        let replies = runtime().block_on(run_all(&engine.handle, requests));
        for (i, (reply, prompt)) in replies.iter().zip(&prompts).enumerate() {
            assert_eq!(reply.tokens, prompt.greedy[..tokens], "{folder} prompt {i}");
            assert_eq!(reply.finish, FinishReason::Length);
        }
        finish(engine);
    }
}

/// One request alone, among 31 others, with tiny chunks, after a prefix hit, after preemptions: identical bits.
fn results_do_not_depend_on_company(device: Device) {
    let runtime = runtime();
    let cases = [(prompt(23, 1), 20), (prompt(24, 2), 20), (prompt(100, 3), 20), (prompt(300, 4), 10)];
    let alone: Vec<Reply> = cases
        .iter()
        .enumerate()
        .map(|(i, (prompt, max_tokens))| {
            let engine = start("kimi", device, &options());
            let reply = runtime.block_on(run(&engine.handle, request(prompt, drawn(*max_tokens, i as u64))));
            finish(engine);
            reply
        })
        .collect();
    let check = |what: &str, options: &EngineOptions, others: usize, expect_hit: bool, scored: bool| {
        let engine = start("kimi", device, options);
        for (i, (prompt_ids, max_tokens)) in cases.iter().enumerate() {
            let mut params = drawn(*max_tokens, i as u64);
            params.prompt_logprobs = scored.then_some(1);
            let mut requests = vec![request(prompt_ids, params)];
            requests.extend(
                (0..others).map(|o| request(&prompt(10 + o * 7, 100 + o as u64), drawn(25, o as u64))),
            );
            let mut reply = runtime.block_on(run_all(&engine.handle, requests)).swap_remove(0);
            if scored {
                assert_eq!(reply.prompt_logprobs.len(), prompt_ids.len() - 1);
                reply.prompt_logprobs.clear();
            }
            assert_eq!(reply.bits(), alone[i].bits(), "{what}, case {i}");
            if expect_hit {
                let again =
                    runtime.block_on(run(&engine.handle, request(prompt_ids, drawn(*max_tokens, i as u64))));
                assert_eq!(again.cached_tokens, (prompt_ids.len() - 1) / 16 * 16, "{what}, case {i}");
                assert_eq!(again.bits(), alone[i].bits(), "{what} again, case {i}");
            }
        }
        finish(engine);
    };
    let base = options();
    check("among 31", &base, 31, false, false);
    check("prefix hit", &base, 0, true, false);
    check("prompt logprobs", &base, 3, false, true);
    let mut chunked = base.clone();
    chunked.scheduler.max_prefill_tokens = 16;
    check("chunks of 16", &chunked, 5, false, false);
    let mut cramped = base.clone();
    cramped.num_blocks = 128;
    check("preemption", &cramped, 12, false, false);
}

/// Lengths of a reply at which a token is refused.
const REFUSED_AT: [usize; 3] = [5, 20, 33];

/// A constraint that forbids nothing and refuses the tokens at the places in `REFUSED_AT` once each.
#[derive(Debug, Clone)]
struct Picky {
    len: usize,
    refused: usize,
    everything: TokenMask,
}

impl Picky {
    fn new() -> Self {
        Self { len: 0, refused: 0, everything: TokenMask::from_words(vec![u32::MAX; 1 << 13]) }
    }
}

impl TokenConstraint for Picky {
    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }

    fn prepare(&mut self, _left: usize) -> Result<(), ConstraintBroken> {
        Ok(())
    }

    fn mask(&self) -> Option<&TokenMask> {
        Some(&self.everything)
    }

    fn take(&mut self, _sampled: u32, _left: usize) -> Result<Taken, ConstraintBroken> {
        if REFUSED_AT.get(self.refused) == Some(&self.len) {
            self.refused += 1;
            return Ok(Taken::Refused);
        }
        self.len += 1;
        Ok(Taken::Accepted { ends: false })
    }

    fn knows_end(&self) -> bool {
        false
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), ConstraintBroken> {
        self.len -= tokens;
        Ok(())
    }
}

/// Design D4: taken back and sampled again equals never having been there, with penalties and logprobs, for prompts of both
/// attention forms.
fn taken_back_equals_never_having_been_there(device: Device, tokens: u32) {
    let engine = start("kimi", device, &options());
    runtime().block_on(async {
        for (case, prompt_ids) in [prompt(9, 1), prompt(23, 2), prompt(80, 3)].iter().enumerate() {
            let params = SamplingParams {
                frequency_penalty: 0.7,
                repetition_penalty: 1.2,
                ..drawn(tokens, case as u64)
            };
            // Every other reply is led out of a block, which is a state of its own.
            let rule = BlockRule {
                starts_inside: true,
                open: 5,
                close: 6,
                leave: Vec::new(),
                promise: Vec::new(),
                max_tokens: 17,
                ends: Vec::new(),
                blank: [].into(),
            };
            let params = SamplingParams { block_rule: (case % 2 == 1).then(|| Arc::new(rule)), ..params };
            let straight = run(&engine.handle, request(prompt_ids, params.clone())).await;
            assert!(case % 2 == 0 || straight.tokens[..=17].contains(&6), "the block is closed in time");
            let constraint: Option<Box<dyn TokenConstraint>> = Some(Box::new(Picky::new()));
            let picky = EngineRequest { constraint, ..request(prompt_ids, params) };
            let reply = run(&engine.handle, picky).await;
            assert_eq!(reply.tokens, straight.tokens, "case {case}");
            assert_eq!(reply.logprobs, straight.logprobs, "case {case}");
        }
    });
    finish(engine);
}

/// Predictions with wrong tokens in them, each reply in its own way, in chunks of all sizes: the bits without.
fn drafts_leave_no_trace(device: Device, tokens: u32, chunks: &[usize]) {
    let cases: Vec<(Vec<u32>, SamplingParams)> = golden_prompts("kimi")
        .into_iter()
        .map(|p| p.token_ids)
        .chain([prompt(30, 5), prompt(90, 6)])
        .enumerate()
        .map(|(i, prompt)| {
            let mut params = drawn(tokens, i as u64);
            params.temperature = [0.0, 1.0, 0.7][i % 3];
            (params.top_k, params.top_p) = ([0, 40][i % 2], [1.0, 0.9][i / 2 % 2]);
            (params.repetition_penalty, params.frequency_penalty) =
                ([1.12, 1.0][i % 2], [0.0, 0.3][i / 2 % 2]);
            (prompt, params)
        })
        .collect();
    let run = |options: &EngineOptions, predictions: Option<&[Reply]>| {
        let engine = start("kimi", device, options);
        let mut rng = fastrand::Rng::with_seed(9);
        let requests = cases.iter().enumerate().map(|(i, (prompt, params))| {
            let mut request = request(prompt, params.clone());
            request.speculation.prediction = predictions.map(|replies| {
                let wrong = |token: &u32| if rng.u8(..5) == 0 { token ^ 1 } else { *token };
                Arc::new(speculation::Predicted::new(replies[i].tokens.iter().map(wrong).collect()))
            });
            request
        });
        let replies = runtime().block_on(run_all(&engine.handle, requests.collect()));
        finish(engine);
        replies
    };
    let straight = run(&options(), None);
    for (index, chunk) in chunks.iter().enumerate() {
        let mut options = options();
        options.scheduler.max_prefill_tokens = *chunk;
        options.speculation = speculation::Config {
            adaptive: false,
            max_tokens: [3, 8, 1][index % 3],
            ..speculation::Config::default()
        };
        for (i, (reply, straight)) in run(&options, Some(&straight)).iter().zip(&straight).enumerate() {
            assert_eq!(reply.bits(), straight.bits(), "chunks of {chunk}, request {i}");
            assert_eq!(reply.finish, straight.finish);
        }
    }
}

#[test]
fn drafts_leave_no_trace_in_f32() {
    drafts_leave_no_trace(Device::Cpu(cpu(Activations::F32, 2)), 40, &[1, 7, 16, 512]);
    drafts_leave_no_trace(Device::Reference, 24, &[16]);
}

#[test]
fn drafts_leave_no_trace_in_default_mode() {
    drafts_leave_no_trace(Device::Cpu(cpu(Activations::Bf16, 2)), 40, &[3, 64, 512]);
}

#[test]
fn drafts_leave_no_trace_on_two_ranks_and_late() {
    drafts_leave_no_trace(Device::Ranks(cpu(Activations::F32, 1), 2), 40, &[16, 512]);
    drafts_leave_no_trace(Device::Late(cpu(Activations::Bf16, 1), 4), 40, &[16, 512]);
}

#[test]
fn drafts_leave_no_trace_on_the_emulated_gpu() {
    if has_emulator() {
        drafts_leave_no_trace(Device::Emulated(Some(3), Activations::Bf16), 6, &[512]);
    }
}

pub(crate) fn cpu(activations: Activations, threads: usize) -> CpuOptions {
    CpuOptions { activations, threads, ..Default::default() }
}

#[test]
fn reference_engine_matches_golden_continuations() {
    greedy_matches_golden(Device::Reference, 24);
}

#[test]
fn cpu_engine_in_f32_mode_matches_golden_continuations() {
    greedy_matches_golden(Device::Cpu(cpu(Activations::F32, 2)), 24);
}

#[test]
fn cpu_results_in_default_mode_do_not_depend_on_company() {
    results_do_not_depend_on_company(Device::Cpu(cpu(Activations::Bf16, 2)));
}

#[test]
fn cpu_results_in_f32_mode_do_not_depend_on_company() {
    results_do_not_depend_on_company(Device::Cpu(cpu(Activations::F32, 1)));
}

#[test]
fn a_token_taken_back_leaves_no_trace() {
    taken_back_equals_never_having_been_there(Device::Cpu(cpu(Activations::Bf16, 2)), 60);
}

#[test]
fn a_late_backend_matches_golden_continuations() {
    greedy_matches_golden(Device::Late(cpu(Activations::F32, 1), 1), 24);
}

#[test]
fn late_results_do_not_depend_on_company() {
    results_do_not_depend_on_company(Device::Late(cpu(Activations::F32, 1), 2));
}

#[test]
fn a_token_taken_back_late_leaves_no_trace() {
    taken_back_equals_never_having_been_there(Device::Late(cpu(Activations::Bf16, 1), 3), 60);
}

#[test]
fn greedy_decoding_on_two_ranks() {
    greedy_matches_golden(Device::Ranks(cpu(Activations::F32, 1), 2), 24);
}

/// Which rank holds a position depends on the position alone, so a reply's bits do not depend on which blocks were free.
#[test]
fn company_changes_no_bits_on_two_ranks() {
    results_do_not_depend_on_company(Device::Ranks(cpu(Activations::F32, 1), 2));
}

#[test]
fn taken_back_tokens_leave_nothing_on_two_ranks() {
    taken_back_equals_never_having_been_there(Device::Ranks(cpu(Activations::Bf16, 1), 2), 60);
}

/// Without NVRTC there is no emulated device: the tests of `emulated` say so.
pub(crate) fn has_emulator() -> bool {
    emulated::backend(Arch::Sm90a, None, Activations::F32).is_some()
}

#[test]
fn the_emulated_gpu_matches_golden_continuations() {
    if has_emulator() {
        greedy_matches_golden(Device::Emulated(None, Activations::F32), 8);
    }
}

#[test]
fn emulated_gpus_that_share_a_model_match_golden_continuations() {
    if has_emulator() {
        greedy_matches_golden(Device::EmulatedRanks(2, None), 4);
    }
}

#[test]
fn a_token_taken_back_on_the_emulated_gpu_leaves_no_trace() {
    if has_emulator() {
        taken_back_equals_never_having_been_there(Device::Emulated(Some(2), Activations::Bf16), 24);
    }
}

#[test]
fn a_token_taken_back_on_emulated_gpus_that_share_a_model_leaves_no_trace() {
    if has_emulator() {
        taken_back_equals_never_having_been_there(Device::EmulatedRanks(2, Some(2)), 20);
    }
}
