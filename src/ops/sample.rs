//! Sampling as an operation: plain numbers go to the device, tokens come back.

use super::{Row, SeqSlot, TokenId};
use crate::sampling::TokenMask;

/// What a sequence brings to its slot: fixed while it holds the slot.
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
    /// Ids that end the reply, for [`Rule::EndIfRankBelow`].
    pub stops: &'a [u32],
}

/// How the token of a row is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, u32)]
pub enum Rule {
    /// Drawn from what mask, temperature and nucleus leave.
    Draw,
    /// This one, whatever the row says.
    Forced(TokenId),
    /// The likeliest of the slot's stops if fewer than so many ids have a larger logit, else drawn.
    EndIfRankBelow(u32),
    /// Nothing is drawn: this token is scored.
    Score(TokenId),
}

/// One row to sample from. Plain data: the same bytes on host and device.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct SampleRow {
    /// Keys the noise, with `position`.
    pub seed: u64,
    /// Index of the token in its reply.
    pub position: u64,
    /// Row of the logits given to [`super::Backend::sample`].
    pub row: Row,
    /// The sequence whose token it is: its tokens so far are what the penalties count.
    pub slot: SeqSlot,
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass.
    pub top_p: f32,
    /// Least probability relative to the best one's.
    pub min_p: f32,
    /// Most likely tokens kept; 0 is off.
    pub top_k: u32,
    /// Repetition penalty.
    pub repetition: f32,
    /// Presence penalty.
    pub presence: f32,
    /// Frequency penalty.
    pub frequency: f32,
    /// Index into [`SampleRows::masks`], or [`SampleRow::NO_MASK`].
    pub mask: u32,
    /// Range of [`SampleRows::forbidden`].
    pub forbidden: (u32, u32),
    /// How the token is found.
    pub rule: Rule,
    /// Number of most likely ids reported beside the token's own logprob; [`SampleRow::NO_LOGPROBS`]: neither.
    pub top: u32,
}

impl SampleRow {
    /// No mask.
    pub const NO_MASK: u32 = u32::MAX;
    /// No logprob is computed.
    pub const NO_LOGPROBS: u32 = u32::MAX;
    /// Largest `top`; the whole row is reported where it is shorter.
    pub const MAX_TOP: u32 = u32::MAX - 1;
}

/// Rows to sample from, and what they refer to.
#[derive(Debug, Clone, Default)]
pub struct SampleRows<'a> {
    /// One entry per row, in the order of the outcomes.
    pub rows: Vec<SampleRow>,
    /// Sets of ids that may be drawn.
    pub masks: Vec<&'a TokenMask>,
    /// Ids that are not drawn, flat.
    pub forbidden: Vec<u32>,
}

/// What is known of a sampled or scored row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowOutcome {
    /// The token; 0 where `flags` say that the row is broken.
    pub token: TokenId,
    /// Its logprob in the raw row, natural logarithm; 0 if none was asked for.
    pub logprob: f32,
    /// Its rank in the raw row, 1 = most likely; 0 if no logprob was asked for.
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
    /// [`Rule::EndIfRankBelow`] took a stop.
    pub const ENDED: Self = Self(4);

    /// Whether all findings of `other` are among these.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// With those of `other`.
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Outcomes of one or several [`super::Backend::sample`] calls, in the order of their rows.
#[derive(Debug, Clone, Default)]
pub struct Outcomes {
    /// One per row.
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

/// Names a [`super::Backend::sample`] call whose outcome was not fetched yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);
