//! Figures and reasons that observed modules pass in.

use std::time::Duration;

/// Sums over all steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSeconds {
    /// Number of steps.
    pub steps: u64,
    /// Parts of a step and their total seconds.
    pub parts: Vec<(&'static str, f64)>,
}

/// Time of each part of one engine step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Choosing the batch.
    pub schedule: Duration,
    /// The forward pass.
    pub forward: Duration,
    /// From logits to tokens.
    pub sample: Duration,
    /// Applying tokens to sequences and blocks.
    pub commit: Duration,
    /// Handing tokens to their streams.
    pub emit: Duration,
}

impl StepTimes {
    /// The whole step.
    pub fn total(&self) -> Duration {
        self.schedule + self.forward + self.sample + self.commit + self.emit
    }
}

/// Why a running sequence goes back to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// Another one needs its KV blocks.
    Blocks,
    /// A client has nothing running.
    Fairness,
}

/// A client's request at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientFigures {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Of these, such from the prefix cache.
    pub cached_tokens: usize,
    /// Of these, such that stand for images.
    pub image_tokens: usize,
    /// Tokens of the replies.
    pub reply_tokens: usize,
    /// Of these, such of reasoning.
    pub reasoning_tokens: usize,
    /// From the request to its first token.
    pub ttft: Option<Duration>,
}

/// Load of the engine at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences in the queue.
    pub waiting: usize,
    /// Prompt tokens in the queue.
    pub waiting_tokens: usize,
    /// Sequences that run.
    pub running: usize,
    /// KV blocks held by sequences.
    pub used_blocks: usize,
    /// KV blocks held by the prefix cache alone, and freed when a sequence needs them.
    pub cached_blocks: usize,
    /// KV blocks of the cache, free ones included.
    pub total_blocks: usize,
}

impl Load {
    /// Share of the KV blocks that sequences hold, 0 to 1.
    pub(super) fn cache_usage(&self) -> f64 {
        self.used_blocks as f64 / self.total_blocks.max(1) as f64
    }
}

/// Figures of a sequence at its end. Times of stages that the sequence never reached are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestFigures {
    /// From arrival to the end.
    pub e2e: Duration,
    /// From arrival to the sequence's first step.
    pub queue: Option<Duration>,
    /// From that step to the first reply token.
    pub prefill: Option<Duration>,
    /// From the first reply token to the last.
    pub decode: Option<Duration>,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: usize,
    /// Reply tokens.
    pub generation_tokens: usize,
    /// Times the sequence was preempted.
    pub preemptions: usize,
}

/// One finding of the guard; names come from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardFigures {
    /// Kind of the finding.
    pub kind: &'static str,
    /// Phase of the reply.
    pub phase: &'static str,
    /// Action taken.
    pub action: &'static str,
    /// Tokens of the unit, 0 = no unit.
    pub period: u32,
    /// Copies of the unit.
    pub copies: u32,
    /// Tokens discarded.
    pub discarded: u32,
}

/// A draft that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftFigures {
    /// Drafted tokens.
    pub drafted: usize,
    /// The first of them, that became part of the reply.
    pub accepted: usize,
}

/// Reason why a sequence had no draft in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftSkip {
    /// With so many sequences in the step no draft could pay.
    Load,
    /// The guess was not likely enough for what its rows cost.
    Cost,
    /// The draft model failed, and was switched off.
    Fault,
}

/// Reason for a sequence's end, in the words of vLLM's `finished_reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishLabel {
    /// Stop token or stop string.
    Stop,
    /// `max_tokens` or the model's length.
    Length,
    /// Client disconnected, request cancelled, or deadline passed.
    Abort,
    /// The engine failed on the sequence.
    Error,
    /// Ended because the reply repeated itself.
    Repetition,
}

/// Reason for a refusal at the engine's door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// The queue holds its limit of requests.
    QueueRequests,
    /// The queue holds its limit of prompt tokens.
    QueueTokens,
    /// The queue holds the client's share of requests.
    QueueShare,
}

/// What the cache of compiled kernels did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelFigures {
    /// Kernels found in memory.
    pub memory: u64,
    /// Kernels read from the cache directory.
    pub disk: u64,
    /// Kernels compiled because they were absent.
    pub compiled: u64,
    /// Kernels compiled because their entry was damaged.
    pub rebuilt: u64,
    /// Entries deleted to make room.
    pub evicted: u64,
    /// Time of all reads, added over threads.
    pub read_seconds: f64,
    /// Time of all compilations, added over threads.
    pub compile_seconds: f64,
}

/// Facts of the engine that are fixed at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Backend name.
    pub backend: String,
    /// Tokens per KV block.
    pub block_size: usize,
    /// KV blocks of the cache.
    pub num_blocks: usize,
    /// KV element type.
    pub cache_dtype: String,
    /// Whether prompts share cached prefixes.
    pub prefix_caching: bool,
    /// Most tokens of prompt and reply.
    pub max_model_len: usize,
}

/// Where blocks are that left the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvTier {
    /// Host memory.
    Host,
    /// A folder.
    Disk,
}

/// Why a block was lost before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLoss {
    /// Too many waited to be written.
    Queue,
    /// The disk refused it.
    Write,
    /// Its file was not what it should be.
    File,
}

/// Reason why an image was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageRefusal {
    /// A kind of source that is not read.
    Source,
    /// Bytes that are no whole image of a known format.
    Format,
    /// More images, bytes or pixels than allowed.
    Limit,
    /// A remote image that could not be had.
    Remote,
    /// Time was up.
    Timeout,
}
