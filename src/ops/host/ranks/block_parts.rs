//! Where ranks that divide the positions of a sequence have which: of each block, rank `r` of `world` holds the `r`-th part.
//!
//! The rank of a position thus depends on the position alone and not on the block's id, and the bits of a result do not depend on which
//! blocks were free.

use super::share::Share;
use crate::{KvSlot, OpError};

/// A rank's part of every block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockParts {
    share: Share,
    /// Positions of a block of all ranks.
    block_size: usize,
}

impl BlockParts {
    /// The parts of a rank.
    ///
    /// Errors: [`OpError::Indivisible`] where the parts would differ in size.
    pub fn new(block_size: usize, share: Share) -> Result<Self, OpError> {
        match block_size.is_multiple_of(share.world) {
            true => Ok(Self { share, block_size }),
            false => Err(OpError::Indivisible {
                op: "allocate_cache",
                what: "tokens of a block (kv_cache.block_size)".into(),
                size: block_size,
                start: 0,
                end: block_size.div_ceil(share.world),
                unit: share.world,
            }),
        }
    }

    /// Rank that holds these parts.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Positions of a block of all ranks.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Positions of a block on each rank.
    pub fn part(&self) -> usize {
        self.block_size / self.share.world
    }

    /// The rank that holds a slot, and the slot's index on that rank.
    pub fn owner(&self, slot: u32) -> (usize, u32) {
        let (block, offset) = (slot as usize / self.block_size, slot as usize % self.block_size);
        (offset / self.part(), (block * self.part() + offset % self.part()) as u32)
    }

    /// This rank's slot for one of all ranks; [`KvSlot::PAD`] where another rank holds it.
    pub fn own_slot(&self, slot: KvSlot) -> KvSlot {
        if slot == KvSlot::PAD {
            return slot;
        }
        match self.owner(slot.0) {
            (rank, own) if rank == self.share.rank => KvSlot(own),
            _ => KvSlot::PAD,
        }
    }

    /// Number of the positions `0..len` that this rank holds.
    pub fn num_held(&self, len: usize) -> usize {
        self.num_held_by(self.share.rank, len)
    }

    /// Number of the positions `0..len` that a rank holds.
    pub fn num_held_by(&self, rank: usize, len: usize) -> usize {
        let part = self.part();
        len / self.block_size * part + (len % self.block_size).saturating_sub(rank * part).min(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_has_one_owner_and_is_counted_by_it() {
        for (block_size, world) in [(16, 2), (16, 4), (64, 8), (3, 3), (8, 1)] {
            let parts = |rank| BlockParts::new(block_size, Share { rank, world }).unwrap();
            let mut held = vec![0; world];
            for position in 0..3 * block_size + 5 {
                let (rank, slot) = parts(0).owner(position as u32);
                // With the identity as block table, a rank's slots are filled in order.
                assert_eq!(slot as usize, held[rank]);
                held[rank] += 1;
                for (other, held) in held.iter().enumerate() {
                    assert_eq!(parts(other).num_held(position + 1), *held);
                    let expected = if other == rank { KvSlot(slot) } else { KvSlot::PAD };
                    assert_eq!(parts(other).own_slot(KvSlot(position as u32)), expected);
                }
            }
        }
        let error = BlockParts::new(16, Share { rank: 0, world: 3 }).unwrap_err().to_string();
        assert!(error.contains("kv_cache.block_size"), "{error}");
    }
}
