//! What a message and a unit have in common, word for word: a sentence that a message gives is known in any language.

use std::collections::HashSet;

use super::numbers::is_unspaced;
use super::unit::words_of;

/// Marks around what is to be said.
const QUOTES: &[char] = &['"', '“', '”', '„', '«', '»', '「', '」', '『', '』', '`'];
/// Terms of a unit and of a message that are compared.
const MAX_UNIT_TERMS: usize = 128;
const MAX_TERMS: usize = 2048;
/// Least stretch that counts: so many terms in a row.
const LEAST_STRETCH: usize = 2;
/// Share of a unit's letters that must stand in the message, per cent.
const MOST_OF_IT: usize = 60;
/// A stretch that nobody says by chance: so many words, or fewer long ones, or so many characters of a script without blanks.
const WORDS: usize = 4;
const LONG_WORDS: (usize, usize) = (3, 16);
const CHARACTERS: usize = 8;
/// Half as much where it stands in quotation marks.
const QUOTED_LETTERS: usize = 6;
const QUOTED_CHARACTERS: usize = 4;

/// A word, or one character of a script that has no blanks; numbers are left out, for they change from copy to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    text: String,
    is_character: bool,
    /// It stands in quotation marks.
    is_quoted: bool,
}

/// The terms of a text in lower case.
pub(super) fn terms_of(lower: &str) -> Vec<Term> {
    let mut terms = Vec::new();
    for (part, is_quoted) in parts_of(lower) {
        push_terms(&words_of(part), is_quoted, &mut terms);
    }
    terms
}

/// A text cut at its quotation marks, and which parts they enclose: every second one, for the last one is not closed.
pub(super) fn parts_of(text: &str) -> Vec<(&str, bool)> {
    let (mut parts, mut begun) = (Vec::new(), 0);
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let behind = text[at + c.len_utf8()..].chars().next();
        let apostrophe = before.is_alphanumeric() && behind.is_some_and(char::is_alphanumeric);
        // A single one at an end of a word is a quotation mark, one behind a plural's "s" aside.
        let single = matches!(c, '\'' | '‘' | '’')
            && !apostrophe
            && (parts.len() % 2 == 1 || !before.is_alphanumeric());
        if QUOTES.contains(&c) || single {
            parts.push((&text[begun..at], parts.len() % 2 == 1));
            begun = at + c.len_utf8();
        }
        before = c;
    }
    parts.push((&text[begun..], false));
    parts
}

fn push_terms(words: &str, is_quoted: bool, terms: &mut Vec<Term>) {
    for word in words.split_whitespace().filter(|word| !word.chars().all(char::is_numeric)) {
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let is_character = is_unspaced(first);
            let end = match is_character {
                true => first.len_utf8(),
                false => rest.find(is_unspaced).unwrap_or(rest.len()),
            };
            terms.push(Term { text: rest[..end].to_owned(), is_character, is_quoted });
            rest = &rest[end..];
        }
    }
}

/// How much of a unit stands in a message, in stretches that are no chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// Next to nothing.
    Nothing,
    /// A phrase in quotation marks: the title of a song.
    Title,
    /// Most of it.
    Most,
    /// Most of it, in quotation marks.
    Quoted,
}

/// How much of a unit a message gives.
pub(super) fn given(message: &[Term], unit: &[Term]) -> Given {
    let message = &message[..message.len().min(MAX_TERMS)];
    let unit = &unit[..unit.len().min(MAX_UNIT_TERMS)];
    let total: usize = unit.iter().map(letters).sum();
    let mut covered = vec![false; unit.len()];
    let (mut is_known, mut is_title) = (false, false);
    let words: HashSet<&str> = unit.iter().map(|term| term.text.as_str()).collect();
    // ending[u]: length of the stretch that ends with the message's term and the unit's u-th, which goes around.
    let (mut ending, mut before) = (vec![0usize; unit.len()], vec![0usize; unit.len()]);
    for (at, said) in message.iter().enumerate() {
        std::mem::swap(&mut ending, &mut before);
        ending.fill(0);
        if !words.contains(said.text.as_str()) {
            continue;
        }
        for (u, _) in unit.iter().enumerate().filter(|(_, term)| term.text == said.text) {
            let length = (before[(u + unit.len() - 1) % unit.len()] + 1).min(unit.len());
            ending[u] = length;
            if length < LEAST_STRETCH.min(unit.len()) {
                continue;
            }
            let stretch = &message[at + 1 - length..=at];
            let known = is_no_chance(stretch);
            is_known |= known;
            is_title |= known && stretch.iter().all(|term| term.is_quoted);
            (0..length).for_each(|back| covered[(u + unit.len() - back) % unit.len()] = true);
        }
    }
    let found: usize = unit.iter().zip(&covered).filter(|(_, c)| **c).map(|(term, _)| letters(term)).sum();
    match (is_known && found * 100 >= total * MOST_OF_IT, is_title) {
        (true, true) => Given::Quoted,
        (true, false) => Given::Most,
        (_, true) => Given::Title,
        _ => Given::Nothing,
    }
}

fn letters(term: &Term) -> usize {
    term.text.chars().count()
}

fn is_no_chance(stretch: &[Term]) -> bool {
    let characters = stretch.iter().filter(|term| term.is_character).count();
    let words = stretch.len() - characters;
    let count: usize = stretch.iter().map(letters).sum();
    let quoted = stretch.iter().all(|term| term.is_quoted);
    words >= WORDS
        || (words >= LONG_WORDS.0 && count >= LONG_WORDS.1)
        || characters >= CHARACTERS
        || (quoted && ((words >= 2 && count >= QUOTED_LETTERS) || characters >= QUOTED_CHARACTERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gives(message: &str, unit: &str) -> bool {
        let given = given(&terms_of(&message.to_lowercase()), &terms_of(&unit.to_lowercase()));
        [Given::Most, Given::Quoted].contains(&given)
    }

    #[test]
    fn sentences_that_a_message_gives() {
        assert!(gives(
            "squawk the same thing: Pieces of eight! Pieces of eight! for hours",
            "Pieces of eight! Pieces of eight!\n"
        ));
        assert!(gives("a kid asks are we there yet? and dad says no.", "KID: Are we there yet?\nDAD: No.\n"));
        assert!(gives("do-re-mi-fa-sol-fa-mi-re, numerate", "17) do-re-mi-fa-sol-fa-mi-re\n"));
        assert!(gives("«Мама мыла раму.» три раза в строке", "Мама мыла раму.   Мама мыла раму."));
        assert!(gives(
            "内容统一：消防栓完好，通道畅通，无异常",
            "日 早班 消防栓完好，通道畅通，无异常。3月2"
        ));
        assert!(gives("「一打目 ゴォォォン……」のように", "12打目 ゴォォォン……\n"));
        assert!(gives("'Haraka haraka haina baraka' ijaze kurasa mbili", "Haraka haraka haina baraka\n"));
        assert_eq!(
            parts_of("it's the dogs' 'a b' and \"c\"")
                .iter()
                .filter(|p| p.1)
                .map(|p| p.0)
                .collect::<Vec<_>>(),
            ["a b", "c"]
        );
        // A unit may begin anywhere.
        assert!(gives("write the cat sat on the mat", "on the mat. The cat sat "));
    }

    #[test]
    fn what_is_said_by_chance() {
        assert!(!gives("Tell me about cats and cat allergens.", " cat allergens"));
        assert!(!gives("Tell me about cats and cat allergens.", " saliva"));
        assert!(!gives("Explain \"saliva\" to me.", " saliva"));
        assert!(!gives(
            "the history of bread in one long essay",
            "The history of bread is long, and nobody knows who baked the first loaf.\n"
        ));
        let verse = "nu är det jul igen, och julen varar väl till påska, det var inte sant\n";
        let asked = terms_of("skriv \"nu är det jul igen\" tre gånger");
        assert_eq!(given(&asked, &terms_of(verse)), Given::Title);
        assert!(!gives("", "a b c d e") && !gives("a b c d e", "") && !gives("", ""));
    }
}
