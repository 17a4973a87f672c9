//! Which rows of a step's batch belong to which sequence.

use std::ops::Range;

/// Which of the two mathematically equal forms of MLA a query token uses.
///
/// The forms differ in rounding, so the choice must depend on the token alone (its place in its own request),
/// never on who shares the batch or how the prompt was cut into chunks: that is what makes a result
/// reproducible bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionForm {
    /// Keys and values are expanded from the latent per head: cheapest for many query tokens (long prefill).
    Expanded,
    /// Queries are projected into the latent space: cheapest for few query tokens (decode, short prompts).
    Absorbed,
}

/// A run of consecutive rows of the batch that belong to one sequence and use one attention form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Position of the first row in its sequence. Row `rows.start + i` is at `first_position + i` and attends
    /// to positions `0..=first_position + i`.
    pub first_position: usize,
    /// Form of the query tokens.
    pub form: AttentionForm,
    /// Where this sequence's block ids stand in the step's flat `block_tables`; covers at least
    /// `first_position + rows.len()` tokens.
    pub block_table: Range<usize>,
}

impl Segment {
    /// Tokens in the cache that the last row attends to, itself included.
    pub fn context_len(&self) -> usize {
        self.first_position + self.rows.len()
    }
}

/// A run of consecutive latent queries of one sequence, over a cache that holds some of its positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatentSpan {
    /// Index of the first query.
    pub first: usize,
    /// For each query, how many of the cached rows it attends to: the first so many of the block table. They do not fall.
    pub num_keys: Vec<u32>,
    /// Where this sequence's block ids stand in the step's flat `block_tables`.
    pub block_table: Range<usize>,
}
