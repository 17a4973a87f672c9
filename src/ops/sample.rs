//! Sampling as an operation: parameters are uploaded, tokens are returned.

use super::{Row, SeqSlot, TokenId};
use perigee_decoding::sampling::TokenMask;

/// Sampling input of a sequence that is fixed while it holds a slot.
#[derive(Debug, Clone, Copy)]
pub struct SlotSpec<'a> {
    /// Prompt tokens, counted for the repetition penalty; empty where no penalty is on.
    pub prompt: &'a [u32],
    /// Reply tokens so far, counted for all penalties; empty where no penalty is on.
    pub reply: &'a [u32],
    /// Whether tokens are counted from now on.
    pub counts: bool,
    /// Added to the logits of these ids.
    pub logit_bias: &'a [(u32, f32)],
    /// Ids that end the reply; used by [`Rule::EndIfRankBelow`].
    pub stops: &'a [u32],
}

/// Rule that selects the token of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, u32)]
pub enum Rule {
    /// Drawn from the ids that mask, temperature and nucleus leave.
    Draw,
    /// This token, independent of the row.
    Forced(TokenId),
    /// The likeliest of the slot's stops if fewer than this many ids have a larger logit, else
    /// drawn.
    EndIfRankBelow(u32),
    /// No draw: this token is scored.
    Score(TokenId),
}

/// One row to sample from. Plain data: the same bytes on host and device.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct SampleRow {
    /// Seed of the noise, together with `position`.
    pub seed: u64,
    /// Index of the token in its reply.
    pub position: u64,
    /// Row of the logits given to [`super::Backend::sample`].
    pub row: Row,
    /// Slot of the sequence; the penalties count its tokens.
    pub slot: SeqSlot,
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass, in (0, 1].
    pub top_p: f32,
    /// Least probability relative to the best one's, in [0, 1].
    pub min_p: f32,
    /// Most likely tokens kept; 0 is off.
    pub top_k: u32,
    /// Repetition penalty; 1 is off.
    pub repetition: f32,
    /// Presence penalty; 0 is off.
    pub presence: f32,
    /// Frequency penalty; 0 is off.
    pub frequency: f32,
    /// Index into [`SampleRows::masks`], or [`SampleRow::NO_MASK`].
    pub mask: u32,
    /// Range of [`SampleRows::forbidden`].
    pub forbidden: (u32, u32),
    /// Rule that selects the token.
    pub rule: Rule,
    /// Number of most likely ids reported beside the token's own logprob;
    /// [`SampleRow::NO_LOGPROBS`]: no logprob is reported.
    pub top: u32,
}

impl SampleRow {
    /// Value of `mask` for a row without a mask.
    pub const NO_MASK: u32 = u32::MAX;
    /// Value of `top` for a row without logprobs.
    pub const NO_LOGPROBS: u32 = u32::MAX;
    /// Largest `top`; a shorter row is reported whole.
    pub const MAX_TOP: u32 = u32::MAX - 1;
}

/// Rows to sample from, and the lists that they refer to.
#[derive(Debug, Clone, Default)]
pub struct SampleRows<'a> {
    /// One entry per row, in the order of the outcomes.
    pub rows: Vec<SampleRow>,
    /// Masks: sets of ids that may be drawn.
    pub masks: Vec<&'a TokenMask>,
    /// Ids that are not drawn, flat.
    pub forbidden: Vec<u32>,
}

/// Outcome of a sampled or scored row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowOutcome {
    /// The token; 0 where `flags` mark the row as broken.
    pub token: TokenId,
    /// Logprob of the token in the raw row, natural logarithm; 0 if no logprob was requested.
    pub logprob: f32,
    /// Rank of the token in the raw row, 1 = most likely; 0 if no logprob was requested.
    pub rank: u32,
    /// Findings about the row.
    pub flags: RowFlags,
    /// Range of [`Outcomes::top`].
    pub top: (u32, u32),
}

/// Findings about a row of logits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowFlags(pub u32);

impl RowFlags {
    /// A value is NaN or +inf.
    pub const NON_FINITE: Self = Self(1);
    /// All values are equal.
    pub const FLAT: Self = Self(2);
    /// [`Rule::EndIfRankBelow`] selected a stop.
    pub const ENDED: Self = Self(4);

    /// Whether these flags include all of `other`.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Union of the flags.
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Outcomes of one or several [`super::Backend::sample`] calls, in the order of their rows.
#[derive(Debug, Clone, Default)]
pub struct Outcomes {
    /// One outcome per row.
    pub rows: Vec<RowOutcome>,
    /// Most likely ids and their logprobs, best first, flat.
    pub top: Vec<(TokenId, f32)>,
}

impl Outcomes {
    /// Empties the lists and keeps their memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.top.clear();
    }

    /// The most likely ids of a row.
    pub fn top_of(&self, row: &RowOutcome) -> &[(TokenId, f32)] {
        &self.top[row.top.0 as usize..row.top.1 as usize]
    }
}

/// Identifies a [`super::Backend::sample`] call whose outcomes are not fetched yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);
