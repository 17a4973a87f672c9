//! Reasons why a valid request got no reply, or only part of one.

use perigee_engine::SubmitError;
use perigee_telemetry::ImageRefusal;
use perigee_text::grammar::GrammarError;

/// Errors that end the walk early.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// Too many requests or prompt tokens wait.
    #[error("the queue is full: {waiting} are waiting, limit {limit}; try again in {retry_after_s} s")]
    QueueFull {
        /// Requests (or tokens) that wait.
        waiting: usize,
        /// Most that may wait.
        limit: usize,
        /// Estimated time until a place is free, seconds.
        retry_after_s: u32,
    },
    /// The client's share of the queue is taken.
    #[error(
        "{waiting} requests of this key are waiting, as many as the queue has free places for all keys ({free}); \
         try again in {retry_after_s} s"
    )]
    ShareFull {
        /// Requests of the client that wait.
        waiting: usize,
        /// Free places.
        free: usize,
        /// Estimated time until a place is free, seconds.
        retry_after_s: u32,
    },
    /// An empty queue would refuse it too: no later time is better.
    #[error(
        "{count} {unit} in one request are more than the {limit} that an empty queue takes ({setting}); \
         send it in parts"
    )]
    TooLargeForQueue {
        /// The request field with the prompts or the copies.
        field: &'static str,
        /// What is counted.
        unit: &'static str,
        /// How many the request has.
        count: usize,
        /// Most that an empty queue takes.
        limit: usize,
        /// The setting behind the limit.
        setting: &'static str,
    },
    /// No new requests are taken.
    #[error("the server is shutting down and takes no new requests")]
    Draining,
    /// A token id of the request is not in the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The id outside the vocabulary.
        id: u32,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// The prompt alone, or prompt and reply together, exceed the context.
    #[error(
        "this model's maximum context length is {max_model_len} tokens, but the prompt has {prompt_tokens} tokens{}; \
         shorten the prompt{}",
        match .max_tokens { Some(m) => format!(" and {m} are asked for in the reply"), None => String::new() },
        if .max_tokens.is_some() { " or ask for a shorter reply" } else { "" }
    )]
    TooLong {
        /// Prompt tokens.
        prompt_tokens: usize,
        /// Reply tokens asked for; `None` if the request named no limit.
        max_tokens: Option<u32>,
        /// Most tokens of prompt and reply together.
        max_model_len: usize,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// The chat template refused the messages.
    #[error("the chat template cannot render these messages: {0}")]
    Template(String),
    /// The reply cannot be constrained as asked.
    #[error("{reason}")]
    Grammar {
        /// The request field behind the constraint.
        field: &'static str,
        /// The reason for the refusal.
        reason: GrammarError,
    },
    /// The shortest reply that the grammar allows exceeds the token limit.
    #[error(
        "`{field}` asks for a reply that takes at least {needs} tokens, but only {allowed} are allowed; \
         ask for a longer reply, or for less in it"
    )]
    TooFewTokens {
        /// The request field behind the constraint.
        field: &'static str,
        /// Tokens of the shortest reply found.
        needs: usize,
        /// Reply tokens of the request.
        allowed: usize,
    },
    /// The answer would hold more logprobs than the limit.
    #[error(
        "{top} alternatives for each of {positions} tokens are more than {limit} in one answer; \
         ask for fewer of them, or for a shorter reply"
    )]
    TooManyLogprobs {
        /// The request field that asked for the logprobs.
        field: &'static str,
        /// Alternatives per token.
        top: u32,
        /// Tokens that would carry alternatives.
        positions: usize,
        /// Most alternatives in one answer.
        limit: usize,
    },
    /// An image of the request cannot be read, or is more than allowed.
    #[error("{reason}")]
    Image {
        /// Its place in the request's body.
        place: String,
        /// The reason for the refusal.
        reason: String,
        /// The kind of reason, for metrics.
        refusal: ImageRefusal,
    },
    /// The model sees no images.
    #[error("this model sees no images: {reason}")]
    Blind {
        /// Place of the first image in the request's body.
        place: String,
        /// What it lacks.
        reason: &'static str,
    },
    /// The images of other requests fill the memory for them.
    #[error(
        "the images of other requests left no room for {limit_s} s (vision.decode_memory_bytes); try again soon"
    )]
    ImagesWait {
        /// `vision.decode_timeout_s`.
        limit_s: f64,
    },
    /// The grammars of other requests are being compiled.
    #[error(
        "the grammars of other requests left no turn to compile this one for {limit_s} s \
         (structured_output.max_compiling); try again soon"
    )]
    GrammarsWait {
        /// `structured_output.compile_timeout_s`.
        limit_s: u32,
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
    /// The engine aborted the sequence because the server is shutting down.
    #[error("the reply was cut off: the server is shutting down")]
    Aborted,
    /// The engine failed on this sequence.
    #[error("the engine failed on this request")]
    EngineFailed,
    /// The model's logits were not a distribution.
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
            SubmitError::ShareFull { waiting, free, retry_after_s } => {
                Self::ShareFull { waiting, free, retry_after_s: retry_after_s.clamp(1, 60) }
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
