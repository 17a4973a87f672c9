//! Repetitions under way that have been looked up in the licence, and what it said of their units.

use super::tiers::code_multiplier;
use super::{Allowance, Licence, Permit, Phase, Repeat, hard_threshold, noisy_threshold, phase_multiplier};

/// Most of them: noise breaks a repetition off again and again, and its unit stays the same.
const MAX_ANSWERS: usize = 16;
/// Repetition without limit is reported when it is this long.
const UNLIMITED_RUN: u32 = 16_384;

/// A repetition that is under way and has been looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Watched {
    /// The distance that is followed.
    pub period: u32,
    /// The shortest unit that makes the same stretch.
    pub unit: u32,
    /// The run of the unit at which it is a loop, in place of the threshold.
    pub limit: u32,
    /// The same for the score.
    pub noisy_limit: u32,
    /// The prompt permits more than the threshold.
    pub licensed: bool,
    /// The prompt permits more than the threshold for noise.
    pub noisy_licensed: bool,
    /// The prompt wants no end of it.
    pub unlimited: bool,
    /// Tokens of the reply when the licence was asked.
    pub asked_at: usize,
    /// The part of the score that something licensed made, which stood there before.
    pub licensed_score: u32,
    /// The unit is code or data: brackets, numbers.
    pub code: bool,
    /// It was held long enough; what comes of it is delivered.
    pub unheld: bool,
    /// It passed the threshold by licence, and that was said.
    pub said: bool,
}

impl Watched {
    /// `repeat` with a unit of `unit` tokens, looked up after `asked_at` tokens of the reply, in place of what was known of it `before`.
    pub(super) fn new(
        repeat: Repeat,
        unit: u32,
        permit: Permit,
        asked_at: usize,
        code: bool,
        before: Option<&Self>,
    ) -> Self {
        let (threshold, noisy_threshold) = (hard_threshold(unit), noisy_threshold(repeat.period));
        let unlimited = permit.exact == Allowance::Unlimited || permit.varied == Allowance::Unlimited;
        let most = if unlimited { UNLIMITED_RUN } else { u32::MAX };
        let limit = permit.exact.limit(unit, threshold).min(most.max(threshold));
        let varied = permit.varied.limit(repeat.period, noisy_threshold).min(most.max(noisy_threshold));
        let licensed = limit > threshold;
        let noisy_limit = if licensed { varied.max(limit) } else { varied };
        let licensed_score = match before {
            Some(w) if w.licensed && !licensed => repeat.score.saturating_sub(repeat.run),
            Some(w) => w.licensed_score,
            None => 0,
        };
        // What was reported as noise is not reported again while it lasts.
        let reported = before.is_some_and(|w| w.noisy_limit == u32::MAX);
        Self {
            period: repeat.period,
            unit,
            limit,
            noisy_limit: if reported { u32::MAX } else { noisy_limit },
            licensed,
            noisy_licensed: noisy_limit > noisy_threshold,
            unlimited,
            asked_at,
            licensed_score,
            code,
            unheld: false,
            said: before.is_some_and(|w| w.said),
        }
    }

    /// Whether it was silenced.
    pub(super) fn is_silent(&self) -> bool {
        self.limit == u32::MAX && self.noisy_limit == u32::MAX && self.unheld
    }

    /// The run of its unit: that of a multiple, where that is whole, and what lies between.
    pub(super) fn run(&self, repeat: &Repeat) -> u32 {
        if repeat.run < self.period { repeat.run } else { repeat.run + (self.period - self.unit) }
    }

    /// Nothing more is said of it while it lasts.
    pub(super) fn silence(&mut self) {
        (self.limit, self.noisy_limit) = (u32::MAX, u32::MAX);
        (self.licensed, self.noisy_licensed, self.unheld, self.said) = (true, true, true, true);
    }

    /// How much longer it may be in `phase`, where it repeats exactly.
    pub(super) fn multiplier(&self, phase: Phase) -> u32 {
        if self.code && phase.is_open() {
            code_multiplier(self.unit)
        } else {
            phase_multiplier(phase, self.unit)
        }
    }
}

/// What the licence said of units, in the order of asking: each is asked about once, wherever it begins.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers(Vec<(u64, Permit)>);

impl Answers {
    /// What `licence` says of a unit.
    pub(super) fn permit(&mut self, licence: &dyn Licence, unit: &[u32]) -> Permit {
        let hash = cyclic_hash(unit);
        if let Some((_, permit)) = self.0.iter().find(|(known, _)| *known == hash) {
            return *permit;
        }
        let permit = licence.permit(unit);
        if self.0.len() == MAX_ANSWERS {
            self.0.remove(0);
        }
        self.0.push((hash, permit));
        permit
    }
}

/// A hash of the unit's neighbours, three at a time: the same for all its rotations.
fn cyclic_hash(unit: &[u32]) -> u64 {
    let step =
        |hash: u64, token: u32| (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let around = unit.iter().cycle();
    let triples = unit.iter().zip(around.clone().skip(1)).zip(around.skip(2));
    let hashes = triples.map(|((&a, &b), &c)| step(step(step(unit.len() as u64, a), b), c));
    hashes.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Counts how often it is asked.
    #[derive(Debug, Default)]
    struct Counts(AtomicU32);

    impl Licence for Counts {
        fn permit(&self, unit: &[u32]) -> Permit {
            self.0.fetch_add(1, Ordering::Relaxed);
            Permit { exact: Allowance::Copies(unit.len() as u32), ..Permit::NONE }
        }
    }

    #[test]
    fn the_licence_is_asked_once_of_a_unit_wherever_it_begins() {
        let (mut answers, licence) = (Answers::default(), Counts::default());
        let unit: Vec<u32> = (0..40).map(|at| at * at % 23).collect();
        for turn in 0..unit.len() {
            let rotated = [&unit[turn..], &unit[..turn]].concat();
            assert_eq!(answers.permit(&licence, &rotated).exact, Allowance::Copies(40));
        }
        assert_eq!(licence.0.load(Ordering::Relaxed), 1);
        for other in [&[7][..], &[7, 7], &[7, 8, 9], &[7, 9, 8]] {
            assert_eq!(answers.permit(&licence, other).exact, Allowance::Copies(other.len() as u32));
        }
        assert_eq!(licence.0.load(Ordering::Relaxed), 5, "another order is another unit");
        for token in 0..100 {
            answers.permit(&licence, &[token, 1000, token]);
        }
        assert_eq!(answers.0.len(), MAX_ANSWERS);
    }
}
