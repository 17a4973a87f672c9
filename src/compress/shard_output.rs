//! Safetensors shards and other files of a new folder, each complete or absent.
//!
//! A file is written beside its name, flushed to the disk, and renamed: whatever kills the process, a file that has its name is whole. What a
//! shard will be is known before its first byte is written, so a shard of an earlier, interrupted run is recognised by its header and size.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::tensor::DType;

/// Name, dtype and shape of a tensor of a shard, in the order of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorSpec {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Bytes of its data.
    pub(super) bytes: u64,
}

/// The whole beginning of a shard: length field and JSON, padded so that data begin at a multiple of eight.
pub(super) fn header(specs: &[TensorSpec]) -> Vec<u8> {
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut at = 0;
    for spec in specs {
        let end = at + spec.bytes;
        let entry =
            serde_json::json!({"dtype": spec.dtype.name(), "shape": spec.shape, "data_offsets": [at, end]});
        entries.insert(spec.name.clone(), entry);
        at = end;
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

/// Bytes of the finished shard.
pub(super) fn shard_bytes(header: &[u8], specs: &[TensorSpec]) -> u64 {
    header.len() as u64 + specs.iter().map(|spec| spec.bytes).sum::<u64>()
}

/// Whether `path` is the finished shard that begins with `header` and has `bytes` bytes.
pub(super) fn is_complete(path: &Path, header: &[u8], bytes: u64) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    if file.metadata()?.len() != bytes {
        return Ok(false);
    }
    let mut begins = Vec::with_capacity(header.len());
    file.take(header.len() as u64).read_to_end(&mut begins)?;
    Ok(begins == header)
}

/// A file that has its name only when it is finished.
pub(super) struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
}

impl NewFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.partial"));
        let file = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
        Ok(Self { path: path.to_owned(), partial, file })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Flushes to the disk and renames.
    pub(super) fn finish(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
        drop(file);
        fs::rename(&self.partial, &self.path)?;
        // The rename itself is on the disk once its directory is.
        match self.path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// Writes a small file whole.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write(bytes)?;
    file.finish()
}
