//! Maps the rows of a step to sequences.

use std::ops::Range;

/// Selects one of the two mathematically equal forms of MLA for a query token.
///
/// The forms differ in rounding. The choice must depend on the token alone (its position in its own
/// request), never on the other sequences of the step or on the chunks of its prompt: results are
/// then reproducible bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionForm {
    /// Keys and values are expanded from the latent per head: cheapest for many query tokens (long prefill).
    Expanded,
    /// Queries are projected into the latent space: cheapest for few query tokens (decode, short prompts).
    Absorbed,
}

/// A run of consecutive rows of the step that belong to one sequence and use one attention form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Rows of the step.
    pub rows: Range<usize>,
    /// Position of the first row in its sequence. Row `rows.start + i` is at `first_position + i` and attends
    /// to positions `0..=first_position + i`.
    pub first_position: usize,
    /// Attention form of the query tokens.
    pub form: AttentionForm,
    /// Range of this sequence's block ids in the step's flat `block_tables`; covers at least
    /// `first_position + rows.len()` tokens.
    pub block_table: Range<usize>,
}

impl Segment {
    /// Cached tokens that the last row attends to, its own included.
    pub fn context_len(&self) -> usize {
        self.first_position + self.rows.len()
    }
}

/// A run of consecutive latent queries of one sequence, over a cache that holds some of its positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatentSpan {
    /// Index of the first query.
    pub first: usize,
    /// Number of cached rows that each query attends to, counted from the start of the block table;
    /// not decreasing.
    pub num_keys: Vec<u32>,
    /// Range of this sequence's block ids in the step's flat `block_tables`.
    pub block_table: Range<usize>,
}
