//! The volume of the cache directory, for a report.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

/// State of the volume that has the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volume {
    /// Whether this process can write a file there.
    pub writable: bool,
    /// Bytes that this process may still write.
    pub free_bytes: u64,
}

impl Volume {
    /// Asks the file system, and writes an empty file, which is deleted. Errors: there is no such directory.
    pub fn examine(dir: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(dir)?;
        let probe = dir.join(format!(".probe-{}", fastrand::u64(..)));
        let writable = OpenOptions::new().write(true).create_new(true).open(&probe).is_ok();
        if writable {
            let _ = fs::remove_file(&probe);
        }
        Ok(Self { writable, free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize) })
    }
}
