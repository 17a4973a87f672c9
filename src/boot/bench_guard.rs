//! `perigee bench guard`: the guard on generated loops, real files and a model's replies.

use std::process::ExitCode;
use std::sync::Arc;

use super::engine::{EngineOptions, start_engine};
use super::offline_progress::{OfflineProgress, Unit};
use super::run::{BootError, chain, load_text, open_checkpoint, read_blueprint};
use crate::config::Settings;
use crate::config::args::BenchGuardArgs;
use crate::generate::{Generator, SamplingDefaults};
use crate::measure::guard::{EndToEnd, GuardEvaluation, GuardReport, Transcripts, end_to_end, evaluate};
use crate::telemetry::Metrics;
use crate::text::Tokenizer;

/// Measures and prints.
pub(super) fn bench(args: &BenchGuardArgs, settings: &Settings) -> ExitCode {
    match measure(args, settings) {
        Ok(report) if args.json => match serde_json::to_string_pretty(&report) {
            Ok(json) => println!("{json}"),
            Err(error) => eprintln!("perigee: {error}"),
        },
        Ok(report) => println!("{}", report.table()),
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(args: &BenchGuardArgs, settings: &Settings) -> Result<GuardReport, BootError> {
    for folder in &args.corpus {
        if !folder.is_dir() {
            return Err(format!("--corpus {}: this is no folder", folder.display()).into());
        }
    }
    let transcripts = args.replies.iter().map(|file| Transcripts::read(file)).collect::<Result<_, _>>()?;
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    let text = load_text(settings, &checkpoint, &blueprint)?;
    let tokenizer = match &args.tokenizer {
        Some(folder) => Arc::new(Tokenizer::load(&|name| std::fs::read(folder.join(name)).ok())?),
        None => text.tokenizer.clone(),
    };
    let plan = GuardEvaluation {
        corpus: args.corpus.clone(),
        files: args.files as usize,
        streams: args.streams as usize,
        seed: args.seed,
        transcripts,
        config: settings.guard.clone(),
    };
    let mut report = evaluate(&plan, &tokenizer);
    if args.end_to_end {
        let options = EngineOptions::from_settings(settings, &blueprint);
        let metrics = Arc::new(Metrics::new("bench", false));
        let engine = start_engine(&checkpoint, blueprint, &options, metrics.clone(), &mut |_| ())?;
        let door = Arc::new(engine.handle.clone());
        let reasoning = settings.reasoning.clone();
        let generator = Generator::new(door, text, SamplingDefaults::default(), reasoning, 0.0, metrics)
            .with_guard(settings.guard.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let mut progress = OfflineProgress::new("replies", Unit::Of("replies"));
        let mut at = |done, total| progress.at(done, total);
        let run = end_to_end(&generator, args.max_tokens, settings.guard.hold_tokens, &mut at);
        let figures: EndToEnd = runtime.block_on(run)?;
        report.end_to_end = Some(figures);
        engine.handle.shutdown();
    }
    Ok(report)
}
