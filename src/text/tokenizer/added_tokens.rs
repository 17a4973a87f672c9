//! The added tokens of a vocabulary (control tokens and markers), and the search for them in a
//! text.

use std::collections::HashMap;

/// One added token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddedToken {
    /// Never empty.
    pub(crate) text: String,
    pub(crate) id: u32,
    /// Whether decoding without special tokens skips the token.
    pub(crate) special: bool,
    /// Whether the token swallows whitespace to its left.
    pub(crate) lstrip: bool,
    /// Whether the token swallows whitespace to its right.
    pub(crate) rstrip: bool,
    /// Whether the token is recognised only between characters that are not letters, digits or
    /// underscores.
    pub(crate) single_word: bool,
}

/// All added tokens, findable by id, by text, and inside a text.
#[derive(Debug, Clone)]
pub(crate) struct AddedTokens {
    /// Ascending by id.
    tokens: Vec<AddedToken>,
    by_text: HashMap<String, usize>,
    by_id: HashMap<u32, usize>,
    /// Indices of the tokens that begin with each byte, longest first.
    by_first_byte: Vec<Vec<u32>>,
    /// Indices of the tokens that end with each byte.
    by_last_byte: Vec<Vec<u32>>,
    /// Bytes of the longest text.
    max_len: usize,
}

/// An added token found in a text: `start..end` in bytes, stripped whitespace included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) index: usize,
}

impl AddedTokens {
    /// Errors: an empty text, or a text or id that appears twice.
    pub(crate) fn new(mut tokens: Vec<AddedToken>) -> Result<Self, String> {
        tokens.sort_by_key(|token| token.id);
        let mut by_text = HashMap::with_capacity(tokens.len());
        let mut by_id = HashMap::with_capacity(tokens.len());
        let mut by_first_byte = vec![Vec::new(); 256];
        let mut by_last_byte = vec![Vec::new(); 256];
        let max_len = tokens.iter().map(|token| token.text.len()).max().unwrap_or(0);
        for (index, token) in tokens.iter().enumerate() {
            let &[first, ..] = token.text.as_bytes() else {
                return Err(format!("added token {} has an empty text", token.id));
            };
            let last = token.text.as_bytes()[token.text.len() - 1];
            if let Some(other) = by_text.insert(token.text.clone(), index) {
                return Err(format!(
                    "added tokens {} and {} have the same text {:?}",
                    tokens[other].id, token.id, token.text
                ));
            }
            if by_id.insert(token.id, index).is_some() {
                return Err(format!("two added tokens have id {}", token.id));
            }
            by_first_byte[first as usize].push(index as u32);
            by_last_byte[last as usize].push(index as u32);
        }
        for list in &mut by_first_byte {
            list.sort_by_key(|&index| std::cmp::Reverse(tokens[index as usize].text.len()));
        }
        Ok(Self { tokens, by_text, by_id, by_first_byte, by_last_byte, max_len })
    }

    pub(crate) fn tokens(&self) -> &[AddedToken] {
        &self.tokens
    }

    pub(crate) fn by_text(&self, text: &str) -> Option<&AddedToken> {
        self.by_text.get(text).map(|&index| &self.tokens[index])
    }

    pub(crate) fn by_id(&self, id: u32) -> Option<&AddedToken> {
        self.by_id.get(&id).map(|&index| &self.tokens[index])
    }

    /// The longest token whose text begins at byte `at`, whatever its options.
    pub(crate) fn at(&self, text: &str, at: usize) -> Option<usize> {
        let bytes = &text.as_bytes()[at..];
        let list = &self.by_first_byte[*bytes.first()? as usize];
        list.iter()
            .map(|&index| index as usize)
            .find(|&index| bytes.starts_with(self.tokens[index].text.as_bytes()))
    }

    /// Whether `text` ends with a proper prefix of a token.
    pub(crate) fn begins_at_end_of(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let tail = &bytes[bytes.len().saturating_sub(self.max_len)..];
        (0..tail.len()).any(|at| {
            let part = &tail[at..];
            self.by_first_byte[part[0] as usize].iter().any(|&index| {
                let token = self.tokens[index as usize].text.as_bytes();
                token.len() > part.len() && token.starts_with(part)
            })
        })
    }

    /// Whether `text` begins with a proper suffix of a token.
    pub(crate) fn ends_at_start_of(&self, text: &str) -> bool {
        let head = &text.as_bytes()[..text.len().min(self.max_len)];
        (1..=head.len()).any(|end| {
            let part = &head[..end];
            self.by_last_byte[part[end - 1] as usize].iter().any(|&index| {
                let token = self.tokens[index as usize].text.as_bytes();
                token.len() > part.len() && token.ends_with(part)
            })
        })
    }

    /// The first token at or after byte `from`: leftmost, then longest. Whitespace that it swallows ends at `from` on the left.
    pub(crate) fn find(&self, text: &str, from: usize) -> Option<Found> {
        for start in from..text.len() {
            if self.by_first_byte[text.as_bytes()[start] as usize].is_empty() {
                continue;
            }
            let Some(index) = self.at(text, start) else { continue };
            let token = &self.tokens[index];
            let end = start + token.text.len();
            if token.single_word && !stands_alone(text, start, end) {
                continue;
            }
            let mut found = Found { start, end, index };
            if token.lstrip {
                found.start = from + text[from..start].trim_end().len();
            }
            if token.rstrip {
                found.end = text.len() - text[end..].trim_start().len();
            }
            return Some(found);
        }
        None
    }
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].chars().next_back().is_some_and(word) && !text[end..].chars().next().is_some_and(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, id: u32) -> AddedToken {
        AddedToken {
            text: text.to_owned(),
            id,
            special: true,
            lstrip: false,
            rstrip: false,
            single_word: false,
        }
    }

    #[test]
    fn leftmost_then_longest() {
        let added = AddedTokens::new(vec![token("<a", 1), token("<a>", 2), token("[x]", 3)]).unwrap();
        let found = |text: &str, from| added.find(text, from).map(|f| (f.start, added.tokens()[f.index].id));
        assert_eq!(found("..<a>[x]", 0), Some((2, 2)));
        assert_eq!(found("..<a>[x]", 3), Some((5, 3)));
        assert_eq!(found("<a[x]", 0), Some((0, 1)));
        assert_eq!(found("<b>é", 0), None);
    }

    #[test]
    fn strips_and_single_words() {
        let strip = AddedToken { lstrip: true, rstrip: true, ..token("<m>", 1) };
        let word = AddedToken { single_word: true, ..token("cat", 2) };
        let added = AddedTokens::new(vec![strip, word]).unwrap();
        assert_eq!(added.find("a  <m> b", 0), Some(Found { start: 1, end: 7, index: 0 }));
        assert_eq!(added.find("a  <m> b", 2), Some(Found { start: 2, end: 7, index: 0 }));
        assert_eq!(added.find("concat cat.", 0).map(|f| f.start), Some(7));
    }

    #[test]
    fn halves_at_the_borders() {
        let added = AddedTokens::new(vec![token("<|end|>", 1), token("[x]", 2)]).unwrap();
        for (text, begins, ends) in [
            ("", false, false),
            ("a<", true, false),
            ("a<|end|", true, false),
            ("a<|end|>", false, false),
            ("<|end|>", false, false),
            ("|>b", false, true),
            (">", false, true),
            ("x]", false, true),
            ("]<", true, true),
            ("end", false, false),
        ] {
            assert_eq!(
                (added.begins_at_end_of(text), added.ends_at_start_of(text)),
                (begins, ends),
                "{text:?}"
            );
        }
    }

    #[test]
    fn refuses_ambiguity() {
        assert!(AddedTokens::new(vec![token("a", 1), token("a", 2)]).is_err());
        assert!(AddedTokens::new(vec![token("a", 1), token("b", 1)]).is_err());
        assert!(AddedTokens::new(vec![token("", 1)]).is_err());
    }
}
