//! Words that a reply must not contain, as token sequences.
//!
//! A word is a sequence of tokens, not of letters: the same letters in other tokens are another word. The last token of a word is
//! forbidden where the reply ends with the tokens before it.

/// Token sequences that must not occur in a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BadWords {
    words: Vec<Vec<u32>>,
}

impl BadWords {
    /// An empty sequence forbids no token.
    pub fn new(words: Vec<Vec<u32>>) -> Self {
        Self { words }
    }

    /// Appends the ids that would complete a word after this reply.
    pub fn forbid(&self, reply: &[u32], out: &mut Vec<u32>) {
        let completes = |word: &Vec<u32>| {
            let (last, before) = word.split_last()?;
            reply.ends_with(before).then_some(*last)
        };
        out.extend(self.words.iter().filter_map(completes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_is_forbidden_after_those_before_it() {
        let words = BadWords::new(vec![vec![1, 2, 3], vec![2, 9], vec![7], vec![]]);
        for (reply, forbidden) in [
            (&[][..], &[7][..]),
            (&[1], &[7]),
            (&[1, 2], &[3, 9, 7]),
            (&[1, 2, 2], &[9, 7]),
            (&[1, 2, 2, 1], &[7]),
        ] {
            let mut out = Vec::new();
            words.forbid(reply, &mut out);
            assert_eq!(out, forbidden, "after {reply:?}");
        }
    }
}
