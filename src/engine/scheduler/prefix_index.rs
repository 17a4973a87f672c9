//! Maps the name of a full block to the block that holds its content.
//!
//! A block's name is a 32-byte blake3 hash chained over everything that decides its content: the
//! salt, the attention class, every token and every picture from position 0 to the block's end. Equal names
//! therefore mean equal content, even between tenants that try to construct a collision, and a name
//! stays valid however long its block is kept.

use std::collections::HashMap;

use super::sequence::MediaSpan;

/// Name of a full block: chained over salt, class and all tokens up to its end.
pub(super) type BlockHash = [u8; 32];

/// First name of every chain of one (salt, class). `None` and `Some("")` are different salts.
pub(super) fn root_hash(expanded: bool, salt: Option<&str>) -> BlockHash {
    chain_root(if expanded { b"expanded" } else { b"absorbed" }, salt)
}

/// First name of every chain of contents under one salt. Contents have no class: who looks for a prefix knows none.
pub(super) fn content_root(salt: Option<&str>) -> BlockHash {
    chain_root(b"content", salt)
}

fn chain_root(kind: &[u8], salt: Option<&str>) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kind);
    match salt {
        None => hasher.update(&[0]),
        Some(salt) => hasher.update(&[1]).update(salt.as_bytes()),
    };
    *hasher.finalize().as_bytes()
}

/// Name of the block that follows `parent` and holds `tokens` (always a full block) from position `start` on. `media` are the pictures
/// whose tokens begin in the block: one that goes on from an earlier block is in the name of `parent`.
pub(super) fn block_hash<'a>(
    parent: &BlockHash,
    tokens: &[u32],
    start: usize,
    media: impl Iterator<Item = &'a MediaSpan>,
) -> BlockHash {
    /// Larger blocks use the incremental hasher, whose set-up costs more than hashing a small
    /// block.
    const ONE_SHOT_TOKENS: usize = 64;
    // A fixed byte order: names are equal on all machines, as an exchange of blocks would need.
    let mut media = media.peekable();
    if tokens.len() <= ONE_SHOT_TOKENS && media.peek().is_none() {
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
    // All blocks have the same number of tokens, so that nothing else has a name of this length.
    for span in media {
        hasher.update(&((span.start - start) as u64).to_le_bytes());
        hasher.update(&(span.len as u64).to_le_bytes());
        hasher.update(&span.hash);
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
    fn a_name_depends_on_pictures_and_their_places() {
        let root = root_hash(false, None);
        let span = |start, len, byte| MediaSpan { start, len, hash: [byte; 32] };
        let spans = [span(16, 4, 1), span(17, 4, 1), span(16, 5, 1), span(16, 4, 2)];
        let mut names: Vec<_> =
            spans.iter().map(|span| block_hash(&root, &[7; 16], 16, [span].into_iter())).collect();
        names.push(block_hash(&root, &[7; 16], 16, [].iter()));
        names.push(block_hash(&root, &[7; 16], 16, [span(16, 4, 1), span(20, 4, 2)].iter()));
        names.push(block_hash(&root, &[7; 16], 16, [span(16, 4, 2), span(20, 4, 1)].iter()));
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn a_name_depends_on_salt_class_parent_and_tokens() {
        let block_hash = |parent: &BlockHash, tokens: &[u32]| block_hash(parent, tokens, 0, [].iter());
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
