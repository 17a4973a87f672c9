//! The plan value of one step.

use super::{Name, SeqId};
use perigee_ops::{AttentionForm, BlockId};

/// Which rows of a chunk need logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsNeed {
    /// No row: a middle chunk of a prompt.
    None,
    /// The last row: a token is sampled from it, and from the rows of the draft behind it.
    Last,
    /// Every row (prompt logprobs); a token is sampled from the last row iff `Chunk::samples`. Each
    /// prompt position is in exactly one such chunk, even when the sequence is preempted and
    /// computed again.
    All,
}

/// Tokens of one sequence in one step: positions `start..start + len` of its known tokens (prompt,
/// then reply).
///
/// The tokens are `scheduler.tokens(seq)[start..start + len]`, the physical blocks
/// `scheduler.block_table(seq)`. A position at the end of `tokens(seq)` belongs to the unsettled
/// token. The tokens of `draft` follow: they are computed too, and count as computed when the
/// tokens before them have been sampled ([`super::Scheduler::plan_drafted`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Sequence of the tokens.
    pub seq: SeqId,
    /// First position computed in this step.
    pub start: usize,
    /// Number of tokens, at least 1, without the draft.
    pub len: usize,
    /// Guesses of the tokens behind the known ones; empty unless the chunk samples.
    pub draft: Vec<u32>,
    /// Positions below this use `AttentionForm::Expanded`, the others `Absorbed`: the prompt's length for long prompts, 0 for short ones.
    pub expanded_until: usize,
    /// Rows that need logits.
    pub logits: LogitsNeed,
    /// Whether the chunk ends the known tokens of a sequence that is to get another token: a token
    /// is sampled from its last row. The engine clears the flag before `advance` where no token
    /// could be sampled; the row is then computed again.
    pub samples: bool,
    /// The sequence was ended, rewound or planned anew between plan and `advance`: the rows are not
    /// used.
    pub void: bool,
}

impl Chunk {
    /// First position after the chunk, where its draft begins.
    pub fn end(&self) -> usize {
        self.start + self.len
    }

    /// Attention form of the query at `position`.
    pub fn form(&self, position: usize) -> AttentionForm {
        if position < self.expanded_until { AttentionForm::Expanded } else { AttentionForm::Absorbed }
    }
}

/// A sequence that left the queue for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The admitted sequence.
    pub seq: SeqId,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
    /// Time from arrival to admission, microseconds.
    pub waited_us: u64,
}

/// What one step computes. Empty when nothing can run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// At most one chunk per sequence; decoding sequences first.
    pub chunks: Vec<Chunk>,
    /// Sequences put back into the queue for lack of blocks; their blocks are already free, their tokens are kept.
    pub preempted: Vec<SeqId>,
    /// How many of these made way for a client with nothing running; the others gave blocks.
    pub made_way: usize,
    /// Sequences that left the queue for the first time.
    pub admitted: Vec<Admission>,
    /// Sequences that left the queue, the first time or again: each has a new slot, whose state
    /// must be opened.
    pub started: Vec<SeqId>,
    /// Named blocks that get other content, if [`super::Scheduler::note_evictions`] was called. Until the step is computed, or
    /// `loads` are written, they hold the old one.
    pub evicted: Vec<(Name, BlockId)>,
    /// Loadable contents and the blocks that they must be in before the step is computed.
    pub loads: Vec<(Name, BlockId)>,
}

impl Batch {
    /// Rows of the step: one per token, drafted ones included.
    pub fn num_tokens(&self) -> usize {
        self.chunks.iter().map(|c| c.len + c.draft.len()).sum()
    }

    /// Empties all lists and keeps their memory.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.preempted.clear();
        self.made_way = 0;
        self.admitted.clear();
        self.started.clear();
        self.evicted.clear();
        self.loads.clear();
    }
}
