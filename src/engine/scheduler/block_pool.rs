//! The KV blocks: their reference counts, the free ones, and those held by the prefix cache alone.
//!
//! A block is in exactly one of three states: *used* (reference count above 0), *cached* (count 0
//! but named, on the least-recently-used list), *free* (count 0, no name, on the free stack). All
//! operations are O(1). Knows neither sequences nor tokens.

use super::cache_change::{CacheChange, NamedBlock};
use super::prefix_index::{BlockHash, PrefixIndex};
use perigee_ops::BlockId;

/// End mark of the intrusive list.
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Block {
    ref_count: u32,
    /// Neighbours on the list of cached blocks: the next older and the next newer one.
    older: u32,
    newer: u32,
    /// Set exactly while the prefix index holds the block.
    hash: Option<BlockHash>,
}

/// All blocks of the cache.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    index: PrefixIndex,
    oldest: u32,
    newest: u32,
    num_cached: usize,
    evictions: u64,
    /// Changes of names since they were last taken; `None`: not noted.
    changes: Option<Vec<CacheChange>>,
    /// Blocks that were given to others, with the names that they had; `None`: not noted.
    evicted: Option<Vec<(BlockHash, BlockId)>>,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks, below `u32::MAX`.
    pub(super) fn new(num_blocks: usize) -> Self {
        let block = Block { ref_count: 0, older: NIL, newer: NIL, hash: None };
        Self {
            blocks: vec![block; num_blocks],
            // Popped from the end: low ids first, which keeps the touched part of the cache small.
            free: (0..num_blocks as u32).rev().collect(),
            index: PrefixIndex::with_capacity(num_blocks),
            oldest: NIL,
            newest: NIL,
            num_cached: 0,
            evictions: 0,
            changes: None,
            evicted: None,
        }
    }

    /// Notes evicted blocks from now on.
    pub(super) fn note_evictions(&mut self) {
        self.evicted.get_or_insert_default();
    }

    /// Moves the blocks evicted since the last call to the end of `into`.
    pub(super) fn take_evicted(&mut self, into: &mut Vec<(BlockHash, BlockId)>) {
        self.evicted.iter_mut().for_each(|evicted| into.append(evicted));
    }

    /// Names and blocks with a reference count of 0, the most recently used first.
    pub(super) fn cached(&self) -> impl Iterator<Item = (BlockHash, BlockId)> + '_ {
        let mut id = self.newest;
        std::iter::from_fn(move || {
            let block = self.blocks.get(id as usize)?;
            let named = (block.hash.expect("a cached block has a name"), BlockId(id));
            id = block.older;
            Some(named)
        })
    }

    /// Notes changes of names from now on.
    pub(super) fn note_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// The changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<CacheChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Number of named blocks.
    #[cfg(test)]
    pub(super) fn num_named(&self) -> usize {
        self.index.len()
    }

    /// Notes what the name of a block that was just named stands for, if anybody takes changes.
    pub(super) fn note_named(&mut self, block: impl FnOnce() -> NamedBlock) {
        if let Some(changes) = &mut self.changes {
            changes.push(CacheChange::Named(Box::new(block())));
        }
    }

    fn remove_name(&mut self, hash: &BlockHash) {
        self.index.remove(hash);
        if let Some(changes) = &mut self.changes {
            changes.push(CacheChange::Unnamed(*hash));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks in the state *free*.
    pub(super) fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Blocks in the state *cached*.
    pub(super) fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// Blocks that `allocate` can return: free ones, then cached ones.
    pub(super) fn num_available(&self) -> usize {
        self.free.len() + self.num_cached
    }

    /// Blocks in the state *used*.
    pub(super) fn num_used(&self) -> usize {
        self.blocks.len() - self.num_available()
    }

    /// Cached blocks reused for new content, since the start.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns a block with reference count 1 and no name: a free one, else the least recently used
    /// cached one.
    pub(super) fn allocate(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.oldest != NIL => {
                let id = self.oldest;
                self.unlink(id);
                let hash = self.blocks[id as usize].hash.take().expect("a cached block has a name");
                self.remove_name(&hash);
                self.evictions += 1;
                self.evicted.iter_mut().for_each(|evicted| evicted.push((hash, BlockId(id))));
                id
            }
            None => return None,
        };
        self.blocks[id as usize].ref_count = 1;
        Some(BlockId(id))
    }

    /// Adds a reference.
    pub(super) fn acquire(&mut self, BlockId(id): BlockId) {
        if self.blocks[id as usize].ref_count == 0 {
            self.unlink(id);
        }
        self.blocks[id as usize].ref_count += 1;
    }

    /// Removes a reference. After the last one the block is cached (as the most recently used) if
    /// it has a name, free otherwise.
    pub(super) fn release(&mut self, BlockId(id): BlockId) {
        let block = &mut self.blocks[id as usize];
        assert!(block.ref_count > 0, "block {id} released more often than held");
        block.ref_count -= 1;
        if block.ref_count > 0 {
            return;
        }
        if block.hash.is_some() {
            self.link_newest(id);
        } else {
            self.free.push(id);
        }
    }

    /// Names a full used block, and says so; no effect if the name or the block is already in the index.
    pub(super) fn publish(&mut self, BlockId(id): BlockId, hash: BlockHash) -> bool {
        let block = &mut self.blocks[id as usize];
        debug_assert!(block.ref_count > 0);
        let named = block.hash.is_none() && self.index.insert(hash, id);
        if named {
            block.hash = Some(hash);
        }
        named
    }

    /// Removes the name of a used block: the block becomes free after its last reference, and the
    /// name can be given again.
    pub(super) fn unname(&mut self, BlockId(id): BlockId) {
        debug_assert!(self.blocks[id as usize].ref_count > 0);
        if let Some(hash) = self.blocks[id as usize].hash.take() {
            self.remove_name(&hash);
        }
    }

    /// The block with this name, used or cached.
    pub(super) fn lookup(&self, hash: &BlockHash) -> Option<BlockId> {
        self.index.get(hash).map(BlockId)
    }

    pub(super) fn ref_count(&self, BlockId(id): BlockId) -> u32 {
        self.blocks[id as usize].ref_count
    }

    /// Whether the block may be written by its holder: one reference and no name, so no other
    /// sequence reads it.
    pub(super) fn is_private(&self, BlockId(id): BlockId) -> bool {
        let block = &self.blocks[id as usize];
        block.ref_count == 1 && block.hash.is_none()
    }

    fn unlink(&mut self, id: u32) {
        let Block { older, newer, .. } = self.blocks[id as usize];
        match older {
            NIL => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        let block = &mut self.blocks[id as usize];
        (block.older, block.newer) = (NIL, NIL);
        self.num_cached -= 1;
    }

    fn link_newest(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        (block.older, block.newer) = (self.newest, NIL);
        match self.newest {
            NIL => self.oldest = id,
            newest => self.blocks[newest as usize].newer = id,
        }
        self.newest = id;
        self.num_cached += 1;
    }

    /// Compares every count, list and name with `references[block]`, the number of block table entries that name the block.
    /// Linear in the number of blocks.
    pub(super) fn check(&self, references: &[u32]) -> Result<(), String> {
        let fail = |what: String| -> Result<(), String> { Err(what) };
        let mut seen = vec![0u8; self.blocks.len()];
        for &id in &self.free {
            let block = &self.blocks[id as usize];
            seen[id as usize] += 1;
            if block.ref_count != 0 || block.hash.is_some() {
                return fail(format!("free block {id} is held or named"));
            }
        }
        let (mut id, mut before, mut cached) = (self.oldest, NIL, 0);
        while id != NIL {
            let block = &self.blocks[id as usize];
            seen[id as usize] += 1;
            cached += 1;
            if block.ref_count != 0
                || block.hash.is_none()
                || block.older != before
                || cached > self.blocks.len()
            {
                return fail(format!("cached block {id} is held, nameless or wrongly linked"));
            }
            (before, id) = (id, block.newer);
        }
        if before != self.newest || cached != self.num_cached {
            return fail(format!("list of cached blocks holds {cached}, counted {}", self.num_cached));
        }
        let mut named = 0;
        for (id, block) in self.blocks.iter().enumerate() {
            if block.ref_count != references[id] {
                return fail(format!(
                    "block {id} counts {} holders, tables name it {}",
                    block.ref_count, references[id]
                ));
            }
            if u32::from(seen[id]) + u32::from(block.ref_count > 0) != 1 {
                return fail(format!("block {id} is in no state or in two"));
            }
            if let Some(hash) = &block.hash {
                named += 1;
                if self.index.get(hash) != Some(id as u32) {
                    return fail(format!("index does not lead to block {id}"));
                }
            }
        }
        if named != self.index.len() {
            return fail(format!("index has {} names, blocks have {named}", self.index.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::prefix_index::{block_hash, root_hash};
    use super::*;

    fn name(i: u32) -> BlockHash {
        block_hash(&root_hash(false, None), &[i], 0, [].iter())
    }

    #[test]
    fn the_least_recently_released_cached_block_is_evicted_first() {
        let mut pool = BlockPool::new(3);
        let ids: Vec<BlockId> = (0..3).map(|_| pool.allocate().unwrap()).collect();
        assert_eq!(pool.allocate(), None);
        for &id in &ids {
            pool.publish(id, name(id.0));
        }
        for id in [ids[1], ids[0], ids[2]] {
            pool.release(id);
        }
        pool.acquire(ids[1]);
        pool.release(ids[1]);
        pool.check(&[0; 3]).unwrap();
        assert_eq!((pool.num_free(), pool.num_cached(), pool.num_used()), (0, 3, 0));
        assert_eq!(
            [pool.allocate(), pool.allocate(), pool.allocate()],
            [Some(ids[0]), Some(ids[2]), Some(ids[1])]
        );
        assert_eq!(pool.lookup(&name(ids[0].0)), None);
        assert_eq!(pool.evictions(), 3);
    }

    #[test]
    fn free_blocks_go_before_cached_ones() {
        let mut pool = BlockPool::new(2);
        let kept = pool.allocate().unwrap();
        pool.publish(kept, name(1));
        pool.release(kept);
        assert_ne!(pool.allocate(), Some(kept));
        assert_eq!(pool.lookup(&name(1)), Some(kept));
    }

    #[test]
    fn an_unnamed_block_is_found_by_nobody_and_free_when_released() {
        let mut pool = BlockPool::new(2);
        let id = pool.allocate().unwrap();
        pool.publish(id, name(1));
        pool.acquire(id);
        pool.unname(id);
        pool.unname(id);
        assert_eq!((pool.lookup(&name(1)), pool.ref_count(id)), (None, 2));
        pool.check(&[2, 0]).unwrap();
        pool.release(id);
        pool.release(id);
        assert_eq!((pool.num_free(), pool.num_cached()), (2, 0));
        pool.check(&[0, 0]).unwrap();
    }

    #[test]
    fn a_second_block_of_a_name_stays_private() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.publish(a, name(1));
        pool.publish(b, name(1));
        assert!(!pool.is_private(a) && pool.is_private(b));
        pool.release(b);
        pool.acquire(a);
        assert_eq!((pool.ref_count(a), pool.num_free()), (2, 1));
        pool.check(&[2, 0]).unwrap();
    }
}
