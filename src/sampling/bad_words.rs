//! Words that a reply must not contain, as token sequences.
//!
//! A word is a sequence of tokens, not of letters: the same letters in other tokens are another word. The last token of a word is
//! forbidden where the reply ends with the tokens before it.

use super::History;

/// Token sequences that must not occur in a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BadWords {
    words: Vec<Vec<u32>>,
}

impl BadWords {
    /// These sequences; an empty one forbids nothing.
    pub fn new(words: Vec<Vec<u32>>) -> Self {
        Self { words }
    }

    /// The ids that would complete a word after the reply that `history` holds.
    pub fn forbidden(&self, history: &History) -> Vec<u32> {
        let completes = |word: &Vec<u32>| {
            let (last, before) = word.split_last()?;
            history.reply_ends_with(before).then_some(*last)
        };
        self.words.iter().filter_map(completes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_is_forbidden_after_those_before_it() {
        let words = BadWords::new(vec![vec![1, 2, 3], vec![2, 9], vec![7], vec![]]);
        let mut history = History::new(&[1, 2]);
        for (token, forbidden) in
            [(None, &[7][..]), (Some(1), &[7]), (Some(2), &[3, 9, 7]), (Some(2), &[9, 7]), (Some(1), &[7])]
        {
            token.into_iter().for_each(|token| history.add(token));
            assert_eq!(words.forbidden(&history), forbidden, "after {token:?}");
        }
        history.rewind(2);
        assert_eq!(words.forbidden(&history), [3, 9, 7], "after a rewind");
    }

    #[test]
    fn the_prompt_is_no_part_of_the_reply() {
        let words = BadWords::new(vec![vec![1, 2]]);
        assert!(words.forbidden(&History::new(&[1])).is_empty());
    }
}
