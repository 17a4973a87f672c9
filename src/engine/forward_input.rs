//! Converts the scheduler's batch to the backend's plan and lists the rows that need logits.

use crate::ops::{Row, StepPlan, TokenId, TokenSource};
use crate::scheduler::{Batch, LogitsNeed, Scheduler};

/// A row of the step whose logits are needed; the list runs along `StepPlan::logits_rows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogitsRow {
    /// Index of its chunk in the batch.
    pub(super) chunk: usize,
    /// Prompt token scored by this row (the token after it); `None` where no prompt logprob was
    /// requested.
    pub(super) scores: Option<TokenId>,
    /// Whether a token is sampled from it.
    pub(super) samples: bool,
}

/// Fills `plan` and `rows` for `batch`; both are emptied first.
pub(super) fn build(scheduler: &Scheduler, batch: &Batch, plan: &mut StepPlan, rows: &mut Vec<LogitsRow>) {
    plan.clear();
    rows.clear();
    for (index, chunk) in batch.chunks.iter().enumerate() {
        let known = scheduler.tokens(chunk.seq);
        let token = |position: usize| match known.get(position) {
            Some(id) => TokenSource::Known(TokenId(*id)),
            None => TokenSource::LastSampled(scheduler.seq_slot(chunk.seq)),
        };
        let tokens = (chunk.start..chunk.end()).map(token);
        let table = scheduler.block_table(chunk.seq);
        let block_size = scheduler.limits().block_size;
        let first_row = plan.add(tokens, chunk.start, chunk.expanded_until, table, block_size);
        let wanted = match chunk.logits {
            LogitsNeed::None => continue,
            LogitsNeed::Tail(rows) => chunk.end() - rows as usize..chunk.end(),
            LogitsNeed::All => chunk.start..chunk.end(),
        };
        for position in wanted {
            let is_scored = chunk.logits == LogitsNeed::All && position + 1 < scheduler.prompt_len(chunk.seq);
            let scores = known.get(position + 1).filter(|_| is_scored).map(|id| TokenId(*id));
            let samples = chunk.samples && position + 1 == chunk.end();
            if scores.is_some() || samples {
                plan.logits_rows.push(Row((first_row + position - chunk.start) as u32));
                rows.push(LogitsRow { chunk: index, scores, samples });
            }
        }
    }
}
