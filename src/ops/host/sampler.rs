//! Sampling on the host, for every backend with logits in host memory. Rows are independent, so
//! they may be drawn on any number of threads. The reference for a device's sampler.

use std::collections::VecDeque;

use crate::{
    Outcomes, RowFlags, RowOutcome, Rule, SampleRow, SampleRows, SeqSlot, SlotSpec, Ticket, TokenId,
};
use perigee_decoding::guard::is_flat;
use perigee_decoding::sampling::{Chosen, Draw, History, Logprobs, Sampler, Wanted};

/// Sampling state by slot, and outcomes not fetched yet.
#[derive(Debug, Default)]
pub(super) struct HostSampler {
    slots: Vec<Slot>,
    outcomes: VecDeque<(Ticket, Vec<RowResult>)>,
    next: u64,
}

/// State of one slot.
#[derive(Debug, Default)]
struct Slot {
    history: History,
    counts: bool,
    logit_bias: Vec<(u32, f32)>,
    stops: Vec<u32>,
    last: TokenId,
}

/// Scratch memory of one thread.
#[derive(Debug, Default)]
pub(super) struct RowSampler {
    sampler: Sampler,
    logprobs: Logprobs,
}

/// Result of one row.
#[derive(Debug, Clone)]
pub(super) struct RowResult {
    outcome: RowOutcome,
    top: Vec<(u32, f32)>,
}

impl Default for RowResult {
    fn default() -> Self {
        let outcome =
            RowOutcome { token: TokenId(0), logprob: 0.0, rank: 0, flags: RowFlags::default(), top: (0, 0) };
        Self { outcome, top: Vec::new() }
    }
}

impl HostSampler {
    pub(super) fn new(num_slots: usize) -> Self {
        Self { slots: (0..num_slots).map(|_| Slot::default()).collect(), ..Self::default() }
    }

    /// The last sampled token of a slot.
    pub(super) fn last(&self, slot: SeqSlot) -> TokenId {
        self.slots[slot.at()].last
    }

    /// Resets a slot's state.
    pub(super) fn open(&mut self, slot: SeqSlot, spec: &SlotSpec<'_>) {
        let state = &mut self.slots[slot.at()];
        state.history = History::new(if spec.counts { spec.prompt } else { &[] });
        if spec.counts {
            spec.reply.iter().for_each(|&token| state.history.add(token));
        }
        state.counts = spec.counts;
        state.logit_bias = spec.logit_bias.to_vec();
        state.stops = spec.stops.to_vec();
        state.last = TokenId(spec.reply.last().copied().unwrap_or(0));
    }

    /// Removes the last `removed` tokens from a slot's counts; `last` is the token before them.
    pub(super) fn rewind(&mut self, slot: SeqSlot, removed: &[TokenId], last: TokenId) {
        let state = &mut self.slots[slot.at()];
        state.last = last;
        if state.counts {
            removed.iter().for_each(|token| state.history.remove(token.0));
        }
    }

    /// Samples one row. `logits` holds all rows, `[S, vocab]`.
    pub(super) fn row(
        &self,
        scratch: &mut RowSampler,
        logits: &[f32],
        vocab: usize,
        rows: &SampleRows<'_>,
        index: usize,
    ) -> RowResult {
        let row = &rows.rows[index];
        let slot = &self.slots[row.slot.at()];
        let logits = &logits[row.row.at() * vocab..(row.row.at() + 1) * vocab];
        let survey = scratch.sampler.survey(logits);
        let mut flags = RowFlags::default();
        if !survey.sound || survey.max.is_none() {
            flags = flags.with(RowFlags::NON_FINITE);
        }
        if is_flat(logits) {
            flags = flags.with(RowFlags::FLAT);
        }
        let end = match row.rule {
            Rule::EndIfRankBelow(rank) => likely_end(logits, &slot.stops, rank as usize),
            _ => None,
        };
        let token = match (row.rule, end) {
            (Rule::Forced(token) | Rule::Score(token), _) => token.0,
            (_, Some(end)) => {
                flags = flags.with(RowFlags::ENDED);
                end
            }
            _ => scratch.sampler.draw(logits, survey, &draw(row, slot, rows)).unwrap_or(0),
        };
        let mut result = RowResult::default();
        result.outcome = RowOutcome { token: TokenId(token), flags, ..result.outcome };
        if row.top != SampleRow::NO_LOGPROBS {
            let scored = scratch.logprobs.of(logits, token, row.top as usize);
            (result.outcome.logprob, result.outcome.rank, result.top) =
                (scored.logprob, scored.rank, scored.top);
        }
        result
    }

    /// What is wanted of a row, of ranks that choose together.
    pub(super) fn wanted<'a>(&'a self, rows: &'a SampleRows<'a>, index: usize) -> Wanted<'a> {
        let row = &rows.rows[index];
        let slot = &self.slots[row.slot.at()];
        Wanted {
            draw: draw(row, slot, rows),
            fixed: match row.rule {
                Rule::Forced(token) | Rule::Score(token) => Some(token.0),
                Rule::Draw | Rule::EndIfRankBelow(_) => None,
            },
            end: match row.rule {
                Rule::EndIfRankBelow(rank) => Some((&slot.stops, rank)),
                Rule::Draw | Rule::Forced(_) | Rule::Score(_) => None,
            },
            logprobs: (row.top != SampleRow::NO_LOGPROBS).then_some(row.top as usize),
        }
    }

    /// Adds the rows' tokens to their slots and keeps the outcomes for `fetch`.
    pub(super) fn complete(&mut self, rows: &SampleRows<'_>, results: Vec<RowResult>) -> Ticket {
        for (row, result) in rows.rows.iter().zip(&results) {
            if matches!(row.rule, Rule::Score(_)) {
                continue;
            }
            let slot = &mut self.slots[row.slot.at()];
            slot.last = result.outcome.token;
            if slot.counts {
                slot.history.add(result.outcome.token.0);
            }
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.outcomes.push_back((ticket, results));
        ticket
    }

    /// Appends the outcomes of a call. Outcomes of earlier calls that were not fetched are dropped.
    pub(super) fn fetch(&mut self, ticket: Ticket, out: &mut Outcomes) {
        while let Some((at, results)) = self.outcomes.pop_front() {
            if at < ticket {
                continue;
            }
            for RowResult { outcome, top } in results {
                let first = out.top.len() as u32;
                out.top.extend(top.into_iter().map(|(id, logprob)| (TokenId(id), logprob)));
                out.rows.push(RowOutcome { top: (first, out.top.len() as u32), ..outcome });
            }
            return;
        }
    }
}

impl From<Chosen> for RowResult {
    fn from(chosen: Chosen) -> Self {
        let mut flags = RowFlags::default();
        let found = [
            (!chosen.sound, RowFlags::NON_FINITE),
            (chosen.flat, RowFlags::FLAT),
            (chosen.ended, RowFlags::ENDED),
        ];
        found.into_iter().filter(|(found, _)| *found).for_each(|(_, flag)| flags = flags.with(flag));
        let mut result = Self::default();
        result.outcome = RowOutcome { token: TokenId(chosen.token), flags, ..result.outcome };
        if let Some(scored) = chosen.logprobs {
            (result.outcome.logprob, result.outcome.rank, result.top) =
                (scored.logprob, scored.rank, scored.top);
        }
        result
    }
}

fn draw<'a>(row: &SampleRow, slot: &'a Slot, rows: &'a SampleRows<'_>) -> Draw<'a> {
    Draw {
        temperature: row.temperature,
        top_p: row.top_p,
        min_p: row.min_p,
        top_k: row.top_k,
        repetition_penalty: row.repetition,
        presence_penalty: row.presence,
        frequency_penalty: row.frequency,
        seed: row.seed,
        position: row.position,
        logit_bias: &slot.logit_bias,
        forbidden: &rows.forbidden[row.forbidden.0 as usize..row.forbidden.1 as usize],
        history: &slot.history,
        mask: rows.masks.get(row.mask as usize).copied(),
    }
}

/// The most likely of the stop tokens, if fewer than `rank` ids are more likely.
fn likely_end(logits: &[f32], stops: &[u32], rank: usize) -> Option<u32> {
    let logit = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let best = stops.iter().copied().max_by(|a, b| logit(a).total_cmp(&logit(b)))?;
    let better = logits.iter().filter(|&&other| other > logit(&best)).take(rank).count();
    (better < rank && logit(&best).is_finite()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_taken_only_if_it_is_likely() {
        let mut logits: Vec<f32> = (0..100).map(|id| id as f32).collect();
        assert_eq!(likely_end(&logits, &[3, 85], 20), Some(85));
        assert_eq!(likely_end(&logits, &[3, 79], 20), None, "twenty are more likely");
        assert_eq!(likely_end(&logits, &[3, 80], 20), Some(80));
        logits[85] = f32::NAN;
        assert_eq!(likely_end(&logits, &[], 20), None);
        assert_eq!(likely_end(&logits, &[85], 20), None);
        assert_eq!(likely_end(&logits, &[5000], 20), None);
    }
}
