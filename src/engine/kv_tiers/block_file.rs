//! A block in a file: what it is, its bytes, and their checksum.
//!
//! ```text
//! 0..8      "PERIGKV1"
//! 8..40     identity of the process that wrote it
//! 40..72    name of the block
//! 72..80    bytes of the content, little-endian
//! 80..112   blake3 of the content, keyed with blake3 of the bytes before
//! 112..     content
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::scheduler::Name;

const MAGIC: &[u8; 8] = b"PERIGKV1";
/// Bytes before the content.
pub(super) const HEADER_BYTES: usize = 112;

/// Everything besides its name that decides a block's content, hashed: weights, element types, block size, arithmetic, and the
/// form of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity([u8; 32]);

impl Identity {
    /// The identity that these parts make; their order counts.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Name of the folder of its files: a part of it suffices, the files have the whole.
    pub(super) fn folder(&self) -> String {
        hex(&self.0[..12])
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn header(identity: &Identity, name: &Name, content: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..40].copy_from_slice(&identity.0);
    header[40..72].copy_from_slice(name);
    header[72..80].copy_from_slice(&(content.len() as u64).to_le_bytes());
    let key = blake3::hash(&header[..80]);
    header[80..].copy_from_slice(blake3::keyed_hash(key.as_bytes(), content).as_bytes());
    header
}

/// Writes a file under a name of its own, and gives it `path` when it is whole. It is not synced: a file that a crash tears is
/// one that its checksum refuses.
pub(super) fn write(path: &Path, identity: &Identity, name: &Name, content: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("{:016x}{UNFINISHED}", fastrand::u64(..)));
    let written = create(&aside).and_then(|mut file| {
        file.write_all(&header(identity, name, content))?;
        file.write_all(content)?;
        drop(file);
        fs::rename(&aside, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// Makes a file that only this user may read, in whatever folder: what it holds tells of prompts.
pub(super) fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// End of the names of files that are being written.
pub(super) const UNFINISHED: &str = "-unfinished";

/// Reads a block of at most `max_bytes` bytes; `None` if there is no file. Errors: in words, what is wrong with it.
pub(super) fn read(
    path: &Path,
    identity: &Identity,
    name: &Name,
    max_bytes: usize,
) -> Result<Option<Vec<u8>>, String> {
    let broken = |error: io::Error| error.to_string();
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(broken)?,
    };
    let len = file.metadata().map_err(broken)?.len();
    if !(HEADER_BYTES as u64..=(HEADER_BYTES + max_bytes) as u64).contains(&len) {
        return Err(format!("it has {len} bytes"));
    }
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found).map_err(broken)?;
    let mut content = Vec::with_capacity(len as usize - HEADER_BYTES);
    file.take(max_bytes as u64).read_to_end(&mut content).map_err(broken)?;
    match found == header(identity, name, &content) {
        true => Ok(Some(content)),
        false => Err("its checksum is another".into()),
    }
}
