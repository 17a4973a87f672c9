//! Blocks in host memory, the least recently used dropped first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Content;
use crate::scheduler::Name;

/// Buffers that are kept for blocks to come: memory that was used before needs no new pages.
const MAX_SPARE: usize = 16;

pub(super) struct Host {
    /// Most blocks.
    capacity: usize,
    blocks: HashMap<Name, (u64, Content), ahash::RandomState>,
    /// Names by their last use.
    uses: BTreeMap<u64, Name>,
    next_use: u64,
    bytes: u64,
    spare: Vec<Vec<u8>>,
}

impl Host {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: HashMap::default(),
            uses: BTreeMap::new(),
            next_use: 0,
            bytes: 0,
            spare: Vec::new(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// The block, as the one used last.
    pub(super) fn get(&mut self, name: &Name) -> Option<Content> {
        let (used, content) = self.blocks.get_mut(name)?;
        self.uses.remove(used);
        *used = self.next_use;
        self.uses.insert(self.next_use, *name);
        self.next_use += 1;
        Some(content.clone())
    }

    /// Keeps a block as the one used last; returns the names of those dropped for it.
    pub(super) fn insert(&mut self, name: Name, content: Content) -> Vec<Name> {
        let mut dropped = Vec::new();
        // A name has one content: it is here already.
        if self.get(&name).is_some() {
            return dropped;
        }
        while self.blocks.len() >= self.capacity {
            let Some((_, oldest)) = self.uses.pop_first() else { break };
            if let Some((_, content)) = self.blocks.remove(&oldest) {
                self.bytes -= content.len() as u64;
                self.recycle(content);
            }
            dropped.push(oldest);
        }
        self.bytes += content.len() as u64;
        self.blocks.insert(name, (self.next_use, content));
        self.uses.insert(self.next_use, name);
        self.next_use += 1;
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
