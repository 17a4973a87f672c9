//! The engine on a backend that delivers late (`delayed.rs`): the same bits as on the one below it, whatever happens on the way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use perigee::boot::engine::{BackendChoice, EngineOptions, StartedEngine, start_on};
use perigee::boot::equipped::Equipped;
use perigee::nano;
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_cuda::Arch;
use perigee_decoding::guard::{self, Mode};
use perigee_decoding::sampling::{BlockRule, SamplingParams};
use perigee_decoding::speculation::{self, Method};
use perigee_engine::scheduler::{self, FinishReason};
use perigee_engine::{EngineEvent, EngineHandle, EngineRequest, Speculation, TokenLogprobs};
use perigee_http::generate::{GuardChoice, GuardPlan};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::host::Group;
use perigee_ops::{
    Activations, BlockId, CacheDtype, Outcomes, Parallelism, Row, Rule, SampleRow, SampleRows, SeqSlot,
    SlotSpec, StepPlan, TokenId, TokenSource,
};
use perigee_telemetry::Metrics;
use perigee_text::grammar::{AnswerFormat, GrammarSpec, Grammars, JsonStyle};
use perigee_text::{Specials, Tokenizer};
use serde_json::json;

use crate::delayed::{Delayed, Transfers};
use crate::{emulated, golden};

/// The last two run the draft model, which the late backend cannot.
const METHODS: [Method; 4] = [Method::Ngram, Method::Suffix, Method::Eagle3, Method::Auto];

/// Requests of one run, all at once.
const REQUESTS: usize = 48;

/// What a client does with its stream.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Client {
    ReadsAll,
    /// Leaves after so many tokens.
    Leaves(usize),
    /// Has enough after so many tokens.
    Stops(usize),
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Reply {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    prompt_logprobs: Vec<TokenLogprobs>,
    events: Vec<guard::Event>,
    finish: Option<FinishReason>,
    /// Drafted tokens, accepted and rejected.
    drafted: (usize, usize),
}

struct World {
    tokenizer: Arc<Tokenizer>,
    guards: GuardPlan,
    grammars: Grammars,
}

fn options(num_blocks: usize, max_num_seqs: usize) -> EngineOptions {
    EngineOptions {
        backend: BackendChoice::Reference,
        scheduler: scheduler::Config {
            max_num_seqs,
            max_num_batched_tokens: 128,
            max_model_len: 512,
            expand_min_prompt_tokens: 24,
            ..Default::default()
        },
        block_size: 16,
        cache_bytes: 0,
        num_blocks,
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

fn cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { activations: Activations::F32, threads: 1, ..Default::default() })
}

/// The embedded model, with its draft where a setting asks for it.
fn start<B: perigee_ops::Backend>(backend: B, options: &EngineOptions) -> StartedEngine {
    let equipped = Equipped::new(backend, CacheDtype::F32);
    let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let metrics = Arc::new(Metrics::new(nano::NAME, false));
    start_on(equipped, &checkpoint, blueprint, options, metrics, &mut |_| ()).unwrap()
}

impl World {
    fn new() -> Self {
        let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
        let file = |name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned());
        let tokenizer = Arc::new(Tokenizer::load(&file).unwrap());
        let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size(), tokenizer.turn_ends());
        Self { guards: GuardPlan::new(guard::Config::default(), tokenizer.clone()), tokenizer, grammars }
    }

    /// Request `index` of a run: something of everything that touches a step.
    fn request(&self, index: usize) -> (EngineRequest, Client) {
        let mut rng = fastrand::Rng::with_seed(index as u64);
        let texts = ["the cat and the", "a a a a", "1 2 3", "What is 2 + 3?", "hello, hello, hello,"];
        let mut text = texts[rng.usize(..texts.len())].repeat(rng.usize(1..8));
        let loops = index.is_multiple_of(6);
        if loops {
            // A prompt that permits no repetition.
            text = ["the sea is", "once upon a time", "My dog said that"][index / 6 % 3].to_owned();
        }
        let prompt: Arc<[u32]> = self.tokenizer.encode(&text, Specials::AsText).unwrap().into();
        let mut sampling = SamplingParams {
            temperature: [0.0, 0.7, 1.2][rng.usize(..3)],
            top_p: [1.0, 0.9][rng.usize(..2)],
            max_tokens: [1, 12, 40, 120][rng.usize(..4)],
            seed: index as u64,
            ..Default::default()
        };
        if rng.u8(..3) == 0 {
            (sampling.repetition_penalty, sampling.frequency_penalty) = (1.2, 0.4);
        }
        if rng.u8(..2) == 0 {
            sampling.stop_token_ids = (0..self.tokenizer.vocab_size() as u32).step_by(5).collect();
            sampling.min_tokens = rng.u32(..sampling.max_tokens);
        }
        // Some go on until the guard has seen enough.
        if loops {
            sampling = SamplingParams { temperature: 0.0, max_tokens: 300, ..Default::default() };
        }
        sampling.logprobs = (rng.u8(..3) == 0).then_some(2);
        sampling.prompt_logprobs = (rng.u8(..6) == 0).then_some(1);
        if rng.u8(..4) == 0 && !loops {
            let rule = BlockRule {
                starts_inside: true,
                open: 5,
                close: 6,
                leave: Vec::new(),
                promise: Vec::new(),
                max_tokens: 9,
                ends: sampling.stop_token_ids.clone(),
                blank: [7, 8].into(),
            };
            sampling.block_rule = Some(Arc::new(rule));
        }
        let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}},
            "b": {"type": "string"}}, "required": ["a", "b"]});
        let shape = match rng.u8(..4) {
            0 => Some(AnswerFormat::Json { schema, style: JsonStyle::default() }),
            1 => Some(AnswerFormat::Regex("(ab|[0-9]{3}x)+z".into())),
            _ => None,
        };
        let suits = sampling.max_tokens >= 40 && sampling.block_rule.is_none() && !loops;
        let constraint = shape.filter(|_| suits).map(|shape| {
            let spec = GrammarSpec { format: shape, field: "test" };
            self.grammars.compile(&spec).unwrap().start()
        });
        if constraint.is_some() {
            // The grammar says where the reply ends.
            (sampling.stop_token_ids, sampling.min_tokens) = (Vec::new(), 0);
        }
        let choice = GuardChoice { mode: Some(Mode::Rescue), ..GuardChoice::default() };
        let guard = match rng.u8(..2) {
            chosen if chosen == 0 || loops => {
                self.guards.options(&choice, &prompt, false, constraint.is_some())
            }
            _ => None,
        };
        let client = match rng.u8(..6) {
            0 if !loops => Client::Leaves(rng.usize(1..20)),
            1 if !loops => Client::Stops(rng.usize(1..20)),
            _ => Client::ReadsAll,
        };
        let deadline = (rng.u8(..16) == 0 && !loops).then(Instant::now);
        let request = EngineRequest {
            prompt,
            sampling,
            priority: rng.i32(-1..2),
            share: None,
            deadline,
            cache_salt: (rng.u8(..4) == 0).then(|| "salt".to_owned()),
            guard,
            constraint,
            speculation: Speculation::default(),
            media: Vec::new(),
        };
        (request, client)
    }
}

async fn read(engine: EngineHandle, (request, client): (EngineRequest, Client)) -> Reply {
    let mut stream = engine.submit(request).unwrap();
    let mut reply = Reply::default();
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::PromptLogprobs(logprobs) => reply.prompt_logprobs.push(logprobs),
            EngineEvent::Token { id, logprobs } => {
                reply.tokens.push(id);
                reply.logprobs.extend(logprobs);
            }
            EngineEvent::Guard(event) => reply.events.push(*event),
            EngineEvent::Finished(reason) => reply.finish = Some(reason),
            EngineEvent::Started { .. } => {}
            EngineEvent::Speculated { accepted, rejected } => reply.drafted = (accepted, rejected),
        }
        match client {
            Client::Leaves(after) if reply.tokens.len() == after => break,
            Client::Stops(after) if reply.tokens.len() == after => {
                stream.stop_after(after);
                break;
            }
            _ => {}
        }
    }
    reply
}

fn run(world: &World, engine: StartedEngine, requests: impl Iterator<Item = usize>) -> Vec<Reply> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let replies = runtime.block_on(async {
        let tasks: Vec<_> =
            requests.map(|index| tokio::spawn(read(engine.handle.clone(), world.request(index)))).collect();
        let mut replies = Vec::new();
        for task in tasks {
            replies.push(task.await.unwrap());
        }
        replies
    });
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    let load = engine.handle.snapshot();
    assert_eq!((load.waiting, load.running, load.used_blocks), (0, 0, 0), "nothing is held");
    replies
}

#[test]
fn a_late_backend_gives_the_same_bits_through_everything_that_can_happen() {
    let world = World::new();
    let expected = run(&world, start(cpu(), &options(1024, 16)), 0..REQUESTS);
    let count = |wanted: fn(&Reply) -> bool| expected.iter().filter(|reply| wanted(reply)).count();
    // A workload that no longer meets what it is for would pass in silence.
    assert!(count(|r| !r.events.is_empty()) >= 2, "the guard acts");
    assert!(count(|r| matches!(r.finish, Some(FinishReason::StopToken(_)))) >= 3, "stop tokens");
    assert!(count(|r| r.finish == Some(FinishReason::Stopped)) >= 2, "grammars end replies");
    assert!(count(|r| r.finish == Some(FinishReason::Length)) >= 3, "limits");
    assert!(count(|r| r.finish == Some(FinishReason::Deadline)) >= 1, "deadlines");
    for seed in 0..4 {
        // The second of these is short of blocks: sequences are preempted.
        let num_blocks = if seed % 2 == 0 { 1024 } else { 40 };
        let replies = run(&world, start(Delayed::new(cpu(), seed), &options(num_blocks, 16)), 0..REQUESTS);
        for (index, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
            assert_eq!(reply, expected, "seed {seed}, request {index}");
        }
    }
}

/// Drafts, right and wrong, of every source, change no bit of any reply; on a backend that delivers late neither.
#[test]
fn drafts_change_no_bits() {
    let world = World::new();
    let mut expected = run(&world, start(cpu(), &options(1024, 16)), 0..REQUESTS);
    let [mut accepted, mut rejected] = [0; 2];
    for seed in 0..8 {
        let mut options = options(if seed % 4 < 2 { 1024 } else { 40 }, if seed < 6 { 16 } else { 64 });
        options.speculation = speculation::Config {
            method: METHODS[seed % 4],
            max_tokens: [3, 8, 1, 5][seed / 2],
            min_match: 1 + seed % 3,
            adaptive: seed == 7,
            ..speculation::Config::default()
        };
        let engine = match seed % 4 {
            0 | 1 => start(Delayed::new(cpu(), seed as u64), &options),
            _ => start(cpu(), &options),
        };
        let replies = run(&world, engine, 0..REQUESTS);
        for (index, (reply, expected)) in replies.iter().zip(&mut expected).enumerate() {
            accepted += reply.drafted.0;
            rejected += reply.drafted.1;
            expected.drafted = reply.drafted;
            assert_eq!(reply, expected, "seed {seed}, request {index}");
        }
    }
    println!("{accepted} drafted tokens accepted, {rejected} rejected");
    assert!(accepted > 1000 && rejected > 1000, "{accepted} accepted, {rejected} rejected");
}

/// On ranks too: a draft model runs on each, and proposes the same.
#[test]
fn drafts_on_ranks_change_no_bits() {
    let world = World::new();
    let group = || Group::new(vec![cpu(), cpu()]).unwrap();
    let mut expected = run(&world, start(group(), &options(1024, 16)), 0..REQUESTS / 2);
    let mut options = options(1024, 16);
    options.speculation = speculation::Config {
        method: Method::Eagle3,
        max_tokens: 3,
        adaptive: false,
        ..speculation::Config::default()
    };
    let replies = run(&world, start(group(), &options), 0..REQUESTS / 2);
    let mut accepted = 0;
    for (index, (reply, expected)) in replies.iter().zip(&mut expected).enumerate() {
        accepted += reply.drafted.0;
        expected.drafted = reply.drafted;
        assert_eq!(reply, expected, "request {index}");
    }
    assert!(accepted > 100, "{accepted} drafted tokens accepted");
}

/// The same for ten thousand requests, with other settings for each hundred.
#[test]
#[ignore = "takes minutes"]
fn drafts_change_no_bits_of_ten_thousand_requests() {
    let world = World::new();
    let [mut accepted, mut rejected] = [0; 2];
    for hundred in 0..100 {
        let mut rng = fastrand::Rng::with_seed(hundred);
        let requests = || 100 * hundred as usize..100 * (hundred as usize + 1);
        let mut expected = run(&world, start(cpu(), &options(1024, 16)), requests());
        let mut options = options([1024, 40][rng.usize(..2)], [1, 4, 16, 64][rng.usize(..4)]);
        options.scheduler.max_prefill_tokens = rng.usize(1..=128);
        options.speculation = speculation::Config {
            method: METHODS[rng.usize(..4)],
            max_tokens: rng.usize(1..10),
            min_match: rng.usize(1..6),
            adaptive: rng.bool(),
            ..speculation::Config::default()
        };
        let late = rng.bool() && !options.speculation.asks_model();
        let engine = match late {
            true => start(Delayed::new(cpu(), hundred), &options),
            false => start(cpu(), &options),
        };
        let replies = run(&world, engine, requests());
        for ((index, reply), expected) in requests().zip(&replies).zip(&mut expected) {
            accepted += reply.drafted.0;
            rejected += reply.drafted.1;
            expected.drafted = reply.drafted;
            assert_eq!(reply, expected, "request {index} of {:?}", options.speculation);
        }
    }
    println!("{accepted} drafted tokens accepted, {rejected} rejected");
}

/// On the CUDA backend: the guard, a grammar, prefix hits and, short of blocks, preemption change no bit of a reply, and the
/// tokens are the CPU's.
#[test]
fn the_emulated_gpu_gives_the_same_bits_through_everything_that_can_happen() {
    let world = World::new();
    let expected = run(&world, start(cpu(), &options(1024, 16)), 0..REQUESTS);
    // The shortest reply of each kind: the emulator computes some ten tokens a second.
    let shortest = |wanted: &dyn Fn(usize, &Reply) -> bool| {
        let replies = expected.iter().enumerate().filter(|(index, reply)| wanted(*index, reply));
        replies.min_by_key(|(_, reply)| reply.tokens.len()).expect("a reply of each kind").0
    };
    let chosen = BTreeSet::from([
        shortest(&|_, r| !r.events.is_empty()),
        shortest(&|i, r| world.request(i).0.constraint.is_some() && r.tokens.len() > 3),
        shortest(&|_, r| matches!(r.finish, Some(FinishReason::StopToken(_))) && r.tokens.len() > 2),
        shortest(&|_, r| !r.prompt_logprobs.is_empty() && !r.tokens.is_empty()),
        shortest(&|_, r| r.finish == Some(FinishReason::Length) && r.tokens.len() > 10),
    ]);
    let run = |num_blocks: usize, seed: u64| {
        let gpu = emulated::backend(Arch::Sm90a, Some(seed), Activations::F32)?;
        let mut options = options(num_blocks, 8);
        options.scheduler.max_model_len = 256;
        Some(run(&world, start(gpu, &options), chosen.iter().copied()))
    };
    let Some(roomy) = run(1024, 1) else { return };
    // Blocks for one sequence of the largest length, and one more.
    let short = run(17, 2).unwrap();
    for ((roomy, short), index) in roomy.iter().zip(&short).zip(&chosen) {
        assert_eq!(roomy, short, "request {index}");
        let said = |reply: &Reply| (reply.tokens.clone(), reply.events.clone(), reply.finish);
        assert_eq!(said(roomy), said(&expected[*index]), "request {index}");
    }
}

/// Two ranks that deliver late, as devices do, give the bits of two that do not, and a step whose layers are recorded is five commands a rank: the
/// plan, the layers, logits, the rows to sample, the wait.
#[test]
fn a_group_of_late_ranks_gives_the_same_bits_with_five_commands_a_step() {
    let world = World::new();
    let group = || Group::new(vec![cpu(), cpu()]).unwrap();
    let expected = run(&world, start(group(), &options(1024, 16)), 0..REQUESTS);
    for seed in 0..2 {
        let ranks = [(); 2].map(|()| Delayed::new(cpu(), seed));
        let counted = [ranks[0].transfers.clone(), ranks[1].transfers.clone()];
        let engine = start(Group::new(ranks.into()).unwrap(), &options(1024, 16));
        let replies = run(&world, engine, 0..REQUESTS);
        for (index, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
            assert_eq!(reply, expected, "seed {seed}, request {index}");
        }
        let [first, second] = counted.map(|transfers| *transfers.lock().unwrap());
        assert_eq!((first.steps, first.replays), (second.steps, second.replays), "both get every command");
        assert!(first.replays > 100, "{first:?}");
    }

    let ranks = [(); 2].map(|()| Delayed::new(cpu(), 9));
    let counted = ranks[1].transfers.clone();
    let engine = start(Group::new(ranks.into()).unwrap(), &options(1024, 16));
    let handle = engine.handle.clone();
    let prompt: Arc<[u32]> = world.tokenizer.encode("the sea is", Specials::AsText).unwrap().into();
    let reply = |seed| {
        let request = EngineRequest {
            prompt: prompt.clone(),
            sampling: SamplingParams { seed, max_tokens: 20, ..Default::default() },
            priority: 0,
            share: None,
            deadline: None,
            cache_salt: None,
            guard: None,
            constraint: None,
            speculation: Default::default(),
            media: Vec::new(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(read(handle.clone(), (request, Client::ReadsAll))).tokens.len(), 20);
        *counted.lock().unwrap()
    };
    // The first reply records the steps of one row, and of the prompt.
    let (before, after) = (reply(1), reply(2));
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    let steps = after.steps - before.steps;
    assert!((20..=21).contains(&steps), "{steps}");
    assert_eq!(after.replays - before.replays, steps, "layers are replayed");
    assert_eq!(after.operations, before.operations, "and no operation of them is called");
    assert_eq!(after.logits - before.logits, after.samples - before.samples);
    assert_eq!(after.samples - before.samples, after.outcomes - before.outcomes);
}

/// Commands without a result wait for one that has one: a step whose layers are recorded takes the ranks' threads three times, and one whose layers
/// run once more for each layer, and twice at their end.
#[test]
fn a_recorded_step_takes_the_threads_of_a_group_three_times() {
    let ranks = [(); 2].map(|()| Delayed::new(cpu(), 3));
    let mut model = golden::load_folder(
        Group::new(ranks.into()).unwrap(),
        &golden::golden_folder("kimi"),
        CacheDtype::F32,
    );
    let spec = SlotSpec { prompt: &[], reply: &[], counts: false, logit_bias: &[], stops: &[] };
    model.open_slot(SeqSlot(0), &spec).unwrap();
    let mut turns = Vec::new();
    for position in 0..3 {
        let before = model.backend().num_turns();
        let mut plan = StepPlan::default();
        plan.add([TokenSource::from(7)], position, 0, &[BlockId(0)], golden::BLOCK_SIZE);
        plan.logits_rows = vec![Row(0)];
        model.forward(&plan).unwrap();
        model.logits(0..1).unwrap();
        let row = SampleRow {
            position: position as u64,
            rule: Rule::Score(TokenId(8)),
            ..emulated::sampler::plain(0)
        };
        let ticket = model.sample(&SampleRows { rows: vec![row], ..Default::default() }).unwrap();
        let mut outcomes = Outcomes::default();
        model.wait(ticket, &mut outcomes).unwrap();
        assert_eq!(outcomes.rows[0].token, TokenId(8));
        turns.push(model.backend().num_turns() - before);
    }
    let num_layers = model.blueprint().num_layers as u64;
    assert_eq!(turns, [3 + num_layers + 2, 3, 3]);
}

/// What a step costs a device: one plan up, one set of rows up, one outcome down.
#[test]
fn a_step_of_64_sequences_is_three_transfers() {
    let world = World::new();
    let backend = Delayed::new(cpu(), 7);
    let transfers: Arc<Mutex<Transfers>> = backend.transfers.clone();
    let engine = start(backend, &options(1024, 64));
    let before = *transfers.lock().unwrap();
    let prompt: Arc<[u32]> = world.tokenizer.encode("the sea is", Specials::AsText).unwrap().into();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..64)
            .map(|seed| {
                let request = EngineRequest {
                    prompt: prompt.clone(),
                    sampling: SamplingParams { seed, max_tokens: 20, ..Default::default() },
                    priority: 0,
                    share: None,
                    deadline: None,
                    cache_salt: None,
                    guard: None,
                    constraint: None,
                    speculation: Default::default(),
                    media: Vec::new(),
                };
                tokio::spawn(read(engine.handle.clone(), (request, Client::ReadsAll)))
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap().tokens.len(), 20);
        }
    });
    engine.handle.shutdown();
    engine.thread.join().unwrap().unwrap();
    let after = *transfers.lock().unwrap();
    let steps = after.steps - before.steps;
    assert!(steps >= 20);
    assert_eq!(after.plans - before.plans, steps);
    assert!(after.samples - before.samples <= steps);
    assert_eq!(after.outcomes - before.outcomes, after.samples - before.samples);
    println!(
        "64 sequences: {} bytes up beside the plan, {} bytes down",
        after.largest_sample, after.largest_outcome
    );
    assert!(after.largest_outcome <= 10_000, "{} bytes", after.largest_outcome);
}
