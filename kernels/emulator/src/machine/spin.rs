//! Warps that only wait: loops whose state comes round while nothing changes around them.
//!
//! A warp whose registers and lanes are as they were some turns ago, with no change in between that it could
//! see, is in a loop that ends only by a change. No warp that counts, or looks at a clock, is taken for one.

use super::block::{Group, Warp};
use crate::execute::Registers;

/// Turns without a change before the state is kept: most waits are shorter.
const PATIENCE: u32 = 4;

/// What is known of a warp that may be waiting.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Changes of the machine, which the turns below have not seen grow.
    changes: u64,
    turns: u32,
    /// The state at the last turn whose number was a power of two (Brent's way to find a cycle).
    state: Option<Box<(Registers, Vec<Group>)>>,
    is_round: bool,
}

impl Spin {
    /// Whether the warp waits for a change.
    pub(crate) fn is_stuck(&self, changes: u64) -> bool {
        self.is_round && self.changes == changes
    }
}

impl Warp {
    /// Looks at the warp at the end of a turn.
    pub(crate) fn end_turn(&mut self, changes: u64) {
        if self.spin.changes != changes {
            self.spin = Spin { changes, ..Spin::default() };
            return;
        }
        let spin = &mut self.spin;
        spin.turns = spin.turns.saturating_add(1);
        let same = |state: &(Registers, Vec<Group>)| state.1 == self.groups && state.0 == self.registers;
        if spin.state.as_deref().is_some_and(same) {
            spin.is_round = true;
        } else if spin.turns >= PATIENCE && spin.turns.is_power_of_two() {
            spin.state = Some(Box::new((self.registers.clone(), self.groups.clone())));
        }
    }
}
