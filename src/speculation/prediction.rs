//! A text that the client expects in the reply (OpenAI's `prediction`).

use std::sync::Arc;

use super::guess::Guess;
use super::occurrences::Occurrences;

/// Match length that a guess in step with the prediction counts as.
const IN_STEP: usize = Occurrences::MAX_MATCH;

/// Expected tokens, and the place in them that the reply has reached.
#[derive(Debug)]
pub struct Prediction {
    tokens: Arc<[u32]>,
    index: Occurrences,
    /// Index of the expected token that comes next.
    cursor: usize,
    /// Reply tokens compared so far.
    followed: usize,
    /// Whether the last reply token was the expected one.
    in_step: bool,
}

impl Prediction {
    /// A prediction whose beginning is expected first.
    pub fn new(tokens: Arc<[u32]>, gram: usize) -> Self {
        let mut index = Occurrences::new(gram);
        index.extend(&tokens, usize::MAX);
        Self { tokens, index, cursor: 0, followed: 0, in_step: true }
    }

    /// Starts again from the beginning, for a reply that was cut back.
    pub fn restart(&mut self) {
        (self.cursor, self.followed, self.in_step) = (0, 0, true);
    }

    /// Sets `guess` to what the prediction says after `reply`; leaves it as it is where the
    /// prediction says nothing.
    pub fn guess(&mut self, reply: &[u32], limit: usize, guess: &mut Guess) {
        for &token in reply.get(self.followed..).unwrap_or_default() {
            self.in_step = self.tokens.get(self.cursor) == Some(&token);
            self.cursor += usize::from(self.in_step);
        }
        self.followed = reply.len();
        if !self.in_step {
            // The reply departed from the prediction: look for the place where it meets it again.
            let mut places = Vec::new();
            self.index.find(&self.tokens, reply, &mut places);
            if let Some(place) = places.iter().min_by_key(|place| std::cmp::Reverse(place.matched)) {
                (self.cursor, self.in_step) = (place.next, true);
            }
        }
        let rest = &self.tokens[self.cursor..];
        if self.in_step && !rest.is_empty() {
            guess.set(&rest[..rest.len().min(limit)], IN_STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_followed_lost_and_met_again() {
        let mut prediction = Prediction::new([1, 2, 3, 4, 5, 6, 7, 8].into(), 2);
        let mut after = |reply: &[u32]| {
            let mut guess = Guess::default();
            prediction.guess(reply, 3, &mut guess);
            guess.tokens
        };
        assert_eq!(after(&[]), [1, 2, 3]);
        assert_eq!(after(&[1]), [2, 3, 4]);
        assert_eq!(after(&[1, 2, 9]), [0u32; 0]);
        assert_eq!(after(&[1, 2, 9, 5]), [0u32; 0]);
        assert_eq!(after(&[1, 2, 9, 5, 6]), [7, 8]);
        assert_eq!(after(&[1, 2, 9, 5, 6, 7]), [8]);
        assert_eq!(after(&[1, 2, 9, 5, 6, 7, 8]), [0u32; 0]);
        prediction.restart();
        let mut guess = Guess::default();
        prediction.guess(&[1, 2], 3, &mut guess);
        assert_eq!(guess.tokens, [3, 4, 5]);
    }
}
