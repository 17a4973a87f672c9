//! The same prompts with and without drafts: speed, acceptance, and whether the replies are equal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::serving::{BenchError, median, overhead};
use perigee_decoding::sampling::SamplingParams;
use perigee_decoding::speculation::Predicted;
use perigee_engine::scheduler::FinishReason;
use perigee_engine::{EngineEvent, EngineHandle, EngineRequest, Speculation};
use perigee_telemetry::Metrics;

/// What to compare.
#[derive(Debug, Clone)]
pub struct SpeculationPlan {
    /// Prompts, at least one.
    pub prompts: Vec<Arc<[u32]>>,
    /// Sampling of every reply; the seed is the prompt's index.
    pub sampling: SamplingParams,
    /// Sequences that decode at once.
    pub concurrency: usize,
    /// Repetitions, after one warm-up; each runs all prompts twice.
    pub repeat: usize,
    /// Drafts are replayed: the reply without drafts is predicted, with this share of its tokens
    /// right. `None`: drafts come from where the engine finds them.
    pub replay: Option<f64>,
}

/// Figures of the comparison. Lists have an entry per repetition.
#[derive(Debug, Clone, Serialize)]
pub struct SpeculationReport {
    /// Prompts of a repetition.
    pub prompts: usize,
    /// Reply tokens of a repetition.
    pub reply_tokens: usize,
    /// Sequences that decoded at once.
    pub concurrency: usize,
    /// Reply tokens per second without drafts.
    pub off_tok_s: Vec<f64>,
    /// Reply tokens per second with drafts.
    pub on_tok_s: Vec<f64>,
    /// Tokens per second of one sequence from its first token on, without drafts: prompts are the same work with and without.
    pub off_decode_tok_s: Vec<f64>,
    /// The same with drafts.
    pub on_decode_tok_s: Vec<f64>,
    /// Microseconds per step outside the forward pass, without drafts.
    pub off_overhead_us: Vec<f64>,
    /// The same with drafts.
    pub on_overhead_us: Vec<f64>,
    /// Drafted tokens of all repetitions.
    pub drafted_tokens: usize,
    /// Of these, those that became part of a reply.
    pub accepted_tokens: usize,
    /// Reply tokens per step of their sequence, with drafts.
    pub tokens_per_step: f64,
    /// Replies with drafts that differ from those without: a fault if not 0.
    pub different_replies: usize,
}

/// A reply, the time from its first token to its end, and its drafted tokens.
struct Outcome {
    tokens: Vec<u32>,
    decode: Duration,
    accepted: usize,
    rejected: usize,
}

/// Runs the plan. The runs with and without drafts alternate.
pub async fn compare(
    engine: &EngineHandle,
    metrics: &Metrics,
    plan: &SpeculationPlan,
) -> Result<SpeculationReport, BenchError> {
    let mut report = SpeculationReport {
        prompts: plan.prompts.len(),
        reply_tokens: 0,
        concurrency: plan.concurrency,
        off_tok_s: Vec::new(),
        on_tok_s: Vec::new(),
        off_decode_tok_s: Vec::new(),
        on_decode_tok_s: Vec::new(),
        off_overhead_us: Vec::new(),
        on_overhead_us: Vec::new(),
        drafted_tokens: 0,
        accepted_tokens: 0,
        tokens_per_step: 1.0,
        different_replies: 0,
    };
    let (mut tokens, mut first_tokens) = (0, 0);
    for repetition in 0..=plan.repeat {
        let sums = metrics.step_seconds();
        let (off, off_s) = run_all(engine, plan, Drafts::Off, repetition).await?;
        let between = metrics.step_seconds();
        let drafts = match plan.replay {
            Some(share) => Drafts::Predicted(replayed(&off, share, engine.facts().vocab_size)),
            None => Drafts::On,
        };
        let (on, on_s) = run_all(engine, plan, drafts, repetition).await?;
        report.different_replies += off.iter().zip(&on).filter(|(a, b)| a.tokens != b.tokens).count();
        let after = metrics.step_seconds();
        // The first repetition is the warm-up.
        if repetition == 0 {
            continue;
        }
        report.off_overhead_us.push(overhead(&sums, &between));
        report.on_overhead_us.push(overhead(&between, &after));
        report.reply_tokens = on.iter().map(|reply| reply.tokens.len()).sum();
        report.off_tok_s.push(off.iter().map(|reply| reply.tokens.len()).sum::<usize>() as f64 / off_s);
        report.on_tok_s.push(report.reply_tokens as f64 / on_s);
        report.off_decode_tok_s.push(decode_rate(&off));
        report.on_decode_tok_s.push(decode_rate(&on));
        report.accepted_tokens += on.iter().map(|reply| reply.accepted).sum::<usize>();
        report.drafted_tokens += on.iter().map(|reply| reply.accepted + reply.rejected).sum::<usize>();
        tokens += report.reply_tokens;
        first_tokens += on.len();
    }
    // The first token of a reply comes from the step of its prompt.
    let steps = (tokens - first_tokens).saturating_sub(report.accepted_tokens);
    report.tokens_per_step = (tokens - first_tokens) as f64 / steps.max(1) as f64;
    Ok(report)
}

/// Tokens per second of a sequence behind its first token, over all replies.
fn decode_rate(replies: &[Outcome]) -> f64 {
    let tokens: usize = replies.iter().map(|reply| reply.tokens.len().saturating_sub(1)).sum();
    let spent: Duration = replies.iter().map(|reply| reply.decode).sum();
    tokens as f64 / spent.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// What a run drafts from.
#[derive(Clone)]
enum Drafts {
    Off,
    On,
    /// A prediction of each reply.
    Predicted(Arc<[Arc<Predicted>]>),
}

/// The replies with a share of their tokens right and the others wrong.
fn replayed(replies: &[Outcome], share: f64, vocab_size: usize) -> Arc<[Arc<Predicted>]> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut predicted = |token: u32| match rng.f64() < share {
        true => token,
        false => (token + 1) % vocab_size as u32,
    };
    let mut prediction =
        |reply: &Outcome| Predicted::new(reply.tokens.iter().map(|token| predicted(*token)).collect()).into();
    replies.iter().map(&mut prediction).collect()
}

/// Replies to all prompts in their order, and the seconds that they took together.
async fn run_all(
    engine: &EngineHandle,
    plan: &SpeculationPlan,
    drafts: Drafts,
    repetition: usize,
) -> Result<(Vec<Outcome>, f64), BenchError> {
    let begun = Instant::now();
    let mut workers = Vec::new();
    for worker in 0..plan.concurrency {
        let (engine, plan, drafts) = (engine.clone(), plan.clone(), drafts.clone());
        workers.push(tokio::spawn(async move {
            let mut replies = Vec::new();
            for index in (worker..plan.prompts.len()).step_by(plan.concurrency) {
                let mut sampling = plan.sampling.clone();
                sampling.seed = index as u64;
                let prediction = match &drafts {
                    Drafts::Predicted(replies) => Some(replies[index].clone()),
                    Drafts::Off | Drafts::On => None,
                };
                let wanted = !matches!(drafts, Drafts::Off);
                let request = EngineRequest {
                    prompt: plan.prompts[index].clone(),
                    sampling,
                    priority: 0,
                    share: None,
                    deadline: None,
                    // Replies of other repetitions are not there to be copied.
                    cache_salt: Some(format!("{wanted} {repetition}")),
                    guard: None,
                    constraint: None,
                    speculation: Speculation { wanted, prediction },
                    media: Vec::new(),
                };
                replies.push((index, reply_to(&engine, request).await?));
            }
            Ok::<_, BenchError>(replies)
        }));
    }
    let mut replies = Vec::new();
    for worker in workers {
        replies.extend(worker.await.expect("the measuring task does not panic")?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    replies.sort_by_key(|(index, _)| *index);
    Ok((replies.into_iter().map(|(_, reply)| reply).collect(), seconds))
}

async fn reply_to(engine: &EngineHandle, request: EngineRequest) -> Result<Outcome, BenchError> {
    let mut stream = engine.submit(request)?;
    let mut reply = Outcome { tokens: Vec::new(), decode: Duration::ZERO, accepted: 0, rejected: 0 };
    let mut first = None;
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::Token { id, .. } => {
                reply.decode = first.get_or_insert_with(Instant::now).elapsed();
                reply.tokens.push(id);
            }
            EngineEvent::Speculated { accepted, rejected } => {
                (reply.accepted, reply.rejected) = (accepted, rejected)
            }
            EngineEvent::Finished(FinishReason::StopToken(_) | FinishReason::Length) => {}
            EngineEvent::Finished(reason) => {
                return Err(BenchError::Ended { reason, tokens: reply.tokens.len() });
            }
            _ => {}
        }
    }
    Ok(reply)
}

impl SpeculationReport {
    /// The figures as a table for a terminal.
    pub fn table(&self) -> String {
        let line = |what: &str, values: &[f64]| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(0.0, f64::max);
            format!("{what:<46} {:>9.1} tok/s  ({low:.1}-{high:.1})", median(values))
        };
        let ratio = |on: &[f64], off: &[f64]| {
            let ratios: Vec<f64> = on.iter().zip(off).map(|(on, off)| on / off).collect();
            format!("{:<46} {:>9.3}", "with / without, median of repetitions", median(&ratios))
        };
        let share = self.accepted_tokens as f64 / self.drafted_tokens.max(1) as f64;
        [
            format!(
                "{} prompts, {} reply tokens, {} at once",
                self.prompts, self.reply_tokens, self.concurrency
            ),
            line("without drafts", &self.off_tok_s),
            line("with drafts", &self.on_tok_s),
            ratio(&self.on_tok_s, &self.off_tok_s),
            line("one sequence from its first token on, without", &self.off_decode_tok_s),
            line("the same with drafts", &self.on_decode_tok_s),
            ratio(&self.on_decode_tok_s, &self.off_decode_tok_s),
            format!(
                "{:<46} {:>9.1} us     (without drafts {:.1})",
                "a step outside the forward pass",
                median(&self.on_overhead_us),
                median(&self.off_overhead_us)
            ),
            format!("{:<46} {:>9.2}", "tokens per step of a sequence", self.tokens_per_step),
            format!(
                "{:<46} {:>9.1} %      ({} of {})",
                "drafted tokens that held",
                share * 100.0,
                self.accepted_tokens,
                self.drafted_tokens
            ),
            format!("{:<46} {:>9}", "replies that differ", self.different_replies),
        ]
        .join("\n")
    }
}
