//! A draft made of what followed like places.

use super::occurrences::{Occurrences, Place};

/// Least product of shares that a drafted token needs (arXiv 2411.04975, `min_token_prob`).
const MIN_CHANCE: f32 = 0.1;

/// A drafted continuation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Guess {
    /// Drafted tokens in order.
    pub tokens: Vec<u32>,
    /// For each token the product, up to it, of the shares of the places that it followed.
    pub shares: Vec<f32>,
    /// Equal tokens before the places, 0 for an empty guess; or [`Guess::WAY`], [`Guess::MODEL`].
    pub matched: usize,
    places: Vec<Place>,
    alive: Vec<usize>,
    trial: (Vec<u32>, Vec<f32>),
}

impl Guess {
    /// [`Guess::matched`] of a guess that follows no text but a grammar's way to the end of the
    /// reply.
    pub const WAY: usize = usize::MAX;
    /// [`Guess::matched`] of a guess of a draft model.
    pub const MODEL: usize = usize::MAX - 1;

    /// Empties the guess and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.shares.clear();
        self.matched = 0;
    }

    /// Sets the guess to tokens of which nothing says that another one is likelier.
    pub fn set(&mut self, tokens: &[u32], matched: usize) {
        self.clear();
        self.tokens.extend_from_slice(tokens);
        self.shares.resize(tokens.len(), 1.0);
        self.matched = matched;
    }

    /// Sum of the shares: the tokens that the guess is worth if every place is as good as another.
    fn score(&self) -> f32 {
        self.shares.iter().sum()
    }

    /// What followed the longest match of the end of `text` within it, of equally long ones the
    /// latest; at most `limit` tokens.
    pub fn longest(&mut self, index: &Occurrences, text: &[u32], limit: usize) {
        let mut places = std::mem::take(&mut self.places);
        index.find(text, text, &mut places);
        self.clear();
        // `min_by_key` keeps the first of equals.
        if let Some(place) = places.iter().min_by_key(|place| std::cmp::Reverse(place.matched)) {
            for offset in 0..limit {
                let token = behind(text, place.next + offset, &self.tokens);
                self.tokens.push(token);
            }
            self.shares.resize(self.tokens.len(), 1.0);
            self.matched = place.matched;
        }
        self.places = places;
    }

    /// Replaces the guess by the likeliest continuation of `text` if that one is worth more, or as
    /// much after a longer match; at most `limit` tokens.
    ///
    /// For each length of a match the places that have it vote: the token that follows most of them
    /// is drafted, those that have another one are left behind, and its share of the votes is
    /// multiplied to the shares before it. The best sum of these products is the guess.
    pub fn vote(&mut self, index: &Occurrences, text: &[u32], limit: usize) {
        self.vote_in(index, text, text, limit);
    }

    /// [`Guess::vote`] for the text that ends with `end`, with places in another text.
    pub fn vote_in(&mut self, index: &Occurrences, text: &[u32], end: &[u32], limit: usize) {
        let mut places = std::mem::take(&mut self.places);
        index.find(text, end, &mut places);
        let mut bound = usize::MAX;
        // From the longest match down.
        while let Some(matched) = places.iter().map(|place| place.matched).filter(|len| *len < bound).max() {
            bound = matched;
            self.follow(&places, matched, text, limit);
            let score: f32 = self.trial.1.iter().sum();
            if score > self.score() || (score == self.score() && matched > self.matched) {
                std::mem::swap(&mut self.tokens, &mut self.trial.0);
                std::mem::swap(&mut self.shares, &mut self.trial.1);
                self.matched = matched;
            }
        }
        self.places = places;
    }

    /// Sets `trial` to what the places with at least `matched` equal tokens vote for.
    fn follow(&mut self, places: &[Place], matched: usize, text: &[u32], limit: usize) {
        let (tokens, shares) = &mut self.trial;
        tokens.clear();
        shares.clear();
        let mut alive = std::mem::take(&mut self.alive);
        alive.clear();
        alive.extend(places.iter().filter(|place| place.matched >= matched).map(|place| place.next));
        let mut share = 1.0;
        while tokens.len() < limit {
            let said = |next: usize| behind(text, next + tokens.len(), tokens);
            let votes = |token: u32| alive.iter().filter(|next| said(**next) == token).count();
            // The latest place comes first and wins a tie.
            let mut best: Option<(u32, usize)> = None;
            for token in alive.iter().map(|next| said(*next)) {
                if best.is_none_or(|(_, most)| votes(token) > most) {
                    best = Some((token, votes(token)));
                }
            }
            let Some((token, count)) = best.filter(|(token, _)| *token != BORDER) else { break };
            share *= count as f32 / alive.len() as f32;
            if share < MIN_CHANCE {
                break;
            }
            alive.retain(|next| said(*next) == token);
            tokens.push(token);
            shares.push(share);
        }
        self.alive = alive;
    }
}

/// Ends a text that a guess must not run over; no token has this id.
pub(super) const BORDER: u32 = u32::MAX;

/// Token `index` of `text` followed by `tokens`: a match that runs into the end of the text goes on
/// with its own beginning, as repetitions do.
fn behind(text: &[u32], index: usize, tokens: &[u32]) -> u32 {
    text.get(index).copied().unwrap_or_else(|| tokens[index - text.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_of(text: &[u32], gram: usize) -> Occurrences {
        let mut index = Occurrences::new(gram);
        index.extend(text, usize::MAX);
        index
    }

    #[test]
    fn the_longest_match_goes_before_a_later_one() {
        let text = [1, 2, 3, 4, 7, 2, 3, 5, 5, 1, 2, 3];
        let mut guess = Guess::default();
        guess.longest(&index_of(&text, 2), &text, 3);
        assert_eq!((&guess.tokens[..], guess.matched), (&[4, 7, 2][..], 3));
        guess.longest(&index_of(&text[..11], 2), &text[..11], 3);
        assert_eq!((&guess.tokens[..], guess.matched), (&[3, 4, 7][..], 2));
        guess.longest(&index_of(&[1, 2, 3], 2), &[1, 2, 3], 3);
        assert_eq!((guess.tokens.len(), guess.matched), (0, 0));
    }

    #[test]
    fn a_repetition_is_drafted_past_the_end_of_the_text() {
        let text = [9, 1, 2, 1, 2, 1, 2];
        for votes in [false, true] {
            let (mut guess, index) = (Guess::default(), index_of(&text, 2));
            if votes {
                guess.vote(&index, &text, 6)
            } else {
                guess.longest(&index, &text, 6)
            }
            assert_eq!(guess.tokens, [1, 2, 1, 2, 1, 2]);
        }
    }

    #[test]
    fn the_majority_is_followed_and_shares_are_multiplied() {
        // After 1 2: twice 5 6, once 7.
        let text = [1, 2, 5, 6, 1, 2, 5, 8, 1, 2, 7, 3, 1, 2];
        let mut guess = Guess::default();
        guess.vote(&index_of(&text, 2), &text, 2);
        assert_eq!(guess.tokens, [5, 8], "of 5 6 and 5 8 the later one");
        assert_eq!(guess.shares, [2.0 / 3.0, 1.0 / 3.0]);
        // A longer match with one voice is worth more.
        let text = [3, 1, 2, 9, 9, 1, 2, 5, 5, 1, 2, 5, 8, 3, 1, 2];
        guess.clear();
        guess.vote(&index_of(&text, 2), &text, 2);
        assert_eq!((&guess.tokens[..], guess.matched), (&[9, 9][..], 3));
    }

    #[test]
    fn another_text_replaces_a_guess_only_if_it_is_worth_more() {
        let own = [1, 2, 5, 1, 2];
        let mut guess = Guess::default();
        guess.vote(&index_of(&own, 2), &own, 3);
        assert_eq!(guess.tokens, [5, 1, 2]);
        let other = [8, 1, 2, 6, 6, 6];
        guess.vote_in(&index_of(&other, 2), &other, &own, 3);
        assert_eq!(guess.tokens, [5, 1, 2], "own text wins a tie");
        let better = [7, 5, 1, 2, 6, 6, 6];
        guess.vote_in(&index_of(&better, 2), &better, &own, 3);
        assert_eq!((&guess.tokens[..], guess.matched), (&[6, 6, 6][..], 3));
        let ends = [4, 1, 2, 9, BORDER, 7];
        guess.clear();
        guess.vote_in(&index_of(&ends, 2), &ends, &own, 3);
        assert_eq!(guess.tokens, [9], "not over a border");
    }
}
