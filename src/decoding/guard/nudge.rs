//! Changes to generation after a rescue, so that the model does not write the same loop again.
//!
//! Every change follows from the position in the reply and the tokens before it: at temperature 0 a
//! rescued reply is as deterministic as any other.

use std::collections::HashMap;

/// Tokens of the forbidden phrases. A general ban of repeated n-grams destroys code and lists, so
/// only the discarded loop's are forbidden.
const GRAM: usize = 4;

/// The effect of one rescue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nudge {
    /// Reply tokens that were kept.
    pub at: usize,
    /// Last position of the ban.
    until: usize,
    /// Last three tokens → tokens that would complete a phrase of the loop.
    forbidden: HashMap<[u32; GRAM - 1], Vec<u32>>,
    /// Whether thinking is closed from `at` on.
    pub closes_thinking: bool,
}

impl Nudge {
    /// The effect of a rescue that kept `at` tokens. `unit` repeats; `said` holds variants of it.
    pub(super) fn new(at: usize, ban: usize, unit: &[u32], said: &[u32], closes_thinking: bool) -> Self {
        let mut forbidden: HashMap<[u32; GRAM - 1], Vec<u32>> = HashMap::new();
        let cycle: Vec<u32> = unit.iter().copied().cycle().take(unit.len() + GRAM - 1).collect();
        for window in cycle.windows(GRAM).chain(said.windows(GRAM)) {
            let (&last, before) = window.split_last().expect("windows have a length");
            let before: [u32; GRAM - 1] = before.try_into().expect("one less");
            let tokens = forbidden.entry(before).or_default();
            if !tokens.contains(&last) {
                tokens.push(last);
            }
        }
        Self { at, until: at + ban, forbidden, closes_thinking }
    }

    /// Tokens that may not follow `tokens`.
    pub(super) fn forbidden_after(&self, tokens: &[u32]) -> &[u32] {
        if tokens.len() >= self.until || tokens.len() < GRAM - 1 {
            return &[];
        }
        let last: [u32; GRAM - 1] = tokens[tokens.len() + 1 - GRAM..].try_into().expect("three tokens");
        self.forbidden.get(&last).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_cannot_go_on_and_other_words_can() {
        let nudge = Nudge::new(10, 100, &[1, 2, 3], &[], false);
        let after = |tail: &[u32]| {
            let mut tokens = vec![9; 12];
            tokens.extend(tail);
            nudge.forbidden_after(&tokens).to_vec()
        };
        assert_eq!(after(&[1, 2, 3]), [1]);
        assert_eq!(after(&[2, 3, 1]), [2]);
        assert!(after(&[1, 2, 2]).is_empty());
        assert_eq!(Nudge::new(0, 100, &[7], &[], false).forbidden_after(&[7, 7, 7]), [7]);
        assert!(nudge.forbidden_after(&[1; 200]).is_empty(), "the ban ends");
        let said = Nudge::new(0, 100, &[], &[1, 2, 3, 4, 1, 2, 3, 5], false);
        assert_eq!(said.forbidden_after(&[1, 2, 3]), [4, 5]);
    }
}
