//! Maps the name of a full block to the block that holds its content.
//!
//! A block's name is a 32-byte blake3 hash chained over everything that decides its content: the
//! salt, the attention class, and every token from position 0 to the block's end. Equal names
//! therefore mean equal content, even between tenants that try to construct a collision, and a name
//! stays valid however long its block is kept.

use std::collections::HashMap;

/// Name of a full block: chained over salt, class and all tokens up to its end.
pub(super) type BlockHash = [u8; 32];

/// First name of every chain of one (salt, class). `None` and `Some("")` are different salts.
pub(super) fn root_hash(expanded: bool, salt: Option<&str>) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(if expanded { b"expanded" } else { b"absorbed" });
    match salt {
        None => hasher.update(&[0]),
        Some(salt) => hasher.update(&[1]).update(salt.as_bytes()),
    };
    *hasher.finalize().as_bytes()
}

/// Name of the block that follows `parent` and holds `tokens` (always a full block).
pub(super) fn block_hash(parent: &BlockHash, tokens: &[u32]) -> BlockHash {
    /// Larger blocks use the incremental hasher, whose set-up costs more than hashing a small
    /// block.
    const ONE_SHOT_TOKENS: usize = 64;
    // A fixed byte order: names are equal on all machines, as an exchange of blocks would need.
    if tokens.len() <= ONE_SHOT_TOKENS {
        let mut bytes = [0u8; 32 + 4 * ONE_SHOT_TOKENS];
        bytes[..32].copy_from_slice(parent);
        for (bytes, token) in bytes[32..].chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        return *blake3::hash(&bytes[..32 + 4 * tokens.len()]).as_bytes();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(parent);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Names and their blocks; at most one block per name.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    blocks: HashMap<BlockHash, u32, ahash::RandomState>,
}

impl PrefixIndex {
    /// An index whose table does not grow while at most `capacity` blocks exist.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { blocks: HashMap::with_capacity_and_hasher(capacity, ahash::RandomState::default()) }
    }

    pub(super) fn get(&self, hash: &BlockHash) -> Option<u32> {
        self.blocks.get(hash).copied()
    }

    /// Names a block unless another block has the name; returns whether the name was given.
    pub(super) fn insert(&mut self, hash: BlockHash, block: u32) -> bool {
        match self.blocks.entry(hash) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(block);
                true
            }
        }
    }

    pub(super) fn remove(&mut self, hash: &BlockHash) {
        self.blocks.remove(hash);
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_salt_class_parent_and_tokens() {
        let long: Vec<u32> = (0..200).collect();
        let mut longer_tail = long.clone();
        longer_tail[199] += 1;
        let mut names = vec![];
        for expanded in [false, true] {
            for salt in [None, Some(""), Some("a"), Some("b")] {
                let root = root_hash(expanded, salt);
                let child = block_hash(&root, &[1, 2]);
                names.extend([root, child, block_hash(&root, &[2, 1]), block_hash(&child, &[1, 2])]);
                names.extend([block_hash(&root, &long), block_hash(&root, &longer_tail)]);
            }
        }
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert_eq!(root_hash(true, Some("a")), root_hash(true, Some("a")));
    }

    #[test]
    fn the_first_block_of_a_name_keeps_it() {
        let mut index = PrefixIndex::with_capacity(4);
        let name = root_hash(false, None);
        assert!(index.insert(name, 3));
        assert!(!index.insert(name, 5));
        assert_eq!(index.get(&name), Some(3));
        index.remove(&name);
        assert_eq!((index.get(&name), index.len()), (None, 0));
    }
}
