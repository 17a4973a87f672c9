//! Twin of `kernels/sampler.cu`: draws, commits and counts.

use bytemuck::{Pod, Zeroable};

use crate::{Arch, Driver, Kernel, LaunchShape, Limits, Stream};
use perigee_ops::OpError;

/// Threads of a block of `sampler_draw` and `sampler_commit`.
const THREADS: u32 = 1024;
/// Threads of a block of `sampler_count`; a thread counts one token.
const COUNT_THREADS: u32 = 256;
/// Most likely ids that a row can ask for.
pub const MAX_TOP: u32 = 256;
/// Largest vocabulary: the mass of so many weights of 1 is below 2^63.
pub const MAX_VOCAB: usize = 1 << 18;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "sampler",
    text: include_str!("../../../kernels/sampler.cu"),
    functions: &["sampler_draw", "sampler_commit", "sampler_count"],
    archs: &Arch::ALL,
    options: |_| &[],
    // A block of 1024 threads on a multiprocessor of 65,536 registers.
    limits: Limits { registers: 64, local_memory: false },
    shared_bytes: |_| 0,
};

/// `SamplerRow::rule`: the rule that selects the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowRule {
    /// Drawn.
    Draw = 0,
    /// `value` is the token.
    Given = 1,
    /// The most likely stop if fewer than `value` ids are more likely, else drawn.
    EndIfRankBelow = 2,
}

/// Bit of [`Row::options`]: the counts of the slot are read.
pub const PENALISES: u32 = 1;
/// Bit of [`Row::options`]: only ids of the mask are drawn.
pub const MASKED: u32 = 2;
/// Bit of [`Row::options`]: the logprob is wanted.
pub const SCORES: u32 = 4;
/// Bit of [`Row::commit`]: the token is counted.
pub const COUNTS: u32 = 1;
/// Bit of [`Row::commit`]: the token becomes the last one of its slot.
pub const SETS_LAST: u32 = 2;

/// One row to sample from, `SamplerRow` in the source. Lists are ranges of [`DrawParams::lists`], in words; ids in them
/// are below V.
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Row {
    /// Seed of the noise, together with `position`.
    pub seed: u64,
    /// Index of the token in its reply.
    pub position: u64,
    /// Row of the logits.
    pub row: u32,
    /// Its counts are read, its state is written by [`commit`].
    pub slot: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// In (0, 1].
    pub top_p: f32,
    /// In [0, 1].
    pub min_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// Read with [`PENALISES`].
    pub repetition: f32,
    /// Read with [`PENALISES`].
    pub presence: f32,
    /// Read with [`PENALISES`].
    pub frequency: f32,
    /// [`RowRule`].
    pub rule: u32,
    /// The token or the rank of the rule.
    pub value: u32,
    /// [`PENALISES`], [`MASKED`], [`SCORES`].
    pub options: u32,
    /// [`COUNTS`], [`SETS_LAST`].
    pub commit: u32,
    /// Pairs (id, f32 bits), equal ids adjacent.
    pub bias: u32,
    /// Number of pairs.
    pub num_biases: u32,
    /// Ids, of equal logits the first one wins.
    pub stops: u32,
    /// Number of stops.
    pub num_stops: u32,
    /// Ids.
    pub forbidden: u32,
    /// Number of forbidden ids.
    pub num_forbidden: u32,
    /// Bit `id % 32` of word `id / 32` allows `id`; ids beyond the last word are not allowed.
    pub mask: u32,
    /// Number of words.
    pub num_mask_words: u32,
    /// The drawn id where no allowed id has a finite logit.
    pub mask_first: u32,
    /// Most likely ids wanted, at most [`MAX_TOP`] and V.
    pub top: u32,
    /// Place of the first one in [`DrawParams::top`].
    pub top_first: u32,
}

/// Outcome of a row, `SamplerOutcome` in the source. The logprob of a logit x is `x - (max + ln(sum))`; without
/// [`SCORES`] `sum` to `rank` are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Outcome {
    /// Of e^(logit - max).
    pub sum: f64,
    /// +inf in a row without a finite logit.
    pub max: f32,
    /// Of the token, NaN replaced by -inf, +inf by `f32::MAX`; -inf for an id beyond V.
    pub logit: f32,
    /// Of the token, from 1.
    pub rank: u32,
    /// The token.
    pub token: u32,
    /// `RowFlags`.
    pub flags: u32,
    /// Of the row.
    pub slot: u32,
    /// Of the row.
    pub commit: u32,
    /// Unused.
    pub padding: u32,
}

/// One of the most likely ids, `SamplerTop` in the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Top {
    /// The id.
    pub id: u32,
    /// NaN replaced by -inf, +inf by `f32::MAX`, -0 by 0.
    pub logit: f32,
}

/// Parameter of `sampler_draw`. Addresses are of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DrawParams {
    /// `[.., I]` f32.
    pub logits: u64,
    /// `[S, I]` f32.
    pub work: u64,
    /// `[Q, I]` u32.
    pub counts: u64,
    /// `[S]` [`Row`].
    pub rows: u64,
    /// Words of the rows' lists.
    pub lists: u64,
    /// `[S]` [`Outcome`].
    pub outcomes: u64,
    /// [`Top`] of the rows, flat.
    pub top: u64,
    /// V.
    pub vocab: u32,
    /// F.
    pub first: u32,
    /// I.
    pub ids: u32,
    /// From one row or slot to the next, in ids: I.
    pub stride: u32,
}

/// Parameter of `sampler_commit`. Addresses are of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CommitParams {
    /// `[S]` [`Outcome`].
    pub outcomes: u64,
    /// `[Q, I]` u32.
    pub counts: u64,
    /// `[Q]` u32.
    pub last_tokens: u64,
    /// S.
    pub num_rows: u32,
    /// F.
    pub first: u32,
    /// I.
    pub ids: u32,
    /// Unused.
    pub padding: u32,
}

/// Parameter of `sampler_count`. Addresses are of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CountParams {
    /// `[num_tokens]` u32; ids from V on are skipped.
    pub tokens: u64,
    /// `[I]` u32, of one slot.
    pub counts: u64,
    /// Number of tokens.
    pub num_tokens: u32,
    /// F.
    pub first: u32,
    /// I.
    pub ids: u32,
    /// [`Change`].
    pub change: u32,
}

/// `SamplerCountParams::change`: how tokens change the counts of their slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The tokens are in the prompt.
    Prompt = 0,
    /// The tokens are added to the reply.
    Reply = 1,
    /// The tokens are removed from the reply.
    Removed = 2,
}

/// Whether the kernels take rows of `vocab` logits.
pub fn takes(vocab: usize) -> bool {
    (1..=MAX_VOCAB).contains(&vocab)
}

/// Launches `sampler_draw` for `num_rows` rows.
pub fn draw<D: Driver>(stream: &mut Stream<D>, num_rows: usize, params: &DrawParams) -> Result<(), OpError> {
    let shape = LaunchShape { grid: [num_rows as u32, 1, 1], threads: THREADS, shared_bytes: 0 };
    stream.launch("sampler_draw", shape, params)
}

/// Launches `sampler_commit`.
pub fn commit<D: Driver>(stream: &mut Stream<D>, params: &CommitParams) -> Result<(), OpError> {
    let shape = LaunchShape { grid: [1, 1, 1], threads: THREADS, shared_bytes: 0 };
    stream.launch("sampler_commit", shape, params)
}

/// Launches `sampler_count`.
pub fn count<D: Driver>(stream: &mut Stream<D>, params: &CountParams) -> Result<(), OpError> {
    let blocks = params.num_tokens.div_ceil(COUNT_THREADS);
    let shape = LaunchShape { grid: [blocks, 1, 1], threads: COUNT_THREADS, shared_bytes: 0 };
    stream.launch("sampler_count", shape, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vocabularies_of_the_family_are_taken() {
        for (vocab, expected) in [(163_840, true), (1, true), (262_144, true), (262_145, false), (0, false)] {
            assert_eq!(takes(vocab), expected, "{vocab}");
        }
    }
}
