//! Blocks in host memory, the least recently used dropped first.

use std::sync::Arc;

use super::Content;
use super::lru::{Entry, Lru};
use crate::scheduler::Name;

/// Buffers that are kept for blocks to come: memory that was used before needs no new pages.
const MAX_SPARE: usize = 16;

pub(super) struct Host {
    /// Most blocks.
    capacity: usize,
    blocks: Lru<Content>,
    spare: Vec<Vec<u8>>,
}

impl Host {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, blocks: Lru::default(), spare: Vec::new() }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.bytes()
    }

    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// The block, as the one used last.
    pub(super) fn get(&mut self, name: &Name) -> Option<Content> {
        self.blocks.get(name).cloned()
    }

    /// Keeps a block as the one used last; returns the names of those dropped for it.
    pub(super) fn insert(&mut self, name: Name, content: Content) -> Vec<Name> {
        let mut dropped = Vec::new();
        // A name has one content: it is here already.
        if self.get(&name).is_some() {
            return dropped;
        }
        while self.blocks.len() >= self.capacity {
            let Some(oldest) = self.blocks.pop_oldest() else { break };
            self.recycle(oldest.value);
            dropped.extend(oldest.name);
        }
        self.blocks.insert(Entry { name: Some(name), bytes: content.len() as u64, value: content });
        dropped
    }

    fn recycle(&mut self, content: Content) {
        if self.spare.len() < MAX_SPARE
            && let Ok(mut buffer) = Arc::try_unwrap(content)
        {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}
