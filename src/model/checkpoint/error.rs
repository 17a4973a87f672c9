//! Errors of a checkpoint. One error carries all problems found.

use std::io;

/// Problems listed in the error's text; the rest are counted. The value holds all of them.
const MAX_SHOWN: usize = 200;

/// A checkpoint that cannot be used, with all its problems.
#[derive(Debug)]
pub struct CheckpointError {
    /// Folder or embedded model with the problems.
    pub origin: String,
    /// All problems, at least one.
    pub problems: Vec<Problem>,
}

impl CheckpointError {
    pub(super) fn one(origin: String, problem: Problem) -> Self {
        Self { origin, problems: vec![problem] }
    }
}

impl std::fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let [problem] = &self.problems[..] {
            return write!(f, "checkpoint {} cannot be used: {problem}", self.origin);
        }
        write!(f, "checkpoint {} cannot be used, {} problems:", self.origin, self.problems.len())?;
        for problem in self.problems.iter().take(MAX_SHOWN) {
            write!(f, "\n  {problem}")?;
        }
        match self.problems.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  ... and {more} more"),
        }
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problems[..] {
            [Problem::Io { error, .. }] => Some(error),
            _ => None,
        }
    }
}

/// One problem. `file` is the name inside the checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The folder is missing, or the path is not a folder.
    #[error("it is not a folder; name a folder that holds config.json and model.safetensors")]
    NotAFolder,
    /// The folder holds no weights that are read.
    #[error(
        "it holds neither model.safetensors.index.json nor model.safetensors nor another file of safetensors{}",
        if found.is_empty() { String::new() } else { format!("; it holds {found}") }
    )]
    NoWeights {
        /// Other weights that it holds, and what to do; empty without any.
        found: &'static str,
    },
    /// Numbered weight files of which one is missing or too many.
    #[error(
        "{}",
        if there < num_parts {
            format!("{there} of {num_parts} parts are there, part {missing} is missing ({example} is another); copy it into the folder")
        } else {
            format!("the numbers of its weight files contradict their total ({example}); copy model.safetensors.index.json into the folder")
        }
    )]
    MissingParts {
        /// A part that is there.
        example: String,
        /// Number of parts that are there.
        there: usize,
        /// Number of parts by the names of the files.
        num_parts: usize,
        /// First missing part.
        missing: usize,
    },
    /// Several weight files, and nothing says which belong together.
    #[error(
        "it holds {count} weight files and no model.safetensors.index.json, which says what belongs together ({}); copy the index into the folder, or keep one set of files",
        listed.join(", ")
    )]
    SeveralWeights {
        /// Number of weight files.
        count: usize,
        /// The first of them.
        listed: Vec<String>,
    },
    /// A folder of the Hugging Face cache with several snapshots.
    #[error("it is a folder of the Hugging Face cache with {count} snapshots; give one of them: {}", listed.join(", "))]
    HubCache {
        /// Number of snapshots.
        count: usize,
        /// Paths of the first ones, the current one first.
        listed: Vec<String>,
    },
    /// A folder of the Hugging Face cache without a snapshot.
    #[error("it is a folder of the Hugging Face cache with no snapshot; download the model first")]
    HubCacheEmpty,
    /// Reading failed.
    #[error("{file}: {error}")]
    Io {
        /// File that could not be read.
        file: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file is larger than the limit of files read into memory.
    #[error("{file}: has {bytes} bytes, more than the {limit} that are read into memory")]
    TooLarge {
        /// File name.
        file: String,
        /// Size of the file, bytes.
        bytes: u64,
        /// Limit, bytes.
        limit: u64,
    },
    /// A file name that leads out of the folder.
    #[error("{file:?} leads out of the checkpoint's folder ({how}); put the file into the folder itself")]
    Escapes {
        /// Name as written in the index, or as requested.
        file: String,
        /// The rule that the name breaks.
        how: &'static str,
    },
    /// The index cannot be parsed.
    #[error("{file}: {reason}")]
    Index {
        /// Name of the index file.
        file: &'static str,
        /// Reason.
        reason: String,
    },
    /// A shard of the index does not exist.
    #[error(
        "shard {shard} is missing ({}); copy it into the folder",
        match num_tensors {
            0 => "its link leads to no file".to_owned(),
            _ => format!("{num_tensors} tensors, first {first_tensor}"),
        }
    )]
    MissingShard {
        /// Shard file name.
        shard: String,
        /// Number of the shard's tensors in the index; 0 without an index.
        num_tensors: usize,
        /// First of these tensors by name.
        first_tensor: String,
    },
    /// A tensor of the index is missing from its shard.
    #[error("{shard}: has no tensor {tensor}, which the index expects there")]
    MissingTensor {
        /// Shard file name.
        shard: String,
        /// Tensor name.
        tensor: String,
    },
    /// Two shards have a tensor of the same name.
    #[error("tensor {tensor} is stored twice, in {first} and in {second}")]
    DuplicateTensor {
        /// Tensor name.
        tensor: String,
        /// Shard that is read first.
        first: String,
        /// The other shard.
        second: String,
    },
    /// A shard's header is damaged.
    #[error("{shard}: {problem}")]
    Header {
        /// Shard file name.
        shard: String,
        /// Problem of the header.
        problem: HeaderProblem,
    },
}

/// One problem of a safetensors header. All figures are bytes unless stated otherwise.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// The file is shorter than the length field.
    #[error("has only {len} bytes, a safetensors file begins with 8 bytes of header length")]
    NoLength {
        /// File size.
        len: usize,
    },
    /// The header exceeds the format's limit.
    #[error("its header claims {len} bytes, limit {limit}")]
    TooLong {
        /// Claimed length.
        len: u64,
        /// Limit.
        limit: u64,
    },
    /// The file ends inside the header.
    #[error(
        "its header claims {len} bytes but only {available} follow; the file is truncated or not safetensors"
    )]
    Truncated {
        /// Claimed length.
        len: u64,
        /// Bytes after the length field.
        available: usize,
    },
    /// The header is not a JSON object of tensors.
    #[error("its header is not valid: {0}")]
    Json(String),
    /// A shape has more dimensions than are read.
    #[error("tensor {tensor}: a shape of {rank} dimensions, limit {limit}")]
    Rank {
        /// Tensor name.
        tensor: String,
        /// Dimensions.
        rank: usize,
        /// Limit.
        limit: usize,
    },
    /// A name occurs twice in one header.
    #[error("tensor {tensor} is listed twice")]
    Duplicate {
        /// Tensor name.
        tensor: String,
    },
    /// Offsets end before they begin, or lie beyond the file.
    #[error("tensor {tensor}: data offsets {start}..{end} do not lie in the {data_len} bytes of data")]
    OutOfRange {
        /// Tensor name.
        tensor: String,
        /// First byte, counted from the end of the header.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes of data in the file.
        data_len: usize,
    },
    /// Shape times element size overflows `usize`.
    #[error("tensor {tensor}: shape {shape:?} of {dtype} overflows")]
    Overflow {
        /// Tensor name.
        tensor: String,
        /// Dimensions.
        shape: Vec<usize>,
        /// Element type.
        dtype: String,
    },
    /// Offsets and shape give different sizes.
    #[error("tensor {tensor}: shape {shape:?} of {dtype} takes {expected} bytes, its offsets span {got}")]
    WrongSize {
        /// Tensor name.
        tensor: String,
        /// Dimensions.
        shape: Vec<usize>,
        /// Element type.
        dtype: String,
        /// Bytes by shape and dtype.
        expected: usize,
        /// Bytes by offsets.
        got: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap at byte {at} of the data")]
    Overlap {
        /// Tensor that begins first.
        first: String,
        /// Tensor that begins later.
        second: String,
        /// Offset at which the second tensor begins.
        at: usize,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {start}..{end} of the data belong to no tensor; the file is truncated, padded or damaged")]
    Gap {
        /// First unused byte.
        start: usize,
        /// One past the last unused byte.
        end: usize,
    },
}
