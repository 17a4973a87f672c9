//! Drafts in the step loop: proposed before a plan, checked behind its first draws.
//!
//! Invariant: every token of a reply is sampled from its own row, with the state that the tokens
//! before it leave. A drafted row is sampled only once the token that it was computed for has been;
//! what is drafted can therefore change the time of a reply and nothing else.

use std::sync::Arc;
use std::time::Duration;

use super::constrained::Constrained;
use super::request::EngineEvent;
use super::step_state::StepLoop;
use crate::scheduler::{Chunk, LogitsNeed, SeqId};
use perigee_decoding::speculation::{
    Acceptance, Config, Guess, Occurrences, Predicted, Prediction, Replies, SequenceAcceptance, StepCost,
};
use perigee_ops::{Backend, OpError};
use perigee_telemetry::{DraftFigures, DraftSkip, Metrics, StepTimes};

/// Tokens that are indexed in one step, over all sequences: about 0.2 ms. Long prompts take several.
const INDEXED_PER_STEP: usize = 16 << 10;

/// Drafts of all sequences.
pub(super) struct Drafting {
    config: Config,
    /// Seconds of decode steps; read where `config.adaptive`.
    cost: StepCost,
    acceptance: Acceptance,
    replies: Replies,
    /// Drafted tokens of the step that became part of a reply.
    accepted: usize,
    vocab_size: usize,
    /// Scratch: decoding sequences, the chances of their guesses, tokens and guesses of other sources.
    decoding: Vec<SeqId>,
    chances: Vec<Vec<f32>>,
    way: Vec<u32>,
    other: Guess,
    drafted: Vec<(SeqId, Vec<u32>)>,
}

/// Drafts of one sequence.
pub(super) struct SequenceDrafts {
    index: Occurrences,
    prediction: Option<Prediction>,
    salt: Option<Arc<str>>,
    /// Outcomes by source.
    acceptance: [SequenceAcceptance; 4],
    guess: Guess,
    source: Source,
    /// Sum of the chances of the guess.
    worth: f32,
    /// The draft under way.
    trial: Option<Trial>,
    /// Drafted tokens that became part of the reply.
    accepted: usize,
    /// Drafted tokens that did not.
    rejected: usize,
    /// The draft model has not read all of the sequence: what it would guess says nothing of it.
    pub(super) model_is_behind: bool,
}

/// Where a guess comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Like places in the sequence and in finished replies.
    Text,
    /// The client's prediction.
    Prediction,
    /// A constraint's way to the end of the reply.
    Way,
    /// The draft model.
    Model,
}

/// A draft in a step.
#[derive(Debug, Clone, Copy)]
struct Trial {
    source: Source,
    matched: usize,
    drafted: usize,
    held: usize,
    /// Another token was sampled in place of the next one.
    missed: bool,
}

impl Drafting {
    pub(super) fn new(config: Config, cost: StepCost, vocab_size: usize) -> Self {
        let kept = if config.votes() { config.reply_tokens } else { 0 };
        Self {
            replies: Replies::new(config.min_match, kept),
            acceptance: Acceptance::default(),
            cost,
            config,
            accepted: 0,
            vocab_size,
            decoding: Vec::new(),
            chances: Vec::new(),
            way: Vec::new(),
            other: Guess::default(),
            drafted: Vec::new(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn cost(&self) -> &StepCost {
        &self.cost
    }

    /// Drafts of a new sequence; `None` where there are none.
    pub(super) fn open(
        &self,
        wanted: bool,
        prediction: Option<Arc<Predicted>>,
        salt: Option<&str>,
    ) -> Option<Box<SequenceDrafts>> {
        (wanted && self.config.is_on()).then(|| {
            Box::new(SequenceDrafts {
                index: Occurrences::new(self.config.min_match),
                prediction: prediction.map(Prediction::new),
                salt: salt.map(Arc::from),
                acceptance: Default::default(),
                guess: Guess::default(),
                source: Source::Text,
                worth: 0.0,
                trial: None,
                accepted: 0,
                rejected: 0,
                model_is_behind: false,
            })
        })
    }

    /// Observes a step that did nothing but decode `sequences` sequences with `rows` rows, `model` of
    /// its time in the draft model. Returns the seconds that its drafts saved: what as many tokens
    /// would have taken without.
    pub(super) fn observe(&mut self, sequences: usize, rows: usize, time: Duration, model: Duration) -> f64 {
        if !self.config.is_on() || sequences == 0 {
            return 0.0;
        }
        let (time, steps) = (time.as_secs_f64(), 1.0 + self.accepted as f64 / sequences as f64);
        let drafts = rows > sequences;
        let saved = if drafts { steps * self.cost.seconds(sequences) - time } else { 0.0 };
        self.cost.observe(rows, drafts, time - model.as_secs_f64());
        saved
    }

    /// How many tokens of each guess are worth their rows.
    fn share_rows(&self, base: usize, max_rows: usize, chances: &[Vec<f32>]) -> Vec<usize> {
        if self.config.adaptive {
            return self.cost.share_rows(base, max_rows, chances);
        }
        let mut room = max_rows.saturating_sub(base);
        let lens = chances.iter().map(|chances| {
            let len = chances.len().min(room);
            room -= len;
            len
        });
        lens.collect()
    }
}

impl SequenceDrafts {
    /// Guesses what follows `tokens`, at most `limit` tokens, from the source of which most is likely
    /// to hold. `indexable` tokens may still be indexed in this step.
    fn guess(
        &mut self,
        all: &mut Drafting,
        constraint: Option<&Constrained>,
        tokens: &[u32],
        prompt_len: usize,
        limit: usize,
        indexable: &mut usize,
    ) {
        (self.source, self.worth) = (Source::Text, 0.0);
        self.guess.clear();
        let before = self.index.len();
        self.index.extend(tokens, *indexable);
        *indexable -= self.index.len() - before;
        if limit == 0 {
            return;
        }
        if !all.config.follows_text() {
            // The draft model alone.
        } else if all.config.votes() {
            self.guess.vote(&self.index, tokens, limit);
            all.replies.vote(self.salt.as_ref(), tokens, limit, &mut self.guess);
        } else {
            self.guess.longest(&self.index, tokens, limit);
        }
        self.worth = self.chances(all).sum();
        if let Some(mut prediction) = self.prediction.take() {
            all.other.clear();
            prediction.guess(&tokens[prompt_len..], limit, &mut all.other);
            self.prediction = Some(prediction);
            self.prefer(all, Source::Prediction);
        }
        if let Some(constraint) = constraint {
            let mut way = std::mem::take(&mut all.way);
            way.clear();
            constraint.way(limit, &mut way);
            // A grammar may know ids that the network has no row for.
            let known = way.iter().position(|token| *token as usize >= all.vocab_size);
            way.truncate(known.unwrap_or(way.len()));
            all.other.set(&way, Guess::WAY);
            all.way = way;
            self.prefer(all, Source::Way);
        }
    }

    /// Takes the guess in `all.other` in place of the present one if more of it is likely to hold.
    fn prefer(&mut self, all: &mut Drafting, source: Source) {
        let before = std::mem::replace(&mut self.source, source);
        std::mem::swap(&mut self.guess, &mut all.other);
        let worth = self.chances(all).sum();
        if worth > self.worth {
            self.worth = worth;
        } else {
            self.source = before;
            std::mem::swap(&mut self.guess, &mut all.other);
        }
    }

    /// For each token of the guess the chance that it and those before it hold.
    fn chances(&self, all: &Drafting) -> impl Iterator<Item = f32> + '_ {
        let chance = all.acceptance.chance(self.guess.matched, &self.acceptance[self.source as usize]);
        let products = std::iter::successors(Some(chance), move |product| Some(product * chance));
        self.guess.shares.iter().zip(products).map(|(share, product)| share * product)
    }

    /// Takes the draft model's guess if more of it is likely to hold.
    fn offer(&mut self, all: &mut Drafting, tokens: &[u32]) {
        all.other.set(tokens, Guess::MODEL);
        self.prefer(all, Source::Model);
    }

    /// Chance that a token of the draft model holds.
    fn model_chance(&self, all: &Drafting) -> f32 {
        all.acceptance.chance(Guess::MODEL, &self.acceptance[Source::Model as usize])
    }

    /// The reply was cut back: what was indexed of it is no longer there.
    pub(super) fn cut_back(&mut self) {
        self.index.clear();
        self.prediction.iter_mut().for_each(Prediction::restart);
    }

    /// Accepted and rejected tokens so far, if anything was drafted.
    pub(super) fn counts(&self) -> Option<(usize, usize)> {
        (self.accepted + self.rejected > 0).then_some((self.accepted, self.rejected))
    }
}

impl<B: Backend> StepLoop<B> {
    /// Guesses the next tokens of the decoding sequences, and gives the scheduler as much of each
    /// guess as pays. Returns whether anything does: a sequence whose last token is not settled gets
    /// nothing, and should be settled first; so should a step whose rows the draft model reads.
    pub(super) fn propose(&mut self) -> bool {
        if !self.drafting.config.is_on() {
            return false;
        }
        self.model_drafts.iter_mut().for_each(|model| model.spent = Duration::ZERO);
        let mut max_rows = self.model.capacity().max_logits_rows.min(self.model.capacity().max_tokens);
        let max_tokens = self.drafting.config.max_tokens;
        let mut decoding = std::mem::take(&mut self.drafting.decoding);
        decoding.clear();
        decoding.extend(self.scheduler.decoding());
        let base = decoding.len();
        if self.drafting.config.adaptive {
            max_rows = max_rows.min(base.saturating_add(self.scheduler.most_drafted_tokens()));
        }
        if self.in_flight.is_some() && self.model_waits() && self.model_len(&decoding, max_rows) > 0 {
            self.drafting.decoding = decoding;
            return true;
        }
        let mut chances = std::mem::take(&mut self.drafting.chances);
        chances.resize_with(base, Vec::new);
        // Guesses are made only if the best of them could pay.
        let plain_due = self.drafting.config.adaptive && self.drafting.cost.is_plain_due();
        let could_pay = match self.drafting.config.adaptive {
            true => !plain_due && self.drafting.cost.could_pay(base, max_rows, max_tokens),
            false => base < max_rows,
        };
        chances.iter_mut().for_each(Vec::clear);
        let (mut guessed, mut indexable) = (false, INDEXED_PER_STEP);
        for (seq, chances) in decoding.iter().zip(&mut chances).filter(|_| could_pay) {
            let Some(live) = self.live.get_mut(seq) else { continue };
            let Some(drafts) = live.drafts.as_deref_mut() else { continue };
            let limit = max_tokens.min(self.scheduler.tokens_left(*seq).saturating_sub(1));
            let prompt_len = self.scheduler.prompt_len(*seq);
            let tokens = self.scheduler.tokens(*seq);
            let constraint = live.constraint.as_ref();
            drafts.guess(&mut self.drafting, constraint, tokens, prompt_len, limit, &mut indexable);
            chances.extend(drafts.chances(&self.drafting));
            guessed |= !chances.is_empty();
        }
        guessed |= self.guess_with_model(&decoding, max_rows, plain_due, &mut chances);
        let mut pays = false;
        if guessed {
            let lens = self.drafting.share_rows(base, max_rows, &chances);
            let skipped =
                chances.iter().zip(&lens).filter(|(chances, len)| !chances.is_empty() && **len == 0);
            self.metrics.record_draft_skips(DraftSkip::Cost, skipped.count());
            for (seq, len) in decoding.iter().zip(lens).filter(|(_, len)| *len > 0) {
                if let Some(drafts) = self.live.get(seq).and_then(|live| live.drafts.as_deref()) {
                    self.scheduler.set_draft(*seq, &drafts.guess.tokens[..len]);
                    pays = true;
                }
            }
        } else if base > 0 && !could_pay && !plain_due {
            self.metrics.record_draft_skips(DraftSkip::Load, base);
        }
        (self.drafting.decoding, self.drafting.chances) = (decoding, chances);
        pays
    }

    /// Has the draft model read the last step, and guess for the sequences whose present guess is worth less than its own is
    /// likely to be; in front of a step without drafts it only reads. Returns whether it guessed anything.
    fn guess_with_model(
        &mut self,
        decoding: &[SeqId],
        max_rows: usize,
        plain_due: bool,
        chances: &mut [Vec<f32>],
    ) -> bool {
        if self.model_drafts.is_none() || self.in_flight.is_some() {
            return false;
        }
        let len = self.model_len(decoding, max_rows);
        if len == 0 {
            self.skip_captured();
            return false;
        }
        let drafts = |seq: &SeqId| self.live.get(seq).and_then(|live| live.drafts.as_deref());
        let wanted = |seq: &SeqId| {
            let drafts = drafts(seq).filter(|drafts| !plain_due && !drafts.model_is_behind)?;
            let chance = drafts.model_chance(&self.drafting);
            let worth: f32 = std::iter::successors(Some(chance), |hold| Some(hold * chance)).take(len).sum();
            let limit = len.min(self.scheduler.tokens_left(*seq).saturating_sub(1));
            (worth > drafts.worth).then_some((*seq, limit))
        };
        let wanted: Vec<_> = decoding.iter().filter_map(wanted).collect();
        let mut drafted = std::mem::take(&mut self.drafting.drafted);
        drafted.clear();
        self.draft_with_model(wanted.into_iter(), &mut drafted);
        for (seq, tokens) in &drafted {
            let index = decoding.iter().position(|decoding| decoding == seq);
            let drafts = self.live.get_mut(seq).and_then(|live| live.drafts.as_deref_mut());
            if let (Some(index), Some(drafts)) = (index, drafts) {
                drafts.offer(&mut self.drafting, tokens);
                chances[index].clear();
                chances[index].extend(drafts.chances(&self.drafting));
            }
        }
        let guessed = !drafted.is_empty();
        self.drafting.drafted = drafted;
        guessed
    }

    /// How many tokens the draft model should draft for each decoding sequence, by what held of its drafts
    /// for them.
    fn model_len(&self, decoding: &[SeqId], max_rows: usize) -> usize {
        let drafts = |seq: &SeqId| self.live.get(seq).and_then(|live| live.drafts.as_deref());
        let (mut sum, mut known) = (0.0, 0);
        for drafts in decoding.iter().filter_map(drafts).filter(|drafts| !drafts.model_is_behind) {
            sum += drafts.model_chance(&self.drafting);
            known += 1;
        }
        let chance = match known {
            0 => self.drafting.acceptance.chance(Guess::MODEL, &SequenceAcceptance::default()),
            _ => sum / known as f32,
        };
        self.model_draft_len(decoding.len(), max_rows, chance)
    }

    /// Shortens drafts, the last ones first, until all rows of the plan with logits fit the workspace.
    fn fit_drafts(&mut self) {
        let (batch, scheduler) = (&mut self.step.batch, &self.scheduler);
        let needed = |chunk: &Chunk| {
            let scored = match chunk.logits {
                LogitsNeed::All => chunk.end().min(scheduler.prompt_len(chunk.seq) - 1),
                LogitsNeed::None | LogitsNeed::Last => chunk.start,
            };
            scored.saturating_sub(chunk.start) + usize::from(chunk.samples) + chunk.draft.len()
        };
        let rows: usize = batch.chunks.iter().map(needed).sum();
        let mut over = rows.saturating_sub(self.model.capacity().max_logits_rows);
        for chunk in batch.chunks.iter_mut().rev() {
            let kept = chunk.draft.len().saturating_sub(over);
            over -= chunk.draft.len() - kept;
            chunk.draft.truncate(kept);
        }
    }

    /// Notes which drafts the plan took.
    pub(super) fn note_drafts(&mut self) {
        if !self.drafting.config.is_on() {
            return;
        }
        self.fit_drafts();
        self.drafting.acceptance.step();
        self.drafting.accepted = 0;
        for chunk in &self.step.batch.chunks {
            let Some(drafts) = self.live.get_mut(&chunk.seq).and_then(|live| live.drafts.as_deref_mut())
            else {
                continue;
            };
            match chunk.draft.len() {
                0 => drafts.acceptance.iter_mut().for_each(SequenceAcceptance::idle),
                drafted => {
                    let (source, matched) = (drafts.source, drafts.guess.matched);
                    drafts.trial = Some(Trial { source, matched, drafted, held: 0, missed: false });
                    self.speculated.push(chunk.seq);
                }
            }
        }
    }

    /// Goes on to the drafted rows behind those just settled, where the sampled token is the drafted
    /// one: `self.step` becomes the step of these rows, sampled and not settled. Returns whether
    /// there are any.
    pub(super) fn sample_drafted(
        &mut self,
        lap: &mut impl FnMut(&mut Duration),
        times: &mut StepTimes,
    ) -> Result<bool, OpError> {
        let step = &mut self.step;
        let mut chunks = Vec::new();
        let mut sampled = Vec::new();
        for &index in &step.sampled {
            let Some(row) = step.rows.get(index + 1).filter(|row| row.is_drafted()) else { continue };
            let chunk = &step.batch.chunks[row.chunk];
            let next = self.scheduler.plan_drafted(chunk);
            let drafts = self.live.get_mut(&chunk.seq).and_then(|live| live.drafts.as_deref_mut());
            if let Some(trial) = drafts.and_then(|drafts| drafts.trial.as_mut()) {
                trial.held += usize::from(next.is_some());
                trial.missed = next.is_none() && self.scheduler.tokens(chunk.seq).len() == chunk.end() + 1;
            }
            let Some(next) = next else { continue };
            for row in step.rows[index + 1..].iter_mut().take_while(|row| row.is_drafted()) {
                row.chunk = chunks.len();
            }
            chunks.push(next);
            sampled.push(index + 1);
        }
        if chunks.is_empty() {
            return Ok(false);
        }
        step.batch.clear();
        (step.batch.chunks, step.sampled) = (chunks, sampled);
        self.begin_masks();
        self.sample(lap, times)?;
        self.scheduler.advance(&mut self.step.batch);
        Ok(true)
    }

    /// Keeps the first `keep` tokens of a reply that ends, for the drafts of later ones.
    pub(super) fn learn(&mut self, seq: SeqId, keep: usize) {
        if let Some(drafts) = self.live.get(&seq).and_then(|live| live.drafts.as_deref()) {
            let reply = &self.scheduler.tokens(seq)[self.scheduler.prompt_len(seq)..];
            self.drafting.replies.add(drafts.salt.as_ref(), &reply[..keep.min(reply.len())]);
        }
    }

    /// Counts the drafts of a step whose rows are all settled. The streams are told at once: a reply
    /// that ends at a stop string reads no event behind its last token.
    pub(super) fn close_drafts(&mut self) {
        for seq in std::mem::take(&mut self.speculated) {
            let Some(live) = self.live.get_mut(&seq) else { continue };
            let Some(drafts) = live.drafts.as_deref_mut() else { continue };
            close(&mut self.drafting, &self.metrics, drafts);
            if let Some((accepted, rejected)) = drafts.counts() {
                self.outbox.push(&live.events, EngineEvent::Speculated { accepted, rejected });
            }
        }
    }

    /// Counts the draft under way of a sequence that ends.
    pub(super) fn close_draft(&mut self, drafts: &mut SequenceDrafts) {
        close(&mut self.drafting, &self.metrics, drafts);
    }
}

fn close(all: &mut Drafting, metrics: &Metrics, drafts: &mut SequenceDrafts) {
    let Some(Trial { source, matched, drafted, held, missed }) = drafts.trial.take() else { return };
    all.acceptance.record(matched, held, missed, &mut drafts.acceptance[source as usize]);
    all.accepted += held;
    drafts.accepted += held;
    drafts.rejected += drafted - held;
    metrics.record_draft(&DraftFigures { drafted, accepted: held });
}
