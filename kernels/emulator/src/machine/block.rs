//! A block and its warps.

use super::memory::Region;
use super::pending::Pending;
use super::race::{BlockWatch, WarpWatch};
use super::spin::Spin;
use crate::execute::Registers;
use crate::matrix::tensor_memory::TensorMemory;

/// Lanes of a warp that are at the same instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) state: State,
}

/// Whether a group can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// A wait failed or lanes are missing: other groups run first.
    Parked,
    /// An attempt failed or the lanes sleep: other groups run first, then it can run.
    Yielded,
    /// At a barrier of the block.
    Barrier(u32),
}

/// A warp.
#[derive(Debug)]
pub(crate) struct Warp {
    /// Index in the block.
    pub(crate) index: u32,
    pub(crate) registers: Registers,
    pub(crate) groups: Vec<Group>,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    /// Instructions so far.
    pub(crate) executed: u64,
    /// Local memory of all lanes, one after the other.
    pub(crate) local: Region,
    /// Copies that were issued and not yet waited for.
    pub(crate) pending: Pending,
    /// Phase of the cluster's barrier in which the warp arrived last.
    pub(crate) cluster_phase: u64,
    /// What race detection knows, if it is on.
    pub(crate) watch: Option<Box<WarpWatch>>,
    /// Whether it only waits.
    pub(crate) spin: Spin,
    /// Turns of its block in which it stands still.
    pub(crate) rest: u32,
    /// The same because it waits for something that did not come.
    pub(crate) doze: u32,
    /// Strong loads in a row, without a store between them, that found what their registers held: looks of a loop that waits.
    pub(crate) looks: u32,
    /// Lanes that arrived in that phase.
    pub(crate) cluster_arrived: u32,
}

impl Warp {
    /// The group to run: the lowest pc of those that are ready, parked ones if there is no other.
    /// Groups at the same pc become one.
    pub(crate) fn choose(&mut self) -> Option<usize> {
        let ready = |group: &Group| group.state == State::Ready;
        if !self.groups.iter().any(ready) {
            for group in &mut self.groups {
                if matches!(group.state, State::Parked | State::Yielded) {
                    group.state = State::Ready;
                }
            }
        }
        let pc = self.groups.iter().filter(|group| ready(group)).map(|group| group.pc).min()?;
        let at = self.groups.iter().position(|group| group.pc == pc && ready(group))?;
        let mut mask = 0;
        let mut index = 0;
        self.groups.retain(|group| {
            let same = group.pc == pc && !matches!(group.state, State::Barrier(_));
            if same {
                mask |= group.mask;
            }
            index += 1;
            !same || index - 1 == at
        });
        let at = self.groups.iter().position(|group| group.pc == pc && ready(group))?;
        self.groups[at].mask = mask;
        Some(at)
    }

    /// Whether nothing but barriers of the block holds it, or nothing at all is left.
    pub(crate) fn is_blocked(&self) -> bool {
        self.groups.iter().all(|group| matches!(group.state, State::Barrier(_)))
    }
}

/// A named barrier of a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Barrier {
    /// Threads that end it; `None`: all that have not exited.
    pub(crate) expected: Option<u32>,
    pub(crate) arrived: u32,
    /// Threads whose predicate was true, and all that brought one.
    pub(crate) votes: u32,
    pub(crate) voters: u32,
    /// Destinations of `bar.red`: warp, lanes, register slot, predicate, operation.
    pub(crate) results: Vec<(u32, u32, u32, u32, crate::program::BarrierReduction)>,
}

/// A block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) index: [u32; 3],
    pub(crate) shared: Region,
    /// `None` while a warp runs.
    pub(crate) warps: Vec<Option<Box<Warp>>>,
    pub(crate) barriers: [Barrier; 16],
    /// Threads that have not exited.
    pub(crate) live: u32,
    /// Tensor memory, from its first use on.
    pub(crate) tensor_memory: Option<Box<TensorMemory>>,
    /// What race detection knows, if it is on.
    pub(crate) watch: Option<Box<BlockWatch>>,
}

impl Block {
    pub(crate) fn is_done(&self) -> bool {
        self.live == 0
    }
}
