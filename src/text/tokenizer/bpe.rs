//! Byte-pair merging of one piece of text: the neighbours whose union has the lowest rank join, the
//! leftmost first, until no union has a rank. This is the rule of the released encoder, applied to
//! its ranks directly.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Longest piece, in bytes, that is merged by a scan for the lowest rank per merge; on longer
/// pieces that would be quadratic.
const SHORT_BYTES: usize = 128;
/// No token.
const NONE: u32 = u32::MAX;

/// The base tokens of a vocabulary, indexed by their bytes.
pub(super) struct Bpe {
    bytes: Vec<u8>,
    /// Token `rank` is `bytes[offsets[rank]..offsets[rank + 1]]`.
    offsets: Vec<u32>,
    /// Open addressing: upper half of the hash, and rank + 1; 0 is free. At most half of the slots are taken.
    slots: Vec<u64>,
    longest: usize,
}

/// Buffers of one encoding, reused between pieces.
#[derive(Default)]
pub(super) struct Scratch {
    parts: Vec<(u32, u32)>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

/// A part of a long piece.
#[derive(Clone, Copy)]
struct Link {
    previous: u32,
    /// Start of the next part; the piece's length for the last part, `NONE` for a part joined to
    /// the one before it.
    next: u32,
    /// Rank of the union with the next part.
    rank: u32,
}

impl Bpe {
    /// Builds the table from tokens in rank order; every byte must have a token.
    pub(super) fn new(tokens: &[Box<[u8]>]) -> Self {
        let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
        for token in tokens {
            bytes.extend_from_slice(token);
            offsets.push(bytes.len() as u32);
        }
        let mut slots = vec![0u64; (tokens.len() * 2).next_power_of_two()];
        for (rank, token) in tokens.iter().enumerate() {
            let hash = hash(token);
            let mut slot = hash as usize & (slots.len() - 1);
            while slots[slot] != 0 {
                slot = (slot + 1) & (slots.len() - 1);
            }
            slots[slot] = (hash >> 32 << 32) | (rank as u64 + 1);
        }
        let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
        Self { bytes, offsets, slots, longest }
    }

    /// Appends the tokens of a piece.
    pub(super) fn encode(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        match self.rank(piece) {
            NONE if piece.len() <= SHORT_BYTES => self.merge_short(piece, scratch, ids),
            NONE => self.merge_long(piece, scratch, ids),
            rank => ids.push(rank),
        }
    }

    /// The token with these bytes, or `NONE`.
    #[inline]
    fn rank(&self, token: &[u8]) -> u32 {
        if token.len() > self.longest {
            return NONE;
        }
        let hash = hash(token);
        let mut slot = hash as usize & (self.slots.len() - 1);
        loop {
            let entry = self.slots[slot];
            if entry == 0 {
                return NONE;
            }
            if entry >> 32 == hash >> 32 {
                let rank = entry as u32 - 1;
                let (start, end) = (self.offsets[rank as usize], self.offsets[rank as usize + 1]);
                if &self.bytes[start as usize..end as usize] == token {
                    return rank;
                }
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    fn merge_short(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        // Start of each part and rank of its union with the next part; one more entry for the end.
        let parts = &mut scratch.parts;
        parts.clear();
        parts.extend((0..piece.len()).map(|at| {
            let rank = piece.get(at..at + 2).map_or(NONE, |pair| self.rank(pair));
            (at as u32, rank)
        }));
        parts.push((piece.len() as u32, NONE));
        let union = |parts: &[(u32, u32)], at: usize| match parts.get(at + 2) {
            Some(after) => self.rank(&piece[parts[at].0 as usize..after.0 as usize]),
            None => NONE,
        };
        loop {
            let (mut lowest, mut at) = (NONE, 0);
            for (place, &(_, rank)) in parts.iter().enumerate() {
                if rank < lowest {
                    (lowest, at) = (rank, place);
                }
            }
            if lowest == NONE {
                break;
            }
            parts.remove(at + 1);
            parts[at].1 = union(parts, at);
            if at > 0 {
                parts[at - 1].1 = union(parts, at - 1);
            }
        }
        ids.extend(parts.windows(2).map(|pair| self.rank(&piece[pair[0].0 as usize..pair[1].0 as usize])));
    }

    fn merge_long(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let (links, heap) = (&mut scratch.links, &mut scratch.heap);
        let len = piece.len() as u32;
        links.clear();
        heap.clear();
        for at in 0..len {
            let rank = piece.get(at as usize..at as usize + 2).map_or(NONE, |pair| self.rank(pair));
            links.push(Link { previous: at.wrapping_sub(1), next: at + 1, rank });
            if rank != NONE {
                heap.push(Reverse((rank, at)));
            }
        }
        while let Some(Reverse((rank, at))) = heap.pop() {
            let link = links[at as usize];
            // An entry is stale if its part was joined or has another union by now.
            if link.next == NONE || link.rank != rank {
                continue;
            }
            let joined = link.next;
            let after = links[joined as usize].next;
            links[joined as usize].next = NONE;
            links[at as usize].next = after;
            if after < len {
                links[after as usize].previous = at;
            }
            let mut renew = |links: &mut Vec<Link>, at: u32| {
                let next = links[at as usize].next;
                let rank = match next < len {
                    true => self.rank(&piece[at as usize..links[next as usize].next as usize]),
                    false => NONE,
                };
                links[at as usize].rank = rank;
                if rank != NONE {
                    heap.push(Reverse((rank, at)));
                }
            };
            renew(links, at);
            let previous = link.previous;
            if previous != NONE {
                renew(links, previous);
            }
        }
        let mut at = 0;
        while at < len {
            let next = links[at as usize].next;
            ids.push(self.rank(&piece[at as usize..next as usize]));
            at = next;
        }
    }
}

/// A hash of few instructions for short keys. Adversarial text cannot slow it down: the table's
/// longest probe bounds every look-up.
#[inline]
fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        hash = (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    }
    let mut word = 0;
    for &byte in chunks.remainder() {
        word = word << 8 | u64::from(byte);
    }
    hash = (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    // The upper bits are the mixed ones.
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bytes, and a few longer tokens in an order that makes merging greedy in the wrong places.
    fn bpe() -> Bpe {
        let mut tokens: Vec<Box<[u8]>> = (0..=255u8).map(|byte| [byte].into()).collect();
        for token in ["bc", "ab", "aa", "aaaa", "abc", "cd", "bcd", "abab"] {
            tokens.push(token.as_bytes().into());
        }
        Bpe::new(&tokens)
    }

    #[test]
    fn the_lowest_rank_joins_first() {
        let bpe = bpe();
        let mut scratch = Scratch::default();
        for (text, expected) in [
            ("abc", &[260][..]),
            ("abcd", &[260, 100]),
            ("aaaaa", &[259, 97]),
            ("aaaaaa", &[259, 258]),
            ("abab", &[263]),
            ("xyz", &[120, 121, 122]),
        ] {
            let mut ids = Vec::new();
            bpe.encode(text.as_bytes(), &mut scratch, &mut ids);
            assert_eq!(ids, expected, "{text}");
        }
    }

    #[test]
    fn long_and_short_pieces_merge_alike() {
        let bpe = bpe();
        let (mut scratch, mut rng) = (Scratch::default(), fastrand::Rng::with_seed(1));
        for _ in 0..2_000 {
            let piece: Vec<u8> = (0..rng.usize(1..90)).map(|_| b'a' + rng.u8(..5)).collect();
            let (mut short, mut long) = (Vec::new(), Vec::new());
            bpe.merge_short(&piece, &mut scratch, &mut short);
            bpe.merge_long(&piece, &mut scratch, &mut long);
            assert_eq!(short, long, "{piece:?}");
        }
    }
}
