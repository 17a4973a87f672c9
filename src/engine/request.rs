//! A sequence's request to the engine, and the events that answer it.

use std::sync::Arc;
use std::time::Instant;

use crate::scheduler::{FinishReason, MediaHash, Share};
use perigee_decoding::guard;
use perigee_decoding::sampling::{SamplingParams, TokenConstraint, TokenLogprobs};
use perigee_decoding::speculation::Predicted;
use perigee_ops::Picture;

/// A picture in a prompt.
#[derive(Debug, Clone)]
pub struct Media {
    /// Position of its first token; the others follow.
    pub start: usize,
    /// Hash of all that decides its rows.
    pub hash: MediaHash,
    /// Pixels of the picture.
    pub picture: Arc<Picture>,
}

impl Media {
    /// First position behind its tokens.
    pub fn end(&self) -> usize {
        self.start + self.picture.num_tokens()
    }
}

/// One sequence to run.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// Prompt token ids, at least one, all below the vocabulary size (the handle checks both).
    pub prompt: Arc<[u32]>,
    /// Sampling parameters, already validated.
    pub sampling: SamplingParams,
    /// Scheduling priority; lower runs first.
    pub priority: i32,
    /// The client's claim to service; `None` = no clients are told apart.
    pub share: Option<Share>,
    /// Time after which the sequence ends with `Deadline`.
    pub deadline: Option<Instant>,
    /// Prefix-cache salt: sequences share cached blocks only with an equal salt.
    pub cache_salt: Option<String>,
    /// Options of the loop guard; `None` = no guard.
    pub guard: Option<guard::Options>,
    /// Grammar of the reply; `None` = unconstrained.
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// Drafts of the reply's tokens.
    pub speculation: Speculation,
    /// Pictures in the prompt, in order; together they fit [`super::VisionFacts::hold`].
    pub media: Vec<Media>,
}

/// A request's part in speculation. Changes the time of the reply, never its tokens.
#[derive(Debug, Clone)]
pub struct Speculation {
    /// Whether tokens are drafted, if the operator has drafts switched on.
    pub wanted: bool,
    /// Tokens that the client expects in the reply, each below the vocabulary size.
    pub prediction: Option<Arc<Predicted>>,
}

impl Default for Speculation {
    fn default() -> Self {
        Self { wanted: true, prediction: None }
    }
}

/// What a sequence's stream yields, in order.
#[derive(Debug, Clone)]
pub enum EngineEvent {
    /// The sequence left the queue. `cached_tokens` of its prompt came from the prefix cache.
    Started {
        /// Prompt tokens found in the prefix cache, not computed.
        cached_tokens: usize,
    },
    /// Logprobs of the next prompt token. The first one has none and is left out: `prompt.len() - 1`
    /// events in total.
    PromptLogprobs(TokenLogprobs),
    /// One new reply token. A stop token is delivered too; whether its text is shown is the caller's choice.
    Token {
        /// Token id, below the vocabulary size.
        id: u32,
        /// Present when requested.
        logprobs: Option<TokenLogprobs>,
    },
    /// The guard found a loop and acted. Tokens that it removed were never in the stream.
    Guard(Box<guard::Event>),
    /// Drafted tokens of the reply so far; comes after each step with a draft, and before
    /// `Finished` if there were any.
    Speculated {
        /// Drafted tokens that are part of the reply.
        accepted: usize,
        /// Drafted tokens that are not.
        rejected: usize,
    },
    /// The end; no event follows.
    Finished(FinishReason),
}

/// Reason of a refused submission.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("{waiting} requests are waiting, limit {limit}")]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
        /// `scheduler.max_queue_len`, or tokens for `max_queue_tokens`.
        limit: usize,
        /// Estimate of the time until a place is free, seconds.
        retry_after_s: u32,
    },
    /// The client has its share of the queue.
    #[error("{waiting} requests of this key are waiting, and the queue has {free} free places")]
    ShareFull {
        /// Requests of the client in the queue.
        waiting: usize,
        /// Free places: a client may have as many waiting as there are.
        free: usize,
        /// Estimate of the time until a place is free, seconds.
        retry_after_s: u32,
    },
    /// The server is shutting down.
    #[error("the server is draining")]
    Draining,
    /// Prompt and `max_tokens` exceed the model's length.
    #[error("prompt of {prompt_tokens} tokens leaves no room in a context length of {max_model_len}")]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Longest sequence, prompt and reply tokens.
        max_model_len: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The first such id.
        id: u32,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// The engine thread ended.
    #[error("the engine has stopped: {reason}")]
    Dead {
        /// Reason of the engine's death.
        reason: String,
    },
}
