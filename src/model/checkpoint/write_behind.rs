//! Flushes a file behind its writer: the disk works while the next bytes are computed, and little
//! is left to flush at the end.
//!
//! Invariant: an error of any flush is kept for [`WriteBehind::finish`]. The system reports a
//! failed write-back once per open file, so a flush must not drop its result.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes between two flushes: a fraction of a second of a fast disk, few enough that flushes do not
/// slow the writer.
const FLUSH_BYTES: u64 = 64 << 20;

/// The flushing thread of one file, started at the first `FLUSH_BYTES` bytes.
#[derive(Debug, Default)]
pub(super) struct WriteBehind {
    unflushed: u64,
    thread: Option<Flusher>,
}

/// Channel of flush requests, and the thread that returns their result.
type Flusher = (SyncSender<()>, JoinHandle<io::Result<()>>);

fn start(file: &File) -> io::Result<Flusher> {
    let file = file.try_clone()?;
    let (wake, asked) = sync_channel::<()>(1);
    let flush = move || asked.into_iter().try_for_each(|()| file.sync_data());
    let thread = std::thread::Builder::new().name("perigee-flush".into()).spawn(flush)?;
    Ok((wake, thread))
}

impl WriteBehind {
    /// Counts `bytes` more bytes written to `file` and requests a flush after `FLUSH_BYTES`.
    /// Returns at once. If the system refuses the thread, the file is flushed at the end only.
    pub(super) fn wrote(&mut self, file: &File, bytes: usize) {
        self.unflushed += bytes as u64;
        if self.unflushed < FLUSH_BYTES {
            return;
        }
        self.unflushed = 0;
        if self.thread.is_none() {
            self.thread = start(file).ok();
        }
        if let Some((wake, _)) = &self.thread {
            // Full: a requested flush has not begun, and covers these bytes. Closed: a flush
            // failed, `finish` returns its error.
            let _ = wake.try_send(());
        }
    }

    /// Waits for the flush under way. Errors: the first failed flush.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let Some((wake, thread)) = self.thread.take() else { return Ok(()) };
        drop(wake);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the flushing thread panicked")))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn many_bytes_are_flushed_and_few_start_no_thread() {
        let mut file = tempfile::tempfile().unwrap();
        let mut behind = WriteBehind::default();
        behind.wrote(&file, 1000);
        assert!(behind.thread.is_none());
        for _ in 0..5 {
            file.write_all(&[1; 1000]).unwrap();
            behind.wrote(&file, FLUSH_BYTES as usize);
        }
        assert!(behind.thread.is_some());
        behind.finish().unwrap();
        behind.finish().unwrap();
    }

    #[test]
    fn a_failed_flush_is_told_at_the_end() {
        // A pipe cannot be flushed.
        let (_reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut behind = WriteBehind::default();
        for _ in 0..3 {
            behind.wrote(&file, FLUSH_BYTES as usize);
        }
        assert!(behind.finish().is_err());
    }
}
