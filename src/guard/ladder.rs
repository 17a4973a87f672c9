//! What changes in sampling after a rescue, so that the model does not walk into the same loop again.
//!
//! Everything is decided by the position in the reply and by the tokens there: at temperature 0 a rescued reply is as deterministic as any.

use std::collections::HashMap;

/// Tokens of the forbidden phrases. A general ban of repeated n-grams destroys code and lists, so only the discarded loop's are forbidden.
const GRAM: usize = 4;
/// Tokens after a rescue that are drawn at a higher temperature, if any is in use.
const HOT_TOKENS: usize = 32;
/// Tokens after the second rescue in which the end of the turn is taken at the end of a sentence, if it is likely at all.
const END_TOKENS: usize = 128;
/// Added to a temperature above 0.
const HEAT: f32 = 0.2;

/// One rescue's effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nudge {
    /// Reply tokens that were kept.
    at: usize,
    /// Last position of the ban.
    until: usize,
    /// From the last three tokens to those that would complete a phrase of the loop.
    forbidden: HashMap<[u32; GRAM - 1], Vec<u32>>,
    /// Whether thinking is closed from `at` on.
    closes_thinking: bool,
    /// Whether an end of the turn is welcome.
    wants_end: bool,
}

impl Nudge {
    /// After a rescue that kept `at` tokens. `unit` repeats; `discarded` is what was there of it. `times` counts rescues before this one.
    pub(super) fn new(
        at: usize,
        ban: usize,
        unit: &[u32],
        discarded: &[u32],
        closes: bool,
        times: usize,
    ) -> Self {
        let mut forbidden: HashMap<[u32; GRAM - 1], Vec<u32>> = HashMap::new();
        let cycle = unit.len() + GRAM - 1;
        let turns: Vec<u32> =
            unit.iter().copied().cycle().take(if unit.is_empty() { 0 } else { cycle }).collect();
        for window in turns.windows(GRAM).chain(discarded.windows(GRAM)) {
            let (&last, before) = window.split_last().expect("windows have a length");
            let before: [u32; GRAM - 1] = before.try_into().expect("one less");
            let tokens = forbidden.entry(before).or_default();
            if !tokens.contains(&last) {
                tokens.push(last);
            }
        }
        Self { at, until: at + ban, forbidden, closes_thinking: closes, wants_end: times > 0 }
    }

    /// Reply tokens that were kept.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Where the tokens that close thinking begin, if they do.
    pub(super) fn closes_at(&self) -> Option<usize> {
        self.closes_thinking.then_some(self.at)
    }

    /// Tokens that may not follow.
    pub(super) fn forbidden_after(&self, tokens: &[u32]) -> &[u32] {
        if tokens.len() >= self.until || tokens.len() < GRAM - 1 {
            return &[];
        }
        let last: [u32; GRAM - 1] = tokens[tokens.len() + 1 - GRAM..].try_into().expect("three tokens");
        self.forbidden.get(&last).map_or(&[], Vec::as_slice)
    }

    /// A temperature for the token at `position`: a greedy request stays greedy.
    pub(super) fn heated(&self, temperature: f32, position: usize) -> f32 {
        let hot = temperature > 0.0 && (self.at..self.at + HOT_TOKENS).contains(&position);
        if hot { (temperature + HEAT).min(1.0).max(temperature) } else { temperature }
    }

    /// Whether the reply may end at `position`.
    pub(super) fn may_end(&self, position: usize) -> bool {
        self.wants_end && (self.at..self.at + END_TOKENS).contains(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_cannot_go_on_and_other_words_can() {
        let nudge = Nudge::new(10, 100, &[1, 2, 3], &[], false, 0);
        let after = |tail: &[u32]| {
            let mut tokens = vec![9; 12];
            tokens.extend(tail);
            nudge.forbidden_after(&tokens).to_vec()
        };
        assert_eq!(after(&[1, 2, 3]), [1]);
        assert_eq!(after(&[2, 3, 1]), [2]);
        assert!(after(&[1, 2, 2]).is_empty());
        assert_eq!(Nudge::new(0, 100, &[7], &[], false, 0).forbidden_after(&[7, 7, 7]), [7]);
        assert!(nudge.forbidden_after(&[1; 200]).is_empty(), "the ban ends");
        let said = Nudge::new(0, 100, &[], &[1, 2, 3, 4, 1, 2, 3, 5], false, 0);
        assert_eq!(said.forbidden_after(&[1, 2, 3]), [4, 5]);
    }

    #[test]
    fn heat_and_end_have_their_time() {
        let first = Nudge::new(10, 100, &[1], &[], false, 0);
        let second = Nudge::new(10, 100, &[1], &[], false, 1);
        assert_eq!((first.heated(0.0, 11), first.heated(0.7, 9), first.heated(0.7, 42)), (0.0, 0.7, 0.7));
        assert!((first.heated(0.7, 11) - 0.9).abs() < 1e-6);
        assert_eq!((first.heated(0.9, 11), first.heated(1.5, 11)), (1.0, 1.5), "never colder");
        assert!(!first.may_end(20) && second.may_end(20) && !second.may_end(500));
    }
}
