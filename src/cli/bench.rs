//! `perigee bench`: measures an engine without HTTP.

use std::process::ExitCode;
use std::sync::Arc;

use crate::boot::engine::{BackendChoice, EngineOptions, EngineProgress, start_engine};
use crate::boot::{BootError, chain, open_checkpoint, read_blueprint};
use crate::config::Settings;
use crate::config::args::BenchArgs;
use crate::cpu;
use crate::measure::{self, BenchPlan, BenchReport};
use crate::model::active_bytes;
use crate::telemetry::Metrics;

/// Measures and prints.
pub(super) fn bench(args: &BenchArgs, settings: &Settings) -> ExitCode {
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

fn measure(args: &BenchArgs, settings: &Settings) -> Result<BenchReport, BootError> {
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    let mut options = EngineOptions::from_settings(settings, &blueprint)?;
    // Every prompt must be new: no token may come from the cache, and a prompt is one step where
    // the budget allows.
    options.prefix_caching = false;
    let metrics = Arc::new(Metrics::new("bench", false));
    let active = active_bytes(&checkpoint, &blueprint);
    let engine = start_engine(&checkpoint, blueprint, &options, metrics.clone(), &mut |at| {
        if let EngineProgress::Planned(plan) = at {
            eprintln!("memory plan\n{}", plan.table().trim_end());
        }
    })?;
    // Bandwidth is measured before and after, and the larger value counts: on a shared machine the
    // bandwidth varies, and the floor is the memory's best.
    let threads = settings.device.threads;
    let on_host = !matches!(options.backend, BackendChoice::Cuda(_));
    let before = on_host.then(|| cpu::read_bandwidth(threads)).transpose()?;
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
        Some(cpu::read_bandwidth(threads).map_or(before, |after| before.max(after)))
    };
    let report = runtime.block_on(measure::run(&engine.handle, &metrics, active, &plan, bandwidth))?;
    engine.handle.shutdown();
    Ok(report)
}
