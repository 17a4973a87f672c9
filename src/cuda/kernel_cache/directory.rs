//! The cache directory: entries by architecture, each whole or absent.
//!
//! Invariants: an entry appears under its name with all its bytes on the disk; its bytes are read once and verified;
//! the directory's entries stay within their bound, of which the process's own used entries are never deleted. Other
//! processes may write, delete and damage entries at any time.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use rustix::process::{getegid, geteuid, getgroups};

use super::super::Arch;

/// Most bytes of an entry that are read.
const MAX_ENTRY_BYTES: u64 = 64 << 20;
/// Age after which an unfinished file was left by a process that ended.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);
/// Least age of an entry's time of use before a read renews it: eviction needs no finer order.
const RENEW_AGE: Duration = Duration::from_secs(3600);
const ENTRY_SUFFIX: &str = ".cubin";
const UNFINISHED_SUFFIX: &str = ".partial";

/// Writes all bytes to a file; tests replace it to simulate a full disk.
pub(super) type WriteAll = fn(&mut File, &[u8]) -> io::Result<()>;

/// A directory that this process trusts.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    max_bytes: u64,
    write_all: WriteAll,
    /// Entries that this process read or wrote.
    used: Mutex<HashSet<PathBuf>>,
}

/// Result of a read.
pub(super) enum Found {
    /// Bytes of the file.
    File(Vec<u8>),
    /// No such file.
    Absent,
    /// Something that is no readable file, and what is wrong with it.
    Unreadable(String),
}

impl Directory {
    /// Opens `root`, and makes it if `create` is set. Errors: the reason why it cannot be used, with the remedy.
    pub(super) fn open(root: &Path, max_bytes: u64, create: bool) -> Result<Self, String> {
        let shown = root.display();
        if create {
            fs::create_dir_all(root).map_err(|e| format!("{shown} cannot be made: {e}"))?;
        }
        let meta = match fs::metadata(root) {
            Ok(meta) if meta.is_dir() => meta,
            Ok(_) => return Err(format!("{shown} is not a folder")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(format!("{shown} does not exist; make it"));
            }
            Err(e) => return Err(format!("{shown}: {e}")),
        };
        trusted(&Owner::of(&meta), &Owner::of_process()).map_err(|reason| {
            format!("{shown} {reason}; kernels run on the device, so its files are not used")
        })?;
        let directory = Self {
            root: root.to_owned(),
            max_bytes,
            write_all: |file, bytes| file.write_all(bytes),
            used: Mutex::default(),
        };
        directory.sweep();
        Ok(directory)
    }

    /// Replaces the function that writes.
    #[cfg(test)]
    pub(super) fn with_writer(mut self, write_all: WriteAll) -> Self {
        self.write_all = write_all;
        self
    }

    /// Path of an entry.
    pub(super) fn path(&self, arch: Arch, name: &str) -> PathBuf {
        self.root.join(arch.name()).join(name)
    }

    /// Reads an entry whole and notes its use.
    pub(super) fn read(&self, path: &Path) -> Found {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Found::Absent,
            Err(e) => return Found::Unreadable(e.to_string()),
        };
        let mut bytes = Vec::new();
        let read = file.metadata().and_then(|meta| {
            if !meta.is_file() {
                return Err(io::Error::other("not a file"));
            }
            (&file).take(MAX_ENTRY_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(meta)
        });
        match read {
            Err(e) => Found::Unreadable(e.to_string()),
            Ok(_) if bytes.len() as u64 > MAX_ENTRY_BYTES => {
                Found::Unreadable("longer than any entry".into())
            }
            Ok(meta) => {
                let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
                if age.is_some_and(|age| age > RENEW_AGE) {
                    // Refused on a read-only volume, where nothing is evicted either.
                    let _ = file.set_modified(SystemTime::now());
                }
                self.used().insert(path.to_owned());
                Found::File(bytes)
            }
        }
    }

    /// Entries of `arch` whose names begin with `stem`, the last used first.
    pub(super) fn list(&self, arch: Arch, stem: &str) -> Vec<PathBuf> {
        let mut found: Vec<_> = entries_in(&self.root.join(arch.name()))
            .filter(|(path, _)| file_name(path).starts_with(stem))
            .map(|(path, meta)| (meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), path))
            .collect();
        found.sort();
        found.into_iter().rev().map(|(_, path)| path).collect()
    }

    /// Deletes a damaged entry. Errors are those of a read-only volume: the entry stays, and is refused again.
    pub(super) fn discard(&self, path: &Path) {
        self.used().remove(path);
        let _ = fs::remove_file(path);
    }

    /// Stores an entry; returns the number of entries evicted for it.
    pub(super) fn store(&self, path: &Path, bytes: &[u8]) -> io::Result<u64> {
        let evicted = self.make_room(bytes.len() as u64)?;
        let dir = path.parent().unwrap_or(&self.root);
        match DirBuilder::new().mode(0o775).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        // Not the process's number: in containers that share the directory it is 1.
        let unfinished =
            dir.join(format!(".{}.{:016x}{UNFINISHED_SUFFIX}", file_name(path), fastrand::u64(..)));
        let written = self.write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
        if let Err(e) = written {
            let _ = fs::remove_file(&unfinished);
            return Err(e);
        }
        self.used().insert(path.to_owned());
        // The rename is on the disk only with the folder. Without it a crash loses the entry, nothing more.
        let _ = File::open(dir).and_then(|dir| dir.sync_all());
        Ok(evicted)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o664).open(path)?;
        (self.write_all)(&mut file, bytes)?;
        file.sync_all()
    }

    /// Deletes the entries that were used longest ago until `bytes` more fit.
    fn make_room(&self, bytes: u64) -> io::Result<u64> {
        if bytes > self.max_bytes {
            return Err(io::Error::other(format!(
                "an entry of {bytes} bytes exceeds the bound of {} bytes",
                self.max_bytes
            )));
        }
        let mut entries: Vec<(SystemTime, PathBuf, u64)> = Arch::ALL
            .iter()
            .flat_map(|arch| entries_in(&self.root.join(arch.name())))
            .map(|(path, meta)| (meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), path, meta.len()))
            .collect();
        entries.sort();
        let mut total: u64 = entries.iter().map(|(_, _, bytes)| bytes).sum();
        let mut evicted = 0;
        for (_, path, entry_bytes) in entries {
            if total + bytes <= self.max_bytes {
                break;
            }
            if self.used().contains(&path) {
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => evicted += 1,
                // Evicted by another process.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
            total -= entry_bytes;
        }
        if total + bytes > self.max_bytes {
            return Err(io::Error::other(format!(
                "entries in use fill the bound of {} bytes",
                self.max_bytes
            )));
        }
        Ok(evicted)
    }

    /// Deletes unfinished files of processes that ended.
    fn sweep(&self) {
        for (path, meta) in Arch::ALL.iter().flat_map(|arch| files_in(&self.root.join(arch.name()))) {
            let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
            if file_name(&path).ends_with(UNFINISHED_SUFFIX) && age.is_some_and(|age| age > UNFINISHED_AGE) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn used(&self) -> std::sync::MutexGuard<'_, HashSet<PathBuf>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entries of a folder; none if it cannot be read.
fn entries_in(dir: &Path) -> impl Iterator<Item = (PathBuf, Metadata)> + use<> {
    files_in(dir).filter(|(path, _)| {
        let name = file_name(path);
        name.ends_with(ENTRY_SUFFIX) && !name.starts_with('.')
    })
}

/// Files of a folder; none if it cannot be read.
fn files_in(dir: &Path) -> impl Iterator<Item = (PathBuf, Metadata)> + use<> {
    let entries = fs::read_dir(dir).ok().into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let meta = entry.metadata().ok()?;
        meta.is_file().then(|| (entry.path(), meta))
    })
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Owner and mode of a folder, or ids of a process.
#[derive(Debug, Clone, PartialEq)]
struct Owner {
    user: u32,
    /// Of a folder one, of a process all it is a member of.
    groups: Vec<u32>,
    mode: u32,
}

impl Owner {
    fn of(meta: &Metadata) -> Self {
        Self { user: meta.uid(), groups: vec![meta.gid()], mode: meta.mode() }
    }

    fn of_process() -> Self {
        let mut groups: Vec<u32> =
            getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
        groups.push(getegid().as_raw());
        Self { user: geteuid().as_raw(), groups, mode: 0 }
    }
}

/// Whether files of a folder come from this process's user, from root, or from a group that the process belongs to.
/// A hash proves that a CUBIN is whole, not where it is from.
fn trusted(folder: &Owner, process: &Owner) -> Result<(), String> {
    let ours = folder.user == process.user || folder.user == 0;
    let of_our_group = folder.groups.iter().any(|group| process.groups.contains(group));
    if folder.mode & 0o002 != 0 {
        return Err("may be written by every user (chmod o-w)".into());
    }
    if !ours && !of_our_group {
        return Err(format!(
            "belongs to user {}, not to this process's user {} or one of its groups (chown it, or set kernels.cache_dir)",
            folder.user, process.user
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_strangers_is_not_trusted() {
        let process = Owner { user: 1000, groups: vec![0, 1000], mode: 0 };
        for (user, group, mode, expected) in [
            (1000, 1000, 0o755, true),
            (0, 5, 0o755, true),
            (10_001, 0, 0o2775, true),
            (1001, 1001, 0o755, false),
            (1001, 1001, 0o775, false),
            (1000, 1000, 0o777, false),
            (0, 0, 0o1777, false),
        ] {
            let folder = Owner { user, groups: vec![group], mode };
            assert_eq!(trusted(&folder, &process).is_ok(), expected, "{folder:?}");
        }
    }

    #[test]
    fn unfinished_files_are_swept_when_old() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("sm_90a");
        fs::create_dir(&dir).unwrap();
        let (old, new) = (dir.join(".k.cubin.1-0.partial"), dir.join(".k.cubin.2-0.partial"));
        fs::write(&old, "x").unwrap();
        fs::write(&new, "x").unwrap();
        let file = File::options().write(true).open(&old).unwrap();
        file.set_modified(SystemTime::now() - 2 * UNFINISHED_AGE).unwrap();
        Directory::open(root.path(), 1000, false).unwrap();
        assert!(!old.exists() && new.exists());
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::open(root.path(), 1000, false).unwrap();
        let (folder, link) = (root.path().join("folder"), root.path().join("link"));
        fs::create_dir(&folder).unwrap();
        fs::write(root.path().join("target"), "x").unwrap();
        std::os::unix::fs::symlink("target", &link).unwrap();
        let fifo = root.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        for path in [&folder, &link, &fifo] {
            assert!(matches!(directory.read(path), Found::Unreadable(_)), "{}", path.display());
        }
        assert!(matches!(directory.read(&root.path().join("none")), Found::Absent));
    }
}
