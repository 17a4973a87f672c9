//! Zeroed memory for weights and caches, in huge pages where the system grants them.

use memmap2::MmapMut;
use perigee_ops::OpError;

/// Bytes of a huge page on x86-64 and most others.
const HUGE_PAGE: usize = 2 << 20;

/// A fixed number of 32-bit words, zero at first, aligned to at least 64 bytes.
///
/// Streaming weights touches a new page every 4 KiB; with huge pages the page walk all but disappears. Pages are given by
/// the system at first touch, so whoever fills a part first also decides where it lives.
pub(crate) struct Storage {
    map: MmapMut,
    /// First used byte; a multiple of the page size.
    start: usize,
    words: usize,
}

impl Storage {
    /// `words` zeros. `what` is named in the error.
    pub(crate) fn zeroed(words: usize, what: &'static str) -> Result<Self, OpError> {
        let too_much = |_| OpError::OutOfMemory { what, bytes: words.saturating_mul(4) };
        let bytes = words.checked_mul(4).filter(|b| *b <= isize::MAX as usize - HUGE_PAGE);
        let bytes = bytes.ok_or(OpError::OutOfMemory { what, bytes: usize::MAX })?.max(64);
        let large = bytes >= HUGE_PAGE;
        let mut map = MmapMut::map_anon(bytes + if large { HUGE_PAGE } else { 0 }).map_err(too_much)?;
        let mut start = 0;
        if large {
            start = map.as_mut_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
            #[cfg(target_os = "linux")]
            {
                // Only a hint: a kernel without huge pages refuses it and small pages are used. Not for the rest behind the last whole one: that
                // would cost a megabyte per matrix on average.
                let _ = map.advise_range(memmap2::Advice::HugePage, start, bytes / HUGE_PAGE * HUGE_PAGE);
            }
        }
        Ok(Self { map, start, words })
    }

    /// All words.
    pub(crate) fn words(&self) -> &[u32] {
        bytemuck::cast_slice(&self.map[self.start..self.start + self.words * 4])
    }

    /// All words, to fill.
    pub(crate) fn words_mut(&mut self) -> &mut [u32] {
        let end = self.start + self.words * 4;
        bytemuck::cast_slice_mut(&mut self.map[self.start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zero_aligned_and_of_the_size_asked_for() {
        for words in [0, 1, 17, 1 << 19, (1 << 20) + 5] {
            let mut storage = Storage::zeroed(words, "test").expect("memory");
            assert_eq!(storage.words().len(), words);
            assert_eq!(storage.words().as_ptr().align_offset(64), 0);
            assert!(storage.words().iter().all(|w| *w == 0));
            storage.words_mut().fill(7);
            assert!(storage.words().iter().all(|w| *w == 7));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        for words in [usize::MAX, usize::MAX / 4, usize::MAX / 8] {
            assert!(matches!(Storage::zeroed(words, "test"), Err(OpError::OutOfMemory { what: "test", .. })));
        }
    }
}
