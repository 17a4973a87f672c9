//! The plan of one step for a backend: tokens, positions, and the slots of their latents. Uploaded
//! once a step.

use super::{AttentionForm, BlockId, KvSlot, Row, Segment, SeqSlot, TokenId};

/// Source of a row's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource {
    /// A token with its value on the host.
    Known(TokenId),
    /// The last sampled token of a slot; its value may still be on the device.
    LastSampled(SeqSlot),
    /// A token of a picture: its embedding is row `row` of the tower's kept rows.
    Media {
        /// The token that stands in the prompt.
        token: TokenId,
        /// See [`super::TowerOps::project_pictures`].
        row: u32,
    },
}

impl From<u32> for TokenSource {
    fn from(id: u32) -> Self {
        Self::Known(TokenId(id))
    }
}

/// Rows of a step, `[T]` each, with their segments and block tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// `[T]`, the token of each row.
    pub tokens: Vec<TokenSource>,
    /// `[T]` position of each token in its sequence.
    pub positions: Vec<u32>,
    /// `[T]` where each token's latent is stored.
    pub kv_slots: Vec<KvSlot>,
    /// Rows in expanded form.
    pub expanded: Vec<Segment>,
    /// Rows in absorbed form. The two lists together cover each row once.
    pub absorbed: Vec<Segment>,
    /// Block ids of all sequences of the step, flat; segments refer to ranges of the list.
    pub block_tables: Vec<BlockId>,
    /// `[S]` rows whose logits are needed, ascending.
    pub logits_rows: Vec<Row>,
}

impl StepPlan {
    /// T: tokens of all sequences in this step.
    pub fn num_rows(&self) -> usize {
        self.tokens.len()
    }

    /// Empties all lists and keeps their memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.kv_slots.clear();
        self.expanded.clear();
        self.absorbed.clear();
        self.block_tables.clear();
        self.logits_rows.clear();
    }

    /// Appends rows of one sequence: its tokens at positions `start..`, in expanded form below
    /// `expanded_until`. `block_table` holds its blocks from position 0 on and covers the last row.
    /// Returns the first row.
    pub fn add(
        &mut self,
        tokens: impl IntoIterator<Item = TokenSource>,
        start: usize,
        expanded_until: usize,
        block_table: &[BlockId],
        block_size: usize,
    ) -> usize {
        let first_row = self.tokens.len();
        self.tokens.extend(tokens);
        let end = start + self.tokens.len() - first_row;
        let first_block = self.block_tables.len();
        self.block_tables.extend_from_slice(&block_table[..end.div_ceil(block_size)]);
        for position in start..end {
            self.positions.push(position as u32);
            let slot = block_table[position / block_size].at() * block_size + position % block_size;
            self.kv_slots.push(KvSlot(slot as u32));
        }
        let block_table = first_block..self.block_tables.len();
        let boundary = expanded_until.clamp(start, end);
        for (from, to, form) in
            [(start, boundary, AttentionForm::Expanded), (boundary, end, AttentionForm::Absorbed)]
        {
            if from == to {
                continue;
            }
            let rows = first_row + from - start..first_row + to - start;
            let segment = Segment { rows, first_position: from, form, block_table: block_table.clone() };
            match form {
                AttentionForm::Expanded => self.expanded.push(segment),
                AttentionForm::Absorbed => self.absorbed.push(segment),
            }
        }
        first_row
    }
}
