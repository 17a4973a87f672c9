//! The embedded model does what its card says, on the items its training never saw (`scripts/nano/heldout.jsonl`).

use std::collections::BTreeMap;
use std::sync::Arc;

use perigee::boot::engine::{BackendChoice, EngineOptions, start_engine};
use perigee::nano;
use perigee_cpu::CpuOptions;
use perigee_decoding::sampling::SamplingParams;
use perigee_decoding::speculation::{Config, Method};
use perigee_engine::scheduler;
use perigee_engine::{EngineEvent, EngineHandle, EngineRequest};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::{Activations, AttentionExchange, ContextSplit, Parallelism};
use perigee_telemetry::Metrics;
use perigee_text::{Specials, Tokenizer};
use serde_json::Value;

/// What a skill must reach, per cent of the fixture's 60 items over both modes: the card's aim. The card's own figures come from 400 items each.
const FLOORS: [(&str, usize); 6] =
    [("repeat", 85), ("arithmetic", 85), ("json", 85), ("tool", 85), ("recall", 85), ("perigee", 85)];

/// One line of the fixture.
#[derive(Debug, PartialEq)]
struct Item {
    skill: String,
    prompt: String,
    expect: Value,
}

fn items() -> Vec<Item> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/nano/heldout.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|line| Item {
            skill: line["skill"].as_str().unwrap().into(),
            prompt: line["prompt_text"].as_str().unwrap().into(),
            expect: line["expect"].clone(),
        })
        .collect()
}

/// Whether a reply, thought included, is right: the same rule as `scripts/nano/heldout.py`.
fn is_right(skill: &str, expect: &Value, text: &str) -> bool {
    let answer = text.rsplit("</think>").next().unwrap().trim();
    match skill {
        "repeat" => Some(answer) == expect.as_str(),
        "arithmetic" => Some(answer.rsplit(':').next().unwrap().trim()) == expect.as_str(),
        "json" => serde_json::from_str::<Value>(answer).is_ok_and(|value| value == *expect),
        "tool" => is_right_call(expect, answer),
        "recall" => says(answer, expect),
        _ => expect.as_array().unwrap().iter().all(|words| says(answer, words)),
    }
}

/// Whether the answer contains the words, in any case.
fn says(answer: &str, words: &Value) -> bool {
    answer.to_lowercase().contains(&words.as_str().unwrap().to_lowercase())
}

fn is_right_call(expect: &Value, answer: &str) -> bool {
    let call = answer
        .split_once("<|tool_call_begin|>")
        .and_then(|(_, rest)| rest.split_once("<|tool_call_argument_begin|>"));
    let Some((id, rest)) = call else { return false };
    let Some((arguments, _)) = rest.split_once("<|tool_call_end|>") else { return false };
    let name = id.trim().trim_start_matches("functions.").rsplit_once(':').map(|(name, _)| name);
    name == expect["name"].as_str()
        && serde_json::from_str::<Value>(arguments).is_ok_and(|a| a == expect["arguments"])
}

/// A reply, and how many drafted tokens were accepted and rejected.
async fn reply(
    engine: EngineHandle,
    tokenizer: Arc<Tokenizer>,
    prompt: String,
    sampling: SamplingParams,
) -> (String, (usize, usize)) {
    let ids = tokenizer.encode(&prompt, Specials::Recognised).unwrap();
    let sampling = SamplingParams { max_tokens: 160, stop_token_ids: tokenizer.turn_ends(), ..sampling };
    let request = EngineRequest {
        prompt: ids.into(),
        sampling,
        priority: 0,
        share: None,
        deadline: None,
        cache_salt: None,
        guard: None,
        constraint: None,
        speculation: Default::default(),
        media: Vec::new(),
    };
    let mut stream = engine.submit(request).unwrap();
    let (mut tokens, mut drafted) = (Vec::new(), (0, 0));
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::Token { id, .. } => tokens.push(id),
            EngineEvent::Speculated { accepted, rejected } => drafted = (accepted, rejected),
            _ => {}
        }
    }
    tokens.retain(|id| !tokenizer.turn_ends().contains(id));
    (tokenizer.decode(&tokens, false), drafted)
}

#[test]
fn embedded_model_does_what_its_card_says() {
    let cpu = CpuOptions { activations: Activations::F32, ..Default::default() };
    let mut score: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (item, text) in replies(BackendChoice::Cpu(cpu), Config::off(), items()).0 {
        let entry = score.entry(item.skill.clone()).or_default();
        entry.0 += usize::from(is_right(&item.skill, &item.expect, &text));
        entry.1 += 1;
    }
    println!("{score:?}");
    for (skill, floor) in FLOORS {
        let (right, of) = score[skill];
        assert!(right * 100 >= floor * of, "{skill}: {right} of {of}, floor {floor} %");
    }
}

/// The embedded model on ranks says what it says on one: greedily and drawn with every filter and penalty, however
/// experts and positions are split. Its draft model guesses as well, and no logits cross ranks.
#[test]
fn ranks_say_what_one_says() {
    use {AttentionExchange::*, ContextSplit::*};
    let each = CpuOptions { activations: Activations::F32, threads: 1, ..Default::default() };
    let some = || items().into_iter().step_by(10).collect::<Vec<_>>();
    let filtered = SamplingParams {
        temperature: 0.8,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.01,
        repetition_penalty: 1.05,
        presence_penalty: 0.1,
        frequency_penalty: 0.1,
        logit_bias: vec![(1000, -1.0)],
        seed: 51,
        ..SamplingParams::default()
    };
    let drafts = Config { method: Method::Eagle3, adaptive: false, max_tokens: 3, ..Config::default() };
    let cpu = || BackendChoice::Cpu(each);
    let greedy = replies(cpu(), Config::off(), some());
    let drawn = sampled_replies(cpu(), Config::off(), some(), &filtered);
    let drafted = replies(cpu(), drafts.clone(), some());
    assert!(greedy.0.len() > 20 && drafted.1.0 > 0);
    for (ranks, expert_groups, context) in
        [(2, 2, Split(Latents)), (2, 1, Whole), (4, 1, Split(Heads)), (4, 2, Split(Latents)), (4, 4, Whole)]
    {
        let parallelism = Parallelism { expert_groups, context };
        let on = || BackendChoice::CpuRanks { ranks, each, parallelism };
        assert_eq!(replies(on(), Config::off(), some()), greedy, "{ranks}: {parallelism:?}");
        assert_eq!(
            sampled_replies(on(), Config::off(), some(), &filtered),
            drawn,
            "{ranks}: {parallelism:?}"
        );
        assert_eq!(replies(on(), drafts.clone(), some()), drafted, "{ranks}: {parallelism:?}");
    }
}

/// The embedded draft model guesses most tokens of the held-out replies, and changes none.
#[test]
fn the_embedded_draft_guesses_what_the_model_says() {
    let cpu = CpuOptions { activations: Activations::F32, ..Default::default() };
    let some = || items().into_iter().step_by(5).collect();
    let (expected, _) = replies(BackendChoice::Cpu(cpu), Config::off(), some());
    let drafts = Config { method: Method::Eagle3, adaptive: false, max_tokens: 3, ..Config::default() };
    let (got, (accepted, rejected)) = replies(BackendChoice::Cpu(cpu), drafts, some());
    assert_eq!(expected, got);
    // With three drafted tokens a step.
    let tokens = 1.0 + 3.0 * accepted as f64 / (accepted + rejected) as f64;
    println!("{accepted} accepted, {rejected} rejected: at least {tokens:.2} tokens per step");
    assert!(tokens > 3.0, "{tokens}");
}

/// Greedy replies to all items, at once, and how many drafted tokens were accepted and rejected.
fn replies(
    backend: BackendChoice,
    speculation: Config,
    items: Vec<Item>,
) -> (Vec<(Item, String)>, (usize, usize)) {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    sampled_replies(backend, speculation, items, &greedy)
}

fn sampled_replies(
    backend: BackendChoice,
    speculation: Config,
    items: Vec<Item>,
    sampling: &SamplingParams,
) -> (Vec<(Item, String)>, (usize, usize)) {
    let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let tokenizer =
        Arc::new(Tokenizer::load(&|name| checkpoint.file(name).map(|bytes| bytes.into_owned())).unwrap());
    let options = EngineOptions {
        backend,
        scheduler: scheduler::Config::default(),
        block_size: 32,
        cache_bytes: 256 << 20,
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
        speculation,
    };
    let metrics = Arc::new(Metrics::new(nano::NAME, false));
    let engine = start_engine(&checkpoint, blueprint, &options, metrics, &mut |_| ()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let asked: Vec<_> = items
            .into_iter()
            .map(|item| {
                let asked =
                    reply(engine.handle.clone(), tokenizer.clone(), item.prompt.clone(), sampling.clone());
                (item, tokio::spawn(asked))
            })
            .collect();
        let (mut replies, mut drafted) = (Vec::with_capacity(asked.len()), (0, 0));
        for (item, answer) in asked {
            let (text, (accepted, rejected)) = answer.await.unwrap();
            drafted = (drafted.0 + accepted, drafted.1 + rejected);
            replies.push((item, text));
        }
        (replies, drafted)
    })
}
