//! New shards, complete or absent.
//!
//! Invariant: a file appears under its own name only when all its bytes are on the disk: it is
//! written under a temporary name in the same folder, flushed, and renamed. A killed process leaves
//! a file whose name begins with a dot and ends in `.partial`; the next attempt overwrites it.
//! Memory use does not depend on the size of a shard.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::index::INDEX_FILE;
use super::reader::Checkpoint;
use super::write_behind::WriteBehind;
use perigee_numbers::tensor::Dtype;
use safetensors::tensor::TensorInfo;

/// Upper bound on the entries of a source folder that [`copy_side_files`] reads.
const MAX_SIDE_FILES: usize = 10_000;
/// Alignment of the data behind the header, bytes: the format's own writer pads to it.
const ALIGNMENT: usize = 8;

/// Header entry of a tensor to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the header.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A spec from its parts, unchecked.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Bytes of the data; `None` where the bits are not whole bytes or the size overflows `usize`.
    pub fn bytes(&self) -> Option<usize> {
        let bits = self.dtype.bitsize();
        let bits = self.shape.iter().try_fold(bits, |product, dim| product.checked_mul(*dim))?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

/// Reason of a failed write.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Error of the operating system.
    #[error("{path}: {error}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A spec that cannot be written: a repeated name, or a size that overflows.
    #[error("{shard}: tensor {tensor}: {reason}")]
    Spec {
        /// Shard file name.
        shard: String,
        /// Tensor name.
        tensor: String,
        /// Problem of the tensor.
        reason: &'static str,
    },
    /// The given bytes differ in size from the spec.
    #[error("{shard}: tensor {tensor} takes {expected} bytes, got {got}")]
    Bytes {
        /// Shard file name.
        shard: String,
        /// Tensor name.
        tensor: String,
        /// Bytes by dtype and shape.
        expected: usize,
        /// Bytes written.
        got: usize,
    },
    /// A name that leads out of the folder.
    #[error("{0:?} is not a plain file name")]
    Name(String),
    /// The target is the source folder, lies in it, or contains it.
    #[error("target {target} overlaps the source {origin}; name another folder")]
    Overlaps {
        /// Target folder.
        target: PathBuf,
        /// Source folder.
        origin: PathBuf,
    },
    /// The target holds a checkpoint that is not to be overwritten.
    #[error("{0} belongs to another checkpoint, which would be overwritten; name another folder")]
    Foreign(PathBuf),
    /// Another process holds the target's lock.
    #[error("target {0} is being written by another process; wait for it or stop it")]
    Busy(PathBuf),
    /// The source has too many files.
    #[error("the source folder has more than {MAX_SIDE_FILES} files beside its weights; clean it up")]
    TooManyFiles,
    /// A file of the source cannot be read.
    #[error(transparent)]
    Source(#[from] CheckpointError),
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    let path = path.to_owned();
    move |error| WriteError::Io { path, error }
}

/// A safetensors file being written. Dropped before [`ShardWriter::finish`] it leaves no file.
#[derive(Debug)]
pub struct ShardWriter {
    aside: Aside,
    behind: WriteBehind,
    name: String,
    slots: HashMap<String, Slot>,
    bytes: u64,
}

#[derive(Debug)]
struct Slot {
    start: u64,
    bytes: usize,
    written: usize,
}

impl ShardWriter {
    /// Begins `dir/name` with a header for these tensors. Their data are in the order of the format's
    /// own writer, by falling type, which is falling size, then by name, so that every tensor is
    /// aligned. Tensors may be written in any order.
    pub fn create(dir: &Path, name: &str, specs: &[TensorSpec]) -> Result<Self, WriteError> {
        let (header, slots, bytes) = layout(name, specs)?;
        let aside = Aside::create(dir, name)?;
        aside.file.write_all_at(&header, 0).map_err(io_error(&aside.partial))?;
        Ok(Self { aside, behind: WriteBehind::default(), name: name.into(), slots, bytes })
    }

    /// Writes the data of a tensor.
    pub fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let expected = self.slots.get(tensor).map_or(0, |slot| slot.bytes - slot.written);
        if expected != bytes.len() {
            return Err(self.wrong_size(tensor, expected, bytes.len()));
        }
        self.append(tensor, bytes)
    }

    /// Writes the next part of a tensor's data.
    pub fn append(&mut self, tensor: &str, part: &[u8]) -> Result<(), WriteError> {
        let Some(slot) = self.slots.get_mut(tensor) else {
            let (shard, tensor) = (self.name.clone(), tensor.into());
            return Err(WriteError::Spec { shard, tensor, reason: "it was not announced in the header" });
        };
        if part.len() > slot.bytes - slot.written {
            let (expected, got) = (slot.bytes, slot.written + part.len());
            return Err(self.wrong_size(tensor, expected, got));
        }
        let at = slot.start + slot.written as u64;
        self.aside.file.write_all_at(part, at).map_err(io_error(&self.aside.partial))?;
        slot.written += part.len();
        self.behind.wrote(&self.aside.file, part.len());
        Ok(())
    }

    fn wrong_size(&self, tensor: &str, expected: usize, got: usize) -> WriteError {
        WriteError::Bytes { shard: self.name.clone(), tensor: tensor.into(), expected, got }
    }

    /// Flushes the file to the disk and renames it to its own name. Returns its size, bytes.
    ///
    /// Errors: a tensor is not complete; the operating system.
    pub fn finish(mut self) -> Result<u64, WriteError> {
        let mut missing: Vec<_> = self.slots.iter().filter(|(_, slot)| slot.written < slot.bytes).collect();
        missing.sort_by_key(|(name, _)| *name);
        if let Some((tensor, slot)) = missing.first() {
            return Err(self.wrong_size(tensor, slot.bytes, slot.written));
        }
        self.behind.finish().map_err(io_error(&self.aside.partial))?;
        self.aside.finish()?;
        Ok(self.bytes)
    }
}

/// Whether `dir/name` is the finished shard of these tensors: their header, and the size that
/// follows from it. A file under its own name is complete, so the data are not read.
pub fn is_complete(dir: &Path, name: &str, specs: &[TensorSpec]) -> Result<bool, WriteError> {
    let (header, _, bytes) = layout(name, specs)?;
    check_name(name)?;
    let path = dir.join(name);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(WriteError::Io { path, error }),
    };
    if file.metadata().map_err(io_error(&path))?.len() != bytes {
        return Ok(false);
    }
    let mut begins = Vec::with_capacity(header.len());
    file.take(header.len() as u64).read_to_end(&mut begins).map_err(io_error(&path))?;
    Ok(begins == header)
}

/// Header bytes (with the length field), the range of each tensor, and the size of the file.
type Layout = (Vec<u8>, HashMap<String, Slot>, u64);

fn layout(shard: &str, specs: &[TensorSpec]) -> Result<Layout, WriteError> {
    let fault =
        |tensor: &str, reason| WriteError::Spec { shard: shard.into(), tensor: tensor.into(), reason };
    let mut order: Vec<&TensorSpec> = specs.iter().collect();
    order.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let mut header = serde_json::Map::new();
    // The model hub's readers require this key.
    header.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut slots = HashMap::with_capacity(specs.len());
    let mut end = 0usize;
    for spec in order {
        let bytes = spec.bytes().ok_or_else(|| fault(&spec.name, "its size is no whole number of bytes"))?;
        let start = end;
        end = start.checked_add(bytes).ok_or_else(|| fault(&spec.name, "the shard would be too large"))?;
        let info = TensorInfo { dtype: spec.dtype, shape: spec.shape.clone(), data_offsets: (start, end) };
        let entry = serde_json::json!(info);
        if header.insert(spec.name.clone(), entry).is_some() {
            return Err(fault(&spec.name, "it is announced twice, or reserved"));
        }
        slots.insert(spec.name.clone(), Slot { start: start as u64, bytes, written: 0 });
    }
    let mut json = serde_json::Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.append(&mut json);
    for slot in slots.values_mut() {
        slot.start += head.len() as u64;
    }
    let bytes = (head.len() + end) as u64;
    Ok((head, slots, bytes))
}

/// A file under its temporary name.
#[derive(Debug)]
struct Aside {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    renamed: bool,
}

impl Aside {
    fn create(dir: &Path, name: &str) -> Result<Self, WriteError> {
        check_name(name)?;
        let path = dir.join(name);
        let stem = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let partial = path.with_file_name(format!(".{stem}.partial"));
        let file = File::create(&partial).map_err(io_error(&partial))?;
        Ok(Self { file, partial, path, renamed: false })
    }

    fn finish(mut self) -> Result<(), WriteError> {
        self.file.sync_all().map_err(io_error(&self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(io_error(&self.path))?;
        self.renamed = true;
        // The rename is durable only after a flush of the folder.
        let folder = self.path.parent().unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error(folder))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Checks that a name is a relative path of plain components.
fn check_name(name: &str) -> Result<(), WriteError> {
    super::folder::check_name(name).map_err(|_| WriteError::Name(name.into()))
}

/// Writes `dir/name` whole: the file is complete or absent.
pub fn write_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
    let mut aside = Aside::create(dir, name)?;
    aside.file.write_all(bytes).map_err(io_error(&aside.partial))?;
    aside.finish()
}

/// Writes `model.safetensors.index.json`.
///
/// - `weight_map`: every tensor of every shard, to its shard's file name
/// - `total_size`: bytes of all tensors, headers not counted
pub fn write_index(
    dir: &Path,
    weight_map: &BTreeMap<String, String>,
    total_size: u64,
) -> Result<(), WriteError> {
    let index = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    write_file(dir, INDEX_FILE, format!("{index:#}\n").as_bytes())
}

/// Copies every file of a checkpoint byte for byte, sub-folders included, except weights
/// (`*.safetensors`), their index, the files in `except`, and hidden files (a name that begins with
/// a dot). Returns the names, sorted.
pub fn copy_side_files(source: &Checkpoint, dir: &Path, except: &[&str]) -> Result<Vec<String>, WriteError> {
    let mut names = source.file_names(MAX_SIDE_FILES + 1)?;
    if names.len() > MAX_SIDE_FILES {
        return Err(WriteError::TooManyFiles);
    }
    names.retain(|name| {
        !name.ends_with(".safetensors") && name != INDEX_FILE && !except.contains(&name.as_str())
    });
    for name in &names {
        if let Some(folder) = dir.join(name).parent() {
            fs::create_dir_all(folder).map_err(io_error(folder))?;
        }
        let mut from = source.open_file(name)?;
        let mut aside = Aside::create(dir, name)?;
        io::copy(&mut from, &mut aside.file).map_err(io_error(&aside.partial))?;
        aside.finish()?;
    }
    Ok(names)
}

/// Target folder of a new checkpoint: created if missing, disjoint from its source, and locked by
/// this process until dropped.
#[derive(Debug)]
pub struct Target {
    dir: PathBuf,
    /// Locked while open; the operating system unlocks it when the process ends.
    lock: File,
}

/// Name of the lock file of a target folder.
const LOCK_FILE: &str = ".perigee.lock";

impl Target {
    /// Opens or creates the folder.
    ///
    /// Errors: the folder is the source's, lies in it or contains it; another process holds its
    /// lock; the operating system.
    pub fn open(dir: &Path, source: &Checkpoint) -> Result<Self, WriteError> {
        // Checked on the nearest existing ancestor, so that a refused folder is not created inside
        // the source.
        let existing = dir.ancestors().find_map(|path| {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            path.canonicalize().ok()
        });
        let overlaps = |origin: &Path| WriteError::Overlaps { target: dir.into(), origin: origin.into() };
        if let (Some(existing), Some(origin)) = (existing, source.folder())
            && existing.starts_with(origin)
        {
            return Err(overlaps(origin));
        }
        fs::create_dir_all(dir).map_err(io_error(dir))?;
        let canonical = dir.canonicalize().map_err(io_error(dir))?;
        if let Some(origin) = source.folder()
            && (origin.starts_with(&canonical) || canonical.starts_with(origin))
        {
            return Err(overlaps(origin));
        }
        let dir = canonical;
        let path = dir.join(LOCK_FILE);
        let lock = File::create(&path).map_err(io_error(&path))?;
        match lock.try_lock() {
            // The former holder may have removed the file between opening and locking: the lock is
            // then on a file without a name.
            Ok(()) if same_file(&lock, &path) => Ok(Self { dir, lock }),
            Ok(()) | Err(fs::TryLockError::WouldBlock) => Err(WriteError::Busy(dir)),
            Err(fs::TryLockError::Error(error)) => Err(WriteError::Io { path, error }),
        }
    }

    /// Path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names of its entries, sorted, without the lock and without partial files of a killed
    /// process.
    pub fn entries(&self) -> Result<Vec<String>, WriteError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io_error(&self.dir))? {
            let name = entry.map_err(io_error(&self.dir))?.file_name().to_string_lossy().into_owned();
            if name != LOCK_FILE && !(name.starts_with('.') && name.ends_with(".partial")) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Content of a small file; `None` for a missing file or one larger than `limit` bytes.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, WriteError> {
        check_name(name)?;
        let path = self.dir.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(WriteError::Io { path, error }),
        };
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(io_error(&path))?;
        Ok((bytes.len() as u64 <= limit).then_some(bytes))
    }

    /// Size of a file, bytes; `None` for a missing file.
    pub fn file_bytes(&self, name: &str) -> Option<u64> {
        fs::metadata(self.dir.join(name)).ok().filter(fs::Metadata::is_file).map(|m| m.len())
    }
}

impl Drop for Target {
    /// Removes the lock file; a killed process leaves it.
    fn drop(&mut self) {
        let _ = fs::remove_file(self.dir.join(LOCK_FILE));
        // Unlocked explicitly: a child process forked just now may still hold the file open.
        let _ = self.lock.unlock();
    }
}

/// Whether an open file is the file at `path`.
fn same_file(file: &File, path: &Path) -> bool {
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    matches!((file.metadata().map(id), fs::metadata(path).map(id)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
