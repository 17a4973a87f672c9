//! From the scheduler's plan to the model's input: token ids, positions, slots, segments, block tables; and which rows need logits.

use crate::model::ForwardInput;
use crate::ops::{AttentionForm, Segment};
use crate::scheduler::{Batch, Chunk, LogitsNeed, Scheduler};

/// A row of the step whose logits are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogitsRow {
    /// Row of the step.
    pub(super) row: u32,
    /// Index of its chunk in the batch.
    pub(super) chunk: usize,
    /// The prompt token whose logprob this row gives (the one after it), if that was asked for.
    pub(super) scores: Option<u32>,
    /// Whether a token is sampled from it.
    pub(super) samples: bool,
}

/// Fills `input` and `rows` for `batch`; both are emptied first.
pub(super) fn build(
    scheduler: &Scheduler,
    batch: &Batch,
    input: &mut ForwardInput,
    rows: &mut Vec<LogitsRow>,
) {
    input.clear();
    rows.clear();
    for (index, chunk) in batch.chunks.iter().enumerate() {
        let tokens = scheduler.tokens(chunk.seq);
        let first_row = input.token_ids.len();
        add_chunk(scheduler, chunk, tokens, input);
        let score = |position: usize| tokens.get(position + 1).copied();
        let all = chunk.logits == LogitsNeed::All;
        let wanted = if all { chunk.start..chunk.end() } else { chunk.end() - 1..chunk.end() };
        for position in wanted.filter(|_| chunk.logits != LogitsNeed::None) {
            let row = (first_row + position - chunk.start) as u32;
            let scores =
                if all && position + 1 < scheduler.prompt_len(chunk.seq) { score(position) } else { None };
            let samples = chunk.samples && position + 1 == chunk.end();
            if scores.is_some() || samples {
                rows.push(LogitsRow { row, chunk: index, scores, samples });
            }
        }
    }
}

fn add_chunk(scheduler: &Scheduler, chunk: &Chunk, tokens: &[u32], input: &mut ForwardInput) {
    let block_size = scheduler.limits().block_size;
    let table = scheduler.block_table(chunk.seq);
    let first_row = input.token_ids.len();
    let first_block = input.block_tables.len();
    input.block_tables.extend_from_slice(&table[..chunk.end().div_ceil(block_size)]);
    input.token_ids.extend_from_slice(&tokens[chunk.start..chunk.end()]);
    for position in chunk.start..chunk.end() {
        input.positions.push(position);
        let slot = table[position / block_size] as usize * block_size + position % block_size;
        input.slot_mapping.push(slot as u32);
    }
    let block_table = first_block..input.block_tables.len();
    let boundary = chunk.expanded_until.clamp(chunk.start, chunk.end());
    for (from, to) in [(chunk.start, boundary), (boundary, chunk.end())] {
        if from == to {
            continue;
        }
        let rows = first_row + from - chunk.start..first_row + to - chunk.start;
        let form = chunk.form(from);
        let segment = Segment { rows, first_position: from, form, block_table: block_table.clone() };
        match form {
            AttentionForm::Expanded => input.expanded.push(segment),
            AttentionForm::Absorbed => input.absorbed.push(segment),
        }
    }
}
