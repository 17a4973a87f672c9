//! The words of a text and where they stand, so that phrases are found without reading the text.
//!
//! A word is a run of letters and digits in lower case, or one character of a script that puts no
//! blanks between words. Any other characters only separate words.

use std::collections::HashMap;

use super::vocabulary::is_unspaced;

/// An index of a text.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Numbers of the distinct words, from 0 on.
    numbers: HashMap<Box<str>, u32>,
    /// The words in order.
    text: Vec<Word>,
    /// Positions of each distinct word in `text`, ascending.
    places: Vec<Vec<u32>>,
}

/// A word in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    number: u32,
    /// Whether other characters separate it from the word before it.
    apart: bool,
}

impl Words {
    /// The index of a text.
    pub(super) fn of(text: &str) -> Self {
        let mut words = Self::default();
        split(text, &mut true, |apart, word| {
            let number = words.numbers.get(word).copied().unwrap_or(words.places.len() as u32);
            if number as usize == words.places.len() {
                words.numbers.insert(word.into(), number);
                words.places.push(Vec::new());
            }
            words.places[number as usize].push(words.text.len() as u32);
            words.text.push(Word { number, apart });
        });
        words
    }

    /// Whether the text contains a phrase that begins with any of `pieces`, continues with those
    /// after it, and ends with those before it. No word spans two pieces.
    pub(super) fn contain_rotation(&self, pieces: &[String]) -> bool {
        let (mut phrase, mut begins, mut apart) = (Vec::new(), Vec::new(), true);
        // Twice all pieces: every rotation is a slice.
        for piece in pieces.iter().chain(pieces) {
            let mut known = true;
            begins.push(phrase.len());
            split(piece, &mut apart, |apart, word| match self.numbers.get(word) {
                Some(&number) => phrase.push(Word { number, apart }),
                None => known = false,
            });
            if !known {
                return false;
            }
        }
        (0..pieces.len()).any(|first| self.contain(&phrase[begins[first]..begins[first + pieces.len()]]))
    }

    /// Whether the text contains a phrase. The separation before its first word does not matter.
    fn contain(&self, phrase: &[Word]) -> bool {
        let places = |word: &Word| &self.places[word.number as usize];
        let Some((before, rarest)) = phrase.iter().enumerate().min_by_key(|(_, word)| places(word).len())
        else {
            return false;
        };
        places(rarest).iter().any(|&place| {
            let found = (place as usize).checked_sub(before).map(|first| &self.text[first..]);
            let found = found.and_then(|rest| rest.get(..phrase.len()));
            found.is_some_and(|found| found[0].number == phrase[0].number && found[1..] == phrase[1..])
        })
    }
}

/// Takes the words of a text one by one, each with whether it is apart from the word before it.
/// `apart`: the same for a word at the start of the text, and afterwards for one behind its end.
fn split(text: &str, apart: &mut bool, mut take: impl FnMut(bool, &str)) {
    let mut word = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        let joins = c.is_alphanumeric() && !is_unspaced(c);
        if joins {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            take(std::mem::take(apart), &word);
            word.clear();
        }
        if c.is_alphanumeric() {
            take(std::mem::take(apart), c.encode_utf8(&mut [0; 4]));
        } else {
            *apart = true;
        }
    }
    if !word.is_empty() {
        take(std::mem::take(apart), &word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text in lower case, reduced to its letters and digits; any other characters between them
    /// become one blank.
    fn normalised(text: &str) -> String {
        let mut words = String::from(" ");
        for c in text.chars().flat_map(char::to_lowercase) {
            if c.is_alphanumeric() {
                words.push(c);
            } else if !words.ends_with(' ') {
                words.push(' ');
            }
        }
        words
    }

    /// The definition: whether a phrase occurs in a text as whole words.
    fn stands_in(text: &str, phrase: &str) -> bool {
        let (text, phrase) = (normalised(text), normalised(phrase));
        let phrase = phrase.trim();
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() && !is_unspaced(c));
        let (first, last) = (joins(phrase.chars().next()), joins(phrase.chars().next_back()));
        let stands = |at: usize| {
            let (before, after) = (&text[..at], &text[at + phrase.len()..]);
            !(first && joins(before.chars().next_back()) || last && joins(after.chars().next()))
        };
        let begins = |at: usize| text.get(at..).is_some_and(|rest| rest.starts_with(phrase));
        !phrase.is_empty() && (0..text.len()).any(|at| begins(at) && stands(at))
    }

    #[test]
    fn phrases_stand_alone() {
        let text = "Say \"Ha-ha\", 把我爱你写一百遍 the cats!";
        for (phrase, stands) in [
            ("ha ha", true),
            ("ha", true),
            ("a", false),
            ("cat", false),
            ("cats", true),
            ("我爱你", true),
            ("我 爱你", false),
            ("", false),
        ] {
            let found = Words::of(text).contain_rotation(&[phrase.to_owned()]);
            assert_eq!((found, stands_in(text, phrase)), (stands, stands), "{phrase}");
        }
    }

    #[test]
    fn rotations_are_found_where_the_definition_finds_them() {
        let mut rng = fastrand::Rng::with_seed(1);
        let characters: Vec<char> = "ab .1我ผカİß".chars().collect();
        let mut found = 0;
        for round in 0..4_000 {
            let kinds = [3, 6, characters.len()][round % 3];
            let mut random = |most: usize| -> String {
                (0..rng.usize(0..most)).map(|_| characters[rng.usize(0..kinds)]).collect()
            };
            let (text, ends) = (random(60), [" ", ".", "我"]);
            let pieces: Vec<String> =
                (0..round % 4).map(|at| random(4) + ends[(at + round / 4) % 3]).collect();
            let rotation = |first: usize| [&pieces[first..], &pieces[..first]].concat().concat();
            let stands = (0..pieces.len()).any(|first| stands_in(&text, &rotation(first)));
            let words = Words::of(&text);
            assert_eq!(words.contain_rotation(&pieces), stands, "{pieces:?} in {text:?}");
            found += usize::from(stands);
        }
        assert!((200..3_800).contains(&found), "{found} of 4,000");
    }
}
