//! Who a plan or a statistic is about: identities that survive a move of the folder.

use serde::{Deserialize, Serialize};

use perigee_model::checkpoint::Checkpoint;

/// A checkpoint, by name and by content of its headers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceId {
    /// Folder name, for people.
    pub name: String,
    /// [`fingerprint`]; absent in files that were written by hand, which then fit any checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

impl SourceId {
    /// The identity of an open checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let source = checkpoint.source().trim_end_matches('/');
        let name = source.rsplit('/').next().unwrap_or(source);
        Self { name: name.to_owned(), fingerprint: Some(fingerprint(checkpoint)) }
    }
}

/// A text that statistics were collected on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextId {
    /// blake3 of the text file, hex.
    pub fingerprint: String,
    /// Documents that were run.
    pub documents: u64,
    /// Tokens that were run.
    pub tokens: u64,
}

/// blake3, hex, over `config.json` and over name, dtype and shape of every tensor: what can be known without reading weights. Two
/// trainings of one architecture under the same names have the same fingerprint if their `config.json` is the same.
pub fn fingerprint(checkpoint: &Checkpoint) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(checkpoint.file("config.json").as_deref().unwrap_or_default());
    for name in checkpoint.names() {
        let Some(view) = checkpoint.tensor(name) else { continue };
        part(name.as_bytes());
        part(view.dtype.to_string().as_bytes());
        view.shape.iter().for_each(|dim| part(&(*dim as u64).to_le_bytes()));
    }
    hasher.finalize().to_hex().to_string()
}
