//! Prefill and decode through the whole engine (scheduler, forward, sampler), without HTTP.

use std::time::Instant;

use serde::Serialize;

use perigee_decoding::sampling::SamplingParams;
use perigee_engine::scheduler::FinishReason;
use perigee_engine::{EngineEvent, EngineHandle, EngineRequest, Speculation, SubmitError};
use perigee_telemetry::{Metrics, StepSeconds};

/// Settings of a measurement.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    /// Prompt length of the prefill measurement, tokens.
    pub prefill: usize,
    /// Reply length of the decode measurement, tokens.
    pub decode: usize,
    /// Context before the first decoded token, tokens.
    pub depth: usize,
    /// Sequences that decode at once.
    pub concurrency: usize,
    /// Measured repetitions, after one warm-up.
    pub repeat: usize,
}

/// Figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// Backend name.
    pub backend: String,
    /// Prompt length, tokens.
    pub prefill_tokens: usize,
    /// Prompt tokens per second of each repetition.
    pub prefill_tok_s: Vec<f64>,
    /// Reply length, tokens.
    pub decode_tokens: usize,
    /// Context before the first decoded token.
    pub depth: usize,
    /// Sequences that decode at once.
    pub concurrency: usize,
    /// Reply tokens per second, all sequences together, of each repetition; the first token is not counted.
    pub decode_tok_s: Vec<f64>,
    /// Microseconds per step that are not the forward pass (schedule, sample, commit, emit), mean of each repetition's decode.
    pub engine_overhead_us: Vec<f64>,
    /// Stored weight bytes that one token of one sequence reads.
    pub active_bytes_per_token: u64,
    /// Read bandwidth of the host's memory in this run, GB/s; absent on a device, which does not read from it.
    pub read_bandwidth_gb_s: Option<f64>,
    /// Median decode speed of one sequence over what the bandwidth allows; absent without the bandwidth, and when several
    /// sequences share reads.
    pub decode_share_of_floor: Option<f64>,
}

/// Reasons why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine refused a request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A sequence ended before its planned length.
    #[error("a sequence ended with {reason:?} after {tokens} tokens")]
    Ended {
        /// Finish reason of the sequence.
        reason: FinishReason,
        /// Reply tokens of the sequence.
        tokens: usize,
    },
}

/// Runs the plan, then calls for the read bandwidth (GB/s) of the memory that the weights are in, if it is known, so that
/// both come from the same run.
pub async fn run(
    engine: &EngineHandle,
    metrics: &Metrics,
    active_bytes_per_token: u64,
    plan: &BenchPlan,
    bandwidth_gb_s: impl FnOnce() -> Option<f64>,
) -> Result<BenchReport, BenchError> {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut prefill, mut decode, mut overhead_us) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..=plan.repeat {
        let prefill_s = prefill_once(engine, plan, &mut rng).await?;
        let before = metrics.step_seconds();
        let decode_rate = decode_once(engine, plan, &mut rng).await?;
        let after = metrics.step_seconds();
        // The first repetition is the warm-up.
        if repetition > 0 {
            prefill.push(plan.prefill as f64 / prefill_s);
            decode.push(decode_rate);
            overhead_us.push(overhead(&before, &after));
        }
    }
    let bandwidth_gb_s = bandwidth_gb_s();
    let floor_tok_s = bandwidth_gb_s
        .filter(|_| plan.concurrency == 1)
        .map(|gb_s| gb_s * 1e9 / active_bytes_per_token as f64);
    Ok(BenchReport {
        backend: engine.facts().backend.into(),
        prefill_tokens: plan.prefill,
        decode_tokens: plan.decode,
        depth: plan.depth,
        concurrency: plan.concurrency,
        active_bytes_per_token,
        read_bandwidth_gb_s: bandwidth_gb_s,
        decode_share_of_floor: floor_tok_s.map(|floor| median(&decode) / floor),
        prefill_tok_s: prefill,
        decode_tok_s: decode,
        engine_overhead_us: overhead_us,
    })
}

/// Microseconds per step between two sums, without the forward pass.
pub(super) fn overhead(before: &StepSeconds, after: &StepSeconds) -> f64 {
    let spent = |sums: &StepSeconds| -> f64 {
        sums.parts.iter().filter(|(part, _)| *part != "forward").map(|(_, seconds)| seconds).sum()
    };
    (spent(after) - spent(before)) * 1e6 / after.steps.saturating_sub(before.steps).max(1) as f64
}

fn request(engine: &EngineHandle, rng: &mut fastrand::Rng, prompt: usize, reply: usize) -> EngineRequest {
    let vocab = engine.facts().vocab_size as u32;
    let prompt: Vec<u32> = (0..prompt).map(|_| rng.u32(0..vocab)).collect();
    let sampling = SamplingParams { temperature: 0.0, max_tokens: reply as u32, ..Default::default() };
    EngineRequest {
        prompt: prompt.into(),
        sampling,
        priority: 0,
        share: None,
        deadline: None,
        cache_salt: None,
        guard: None,
        constraint: None,
        // A token per step, whatever the network repeats.
        speculation: Speculation { wanted: false, prediction: None },
        media: Vec::new(),
    }
}

/// Seconds from submission to the first token of a prompt outside the prefix cache.
async fn prefill_once(
    engine: &EngineHandle,
    plan: &BenchPlan,
    rng: &mut fastrand::Rng,
) -> Result<f64, BenchError> {
    let request = request(engine, rng, plan.prefill, 1);
    let begun = Instant::now();
    let times = token_times(engine, request).await?;
    Ok((times[0] - begun).as_secs_f64())
}

/// Reply tokens per second while all sequences decode.
async fn decode_once(
    engine: &EngineHandle,
    plan: &BenchPlan,
    rng: &mut fastrand::Rng,
) -> Result<f64, BenchError> {
    let mut tasks = Vec::new();
    for _ in 0..plan.concurrency {
        let request = request(engine, rng, plan.depth.max(1), plan.decode + 1);
        let engine = engine.clone();
        tasks.push(tokio::spawn(async move { token_times(&engine, request).await }));
    }
    let mut runs = Vec::new();
    for task in tasks {
        runs.push(task.await.expect("the measuring task does not panic")?);
    }
    // The window in which all sequences decode: from the latest first token to the earliest last
    // token.
    let begun = runs.iter().map(|times| times[0]).max().expect("at least one sequence");
    let ended = runs.iter().map(|times| times[times.len() - 1]).min().expect("at least one sequence");
    let tokens: usize =
        runs.iter().map(|times| times.iter().filter(|t| **t > begun && **t <= ended).count()).sum();
    Ok(tokens as f64 / (ended - begun).as_secs_f64())
}

/// Arrival time of each token of a reply.
async fn token_times(engine: &EngineHandle, request: EngineRequest) -> Result<Vec<Instant>, BenchError> {
    let expected = request.sampling.max_tokens as usize;
    let mut stream = engine.submit(request)?;
    let mut times = Vec::with_capacity(expected);
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::Token { .. } => times.push(Instant::now()),
            EngineEvent::Finished(reason) if times.len() < expected => {
                return Err(BenchError::Ended { reason, tokens: times.len() });
            }
            _ => {}
        }
    }
    Ok(times)
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl BenchReport {
    /// The figures as a table for a terminal.
    pub fn table(&self) -> String {
        let range = |values: &[f64]| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(0.0, f64::max);
            format!("{:>9.1} tok/s  ({low:.1}-{high:.1})", median(values))
        };
        let decode =
            format!("decode {} at depth {}, {} sequences", self.decode_tokens, self.depth, self.concurrency);
        let mut lines = vec![
            match self.read_bandwidth_gb_s {
                Some(gb_s) => format!("backend {}, read bandwidth {gb_s:.1} GB/s", self.backend),
                None => format!("backend {}", self.backend),
            },
            format!("{:<44} {}", format!("prefill {}", self.prefill_tokens), range(&self.prefill_tok_s)),
            format!("{decode:<44} {}", range(&self.decode_tok_s)),
        ];
        let (least, most) = (
            self.engine_overhead_us.iter().copied().fold(f64::INFINITY, f64::min),
            self.engine_overhead_us.iter().copied().fold(0.0, f64::max),
        );
        lines.push(format!(
            "{:<44} {:>9.1} us     ({least:.1}-{most:.1})",
            format!("engine overhead per step, {} sequences", self.concurrency),
            median(&self.engine_overhead_us)
        ));
        if let (Some(share), Some(gb_s)) = (self.decode_share_of_floor, self.read_bandwidth_gb_s) {
            let floor = gb_s * 1e9 / self.active_bytes_per_token as f64;
            let mib = self.active_bytes_per_token >> 20;
            lines.push(format!(
                "{:<44} {:>9.1} %",
                format!("share of the floor ({mib} MiB per token, {floor:.1} tok/s)"),
                share * 100.0
            ));
        }
        lines.join("\n")
    }
}
