//! What a run has finished, kept in the target folder so that the next run can take it up; afterwards it stays as the record of how the folder
//! was made.

use serde::{Deserialize, Serialize};

use super::report::ClassReport;
use perigee_model::checkpoint::{Target, WriteError, write_file};

/// The file.
pub(super) const JOURNAL_FILE: &str = "perigee-quantize.json";

/// Largest journal that is read, bytes; one of a thousand shards has less than one MB.
const MAX_JOURNAL_BYTES: u64 = 64 << 20;

/// Its content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Journal {
    /// Version of the program that began it.
    pub(super) perigee: String,
    /// The options, in words.
    pub(super) options: String,
    /// Of source, options and rules: shards made under another one are not those that this run would make.
    pub(super) fingerprint: String,
    /// Whether everything is there.
    pub(super) complete: bool,
    /// Finished shards, in the order of the source.
    pub(super) shards: Vec<ShardRecord>,
}

/// A finished shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ShardRecord {
    /// File name.
    pub(super) name: String,
    /// File size.
    pub(super) bytes: u64,
    /// What it cost.
    pub(super) classes: Vec<ClassReport>,
}

impl Journal {
    /// The journal of a folder; `None` where there is none, or none that can be read.
    pub(super) fn read(target: &Target) -> Result<Option<Self>, WriteError> {
        let bytes = target.read(JOURNAL_FILE, MAX_JOURNAL_BYTES)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Writes it, complete or as it was before.
    pub(super) fn write(&self, target: &Target) -> Result<(), WriteError> {
        let value = serde_json::json!(self);
        write_file(target.dir(), JOURNAL_FILE, format!("{value:#}\n").as_bytes())
    }

    /// The record of a shard whose file is there and has the recorded size.
    pub(super) fn finished(&self, target: &Target, name: &str) -> Option<&ShardRecord> {
        let record = self.shards.iter().find(|record| record.name == name)?;
        (target.file_bytes(name) == Some(record.bytes)).then_some(record)
    }
}
