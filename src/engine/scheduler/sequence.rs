//! The scheduler's record of one sequence.

use super::batch::{Chunk, LogitsNeed};
use super::cache_change::NamedBlock;
use super::config::Limits;
use super::prefix_index::{BlockHash, block_hash, content_root};
use super::queue::Share;
use perigee_decoding::guard::RowFault;
use perigee_ops::{BlockId, SeqSlot};

/// Identity of a sequence, unique for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Reason of a sequence's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token was sampled: its id.
    StopToken(u32),
    /// The client ended the sequence (a stop string was found in the text).
    Stopped,
    /// `max_tokens` or the model's length was reached.
    Length,
    /// The client disconnected or cancelled.
    Aborted,
    /// The sequence's deadline passed.
    Deadline,
    /// The engine failed on the sequence.
    Error,
    /// The reply repeats itself without end.
    Repetition,
    /// The logits are not finite numbers; the cached values may not be finite either and are not
    /// shared.
    NumericFault(RowFault),
}

/// Content of a picture, as a name: a hash of everything that decides its rows.
pub type MediaHash = [u8; 32];

/// Prompt tokens that stand for a picture. Their ids are all the same; the picture is what tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaSpan {
    /// Position of the first.
    pub start: usize,
    /// Number of tokens, at least 1.
    pub len: usize,
    /// The picture.
    pub hash: MediaHash,
}

impl MediaSpan {
    /// First position behind the tokens.
    pub fn end(&self) -> usize {
        self.start + self.len
    }
}

/// A sequence as the engine adds it to the queue.
#[derive(Debug, Clone)]
pub struct NewSequence {
    /// Identity, not in use by another live sequence.
    pub id: SeqId,
    /// Prompt token ids, at least one.
    pub prompt: std::sync::Arc<[u32]>,
    /// Upper bound on reply tokens.
    pub max_tokens: u32,
    /// Scheduling priority among the sequences of its client; lower runs first, ties by arrival.
    pub priority: i32,
    /// The client's claim to service; `None` = no clients are told apart.
    pub share: Option<Share>,
    /// Arrival, microseconds on the engine's clock.
    pub arrival_us: u64,
    /// Deadline, microseconds on the engine's clock.
    pub deadline_us: Option<u64>,
    /// Prefix-cache salt: sequences share cached blocks only with an equal salt.
    pub cache_salt: Option<String>,
    /// Whether every prompt position needs logits (no cached block may then be skipped).
    pub prompt_logits: bool,
    /// Pictures in the prompt, in order. With any, the sequence is held until [`super::Scheduler::release`].
    pub media: std::sync::Arc<[MediaSpan]>,
}

/// A sequence that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Id of the sequence; the scheduler no longer knows it.
    pub seq: SeqId,
    /// Reason of the end.
    pub reason: FinishReason,
    /// Reply tokens at the end.
    pub reply_len: usize,
}

/// Order of sequences: priority, then arrival, then order of `add`. The smallest runs first and is
/// preempted last.
pub(super) type Rank = (i32, u64, u64);

/// Phase of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// In the queue, holding no blocks.
    Waiting,
    /// Running; tokens of the prompt, or tokens known from before a preemption, are not computed
    /// yet.
    Prefill,
    /// Running; computes the token sampled last.
    Decode,
}

/// Positions of a chunk that is planned and not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) start: usize,
    pub(super) len: usize,
}

/// The scheduler's record of a sequence.
///
/// Invariants: `computed < known()` (the row of the last known token gives the next token), the
/// block table covers the computed tokens, and a partly filled last block is private.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) rank: Rank,
    pub(super) share: Option<Share>,
    /// Its lane of the queue.
    pub(super) lane: usize,
    pub(super) phase: Phase,
    /// Settled tokens: prompt, then reply.
    pub(super) tokens: Vec<u32>,
    /// Sampled tokens behind `tokens` whose values are not on the host yet.
    pub(super) unsettled: usize,
    /// Slot of its sampling state; set while the sequence runs.
    pub(super) seq_slot: Option<SeqSlot>,
    pub(super) prompt_len: usize,
    /// Cut to what fits.
    pub(super) max_tokens: usize,
    pub(super) deadline_us: Option<u64>,
    /// Whether prompt positions use the expanded form; decided by the prompt's length alone.
    pub(super) expanded: bool,
    /// Name from which the block names are chained.
    pub(super) root: BlockHash,
    /// Names of the leading full blocks, computed on demand.
    pub(super) hashes: Vec<BlockHash>,
    /// Names of their contents, computed where changes of the cache are noted.
    pub(super) contents: Vec<BlockHash>,
    pub(super) salt: Option<std::sync::Arc<str>>,
    /// Leading blocks of the table that were offered to the prefix index.
    pub(super) published: usize,
    pub(super) block_table: Vec<BlockId>,
    /// Leading tokens whose keys and values are in the blocks.
    pub(super) computed: usize,
    pub(super) prompt_logits: bool,
    pub(super) media: std::sync::Arc<[MediaSpan]>,
    /// Prompt tokens that must be cached when the sequence starts: the pictures before are not at hand.
    pub(super) media_from: usize,
    /// Cached content is on its way to memory: the sequence is held until it has come.
    pub(super) fetching: bool,
    /// Prompt positions whose logits were delivered.
    pub(super) logits_delivered: usize,
    pub(super) planned: Option<Planned>,
    /// Guesses of the next tokens, for the next plan.
    pub(super) draft: Vec<u32>,
    /// The prompt was held back once to be computed whole.
    pub(super) deferred: bool,
    /// Prompt tokens found in the prefix cache; set at the first admission.
    pub(super) cached_tokens: Option<usize>,
}

impl Sequence {
    /// Known tokens: settled and unsettled.
    pub(super) fn known(&self) -> usize {
        self.tokens.len() + self.unsettled
    }

    /// Whether the unsettled token is the last one by length: no further row is computed.
    pub(super) fn awaits_its_end(&self) -> bool {
        self.unsettled > 0 && self.known() - self.prompt_len >= self.max_tokens
    }

    /// Known tokens that are not computed yet, at least 1.
    pub(super) fn remaining(&self) -> usize {
        self.known() - self.computed
    }

    pub(super) fn reply_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Blocks to add so that the table covers `len` tokens.
    pub(super) fn blocks_missing(&self, len: usize, block_size: usize) -> usize {
        len.div_ceil(block_size).saturating_sub(self.block_table.len())
    }

    /// Leading full blocks among `len` tokens whose content does not depend on the sequence that
    /// computes them. Reply positions of an expanded prompt are absorbed, but would be expanded in
    /// a prompt that quotes them, so they are not shared.
    pub(super) fn shareable_blocks(&self, len: usize, block_size: usize) -> usize {
        let len = if self.expanded { len.min(self.prompt_len) } else { len };
        len / block_size
    }

    /// Leading full blocks that need not be computed if they exist: never the one with the last
    /// known token, and none with a prompt position whose logits are not delivered yet.
    pub(super) fn reusable_blocks(&self, limits: &Limits) -> usize {
        if !limits.prefix_caching {
            return 0;
        }
        let mut len = self.tokens.len() - 1;
        if self.prompt_logits && self.logits_delivered < self.prompt_len {
            len = len.min(self.logits_delivered);
        }
        self.shareable_blocks(len, limits.block_size)
    }

    /// Name of block `index`, whose tokens are all known; missing names before it are computed
    /// first.
    pub(super) fn block_hash(&mut self, index: usize, block_size: usize) -> BlockHash {
        while self.hashes.len() <= index {
            let parent = self.hashes.last().unwrap_or(&self.root);
            let hash = self.chained(parent, self.hashes.len(), block_size);
            self.hashes.push(hash);
        }
        self.hashes[index]
    }

    /// What block `index`, of this name, stands for.
    pub(super) fn named_block(&mut self, name: BlockHash, index: usize, block_size: usize) -> NamedBlock {
        while self.contents.len() <= index {
            let root;
            let parent = match self.contents.last() {
                Some(parent) => parent,
                None => {
                    root = content_root(self.salt.as_deref());
                    &root
                }
            };
            let content = self.chained(parent, self.contents.len(), block_size);
            self.contents.push(content);
        }
        let tokens = index * block_size..(index + 1) * block_size;
        NamedBlock {
            name,
            content: self.contents[index],
            parent: index.checked_sub(1).map(|before| self.contents[before]),
            has_media: self.media.iter().any(|span| span.start < tokens.end && span.end() > tokens.start),
            tokens: self.tokens[tokens].into(),
            salt: self.salt.clone(),
        }
    }

    fn chained(&self, parent: &BlockHash, index: usize, block_size: usize) -> BlockHash {
        let tokens = index * block_size..(index + 1) * block_size;
        let media = self.media.iter().filter(|span| tokens.contains(&span.start));
        block_hash(parent, &self.tokens[tokens.clone()], tokens.start, media)
    }

    /// The chunk of the next `len` tokens, with its logits need.
    pub(super) fn chunk(&self, len: usize) -> Chunk {
        let end = self.computed + len;
        let samples = end == self.known() && self.known() - self.prompt_len < self.max_tokens;
        let logits = if self.prompt_logits
            && self.computed < self.prompt_len
            && self.computed >= self.logits_delivered
        {
            LogitsNeed::All
        } else if samples {
            LogitsNeed::Last
        } else {
            LogitsNeed::None
        };
        let expanded_until = if self.expanded { self.prompt_len } else { 0 };
        let (seq, start, draft) = (self.id, self.computed, Vec::new());
        Chunk { seq, start, len, draft, expanded_until, logits, samples, void: false }
    }

    /// Upper bound on the tokens of one chunk: a chunk of a prompt with logits lies wholly before
    /// or wholly after the end of the delivered logits, so that no row is delivered twice.
    pub(super) fn chunk_limit(&self) -> usize {
        let until_delivered = self.logits_delivered.saturating_sub(self.computed);
        if until_delivered > 0 && self.logits_delivered < self.prompt_len {
            until_delivered
        } else {
            self.remaining()
        }
    }
}
