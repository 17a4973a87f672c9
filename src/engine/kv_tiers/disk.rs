//! Blocks in a folder: one thread writes, one reads.
//!
//! `FOLDER/IDENTITY/XX/NAME.kv`: files of other identities, from before an update or of another model, are counted and dropped with
//! the rest, oldest first. Several processes may share a folder: files are whole and say what they are, and one that is gone is a
//! miss. Each process counts the files that it has seen.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::block_file::{self, HEADER_BYTES, Identity, UNFINISHED, hex};
use super::lru::{Entry, Lru};
use super::{Content, DiskOptions, FolderError, TierError};
use crate::scheduler::{Name, SeqId};
use perigee_telemetry::{KvLoss, KvTier, Metrics, Throttle};

/// Most bytes that wait to be written: a disk that is slower than evictions loses blocks, not memory.
const MAX_QUEUED_BYTES: u64 = 256 << 20;
/// Most blocks that wait to be written.
const MAX_QUEUED: usize = 1 << 14;
/// Most fetches that wait.
const MAX_FETCHES: usize = 1024;
/// Blocks that were read and not taken.
const MAX_FETCHED: usize = 64;
/// Age of an unfinished file whose process must be gone.
const STALE: Duration = Duration::from_secs(3600);

/// What the reading thread brings.
pub(super) enum Fetched {
    Block(Name, Vec<u8>),
    End(SeqId),
}

pub(super) struct Disk {
    shared: Arc<Shared>,
    writes: SyncSender<(Name, Content)>,
    fetches: SyncSender<(SeqId, Vec<Name>)>,
    fetched: Receiver<Fetched>,
    writer: JoinHandle<()>,
    /// Longest time that the end of the engine may take to write.
    pub(super) flush: Duration,
}

struct Shared {
    folder: PathBuf,
    identity: Identity,
    max_bytes: u64,
    block_bytes: usize,
    files: Mutex<Files>,
    queued_bytes: AtomicU64,
    /// Blocks that still wait are not written.
    ends: AtomicBool,
    metrics: Arc<Metrics>,
}

/// Paths of files; those of this identity have a name.
type Files = Lru<PathBuf>;

impl Disk {
    pub(super) fn open(
        options: &DiskOptions,
        identity: Identity,
        block_bytes: usize,
        metrics: Arc<Metrics>,
    ) -> Result<Self, TierError> {
        let root = &options.folder;
        let folder = root.join(identity.folder());
        make_folders(&folder)
            .and_then(|()| probe(&folder))
            .map_err(|source| TierError::Folder { path: root.clone(), source: FolderError(source) })?;
        let shared = Arc::new(Shared {
            folder,
            identity,
            max_bytes: options.max_bytes,
            block_bytes,
            files: Mutex::default(),
            queued_bytes: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            metrics,
        });
        let (writes, to_write) = mpsc::sync_channel(MAX_QUEUED);
        let (fetches, to_fetch) = mpsc::sync_channel(MAX_FETCHES);
        let (send, fetched) = mpsc::sync_channel(MAX_FETCHED);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let (of_writer, of_reader, root) = (shared.clone(), shared.clone(), root.clone());
        let writer = thread("perigee-kv-write").spawn(move || {
            of_writer.scan(&root);
            of_writer.write_all(&to_write);
        });
        let reader = thread("perigee-kv-read").spawn(move || of_reader.read_all(&to_fetch, &send));
        reader.map_err(TierError::Thread)?;
        Ok(Self {
            shared,
            writes,
            fetches,
            fetched,
            writer: writer.map_err(TierError::Thread)?,
            flush: options.flush,
        })
    }

    /// Whether a block can be fetched.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.shared.files().contains(name)
    }

    /// Files found and written, of whatever identity.
    #[cfg(test)]
    pub(super) fn num_files(&self) -> usize {
        self.shared.files().len()
    }

    /// Writes a block, some time later; drops it if too many wait.
    pub(super) fn write(&self, name: Name, content: &Content) {
        if self.has(&name) {
            return;
        }
        let bytes = content.len() as u64;
        let queued = &self.shared.queued_bytes;
        if queued.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_QUEUED_BYTES.max(bytes)
            && self.writes.try_send((name, content.clone())).is_ok()
        {
            return;
        }
        queued.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.metrics.record_kv_lost(KvLoss::Queue);
    }

    /// The same, waiting for room. Whether there was any before the deadline.
    pub(super) fn write_until(&self, name: Name, content: Vec<u8>, deadline: Instant) -> bool {
        let queued = &self.shared.queued_bytes;
        let mut entry = (name, Arc::new(content));
        let bytes = entry.1.len() as u64;
        while Instant::now() < deadline && !self.writer.is_finished() {
            if queued.load(Ordering::Relaxed) + bytes <= MAX_QUEUED_BYTES.max(bytes) {
                queued.fetch_add(bytes, Ordering::Relaxed);
                match self.writes.try_send(entry) {
                    Ok(()) => return true,
                    Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) => entry = back,
                }
                queued.fetch_sub(bytes, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Reads as many of the blocks, from the first on, as are here. Whether there are any.
    pub(super) fn fetch(&self, seq: SeqId, names: &[Name]) -> bool {
        let found: Vec<Name> = {
            let files = self.shared.files();
            names.iter().take_while(|name| files.contains(name)).copied().collect()
        };
        !found.is_empty() && self.fetches.try_send((seq, found)).is_ok()
    }

    pub(super) fn fetched(&self) -> Option<Fetched> {
        self.fetched.try_recv().ok()
    }

    /// Waits for the writing thread until the deadline.
    pub(super) fn close(self, deadline: Instant) {
        let Self { shared, writes, writer, .. } = self;
        drop(writes);
        while !writer.is_finished() {
            if Instant::now() >= deadline {
                shared.ends.store(true, Ordering::Relaxed);
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A write that is under way is short, unless the disk hangs.
        let left = shared.queued_bytes.load(Ordering::Relaxed);
        if left > 0 {
            tracing::warn!(bytes = left, "KV blocks were not written to disk in time");
        }
    }
}

/// Makes a folder and those above it, for this user alone: what they hold tells of prompts.
fn make_folders(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Whether [`Disk::open`] could use a folder; what is made for that is removed again.
pub(super) fn try_folder(folder: &Path) -> io::Result<()> {
    let absent: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    let tried = make_folders(folder).and_then(|()| probe(folder));
    absent.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    tried
}

/// Whether files can be made.
fn probe(folder: &Path) -> io::Result<()> {
    let file = folder.join(format!("{:016x}{UNFINISHED}", fastrand::u64(..)));
    block_file::create(&file)?;
    fs::remove_file(&file)
}

impl Shared {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &Name) -> PathBuf {
        let name = hex(name);
        self.folder.join(&name[..2]).join(format!("{name}.kv"))
    }

    /// Finds the files of earlier processes, of whatever identity.
    fn scan(&self, root: &Path) {
        let begun = Instant::now();
        let mut found: Vec<(SystemTime, Entry<PathBuf>)> = Vec::new();
        for identity in folders(root).filter(|folder| is_hex(folder, 24)) {
            let own = identity == self.folder;
            for part in folders(&identity).filter(|folder| is_hex(folder, 2)) {
                for file in fs::read_dir(&part).into_iter().flatten().flatten() {
                    found.extend(self.entry(&file, own));
                }
            }
        }
        found.sort_by_key(|(used, _)| *used);
        let mut files = self.files();
        for (_, entry) in found {
            // What this process has written meanwhile is newer.
            if entry.name.is_none_or(|name| !files.contains(&name)) {
                files.insert(entry);
            }
        }
        let (blocks, bytes) = (files.num_named(), files.bytes());
        drop(files);
        self.make_room(0);
        self.tell();
        tracing::info!(blocks, bytes, took = ?begun.elapsed(), path = %root.display(), "KV blocks on disk");
    }

    /// A block's file and its last use. Deletes what an earlier process has left unfinished.
    fn entry(&self, file: &fs::DirEntry, own: bool) -> Option<(SystemTime, Entry<PathBuf>)> {
        let (path, about) = (file.path(), file.metadata().ok()?);
        let used = about.modified().unwrap_or(UNIX_EPOCH);
        if !about.is_file() {
            return None;
        }
        let name = file.file_name();
        let name = name.to_str()?;
        if name.ends_with(UNFINISHED) {
            if used.elapsed().is_ok_and(|age| age > STALE) {
                let _ = fs::remove_file(&path);
            }
            return None;
        }
        let name = from_hex(name.strip_suffix(".kv")?)?;
        Some((used, Entry { name: own.then_some(name), bytes: about.len(), value: path }))
    }

    /// Deletes the files used least recently, until there is room for `bytes` more.
    fn make_room(&self, bytes: u64) {
        loop {
            let mut files = self.files();
            if files.bytes() + bytes <= self.max_bytes {
                return;
            }
            let Some(oldest) = files.pop_oldest() else { return };
            drop(files);
            let _ = fs::remove_file(&oldest.value);
        }
    }

    fn write_all(&self, writes: &Receiver<(Name, Content)>) {
        let mut warnings = Throttle::default();
        for (name, content) in writes {
            let bytes = content.len() as u64;
            if !self.ends.load(Ordering::Relaxed)
                && let Err(error) = self.write(&name, &content)
            {
                self.metrics.record_kv_lost(KvLoss::Write);
                if warnings.pass() {
                    let path = self.folder.display();
                    tracing::warn!(%error, %path, "a KV block could not be written to disk; replies are not affected");
                }
            }
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn write(&self, name: &Name, content: &[u8]) -> io::Result<()> {
        let bytes = (HEADER_BYTES + content.len()) as u64;
        if self.files().contains(name) || bytes > self.max_bytes {
            return Ok(());
        }
        self.make_room(bytes);
        let path = self.path(name);
        if let Some(part) = path.parent() {
            make_folders(part)?;
        }
        block_file::write(&path, &self.identity, name, content)?;
        self.files().insert(Entry { name: Some(*name), bytes, value: path });
        self.metrics.record_kv_stored(KvTier::Disk);
        self.tell();
        Ok(())
    }

    fn read_all(&self, fetches: &Receiver<(SeqId, Vec<Name>)>, send: &SyncSender<Fetched>) {
        for (seq, names) in fetches {
            for name in names {
                let Some(content) = self.read(&name) else { break };
                if send.send(Fetched::Block(name, content)).is_err() {
                    return;
                }
                self.metrics.record_kv_loaded(KvTier::Disk);
            }
            if send.send(Fetched::End(seq)).is_err() {
                return;
            }
        }
    }

    /// A block, which counts as used. A bad file is deleted; one that is gone made room for another process's.
    fn read(&self, name: &Name) -> Option<Vec<u8>> {
        let entry = self.files().remove(name)?;
        match block_file::read(&entry.value, &self.identity, name, self.block_bytes) {
            Ok(Some(content)) => {
                // Its time tells a later process that it was used.
                let touched = File::options().append(true).open(&entry.value);
                let _ = touched.and_then(|file| file.set_modified(SystemTime::now()));
                self.files().insert(entry);
                Some(content)
            }
            Ok(None) => {
                self.tell();
                None
            }
            Err(reason) => {
                let path = entry.value.display();
                tracing::warn!(reason, %path, "a KV block on disk is unusable and is deleted");
                self.metrics.record_kv_lost(KvLoss::File);
                let _ = fs::remove_file(&entry.value);
                self.tell();
                None
            }
        }
    }

    fn tell(&self) {
        let files = self.files();
        self.metrics.set_kv_tier(KvTier::Disk, files.num_named(), files.bytes());
    }
}

fn folders(of: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

fn is_hex(folder: &Path, digits: usize) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.len() == digits && name.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn from_hex(digits: &str) -> Option<Name> {
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut name = Name::default();
    for (byte, digits) in name.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(name)
}
