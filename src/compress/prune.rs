//! Writes a checkpoint without the experts that a plan drops.
//!
//! One shard after the other, a few megabytes at a time: memory does not grow with the checkpoint. Weights are copied byte for byte in
//! whatever format they are; nothing is decoded. The order on the disk makes a broken run visible: shards first, each complete or absent, then the
//! other files, `config.json`, and the index last. The same command again continues where the last one was cut.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::fingerprint::fingerprint;
use super::plan_file::{ExpertPlan, PLAN_FILE};
use super::prune_config::{ConfigError, Repaired, repair_config, repair_quant_config};
use super::rewrite::{Content, RewriteError, TargetTensor, rewrite};
use super::shard_output::{NewFile, TensorSpec, header, is_complete, shard_bytes, write_file};
use crate::checkpoint::{Checkpoint, CheckpointError};

/// Bytes that are copied at a time.
pub(super) const COPY_BYTES: usize = 8 << 20;
/// Marks a folder that is being written, and by what job.
const JOB_FILE: &str = ".perigee-prune.json";
/// Index of the shards.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";
/// The only weight file of a checkpoint without an index.
const SINGLE_FILE: &str = "model.safetensors";
/// The other file that lists modules by name.
const QUANT_CONFIG: &str = "hf_quant_config.json";
/// Endings of weight files; those that are no shards of the checkpoint are not copied, because they would hold unpruned experts.
const WEIGHT_ENDINGS: [&str; 6] = ["safetensors", "bin", "pt", "pth", "gguf", "onnx"];
/// Most side files, and folders within folders.
const MAX_FILES: usize = 10_000;
const MAX_DEPTH: usize = 8;

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

/// Prunes `source` (in `source_dir`) into the folder `target`, which is new, empty, or left by a cut run of the same job.
///
/// The plan must have passed [`ExpertPlan::check_source`].
pub fn prune(
    source: &Checkpoint,
    source_dir: &Path,
    plan: &ExpertPlan,
    target: &Path,
    progress: &mut dyn FnMut(PruneProgress),
) -> Result<PruneReport, PruneError> {
    // Everything that can be refused is refused before the first byte.
    let shards = rewrite(source, plan)?;
    let config = source.read_file("config.json")?;
    let config = config.ok_or_else(|| PruneError::NoConfig(source.source().into()))?;
    let config = repair_config(&config, plan)?;
    let quant_config = match source.read_file(QUANT_CONFIG)? {
        Some(json) => Some(repair_quant_config(QUANT_CONFIG, &json, plan)?).filter(|r| !r.changes.is_empty()),
        None => None,
    };
    let side_files = side_files(source, source_dir)?;
    open_target(source, source_dir, plan, target)?;

    let total = shards.values().flatten().map(|tensor| tensor.spec.bytes).sum();
    let mut report = PruneReport {
        shards: shards.len(),
        shards_resumed: 0,
        tensors: [source.num_tensors(), shards.values().map(Vec::len).sum()],
        bytes: [source.bytes(), total],
        config_changes: config.changes.clone(),
        files_copied: 0,
        files_left_out: side_files.left_out,
    };
    let mut done = 0;
    for (name, tensors) in &shards {
        let mut advance = |bytes: u64| {
            done += bytes;
            progress(PruneProgress { done, total });
        };
        report.shards_resumed += usize::from(write_shard(source, &target.join(name), tensors, &mut advance)?);
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = target.join(name);
        write_file(&path, bytes).map_err(io_error(&path))
    };
    for name in &side_files.copied {
        if quant_config.is_some() && name == QUANT_CONFIG {
            continue;
        }
        let Some(bytes) = source.read_file(name)? else { continue };
        if let Some(folder) = target.join(name).parent() {
            fs::create_dir_all(folder).map_err(io_error(folder))?;
        }
        write(name, &bytes)?;
        report.files_copied += 1;
    }
    if let Some(Repaired { changes, .. }) = &quant_config {
        report.config_changes.extend(changes.iter().map(|change| format!("{QUANT_CONFIG}: {change}")));
    }
    if let Some(repaired) = &quant_config {
        write(QUANT_CONFIG, repaired.to_json().as_bytes())?;
    }
    write(PLAN_FILE, plan.to_json().as_bytes())?;
    write("config.json", config.to_json().as_bytes())?;
    if source.read_file(INDEX_FILE)?.is_some() {
        write(INDEX_FILE, index(&shards, total).as_bytes())?;
    }
    let job = target.join(JOB_FILE);
    fs::remove_file(&job).map_err(io_error(&job))?;
    Ok(report)
}

/// Makes the folder, or recognises it as a cut run of this very job.
fn open_target(
    source: &Checkpoint,
    source_dir: &Path,
    plan: &ExpertPlan,
    target: &Path,
) -> Result<(), PruneError> {
    let problem = |problem: &str| PruneError::Target {
        folder: target.display().to_string(),
        problem: problem.to_owned(),
    };
    fs::create_dir_all(target).map_err(io_error(target))?;
    let canonical = target.canonicalize().map_err(io_error(target))?;
    let source_canonical = source_dir.canonicalize().map_err(io_error(source_dir))?;
    if canonical.starts_with(&source_canonical) || source_canonical.starts_with(&canonical) {
        return Err(problem("it overlaps the source's folder; name another one"));
    }
    let job = format!(
        "{}\n",
        serde_json::json!({"source": fingerprint(source), "plan": plan.fingerprint(), "written_by": env!("CARGO_PKG_VERSION")})
    );
    let job_path = target.join(JOB_FILE);
    match fs::read(&job_path) {
        Ok(found) if found == job.as_bytes() => return Ok(()),
        Ok(_) => return Err(problem("another source, plan or version was being written there; remove the folder")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_error(&job_path)(e)),
    }
    // A first run may be cut before the job file has its name: then there is only its beginning.
    for entry in fs::read_dir(target).map_err(io_error(target))? {
        let name = entry.map_err(io_error(target))?.file_name();
        if name.to_string_lossy() != format!(".{JOB_FILE}.partial") {
            return Err(problem("it is not empty; name a new folder"));
        }
    }
    write_file(&job_path, job.as_bytes()).map_err(io_error(&job_path))
}

/// Writes one shard unless it is there; whether it was.
fn write_shard(
    source: &Checkpoint,
    path: &Path,
    tensors: &[TargetTensor<'_>],
    advance: &mut dyn FnMut(u64),
) -> Result<bool, PruneError> {
    let specs: Vec<TensorSpec> = tensors.iter().map(|tensor| tensor.spec.clone()).collect();
    let header = header(&specs);
    if is_complete(path, &header, shard_bytes(&header, &specs)).map_err(io_error(path))? {
        advance(specs.iter().map(|spec| spec.bytes).sum());
        return Ok(true);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io_error(folder))?;
    }
    let mut file = NewFile::create(path).map_err(io_error(path))?;
    file.write(&header).map_err(io_error(path))?;
    for tensor in tensors {
        let Some(view) = source.tensor(tensor.source) else { continue };
        let bytes = tensor.bytes(&view);
        for chunk in bytes.chunks(COPY_BYTES) {
            file.write(chunk).map_err(io_error(path))?;
            advance(chunk.len() as u64);
            if matches!(tensor.content, Content::Whole) {
                source.release(chunk);
            }
        }
    }
    file.finish().map_err(io_error(path))?;
    Ok(false)
}

/// The index: sizes of tensors only, as the format's own tools count.
fn index(shards: &BTreeMap<&str, Vec<TargetTensor<'_>>>, total: u64) -> String {
    let weight_map: BTreeMap<&str, &str> =
        shards.iter().flat_map(|(shard, tensors)| tensors.iter().map(|t| (t.spec.name.as_str(), *shard))).collect();
    format!("{:#}\n", serde_json::json!({"metadata": {"total_size": total}, "weight_map": weight_map}))
}

/// Files beside the shards.
pub(super) struct SideFiles {
    /// Relative names of what is copied, sorted; not `config.json`, the index and the plan.
    pub(super) copied: Vec<String>,
    /// What is not, with the reason.
    pub(super) left_out: Vec<String>,
}

/// Lists a checkpoint's folder.
pub(super) fn side_files(checkpoint: &Checkpoint, dir: &Path) -> Result<SideFiles, PruneError> {
    let shards: std::collections::BTreeSet<&str> =
        checkpoint.names().filter_map(|name| checkpoint.shard_of(name)).collect();
    let mut found = SideFiles { copied: Vec::new(), left_out: Vec::new() };
    let mut folders: Vec<(PathBuf, usize)> = vec![(PathBuf::new(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let at = dir.join(&folder);
        for entry in fs::read_dir(&at).map_err(io_error(&at))? {
            let entry = entry.map_err(io_error(&at))?;
            let relative = folder.join(entry.file_name());
            let Some(name) = relative.to_str() else {
                found.left_out.push(format!("{}: its name is not UTF-8", relative.display()));
                continue;
            };
            let is_dir = entry.file_type().map_err(io_error(&at))?.is_dir();
            let skipped = [INDEX_FILE, SINGLE_FILE, "config.json", PLAN_FILE, JOB_FILE].contains(&name);
            if shards.contains(name) || (!is_dir && skipped) {
                continue;
            }
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            let ending = relative.extension().map(|e| e.to_string_lossy().to_lowercase());
            if is_dir && hidden {
                found.left_out.push(format!("{name}/: a hidden folder"));
            } else if is_dir && depth == MAX_DEPTH {
                found.left_out.push(format!("{name}/: more than {MAX_DEPTH} folders deep"));
            } else if is_dir {
                folders.push((relative, depth + 1));
            } else if ending.is_some_and(|e| WEIGHT_ENDINGS.contains(&e.as_str())) {
                found.left_out.push(format!("{name}: weights that the checkpoint's index does not name"));
            } else if found.copied.len() == MAX_FILES {
                let problem = format!("holds more than {MAX_FILES} files beside its weights");
                return Err(PruneError::Target { folder: dir.display().to_string(), problem });
            } else {
                found.copied.push(name.to_owned());
            }
        }
    }
    found.copied.sort();
    found.left_out.sort();
    Ok(found)
}

#[cfg(test)]
#[path = "prune_tests.rs"]
mod tests;
