//! A vector whose places are reused: an index stays valid until its value is removed.

use std::ops::{Index, IndexMut};

/// Values at stable indices.
#[derive(Debug)]
pub(super) struct Slab<T> {
    values: Vec<Option<T>>,
    vacant: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> usize {
        match self.vacant.pop() {
            Some(slot) => {
                self.values[slot] = Some(value);
                slot
            }
            None => {
                self.values.push(Some(value));
                self.values.len() - 1
            }
        }
    }

    pub(super) fn remove(&mut self, slot: usize) -> T {
        let value = self.values[slot].take().expect("a slot is removed once");
        self.vacant.push(slot);
        value
    }

    /// Indices in use and their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.values.iter().enumerate().filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }
}

impl<T> Index<usize> for Slab<T> {
    type Output = T;

    fn index(&self, slot: usize) -> &T {
        self.values[slot].as_ref().expect("a slot in use")
    }
}

impl<T> IndexMut<usize> for Slab<T> {
    fn index_mut(&mut self, slot: usize) -> &mut T {
        self.values[slot].as_mut().expect("a slot in use")
    }
}
