//! Blocks of the KV cache beyond the device: host memory, and a folder behind it.
//!
//! The content of a block that leaves the pool is copied to host memory, and at once, by a writing
//! thread, to disk; each tier drops its least recently used blocks. A block's name covers everything
//! that decides its content except weights, types and arithmetic of the process: these are the
//! *identity*, a part of every file. A file that fails its checks is a miss, and is deleted. Only the
//! two disk threads wait for a disk, and a shutdown that allows time for it.

mod block_file;
mod disk;
mod host;
mod lru;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use block_file::Identity;
use disk::{Disk, Fetched};
use host::Host;

use crate::scheduler::{Name, SeqId};
use perigee_telemetry::{KvTier, Metrics};

/// Bytes of a block in all layers, the draft's part at the end.
pub type Content = Arc<Vec<u8>>;

/// Where blocks are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierOptions {
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Files behind it.
    pub disk: Option<DiskOptions>,
}

/// A folder for blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// Made if it is not there.
    pub folder: PathBuf,
    /// Most bytes of the files in it.
    pub max_bytes: u64,
    /// Longest time that the end of the engine may take to write blocks.
    pub flush: Duration,
}

/// Reasons why blocks cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// Host memory for less than one block.
    #[error(
        "kv_cache.host_bytes = {host_bytes}: a block takes {block_bytes} bytes; raise it to that many blocks that shall be kept, \
         or set 0"
    )]
    LessThanABlock {
        /// As set.
        host_bytes: u64,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The folder cannot be used.
    #[error("kv_cache.disk_path = {}: {source}", .path.display())]
    Folder {
        /// As set.
        path: PathBuf,
        /// What keeps its files from being used.
        source: FolderError,
    },
    /// A thread could not be started.
    #[error("a thread of the KV tiers could not be started")]
    Thread(#[source] std::io::Error),
}

/// A folder that cannot be made or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}; it must be a folder that this process may write")]
pub struct FolderError(std::io::Error);

/// Whether blocks can be kept in a folder. Leaves nothing behind.
pub fn try_folder(folder: &Path) -> Result<(), FolderError> {
    disk::try_folder(folder).map_err(FolderError)
}

/// What a fetch from disk brought.
#[derive(Debug)]
pub enum Arrival {
    /// A block is in host memory now.
    Block {
        /// Its name.
        name: Name,
        /// Names that left host memory for it.
        dropped: Vec<Name>,
    },
    /// All blocks of a fetch that could be read have come.
    End(SeqId),
}

/// Blocks outside the pool.
pub struct Tiers {
    host: Host,
    disk: Option<Disk>,
    metrics: Arc<Metrics>,
}

impl Tiers {
    /// Empty host memory, and whatever the folder holds. Blocks have at most `block_bytes` bytes. The folder is read by a thread:
    /// files found later are hits later.
    pub fn open(
        options: &TierOptions,
        identity: Identity,
        block_bytes: usize,
        metrics: Arc<Metrics>,
    ) -> Result<Self, TierError> {
        let host_bytes = options.host_bytes;
        let capacity = (host_bytes / block_bytes.max(1) as u64) as usize;
        if capacity == 0 {
            return Err(TierError::LessThanABlock { host_bytes, block_bytes });
        }
        let disk = match &options.disk {
            None => None,
            Some(disk) => Some(Disk::open(disk, identity, block_bytes, metrics.clone())?),
        };
        Ok(Self { host: Host::new(capacity), disk, metrics })
    }

    /// A buffer to read a block into, empty.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.host.buffer()
    }

    /// Keeps a block in host memory and on disk; returns the names that left host memory for it.
    pub fn keep(&mut self, name: Name, content: Vec<u8>) -> Vec<Name> {
        let content = Arc::new(content);
        if let Some(disk) = &self.disk {
            disk.write(name, &content);
        }
        let dropped = self.host.insert(name, content);
        self.metrics.record_kv_stored(KvTier::Host);
        self.tell();
        dropped
    }

    /// Whether there is a tier on disk.
    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Whether a block is in host memory; it counts as used.
    pub fn touch(&mut self, name: &Name) -> bool {
        self.host.get(name).is_some()
    }

    /// A block in host memory; it counts as used.
    pub fn content(&mut self, name: &Name) -> Option<Content> {
        let content = self.host.get(name)?;
        self.metrics.record_kv_loaded(KvTier::Host);
        Some(content)
    }

    /// Begins to bring the blocks `names` of a sequence to host memory, as many from the first on as are on disk and find room.
    /// Whether there are any: [`Tiers::arrivals`] tells then.
    pub fn fetch(&mut self, seq: SeqId, names: &[Name]) -> bool {
        // Half of the room: the blocks of one fetch must not push each other out.
        let most = self.host.capacity().div_ceil(2);
        self.disk.as_ref().is_some_and(|disk| disk.fetch(seq, &names[..names.len().min(most)]))
    }

    /// What came from disk since the last call.
    pub fn arrivals(&mut self) -> Vec<Arrival> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let mut arrivals = Vec::new();
        while let Some(fetched) = disk.fetched() {
            arrivals.push(match fetched {
                Fetched::End(seq) => Arrival::End(seq),
                Fetched::Block(name, content) => {
                    Arrival::Block { name, dropped: self.host.insert(name, Arc::new(content)) }
                }
            });
        }
        if !arrivals.is_empty() {
            self.tell();
        }
        arrivals
    }

    /// Whether blocks go to disk, and this one is not there.
    pub fn lacks_on_disk(&self, name: &Name) -> bool {
        self.disk.as_ref().is_some_and(|disk| !disk.has(name))
    }

    /// Puts a block on disk alone; waits for room in the queue until `deadline`. Whether there was any.
    pub fn write_until(&mut self, name: Name, content: Vec<u8>, deadline: Instant) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.write_until(name, content, deadline))
    }

    /// Until when the end of the engine may write blocks.
    pub fn flush_deadline(&self) -> Instant {
        Instant::now() + self.disk.as_ref().map_or(Duration::ZERO, |disk| disk.flush)
    }

    /// Ends the threads, when all blocks are written or at the deadline.
    pub fn close(self, deadline: Instant) {
        if let Some(disk) = self.disk {
            disk.close(deadline);
        }
    }

    fn tell(&self) {
        self.metrics.set_kv_tier(KvTier::Host, self.host.len(), self.host.bytes());
    }
}

#[cfg(test)]
mod tests;
