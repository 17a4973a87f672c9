//! Recorded replies as JSON lines: what the guard would have done about them.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Longest line, bytes.
const MAX_LINE: u64 = 64 << 20;
/// Most lines of a file.
const MAX_LINES: usize = 1_000_000;

/// Replies that were recorded.
#[derive(Debug, Clone)]
pub struct Transcripts {
    /// Where they were read.
    pub file: String,
    /// One per line that is not blank.
    pub(super) list: Vec<Transcript>,
}

/// A request and what was answered.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transcript {
    /// What it is called in tables; the line's number if absent.
    #[serde(default)]
    pub name: String,
    /// The user's message.
    pub request: String,
    /// The reply's text.
    pub reply: String,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// It cannot be read.
    #[error("{}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("{}:{line}: {reason}; a line is {{\"request\": text, \"reply\": text}}, and \"name\" if wanted", .file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

impl Transcripts {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Self, TranscriptError> {
        let unreadable = |source| TranscriptError::Read { file: file.into(), source };
        let mut reader = BufReader::new(std::fs::File::open(file).map_err(unreadable)?);
        let mut list = Vec::new();
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            if reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut text).map_err(unreadable)? == 0 {
                break;
            }
            let wrong = |reason| TranscriptError::Line { file: file.into(), line, reason };
            if text.len() as u64 > MAX_LINE {
                return Err(wrong(format!("the line is longer than {} MiB", MAX_LINE >> 20)));
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            if list.len() == MAX_LINES {
                return Err(wrong(format!("the file has more than {MAX_LINES} replies")));
            }
            let mut transcript: Transcript =
                serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
            if transcript.name.is_empty() {
                transcript.name = format!("line {line}");
            }
            list.push(transcript);
        }
        Ok(Self { file: file.display().to_string(), list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_errors_name_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("replies.jsonl");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Transcripts::read(&file)
        };
        let good = "{\"request\": \"a\", \"reply\": \"b\"}\n\n{\"name\": \"n\", \"request\": \"c\", \"reply\": \"d\"}";
        let list = read(good).unwrap().list;
        let seen: Vec<_> =
            list.iter().map(|t| (t.name.as_str(), t.request.as_str(), t.reply.as_str())).collect();
        assert_eq!(seen, [("line 1", "a", "b"), ("n", "c", "d")]);
        let error =
            read("{\"request\": \"a\", \"reply\": \"b\"}\n{\"request\": \"a\"}\n").unwrap_err().to_string();
        assert!(error.contains("replies.jsonl:2: missing field `reply`"), "{error}");
        let error = read("{\"request\": \"a\", \"reply\": \"b\", \"rely\": 1}").unwrap_err().to_string();
        assert!(error.contains(":1: unknown field `rely`"), "{error}");
        assert!(Transcripts::read(&folder.path().join("none")).is_err());
    }
}
