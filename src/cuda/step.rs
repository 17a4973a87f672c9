//! The plan of a step in device memory: one buffer, one upload.
//!
//! Words of 32 bits: a header, lists of a length that the padded row count fixes, then lists of varying length. The
//! addresses of the first are therefore equal in all steps of one bucket, and a recorded graph may be replayed with
//! another plan.

use super::driver::Driver;
use super::kernels::embed;
use super::kernels::vision::NO_ROW;
use super::stream::{Buffer, Stream};
use perigee_ops::{KvSlot, OpError, RopeTable, Row, StepPlan};

/// Row counts of recorded steps; a step has as many rows as the next one, the missing ones padded.
const BUCKETS: [usize; 14] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// Words of the header: the number of rows.
const HEADER_WORDS: usize = 8;

/// Words of a list that kernels read 16 bytes at a time begin at a multiple of this.
const ALIGNED_WORDS: usize = 8;

/// The uploaded plan.
#[derive(Debug)]
pub(super) struct Step {
    buffer: Buffer,
    words: Vec<u32>,
    rotations: Rotations,
    rows: usize,
    padded_rows: usize,
    at: Offsets,
}

/// First words of the lists.
#[derive(Debug, Default, Clone, Copy)]
struct Offsets {
    tokens: usize,
    media: usize,
    kv_slots: usize,
    rotations: usize,
    logits_rows: usize,
    sources: usize,
    prompt_bits: usize,
    attention: usize,
    block_tables: usize,
}

/// Rotations of positions, computed once each.
#[derive(Debug)]
struct Rotations {
    table: RopeTable,
    /// `[positions so far, R]`.
    values: Vec<f32>,
}

impl Rotations {
    /// Values of a position: R.
    fn width(&self) -> usize {
        2 * self.table.inv_freq.len()
    }

    fn of(&mut self, position: u32) -> &[f32] {
        let width = self.width();
        let known = self.values.len().checked_div(width).unwrap_or(0);
        for position in known..=position as usize {
            self.table.rotation(position as u32, &mut self.values);
        }
        &self.values[position as usize * width..(position as usize + 1) * width]
    }
}

/// Bytes of the largest plan: `rows` rows of `rope` values, `list_words` words for attention, `table_words` block ids.
pub(super) fn bytes(rows: usize, rope: usize, list_words: usize, table_words: usize) -> usize {
    let rows = rows.max(padded(rows));
    4 * (HEADER_WORDS + rows * (5 + rope) + rows / 32 + 9 * ALIGNED_WORDS + list_words + table_words)
}

/// Row counts that steps of up to `rows` rows are padded to.
pub(super) fn buckets(rows: usize) -> impl Iterator<Item = usize> {
    BUCKETS.into_iter().filter(move |bucket| *bucket <= padded(rows))
}

/// Rows of a step of `rows` rows that can be recorded.
pub(super) fn padded(rows: usize) -> usize {
    BUCKETS.into_iter().find(|bucket| *bucket >= rows).unwrap_or(rows)
}

impl Step {
    pub(super) fn new<D: Driver>(
        stream: &mut Stream<D>,
        rope: &RopeTable,
        bytes: usize,
    ) -> Result<Self, OpError> {
        Ok(Self {
            buffer: stream.allocate("step plan", bytes)?,
            words: Vec::new(),
            rotations: Rotations { table: rope.clone(), values: Vec::new() },
            rows: 0,
            padded_rows: 0,
            at: Offsets::default(),
        })
    }

    /// Uploads a plan with `padded_rows` rows, which go to `kv_slots`, and the lists of attention, for which at least `list_words` words
    /// are set aside; `sources` are the rows that a draft's rows begin with.
    pub(super) fn upload<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        plan: &StepPlan,
        kv_slots: &[KvSlot],
        padded_rows: usize,
        lists: &[u32],
        list_words: usize,
        sources: &[Row],
    ) -> Result<(), OpError> {
        (self.rows, self.padded_rows) = (plan.num_rows(), padded_rows);
        let words = &mut self.words;
        words.clear();
        words.resize(HEADER_WORDS, 0);
        words[0] = plan.num_rows() as u32;
        let end = |list: usize, words: &mut Vec<u32>, value: u32| {
            words.resize((list + padded_rows).next_multiple_of(ALIGNED_WORDS), value);
        };
        self.at.tokens = words.len();
        words.extend(plan.tokens.iter().map(|token| embed::word(*token)));
        end(self.at.tokens, words, 0);
        self.at.media = words.len();
        words.extend(plan.tokens.iter().map(|token| embed::media_word(*token)));
        end(self.at.media, words, NO_ROW);
        self.at.kv_slots = words.len();
        words.extend_from_slice(bytemuck::cast_slice(kv_slots));
        end(self.at.kv_slots, words, KvSlot::PAD.0);
        self.at.rotations = words.len();
        for position in &plan.positions {
            words.extend_from_slice(bytemuck::cast_slice(self.rotations.of(*position)));
        }
        let rotations_end = self.at.rotations + padded_rows * self.rotations.width();
        words.resize(rotations_end.next_multiple_of(ALIGNED_WORDS), 0);
        self.at.logits_rows = words.len();
        words.extend_from_slice(bytemuck::cast_slice(&plan.logits_rows));
        end(self.at.logits_rows, words, 0);
        self.at.sources = words.len();
        if !sources.is_empty() {
            words.extend_from_slice(bytemuck::cast_slice(sources));
            end(self.at.sources, words, 0);
        }
        self.at.prompt_bits = words.len();
        if !plan.expanded.is_empty() && !plan.absorbed.is_empty() {
            let bits = padded_rows.div_ceil(32).next_multiple_of(ALIGNED_WORDS);
            words.resize(self.at.prompt_bits + bits, 0);
            for row in plan.expanded.iter().flat_map(|segment| segment.rows.clone()) {
                words[self.at.prompt_bits + row / 32] |= 1 << (row % 32);
            }
        }
        self.at.attention = words.len();
        words.extend_from_slice(lists);
        words.resize((self.at.attention + list_words.max(lists.len())).next_multiple_of(ALIGNED_WORDS), 0);
        self.at.block_tables = words.len();
        words.extend_from_slice(bytemuck::cast_slice(&plan.block_tables));
        perigee_ops::expect("begin", &[self.buffer.bytes.max(4 * words.len())], &[self.buffer.bytes])?;
        Ok(stream.driver().upload(self.buffer.address, bytemuck::cast_slice(words))?)
    }

    /// Rows of the plan.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Rows of launches.
    pub(super) fn padded_rows(&self) -> usize {
        self.padded_rows
    }

    /// `[1]` u32, rows of the plan.
    pub(super) fn num_rows(&self) -> u64 {
        self.address(0)
    }

    /// `[T]` words of [`embed::word`].
    pub(super) fn tokens(&self) -> u64 {
        self.address(self.at.tokens)
    }

    /// `[T]` words of [`embed::media_word`].
    pub(super) fn media(&self) -> u64 {
        self.address(self.at.media)
    }

    /// `[T]` u32.
    pub(super) fn kv_slots(&self) -> u64 {
        self.address(self.at.kv_slots)
    }

    /// `[T, R]` f32, cosines then sines.
    pub(super) fn rotations(&self) -> u64 {
        self.address(self.at.rotations)
    }

    /// `[S]` u32.
    pub(super) fn logits_rows(&self) -> u64 {
        self.address(self.at.logits_rows)
    }

    /// `[T]` u32, rows that a draft's rows begin with.
    pub(super) fn sources(&self) -> u64 {
        self.address(self.at.sources)
    }

    /// `[T / 32]` u32, a bit of each row from `first`, a multiple of 32, on: whether it is in expanded form. Of steps that have rows in both
    /// forms.
    pub(super) fn prompt_bits(&self, first: usize) -> u64 {
        self.address(self.at.prompt_bits + first / 32)
    }

    /// Lists of attention.
    pub(super) fn attention(&self) -> u64 {
        self.address(self.at.attention)
    }

    /// Block ids of all sequences, u32.
    pub(super) fn block_tables(&self) -> u64 {
        self.address(self.at.block_tables)
    }

    fn address(&self, word: usize) -> u64 {
        self.buffer.address + 4 * word as u64
    }
}
