//! `perigee tune`: measures the variants of kernels for a model, and explains stored measurements.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::commands::print;
use crate::boot::engine::find_gpu;
use crate::boot::{BootError, chain, open_checkpoint, read_blueprint, tuned_ops};
use crate::config::Settings;
use crate::config::args::TuneArgs;
use perigee_cuda::tuner::{Candidate, MARGIN, Measurement, Table};
use perigee_model::Inventory;
use perigee_text::civil;

/// `perigee tune`.
pub(super) fn tune(args: &TuneArgs, settings: &Settings) -> ExitCode {
    let result = match &args.explain {
        Some(op) => explain_stored(op, settings),
        None => run(settings),
    };
    result.unwrap_or_else(|error| {
        eprintln!("perigee: {}", chain(&*error));
        ExitCode::FAILURE
    })
}

fn run(settings: &Settings) -> Result<ExitCode, BootError> {
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    let gpu = find_gpu(settings, &blueprint)?;
    if !gpu.has_variants() {
        eprintln!(
            "perigee: nothing to tune: with f32 activations (device.activations) kernels have no variants"
        );
        return Ok(ExitCode::SUCCESS);
    }
    let groups = settings.parallel.resolve(gpu.ranks(), true).expert_groups;
    let (inventory, activations) =
        (Inventory::take(&checkpoint, &blueprint), settings.device.fp4_activations());
    let ops = tuned_ops(&inventory, &blueprint, activations, gpu.ranks(), groups);
    let mut measurements = Vec::new();
    let (_, unstored) = gpu.tune(&ops, &mut |before, measurement| {
        eprintln!("[{}/{}] {}", before + 1, ops.len(), progress(measurement));
        measurements.push(measurement.clone());
    })?;
    let printed = print(&table(&measurements));
    let left = ops.len() - measurements.len();
    if left > 0 {
        eprintln!(
            "perigee: {left} ops were not tuned: their measurement does not fit in the device's memory, or each of their variants lost the device"
        );
    }
    if let Some(reason) = &unstored {
        eprintln!("perigee: the measurements are not stored: {reason}");
    }
    let wrong = measurements.iter().any(|measurement| measurement.choice().is_none());
    Ok(if wrong || unstored.is_some() { ExitCode::FAILURE } else { printed })
}

fn progress(measurement: &Measurement) -> String {
    let op = measurement.op;
    let mut text = match measurement.choice().and_then(|choice| Some((choice, measurement.micros(choice)?))) {
        Some((choice, micros)) => format!("{op}: {choice}, {micros:.1} us"),
        None => format!("{op}: no variant is right on this GPU"),
    };
    if let (true, Some(micros)) = (measurement.vendor_wins(), vendor_micros(measurement)) {
        let _ = write!(text, "; cuBLASLt {micros:.1} us");
    }
    for (variant, reason) in measurement.refusals() {
        let _ = write!(text, "; {variant} is refused: {reason}");
    }
    text
}

fn vendor_micros(measurement: &Measurement) -> Option<f64> {
    measurement.vendor.as_ref().and_then(|tried| tried.micros)
}

/// A line per op.
fn table(measurements: &[Measurement]) -> String {
    let width = measurements.iter().map(|m| m.op.to_string().len()).max().unwrap_or(0).max(2);
    let mut text = format!(
        "{:width$}  {:<12} {:>9}  {:<12} {:>9} {:>6} {:>6}  refused\n",
        "op", "choice", "us", "default", "us", "gain", "floor"
    );
    for measurement in measurements {
        let by_vendor = measurement.vendor_wins();
        let choice = if by_vendor { "cuBLASLt" } else { measurement.choice().unwrap_or("none") };
        let micros = if by_vendor { vendor_micros(measurement) } else { measurement.micros(choice) };
        let default = measurement.micros(&measurement.default);
        let gain = micros.zip(default).map(|(micros, default)| 1.0 - micros / default);
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
        let percent = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.0}%", 100.0 * share));
        let _ = writeln!(
            text,
            "{:width$}  {choice:<12} {:>9}  {:<12} {:>9} {:>6} {:>6}  {}",
            measurement.op.to_string(),
            number(micros),
            measurement.default,
            number(default),
            percent(gain),
            percent(micros.map(|micros| measurement.share_of_floor(micros))),
            measurement.refusals().count(),
        );
    }
    text
}

fn explain_stored(op: &str, settings: &Settings) -> Result<ExitCode, BootError> {
    let dir = &settings.kernels.cache_dir;
    let tables = Table::list(dir);
    let all = || tables.iter().flat_map(|table| table.measurements.iter().map(move |m| (table, m)));
    let text: Vec<String> = all()
        .filter(|(_, measurement)| measurement.op.to_string().contains(op))
        .map(|(table, measurement)| explain(table, measurement))
        .collect();
    if text.is_empty() {
        let mut names: Vec<String> = all().map(|(_, measurement)| measurement.op.to_string()).collect();
        names.sort();
        names.dedup();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        let shown = dir.display();
        return Err(
            format!("no op with {op:?} in its name is measured in {shown} (measured: {names})").into()
        );
    }
    Ok(print(&text.join("\n")))
}

/// Why an op has its variant.
fn explain(table: &Table, measurement: &Measurement) -> String {
    let identity = &table.identity;
    let Measurement { op, measured, num_slots, least_bytes, default, copy_bandwidth, .. } = measurement;
    let mut text =
        format!("{op}\n  on {} (driver {}), {}\n", identity.gpu, identity.driver, date(measurement.date));
    if measured != op {
        let _ = writeln!(
            text,
            "  measured in part: {} matrices of {} outputs",
            measured.count, measured.out_features
        );
    }
    let floor = *least_bytes as f64 / copy_bandwidth * 1e6;
    let _ = writeln!(
        text,
        "  {num_slots} rows move at least {:.2} MB; at the {:.0} GB/s of a copy in the same run that takes {floor:.1} us",
        *least_bytes as f64 / 1e6,
        copy_bandwidth / 1e9,
    );
    let choice = measurement.choice();
    for (variant, micros) in measurement.ranking() {
        let share = 100.0 * measurement.share_of_floor(micros);
        let mut notes = Vec::new();
        if choice == Some(variant) {
            notes.push("chosen");
        }
        if variant == default {
            notes.push("default");
        }
        let _ = writeln!(
            text,
            "  {variant:<12} {micros:>9.2} us  {share:>3.0} % of the floor  {}",
            notes.join(", ")
        );
    }
    for (variant, reason) in measurement.refusals() {
        let _ = writeln!(text, "  {variant:<12} refused: {reason}");
    }
    if let Some(vendor) = &measurement.vendor {
        let _ = match (vendor.micros, &vendor.refused) {
            (Some(micros), _) => writeln!(
                text,
                "  {:<12} {micros:>9.2} us with its weights unpacked; {} where kernels.cublaslt allows it",
                vendor.variant,
                if measurement.vendor_wins() { "used" } else { "too slow to be used" }
            ),
            (None, reason) => {
                writeln!(text, "  {:<12} refused: {}", vendor.variant, reason.as_deref().unwrap_or("-"))
            }
        };
    }
    for candidate in Candidate::shipped(op) {
        if let Some(lost) = table.lost.iter().find(|lost| lost.function == candidate.function) {
            let _ = writeln!(text, "  {:<12} left out: {}", candidate.name, lost.reason);
        }
    }
    let margin = 100.0 * MARGIN;
    let fastest = measurement.ranking().first().copied();
    let _ = match (fastest, measurement.micros(default)) {
        (Some((fastest, _)), Some(_)) if fastest == default => {
            writeln!(text, "  {default} is the default and the fastest")
        }
        (Some((fastest, micros)), Some(default_micros)) => {
            let gain = 100.0 * (1.0 - micros / default_micros);
            let verdict = if choice == Some(fastest) { "replaces" } else { "does not replace" };
            writeln!(
                text,
                "  {fastest} is faster than {default} by {gain:.1} % and {verdict} it: the margin is {margin:.0} %"
            )
        }
        (Some((fastest, _)), None) => {
            writeln!(text, "  {default} is refused; {fastest} is the fastest of the others")
        }
        (None, _) => writeln!(text, "  no variant is right on this GPU; {default} is launched all the same"),
    };
    if op.count > 1 {
        let _ = writeln!(
            text,
            "  both products of experts take blocks of the same rows, those with the least sum of times"
        );
    }
    let _ = match measurement.error {
        Some(error) => writeln!(
            text,
            "  all accepted variants have the same bits, {error:.1e} of the largest value from the f32 kernel"
        ),
        None => writeln!(text, "  the first variant does not give numbers"),
    };
    text
}

/// The day of a time in seconds since 1970, UTC.
fn date(seconds: u64) -> String {
    let (year, month, day) = civil((seconds / 86_400) as i64);
    format!("{year:04}-{month:02}-{day:02}")
}
