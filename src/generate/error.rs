//! Why a valid request got no (whole) reply.

use crate::engine::SubmitError;
use crate::grammar::GrammarError;

/// What can end the walk early.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// Too many requests wait.
    #[error("the queue is full: {waiting} are waiting, limit {limit}; try again in {retry_after_s} s")]
    QueueFull {
        /// Requests (or tokens) that wait.
        waiting: usize,
        /// Limit.
        limit: usize,
        /// Estimate of the time until a place is free, seconds.
        retry_after_s: u32,
    },
    /// No new requests are taken.
    #[error("the server is shutting down and takes no new requests")]
    Draining,
    /// A token id of the request is not in the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// Prompt, or prompt and reply together, do not fit.
    #[error(
        "this model's maximum context length is {max_model_len} tokens, but the prompt has {prompt_tokens} tokens{}; \
         shorten the prompt{}",
        match .max_tokens { Some(m) => format!(" and {m} are asked for in the reply"), None => String::new() },
        if .max_tokens.is_some() { " or ask for a shorter reply" } else { "" }
    )]
    TooLong {
        /// Prompt tokens.
        prompt_tokens: usize,
        /// Reply tokens asked for, when the request said so.
        max_tokens: Option<u32>,
        /// Most tokens of prompt and reply.
        max_model_len: usize,
    },
    /// The prompt is no token long.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// The chat template refused the messages.
    #[error("the chat template cannot render these messages: {0}")]
    Template(String),
    /// The reply cannot be constrained as asked.
    #[error("{reason}")]
    Grammar {
        /// The request's field that asked for it.
        field: &'static str,
        /// Why not.
        reason: GrammarError,
    },
    /// Nothing that the grammar allows is as short as the reply must be.
    #[error(
        "`{field}` asks for a reply that takes at least {needs} tokens, but only {allowed} are allowed; \
         ask for a longer reply, or for less in it"
    )]
    TooFewTokens {
        /// The request's field that asked for it.
        field: &'static str,
        /// Tokens the shortest reply found takes.
        needs: usize,
        /// Reply tokens of the request.
        allowed: usize,
    },
    /// The answer would hold more logprobs than one may.
    #[error(
        "{top} alternatives for each of {positions} tokens are more than {limit} in one answer; \
         ask for fewer of them, or for a shorter reply"
    )]
    TooManyLogprobs {
        /// The request's field that asked for them.
        field: &'static str,
        /// Alternatives per token.
        top: u32,
        /// Tokens that would have them.
        positions: usize,
        /// Most of them in one answer.
        limit: usize,
    },
    /// The text could not be tokenized.
    #[error("the prompt cannot be tokenized: {0}")]
    Tokenize(String),
    /// The request's deadline passed before its reply was complete.
    #[error("the request was not finished within its time limit of {limit_s} s")]
    Deadline {
        /// `server.request_timeout_s`.
        limit_s: f64,
    },
    /// The engine gave the sequence up because it is shutting down.
    #[error("the reply was cut off: the server is shutting down")]
    Aborted,
    /// The engine failed on this sequence.
    #[error("the engine failed on this request")]
    EngineFailed,
    /// The model's numbers broke.
    #[error(
        "the model computed values that are no numbers for this request; nothing of it is kept, trying again may help"
    )]
    NumericFault,
    /// The engine ended without finishing the sequence.
    #[error("the engine stopped before the reply was complete")]
    EngineGone,
}

impl From<SubmitError> for GenerateError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull { waiting, limit, retry_after_s } => {
                Self::QueueFull { waiting, limit, retry_after_s: retry_after_s.clamp(1, 60) }
            }
            SubmitError::Draining => Self::Draining,
            SubmitError::TooLong { prompt_tokens, max_model_len } => {
                Self::TooLong { prompt_tokens, max_tokens: None, max_model_len }
            }
            SubmitError::UnknownToken { id, vocab_size } => Self::UnknownToken { id, vocab_size },
            SubmitError::Dead { .. } => Self::EngineGone,
        }
    }
}
