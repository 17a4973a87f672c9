//! `perigee bench`: measures an engine without HTTP.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use crate::boot::engine::{BackendChoice, EngineOptions, EngineProgress, StartedEngine, start_engine};
use crate::boot::{
    BootError, ModelDefaults, chain, load_text, open_checkpoint, read_blueprint, sampling_defaults,
};
use crate::config::Settings;
use crate::config::args::BenchArgs;
use crate::measure::{self, BenchPlan, BenchReport, SpeculationPlan, SpeculationReport};
use perigee_cuda::{LaunchTime, LaunchTimes};
use perigee_decoding::sampling::SamplingParams;
use perigee_http::api::render_request;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, active_bytes};
use perigee_telemetry::Metrics;
use perigee_text::Specials;

/// Prompts of `--speculation` without a file: passages to copy and to edit, and questions.
const PROMPTS: &str = include_str!("bench_prompts.jsonl");
/// Most bytes of a file of prompts.
const MAX_PROMPT_BYTES: u64 = 64 << 20;

/// Measures and prints.
pub(super) fn bench(args: &BenchArgs, settings: &Settings) -> ExitCode {
    let report = match &args.speculation {
        Some(file) => {
            compare(args, file.as_deref(), settings).map(|report| (report.table(), json(&report, args.json)))
        }
        None => measure(args, settings).map(|report| (report.table(), json(&report, args.json))),
    };
    match report {
        Ok((_, Some(Ok(json)))) => println!("{json}"),
        Ok((_, Some(Err(error)))) => eprintln!("perigee: {error}"),
        Ok((table, None)) => println!("{table}"),
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn json(report: &impl Serialize, wanted: bool) -> Option<serde_json::Result<String>> {
    wanted.then(|| serde_json::to_string_pretty(report))
}

/// Where the time went before the engine took requests.
#[derive(Debug, Clone, Serialize)]
struct BootTimes {
    /// Names and seconds of the stages, in order.
    stages: Vec<(&'static str, f64)>,
    /// Bytes of the checkpoint that were loaded.
    weights_bytes: u64,
    #[serde(skip)]
    since: Instant,
}

impl BootTimes {
    fn begin(stage: &'static str) -> Self {
        Self { stages: vec![(stage, 0.0)], weights_bytes: 0, since: Instant::now() }
    }

    /// Ends the current stage.
    fn end(&mut self) {
        let now = Instant::now();
        if let Some((_, seconds)) = self.stages.last_mut() {
            *seconds = (now - self.since).as_secs_f64();
        }
        self.since = now;
    }

    fn stage(&mut self, name: &'static str) {
        self.end();
        self.stages.push((name, 0.0));
    }

    fn line(&self) -> String {
        let total: f64 = self.stages.iter().map(|(_, seconds)| seconds).sum();
        let part = |(name, seconds): &(&str, f64)| match *name {
            "weights" => {
                let gb_s = self.weights_bytes as f64 / seconds.max(1e-9) / 1e9;
                format!("{name} {seconds:.2} s at {gb_s:.2} GB/s")
            }
            _ => format!("{name} {seconds:.2} s"),
        };
        let parts: Vec<String> = self.stages.iter().map(part).collect();
        format!("{:<44} {total:>9.2} s      ({})", "boot", parts.join(", "))
    }
}

/// Figures of a run and of the boot before it.
#[derive(Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    report: BenchReport,
    boot: BootTimes,
    /// Kernels by their share of the time, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<LaunchTime>,
}

impl Measured {
    fn table(&self) -> String {
        let mut text = format!("{}\n{}", self.report.table(), self.boot.line());
        for (title, recorded) in [("kernels of recorded steps", true), ("kernels of other steps", false)] {
            let kernels: Vec<&LaunchTime> =
                self.kernels.iter().filter(|time| time.recorded == recorded).collect();
            let all: f64 = kernels.iter().map(|time| time.seconds).sum();
            if !kernels.is_empty() {
                let _ = write!(text, "\n\n{title:<44} {:>9} {:>10} {:>7}", "launches", "us each", "share");
            }
            for time in kernels {
                let each = time.seconds / time.launches.max(1) as f64 * 1e6;
                let share = 100.0 * time.seconds / all.max(f64::MIN_POSITIVE);
                let _ = write!(text, "\n{:<44} {:>9} {each:>10.1} {share:>6.1}%", time.kernel, time.launches);
            }
        }
        text
    }
}

/// Starts the engine for a measurement.
fn start(
    checkpoint: &Checkpoint,
    blueprint: Blueprint,
    settings: &Settings,
    launch_times: Option<Arc<LaunchTimes>>,
    metrics: &Arc<Metrics>,
    boot: &mut BootTimes,
) -> Result<StartedEngine, BootError> {
    let mut options = EngineOptions::from_settings(settings, &blueprint)?;
    // Every prompt must be new: no token may come from the cache, and a prompt is one step where
    // the budget allows.
    options.prefix_caching = false;
    if launch_times.is_some() && !matches!(options.backend, BackendChoice::Cuda(_)) {
        return Err("--kernel-times measures the kernels of a GPU, and device.backend does not use one; set device.backend=cuda".into());
    }
    options.launch_times = launch_times;
    let engine = start_engine(checkpoint, blueprint, &options, metrics.clone(), &mut |at| match at {
        EngineProgress::Tuning { done: 0, .. } => boot.stage("tuning"),
        EngineProgress::Tuning { .. } => {}
        EngineProgress::Planned(plan) => {
            boot.stage("weights");
            eprintln!("memory plan\n{}", plan.table().trim_end());
        }
        EngineProgress::Weights { done, .. } => boot.weights_bytes = done,
        EngineProgress::WarmingUp => boot.stage("warm-up"),
    })?;
    boot.end();
    Ok(engine)
}

fn compare(
    args: &BenchArgs,
    file: Option<&Path>,
    settings: &Settings,
) -> Result<SpeculationReport, BootError> {
    if !settings.speculation.is_on() {
        return Err("speculation.method is \"off\": there is nothing to compare; set another method".into());
    }
    let sampling = SamplingParams {
        temperature: args.temperature,
        max_tokens: args.decode,
        ..SamplingParams::default()
    };
    sampling.validate()?;
    let (source, lines) = match file {
        Some(file) => (file.display().to_string(), read(file)?),
        None => ("built-in prompts".to_owned(), PROMPTS.to_owned()),
    };
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    let text = load_text(settings, &checkpoint, &blueprint)?;
    let model = ModelDefaults::of(&checkpoint, &blueprint, text.template.family())?;
    let defaults = sampling_defaults(settings, &model);
    let mut prompts = Vec::new();
    for (number, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refused = |why: &dyn std::fmt::Display| format!("{source}, line {}: {why}", number + 1);
        let value: Value = serde_json::from_str(line).map_err(|error| refused(&error))?;
        let tokens = match &value["prompt"] {
            Value::String(prompt) => text.tokenizer.encode(prompt, Specials::Recognised).map(Into::into)?,
            _ => {
                render_request(line.as_bytes(), &text, &defaults)
                    .map_err(|error| refused(&error.message))?
                    .tokens
            }
        };
        prompts.push(tokens);
    }
    if prompts.is_empty() {
        return Err(format!("{source}: no prompts").into());
    }
    let mut stop_token_ids = text.tokenizer.turn_ends();
    stop_token_ids.extend(&defaults.eos_token_ids);
    let metrics = Arc::new(Metrics::new("bench", false));
    let engine = start(&checkpoint, blueprint, settings, None, &metrics, &mut BootTimes::begin("opening"))?;
    let plan = SpeculationPlan {
        prompts,
        sampling: SamplingParams { stop_token_ids, ..sampling },
        concurrency: args.concurrency as usize,
        repeat: args.repeat as usize,
        replay: args.replay,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let report = runtime.block_on(measure::compare(&engine.handle, &metrics, &plan))?;
    engine.handle.shutdown();
    Ok(report)
}

fn read(file: &Path) -> Result<String, BootError> {
    let refused = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let bytes = std::fs::metadata(file).map_err(|error| refused(&error))?.len();
    if bytes > MAX_PROMPT_BYTES {
        return Err(refused(&format!("{bytes} bytes, limit {MAX_PROMPT_BYTES}: split it")).into());
    }
    Ok(std::fs::read_to_string(file).map_err(|error| refused(&error))?)
}

fn measure(args: &BenchArgs, settings: &Settings) -> Result<Measured, BootError> {
    let mut boot = BootTimes::begin("opening");
    let metrics = Arc::new(Metrics::new("bench", false));
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    let active = active_bytes(&checkpoint, &blueprint);
    let launch_times = args.kernel_times.then(Arc::<LaunchTimes>::default);
    let engine = start(&checkpoint, blueprint, settings, launch_times.clone(), &metrics, &mut boot)?;
    // Those of the warm-up.
    launch_times.iter().for_each(|times| drop(times.take()));
    // Bandwidth is measured before and after, and the larger value counts: on a shared machine the
    // bandwidth varies, and the floor is the memory's best.
    let threads = settings.device.threads;
    let on_host = engine.handle.facts().backend != "cuda";
    let before = on_host.then(|| perigee_cpu::read_bandwidth(threads)).transpose()?;
    let plan = BenchPlan {
        prefill: args.prefill as usize,
        decode: args.decode as usize,
        depth: args.depth as usize,
        concurrency: args.concurrency as usize,
        repeat: args.repeat as usize,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let bandwidth = || {
        let before = before?;
        Some(perigee_cpu::read_bandwidth(threads).map_or(before, |after| before.max(after)))
    };
    let report = runtime.block_on(measure::run(&engine.handle, &metrics, active, &plan, bandwidth))?;
    engine.handle.shutdown();
    let mut kernels = launch_times.map(|times| times.take()).unwrap_or_default();
    kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(Measured { report, boot, kernels })
}
