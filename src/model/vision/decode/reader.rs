//! A file in memory that can be taken away from its decoder.

use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};

/// Bytes handed out between two looks at the flag. Compressed pixels grow up to 1032 times: one look for at
/// most 4 MB of them.
const WINDOW_BYTES: usize = 4096;

/// Reads a file until `cancelled`; every read after that fails.
pub(super) struct StoppableReader<'a> {
    cursor: Cursor<&'a [u8]>,
    cancelled: &'a dyn Fn() -> bool,
}

impl<'a> StoppableReader<'a> {
    pub(super) fn new(bytes: &'a [u8], cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { cursor: Cursor::new(bytes), cancelled }
    }
}

impl BufRead for StoppableReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if (self.cancelled)() {
            return Err(io::Error::other("cancelled"));
        }
        let rest = self.cursor.fill_buf()?;
        Ok(&rest[..rest.len().min(WINDOW_BYTES)])
    }

    fn consume(&mut self, amount: usize) {
        self.cursor.consume(amount);
    }
}

impl Read for StoppableReader<'_> {
    // Decoders of WebP read single bytes and whole chunks here: the flag is looked at for chunks.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.len() >= WINDOW_BYTES && (self.cancelled)() {
            return Err(io::Error::other("cancelled"));
        }
        self.cursor.read(buffer)
    }
}

impl Seek for StoppableReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.cursor.seek(to)
    }
}
