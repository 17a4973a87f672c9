//! Estimates of how much of a draft will hold.
//!
//! The chance that a drafted token holds, given that those before it did, is estimated for each
//! length of the match that it came from, over all sequences, and corrected by what the sequence
//! itself has seen. Estimates that nothing confirms return to their prior, so that a source of
//! drafts that was switched off is tried again.

use super::guess::Guess;
use super::occurrences::Occurrences;

/// Upper bounds of the match lengths that share an estimate; the last classes are those of
/// [`Guess::MODEL`] and [`Guess::WAY`].
const CLASSES: [usize; 8] = [1, 2, 4, 8, 16, Occurrences::MAX_MATCH, Guess::MODEL, Guess::WAY];
/// First estimate of each class: the chance that the next token after such a match is the same.
const PRIOR: [f32; CLASSES.len()] = [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.8, 0.7];
/// Weight of one outcome in the estimate of its class.
const WEIGHT: f32 = 0.02;
/// Share of the way to the prior that an estimate returns in one step.
const RETURN: f32 = 1.0 / 1024.0;
/// Outcomes of a sequence that weigh as much as the estimate of the class.
const PRIOR_OUTCOMES: f32 = 2.0;
/// Share of a sequence's outcomes that remains after another draft.
const MEMORY: f32 = 0.85;
/// Share of a sequence's outcomes that remains after a step without a draft.
const IDLE_MEMORY: f32 = 0.99;

/// Estimates over all sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct Acceptance {
    chances: [f32; CLASSES.len()],
}

/// Outcomes of one sequence, fading.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SequenceAcceptance {
    tried: f32,
    held: f32,
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { chances: PRIOR }
    }
}

impl Acceptance {
    /// Lets time pass: one step.
    pub fn step(&mut self) {
        for (chance, prior) in self.chances.iter_mut().zip(PRIOR) {
            *chance += RETURN * (prior - *chance);
        }
    }

    /// Chance that a token drafted after `matched` equal tokens holds if those before it did.
    pub fn chance(&self, matched: usize, sequence: &SequenceAcceptance) -> f32 {
        let prior = PRIOR_OUTCOMES * self.chances[class(matched)];
        (sequence.held + prior) / (sequence.tried + PRIOR_OUTCOMES)
    }

    /// Records a checked draft: `held` of its tokens held, and `missed` says whether another one was
    /// sampled in place of the next.
    pub fn record(&mut self, matched: usize, held: usize, missed: bool, sequence: &mut SequenceAcceptance) {
        let chance = &mut self.chances[class(matched)];
        for _ in 0..held {
            *chance += WEIGHT * (1.0 - *chance);
        }
        if missed {
            *chance -= WEIGHT * *chance;
        }
        sequence.fade(MEMORY);
        sequence.held += held as f32;
        sequence.tried += held as f32 + f32::from(u8::from(missed));
    }
}

impl SequenceAcceptance {
    /// Lets a step without a draft pass.
    pub fn idle(&mut self) {
        self.fade(IDLE_MEMORY);
    }

    fn fade(&mut self, keep: f32) {
        self.held *= keep;
        self.tried *= keep;
    }
}

fn class(matched: usize) -> usize {
    CLASSES.iter().position(|bound| matched <= *bound).unwrap_or(CLASSES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_soon_goes_its_own_way_and_returns() {
        let mut all = Acceptance::default();
        let (mut bad, mut good) = (SequenceAcceptance::default(), SequenceAcceptance::default());
        let before = all.chance(4, &bad);
        for _ in 0..5 {
            all.record(4, 0, true, &mut bad);
            all.record(4, 4, false, &mut good);
        }
        assert!(all.chance(4, &bad) < 0.3 && all.chance(4, &good) > 0.9);
        for _ in 0..1000 {
            bad.idle();
        }
        assert!((all.chance(4, &bad) - before).abs() < 0.15);
    }

    #[test]
    fn classes_are_apart_and_forget() {
        let mut all = Acceptance::default();
        for _ in 0..500 {
            all.record(1, 0, true, &mut SequenceAcceptance::default());
        }
        let fresh = SequenceAcceptance::default();
        assert!(all.chance(1, &fresh) < 0.01);
        assert!((all.chance(2, &fresh) - PRIOR[1]).abs() < 1e-6);
        for _ in 0..5000 {
            all.step();
        }
        assert!(all.chance(1, &fresh) > 0.25);
        assert!((all.chance(32, &fresh) - PRIOR[5]).abs() < 1e-6);
    }
}
