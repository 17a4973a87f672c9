//! A text that the client expects in the reply (OpenAI's `prediction`).

use std::sync::Arc;

use super::guess::Guess;
use super::occurrences::Occurrences;

/// Match length that a guess in step with the prediction counts as.
const IN_STEP: usize = Occurrences::MAX_MATCH;

/// Expected tokens and their places; made once for all replies of a request.
#[derive(Debug)]
pub struct Predicted {
    tokens: Vec<u32>,
    index: Occurrences,
}

impl Predicted {
    /// Takes the tokens of the expected text. Time in proportion to their number: about a
    /// millisecond per 50,000.
    pub fn new(tokens: Vec<u32>) -> Self {
        let mut index = Occurrences::new(1);
        index.extend(&tokens, usize::MAX);
        Self { tokens, index }
    }
}

/// The place in the expected tokens that a reply has reached.
#[derive(Debug)]
pub struct Prediction {
    text: Arc<Predicted>,
    /// Index of the expected token that comes next.
    cursor: usize,
    /// Reply tokens compared so far.
    followed: usize,
    /// Whether the last reply token was the expected one.
    in_step: bool,
}

impl Prediction {
    /// A prediction whose beginning is expected first.
    pub fn new(text: Arc<Predicted>) -> Self {
        Self { text, cursor: 0, followed: 0, in_step: true }
    }

    /// Starts again from the beginning, for a reply that was cut back.
    pub fn restart(&mut self) {
        (self.cursor, self.followed, self.in_step) = (0, 0, true);
    }

    /// Sets `guess` to what the prediction says after `reply`; leaves it as it is where the
    /// prediction says nothing.
    ///
    /// A reply that departs from the prediction is met again where the prediction has its last
    /// tokens; where it has them nowhere, one token is taken to stand in place of another.
    pub fn guess(&mut self, reply: &[u32], limit: usize, guess: &mut Guess) {
        let Predicted { tokens, index } = &*self.text;
        let before = self.cursor;
        for &token in reply.get(self.followed..).unwrap_or_default() {
            self.in_step = tokens.get(self.cursor) == Some(&token);
            self.cursor += 1;
        }
        let mut matched = IN_STEP;
        if !self.in_step && self.followed < reply.len() {
            let mut places = Vec::new();
            index.find(tokens, reply, &mut places);
            // The longest match, of equally long ones the next one on.
            let best = places.iter().max_by_key(|place| {
                let ahead = place.next > before;
                (place.matched, ahead, usize::MAX - place.next.abs_diff(before))
            });
            matched = best.map_or(1, |place| place.matched);
            self.cursor = best.map_or(self.cursor, |place| place.next);
        }
        self.followed = reply.len();
        let rest = tokens.get(self.cursor..).unwrap_or_default();
        if !rest.is_empty() {
            guess.set(&rest[..rest.len().min(limit)], matched);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses(prediction: &mut Prediction, reply: &[u32]) -> Vec<u32> {
        let mut guess = Guess::default();
        prediction.guess(reply, 3, &mut guess);
        guess.tokens
    }

    #[test]
    fn a_reply_is_followed_lost_and_met_again() {
        let mut prediction = Prediction::new(Predicted::new(vec![1, 2, 3, 4, 5, 6, 7, 8]).into());
        assert_eq!(guesses(&mut prediction, &[]), [1, 2, 3]);
        assert_eq!(guesses(&mut prediction, &[1]), [2, 3, 4]);
        assert_eq!(guesses(&mut prediction, &[1, 2, 9]), [4, 5, 6], "9 in place of 3");
        assert_eq!(guesses(&mut prediction, &[1, 2, 9, 5]), [6, 7, 8], "5 is there");
        assert_eq!(guesses(&mut prediction, &[1, 2, 9, 5, 6]), [7, 8]);
        assert_eq!(guesses(&mut prediction, &[1, 2, 9, 5, 6, 7, 8]), [0u32; 0]);
        assert_eq!(
            guesses(&mut prediction, &[1, 2, 9, 5, 6, 7, 8, 1, 2]),
            [3, 4, 5],
            "from the beginning again"
        );
        prediction.restart();
        assert_eq!(guesses(&mut prediction, &[1, 2]), [3, 4, 5]);
    }

    #[test]
    fn the_next_of_two_equal_places_is_met() {
        let mut prediction = Prediction::new(Predicted::new(vec![1, 2, 3, 4, 1, 2, 5, 6]).into());
        assert_eq!(guesses(&mut prediction, &[1, 2, 3, 4]), [1, 2, 5]);
        assert_eq!(guesses(&mut prediction, &[1, 2, 3, 4, 9, 1, 2]), [5, 6]);
    }
}
