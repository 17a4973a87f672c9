//! Tells degenerate output from honest repetition, and says what to do about it.
//!
//! One [`Guard`] per sequence is fed with committed tokens. Everything is a function of those
//! tokens and of the options the request came with: no clock, no randomness, so a reply at
//! temperature 0 stays the same reply whatever else runs. A guard that is rewound equals one that
//! never went further.
//!
//! ```text
//! period      which distances repeat, exactly and with noise
//! thresholds  how long a repetition must be to be a loop
//! phase       free text, structured text
//! licence     what the request permits of it
//! policy      one verdict per token: deliver, hold, rescue, stop
//! nudge       what changes after a rescue
//! vocabulary  facts about tokens, by id
//! numeric     rows of logits that are no distribution
//! ```
//!
//! Knows token ids and their bytes. Does not know a language, the engine, or who asked.

mod all_periods;
pub mod config;
mod event;
mod licence;
mod nudge;
mod numeric;
mod options;
mod period;
mod phase;
mod policy;
#[cfg(test)]
mod tests;
mod thresholds;
mod vocabulary;

pub use all_periods::{AllPeriods, PatternRule};
pub use config::{Config, Mode};
pub use event::{Action, Event, Kind};
pub use licence::{Licence, Permit, Roles};
pub use numeric::{RowFault, is_flat};
pub use options::Options;
pub use period::{Periods, Repeat};
pub use phase::{Markers, Phase, PhaseTracker};
pub use policy::{Guard, Verdict};
pub use thresholds::{exact_threshold, hold_start};
pub use vocabulary::Vocabulary;
