//! Entries in the order of their last use, and the bytes of all.

use std::collections::{BTreeMap, HashMap};

use crate::scheduler::Name;

#[derive(Default)]
pub(super) struct Lru<V> {
    /// Keys of the named entries.
    named: HashMap<Name, u64, ahash::RandomState>,
    /// By their last use, oldest first.
    entries: BTreeMap<u64, Entry<V>>,
    next_use: u64,
    bytes: u64,
}

pub(super) struct Entry<V> {
    /// `None`: removed as the oldest alone.
    pub(super) name: Option<Name>,
    pub(super) bytes: u64,
    pub(super) value: V,
}

impl<V> Lru<V> {
    /// Entries, with a name or without.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn num_named(&self) -> usize {
        self.named.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn contains(&self, name: &Name) -> bool {
        self.named.contains_key(name)
    }

    /// The value of a name, as the one used last.
    pub(super) fn get(&mut self, name: &Name) -> Option<&V> {
        let entry = self.remove(name)?;
        Some(&self.insert(entry).value)
    }

    /// Adds an entry as the one used last, in place of one of the same name.
    pub(super) fn insert(&mut self, entry: Entry<V>) -> &Entry<V> {
        if let Some(name) = &entry.name {
            self.remove(name);
            self.named.insert(*name, self.next_use);
        }
        self.bytes += entry.bytes;
        self.next_use += 1;
        self.entries.entry(self.next_use - 1).or_insert(entry)
    }

    pub(super) fn remove(&mut self, name: &Name) -> Option<Entry<V>> {
        let entry = self.entries.remove(&self.named.remove(name)?)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Removes the entry that was not used for longest.
    pub(super) fn pop_oldest(&mut self) -> Option<Entry<V>> {
        let (_, entry) = self.entries.pop_first()?;
        self.bytes -= entry.bytes;
        entry.name.map(|name| self.named.remove(&name));
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: Option<u8>, bytes: u64) -> Entry<&'static str> {
        Entry { name: name.map(|i| [i; 32]), bytes, value: "value" }
    }

    #[test]
    fn the_oldest_use_leaves_first() {
        let mut lru = Lru::default();
        for (name, bytes) in [(Some(1), 1), (None, 2), (Some(2), 4), (Some(3), 8), (Some(4), 16)] {
            lru.insert(entry(name, bytes));
        }
        assert_eq!(lru.get(&[1; 32]), Some(&"value"));
        assert_eq!(lru.get(&[9; 32]), None);
        // Another entry of the same name.
        lru.insert(entry(Some(2), 32));
        assert_eq!(lru.remove(&[4; 32]).map(|entry| entry.bytes), Some(16));
        assert!(lru.remove(&[4; 32]).is_none() && !lru.contains(&[4; 32]) && lru.contains(&[3; 32]));
        assert_eq!((lru.len(), lru.num_named(), lru.bytes()), (4, 3, 2 + 8 + 1 + 32));
        let left = std::iter::from_fn(|| lru.pop_oldest()).map(|entry| (entry.name, entry.bytes));
        let expected = [(None, 2), (Some([3; 32]), 8), (Some([1; 32]), 1), (Some([2; 32]), 32)];
        assert_eq!(left.collect::<Vec<_>>(), expected);
        assert_eq!((lru.len(), lru.num_named(), lru.bytes()), (0, 0, 0));
    }
}
