//! What can be wrong with a checkpoint. One error carries every problem that was found.

use std::io;

/// Problems shown in the error's text; the rest are counted. The value itself always holds all of them.
const MAX_SHOWN: usize = 200;

/// A checkpoint that cannot be used, with everything that is wrong with it.
#[derive(Debug)]
pub struct CheckpointError {
    /// Folder or embedded model the problems are about.
    pub origin: String,
    /// At least one.
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

/// One thing that is wrong. `file` is the name inside the checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The folder itself is missing or no folder.
    #[error("it is not a folder; name a folder that holds config.json and model.safetensors")]
    NotAFolder,
    /// Neither an index nor a single file of weights.
    #[error("it holds neither model.safetensors.index.json nor model.safetensors")]
    NoWeights,
    /// Reading failed.
    #[error("{file}: {error}")]
    Io {
        /// File that could not be read.
        file: String,
        /// Why.
        error: io::Error,
    },
    /// A file is larger than what is read into memory.
    #[error("{file}: has {bytes} bytes, more than the {limit} that are read into memory")]
    TooLarge {
        /// File.
        file: String,
        /// Its size, bytes.
        bytes: u64,
        /// Limit, bytes.
        limit: u64,
    },
    /// A file name that leads out of the folder.
    #[error("{file:?} leads out of the checkpoint's folder ({how}); put the file into the folder itself")]
    Escapes {
        /// Name as written in the index, or asked for.
        file: String,
        /// Which rule it breaks.
        how: &'static str,
    },
    /// The index is not what it should be.
    #[error("{file}: {reason}")]
    Index {
        /// The index file.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The index names a shard that is not there.
    #[error(
        "shard {shard} is missing ({num_tensors} tensors, first {first_tensor}); copy it into the folder"
    )]
    MissingShard {
        /// Shard file name.
        shard: String,
        /// Tensors the index expects in it.
        num_tensors: usize,
        /// The first of them by name.
        first_tensor: String,
    },
    /// The index names a tensor that its shard does not have.
    #[error("{shard}: has no tensor {tensor}, which the index expects there")]
    MissingTensor {
        /// Shard file name.
        shard: String,
        /// Tensor name.
        tensor: String,
    },
    /// The same name in two shards.
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
        /// What is wrong.
        problem: HeaderProblem,
    },
}

/// One thing that is wrong with the header of a safetensors file. All figures are bytes unless they say otherwise.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// Fewer bytes than the length field has.
    #[error("has only {len} bytes, a safetensors file begins with 8 bytes of header length")]
    NoLength {
        /// File size.
        len: usize,
    },
    /// More header than is ever sensible.
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
    /// The header is not the JSON object it should be.
    #[error("its header is not valid: {0}")]
    Json(String),
    /// Element type nobody knows.
    #[error("tensor {tensor}: dtype {dtype:?} is unknown")]
    UnknownDtype {
        /// Tensor name.
        tensor: String,
        /// As written.
        dtype: String,
    },
    /// A name twice in one header.
    #[error("tensor {tensor} is listed twice")]
    Duplicate {
        /// Tensor name.
        tensor: String,
    },
    /// End before begin, or beyond the file.
    #[error("tensor {tensor}: data offsets {start}..{end} do not lie in the {data_len} bytes of data")]
    OutOfRange {
        /// Tensor name.
        tensor: String,
        /// First byte, from the end of the header.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes of data the file has.
        data_len: usize,
    },
    /// Shape times element size does not fit the machine.
    #[error("tensor {tensor}: shape {shape:?} of {dtype} overflows")]
    Overflow {
        /// Tensor name.
        tensor: String,
        /// Dimensions.
        shape: Vec<usize>,
        /// Element type.
        dtype: String,
    },
    /// Offsets and shape disagree.
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
        /// The other.
        second: String,
        /// Offset of the second.
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
