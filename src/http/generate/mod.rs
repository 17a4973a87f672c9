//! The request walk without HTTP: from a valid request to a stream of reply events.
//!
//! Knows text and the engine's handle. Does not know hyper, wire formats or devices.

mod block;
mod compiling;
pub mod config;
mod defaults;
mod door;
mod error;
mod fetching;
mod generator;
mod guarding;
mod policy;
mod reply;
mod request;
mod sight;
mod stopping;
mod timeline;
#[cfg(test)]
pub(crate) mod test_data;

pub use block::ReasoningSwitch;
pub use config::{Budget, ReasoningField};
pub use defaults::{DefaultsError, SamplingDefaults};
pub use door::{Engine, TokenStream};
pub use error::GenerateError;
pub use fetching::{FetchImages, Fetched};
pub use generator::{Generator, ModelText};
pub use guarding::{GuardChoice, GuardPlan};
pub use perigee_engine::{EngineFacts, EngineSnapshot, Share, TokenLogprobs};
pub use perigee_text::{ArgumentsForm, ReplyPiece, ToolCall};
pub use policy::{Applied, PolicyRefusal, SamplingMode, SamplingPolicy};
pub use reply::{Finish, FullReply, Replies, ReplyEvent, ReplyPart, Usage};
pub use request::{
    Calls, ChatPrompt, ChatReply, EncodedPrompt, GenerateRequest, Prompt, Truncate, TruncateSide,
};
pub use sight::{ImageData, ImageFile, ImageInput, PlacedImage, Sight};
pub use timeline::{CallTime, Finding, Timeline};
