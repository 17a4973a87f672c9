//! Tells degenerate output from honest repetition, and says what to do about it.
//!
//! One [`Guard`] per sequence is fed with committed tokens. Everything is a function of those tokens and of the options the
//! request came with: no clock, no randomness, so a reply at temperature 0 stays the same reply whatever else runs. A guard
//! that is rewound equals one that never went further.
//!
//! ```text
//! period   which distances repeat, exactly and with noise      phase    thinking, prose, code, table, json
//! novelty  how much of the text is new                         shapes   what a token looks like, by id
//! tiers    thresholds                                          licence  was this repetition asked for?
//! watch    what is under way, and what was said of it          numeric  rows that are no distribution
//! places   where each of the few that are followed lies        policy   one verdict per token: deliver, hold, rescue, stop
//! ```
//!
//! Knows token ids. Does not know text, the engine, or who asked.

mod all_periods;
pub mod config;
mod event;
mod ladder;
mod licence;
mod novelty;
mod numeric;
mod options;
mod period;
mod phase;
mod places;
mod policy;
mod shapes;
mod tiers;
mod watch;
#[cfg(test)]
mod tests;

pub use all_periods::{AllPeriods, PatternRule};
pub use config::{Config, Mode, TierAction};
pub use event::{Action, Event, Kind};
pub use ladder::Nudge;
pub use licence::{Allowance, Licence, Permit};
pub use novelty::Novelty;
pub use numeric::{RowFault, is_flat};
pub use options::Options;
pub use period::{Periods, Repeat};
pub use phase::{Markers, Phase, PhaseTracker};
pub use policy::{Guard, Verdict};
pub use shapes::{Shape, TokenShapes};
pub use tiers::{hard_threshold, hold_start, noisy_threshold, phase_multiplier};
