//! Twin of `kernels/include/ahead.cuh`: weights that a kernel brings into the second cache for those behind it.

use bytemuck::{Pod, Zeroable};

use crate::weights::Tiled;

/// Most bytes that one kernel fetches: half of the second cache of an H100 or H200.
const MAX_BYTES: usize = 24 << 20;
/// Most rows of a step for which it pays: with more of them the memory is not idle.
pub const ROWS: usize = 8;
/// Blocks beside those of a kernel of few that fetch.
pub const BLOCKS: u32 = 64;

/// `Ahead` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Ahead {
    /// Address, a multiple of 16.
    pub from: u64,
    /// Bytes, a multiple of 16; 0: nothing.
    pub bytes: u32,
    /// Zero.
    pub padding: u32,
}

impl Ahead {
    /// Nothing.
    pub const NONE: Self = Self { from: 0, bytes: 0, padding: 0 };

    /// The first codes of weights; nothing of experts, of which a step reads some.
    pub fn of(weights: &Tiled) -> Self {
        if weights.count != 1 {
            return Self::NONE;
        }
        let bytes = usize::try_from(weights.weight.codes_stride).unwrap_or(0).min(MAX_BYTES);
        Self { from: weights.weight.codes, bytes: (bytes / 16 * 16) as u32, padding: 0 }
    }

    /// Whether there is something to fetch.
    pub fn is_some(&self) -> bool {
        self.bytes > 0
    }
}
