//! The last accesses of each word of memory.
//!
//! FastTrack (Flanagan and Freund, PLDI 2009) keeps the last write of a variable and its last reads;
//! here a variable is a byte, and the bytes of a word share their records. An access that follows an
//! ordered one replaces it: whatever races with the older one races with the newer one too.

use super::clock::{Clock, Epoch};
use crate::program::Scope;
use std::collections::HashMap;

/// How memory is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kind {
    pub(crate) write: bool,
    /// Atomic, relaxed, volatile, acquire or release: no race with its like where the scopes of both
    /// include the other thread.
    pub(crate) strong: bool,
    /// Of a strong access.
    pub(crate) scope: Scope,
    /// By an asynchronous copy.
    pub(crate) copy: bool,
}

/// An ordinary read.
pub(crate) const READ: Kind = Kind { write: false, strong: false, scope: Scope::Block, copy: false };
/// An ordinary write.
pub(crate) const WRITE: Kind = Kind { write: true, ..READ };
/// An operation on an mbarrier, which is atomic for all that can reach it.
pub(crate) const ATOMIC: Kind = Kind { write: true, strong: true, scope: Scope::System, ..READ };

/// A read by an asynchronous copy or product.
pub(crate) const COPY_READ: Kind = Kind { copy: true, ..READ };
/// A write by an asynchronous copy.
pub(crate) const COPY_WRITE: Kind = Kind { copy: true, ..WRITE };

/// An access to bytes of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Record {
    /// When it is done.
    pub(crate) epoch: Epoch,
    /// Agent of the warp that issued it.
    pub(crate) warp: u32,
    /// Index of the instruction.
    pub(crate) pc: u32,
    pub(crate) lane: u8,
    /// Bytes of the word; 0: no record.
    pub(crate) bytes: u8,
    pub(crate) kind: Kind,
}

/// Records of one word.
#[derive(Debug, Default, Clone)]
struct Cell {
    first: [Record; 2],
    #[expect(clippy::box_collection, reason = "most words have two records: the cell stays small")]
    more: Option<Box<Vec<Record>>>,
}

impl Cell {
    /// Checks an access against those before it and records it; the one it races with, if any. A write
    /// of what the memory holds already (`same`) does not race with other writes.
    fn access(
        &mut self,
        new: Record,
        seen: &Clock,
        distance: &impl Fn(u32) -> Scope,
        same: bool,
        limit: usize,
    ) -> Option<Record> {
        // Copies are told apart by their lanes, and two of them may not write the same bytes.
        let alike = !new.kind.copy || !(new.kind.write || new.epoch.is_in_flight());
        let again =
            |old: &Record| old.epoch == new.epoch && old.kind == new.kind && new.bytes & !old.bytes == 0;
        if alike && self.first.iter().any(again) {
            return None;
        }
        let more = self.more.as_deref_mut().map_or(&mut [][..], |more| &mut more[..]);
        for old in self.first.iter_mut().chain(more) {
            if old.bytes & new.bytes == 0 {
                continue;
            }
            let ordered = seen.covers(old.epoch);
            let strong = || {
                old.kind.strong && new.kind.strong && distance(old.warp) <= old.kind.scope.min(new.kind.scope)
            };
            let conflict = (old.kind.write || new.kind.write) && !strong();
            let benign = same && old.kind == WRITE && new.kind == WRITE;
            if conflict && !benign && !ordered {
                return Some(*old);
            }
            if ordered && (new.kind.write || !old.kind.write) {
                // A strong access does not race with its like: only one that is strong as well, and reaches no farther, goes without it.
                let replaced = !new.kind.strong
                    || (old.kind.strong
                        && old.kind.scope >= new.kind.scope
                        && distance(old.warp) <= Scope::Device.min(new.kind.scope));
                if replaced {
                    old.bytes &= !new.bytes;
                }
            }
        }
        self.insert(new, limit);
        None
    }

    fn insert(&mut self, new: Record, limit: usize) {
        if let Some(free) = self.first.iter_mut().find(|record| record.bytes == 0) {
            *free = new;
            return;
        }
        let more = self.more.get_or_insert_default();
        more.retain(|record| record.bytes != 0);
        if more.len() < limit || (new.kind.write && !new.kind.strong) {
            more.push(new);
        }
    }

    fn records(&mut self) -> impl Iterator<Item = &mut Record> {
        self.first.iter_mut().chain(self.more.iter_mut().flat_map(|more| more.iter_mut()))
    }
}

/// Words of a page.
const PAGE: u64 = 256;

/// Records of the words of an address range, kept from the first access on.
#[derive(Debug)]
pub(crate) struct Shadow {
    pages: Vec<Box<[Cell]>>,
    index: HashMap<u64, usize>,
    /// The page that was used last.
    recent: (u64, usize),
    /// Concurrent records of a word at most, beside two. Later ones are forgotten.
    limit: usize,
}

impl Shadow {
    pub(crate) fn new(limit: usize) -> Self {
        Self { pages: Vec::new(), index: HashMap::new(), recent: (u64::MAX, 0), limit }
    }

    fn cell(&mut self, word: u64) -> &mut Cell {
        let page = word / PAGE;
        if self.recent.0 != page {
            let next = self.pages.len();
            let at = *self.index.entry(page).or_insert(next);
            if at == next {
                self.pages.push(vec![Cell::default(); PAGE as usize].into());
            }
            self.recent = (page, at);
        }
        &mut self.pages[self.recent.1][(word % PAGE) as usize]
    }

    /// Checks and records an access to a range; the first address that races and the other access.
    pub(crate) fn access(
        &mut self,
        start: u64,
        len: u64,
        new: Record,
        seen: &Clock,
        distance: impl Fn(u32) -> Scope,
        same: bool,
    ) -> Option<(u64, Record)> {
        let limit = self.limit;
        words(start, len).find_map(|(word, bytes)| {
            let old = self.cell(word).access(Record { bytes, ..new }, seen, &distance, same, limit)?;
            Some((word * 4 + u64::from((old.bytes & bytes).trailing_zeros()), old))
        })
    }

    /// Gives the records that a lane's copy left in a range another epoch.
    pub(crate) fn move_epoch(&mut self, start: u64, len: u64, warp: u32, lane: u8, from: Epoch, to: Epoch) {
        for (word, _) in words(start, len) {
            for record in self.cell(word).records() {
                if record.epoch == from && record.warp == warp && record.lane == lane && record.kind.copy {
                    record.epoch = to;
                }
            }
        }
    }
}

/// Words of a range with the mask of their bytes in it.
fn words(start: u64, len: u64) -> impl Iterator<Item = (u64, u8)> {
    // No memory lies above: the access itself fails.
    let (start, end) = if start < 1 << 62 { (start, start + len) } else { (0, 0) };
    (start / 4..end.div_ceil(4)).map(move |word| {
        let (low, high) = (start.max(word * 4) - word * 4, end.min(word * 4 + 4) - word * 4);
        (word, (0xf << low & 0xf & !(0xf << high)) as u8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_words_with_bytes() {
        for (start, len, want) in [
            (8, 4, &[(2, 0xf)][..]),
            (9, 2, &[(2, 0b0110)]),
            (7, 6, &[(1, 0b1000), (2, 0xf), (3, 0b0001)]),
            (4, 0, &[]),
            (u64::MAX - 2, 8, &[]),
        ] {
            assert_eq!(words(start, len).collect::<Vec<_>>(), want, "{len} at {start}");
        }
    }

    /// A strong write that speaks to its own block.
    const NARROW: Kind = Kind { scope: Scope::Block, ..ATOMIC };

    /// Two accesses by agents 1 and 2 on two devices, the second with or without knowledge of the first.
    #[test]
    fn unordered_accesses_race_where_bytes_meet() {
        for (first, second, ordered, want) in [
            ((WRITE, 0, 4), (READ, 0, 4), false, true),
            ((WRITE, 0, 4), (READ, 0, 4), true, false),
            ((READ, 0, 4), (WRITE, 0, 4), false, true),
            ((READ, 0, 4), (READ, 0, 4), false, false),
            ((WRITE, 0, 1), (WRITE, 1, 1), false, false),
            ((WRITE, 0, 2), (WRITE, 1, 1), false, true),
            ((ATOMIC, 0, 4), (ATOMIC, 0, 4), false, false),
            ((ATOMIC, 0, 4), (READ, 0, 4), false, true),
            ((NARROW, 0, 4), (NARROW, 0, 4), false, true),
            ((NARROW, 0, 4), (ATOMIC, 0, 4), false, true),
            ((NARROW, 0, 4), (ATOMIC, 0, 4), true, false),
        ] {
            let mut shadow = Shadow::new(8);
            let record = |agent, kind| Record {
                epoch: Epoch { agent, time: 1 },
                warp: agent,
                kind,
                ..Record::default()
            };
            let apart = |_: u32| Scope::System;
            let mut seen = Clock::default();
            assert_eq!(shadow.access(first.1, first.2, record(1, first.0), &seen, apart, false), None);
            if ordered {
                seen.learn(Epoch { agent: 1, time: 1 });
            }
            let found = shadow.access(second.1, second.2, record(2, second.0), &seen, apart, false);
            assert_eq!(found.is_some(), want, "{first:?} {second:?} {ordered}");
        }
    }

    #[test]
    fn a_strong_access_does_not_hide_a_weak_one_before_it() {
        let mut shadow = Shadow::new(8);
        let record =
            |agent, kind| Record { epoch: Epoch { agent, time: 1 }, warp: agent, kind, ..Record::default() };
        let near = |_: u32| Scope::Device;
        let (mut seen, other) = (Clock::default(), Clock::default());
        assert_eq!(shadow.access(0, 4, record(1, WRITE), &seen, near, false), None);
        seen.learn(Epoch { agent: 1, time: 1 });
        assert_eq!(shadow.access(0, 4, record(2, ATOMIC), &seen, near, false), None);
        let found = shadow.access(0, 4, record(3, ATOMIC), &other, near, false);
        assert_eq!(found.map(|(_, old)| old.warp), Some(1));
    }
}
