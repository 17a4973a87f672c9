//! The model folder: whether it is whole and readable, and whether it fits.

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::report::Report;
use crate::boot::engine::{BackendChoice, EngineOptions, no_room, plan_engine};
use crate::boot::memory_plan::format_bytes;
use crate::boot::{BootError, chain, load_sight, load_text, open_checkpoint, read_blueprint};
use crate::config::{Settings, device};
use perigee_cuda::Installation;
use perigee_http::generate::ModelText;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Blueprint, Inspection};

const COPY_AGAIN: &str = "copy the folder again, whole: config.json, tokenizer, every shard and their index";

/// `plans`: whether the settings are right, so that memory can be planned with them. A folder that is not there, or not named though it
/// must be, is a finding about the configuration.
pub(super) fn examine(
    report: &mut Report,
    settings: &Settings,
    plans: bool,
    installation: Option<&Installation>,
) {
    if settings.model.lacks_model().is_some() {
        return;
    }
    if let Some(folder) = &settings.model.path {
        if !folder.is_dir() {
            return;
        }
        if let Some(path) = unreadable(folder) {
            let text = format!("{} may not be read by the user of this process", path.display());
            return report.problem("model", text, &format!("chmod -R a+rX {}", folder.display()));
        }
    }
    let read = open_checkpoint(settings).and_then(|checkpoint| {
        let blueprint = read_blueprint(&checkpoint)?;
        Ok((checkpoint, blueprint))
    });
    let (checkpoint, blueprint) = match read {
        Ok(read) => read,
        Err(error) => return report.problem("model", chain(&*error), COPY_AGAIN),
    };
    let inspection = Inspection::new(&checkpoint, &blueprint, false);
    tensors(report, &inspection);
    let text = match load_text(settings, &checkpoint, &blueprint) {
        Ok(text) => text,
        Err(error) => return report.problem("text", chain(&*error), COPY_AGAIN),
    };
    report.ok("text", "tokenizer and chat template are read");
    if !inspection.servable {
        return;
    }
    if !plans {
        return report.warning("memory plan", "not made: the configuration has failures", "mend those first");
    }
    if settings.device.backend == device::BackendChoice::Cuda {
        return weights_on_gpu(report, inspection.bytes, installation);
    }
    match plan(settings, &checkpoint, blueprint, text) {
        Ok(text) => report.ok("memory plan", text),
        Err(error) => report.problem("memory plan", chain(&*error), ""),
    }
}

/// The folder, or the first of its files, that this process may not read.
fn unreadable(folder: &Path) -> Option<PathBuf> {
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return denied(error).then(|| folder.to_owned()),
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().find(|file| File::open(file).is_err_and(denied))
}

/// The tensors, as `perigee inspect` finds them.
fn tensors(report: &mut Report, found: &Inspection) {
    let shards = if found.shards == 1 { "shard" } else { "shards" };
    let size = format!("{} {shards}, {}", found.shards, format_bytes(found.bytes));
    let problems = &found.problems;
    if found.servable {
        report.ok("model", format!("{}: {size}, every tensor is there", found.source));
    } else {
        let mut faults: Vec<String> = problems.hopeless.iter().cloned().collect();
        for (count, names, what) in [
            (problems.num_missing, &problems.missing, "missing"),
            (problems.num_wrong, &problems.wrong, "wrong"),
            (problems.num_unexpected, &problems.unexpected, "unexpected"),
        ] {
            let first = names.first().map_or(String::new(), |name: &String| format!(" (first: {name})"));
            faults.extend((count > 0).then(|| format!("{count} {what}{first}")));
        }
        let text = format!("{}: {size}; tensors: {}", found.source, faults.join(", "));
        report.problem("model", text, &format!("{COPY_AGAIN}; perigee inspect lists them all"));
    }
    for warning in &found.warnings {
        report.warning("model", warning.as_str(), "");
    }
}

/// The memory plan of the boot, in one line.
fn plan(
    settings: &Settings,
    checkpoint: &Checkpoint,
    blueprint: Blueprint,
    mut text: ModelText,
) -> Result<String, BootError> {
    let tower = load_sight(settings, checkpoint, &blueprint, &mut text)?;
    let options = EngineOptions { tower, ..EngineOptions::from_settings(settings, &blueprint)? };
    let gpu = match &options.backend {
        BackendChoice::Auto { gpu, .. } => Some(gpu),
        _ => None,
    };
    let Some(plan) = plan_engine(checkpoint, &blueprint, &options)? else {
        let name = gpu.map_or("the GPU", |gpu| gpu.name());
        return Ok(format!(
            "the weights fit in the memory of {name}; workspace and KV cache are planned at boot"
        ));
    };
    let reason = gpu.and_then(|gpu| no_room(gpu, checkpoint, &blueprint));
    let place = reason.map_or(String::new(), |reason| format!("on the CPU, since {reason}: "));
    Ok(format!(
        "{place}weights {}, workspace {}, KV cache {} ({} tokens) of {} available",
        format_bytes(plan.weights_bytes),
        format_bytes(plan.workspace_bytes),
        format_bytes(plan.cache_bytes),
        plan.num_blocks * plan.block_size,
        format_bytes(plan.available_bytes)
    ))
}

/// The weights beside the memory of the GPU that would hold them. A GPU that is not there is a finding about the
/// configuration.
fn weights_on_gpu(report: &mut Report, weights_bytes: u64, installation: Option<&Installation>) {
    let devices = installation.map_or(&[][..], |installation| &installation.devices);
    let Some(device) = devices.iter().find(|device| device.arch().is_some()) else { return };
    let fits = weights_bytes < device.memory_bytes;
    weights_beside(report, fits, format_bytes(weights_bytes), format_bytes(device.memory_bytes));
}

fn weights_beside(report: &mut Report, fits: bool, weights: impl Display, memory: impl Display) {
    match fits {
        true => report.ok(
            "memory plan",
            format!("weights {weights} of the GPU's {memory}; workspace and KV cache are planned at boot"),
        ),
        false => report.problem(
            "memory plan",
            format!(
                "weights of {weights} do not fit in the GPU's {memory}, and this build computes on one GPU"
            ),
            "take a smaller checkpoint, or device.backend = cpu; perigee plan says which devices it needs",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(edit: impl Fn(&mut Settings)) -> String {
        let mut settings = Settings::default();
        edit(&mut settings);
        let mut report = Report::default();
        examine(&mut report, &settings, true, None);
        report.lines()
    }

    #[test]
    fn the_embedded_model_is_whole_and_fits() {
        let text = findings(|_| ());
        assert!(text.contains("ok    model") && text.contains("every tensor is there"), "{text}");
        assert!(text.contains("ok    memory plan") && text.contains("nothing is broken"), "{text}");
    }

    #[test]
    fn a_folder_without_a_model_fails() {
        let dir = tempfile::tempdir().unwrap();
        let text = findings(|s| s.model.path = Some(dir.path().into()));
        assert!(text.starts_with("FAIL  model") && text.contains("-> copy the folder again"), "{text}");
    }

    #[test]
    fn a_plan_that_does_not_fit_fails() {
        let text = findings(|s| s.kv_cache.memory_bytes = 1 << 50);
        assert!(text.contains("FAIL  memory plan") && text.contains("lower kv_cache.memory_bytes"), "{text}");
    }

    #[test]
    fn weights_larger_than_the_gpu_fail() {
        let mut report = Report::default();
        weights_beside(&mut report, false, "550.0 GiB", "141.0 GiB");
        assert!(report.lines().starts_with("FAIL  memory plan  weights of 550.0 GiB do not fit"));
    }
}
