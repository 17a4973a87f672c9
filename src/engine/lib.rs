//! The step loop on one OS thread, its async handle, and the folders that it drives: the scheduler, KV events,
//! and the tiers of blocks beyond the device.
//!
//! Knows the model and the sampler. Does not know text, HTTP, or which backend it runs.

#![forbid(unsafe_code)]

pub mod scheduler;
pub mod kv_events;
pub mod kv_tiers;
mod clock;
mod constrained;
mod delivery;
mod drafting;
mod draws;
mod forward_input;
mod guarded;
mod guess_sources;
pub mod handle;
mod inbox;
mod kept_rows;
mod live;
mod load;
mod model_drafts;
mod pictures;
mod place;
mod request;
mod sequence_drafts;
mod sequences;
mod settlement;
mod step;
mod step_loop;
mod tiers;
mod trials;
mod warm_up;

pub use handle::{EngineFacts, EngineHandle, EngineSnapshot, SequenceStream};
pub use pictures::VisionFacts;
pub use request::{EngineEvent, EngineRequest, Media, Speculation, SubmitError};
pub use step_loop::spawn;
pub use warm_up::{MeasuredSteps, measure_steps, warm_up};

pub use crate::scheduler::Share;
pub use perigee_decoding::sampling::TokenLogprobs;
