//! Writes a checkpoint without the experts that a plan drops.
//!
//! One shard after the other, a few megabytes at a time: memory does not grow with the checkpoint. Weights are
//! copied byte for byte in whatever format they are; nothing is decoded. The order on the disk makes a broken
//! run visible: shards first, each complete or absent, then the other files, `config.json`, and the index
//! last. The same command continues an interrupted run.

pub(super) mod model_config;
pub mod plan_file;
pub(super) mod rewrite;
pub mod select;

use std::fs;
use std::io;
use std::path::Path;

use model_config::{ConfigError, repair_config, repair_quant_config};
use perigee_model::checkpoint::{
    Checkpoint, CheckpointError, ShardWriter, Target, TensorSpec, WriteError, copy_side_files, is_complete,
    write_file, write_index,
};
use plan_file::{ExpertPlan, PLAN_FILE};
use rewrite::{Content, RewriteError, TargetTensor, rewrite};

/// Bytes that are copied at a time.
pub(super) const COPY_BYTES: usize = 8 << 20;
/// Marks a folder that is being written, and by what job.
const JOB_FILE: &str = ".perigee-prune.json";
/// Index of the shards.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";
const CONFIG_FILE: &str = "config.json";
/// The other file that lists modules by name.
const QUANT_CONFIG: &str = "hf_quant_config.json";
/// Endings of weight files; those that are no shards of the checkpoint are not copied, because they would hold unpruned experts.
const WEIGHT_ENDINGS: [&str; 6] = ["safetensors", "bin", "pt", "pth", "gguf", "onnx"];
/// Most files of a folder that are looked at.
const MAX_FILES: usize = 20_000;
/// Longest job file that is read, bytes.
const MAX_JOB_BYTES: u64 = 1 << 16;

/// Why nothing, or not everything, was written.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The source, or a side file of it.
    #[error(transparent)]
    Source(#[from] CheckpointError),
    /// A tensor.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// `config.json` and its like.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The source has no configuration.
    #[error("{0} has no config.json")]
    NoConfig(String),
    /// The target is in use for something else.
    #[error("target {folder}: {problem}")]
    Target {
        /// Folder.
        folder: String,
        /// Why it cannot be used, and the remedy.
        problem: String,
    },
    /// Writing.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Folders.
    #[error("{file}: {error}")]
    Io {
        /// File or folder.
        file: String,
        /// Reason.
        error: io::Error,
    },
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneProgress {
    /// Bytes written or found written.
    pub done: u64,
    /// Bytes of all shards.
    pub total: u64,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PruneReport {
    /// Weight files of the target.
    pub shards: usize,
    /// Of these, found complete from an earlier run.
    pub shards_resumed: usize,
    /// Tensors of source and target.
    pub tensors: [usize; 2],
    /// Bytes of tensors of source and target.
    pub bytes: [u64; 2],
    /// Repairs of configuration files.
    pub config_changes: Vec<String>,
    /// Side files that were copied byte for byte.
    pub files_copied: usize,
    /// Files that were left out, with the reason.
    pub files_left_out: Vec<String>,
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> PruneError + '_ {
    move |error| PruneError::Io { file: path.display().to_string(), error }
}

/// Prunes `source` into the folder `dir`, which is new, empty, or left by a cut run of the same job.
///
/// The plan must have passed [`ExpertPlan::check_source`].
pub fn prune(
    source: &Checkpoint,
    plan: &ExpertPlan,
    dir: &Path,
    progress: &mut dyn FnMut(PruneProgress),
) -> Result<PruneReport, PruneError> {
    // Everything that can be refused is refused before the first byte.
    let shards = rewrite(source, plan)?;
    let config = source.read_file(CONFIG_FILE)?;
    let config = config.ok_or_else(|| PruneError::NoConfig(source.source().into()))?;
    let config = repair_config(&config, plan)?;
    let quant_config = match source.read_file(QUANT_CONFIG)? {
        Some(json) => Some(repair_quant_config(QUANT_CONFIG, &json, plan)?).filter(|r| !r.changes.is_empty()),
        None => None,
    };
    let (_, left_out) = side_files(source)?;
    let target = open_target(source, plan, dir)?;
    let dir = target.dir();

    let total = shards.values().flatten().map(|tensor| tensor.bytes).sum();
    let mut report = PruneReport {
        shards: shards.len(),
        shards_resumed: 0,
        tensors: [source.num_tensors(), shards.values().map(Vec::len).sum()],
        bytes: [source.bytes(), total],
        config_changes: config.changes.clone(),
        files_copied: 0,
        files_left_out: left_out,
    };
    let mut done = 0;
    for (name, tensors) in &shards {
        let mut advance = |bytes: u64| {
            done += bytes;
            progress(PruneProgress { done, total });
        };
        report.shards_resumed += usize::from(write_shard(source, dir, name, tensors, &mut advance)?);
    }
    let mut except = vec![CONFIG_FILE, PLAN_FILE];
    except.extend(report.files_left_out.iter().map(String::as_str));
    except.extend(quant_config.is_some().then_some(QUANT_CONFIG));
    report.files_copied = copy_side_files(source, dir, &except)?.len();
    if let Some(repaired) = &quant_config {
        report
            .config_changes
            .extend(repaired.changes.iter().map(|change| format!("{QUANT_CONFIG}: {change}")));
        write_file(dir, QUANT_CONFIG, repaired.to_json().as_bytes())?;
    }
    write_file(dir, PLAN_FILE, plan.to_json().as_bytes())?;
    write_file(dir, CONFIG_FILE, config.to_json().as_bytes())?;
    if source.read_file(INDEX_FILE)?.is_some() {
        let place = |shard: &str, tensor: &TargetTensor<'_>| (tensor.spec.name.clone(), shard.to_owned());
        let weight_map =
            shards.iter().flat_map(|(shard, list)| list.iter().map(|tensor| place(shard, tensor)));
        write_index(dir, &weight_map.collect(), total)?;
    }
    let job = dir.join(JOB_FILE);
    fs::remove_file(&job).map_err(io_error(&job))?;
    Ok(report)
}

/// Makes the folder, or recognises it as a cut run of this very job.
fn open_target(source: &Checkpoint, plan: &ExpertPlan, target: &Path) -> Result<Target, PruneError> {
    let job = format!(
        "{}\n",
        serde_json::json!({"source": source.fingerprint(), "plan": plan.fingerprint(), "written_by": env!("CARGO_PKG_VERSION")})
    );
    let problem = |problem: &str| PruneError::Target {
        folder: target.display().to_string(),
        problem: problem.to_owned(),
    };
    let target = Target::open(target, source)?;
    match target.read(JOB_FILE, MAX_JOB_BYTES)? {
        Some(found) if found == job.as_bytes() => Ok(target),
        Some(_) => Err(problem("another source, plan or version was being written there; remove the folder")),
        None if target.entries()?.is_empty() => {
            write_file(target.dir(), JOB_FILE, job.as_bytes())?;
            Ok(target)
        }
        // Somebody else's folder: nothing of ours stays in it, the lock is removed with `target`.
        None => Err(problem("it is not empty; name a new folder")),
    }
}

/// Writes one shard unless it is there; whether it was.
fn write_shard(
    source: &Checkpoint,
    dir: &Path,
    name: &str,
    tensors: &[TargetTensor<'_>],
    advance: &mut dyn FnMut(u64),
) -> Result<bool, PruneError> {
    let specs: Vec<TensorSpec> = tensors.iter().map(|tensor| tensor.spec.clone()).collect();
    if is_complete(dir, name, &specs)? {
        advance(tensors.iter().map(|tensor| tensor.bytes).sum());
        return Ok(true);
    }
    if let Some(folder) = dir.join(name).parent() {
        fs::create_dir_all(folder).map_err(io_error(folder))?;
    }
    let mut shard = ShardWriter::create(dir, name, &specs)?;
    for tensor in tensors {
        let Some(view) = source.tensor(tensor.source) else { continue };
        let mut done = 0;
        for chunk in tensor.bytes(&view).chunks(COPY_BYTES) {
            shard.append(&tensor.spec.name, chunk)?;
            if matches!(tensor.content, Content::Whole) {
                source.release(tensor.source, done..done + chunk.len());
            }
            done += chunk.len();
            advance(chunk.len() as u64);
        }
    }
    shard.finish()?;
    Ok(false)
}

/// What of a checkpoint's files is copied byte for byte, and what is left out because it is weights of another reading. Neither holds
/// `config.json`, the index, the plan.
pub(super) fn side_files(checkpoint: &Checkpoint) -> Result<(Vec<String>, Vec<String>), CheckpointError> {
    let shards: std::collections::BTreeSet<&str> = checkpoint.shard_names().collect();
    let is_weights = |name: &str| {
        let ending = Path::new(name).extension().map(|e| e.to_string_lossy().to_lowercase());
        ending.is_some_and(|e| WEIGHT_ENDINGS.contains(&e.as_str()))
    };
    let (mut copied, mut left_out) = (Vec::new(), Vec::new());
    for name in checkpoint.file_names(MAX_FILES)? {
        if shards.contains(name.as_str()) || [INDEX_FILE, CONFIG_FILE, PLAN_FILE].contains(&name.as_str()) {
            continue;
        }
        match is_weights(&name) {
            true => left_out.push(name),
            false => copied.push(name),
        }
    }
    Ok((copied, left_out))
}

#[cfg(test)]
mod tests;
