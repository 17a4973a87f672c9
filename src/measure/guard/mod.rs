//! `perigee bench guard`: what the guard finds, what it leaves alone, and what it costs.
//!
//! Loops of thirteen classes behind real prose, real files, repetition that was asked for, nanoseconds per token; and whole replies of the
//! served model. All draws come from one seed.

mod corpus;
mod end_to_end;
mod generators;
mod report;
mod requested;
mod transcripts;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

pub use corpus::Category;
pub use end_to_end::{EndToEnd, run as end_to_end};
pub use report::GuardReport;
pub use transcripts::{TranscriptError, Transcripts};

use corpus::Document;
use generators::Loop;
use report::{ClassFigures, FileFigures, OrdinaryFigures, RequestedFigures};
use requested::Requested;

use crate::generate::{GuardChoice, GuardPlan};
use crate::guard::{Action, Config, Guard, Kind, Mode, Options, TierAction, Verdict};
use crate::text::{Specials, Tokenizer, markers};

/// Tokens of a loop.
const LOOP_TOKENS: usize = 4000;
/// Passes over the texts of the cost measurement; the median counts.
const COST_PASSES: usize = 7;
/// Tokens of one pass.
const COST_TOKENS: usize = 200_000;

/// What to evaluate.
#[derive(Debug, Clone)]
pub struct GuardEvaluation {
    /// Folders with real files.
    pub corpus: Vec<PathBuf>,
    /// Files of each kind, at most.
    pub files: usize,
    /// Loops of each class.
    pub streams: usize,
    /// Of every draw.
    pub seed: u64,
    /// Recorded replies.
    pub transcripts: Vec<Transcripts>,
    /// The switches that are evaluated.
    pub config: Config,
}

/// Runs everything that needs no model.
pub fn evaluate(plan: &GuardEvaluation, tokenizer: &Arc<Tokenizer>) -> GuardReport {
    let guards = GuardPlan::new(plan.config.clone(), tokenizer.clone());
    let documents = corpus::read(&plan.corpus, plan.files, plan.seed, tokenizer);
    let fence = tokenizer.encode("```\n", Specials::AsText).unwrap_or_default();
    GuardReport {
        vocabulary: tokenizer.vocab_size(),
        classes: Loop::ALL
            .into_iter()
            .map(|class| find(class, plan, &guards, &documents, tokenizer))
            .collect(),
        files: Category::ALL.into_iter().map(|kind| leave_alone(kind, &guards, &documents, &fence)).collect(),
        requested: {
            let (kept_apart, known) = requested::more_requested()
                .into_iter()
                .enumerate()
                .partition::<Vec<_>, _>(|(at, _)| at % 2 == 1);
            let part = |list: Vec<(usize, Requested)>| list.into_iter().map(|(_, request)| request).collect();
            [
                ("first", requested::requested()),
                ("more", part(known)),
                ("more, kept apart", part(kept_apart)),
                ("last", requested::last_requested()),
            ]
            .into_iter()
            .map(|(set, requests)| {
                let asked = requests.iter().map(|r| (r.name, r.request.as_str(), r.reply.as_str()));
                requested(set, asked, &guards, tokenizer)
            })
            .collect()
        },
        transcripts: plan
            .transcripts
            .iter()
            .map(|file| {
                let asked = file.list.iter().map(|t| (t.name.as_str(), t.request.as_str(), t.reply.as_str()));
                requested(&file.file, asked, &guards, tokenizer)
            })
            .collect(),
        ordinary: ordinary(&guards, plan.seed, tokenizer),
        cost_ns: cost(&guards, &documents, plan.seed, tokenizer),
        end_to_end: None,
    }
}

/// The guard of a reply to this prompt.
fn options(guards: &GuardPlan, prompt: Arc<[u32]>, mode: Mode) -> Options {
    let choice = GuardChoice { mode: Some(mode), ..GuardChoice::default() };
    guards.options(&choice, &prompt, false, false).expect("the mode is not off")
}

/// How a stream ended: position and kind of the first action, tokens delivered by then.
struct Ended {
    at: usize,
    kind: Kind,
    period: u32,
    delivered: usize,
}

/// Runs a stream until something is done about it.
fn first_action(options: Options, stream: &[u32]) -> Option<Ended> {
    let mut guard = Guard::new(options, stream.len());
    stream.iter().enumerate().find_map(|(at, &token)| match guard.observe(token) {
        Verdict::Deliver { .. } => None,
        Verdict::Rescue { keep, event } | Verdict::Stop { keep, event } => {
            Some(Ended { at: at + 1, kind: event.kind, period: event.period, delivered: keep })
        }
    })
}

fn find(
    class: Loop,
    plan: &GuardEvaluation,
    guards: &GuardPlan,
    documents: &[Document],
    tokenizer: &Tokenizer,
) -> ClassFigures {
    let mut rng = fastrand::Rng::with_seed(plan.seed ^ 0x6c6f_6f70);
    let texts: Vec<&Document> = documents.iter().filter(|d| d.category == Category::Prose).collect();
    let mut figures = ClassFigures::new(class.name(), class.is_exact(), plan.streams);
    for _ in 0..plan.streams {
        let wanted = rng.usize(200..2000);
        let mut stream = match texts.is_empty() {
            true => {
                tokenizer.encode(&generators::prose(wanted, &mut rng), Specials::AsText).unwrap_or_default()
            }
            false => texts[rng.usize(0..texts.len())].tokens.clone(),
        };
        stream.truncate(wanted);
        let begins = stream.len();
        let file = match (class, documents.is_empty()) {
            (Loop::Excerpt(..), false) => &documents[rng.usize(0..documents.len())].tokens[..],
            _ => &[],
        };
        stream.extend(class.tokens(LOOP_TOKENS, &mut rng, tokenizer, file));
        let all = options(guards, [].into(), Mode::Rescue);
        if let Some(ended) = first_action(all.clone(), &stream) {
            figures.note(ended.at.saturating_sub(begins), ended.delivered.saturating_sub(begins), ended.kind);
        }
        let exact = Options { noisy: TierAction::Off, novelty: TierAction::Off, ..all.clone() };
        figures.exact_tier += usize::from(first_action(exact, &stream).is_some());
        figures.novelty_tier += usize::from(reports(all, &stream).contains(&Kind::LowNovelty));
    }
    figures
}

/// Everything that is reported of a stream when nothing is done.
fn reports(mut options: Options, stream: &[u32]) -> Vec<Kind> {
    options.mode = Mode::Warn;
    let mut guard = Guard::new(options, stream.len());
    let mut kinds = Vec::new();
    for &token in stream {
        if let Verdict::Deliver { event: Some(event), .. } = guard.observe(token)
            && event.action == Action::Warned
            && !kinds.contains(&event.kind)
        {
            kinds.push(event.kind);
        }
    }
    kinds
}

/// What would be done about files as replies, as they are and as code behind `fence`.
fn leave_alone(category: Category, guards: &GuardPlan, documents: &[Document], fence: &[u32]) -> FileFigures {
    let mut figures = FileFigures::new(category.name());
    for document in documents.iter().filter(|d| d.category == category) {
        let options = options(guards, [].into(), Mode::Rescue);
        let kinds = reports(options.clone(), &document.tokens);
        let acted = first_action(options.clone(), &document.tokens);
        let in_fence = [fence, &document.tokens].concat();
        let fenced = first_action(options.clone(), &in_fence);
        let (held, longest) = held(options, &document.tokens);
        figures.note(document.tokens.len(), &kinds, [&acted, &fenced].map(Option::is_some), held, longest);
        for (ended, place) in [(acted, ""), (fenced, " in a fence")] {
            figures.examples.extend(ended.map(|Ended { at, kind, period, .. }| {
                format!("{}{place} at token {at}: {}, period {period}", document.path.display(), kind.name())
            }));
        }
    }
    figures
}

/// Tokens that did not leave at once, and the longest stretch of them.
fn held(options: Options, stream: &[u32]) -> (usize, usize) {
    let mut guard = Guard::new(options, stream.len());
    let (mut held, mut longest) = (0, 0);
    for &token in stream {
        if !matches!(guard.observe(token), Verdict::Deliver { .. }) {
            break;
        }
        held += usize::from(guard.num_held() > 0);
        longest = longest.max(guard.num_held());
    }
    (held, longest)
}

/// A user's message as the prompt of a conversation; as plain text where the vocabulary has no turns.
fn prompt(request: &str, tokenizer: &Tokenizer) -> Arc<[u32]> {
    let encode = |text: &str| tokenizer.encode(text, Specials::AsText).unwrap_or_default();
    let id = |name| tokenizer.special_id(name);
    let turn = [markers::IM_USER, markers::IM_MIDDLE, markers::IM_END, markers::IM_ASSISTANT].map(id);
    let [Some(user), Some(middle), Some(end), Some(assistant)] = turn else { return encode(request).into() };
    let parts = [
        vec![user],
        encode("user"),
        vec![middle],
        encode(request),
        vec![end, assistant],
        encode("assistant"),
        vec![middle],
    ];
    parts.concat().into()
}

/// Requests by name, each with its reply.
fn requested<'a>(
    set: &str,
    requests: impl Iterator<Item = (&'a str, &'a str, &'a str)>,
    guards: &GuardPlan,
    tokenizer: &Tokenizer,
) -> RequestedFigures {
    let mut figures = RequestedFigures { set: set.to_owned(), ..RequestedFigures::default() };
    for (name, request, reply) in requests {
        let reply = tokenizer.encode(reply, Specials::AsText).unwrap_or_default();
        figures.total += 1;
        if first_action(options(guards, [].into(), Mode::Rescue), &reply).is_some() {
            figures.unlicensed += 1;
        }
        if let Some(ended) = first_action(options(guards, prompt(request, tokenizer), Mode::Rescue), &reply) {
            let Ended { at, kind, period, .. } = ended;
            figures.stopped.push(format!(
                "{name} at token {at} of {}: {}, period {period}",
                reply.len(),
                kind.name()
            ));
        }
    }
    figures
}

/// Loops of a request's own words, and of others, in replies to requests that ask for none.
fn ordinary(guards: &GuardPlan, seed: u64, tokenizer: &Tokenizer) -> OrdinaryFigures {
    let mut figures = OrdinaryFigures::default();
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6f72_6469);
    let encode = |text: &str| tokenizer.encode(text, Specials::AsText).unwrap_or_default();
    for &request in requested::ORDINARY {
        let words: Vec<&str> = request.split_whitespace().collect();
        let longest = words.iter().max_by_key(|word| word.chars().count()).copied().unwrap_or_default();
        let at = rng.usize(0..words.len().saturating_sub(2).max(1));
        let units = [
            format!(" {}", longest.trim_matches(|c: char| !c.is_alphanumeric())),
            format!(" {}", words[at..(at + 3).min(words.len())].join(" ")),
            format!(" {}", generators::prose(rng.usize(6..30), &mut rng)),
            "!".to_owned(),
            "\n".to_owned(),
        ];
        for unit in units {
            let before = encode(&generators::prose(100, &mut rng));
            let copies = LOOP_TOKENS / encode(&unit).len().max(1);
            let stream = [before, encode(&unit.repeat(copies))].concat();
            let bare = first_action(options(guards, [].into(), Mode::Rescue), &stream).map(|ended| ended.at);
            let asked = first_action(options(guards, prompt(request, tokenizer), Mode::Rescue), &stream);
            figures.total += 1;
            figures.found += usize::from(asked.is_some());
            if asked.map(|ended| ended.at) == bare {
                figures.as_early += 1;
            } else {
                figures.later.push(format!("{request:?}, {:?}", unit.chars().take(40).collect::<String>()));
            }
        }
    }
    figures
}

/// Nanoseconds per token on real text, on a loop, and on soup, in replies to ordinary requests; medians of several passes.
fn cost(guards: &GuardPlan, documents: &[Document], seed: u64, tokenizer: &Tokenizer) -> Vec<(String, f64)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut texts: Vec<(String, Vec<u32>)> = Vec::new();
    for category in Category::ALL {
        let of_kind = documents.iter().filter(|d| d.category == category);
        let tokens: Vec<u32> = of_kind.flat_map(|d| d.tokens.iter().copied()).take(COST_TOKENS).collect();
        if !tokens.is_empty() {
            texts.push((category.name().into(), tokens));
        }
    }
    let own = tokenizer.encode(&generators::prose(COST_TOKENS / 4, &mut rng), Specials::AsText);
    texts.push(("generated words".into(), own.unwrap_or_default()));
    for class in [Loop::Word, Loop::Sentence, Loop::Noise(5), Loop::Soup] {
        texts.push((class.name(), class.tokens(COST_TOKENS / 4, &mut rng, tokenizer, &[])));
    }
    let prompts: Vec<Arc<[u32]>> =
        requested::ORDINARY.iter().map(|request| prompt(request, tokenizer)).collect();
    let measured = |tokens: &[u32]| {
        // Replies are a few thousand tokens long: a guard's own set-up counts.
        let mut passes: Vec<f64> = (0..COST_PASSES)
            .map(|_| {
                let begun = Instant::now();
                for (reply, request) in tokens.chunks(8192).zip(prompts.iter().cycle()) {
                    let mut guard = Guard::new(options(guards, request.clone(), Mode::Warn), reply.len());
                    reply.iter().for_each(|&token| drop(std::hint::black_box(guard.observe(token))));
                }
                begun.elapsed().as_nanos() as f64 / tokens.len().max(1) as f64
            })
            .collect();
        passes.sort_by(f64::total_cmp);
        passes[COST_PASSES / 2]
    };
    texts.iter().map(|(name, tokens)| (name.clone(), measured(tokens))).collect()
}
