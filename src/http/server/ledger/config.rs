//! The settings of the ledger.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Least size of a file: smaller ones would be mostly heads.
const MIN_FILE_BYTES: u64 = 64 << 10;

/// The usage ledger: a line on disk for each request that the model has answered, for bills and budgets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerConfig {
    /// Folder of the ledger, which one server at a time writes; not set = no ledger. A request is written down before its client
    /// sees the end of the answer, so that what clients were told is there after a crash of the process; the disk has it a second
    /// later. It has names of clients and counts, and nothing of prompts and replies.
    pub directory: Option<PathBuf>,
    /// Size at which a new file is begun, bytes. A request has two lines, about 500 bytes. Larger: fewer files.
    pub file_bytes: u64,
    /// Size of all files together from which on the oldest one is removed, bytes; 0 = never. Larger: older bills can be checked.
    pub max_bytes: u64,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self { directory: None, file_bytes: 64 << 20, max_bytes: 4 << 30 }
    }
}

impl LedgerConfig {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.directory.as_ref().is_some_and(|folder| folder.as_os_str().is_empty()) {
            problems.push(("directory", "must name a folder; leave it out for no ledger".into()));
        }
        if !(MIN_FILE_BYTES..=1 << 40).contains(&self.file_bytes) {
            problems.push(("file_bytes", format!("must be from {MIN_FILE_BYTES} to {}", 1u64 << 40)));
        }
        let least = self.file_bytes.saturating_mul(2);
        if self.max_bytes != 0 && !(least..=1 << 50).contains(&self.max_bytes) {
            let limit = format!("must be 0, or from twice usage.file_bytes ({least}) to {}", 1u64 << 50);
            problems.push(("max_bytes", limit));
        }
        problems
    }
}
