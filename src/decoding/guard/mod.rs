//! Tells degenerate output from honest repetition and decides on the response.
//!
//! One [`Guard`] per sequence is fed with committed tokens. Its state is a function of those tokens
//! and of the request's options alone, without clock or randomness: a reply at temperature 0 stays
//! the same reply under any load. A rewound guard equals a guard that never saw the discarded
//! tokens.
//!
//! ```text
//! period      distances that repeat, exactly and with noise
//! thresholds  how long a repetition must be to be a loop
//! phase       free text, structured text
//! licence     what the request permits of it
//! words       where the words of the request stand
//! policy      one verdict per token: deliver, hold, rescue, stop
//! nudge       what changes after a rescue
//! vocabulary  facts about tokens, by id
//! numeric     logit rows that are not a distribution
//! ```
//!
//! Knows token ids and their bytes. Does not know languages, the engine, or the client.

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
mod words;

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
