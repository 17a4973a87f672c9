//! Drafts: guesses of a reply's next tokens, checked by the model in one step.
//!
//! A step computes a sequence's last token and the tokens of its draft behind it. The engine then
//! samples the rows in order, each with the state that the tokens before it leave, and goes on to
//! the next row while the sampled token is the drafted one. A draft therefore never changes a
//! reply: it decides how many of its tokens one step yields.
//!
//! Pure: no clock, no threads, no model. [`Occurrences`] finds earlier places like the end of a
//! text, [`Guess`] makes a draft of them, [`Replies`] keeps finished replies to look in,
//! [`Acceptance`] estimates how much of a draft will hold, and [`StepCost`] decides how much of it
//! is worth its rows.

mod acceptance;
pub mod config;
mod guess;
mod occurrences;
mod prediction;
mod replies;
mod step_cost;

pub use acceptance::{Acceptance, SequenceAcceptance};
pub use config::{Config, Method};
pub use guess::Guess;
pub use occurrences::Occurrences;
pub use prediction::{Predicted, Prediction};
pub use replies::Replies;
pub use step_cost::StepCost;
