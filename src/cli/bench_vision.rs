//! `perigee bench vision`: times of images on the processor.

use std::process::ExitCode;

use super::commands::print;
use crate::boot::chain;
use crate::config::Settings;
use crate::config::args::BenchVisionArgs;
use crate::measure::encode_times;
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_ops::Activations;

/// Measures and prints.
pub(super) fn bench_vision(args: &BenchVisionArgs, settings: &Settings) -> ExitCode {
    let activations = settings.device.activations.unless_auto(Activations::Bf16);
    let threads = settings.device.threads;
    let mut backend = CpuBackend::new(CpuOptions { threads, activations, ..Default::default() });
    let sides: Vec<usize> = args.sides.iter().map(|side| *side as usize).collect();
    let report = encode_times(&mut backend, &sides, args.repeat as usize, &mut |line| eprintln!("{line}"));
    let text = match report {
        Ok(report) if args.json => {
            serde_json::to_string_pretty(&report).map(|text| text + "\n").map_err(|e| e.to_string())
        }
        Ok(report) => Ok(report.table()),
        Err(error) => Err(chain(&error)),
    };
    match text {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("perigee: {error}");
            ExitCode::FAILURE
        }
    }
}
