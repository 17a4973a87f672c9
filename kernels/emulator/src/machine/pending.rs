//! Transfers that were issued and may not have happened yet.

use crate::transfer::reduce::Reduction;
use crate::transfer::tensor_map::{Element, TensorMap};
use crate::transfer::tile;

/// A transfer with all its operands read.
#[derive(Debug, Clone)]
pub(crate) enum Transfer {
    /// `cp.async`: `read` bytes from global memory, zeros behind them.
    Copy { shared: u32, global: u64, bytes: u32, read: u32 },
    /// Bulk copy into shared memory of the blocks of the mask, with the barrier at the same offset.
    Load { shared: u32, global: u64, bytes: u32, mbarrier: u32, blocks: Blocks },
    /// Bulk copy between blocks: source, destination and barrier as cluster addresses.
    Between { destination: u32, source: u32, bytes: u32, mbarrier: u32 },
    /// Bulk copy or reduction to global memory.
    Store { global: u64, shared: u32, bytes: u32, reduction: Option<(Reduction, Element)> },
    /// Box of a tensor into shared memory.
    TensorLoad {
        map: Box<TensorMap>,
        mode: tile::Access,
        coordinates: Vec<i32>,
        shared: u32,
        mbarrier: u32,
        blocks: Blocks,
    },
    /// Shared memory to a box of a tensor.
    TensorStore {
        map: Box<TensorMap>,
        mode: tile::Access,
        coordinates: Vec<i32>,
        shared: u32,
        reduction: Option<Reduction>,
    },
}

impl Transfer {
    /// Bytes that it moves to one destination.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(match self {
            Self::Copy { bytes, .. }
            | Self::Load { bytes, .. }
            | Self::Between { bytes, .. }
            | Self::Store { bytes, .. } => *bytes,
            Self::TensorLoad { map, mode, .. } | Self::TensorStore { map, mode, .. } => map.box_bytes(*mode),
        })
    }
}

/// Destination blocks of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// The block that the address names.
    One,
    /// Blocks of the cluster by rank.
    Mask {
        mask: u16,
        /// Whether the barrier of each may be that of the other block of its pair.
        pairs: bool,
    },
}

/// A transfer in a group of a thread.
#[derive(Debug, Clone)]
pub(crate) struct Grouped<T> {
    pub(crate) lane: u32,
    pub(crate) group: u32,
    pub(crate) transfer: T,
}

/// Transfers of a warp's threads by group, and the number of groups that each thread committed.
#[derive(Debug)]
pub(crate) struct Groups<T = Transfer> {
    pub(crate) open: Vec<Grouped<T>>,
    pub(crate) committed: [u32; 32],
}

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Self { open: Vec::new(), committed: [0; 32] }
    }
}

impl<T: Clone> Groups<T> {
    /// Adds a transfer to a thread's current group.
    pub(crate) fn push(&mut self, lane: u32, transfer: T) {
        self.open.push(Grouped { lane, group: self.committed[lane as usize], transfer });
    }

    /// Ends the current group of these threads.
    pub(crate) fn commit(&mut self, mask: u32) {
        for lane in 0..32 {
            self.committed[lane] += mask >> lane & 1;
        }
    }

    /// Takes out the transfers that these threads must see done when at most `groups` of their
    /// youngest groups stay open; all of them for `None`, uncommitted ones included.
    pub(crate) fn due(&mut self, mask: u32, groups: Option<u32>) -> Vec<T> {
        let committed = self.committed;
        let mut due = Vec::new();
        self.open.retain(|grouped| {
            let lane = grouped.lane as usize;
            let waits = mask >> lane & 1 == 1
                && groups.is_none_or(|groups| grouped.group.saturating_add(groups) < committed[lane]);
            if waits {
                due.push(grouped.transfer.clone());
            }
            !waits
        });
        due
    }
}

/// What a warp issued and did not wait for.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// `cp.async`.
    pub(crate) copies: Groups,
    /// Bulk stores and reductions.
    pub(crate) stores: Groups,
}
