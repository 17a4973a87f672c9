//! Drafts of a draft model: it reads the hidden states that a step left, and runs ahead of the next
//! plan.
//!
//! The model's keys and values lie in blocks with the numbers of the target's, so that a cached
//! prefix brings them along. The last key of a block belongs to the token behind the block, which
//! another sequence may not share; that costs a little acceptance and no token of a reply, as does
//! anything else here: what is drafted is checked.

use std::time::{Duration, Instant};

use super::live::row_of;
use super::sequences::{Live, Sequences};
use crate::scheduler::{Batch, Scheduler, SeqId};
use perigee_decoding::speculation::StepCost;
use perigee_model::Model;
use perigee_ops::{
    Backend, BlockId, DraftInput, OpError, Outcomes, Row, RowFlags, SampleRow, SampleRows, StepPlan, Ticket,
    TokenId, TokenSource,
};

/// State of the draft model beside the steps.
pub(super) struct ModelDrafts {
    /// Seconds of the model's steps by rows.
    cost: StepCost,
    /// First block of the model's cache behind the target's, and how many of them each slot has: keys
    /// of guesses go there where the sequence has no block yet.
    spare: (usize, usize),
    /// Rows of the last step that the model has not read.
    captured: Vec<Captured>,
    /// Time that the model took in this turn.
    pub(super) spent: Duration,
    plan: StepPlan,
    source: Vec<Row>,
    blocks: Vec<BlockId>,
    guessing: Vec<Guessing>,
    /// Draws that are not fetched yet, with the sequence of each row.
    draws: Vec<(Ticket, Vec<SeqId>)>,
    /// Rows of the model's steps of this turn.
    steps: Vec<usize>,
    outcomes: Outcomes,
}

/// Rows of one sequence in the last step.
struct Captured {
    seq: SeqId,
    /// Position of the first row.
    start: usize,
    rows: usize,
    first_row: usize,
    expanded_until: usize,
}

/// A sequence that the model drafts for.
struct Guessing {
    seq: SeqId,
    /// Row of its last slot in the model's last step.
    row: Row,
    /// Tokens drawn so far; only the device knows them.
    drawn: usize,
    limit: usize,
}

/// Why a draft model is given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Op(#[from] OpError),
    #[error("its logits are no numbers")]
    NotNumbers,
}

impl ModelDrafts {
    /// `num_blocks` blocks of the model's cache are the target's, and `spare` more belong to each slot.
    pub(super) fn new(cost: StepCost, num_blocks: usize, spare: usize) -> Self {
        Self {
            cost,
            spare: (num_blocks, spare),
            captured: Vec::new(),
            spent: Duration::ZERO,
            plan: StepPlan::default(),
            source: Vec::new(),
            blocks: Vec::new(),
            guessing: Vec::new(),
            draws: Vec::new(),
            steps: Vec::new(),
            outcomes: Outcomes::default(),
        }
    }

    /// Seconds of the model's steps by rows.
    pub(super) fn cost(&self) -> &StepCost {
        &self.cost
    }

    /// Whether there are rows of the last step to read.
    pub(super) fn has_captured(&self) -> bool {
        !self.captured.is_empty()
    }

    /// Notes the rows of a step that was just computed, to be read; those of the step before are left unread.
    pub(super) fn capture(&mut self, batch: &Batch, live: &mut Live) {
        self.skip_captured(live);
        let mut first_row = 0;
        for chunk in &batch.chunks {
            let rows = chunk.len + chunk.draft.len();
            let (seq, start, expanded_until) = (chunk.seq, chunk.start, chunk.expanded_until);
            let drafts = live.get_mut(&seq).and_then(|live| live.drafts.as_deref_mut());
            let is_behind = drafts.is_some_and(|drafts| {
                // From the beginning on the model can follow again.
                drafts.model_is_behind &= start > 0;
                drafts.model_is_behind
            });
            if !is_behind {
                self.captured.push(Captured { seq, start, rows, first_row, expanded_until });
            }
            first_row += rows;
        }
    }

    /// Leaves the rows of the last step unread: the model knows too little of their sequences from then on.
    pub(super) fn skip_captured(&mut self, live: &mut Live) {
        for rows in self.captured.drain(..) {
            if let Some(drafts) = live.get_mut(&rows.seq).and_then(|live| live.drafts.as_deref_mut()) {
                drafts.model_is_behind = true;
            }
        }
    }

    /// Guesses for the sequences `wanted`, at most so many tokens for each, and appends the guesses.
    /// Everything the last step computed is read, whoever is wanted. After a fault the model must be
    /// switched off.
    pub(super) fn guess<B: Backend>(
        &mut self,
        wanted: &[(SeqId, usize)],
        guesses: &mut Vec<(SeqId, Vec<u32>)>,
        sequences: &mut Sequences,
        model: &mut Model<B>,
    ) -> Result<(), Fault> {
        let begun = Instant::now();
        self.guessing.clear();
        let wanted = wanted.iter().filter(|(_, limit)| *limit > 0);
        self.guessing.extend(wanted.map(|&(seq, limit)| Guessing { seq, row: Row(0), drawn: 0, limit }));
        let run = self.run(sequences, model);
        let outcome = self.fetch(guesses, model).and(run);
        for (seq, tokens) in &*guesses {
            // What was drawn is not part of the reply.
            let removed: Vec<TokenId> = tokens.iter().map(|id| TokenId(*id)).collect();
            sequences.take_back(*seq, &removed, model);
        }
        self.observe_steps(begun.elapsed());
        self.spent += begun.elapsed();
        outcome
    }

    /// Enqueues the model's steps and the draws behind them.
    fn run<B: Backend>(&mut self, sequences: &Sequences, model: &mut Model<B>) -> Result<(), Fault> {
        self.plan_captured(&sequences.scheduler);
        let mut captured = true;
        while self.plan.num_rows() > 0 {
            let input = match captured {
                true => DraftInput::Captured(&self.source),
                false => DraftInput::Own(&self.source),
            };
            model.draft(&self.plan, input)?;
            captured = false;
            self.steps.push(self.plan.num_rows());
            self.draw(sequences, model)?;
            if self.guessing.is_empty() {
                break;
            }
            self.plan_guesses(&sequences.scheduler);
        }
        Ok(())
    }

    /// Plans the captured rows of which the next token is known; those of `guessing` sequences get
    /// logits behind their last token.
    fn plan_captured(&mut self, scheduler: &Scheduler) {
        let Self { captured, plan, source, guessing, .. } = self;
        plan.clear();
        source.clear();
        let mut reached = Vec::new();
        let block_size = scheduler.limits().block_size;
        for rows in captured.drain(..).filter(|rows| scheduler.is_running(rows.seq)) {
            let (tokens, table) = (scheduler.tokens(rows.seq), scheduler.block_table(rows.seq));
            let known = scheduler.computed(rows.seq).min(tokens.len() - 1).min(table.len() * block_size);
            let end = known.min(rows.start + rows.rows);
            if end <= rows.start {
                continue;
            }
            let next = tokens[rows.start + 1..=end].iter().map(|id| TokenSource::Known(TokenId(*id)));
            let first = plan.add(next, rows.start, rows.expanded_until, table, block_size);
            source.extend((0..end - rows.start).map(|row| Row((rows.first_row + row) as u32)));
            if end == tokens.len() - 1 {
                reached.push((rows.seq, Row((first + end - rows.start - 1) as u32)));
            }
        }
        guessing.retain_mut(|guess| {
            let row = reached.iter().find(|(seq, _)| *seq == guess.seq).map(|(_, row)| *row);
            guess.row = row.unwrap_or(guess.row);
            row.is_some()
        });
        guessing.sort_by_key(|guess| guess.row);
        plan.logits_rows.extend(guessing.iter().map(|guess| guess.row));
    }

    /// Learns what the model's steps of this turn cost from the time of all of them.
    fn observe_steps(&mut self, time: Duration) {
        let expected: f64 = self.steps.iter().map(|rows| self.cost.seconds(*rows)).sum();
        let ratio = time.as_secs_f64() / expected;
        for rows in self.steps.drain(..) {
            self.cost.observe(rows, false, ratio * self.cost.seconds(rows));
        }
    }

    /// Plans a further slot of each guessing sequence, fed by its last one.
    fn plan_guesses(&mut self, scheduler: &Scheduler) {
        let Self { plan, source, guessing, blocks, spare, .. } = self;
        plan.clear();
        source.clear();
        guessing.retain(|guess| guess.drawn < guess.limit);
        for (index, guess) in guessing.iter_mut().enumerate() {
            source.push(guess.row);
            let position = scheduler.tokens(guess.seq).len() - 2 + guess.drawn;
            let slot = scheduler.seq_slot(guess.seq);
            blocks.clear();
            blocks.extend_from_slice(scheduler.block_table(guess.seq));
            let first = spare.0 + slot.at() * spare.1;
            blocks.extend((first..first + spare.1).map(|block| BlockId(block as u32)));
            let block_size = scheduler.limits().block_size;
            plan.add([TokenSource::LastSampled(slot)], position, 0, blocks, block_size);
            guess.row = Row(index as u32);
            plan.logits_rows.push(guess.row);
        }
    }

    /// Draws a token for each guessing sequence, with the noise that the target will draw it with.
    fn draw<B: Backend>(&mut self, sequences: &Sequences, model: &mut Model<B>) -> Result<(), Fault> {
        let (mut rows, mut seqs) = (SampleRows::default(), Vec::new());
        for (index, guess) in self.guessing.iter().enumerate() {
            let Some(live) = sequences.live.get(&guess.seq) else { continue };
            let (params, first) = (&live.params, rows.forbidden.len() as u32);
            let position = (live.reply_tokens + guess.drawn) as u64;
            if position < u64::from(params.min_tokens) {
                rows.forbidden.extend_from_slice(&params.stop_token_ids);
            }
            let mask = match (&live.constraint, params.allowed_token_ids.as_deref()) {
                (None, Some(mask)) => {
                    rows.masks.push(mask);
                    rows.masks.len() as u32 - 1
                }
                _ => SampleRow::NO_MASK,
            };
            seqs.push(guess.seq);
            rows.rows.push(SampleRow {
                row: Row(index as u32),
                slot: sequences.scheduler.seq_slot(guess.seq),
                forbidden: (first, rows.forbidden.len() as u32),
                mask,
                top: SampleRow::NO_LOGPROBS,
                ..row_of(params, position)
            });
        }
        if rows.rows.is_empty() {
            self.guessing.clear();
            return Ok(());
        }
        self.draws.push((model.sample(&rows)?, seqs));
        self.guessing.iter_mut().for_each(|guess| guess.drawn += 1);
        Ok(())
    }

    /// Waits for the draws and appends their tokens to `guesses`.
    fn fetch<B: Backend>(
        &mut self,
        guesses: &mut Vec<(SeqId, Vec<u32>)>,
        model: &mut Model<B>,
    ) -> Result<(), Fault> {
        let mut numbers = true;
        for (ticket, seqs) in self.draws.drain(..) {
            self.outcomes.clear();
            model.wait(ticket, &mut self.outcomes)?;
            for (seq, outcome) in seqs.into_iter().zip(&self.outcomes.rows) {
                numbers &= !outcome.flags.has(RowFlags::NON_FINITE) && !outcome.flags.has(RowFlags::FLAT);
                match guesses.iter_mut().find(|(guessed, _)| *guessed == seq) {
                    Some((_, tokens)) => tokens.push(outcome.token.0),
                    None => guesses.push((seq, vec![outcome.token.0])),
                }
            }
        }
        if numbers { Ok(()) } else { Err(Fault::NotNumbers) }
    }
}

/// Whether a draft model could ever pay beside its target, for one sequence and drafts that all hold,
/// with steps half as long as measured: a few steps at boot, on a machine that may be busy, do not
/// decide for good what every later step weighs anew.
pub(super) fn could_ever_pay(cost: &StepCost, draft: &StepCost, max_tokens: usize) -> bool {
    cost.model_draft_len(1, 1 + max_tokens, max_tokens, 1.0, &draft.halved()) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_model_is_given_up_at_boot_only_if_it_is_hopeless() {
        let target = StepCost::new(&[(1, 1.0), (2, 1.3), (4, 1.9), (8, 3.1), (9, 3.4)]);
        let pays = |seconds: f64| {
            let draft = StepCost::new(&[(1, seconds), (8, 4.0 * seconds)]);
            could_ever_pay(&target, &draft, 8)
        };
        assert!(pays(0.3));
        assert!(pays(0.9), "half of it would pay");
        assert!(!pays(2.0), "twice as slow as the target");
    }
}
