//! From a row of logits to a token. Pure: randomness is a function of (seed, position, id); no
//! clock and no global state.

pub mod config;
mod bad_words;
mod block_rule;
pub mod rules;
mod params;
mod constraint;
mod history;
mod noise;
mod row;
mod exp;
mod widest;
mod logprobs;
mod filter;
mod sampler;
mod shard;

pub use bad_words::BadWords;
pub use block_rule::{BlockGuide, BlockRule};
pub use constraint::{ConstraintBroken, Taken, TokenConstraint, TokenMask};
pub use history::History;
pub use logprobs::{Logprobs, TokenLogprobs};
pub use params::{LIMITS, MAX_LOGIT_BIAS, Range, SamplingError, SamplingParams};
pub use sampler::{Draw, NoFiniteLogit, Sampler, Survey};
pub use shard::{Chosen, Shard, ShardedRow, Wanted};
