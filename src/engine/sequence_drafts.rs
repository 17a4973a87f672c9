//! Drafts of one sequence: its sources of guesses, the guess that is most likely to hold, and the draft under
//! way.

use std::sync::Arc;

use super::constrained::Constrained;
use super::guess_sources::GuessSources;
use crate::scheduler::Chunk;
use perigee_decoding::speculation::{Guess, Occurrences, Predicted, Prediction, SequenceAcceptance};

/// Drafts of one sequence.
pub(super) struct SequenceDrafts {
    index: Occurrences,
    prediction: Option<Prediction>,
    pub(super) salt: Option<Arc<str>>,
    /// Outcomes by source.
    acceptance: [SequenceAcceptance; 4],
    guess: Guess,
    source: Source,
    /// Sum of the chances of the guess.
    pub(super) worth: f32,
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
pub(super) enum Source {
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
pub(super) struct Trial {
    pub(super) source: Source,
    pub(super) matched: usize,
    pub(super) drafted: usize,
    pub(super) held: usize,
    /// Another token was sampled in place of the next one.
    pub(super) missed: bool,
}

impl SequenceDrafts {
    /// Nothing is indexed yet; places in the text match from `min_match` tokens on.
    pub(super) fn new(min_match: usize, prediction: Option<Arc<Predicted>>, salt: Option<&str>) -> Self {
        Self {
            index: Occurrences::new(min_match),
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
        }
    }

    /// Guesses what follows `tokens`, at most `limit` tokens, from the source of which most is likely
    /// to hold. `indexable` tokens may still be indexed in this step.
    pub(super) fn guess(
        &mut self,
        all: &mut GuessSources,
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
        all.guess_from_text(&self.index, self.salt.as_ref(), tokens, limit, &mut self.guess);
        self.worth = self.chances(all).sum();
        if let Some(mut prediction) = self.prediction.take() {
            all.other.clear();
            prediction.guess(&tokens[prompt_len..], limit, &mut all.other);
            self.prediction = Some(prediction);
            self.prefer(all, Source::Prediction);
        }
        if let Some(constraint) = constraint {
            all.guess_way(constraint, limit);
            self.prefer(all, Source::Way);
        }
    }

    /// Takes the guess in `all.other` in place of the present one if more of it is likely to hold.
    fn prefer(&mut self, all: &mut GuessSources, source: Source) {
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
    pub(super) fn chances(&self, all: &GuessSources) -> impl Iterator<Item = f32> + '_ {
        let chance = all.acceptance.chance(self.guess.matched, &self.acceptance[self.source as usize]);
        let products = std::iter::successors(Some(chance), move |product| Some(product * chance));
        self.guess.shares.iter().zip(products).map(|(share, product)| share * product)
    }

    /// Takes the draft model's guess if more of it is likely to hold.
    pub(super) fn offer(&mut self, all: &mut GuessSources, tokens: &[u32]) {
        all.other.set(tokens, Guess::MODEL);
        self.prefer(all, Source::Model);
    }

    /// Chance that a token of the draft model holds.
    pub(super) fn model_chance(&self, all: &GuessSources) -> f32 {
        all.acceptance.chance(Guess::MODEL, &self.acceptance[Source::Model as usize])
    }

    /// The first `len` guessed tokens.
    pub(super) fn guessed(&self, len: usize) -> &[u32] {
        &self.guess.tokens[..len]
    }

    /// Begins the trial of what a plan took of the guess; returns whether it took anything.
    pub(super) fn open(&mut self, chunk: &Chunk) -> bool {
        match chunk.draft.len() {
            0 => self.acceptance.iter_mut().for_each(SequenceAcceptance::idle),
            drafted => {
                let (source, matched) = (self.source, self.guess.matched);
                self.trial = Some(Trial { source, matched, drafted, held: 0, missed: false });
            }
        }
        !chunk.draft.is_empty()
    }

    /// Notes whether the next drafted token held, or another one was sampled in its place.
    pub(super) fn note_outcome(&mut self, held: bool, missed: bool) {
        if let Some(trial) = &mut self.trial {
            trial.held += usize::from(held);
            trial.missed = missed;
        }
    }

    /// Ends the trial under way.
    pub(super) fn close(&mut self) -> Option<Trial> {
        let trial = self.trial.take()?;
        self.accepted += trial.held;
        self.rejected += trial.drafted - trial.held;
        Some(trial)
    }

    /// Outcomes of a source's drafts.
    pub(super) fn outcomes_of(&mut self, source: Source) -> &mut SequenceAcceptance {
        &mut self.acceptance[source as usize]
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
