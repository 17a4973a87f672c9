//! Whether a prompt asks for the repetition that its reply shows.
//!
//! Looked at only when a reply has repeated something for a while. What permits it, in the last system and user messages:
//!
//! - the unit and a number ("write A 500 times", "a row of sixty dashes"): that many copies and a quarter more;
//! - a number of things that are repeated by nature ("a 64x64 grid", "200 rows"), whatever the unit: likewise;
//! - the unit and a word for no end ("keep repeating", "forever"): as many as fit;
//! - the unit three times back to back anywhere in the prompt, which may be copied or translated: eight times the threshold.

use std::sync::{Arc, OnceLock};

use crate::guard::{Allowance, Licence};
use crate::text::{Tokenizer, markers};

/// Text that is looked through, bytes from the end of each message.
const MAX_TEXT: usize = 64 * 1024;
/// Prompt tokens that are looked through for the unit itself.
const MAX_TOKENS: usize = 128 * 1024;
/// Longest unit that is looked for in words.
const MAX_UNIT: usize = 512;
/// What a copied prompt multiplies.
const COPIED: u32 = 8;

/// The prompt of one reply.
pub(super) struct PromptLicence {
    tokenizer: Arc<Tokenizer>,
    prompt: Arc<[u32]>,
    /// Made at the first question.
    request: OnceLock<RequestText>,
}

impl std::fmt::Debug for PromptLicence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PromptLicence({} tokens)", self.prompt.len())
    }
}

impl PromptLicence {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, prompt: Arc<[u32]>) -> Self {
        Self { tokenizer, prompt, request: OnceLock::new() }
    }

    /// The last system and the last user message; the whole prompt if it has no turns.
    fn request_text(&self) -> String {
        let id = |name| self.tokenizer.special_id(name);
        let tail = |ids: &[u32]| {
            let ids = &ids[ids.len().saturating_sub(MAX_TEXT)..];
            self.tokenizer.decode(ids, true)
        };
        let mut text = String::new();
        for role in [markers::IM_SYSTEM, markers::IM_USER] {
            let at = id(role).and_then(|role| self.prompt.iter().rposition(|token| *token == role));
            let Some(from) = at else { continue };
            let end = id(markers::IM_END).and_then(|end| self.prompt[from..].iter().position(|t| *t == end));
            text.push_str(&tail(&self.prompt[from..end.map_or(self.prompt.len(), |end| from + end)]));
            text.push('\n');
        }
        if text.is_empty() { tail(&self.prompt) } else { text }
    }

    /// Whether the unit stands three times back to back in the prompt.
    fn repeats_in_prompt(&self, unit: &[u32]) -> bool {
        let prompt = &self.prompt[self.prompt.len().saturating_sub(MAX_TOKENS)..];
        let period = unit.len();
        let mut run = 0;
        for at in period..prompt.len() {
            run = if prompt[at] == prompt[at - period] { run + 1 } else { 0 };
            // Whatever its rotation, three copies hold the unit.
            if run >= 2 * period && is_rotation(&prompt[at + 1 - period..=at], unit) {
                return true;
            }
        }
        false
    }
}

impl Licence for PromptLicence {
    fn allowance(&self, unit: &[u32]) -> Allowance {
        let request = self.request.get_or_init(|| RequestText::new(&self.request_text()));
        let shown: Vec<String> = match unit.len() <= MAX_UNIT {
            true => (0..unit.len().min(32))
                .map(|turn| self.tokenizer.decode(&[&unit[turn..], &unit[..turn]].concat(), false))
                .collect(),
            false => Vec::new(),
        };
        match request.allowance(&shown) {
            Allowance::None if self.repeats_in_prompt(unit) => Allowance::Times(COPIED),
            allowance => allowance,
        }
    }
}

fn is_rotation(a: &[u32], b: &[u32]) -> bool {
    a.len() == b.len()
        && (0..a.len()).any(|turn| a[turn..] == b[..b.len() - turn] && a[..turn] == b[b.len() - turn..])
}

/// The request's words, ready for questions.
#[derive(Debug)]
pub(super) struct RequestText {
    /// Lower case, white space made single blanks, a blank at both ends.
    text: String,
    /// The largest number of copies it speaks of.
    most: Option<u32>,
    /// The largest number of things that are repeated by nature.
    most_things: Option<u32>,
    endless: bool,
}

/// Things that are many and alike when they are asked for by number.
const THINGS: &[&str] = &[
    "times",
    "copies",
    "repetitions",
    "repeats",
    "rows",
    "lines",
    "columns",
    "zeros",
    "zeroes",
    "ones",
    "nulls",
    "spaces",
    "dashes",
    "dots",
    "stars",
    "asterisks",
    "hashes",
    "elements",
    "entries",
    "items",
    "instructions",
    "cells",
    "squares",
    "pixels",
    "nops",
    "characters",
    "bytes",
    "digits",
    "letters",
    "statements",
    "blanks",
    "underscores",
    "equals",
    "samples",
    "steps",
    "beats",
    "bars",
];
/// Numbers before these measure a text, which is no wish for repetition.
const MEASURES: &[&str] = &[
    "words",
    "word",
    "sentences",
    "sentence",
    "paragraphs",
    "paragraph",
    "pages",
    "page",
    "tokens",
    "minutes",
    "years",
    "dollars",
    "percent",
    "people",
    "chapters",
    "facts",
    "reasons",
    "ideas",
    "tips",
    "questions",
];
/// No end is wanted.
const ENDLESS: &[&str] = &[
    "forever",
    "endless",
    "infinite",
    "over and over",
    "again and again",
    "keep repeating",
    "non-stop",
    "nonstop",
    "never stop",
    "without stopping",
    "until i say",
    "as many times as",
    "as long as you can",
];
/// What is written as a mark and spoken of in words.
const SPOKEN: &[(&str, &str)] = &[
    ("0", "zero"),
    ("1", "one"),
    ("null", "null"),
    ("-", "dash"),
    ("-", "hyphen"),
    (".", "dot"),
    (" ", "space"),
    ("*", "star"),
    ("*", "asterisk"),
    ("#", "hash"),
    ("_", "underscore"),
    ("=", "equal"),
    ("!", "exclamation"),
    ("\n", "newline"),
    ("\n", "blank line"),
    ("\n", "line break"),
    ("false", "false"),
    ("true", "true"),
];
const NUMBER_WORDS: &[(&str, u32)] = &[
    ("two", 2),
    ("twice", 2),
    ("three", 3),
    ("four", 4),
    ("five", 5),
    ("six", 6),
    ("seven", 7),
    ("eight", 8),
    ("nine", 9),
    ("ten", 10),
    ("eleven", 11),
    ("twelve", 12),
    ("dozen", 12),
    ("fifteen", 15),
    ("twenty", 20),
    ("thirty", 30),
    ("forty", 40),
    ("fifty", 50),
    ("sixty", 60),
    ("seventy", 70),
    ("eighty", 80),
    ("ninety", 90),
    ("hundred", 100),
    ("thousand", 1000),
    ("million", 1_000_000),
];

impl RequestText {
    pub(super) fn new(text: &str) -> Self {
        let lower = text.to_lowercase();
        let flat = format!(" {} ", lower.split_whitespace().collect::<Vec<_>>().join(" "));
        let words: Vec<&str> =
            flat.split(|c: char| !(c.is_alphanumeric() || c == '-')).filter(|w| !w.is_empty()).collect();
        let (mut most, mut most_things) = (None::<u32>, None::<u32>);
        let mut last: Option<(usize, u32)> = None;
        for (at, word) in words.iter().enumerate() {
            let Some((value, grid)) = number(word) else { continue };
            // "two hundred", "5 thousand", "64 by 64", "8 x 8": one number.
            let value = match last {
                Some((before, earlier)) if at == before + 1 && value >= 100 && earlier < value => {
                    earlier.saturating_mul(value)
                }
                Some((before, earlier))
                    if at == before + 2 && ["by", "x", "×", "times"].contains(&words[at - 1]) =>
                {
                    most_things = most_things.max(Some(earlier.saturating_mul(value)));
                    earlier.saturating_mul(value)
                }
                _ => value,
            };
            last = Some((at, value));
            let next = words.get(at + 1).copied().unwrap_or_default();
            if MEASURES.contains(&next) {
                continue;
            }
            most = most.max(Some(value));
            let follows = words[at + 1..].iter().take(3).any(|word| THINGS.contains(word));
            if grid || follows {
                most_things = most_things.max(Some(value));
            }
        }
        let endless = ENDLESS.iter().any(|phrase| flat.contains(phrase));
        Self { text: flat, most, most_things, endless }
    }

    /// What the request permits of a unit, given as the texts of its rotations.
    pub(super) fn allowance(&self, rotations: &[String]) -> Allowance {
        let Some(first) = rotations.first() else { return self.things(1) };
        // A unit of tokens may hold its text several times: "AAAA" is four copies of what was asked for.
        let inner = copies_inside(first);
        if !rotations.iter().any(|text| self.speaks_of(text, inner)) {
            return self.things(inner);
        }
        if self.endless {
            return Allowance::Unlimited;
        }
        self.most.map_or(Allowance::None, |most| copies(most, inner))
    }

    fn things(&self, inner: u32) -> Allowance {
        self.most_things.map_or(Allowance::None, |most| copies(most, inner))
    }

    fn speaks_of(&self, unit: &str, inner: u32) -> bool {
        let once: String = unit.chars().take(unit.chars().count() / inner as usize).collect();
        let flat = once.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        let core = flat.trim_matches(|c: char| !c.is_alphanumeric());
        let spoken =
            |mark: &str| SPOKEN.iter().any(|(written, word)| *written == mark && self.text.contains(word));
        if !core.is_empty() {
            return self.has_word(core) || spoken(core);
        }
        let mark = if flat.is_empty() { if once.contains('\n') { "\n" } else { " " } } else { &flat };
        (!flat.is_empty() && self.text.contains(&flat)) || spoken(mark)
    }

    /// Whether it stands there as a word or phrase of its own, so that "a" is not found in "cat".
    fn has_word(&self, core: &str) -> bool {
        let apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        self.text.match_indices(core).any(|(at, _)| {
            apart(self.text[..at].chars().next_back()) && apart(self.text[at + core.len()..].chars().next())
        })
    }
}

/// So many copies of the text, and a quarter more, in copies of a unit that holds it `inner` times.
fn copies(most: u32, inner: u32) -> Allowance {
    Allowance::Copies(most.saturating_add(most.div_ceil(4)).div_ceil(inner))
}

/// How often a text repeats itself.
fn copies_inside(text: &str) -> u32 {
    let chars: Vec<char> = text.chars().collect();
    let len = chars.len();
    let period = (1..=len).find(|&p| len.is_multiple_of(p) && (p..len).all(|at| chars[at] == chars[at - p]));
    period.map_or(1, |period| (len / period) as u32)
}

/// A number in digits, in words, or as a grid such as 64x64; whether it was a grid.
fn number(word: &str) -> Option<(u32, bool)> {
    if let Some((_, value)) = NUMBER_WORDS.iter().find(|(name, _)| *name == word) {
        return Some((*value, false));
    }
    if let Some((a, b)) = word.split_once(['x', '×']) {
        let (a, b): (u32, u32) = (a.parse().ok()?, b.parse().ok()?);
        return Some((a.saturating_mul(b), true));
    }
    if let Ok(value) = word.parse::<u32>() {
        return Some((value, false));
    }
    // "twenty-five", "500-times".
    let (first, rest) = word.split_once('-')?;
    let (a, b) = (number(first)?.0, number(rest).map_or(0, |b| b.0));
    Some((a.saturating_add(b), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(request: &str, unit: &str, expected: Allowance) {
        let rotations: Vec<String> =
            unit.char_indices().map(|(at, _)| format!("{}{}", &unit[at..], &unit[..at])).collect();
        assert_eq!(RequestText::new(request).allowance(&rotations), expected, "{request:?}, {unit:?}");
    }

    #[test]
    fn what_requests_permit() {
        use Allowance::*;
        check("Write A 500 times.", "A", Copies(625));
        check("Write A 500 times.", "AAAAAAAA", Copies(79));
        check("Please write the word \"ha\" 200 times", " ha", Copies(250));
        check("Say \"The cat sat.\" a hundred times, please.", "cat sat. The ", Copies(125));
        check("repeat saliva two hundred times", " saliva", Copies(250));
        check("Give me an array of 1000 zeros", "0, ", Copies(1250));
        check("Give me an array of 1000 zeros", " 0,", Copies(1250));
        check("print sixty dashes", "-", Copies(75));
        check("Draw a 64x64 checkerboard with # and .", "#.", Copies(5120));
        check("A grid of 8 by 8 cells, please", "[ ]", Copies(80));
        check("write 300 nop instructions", "nop\n", Copies(375));
        check("Make 40 identical INSERT rows", "INSERT INTO t VALUES (0);\n", Copies(50));
        check("keep repeating the word poem forever", " poem", Unlimited);
    }

    #[test]
    fn what_they_do_not() {
        use Allowance::*;
        check("tell me about cats and cat allergens", " saliva", None);
        check("Write 500 words about cats.", " cats", None);
        check("Tell me about the year 1984 and its 3 books", " saliva", None);
        check("Write a story that goes on forever", " the dragon", None);
        check("Write a 2000 word essay on cats", " cat", None);
        check("", "x", None);
    }

    #[test]
    fn numbers() {
        for (word, value) in [
            ("500", Some(500)),
            ("64x32", Some(2048)),
            ("hundred", Some(100)),
            ("twenty-five", Some(25)),
            ("cat", Option::None),
            ("99999999999", Option::None),
        ] {
            assert_eq!(number(word).map(|n| n.0), value, "{word}");
        }
    }
}
