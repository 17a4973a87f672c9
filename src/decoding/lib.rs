//! From a row of logits to a token: the sampler, the guard that tells degenerate output from honest
//! repetition, and drafts of further tokens without a network.
//!
//! Knows no clock, no text and no engine. Randomness and time are arguments.

pub mod sampling;
pub mod guard;
pub mod speculation;
