//! `perigee inspect`: a report on a checkpoint, as a table or as JSON.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::commands::{print, print_json};
use crate::boot::memory_plan::format_bytes;
use crate::boot::{BootError, chain, read_blueprint};
use crate::config::args::InspectArgs;
use crate::model::Inspection;
use crate::model::checkpoint::Checkpoint;

/// Names shown per kind of problem in the table.
const MAX_SHOWN: usize = 20;

/// Prints the report. Exit code 0 if the checkpoint can be served, 1 if not.
pub(super) fn inspect(args: &InspectArgs) -> ExitCode {
    let inspection = match look(args) {
        Ok(inspection) => inspection,
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            return ExitCode::FAILURE;
        }
    };
    let printed = match args.json {
        true => print_json(&serde_json::to_value(&inspection).unwrap_or_default()),
        false => print(&table(&inspection)),
    };
    if inspection.servable { printed } else { ExitCode::FAILURE }
}

fn look(args: &InspectArgs) -> Result<Inspection, BootError> {
    let checkpoint = Checkpoint::open(&args.folder)?;
    let blueprint = read_blueprint(&checkpoint)?;
    Ok(Inspection::new(&checkpoint, &blueprint, args.scales))
}

fn table(i: &Inspection) -> String {
    let mut text = String::new();
    let architecture = match &i.architecture {
        [wrapper, inner] if wrapper != inner => format!("{wrapper} ({inner})"),
        [wrapper, _] => wrapper.clone(),
    };
    let _ = writeln!(text, "{}", i.source);
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<14} {value}");
    };
    fact("architecture", architecture);
    fact("sizes", i.sizes.iter().map(|(name, size)| format!("{name} {size}")).collect::<Vec<_>>().join(", "));
    fact("files", format!("{} shards, {} tensors, {}", i.shards, i.tensors, format_bytes(i.bytes)));
    fact(
        "parameters",
        format!("{} total, {} active per token", short(i.parameters), short(i.active_parameters)),
    );
    let dialects: Vec<String> = i.dialects.iter().map(|(name, count)| format!("{name} ({count})")).collect();
    fact("packed", if dialects.is_empty() { "nothing".into() } else { dialects.join(", ") });
    fact("declared", i.declared.clone().unwrap_or_else(|| "nothing".into()));
    let kv = match (i.kv_scales, i.kv_cache_declared) {
        (0, false) => "none stored, none declared".into(),
        (0, true) => "FP8 declared, none stored (taken as 1)".into(),
        (n, declared) => format!("{n} stored{}", if declared { ", FP8 declared" } else { "" }),
    };
    fact("KV scales", kv);
    fact("input scales", i.input_scales.to_string());
    if let Some(pruned) = &i.pruned {
        fact("pruned", pruned.clone());
    }
    let _ = writeln!(
        text,
        "\n  {:<15} {:<10} {:>8} {:>10} {:>11} {:>6}  note",
        "class", "format", "modules", "weights", "bytes", "bits"
    );
    for line in &i.classes {
        let bits = line.bytes as f64 * 8.0 / line.parameters.max(1) as f64;
        let note = if line.loaded { "" } else { "not loaded" };
        let row = format!(
            "  {:<15} {:<10} {:>8} {:>10} {:>11} {bits:>6.2}  {note}",
            line.class,
            line.format,
            line.modules,
            short(line.parameters),
            format_bytes(line.bytes)
        );
        let _ = writeln!(text, "{}", row.trim_end());
    }
    for scales in i.scales.iter().flatten() {
        let _ = writeln!(
            text,
            "  scales of {} ({}): {} from {:e} to {:e}; {} zero, {} subnormal, {} at the maximum",
            scales.class,
            scales.format,
            scales.count,
            scales.smallest,
            scales.largest,
            scales.zero,
            scales.subnormal,
            scales.saturated
        );
    }
    for warning in &i.warnings {
        let _ = writeln!(text, "\n  warning: {warning}");
    }
    let p = &i.problems;
    if let Some(hopeless) = &p.hopeless {
        let _ = writeln!(text, "\n  {hopeless}");
    }
    for (kind, count, names) in [
        ("missing", p.num_missing, &p.missing),
        ("wrong", p.num_wrong, &p.wrong),
        ("unexpected", p.num_unexpected, &p.unexpected),
    ] {
        if count > 0 {
            let _ = writeln!(text, "\n  {count} {kind}:");
            for name in names.iter().take(MAX_SHOWN) {
                let _ = writeln!(text, "    {name}");
            }
            if count > MAX_SHOWN {
                let _ = writeln!(text, "    ... and {} more", count - MAX_SHOWN);
            }
        }
    }
    let _ = writeln!(text, "\n  servable: {}", if i.servable { "yes" } else { "no" });
    text
}

/// `1026.4 B` style counts.
fn short(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{:.1} K", count as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.1} B", count as f64 / 1e9),
    }
}
