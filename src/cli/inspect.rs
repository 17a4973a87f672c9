//! `perigee inspect`: a report on a checkpoint, as a table or as JSON.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::json;

use super::commands::{print, print_json};
use crate::boot::memory_plan::format_bytes;
use crate::boot::{BootError, chain, read_blueprint};
use crate::config::args::InspectArgs;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, DraftAttention, DraftBlueprint, DraftTensors, Inspection};

/// Names shown per kind of problem in the table.
const MAX_SHOWN: usize = 20;

/// Prints the report. Exit code 0 if the checkpoint can be served, 1 if not.
pub(super) fn inspect(args: &InspectArgs) -> ExitCode {
    match look(args) {
        Ok((printed, true)) => printed,
        Ok((_, false)) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Prints the report of a checkpoint or of a draft; returns whether it found nothing wrong.
fn look(args: &InspectArgs) -> Result<(ExitCode, bool), BootError> {
    let checkpoint = Checkpoint::open(&args.folder)?;
    if let Some(config) = checkpoint.file("config.json").filter(|config| DraftBlueprint::is_draft(config)) {
        return look_at_draft(args, &checkpoint, &DraftBlueprint::parse(&config)?);
    }
    if args.target.is_some() {
        return Err(format!("{} is no draft: --target goes with a draft", args.folder.display()).into());
    }
    let blueprint = read_blueprint(&checkpoint)?;
    let inspection = Inspection::new(&checkpoint, &blueprint, args.scales);
    let printed = match args.json {
        true => print_json(&serde_json::to_value(&inspection)?),
        false => print(&table(&inspection)),
    };
    Ok((printed, inspection.servable))
}

fn look_at_draft(
    args: &InspectArgs,
    checkpoint: &Checkpoint,
    draft: &DraftBlueprint,
) -> Result<(ExitCode, bool), BootError> {
    let tensors = DraftTensors::take(checkpoint, draft);
    let target: Option<Blueprint> = match &args.target {
        Some(folder) => Some(read_blueprint(&Checkpoint::open(folder)?)?),
        None => None,
    };
    let mismatch =
        target.as_ref().and_then(|target| draft.check(target).err()).map(|error| error.to_string());
    let reads = target.as_ref().map(|target| draft.reads(target.num_layers));
    let good = mismatch.is_none() && tensors.missing.is_empty() && tensors.wrong.is_empty();
    let printed = match args.json {
        true => print_json(&json!({
            "source": checkpoint.source().to_string(),
            "draft": "eagle3",
            "attention": draft.attention,
            "hidden_size": draft.hidden_size,
            "target_hidden_size": draft.target_hidden_size,
            "vocab_size": draft.vocab_size,
            "draft_vocab_size": draft.draft_vocab_size,
            "rope_theta": draft.rope_theta,
            "fc_norm": draft.fc_norm,
            "norm_before_fc": draft.norm_before_fc,
            "norm_before_residual": draft.norm_before_residual,
            "norm_output": draft.norm_output,
            "layer_ids": draft.layer_ids,
            "reads_inputs_of_layers": reads,
            "mismatch": mismatch,
            "tensors": tensors,
        })),
        false => print(&draft_table(checkpoint, draft, &tensors, reads, mismatch.as_deref())),
    };
    Ok((printed, good))
}

fn draft_table(
    checkpoint: &Checkpoint,
    draft: &DraftBlueprint,
    tensors: &DraftTensors,
    reads: Option<[usize; 3]>,
    mismatch: Option<&str>,
) -> String {
    let mut text = format!("{}\n", checkpoint.source());
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<14} {value}");
    };
    fact(
        "architecture",
        match draft.attention {
            DraftAttention::Mla { num_heads, kv_lora_rank, qk_rope_head_dim, .. } => {
                format!(
                    "Eagle3 draft, MLA: {num_heads} heads, {} values a token",
                    kv_lora_rank + qk_rope_head_dim
                )
            }
            DraftAttention::Gqa { num_heads, num_kv_heads, head_dim } => format!(
                "Eagle3 draft, GQA: {num_heads} heads, {num_kv_heads} of keys, {} values a token",
                2 * num_kv_heads * head_dim
            ),
        },
    );
    fact("fits", format!("hidden_size {}, vocab_size {}", draft.target_hidden_size, draft.vocab_size));
    fact(
        "reads",
        match (reads, draft.layer_ids) {
            (Some(ids), _) => format!("the inputs of the target's layers {ids:?}"),
            (None, Some(ids)) if ids[0] == 1 => format!("the outputs of the target's layers {ids:?}"),
            (None, Some(ids)) => format!("the inputs of the target's layers {ids:?}"),
            (None, None) => "the inputs of layers 2, n / 2 and n - 3 of a target of n layers".into(),
        },
    );
    let drafts = match draft.draft_vocab_size == draft.vocab_size {
        true => "every token".into(),
        false => format!("{} of {} tokens", draft.draft_vocab_size, draft.vocab_size),
    };
    fact("drafts", drafts);
    let flags = [
        (draft.fc_norm, "fc_norm"),
        (draft.norm_before_fc, "norm_before_fc"),
        (draft.norm_before_residual, "norm_before_residual"),
        (draft.norm_output, "norm_output"),
    ];
    let flags: Vec<&str> = flags.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
    fact("variant", if flags.is_empty() { "plain".into() } else { flags.join(", ") });
    let yarn = draft.yarn.map_or(String::new(), |yarn| format!(", YaRN factor {}", yarn.factor));
    fact("rope", format!("base {}{yarn}", draft.rope_theta));
    fact("embedding", if tensors.own_embedding { "its own".into() } else { "the target's".into() });
    let formats: Vec<String> =
        tensors.formats.iter().map(|(name, count)| format!("{name} ({count})")).collect();
    fact(
        "weights",
        format!("{} in {}: {}", short(tensors.parameters), format_bytes(tensors.bytes), formats.join(", ")),
    );
    for (kind, names) in [("missing", &tensors.missing), ("wrong", &tensors.wrong)] {
        if !names.is_empty() {
            let _ = writeln!(text, "\n  {} {kind}:", names.len());
            names.iter().take(MAX_SHOWN).for_each(|name| {
                let _ = writeln!(text, "    {name}");
            });
        }
    }
    if let Some(mismatch) = mismatch {
        let _ = writeln!(text, "\n  {mismatch}");
    }
    text
}

fn table(i: &Inspection) -> String {
    let mut text = String::new();
    write_facts(&mut text, i);
    write_classes(&mut text, i);
    for warning in &i.warnings {
        let _ = writeln!(text, "\n  warning: {warning}");
    }
    write_problems(&mut text, i);
    let _ = writeln!(text, "\n  servable: {}", if i.servable { "yes" } else { "no" });
    text
}

/// One line per fact.
fn write_facts(text: &mut String, i: &Inspection) {
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
    if !i.fp4_activations.is_empty() {
        fact("activations", format!("bf16, and in 4 bits {}", i.fp4_activations.join(", ")));
    }
    if let Some(tower) = &i.vision_tower {
        let state = match tower.is_whole {
            true => "images are served",
            false => &tower.problem,
        };
        fact(
            "vision",
            format!("{} blocks of {}, {} heads; {state}", tower.blocks, tower.hidden_size, tower.heads),
        );
    }
    if let Some(layer) = &i.prediction_layer {
        let state = match &layer.problem {
            None => format!("{}, can draft", format_bytes(layer.bytes)),
            Some(problem) => format!("cannot draft: {}", problem.replace('\n', "\n    ")),
        };
        fact("prediction", format!("layer {}, {state}", layer.layer));
    }
    if let Some(pruned) = &i.pruned {
        fact("pruned", pruned.clone());
    }
}

/// A table of the weights by class, and the scales in it.
fn write_classes(text: &mut String, i: &Inspection) {
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
}

/// Problems that prevent a load of the checkpoint.
fn write_problems(text: &mut String, i: &Inspection) {
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
