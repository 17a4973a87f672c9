//! A checkpoint: names, shapes and mapped bytes.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use memmap2::{Advice, Mmap, UncheckedAdvice};

use super::error::{CheckpointError, HeaderProblem, Problem};
use super::folder::{Files, open_regular};
use super::foreign_names;
use super::header::{self, TensorEntry};
use super::index::{self, INDEX_FILE, Index, Name, SINGLE_FILE};
use super::loose_shards;
use perigee_numbers::tensor::{Dtype, TensorView};

/// A readable checkpoint: every tensor lies inside its shard and has the size of its shape and
/// dtype.
///
/// Shards are mapped read-only: opening costs the headers only, and weights are paged in at their
/// first use. Sizes are checked at opening. Access to the lost pages of a shard that is truncated
/// *afterwards* raises SIGBUS, which ends the process. Replace checkpoints by renaming new files
/// over old ones, never in place.
pub struct Checkpoint {
    files: Files,
    origin: String,
    shards: Vec<Shard>,
    /// Sorted by name.
    tensors: Vec<Tensor>,
}

struct Shard {
    name: String,
    bytes: ShardBytes,
}

enum ShardBytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) location: Location,
}

#[derive(Clone)]
pub(super) struct Location {
    pub(super) shard: usize,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A part of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of the shard.
    pub shard: usize,
    /// First byte in the shard's file.
    pub start: usize,
    /// Byte behind the last one.
    pub end: usize,
}

impl Span {
    /// Number of bytes.
    pub fn bytes(self) -> usize {
        self.end - self.start
    }
}

impl Location {
    fn span(&self) -> Span {
        Span { shard: self.shard, start: self.start, end: self.end }
    }
}

impl Checkpoint {
    /// Opens a Hugging Face folder: `model.safetensors.index.json` with its shards, a single
    /// `model.safetensors`, or the only weights of a folder without either. A folder of the download
    /// cache stands for its only snapshot.
    ///
    /// Tensors of other packages' forms have the names of the released ones, see
    /// `foreign_names.rs`.
    ///
    /// Errors: all problems of the folder's weights, in one error.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let origin = dir.display().to_string();
        match Files::folder(dir) {
            Ok(files) => Self::build(files, origin),
            Err(problem) => Err(CheckpointError::one(origin, problem)),
        }
    }

    /// Opens a model compiled into the binary: (file name, content), the same files as in a folder.
    pub fn from_embedded(files: &'static [(&'static str, &'static [u8])]) -> Result<Self, CheckpointError> {
        Self::build(Files::Embedded(files), "(embedded)".into())
    }

    fn build(files: Files, origin: String) -> Result<Self, CheckpointError> {
        let mut checkpoint = Self { files, origin, shards: Vec::new(), tensors: Vec::new() };
        let mut problems = Vec::new();
        match checkpoint.files.read(INDEX_FILE) {
            Err(problem) => problems.push(problem),
            Ok(Some(json)) => match index::parse(&json) {
                Ok(index) => checkpoint.add_indexed_shards(&index, &mut problems),
                Err(reason) => problems.push(Problem::Index { file: INDEX_FILE, reason }),
            },
            Ok(None) => match checkpoint.loose_shards() {
                Ok(index) => checkpoint.add_indexed_shards(&index, &mut problems),
                Err(problem) => problems.push(problem),
            },
        }
        foreign_names::settle(&mut checkpoint.tensors);
        if problems.is_empty() {
            Ok(checkpoint)
        } else {
            Err(CheckpointError { origin: checkpoint.origin, problems })
        }
    }

    /// The weight files of a folder without an index, none of whose tensors is known beforehand.
    fn loose_shards(&self) -> Result<Index<'static>, Problem> {
        let names =
            match self.files.embedded(SINGLE_FILE).is_some() || self.files.resolve(SINGLE_FILE)?.is_some() {
                true => vec![SINGLE_FILE.to_owned()],
                false => loose_shards::find(&self.files.top_names()?)?,
            };
        Ok(Index { shards: names.into_iter().map(|name| (Cow::Owned(name), Vec::new())).collect() })
    }

    /// Adds the shards of the index and checks that they hold the tensors of the index.
    fn add_indexed_shards(&mut self, index: &Index<'_>, problems: &mut Vec<Problem>) {
        let mapped: Vec<Result<Option<ShardBytes>, Problem>> =
            index.shards.keys().map(|name| self.map_shard(name)).collect();
        let promised = index.shards.values().zip(&mapped);
        let shards: Vec<(Option<&ShardBytes>, &[Name<'_>])> = promised
            .map(|(expected, bytes)| (bytes.as_ref().ok().and_then(Option::as_ref), &expected[..]))
            .collect();
        let headers = read_headers(&shards);
        let mut runs = Vec::with_capacity(mapped.len());
        for (((name, expected), bytes), header) in index.shards.iter().zip(mapped).zip(headers) {
            let bytes = match bytes {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    let (shard, num_tensors) = (name.to_string(), expected.len());
                    // None are known of a shard without an index.
                    let first_tensor = expected.iter().min().map(|t| t.to_string()).unwrap_or_default();
                    problems.push(Problem::MissingShard { shard, num_tensors, first_tensor });
                    continue;
                }
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            let Some(header) = header else { continue };
            if let Some(run) = self.add_shard(name, bytes, header, problems) {
                runs.push(run);
            }
        }
        self.tensors = self.merge(runs, problems);
    }

    /// Adds a shard and returns its tensors, sorted by name; `None` for a damaged header.
    fn add_shard(
        &mut self,
        name: &str,
        bytes: ShardBytes,
        header: Result<Header, Vec<HeaderProblem>>,
        problems: &mut Vec<Problem>,
    ) -> Option<Vec<Tensor>> {
        let shard = || name.to_owned();
        let Header { mut tensors, missing } = match header {
            Ok(header) => header,
            Err(found) => {
                // The tensors missing from a damaged header are not reported: they follow from the
                // damage.
                problems.extend(found.into_iter().map(|problem| Problem::Header { shard: shard(), problem }));
                return None;
            }
        };
        tensors.iter_mut().for_each(|tensor| tensor.location.shard = self.shards.len());
        self.shards.push(Shard { name: shard(), bytes });
        problems.extend(missing.into_iter().map(|tensor| Problem::MissingTensor { shard: shard(), tensor }));
        Some(tensors)
    }

    /// Merges sorted runs of tensors; reports names that occur in two shards.
    fn merge(&self, runs: Vec<Vec<Tensor>>, problems: &mut Vec<Problem>) -> Vec<Tensor> {
        let mut merged: Vec<Tensor> = Vec::with_capacity(runs.iter().map(Vec::len).sum());
        let mut runs: Vec<_> = runs.into_iter().map(|run| run.into_iter().peekable()).collect();
        // Most shards hold whole layers: long stretches come from one run, with one comparison per
        // tensor.
        let mut heads: BinaryHeap<Reverse<(String, usize)>> = BinaryHeap::new();
        let head = |run: &mut std::iter::Peekable<std::vec::IntoIter<Tensor>>, i: usize| {
            run.peek().map(|tensor| Reverse((tensor.name.clone(), i)))
        };
        for (i, run) in runs.iter_mut().enumerate() {
            heads.extend(head(run, i));
        }
        while let Some(Reverse((_, i))) = heads.pop() {
            let bound = heads.peek().map(|Reverse((name, _))| name.as_str());
            while let Some(tensor) =
                runs[i].next_if(|tensor| bound.is_none_or(|bound| tensor.name.as_str() <= bound))
            {
                match merged.last().filter(|last| last.name == tensor.name) {
                    Some(first) => problems.push(Problem::DuplicateTensor {
                        first: self.shards[first.location.shard].name.clone(),
                        second: self.shards[tensor.location.shard].name.clone(),
                        tensor: tensor.name,
                    }),
                    None => merged.push(tensor),
                }
            }
            heads.extend(head(&mut runs[i], i));
        }
        merged
    }

    /// Bytes of a shard; `None` for a missing file.
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
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, TensorView<'_>)> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), self.view(&tensor.location)))
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.find(name).map(|location| self.view(location))
    }

    fn find(&self, name: &str) -> Option<&Location> {
        let found = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name));
        found.ok().map(|at| &self.tensors[at].location)
    }

    /// Every tensor whose name begins with `prefix`, sorted by name, with the rest of its name.
    pub fn under<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a str, TensorView<'a>)> {
        let from = self.tensors.partition_point(|tensor| tensor.name.as_str() < prefix);
        self.tensors[from..].iter().map_while(move |tensor| {
            let rest = tensor.name.strip_prefix(prefix)?;
            Some((rest, self.view(&tensor.location)))
        })
    }

    fn view<'a>(&'a self, location: &'a Location) -> TensorView<'a> {
        let bytes = &self.shards[location.shard].bytes.as_slice()[location.start..location.end];
        TensorView { dtype: location.dtype, shape: &location.shape, bytes }
    }

    /// Shard file of a tensor, for messages.
    pub fn shard_of(&self, name: &str) -> Option<&str> {
        self.find(name).map(|location| self.shards[location.shard].name.as_str())
    }

    /// Content of another file of the checkpoint (config.json, tokenizer files, ...); `None` for a
    /// missing file.
    ///
    /// Errors: the file exists but cannot be read, is larger than 256 MiB, or its name leads out of
    /// the folder.
    pub fn read_file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>, CheckpointError> {
        self.files.read(name).map_err(|problem| CheckpointError::one(self.origin.clone(), problem))
    }

    /// [`Checkpoint::read_file`] with errors treated as a missing file.
    pub fn file(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.read_file(name).ok().flatten()
    }

    /// Folder of the checkpoint, symbolic links resolved; `None` for an embedded model.
    pub fn folder(&self) -> Option<&Path> {
        match &self.files {
            Files::Folder { dir, .. } => Some(dir),
            Files::Embedded(_) => None,
        }
    }

    /// Names of at most `limit` files of the folder, weights included, sorted; hidden files are
    /// left out.
    pub fn file_names(&self, limit: usize) -> Result<Vec<String>, CheckpointError> {
        self.files.names(limit).map_err(|problem| CheckpointError::one(self.origin.clone(), problem))
    }

    pub(super) fn open_file(&self, name: &str) -> Result<Box<dyn std::io::Read>, CheckpointError> {
        self.files.open(name).map_err(|problem| CheckpointError::one(self.origin.clone(), problem))
    }

    /// Names of the weight files, in the order of the index.
    pub fn shard_names(&self) -> impl Iterator<Item = &str> {
        self.shards.iter().map(|shard| shard.name.as_str())
    }

    /// A digest of the weights' identity: names, dtypes, shapes and offsets of all tensors, sizes
    /// and modification times of their files. Equal digests mean equal weights, unless a file was
    /// changed and its time was set back.
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
        for Tensor { name, location } in &self.tensors {
            field(name.as_bytes());
            field(location.dtype.to_string().as_bytes());
            for number in [location.shard, location.start, location.end] {
                field(&(number as u64).to_le_bytes());
            }
            for dim in &location.shape {
                field(&(*dim as u64).to_le_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Bytes of all tensors, without headers.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| (t.location.end - t.location.start) as u64).sum()
    }

    /// Number of tensors.
    pub fn num_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Number of weight files.
    pub fn num_shards(&self) -> usize {
        self.shards.len()
    }

    /// Source of the checkpoint, for messages: the folder as given, or `(embedded)`.
    pub fn source(&self) -> &str {
        &self.origin
    }

    /// Releases the memory of a part of a tensor that has been read: `bytes` of its data. A later
    /// access reads the part from the file again. For a single pass over a checkpoint larger than
    /// memory.
    pub fn release(&self, name: &str, bytes: std::ops::Range<usize>) {
        if let Some(location) = self.find(name) {
            let start = location.start + bytes.start.min(location.end - location.start);
            let end = location.start + bytes.end.min(location.end - location.start);
            release_bytes(&self.shards[location.shard], start..end);
        }
    }

    /// Place of a tensor's data in the shards.
    pub fn span(&self, name: &str) -> Option<Span> {
        self.find(name).map(Location::span)
    }

    /// Names and places of the tensors of a module and its sub-modules, sorted; names without the
    /// module's.
    pub fn spans_under<'a>(&'a self, module: &str) -> impl Iterator<Item = (&'a str, Span)> + use<'a> {
        let prefix = format!("{module}.");
        let from = self.tensors.partition_point(|tensor| tensor.name < prefix);
        self.tensors[from..]
            .iter()
            .map_while(move |tensor| Some((tensor.name.strip_prefix(&prefix)?, tensor.location.span())))
    }

    /// Brings a part of a shard into memory and into this process's page tables; returns when it is
    /// there. An error of the disk is left to the access that follows.
    pub fn read_ahead(&self, span: Span) {
        let ShardBytes::Mapped(map) = &self.shards[span.shard].bytes else { return };
        let (start, len) = (span.start, span.bytes());
        // The whole part is asked of the disk at once: a page fault alone reads some hundred kilobytes.
        let _ = map.advise_range(Advice::WillNeed, start, len);
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(Advice::PopulateRead, start, len);
    }

    /// [`Checkpoint::release`] of a part of a shard.
    pub fn release_span(&self, span: Span) {
        release_bytes(&self.shards[span.shard], span.start..span.end);
    }

    /// [`Checkpoint::release`] of all tensors of a module and its sub-modules; of all tensors if
    /// the name is empty.
    pub fn release_under(&self, module: &str) {
        if module.is_empty() {
            return self.shards.iter().for_each(|shard| release_bytes(shard, 0..usize::MAX));
        }
        let prefix = format!("{module}.");
        let from = self.tensors.partition_point(|tensor| tensor.name < prefix);
        let below = self.tensors[from..].iter().take_while(|tensor| tensor.name.starts_with(&prefix));
        for Tensor { location, .. } in below {
            release_bytes(&self.shards[location.shard], location.start..location.end);
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

/// Releases the memory of bytes of a shard, if it is mapped, within the length of the map.
fn release_bytes(shard: &Shard, bytes: std::ops::Range<usize>) {
    let ShardBytes::Mapped(map) = &shard.bytes else { return };
    let (start, end) = (bytes.start, bytes.end.min(map.len()));
    if start < end {
        // SAFETY: the map is shared, read-only and backed by a file, so dropping its pages loses nothing: the next
        // touch reads the same bytes from the file again. Borrowed slices stay valid.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
    }
}

/// Parsed header of one shard.
struct Header {
    /// Sorted by name; the shard number is not set yet.
    tensors: Vec<Tensor>,
    /// Tensors of the index that the shard lacks, sorted.
    missing: Vec<String>,
}

/// Upper bound on the number of threads that read headers.
const MAX_HEADER_THREADS: usize = 8;

/// Reads the headers of the existing shards in parallel and compares each with the index. The cost
/// of opening a checkpoint: a release has a quarter of a million tensors.
fn read_headers(
    shards: &[(Option<&ShardBytes>, &[Name<'_>])],
) -> Vec<Option<Result<Header, Vec<HeaderProblem>>>> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = threads.min(MAX_HEADER_THREADS).min(shards.len());
    let (next, headers) = (AtomicUsize::new(0), Mutex::new(Vec::from_iter(shards.iter().map(|_| None))));
    let work = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some((bytes, expected)) = shards.get(at) else { return };
        let header = bytes.map(|bytes| read_header(bytes, expected));
        headers.lock().unwrap_or_else(PoisonError::into_inner)[at] = header;
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    headers.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn read_header(bytes: &ShardBytes, expected: &[Name<'_>]) -> Result<Header, Vec<HeaderProblem>> {
    let entries = header::parse(bytes.as_slice())?;
    let located = |TensorEntry { name, dtype, shape, start, end }| Tensor {
        name,
        location: Location { shard: usize::MAX, dtype, shape, start, end },
    };
    let mut tensors: Vec<Tensor> = entries.into_iter().map(located).collect();
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let there: HashSet<&str, ahash::RandomState> =
        tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut missing: Vec<String> =
        expected.iter().filter(|name| !there.contains(&***name)).map(ToString::to_string).collect();
    missing.sort_unstable();
    Ok(Header { tensors, missing })
}

/// Maps a regular file for reading.
fn map_file(path: &Path) -> io::Result<Mmap> {
    let file = open_regular(path)?;
    // SAFETY: the map is read-only and private to this process; no code in this process writes to
    // the file. The length is taken from the open file and every slice is checked against it. A
    // file that another process changes under the map can change weights, and one that it truncates
    // ends this process with SIGBUS: the docs of `Checkpoint` state both.
    unsafe { Mmap::map(&file) }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
