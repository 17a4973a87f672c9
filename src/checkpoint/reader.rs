//! A checkpoint: names, shapes and mapped bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use memmap2::{Advice, Mmap, UncheckedAdvice};

use super::error::{CheckpointError, Problem};
use super::folder::{Files, open_regular};
use super::header::{self, TensorEntry};
use super::index::{self, INDEX_FILE, SINGLE_FILE};
use crate::tensor::{DType, TensorView};

/// A readable checkpoint: every tensor lies inside its shard and has the size its shape and dtype say.
///
/// Shards are mapped read-only, so opening costs the headers only and weights are paged in when they are touched.
/// Sizes are checked when the checkpoint is opened: a shard that is truncated *afterwards* makes the next touch of its
/// lost pages a SIGBUS, which ends the process. Replace checkpoints by renaming new files over old ones, never in place.
pub struct Checkpoint {
    files: Files,
    origin: String,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Location>,
}

struct Shard {
    name: String,
    bytes: ShardBytes,
}

enum ShardBytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

struct Location {
    shard: usize,
    dtype: DType,
    shape: Box<[usize]>,
    start: usize,
    end: usize,
}

impl Checkpoint {
    /// Opens a Hugging Face folder: `model.safetensors.index.json` with its shards, or a single `model.safetensors`.
    ///
    /// Errors: everything that is wrong with the folder's weights, in one error.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let origin = dir.display().to_string();
        match Files::folder(dir) {
            Ok(files) => Self::build(files, origin),
            Err(problem) => Err(CheckpointError::one(origin, problem)),
        }
    }

    /// Opens a model that is compiled into the binary: (file name, content), the same files as in a folder.
    pub fn from_embedded(files: &'static [(&'static str, &'static [u8])]) -> Result<Self, CheckpointError> {
        Self::build(Files::Embedded(files), "(embedded)".into())
    }

    fn build(files: Files, origin: String) -> Result<Self, CheckpointError> {
        let mut checkpoint = Self { files, origin, shards: Vec::new(), tensors: BTreeMap::new() };
        let mut problems = Vec::new();
        match checkpoint.files.read(INDEX_FILE) {
            Err(problem) => problems.push(problem),
            Ok(Some(json)) => match index::parse(&json) {
                Ok(index) => {
                    for (shard, tensors) in &index.shards {
                        checkpoint.add_indexed_shard(shard, tensors, &mut problems);
                    }
                }
                Err(reason) => problems.push(Problem::Index { file: INDEX_FILE, reason }),
            },
            Ok(None) => match checkpoint.map_shard(SINGLE_FILE) {
                Ok(Some(bytes)) => checkpoint.add_shard(SINGLE_FILE, bytes, &mut problems),
                Ok(None) => problems.push(Problem::NoWeights),
                Err(problem) => problems.push(problem),
            },
        }
        if problems.is_empty() {
            Ok(checkpoint)
        } else {
            Err(CheckpointError { origin: checkpoint.origin, problems })
        }
    }

    /// Adds a shard of the index and checks that it has what the index promises (`expected` is not empty).
    fn add_indexed_shard(&mut self, name: &str, expected: &[String], problems: &mut Vec<Problem>) {
        let bytes = match self.map_shard(name) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                problems.push(Problem::MissingShard {
                    shard: name.into(),
                    num_tensors: expected.len(),
                    first_tensor: expected[0].clone(),
                });
                return;
            }
            Err(problem) => {
                problems.push(problem);
                return;
            }
        };
        let before = problems.len();
        self.add_shard(name, bytes, problems);
        if problems.len() > before {
            return; // Its header is damaged: that it lacks tensors would say the same thing again.
        }
        let shard = self.shards.len() - 1;
        for tensor in expected {
            if self.tensors.get(tensor).is_none_or(|location| location.shard != shard) {
                problems.push(Problem::MissingTensor { shard: name.into(), tensor: tensor.clone() });
            }
        }
    }

    fn add_shard(&mut self, name: &str, bytes: ShardBytes, problems: &mut Vec<Problem>) {
        match header::parse(bytes.as_slice()) {
            Ok(entries) => {
                self.shards.push(Shard { name: name.into(), bytes });
                for entry in entries {
                    self.add_tensor(entry, problems);
                }
            }
            Err(found) => {
                problems
                    .extend(found.into_iter().map(|problem| Problem::Header { shard: name.into(), problem }));
            }
        }
    }

    fn add_tensor(&mut self, entry: TensorEntry, problems: &mut Vec<Problem>) {
        let shard = self.shards.len() - 1;
        if let Some(first) = self.tensors.get(&entry.name) {
            problems.push(Problem::DuplicateTensor {
                first: self.shards[first.shard].name.clone(),
                second: self.shards[shard].name.clone(),
                tensor: entry.name,
            });
            return;
        }
        let TensorEntry { name, dtype, shape, start, end } = entry;
        self.tensors.insert(name, Location { shard, dtype, shape, start, end });
    }

    /// The bytes of a shard, `None` where there is no such file.
    fn map_shard(&self, name: &str) -> Result<Option<ShardBytes>, Problem> {
        if let Some(bytes) = self.files.embedded(name) {
            return Ok(Some(ShardBytes::Embedded(bytes)));
        }
        let Some(path) = self.files.resolve(name)? else { return Ok(None) };
        map_file(&path)
            .map(|map| Some(ShardBytes::Mapped(map)))
            .map_err(|error| Problem::Io { file: name.into(), error })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor by its name. Dtypes that nothing here reads come as `DType::Other`.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let location = self.tensors.get(name)?;
        let bytes = &self.shards[location.shard].bytes.as_slice()[location.start..location.end];
        Some(TensorView { dtype: location.dtype, shape: &location.shape, bytes })
    }

    /// The shard file that holds a tensor, for messages.
    pub fn shard_of(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|location| self.shards[location.shard].name.as_str())
    }

    /// Another file of the checkpoint (config.json, tokenizer files, ...) as bytes, `None` where there is none.
    ///
    /// Errors: the file exists but cannot be read, is larger than 256 MiB, or its name leads out of the folder.
    pub fn read_file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>, CheckpointError> {
        self.files.read(name).map_err(|problem| CheckpointError::one(self.origin.clone(), problem))
    }

    /// [`Checkpoint::read_file`] where a file that cannot be read is as good as none.
    pub fn file(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.read_file(name).ok().flatten()
    }

    /// The folder it was opened from, symbolic links resolved; `None` for an embedded model.
    pub fn folder(&self) -> Option<&Path> {
        match &self.files {
            Files::Folder { dir, .. } => Some(dir),
            Files::Embedded(_) => None,
        }
    }

    /// Names of at most `limit` files of the folder, weights included, sorted; hidden ones left out.
    pub fn file_names(&self, limit: usize) -> Result<Vec<String>, CheckpointError> {
        self.files.names(limit).map_err(|problem| CheckpointError::one(self.origin.clone(), problem))
    }

    /// Content of a file as a stream.
    pub(super) fn open_file(&self, name: &str) -> Result<Box<dyn std::io::Read>, CheckpointError> {
        self.files.open(name).map_err(|problem| CheckpointError::one(self.origin.clone(), problem))
    }

    /// Names of the weight files, sorted as the index has them.
    pub fn shard_names(&self) -> impl Iterator<Item = &str> {
        self.shards.iter().map(|shard| shard.name.as_str())
    }

    /// A digest of what the weights are: names, dtypes, shapes and places of all tensors, sizes and times of change of their files. Two
    /// openings that agree in it read the same weights, unless somebody changed a file and set its time back.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for shard in &self.shards {
            field(shard.name.as_bytes());
            field(&(shard.bytes.as_slice().len() as u64).to_le_bytes());
            field(&self.files.modified(&shard.name).to_le_bytes());
        }
        for (name, location) in &self.tensors {
            field(name.as_bytes());
            field(location.dtype.name().as_bytes());
            for number in [location.shard, location.start, location.end] {
                field(&(number as u64).to_le_bytes());
            }
            for dim in &location.shape {
                field(&(*dim as u64).to_le_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Bytes of all tensors together, without headers.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|location| (location.end - location.start) as u64).sum()
    }

    /// Number of tensors.
    pub fn num_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Number of weight files.
    pub fn num_shards(&self) -> usize {
        self.shards.len()
    }

    /// Where the checkpoint comes from, for messages: its folder as given, or `(embedded)`.
    pub fn source(&self) -> &str {
        &self.origin
    }

    /// Asks the operating system to read every shard ahead. A hint: failures do not matter and are not reported.
    pub fn prefetch(&self) {
        for shard in &self.shards {
            if let ShardBytes::Mapped(map) = &shard.bytes {
                let _ = map.advise(Advice::WillNeed);
            }
        }
    }

    /// Lets the operating system take back the memory of a part of a tensor that has been read: `bytes` of its data. The part can be read
    /// again, from the file. A hint for who reads a checkpoint larger than memory once, from front to back.
    pub fn release(&self, name: &str, bytes: std::ops::Range<usize>) {
        if let Some(location) = self.tensors.get(name)
            && let ShardBytes::Mapped(map) = &self.shards[location.shard].bytes
        {
            let start = location.start + bytes.start.min(location.end - location.start);
            let end = location.start + bytes.end.min(location.end - location.start);
            if start < end {
                // SAFETY: the map is shared, read-only and backed by a file, so dropping its pages loses nothing: the next
                // touch reads the same bytes from the file again. Borrowed slices stay valid.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            }
        }
    }

    /// Asks the operating system to read one tensor ahead; a hint like [`Checkpoint::prefetch`].
    pub fn prefetch_tensor(&self, name: &str) {
        if let Some(location) = self.tensors.get(name)
            && let ShardBytes::Mapped(map) = &self.shards[location.shard].bytes
        {
            let _ = map.advise_range(Advice::WillNeed, location.start, location.end - location.start);
        }
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint")
            .field("source", &self.origin)
            .field("shards", &self.shards.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

impl ShardBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            ShardBytes::Mapped(map) => map,
            ShardBytes::Embedded(bytes) => bytes,
        }
    }
}

/// Maps a regular file for reading.
fn map_file(path: &Path) -> io::Result<Mmap> {
    let file = open_regular(path)?;
    // SAFETY: the map is read-only and private to this process; nobody in it writes to the file. The length is taken
    // from the open file and every slice is checked against it. A file that another process changes under the map can
    // change weights, and one that it truncates ends this process with SIGBUS: the type's docs say so.
    unsafe { Mmap::map(&file) }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
