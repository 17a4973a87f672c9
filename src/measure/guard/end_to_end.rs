//! Whole replies of a model: how many end in a loop that reached the client, and whether a thought that is cut short still has an answer.

use serde::Serialize;

use crate::generate::{
    Budget, Calls, ChatPrompt, ChatReply, Finish, FullReply, GenerateError, GenerateRequest, Generator,
    GuardChoice, Prompt,
};
use crate::guard::{AllPeriods, Mode};
use crate::sampling::SamplingParams;

/// Longest period that a reply's end is looked at for.
const LONGEST: u32 = 1024;
/// A reply ends in a loop if its end repeats at least this often, over at least so many tokens.
const COPIES: u32 = 4;
const LEAST: u32 = 48;
/// Requests at once.
const AT_ONCE: usize = 50;

/// Most thinking tokens where thinking has a budget.
const THINKING_BUDGET: u32 = 64;
/// Topics of the questions about loops; all of them are asked about with a budget.
const LOOP_TOPICS: usize = 10;

const TOPICS: [&str; 20] = [
    "cats and cat allergens",
    "the sea",
    "a long winter",
    "old bridges",
    "the history of bread",
    "how rain is made",
    "a village market",
    "learning to paint",
    "the moon",
    "an honest friend",
    "a lost letter",
    "the first railway",
    "bees",
    "how paper is made",
    "a quiet street",
    "learning to swim",
    "clocks",
    "the desert at night",
    "an old teacher",
    "the colour blue",
];
const FORMS: [&str; 10] = [
    "Tell me about {}.",
    "Write an essay on {}.",
    "Write a long story about {}.",
    "Explain {} to a child.",
    "What do you think of {}?",
    "Write a letter to a friend about {}.",
    "Describe {} in detail.",
    "Give a speech about {}.",
    "Write down everything you know about {}.",
    "Write a poem about {}.",
];

/// Whether the end of the turn is ignored, and whether there is a thought first.
const MANNERS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];
const MODES: [Mode; 2] = [Mode::Off, Mode::Rescue];
/// Of replies with a budget.
const TEMPERATURES: [f32; 2] = [0.0, 1.0];
/// Replies in all.
const TOTAL: usize =
    FORMS.len() * (LOOP_TOPICS * MANNERS.len() * MODES.len() + TOPICS.len() * TEMPERATURES.len());

/// Replies with one setting of the guard.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Replies {
    /// What was set.
    pub setting: String,
    /// Replies.
    pub replies: usize,
    /// Tokens that reached the client.
    pub tokens: usize,
    /// Replies whose end repeats.
    pub end_in_loop: usize,
    /// Those whose loop reached the client for more than one copy and what may be held back.
    pub beyond: usize,
    /// Longest repeating end, tokens.
    pub longest_end: u32,
    /// Replies that were taken back and went on.
    pub rescued: usize,
    /// Replies that were ended.
    pub stopped: usize,
}

/// Replies whose thinking had a budget.
#[derive(Debug, Clone, Serialize)]
pub struct Budgeted {
    /// Most thinking tokens.
    pub budget: u32,
    /// Of every reply.
    pub temperature: f32,
    /// Replies.
    pub replies: usize,
    /// Those that used the budget up.
    pub used_up: usize,
    /// Those without an answer.
    pub without_answer: usize,
}

/// Replies with the guard and without.
#[derive(Debug, Clone, Serialize)]
pub struct EndToEnd {
    /// Most tokens of a reply.
    pub max_tokens: u32,
    /// By setting.
    pub settings: Vec<Replies>,
    /// By temperature.
    pub budgeted: Vec<Budgeted>,
}

/// Asks a hundred open questions at temperature 0, as a client would and with the end of the turn ignored, so that every reply goes on; and
/// two hundred with a budget for thinking. `progress` is told how many of how many replies there are.
pub async fn run(
    generator: &Generator,
    max_tokens: u32,
    hold: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<EndToEnd, GenerateError> {
    let mut done = 0;
    let mut replied = |replies: usize| {
        done += replies as u64;
        progress(done, TOTAL as u64);
    };
    let room = (generator.facts().max_model_len as u32).saturating_sub(64);
    let max_tokens = max_tokens.min(room);
    let mut settings = Vec::new();
    for (ignore_eos, thinking) in MANNERS {
        for mode in MODES {
            let turn = if ignore_eos { "end of turn ignored" } else { "as it comes" };
            let thought = if thinking { ", thinking" } else { "" };
            let setting = format!("guard {}, {turn}{thought}", mode.name());
            let mut figures = Replies { setting, ..Replies::default() };
            let requests = questions(&TOPICS[..LOOP_TOPICS])
                .map(|text| GenerateRequest {
                    guard: GuardChoice { mode: Some(mode), ..GuardChoice::default() },
                    ignore_eos,
                    ..request(text, max_tokens, thinking)
                })
                .collect();
            for Answered { full, events, .. } in replies_to(generator, requests, &mut replied).await? {
                let stopped = matches!(full.finish, Finish::Repetition { .. });
                figures.note(&full.tokens, events, stopped, hold);
            }
            settings.push(figures);
        }
    }
    let mut budgeted = Vec::new();
    for temperature in TEMPERATURES {
        let budget = THINKING_BUDGET;
        let requests = questions(&TOPICS).zip(0..).map(|(text, seed)| GenerateRequest {
            chat: Some(ChatReply {
                calls: Calls::Forbidden,
                parallel_calls: true,
                budget: Some(Budget::Tokens(budget)),
                inline_reasoning: false,
            }),
            sampling: SamplingParams { temperature, seed, ..SamplingParams::default() },
            ..request(text, max_tokens, true)
        });
        let mut figures = Budgeted { budget, temperature, replies: 0, used_up: 0, without_answer: 0 };
        for Answered { full, thought, .. } in replies_to(generator, requests.collect(), &mut replied).await? {
            figures.replies += 1;
            figures.used_up += usize::from(thought >= budget as usize);
            figures.without_answer += usize::from(full.said.content.trim().is_empty());
        }
        budgeted.push(figures);
    }
    Ok(EndToEnd { max_tokens, settings, budgeted })
}

/// Every form of question about every topic.
fn questions<'a>(topics: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
    FORMS.iter().flat_map(|form| topics.iter().map(|topic| form.replace("{}", topic)))
}

/// A reply, what the guard reported of it, and its thinking tokens.
struct Answered {
    full: FullReply,
    events: usize,
    thought: usize,
}

/// The replies, in the order of the requests.
async fn replies_to(
    generator: &Generator,
    requests: Vec<GenerateRequest>,
    replied: &mut dyn FnMut(usize),
) -> Result<Vec<Answered>, GenerateError> {
    let mut all = Vec::new();
    for group in requests.chunks(AT_ONCE) {
        // All of a group are submitted before the first is waited for.
        let mut open = Vec::new();
        for request in group {
            open.push(generator.generate(request.clone()).await?);
        }
        for mut replies in open {
            let full = replies.collect().await?.remove(0);
            let (events, thought) = (replies.guard_events(0).len(), replies.usage().reasoning_tokens);
            all.push(Answered { full, events, thought });
        }
        replied(group.len());
    }
    Ok(all)
}

fn request(text: String, max_tokens: u32, thinking: bool) -> GenerateRequest {
    let kwargs = serde_json::Map::from_iter([("thinking".to_owned(), thinking.into())]);
    GenerateRequest {
        prompts: vec![Prompt::Chat(ChatPrompt {
            messages: vec![serde_json::json!({"role": "user", "content": text})],
            tools: Vec::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: Some(kwargs),
        })],
        chat: None,
        n: 1,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        max_tokens: None,
        default_max_tokens: Some(max_tokens),
        ignore_eos: false,
        stop: Vec::new(),
        stop_patterns: None,
        bad_words: Vec::new(),
        include_stop: false,
        skip_special_tokens: true,
        truncate: None,
        echo: false,
        priority: 0,
        deadline: None,
        cache_salt: None,
        guard: GuardChoice::default(),
        grammar: None,
    }
}

impl Replies {
    fn note(&mut self, tokens: &[u32], events: usize, stopped: bool, hold: u32) {
        let mut runs = AllPeriods::new(LONGEST);
        (1..=tokens.len()).for_each(|end| runs.push(&tokens[..end]));
        self.replies += 1;
        self.tokens += tokens.len();
        self.stopped += usize::from(stopped);
        self.rescued += usize::from(events > usize::from(stopped));
        let at_end = (1..=LONGEST).map(|period| (period, runs.run(period)));
        let looping = at_end.filter(|(period, run)| *run >= LEAST.max(period * (COPIES - 1)));
        // The shortest unit says how much was repeated.
        let Some((period, run)) = looping.min_by_key(|(period, _)| *period) else { return };
        self.end_in_loop += 1;
        self.longest_end = self.longest_end.max(run);
        self.beyond += usize::from(run > period + hold);
    }
}

impl EndToEnd {
    pub(super) fn table(&self) -> String {
        let mut lines = vec![format!(
            "\n| replies of at most {} tokens, temperature 0 | replies | tokens | end in a loop | beyond one copy and hold-back | longest end | rescued | stopped |\n|---|---|---|---|---|---|---|---|",
            self.max_tokens
        )];
        for s in &self.settings {
            lines.push(format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                s.setting, s.replies, s.tokens, s.end_in_loop, s.beyond, s.longest_end, s.rescued, s.stopped
            ));
        }
        lines.push(format!(
            "\n| thinking budget of {THINKING_BUDGET} tokens | replies | used up | without an answer |\n|---|---|---|---|"
        ));
        for b in &self.budgeted {
            let Budgeted { temperature, replies, used_up, without_answer, .. } = b;
            lines.push(format!("| temperature {temperature} | {replies} | {used_up} | {without_answer} |"));
        }
        lines.join("\n")
    }
}
