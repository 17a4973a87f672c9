//! Converts the scheduler's batch to the backend's plan and lists the rows that need logits.

use super::pictures::Pictures;
use super::sequences::Sequences;
use super::step::{LogitsRow, Purpose, Step, Steps};
use crate::scheduler::LogitsNeed;
use perigee_ops::{Row, TokenId, TokenSource};

/// Fills the backend's plan and the rows of the planned step for its batch; both are emptied first.
pub(super) fn build(sequences: &Sequences, pictures: &Pictures, steps: &mut Steps) {
    let Sequences { scheduler, live, .. } = sequences;
    let Steps { planned: Step { batch, rows, sampled, .. }, plan, .. } = steps;
    plan.clear();
    rows.clear();
    for (index, chunk) in batch.chunks.iter().enumerate() {
        let known = scheduler.tokens(chunk.seq);
        let media = live.get(&chunk.seq).map_or(&[][..], |live| &live.media);
        let token = |position: usize| match known.get(position) {
            Some(id) => pictures.token(media, position, *id),
            None => TokenSource::LastSampled(scheduler.seq_slot(chunk.seq)),
        };
        let drafted = chunk.draft.iter().map(|id| TokenSource::Known(TokenId(*id)));
        let tokens = (chunk.start..chunk.end()).map(token).chain(drafted);
        let table = scheduler.block_table(chunk.seq);
        let block_size = scheduler.limits().block_size;
        let first_row = plan.add(tokens, chunk.start, chunk.expanded_until, table, block_size);
        let scored = match chunk.logits {
            LogitsNeed::All => chunk.end().min(scheduler.prompt_len(chunk.seq) - 1),
            LogitsNeed::None | LogitsNeed::Last => chunk.start,
        };
        let mut need = |position: usize, purpose: Purpose| {
            plan.logits_rows.push(Row((first_row + position - chunk.start) as u32));
            rows.push(LogitsRow { chunk: index, purpose });
        };
        for position in chunk.start..scored {
            need(position, Purpose::Score(TokenId(known[position + 1])));
        }
        if chunk.samples {
            need(chunk.end() - 1, Purpose::Sample);
            (chunk.end()..chunk.end() + chunk.draft.len()).for_each(|at| need(at, Purpose::Drafted));
        }
    }
    sampled.clear();
    sampled.extend((0..rows.len()).filter(|&index| !rows[index].is_drafted()));
}
