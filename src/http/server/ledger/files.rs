//! The files of the ledger: `usage-NUMBER.jsonl`, of which the last one grows.
//!
//! A line is one `write` at the end of the file, so that what is written survives the process. A file begins with its head,
//! which stands before the file has its name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::LedgerError;
use super::line::{FORMAT, Head, Line};

/// Longest line that is read; a head grows with the requests that were open.
const MAX_LINE_BYTES: u64 = 256 << 20;
/// Most bytes that wait for a disk that takes none.
const MAX_PENDING_BYTES: usize = 1 << 20;

/// The folder and its last file.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    number: u64,
    file: File,
    bytes: u64,
    /// Lines that the disk has not taken yet; begins in the middle of one where it took a part.
    pending: Vec<u8>,
    /// Held while the process writes the ledger.
    #[cfg_attr(not(test), expect(dead_code, reason = "held for its drop"))]
    lock: File,
}

/// What became of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    Whole,
    /// It waits with those before it, for a disk that has failed.
    Waits,
    /// There was no room to wait.
    Lost,
}

impl Files {
    /// Opens the folder, and gives the lines of its last file. `first` makes the head of the first file there is.
    pub(super) fn open(
        folder: &Path,
        first: impl FnOnce() -> Head,
    ) -> Result<(Self, Vec<Line>), LedgerError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LedgerError::Io { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let lock_path = folder.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LedgerError::Taken { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed(&lock_path)(source)),
        }
        let number = match numbers(folder).map_err(failed(folder))?.last() {
            Some(number) => *number,
            None => {
                begin(folder, 1, first()).map_err(failed(folder))?;
                1
            }
        };
        let path = file_path(folder, number);
        let (lines, torn) = read_all(&path).map_err(failed(&path))?;
        match lines.first() {
            Some(Line::Head(head)) if head.format == FORMAT => {}
            _ => return Err(LedgerError::NoHead { path }),
        }
        let file = OpenOptions::new().append(true).open(&path).map_err(failed(&path))?;
        let bytes = file.metadata().map_err(failed(&path))?.len();
        // The next line is none of a torn one.
        let pending = if torn { vec![b'\n'] } else { Vec::new() };
        Ok((Self { folder: folder.to_owned(), number, file, bytes, pending, lock }, lines))
    }

    /// Bytes of the last file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last file, to bring it to the disk.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Writes a line at the end.
    pub(super) fn append(&mut self, line: &Line) -> (Written, io::Result<()>) {
        let before = self.pending.len();
        if before > MAX_PENDING_BYTES {
            let result = self.flush();
            if result.is_err() {
                return (Written::Lost, result);
            }
        }
        put(&mut self.pending, line);
        match self.flush() {
            Ok(()) => (Written::Whole, Ok(())),
            Err(error) => (Written::Waits, Err(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            match self.file.write(&self.pending) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.bytes += written as u64;
                    self.pending.drain(..written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Begins the next file; on an error the last one goes on growing.
    pub(super) fn rotate(&mut self, head: Head) -> io::Result<()> {
        self.flush()?;
        self.file.sync_data()?;
        let path = begin(&self.folder, self.number + 1, head)?;
        let file = OpenOptions::new().append(true).open(path)?;
        self.bytes = file.metadata()?.len();
        self.file = file;
        self.number += 1;
        Ok(())
    }

    /// Removes the oldest files while all together have more than `max_bytes`, never the last one. Returns those removed.
    pub(super) fn trim(&self, max_bytes: u64) -> io::Result<Vec<PathBuf>> {
        let mut sizes = Vec::new();
        for number in numbers(&self.folder)? {
            let path = file_path(&self.folder, number);
            sizes.push((fs::metadata(&path)?.len(), path));
        }
        let mut all: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
        sizes.pop();
        let mut removed = Vec::new();
        for (bytes, path) in sizes {
            if all <= max_bytes {
                break;
            }
            fs::remove_file(&path)?;
            all -= bytes;
            removed.push(path);
        }
        Ok(removed)
    }
}

#[cfg(test)]
impl Files {
    /// Lets another process have the folder.
    pub(super) fn unlock(&self) {
        self.lock.unlock().unwrap();
    }

    pub(super) fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }
}

/// The files of a folder, the oldest first.
pub(super) fn paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(numbers(folder)?.into_iter().map(|number| file_path(folder, number)).collect())
}

/// The lines of a file one by one; `None` = one that is none of ours.
pub(super) fn lines(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Option<Line>>>> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut bytes = Vec::new();
    Ok(std::iter::from_fn(move || {
        bytes.clear();
        match reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes) {
            Ok(0) => None,
            Ok(_) if bytes.trim_ascii().is_empty() => Some(Ok(None)),
            Ok(_) => Some(Ok(serde_json::from_slice(&bytes).ok())),
            Err(error) => Some(Err(error)),
        }
    }))
}

/// All lines that can be read, and whether the last one does not end.
fn read_all(path: &Path) -> io::Result<(Vec<Line>, bool)> {
    let read = lines(path)?.filter_map(Result::transpose).collect::<io::Result<Vec<Line>>>()?;
    let mut file = File::open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    Ok((read, last != *b"\n"))
}

fn put(out: &mut Vec<u8>, line: &Line) {
    serde_json::to_writer(&mut *out, line).expect("a line serializes");
    out.push(b'\n');
}

/// Writes a file with its head, under its name only when it is whole.
fn begin(folder: &Path, number: u64, head: Head) -> io::Result<PathBuf> {
    let (path, draft) = (file_path(folder, number), folder.join("next"));
    let mut bytes = Vec::new();
    put(&mut bytes, &Line::Head(head));
    let mut file = File::create(&draft)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&draft, &path)?;
    File::open(folder)?.sync_all()?;
    Ok(path)
}

fn file_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("usage-{number:06}.jsonl"))
}

/// Numbers of the files, in order.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("usage-")?.strip_suffix(".jsonl"));
        numbers.extend(number.and_then(|digits| digits.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
