//! The guard in the engine, on the embedded model: loops do not reach the client, and a guarded reply is as deterministic as any.

mod cases;

use std::sync::Arc;

use perigee::boot::engine::{BackendChoice, EngineOptions, StartedEngine, start_engine};
use perigee::nano;
use perigee_cpu::CpuOptions;
use perigee_decoding::guard::{AllPeriods, Config, Event, Mode, Options, PatternRule, exact_threshold};
use perigee_decoding::sampling::SamplingParams;
use perigee_engine::scheduler::{self, FinishReason};
use perigee_engine::{EngineEvent, EngineHandle, EngineRequest};
use perigee_http::generate::{GuardChoice, GuardPlan};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::{Activations, Parallelism};
use perigee_telemetry::{Exposition, Metrics};
use perigee_text::{Specials, Tokenizer};

/// Tokens of a reply that is made to go on and on.
const TOKENS: u32 = 500;
const PROMPTS: [&str; 6] =
    ["the cat and the", "a a a a", "once upon a time", "1 2 3", "hello, hello,", "the sea is"];

struct Nano {
    engine: StartedEngine,
    tokenizer: Arc<Tokenizer>,
    guards: GuardPlan,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Clone, PartialEq)]
struct Reply {
    tokens: Vec<u32>,
    events: Vec<Event>,
    finish: FinishReason,
}

fn start() -> Nano {
    let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let file = |name: &str| checkpoint.file(name).map(|bytes| bytes.into_owned());
    let tokenizer = Arc::new(Tokenizer::load(&file).unwrap());
    let cpu = CpuOptions { activations: Activations::F32, threads: 2, ..Default::default() };
    let options = EngineOptions {
        backend: BackendChoice::Cpu(cpu),
        scheduler: scheduler::Config { max_num_seqs: 8, ..Default::default() },
        block_size: 16,
        cache_bytes: 64 << 20,
        num_blocks: 0,
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
    let metrics = Arc::new(Metrics::new(nano::NAME, false));
    let engine = start_engine(&checkpoint, blueprint, &options, metrics.clone(), &mut |_| ()).unwrap();
    Nano { engine, guards: GuardPlan::new(Config::default(), tokenizer.clone()), tokenizer, metrics }
}

impl Nano {
    fn request(&self, prompt: &str, choice: &GuardChoice, temperature: f32) -> EngineRequest {
        let prompt: Arc<[u32]> = self.tokenizer.encode(prompt, Specials::AsText).unwrap().into();
        // The prompts are words that the replies repeat: without a licence the thresholds are what counts.
        let guard = self.guards.options(choice, &prompt, false, false);
        EngineRequest {
            guard: guard.map(|guard| Options { licence: None, ..guard }),
            constraint: None,
            speculation: Default::default(),
            media: Vec::new(),
            prompt,
            sampling: SamplingParams { temperature, max_tokens: TOKENS, seed: 5, ..Default::default() },
            priority: 0,
            share: None,
            deadline: None,
            cache_salt: None,
        }
    }
}

async fn run(engine: EngineHandle, request: EngineRequest) -> Reply {
    let mut stream = engine.submit(request).unwrap();
    let mut reply = Reply { tokens: vec![], events: vec![], finish: FinishReason::Error };
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::Token { id, .. } => reply.tokens.push(id),
            EngineEvent::Guard(event) => reply.events.push(*event),
            EngineEvent::Finished(reason) => reply.finish = reason,
            _ => {}
        }
    }
    reply
}

/// All at once.
async fn run_all(nano: &Nano, requests: Vec<EngineRequest>) -> Vec<Reply> {
    let tasks: Vec<_> =
        requests.into_iter().map(|r| tokio::spawn(run(nano.engine.handle.clone(), r))).collect();
    let mut replies = Vec::new();
    for task in tasks {
        replies.push(task.await.unwrap());
    }
    replies
}

/// The longest repetition of a reply in units of its threshold, and its unit.
fn worst(tokens: &[u32]) -> (f64, &[u32]) {
    let mut runs = AllPeriods::new(200);
    let mut worst: (f64, &[u32]) = (0.0, &[]);
    for end in 1..=tokens.len() {
        runs.push(&tokens[..end]);
        for period in 1..=200 {
            let run = f64::from(runs.run(period)) / f64::from(exact_threshold(period));
            if run > worst.0 {
                worst = (run, &tokens[end - period as usize..end]);
            }
        }
    }
    worst
}

impl Nano {
    /// Whether a loop of a reply is longer than the rules permit: four times the threshold for a unit with marks or numbers in it,
    /// eight times for one that stands in the prompt.
    fn loops(&self, prompt: &str, tokens: &[u32]) -> bool {
        let (run, unit) = worst(tokens);
        let text = self.tokenizer.decode(unit, false);
        let is_mark = |c: char| c.is_ascii_digit() || (c.is_ascii_punctuation() && !",.!?'".contains(c));
        let permitted = match text {
            _ if prompt.contains(text.trim()) => 8.0,
            _ if text.contains(is_mark) => 4.0,
            _ => 1.0,
        };
        run >= permitted
    }
}

#[test]
fn loops_of_the_embedded_model_do_not_reach_the_client() {
    let nano = start();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let choice = |mode| GuardChoice { mode: Some(mode), ..GuardChoice::default() };
    let ask = |mode, temperature| -> Vec<EngineRequest> {
        PROMPTS.iter().map(|prompt| nano.request(prompt, &choice(mode), temperature)).collect()
    };
    runtime.block_on(async {
        for temperature in [0.0, 0.7] {
            let bare = run_all(&nano, ask(Mode::Off, temperature)).await;
            assert!(
                bare.iter().all(|r| r.events.is_empty() && r.tokens.len() == TOKENS as usize),
                "off is off"
            );
            let looping =
                PROMPTS.iter().zip(&bare).filter(|(prompt, r)| nano.loops(prompt, &r.tokens)).count();
            if temperature == 0.0 {
                assert!(looping > 0, "without a loop this test says nothing");
            }
            let guarded = run_all(&nano, ask(Mode::Rescue, temperature)).await;
            for ((reply, bare), prompt) in guarded.iter().zip(&bare).zip(PROMPTS) {
                assert!(!nano.loops(prompt, &reply.tokens), "a loop got through: {reply:?}");
                assert_eq!(
                    reply.events.is_empty(),
                    reply.tokens == bare.tokens,
                    "changed only where it looped"
                );
                let cut = reply.finish == FinishReason::Repetition;
                assert!(
                    cut || (reply.finish == FinishReason::Length && reply.tokens.len() == TOKENS as usize)
                );
            }
            // Alone, and in other company: the same replies.
            for (index, request) in ask(Mode::Rescue, temperature).into_iter().enumerate().take(3) {
                let alone = run(nano.engine.handle.clone(), request).await;
                assert_eq!(alone, guarded[index]);
            }
            let stopped = run_all(&nano, ask(Mode::Stop, temperature)).await;
            let warned = run_all(&nano, ask(Mode::Warn, temperature)).await;
            for (((stopped, warned), bare), prompt) in stopped.iter().zip(&warned).zip(&bare).zip(PROMPTS) {
                assert_eq!(warned.tokens, bare.tokens, "a warning changes nothing");
                assert_eq!(stopped.tokens, bare.tokens[..stopped.tokens.len()], "ended, and nothing else");
                assert!(!nano.loops(prompt, &stopped.tokens));
            }
        }
        let rule = Some(PatternRule { min_size: 1, max_size: 64, min_count: 2 });
        let choice = GuardChoice { pattern: rule, mode: Some(Mode::Off), ..GuardChoice::default() };
        let reply = run(nano.engine.handle.clone(), nano.request("a a a a", &choice, 0.0)).await;
        assert_eq!(reply.finish, FinishReason::Repetition, "the request's own rule");
    });
    let page = nano.metrics.render(Exposition::Text);
    let counted = page.lines().filter(|line| line.starts_with("perigee_guard_events_total{")).count();
    assert!(counted > 0, "{page}");
    nano.engine.handle.shutdown();
    nano.engine.thread.join().unwrap().unwrap();
    assert_eq!(nano.engine.handle.snapshot().used_blocks, 0);
}

#[test]
fn cases_end_as_they_must() {
    let file = |name: &str| nano::FILES.iter().find(|(of, _)| *of == name).map(|(_, bytes)| bytes.to_vec());
    let tokenizer = Arc::new(Tokenizer::load(&file).unwrap());
    let guards = GuardPlan::new(Config::default(), tokenizer.clone());
    let cases = cases::Case::parse(include_str!("guard/cases.jsonl")).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let options = cases::options(&guards, cases::prompt(&case.request, &tokenizer));
        let acted = cases::first_action(options, &case.reply(&tokenizer));
        if acted.is_some() != case.found {
            let event =
                acted.map(|acted| (acted.event.kind.name(), acted.event.period, acted.at, acted.delivered));
            wrong.push(format!("{}: {event:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases: {wrong:#?}", wrong.len(), cases.len());
}
