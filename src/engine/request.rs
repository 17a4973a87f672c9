//! What goes into the engine and what comes out, per sequence.

use std::sync::Arc;
use std::time::Instant;

use crate::guard;
use crate::sampling::{SamplingParams, TokenConstraint, TokenLogprobs};
use crate::scheduler::FinishReason;

/// One sequence to run.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// Prompt token ids, at least one, all below the vocabulary size (the door checks both).
    pub prompt: Arc<[u32]>,
    /// Validated parameters.
    pub sampling: SamplingParams,
    /// Lower runs first.
    pub priority: i32,
    /// Latest finish.
    pub deadline: Option<Instant>,
    /// Prefix-cache salt.
    pub cache_salt: Option<String>,
    /// How the reply is watched for loops; `None` = it is not.
    pub guard: Option<guard::Options>,
    /// What the reply must be; `None` = anything.
    pub constraint: Option<Box<dyn TokenConstraint>>,
}

/// What a sequence's stream yields, in order.
#[derive(Debug, Clone)]
pub enum EngineEvent {
    /// The sequence left the queue. `cached_tokens` of its prompt came from the prefix cache.
    Started {
        /// Prompt tokens not computed.
        cached_tokens: usize,
    },
    /// Logprobs of prompt tokens, in order over one or several events; the first prompt token has none and is left out, so
    /// in all there are `prompt.len() - 1` entries.
    PromptLogprobs(Vec<TokenLogprobs>),
    /// One new reply token. A stop token is delivered too; whether its text is shown is the caller's choice.
    Token {
        /// Its id.
        id: u32,
        /// Present when asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The guard found something, and did something about it. Tokens that it took back were never in the stream.
    Guard(Box<guard::Event>),
    /// The end; nothing follows.
    Finished(FinishReason),
}

/// Why a submission was refused at the door.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("{waiting} requests are waiting, limit {limit}")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// `scheduler.max_queue_len` (or tokens for `max_queue_tokens`).
        limit: usize,
        /// Estimate of the time until a place is free, seconds.
        retry_after_s: u32,
    },
    /// The server is shutting down.
    #[error("the server is draining")]
    Draining,
    /// Prompt and `max_tokens` exceed the model's length.
    #[error("prompt of {prompt_tokens} tokens leaves no room in a context length of {max_model_len}")]
    TooLong {
        /// Prompt tokens.
        prompt_tokens: usize,
        /// Limit.
        max_model_len: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// The engine thread ended.
    #[error("the engine has stopped: {reason}")]
    Dead {
        /// Why.
        reason: String,
    },
}
