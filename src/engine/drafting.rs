//! Drafts of all sequences: proposed before a plan, checked behind its first draws by [`Trials`].
//!
//! Invariant: every token of a reply is sampled from its own row, with the state that the tokens
//! before it leave; what is drafted can therefore change the time of a reply and nothing else.

use std::sync::Arc;
use std::time::Duration;

use super::guess_sources::GuessSources;
use super::model_drafts::ModelDrafts;
use super::request::Speculation;
use super::sequence_drafts::SequenceDrafts;
use super::sequences::{Live, Sequences};
use super::trials::Trials;
use crate::scheduler::{Batch, Scheduler, SeqId};
use perigee_decoding::speculation::{Config, Guess, SequenceAcceptance, StepCost};
use perigee_model::Model;
use perigee_ops::Backend;
use perigee_telemetry::{DraftSkip, Metrics};

/// Tokens that are indexed in one step, over all sequences: about 0.2 ms. Long prompts take several.
const INDEXED_PER_STEP: usize = 16 << 10;

/// Drafts of all sequences.
pub(super) struct Drafting {
    config: Config,
    /// Seconds of decode steps; read where `config.adaptive`.
    cost: StepCost,
    sources: GuessSources,
    /// The draft model, if there is one and it works.
    model: Option<ModelDrafts>,
    pub(super) trials: Trials,
    metrics: Arc<Metrics>,
    /// Scratch: decoding sequences, the chances of their guesses, guesses of the draft model.
    decoding: Vec<SeqId>,
    chances: Vec<Vec<f32>>,
    of_model: Vec<(SeqId, Vec<u32>)>,
}

/// Rows of a turn, by which the cost of guesses is judged.
struct Room {
    /// Decoding sequences, each of which has a row without a draft.
    base: usize,
    /// Most rows of the step.
    max_rows: usize,
    /// A step without drafts is due, for its time to be known.
    plain_due: bool,
}

impl Drafting {
    pub(super) fn new(
        config: Config,
        cost: StepCost,
        model: Option<ModelDrafts>,
        vocab_size: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            sources: GuessSources::new(&config, vocab_size),
            cost,
            config,
            model,
            trials: Trials::default(),
            metrics,
            decoding: Vec::new(),
            chances: Vec::new(),
            of_model: Vec::new(),
        }
    }

    /// Drafts of a new sequence; `None` where there are none.
    pub(super) fn open(&self, wanted: &Speculation, salt: Option<&str>) -> Option<Box<SequenceDrafts>> {
        let on = wanted.wanted && self.config.is_on();
        on.then(|| Box::new(SequenceDrafts::new(self.config.min_match, wanted.prediction.clone(), salt)))
    }

    /// Guesses the next tokens of the decoding sequences, and gives the scheduler as much of each
    /// guess as pays. Returns whether anything does: a sequence whose last token is not settled gets
    /// nothing, and should be settled first; so should a step whose rows the draft model reads.
    pub(super) fn propose<B: Backend>(
        &mut self,
        is_in_flight: bool,
        sequences: &mut Sequences,
        model: &mut Model<B>,
    ) -> bool {
        if !self.config.is_on() {
            return false;
        }
        self.model.iter_mut().for_each(|of_model| of_model.spent = Duration::ZERO);
        let mut decoding = std::mem::take(&mut self.decoding);
        decoding.clear();
        decoding.extend(sequences.scheduler.decoding());
        let room = self.room(decoding.len(), &sequences.scheduler, model);
        let model_reads = is_in_flight && self.model.as_ref().is_some_and(ModelDrafts::has_captured);
        let pays = if model_reads && self.model_len(&decoding, &room, &sequences.live) > 0 {
            true
        } else {
            self.guess(&decoding, &room, is_in_flight, sequences, model)
        };
        self.decoding = decoding;
        pays
    }

    fn room<B: Backend>(&self, base: usize, scheduler: &Scheduler, model: &Model<B>) -> Room {
        let capacity = model.capacity();
        let mut max_rows = capacity.max_logits_rows.min(capacity.max_tokens);
        if self.config.adaptive {
            max_rows = max_rows.min(base.saturating_add(scheduler.most_drafted_tokens()));
        }
        Room { base, max_rows, plain_due: self.config.adaptive && self.cost.is_plain_due() }
    }

    /// Guesses for each decoding sequence from all sources; returns whether a guess pays and is drafted.
    fn guess<B: Backend>(
        &mut self,
        decoding: &[SeqId],
        room: &Room,
        is_in_flight: bool,
        sequences: &mut Sequences,
        model: &mut Model<B>,
    ) -> bool {
        // Guesses are made only if the best of them could pay.
        let could_pay = match self.config.adaptive {
            true => !room.plain_due && self.cost.could_pay(room.base, room.max_rows, self.config.max_tokens),
            false => room.base < room.max_rows,
        };
        let mut chances = std::mem::take(&mut self.chances);
        chances.resize_with(room.base, Vec::new);
        chances.iter_mut().for_each(Vec::clear);
        let mut guessed = could_pay && self.guess_on_host(decoding, sequences, &mut chances);
        if !is_in_flight {
            guessed |= self.guess_with_model(decoding, room, &mut chances, sequences, model);
        }
        let mut pays = false;
        if guessed {
            pays = self.share_out(decoding, room, &chances, sequences);
        } else if room.base > 0 && !could_pay && !room.plain_due {
            self.metrics.record_draft_skips(DraftSkip::Load, room.base);
        }
        self.chances = chances;
        pays
    }

    /// Guesses from text, predictions and constraints; fills the chances of each guess. Returns whether
    /// there are any.
    fn guess_on_host(
        &mut self,
        decoding: &[SeqId],
        sequences: &mut Sequences,
        chances: &mut [Vec<f32>],
    ) -> bool {
        let Sequences { scheduler, live, .. } = sequences;
        let (mut guessed, mut indexable) = (false, INDEXED_PER_STEP);
        for (seq, chances) in decoding.iter().zip(chances) {
            let Some(live) = live.get_mut(seq) else { continue };
            let Some(drafts) = live.drafts.as_deref_mut() else { continue };
            let limit = self.config.max_tokens.min(scheduler.tokens_left(*seq).saturating_sub(1));
            let (tokens, prompt_len) = (scheduler.tokens(*seq), scheduler.prompt_len(*seq));
            drafts.guess(
                &mut self.sources,
                live.constraint.as_ref(),
                tokens,
                prompt_len,
                limit,
                &mut indexable,
            );
            chances.extend(drafts.chances(&self.sources));
            guessed |= !chances.is_empty();
        }
        guessed
    }

    /// Has the draft model read the last step, and guess for the sequences whose present guess is worth
    /// less than its own is likely to be; in front of a step without drafts it only reads. Returns
    /// whether it guessed anything.
    fn guess_with_model<B: Backend>(
        &mut self,
        decoding: &[SeqId],
        room: &Room,
        chances: &mut [Vec<f32>],
        sequences: &mut Sequences,
        model: &mut Model<B>,
    ) -> bool {
        let len = self.model_len(decoding, room, &sequences.live);
        if len == 0 {
            self.model.iter_mut().for_each(|of_model| of_model.skip_captured(&mut sequences.live));
            return false;
        }
        let Some(mut of_model) = self.model.take() else { return false };
        let wanted = |seq: &SeqId| {
            let drafts = drafts_of(&sequences.live, seq)
                .filter(|drafts| !room.plain_due && !drafts.model_is_behind)?;
            let chance = drafts.model_chance(&self.sources);
            let worth: f32 = std::iter::successors(Some(chance), |hold| Some(hold * chance)).take(len).sum();
            let limit = len.min(sequences.scheduler.tokens_left(*seq).saturating_sub(1));
            (worth > drafts.worth).then_some((*seq, limit))
        };
        let wanted: Vec<_> = decoding.iter().filter_map(wanted).collect();
        let mut guesses = std::mem::take(&mut self.of_model);
        guesses.clear();
        match of_model.guess(&wanted, &mut guesses, sequences, model) {
            Ok(()) => self.model = Some(of_model),
            Err(fault) => {
                tracing::warn!(
                    reason = %fault,
                    "the draft model failed and is switched off; replies are not affected"
                );
                self.metrics.record_draft_skips(DraftSkip::Fault, 1);
                model.drop_draft();
                guesses.clear();
            }
        }
        for (seq, tokens) in &guesses {
            let index = decoding.iter().position(|decoding| decoding == seq);
            let drafts = sequences.live.get_mut(seq).and_then(|live| live.drafts.as_deref_mut());
            if let (Some(index), Some(drafts)) = (index, drafts) {
                drafts.offer(&mut self.sources, tokens);
                chances[index].clear();
                chances[index].extend(drafts.chances(&self.sources));
            }
        }
        self.of_model = guesses;
        !self.of_model.is_empty()
    }

    /// How many tokens the draft model should draft for each decoding sequence, by what held of its drafts
    /// for them; 0 without a model.
    fn model_len(&self, decoding: &[SeqId], room: &Room, live: &Live) -> usize {
        let Some(of_model) = &self.model else { return 0 };
        if !self.config.adaptive {
            return self.config.max_tokens;
        }
        let drafts = decoding.iter().filter_map(|seq| drafts_of(live, seq));
        let (mut sum, mut known) = (0.0, 0);
        for drafts in drafts.filter(|drafts| !drafts.model_is_behind) {
            sum += drafts.model_chance(&self.sources);
            known += 1;
        }
        let chance = match known {
            0 => self.sources.acceptance.chance(Guess::MODEL, &SequenceAcceptance::default()),
            _ => sum / known as f32,
        };
        let (base, most) = (decoding.len().max(1), self.config.max_tokens);
        self.cost.model_draft_len(base, room.max_rows, most, f64::from(chance), of_model.cost())
    }

    /// Gives the scheduler the tokens of each guess that are worth their rows; returns whether any are.
    fn share_out(
        &self,
        decoding: &[SeqId],
        room: &Room,
        chances: &[Vec<f32>],
        sequences: &mut Sequences,
    ) -> bool {
        let lens = self.share_rows(room, chances);
        let skipped = chances.iter().zip(&lens).filter(|(chances, len)| !chances.is_empty() && **len == 0);
        self.metrics.record_draft_skips(DraftSkip::Cost, skipped.count());
        let mut pays = false;
        for (seq, len) in decoding.iter().zip(lens).filter(|(_, len)| *len > 0) {
            if let Some(drafts) = drafts_of(&sequences.live, seq) {
                sequences.scheduler.set_draft(*seq, drafts.guessed(len));
                pays = true;
            }
        }
        pays
    }

    /// How many tokens of each guess are worth their rows.
    fn share_rows(&self, room: &Room, chances: &[Vec<f32>]) -> Vec<usize> {
        if self.config.adaptive {
            return self.cost.share_rows(room.base, room.max_rows, chances);
        }
        let mut left = room.max_rows.saturating_sub(room.base);
        let lens = chances.iter().map(|chances| {
            let len = chances.len().min(left);
            left -= len;
            len
        });
        lens.collect()
    }

    /// Time that the draft model took since the last proposal began.
    pub(super) fn model_time(&self) -> Duration {
        self.model.as_ref().map_or(Duration::ZERO, |of_model| of_model.spent)
    }

    /// Opens the drafts that a plan took.
    pub(super) fn note_plan<B: Backend>(
        &mut self,
        batch: &mut Batch,
        sequences: &mut Sequences,
        model: &Model<B>,
    ) {
        if self.config.is_on() {
            self.sources.acceptance.step();
            self.trials.open(batch, model.capacity().max_logits_rows, sequences);
        }
    }

    /// Notes the rows of a step that was just computed, for the draft model to read.
    pub(super) fn note_computed(&mut self, batch: &Batch, live: &mut Live) {
        self.model.iter_mut().for_each(|of_model| of_model.capture(batch, live));
    }

    /// Keeps the first `keep` tokens of a reply that ends, for the drafts of later ones.
    pub(super) fn learn(&mut self, seq: SeqId, keep: usize, sequences: &Sequences) {
        if let Some(drafts) = drafts_of(&sequences.live, &seq) {
            let scheduler = &sequences.scheduler;
            let reply = &scheduler.tokens(seq)[scheduler.prompt_len(seq)..];
            self.sources.learn(drafts.salt.as_ref(), &reply[..keep.min(reply.len())]);
        }
    }

    /// Counts the drafts of a step whose rows are all settled.
    pub(super) fn close(&mut self, sequences: &mut Sequences) {
        self.trials.close(&mut self.sources, sequences, &self.metrics);
    }

    /// Observes a step that did nothing but decode `sequences` sequences with `rows` rows, `model` of
    /// its time in the draft model. Returns the seconds that its drafts saved: what as many tokens
    /// would have taken without.
    pub(super) fn observe(&mut self, sequences: usize, rows: usize, time: Duration, model: Duration) -> f64 {
        if !self.config.is_on() || sequences == 0 {
            return 0.0;
        }
        let (time, steps) = (time.as_secs_f64(), 1.0 + self.trials.accepted() as f64 / sequences as f64);
        let drafts = rows > sequences;
        let saved = if drafts { steps * self.cost.seconds(sequences) - time } else { 0.0 };
        self.cost.observe(rows, drafts, time - model.as_secs_f64());
        saved
    }
}

fn drafts_of<'a>(live: &'a Live, seq: &SeqId) -> Option<&'a SequenceDrafts> {
    live.get(seq).and_then(|live| live.drafts.as_deref())
}
