//! Repetition that a request asks for, without a word of any language: from its numbers, from its
//! text, and from what it repeats itself.
//!
//! Looked at only when a reply has repeated something for a while, and made ready at the first such
//! question.

use std::sync::{Arc, OnceLock};

use super::vocabulary::is_unspaced;
use super::{Periods, Vocabulary};

/// Tokens of a reply that is repetition from its start.
const FREE_TOKENS: u32 = 4096;
/// What a unit that stands in the prompt, or a prompt that repeats something itself, multiplies.
const PROMPT_TIMES: u32 = 8;
/// Copies from which a prompt repeats something, and the shortest unit that counts.
const LEAST_COPIES: u32 = 3;
const LEAST_UNIT: u32 = 4;
/// Prompt tokens that are read, the last ones.
const MAX_READ: usize = 32 * 1024;
/// Longest unit that is looked for in the prompt, and most of its rotations.
const MAX_UNIT: usize = 512;
const MAX_ROTATIONS: usize = 32;
/// Characters between numbers that are multiplied with each other: "64x64", "8 by 8".
const MAX_GAP: usize = 4;

/// How much longer than its threshold a repetition may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// The threshold times this.
    pub times: u32,
    /// So many copies.
    pub copies: u32,
    /// So many tokens.
    pub tokens: u32,
}

impl Permit {
    /// Nothing beyond the threshold.
    pub const NONE: Self = Self { times: 1, copies: 0, tokens: 0 };

    /// The run at which a unit of `period` tokens is a loop, where `threshold` is that of one that
    /// nobody asked for.
    pub fn limit(self, period: u32, threshold: u32) -> u32 {
        threshold.saturating_mul(self.times).max(self.copies.saturating_mul(period)).max(self.tokens)
    }
}

/// Control tokens of a conversation; absent ones never come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roles {
    /// Opens a user's turn.
    pub user: Option<u32>,
    /// Opens the model's turn.
    pub assistant: Option<u32>,
    /// Opens a turn of the system: instructions, declarations, results of tools.
    pub system: Option<u32>,
    /// The name of instructions among those.
    pub instructions: Vec<u32>,
    /// Stands between a turn's name and its text.
    pub middle: Option<u32>,
    /// Ends a turn.
    pub end: Option<u32>,
}

/// What one prompt permits.
pub struct Licence {
    vocabulary: Arc<Vocabulary>,
    roles: Roles,
    prompt: Arc<[u32]>,
    /// Made at the first question.
    request: OnceLock<Request>,
}

/// What a prompt says, as far as it matters here.
#[derive(Debug)]
struct Request {
    /// The largest of its numbers and of the products of adjacent ones.
    number: u32,
    /// Copies of what it repeats most often.
    copies: u32,
    /// Its text, normalised.
    text: String,
    /// It is a conversation: what goes on with a plain text has no start.
    is_conversation: bool,
}

/// A turn of a prompt.
struct Turn<'a> {
    role: u32,
    name: &'a [u32],
    text: &'a [u32],
}

impl std::fmt::Debug for Licence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Licence({} tokens)", self.prompt.len())
    }
}

impl Licence {
    /// Of a prompt.
    pub fn new(vocabulary: Arc<Vocabulary>, roles: Roles, prompt: Arc<[u32]>) -> Self {
        Self { vocabulary, roles, prompt, request: OnceLock::new() }
    }

    /// What is permitted of a unit. `from_start`: the reply is its repetition from the very start.
    pub fn permit(&self, unit: &[u32], from_start: bool) -> Permit {
        let request = self.request.get_or_init(|| self.read());
        let from_start = from_start && request.is_conversation;
        let named = self.is_in(&request.text, unit);
        let copied = request.copies >= LEAST_COPIES;
        let mut permit = Permit::NONE;
        if from_start {
            permit.tokens = FREE_TOKENS;
        }
        if named || copied {
            permit.times = PROMPT_TIMES;
        }
        if named || from_start {
            permit.copies = a_quarter_more(request.number);
        }
        if copied {
            permit.copies = permit.copies.max(a_quarter_more(request.copies));
        }
        permit
    }

    fn read(&self) -> Request {
        let turns = self.turns();
        let is_conversation = !turns.is_empty();
        let (mut asks, mut text): (Vec<&[u32]>, Vec<u32>) = (Vec::new(), Vec::new());
        if is_conversation {
            let roles = &self.roles;
            asks.extend(turns.iter().rfind(|turn| Some(turn.role) == roles.user).map(|turn| turn.text));
            let is_system = |turn: &&Turn| Some(turn.role) == roles.system && turn.name == roles.instructions;
            asks.extend(turns.iter().rfind(is_system).map(|turn| turn.text));
            // What the model wrote itself asks for nothing.
            let others = turns.iter().filter(|turn| Some(turn.role) != roles.assistant);
            others.for_each(|turn| text.extend(turn.text));
        } else {
            asks.push(&self.prompt);
            text.extend(self.prompt.iter());
        }
        let text = last(&text);
        let number = asks.iter().map(|tokens| largest_number(&self.vocabulary.text(last(tokens)))).max();
        Request {
            number: number.unwrap_or(0),
            copies: most_copies(text),
            text: normalised(&self.vocabulary.text(text)),
            is_conversation,
        }
    }

    /// The turns of the prompt; none if it is plain text.
    fn turns(&self) -> Vec<Turn<'_>> {
        let roles = [self.roles.user, self.roles.assistant, self.roles.system];
        let is_role = |token: &u32| roles.contains(&Some(*token));
        let begins = (0..self.prompt.len()).filter(|&at| is_role(&self.prompt[at]));
        begins
            .map(|at| {
                let rest = &self.prompt[at + 1..];
                let ends = |token: &u32| Some(*token) == self.roles.end || is_role(token);
                let turn = &rest[..rest.iter().position(ends).unwrap_or(rest.len())];
                let middle = turn.iter().position(|token| Some(*token) == self.roles.middle);
                let (name, text) = middle.map_or((&turn[..0], turn), |at| (&turn[..at], &turn[at + 1..]));
                Turn { role: self.prompt[at], name, text }
            })
            .collect()
    }

    /// Whether a unit, wherever it begins, stands in a normalised text as words of their own.
    fn is_in(&self, text: &str, unit: &[u32]) -> bool {
        if unit.is_empty() || unit.len() > MAX_UNIT {
            return false;
        }
        (0..unit.len().min(MAX_ROTATIONS)).any(|turn| {
            let (head, tail) = unit.split_at(turn);
            let before = if turn == 0 { unit[unit.len() - 1] } else { unit[turn - 1] };
            self.vocabulary.parts(before, unit[turn])
                && stands_in(text, normalised(&self.vocabulary.text(&[tail, head].concat())).trim())
        })
    }
}

/// The last tokens of a text, as many as are read.
fn last(tokens: &[u32]) -> &[u32] {
    &tokens[tokens.len().saturating_sub(MAX_READ)..]
}

fn a_quarter_more(copies: u32) -> u32 {
    copies.saturating_add(copies.div_ceil(4))
}

/// Copies of what a text repeats most often back to back, exactly or with noise.
fn most_copies(tokens: &[u32]) -> u32 {
    let mut periods = Periods::new(tokens.len());
    let mut most = 0;
    for end in 1..=tokens.len() {
        periods.push(&tokens[..end]);
        let repeats = periods.repeats().iter().filter(|repeat| repeat.period >= LEAST_UNIT);
        most = repeats.map(|repeat| repeat.score / repeat.period + 1).fold(most, u32::max);
    }
    most
}

/// The largest number in a text, in digits, and product of two adjacent ones. Thousands may be set
/// apart.
fn largest_number(text: &str) -> u32 {
    let characters: Vec<char> = text.chars().collect();
    let digit = |at: usize| characters.get(at).and_then(|&c| digit_of(c));
    let (mut largest, mut before, mut at) = (0u32, None::<(u32, usize)>, 0);
    while at < characters.len() {
        if digit(at).is_none() {
            at += 1;
            continue;
        }
        let begins = at;
        let (mut number, mut group) = (0u32, at);
        loop {
            while let Some(value) = digit(at) {
                number = number.saturating_mul(10).saturating_add(value);
                at += 1;
            }
            let thousands = at - group <= 3
                && characters.get(at).is_some_and(|c| ",.'\u{a0}\u{202f}".contains(*c))
                && (at + 1..at + 4).all(|at| digit(at).is_some())
                && digit(at + 4).is_none();
            if !thousands {
                break;
            }
            at += 1;
            group = at;
        }
        let factor = before.filter(|&(_, end)| begins - end <= MAX_GAP).map_or(1, |(number, _)| number);
        largest = largest.max(number).max(number.saturating_mul(factor));
        before = Some((number, at));
    }
    largest
}

/// The value of a decimal digit of the scripts in wide use.
fn digit_of(c: char) -> Option<u32> {
    let zeros = ['0', '\u{660}', '\u{6f0}', '\u{966}', '\u{9e6}', '\u{ff10}'];
    zeros.into_iter().map(|zero| (c as u32).wrapping_sub(zero as u32)).find(|value| *value < 10)
}

/// A text in lower case, its letters and digits, with one blank in place of whatever stands between
/// them.
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

/// Whether a phrase stands in a text with no word going across its ends.
fn stands_in(text: &str, phrase: &str) -> bool {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() && !is_unspaced(c));
    let (first, last) = (joins(phrase.chars().next()), joins(phrase.chars().next_back()));
    let stands = |at: usize| {
        let (before, after) = (&text[..at], &text[at + phrase.len()..]);
        !(first && joins(before.chars().next_back()) || last && joins(after.chars().next()))
    };
    !phrase.is_empty() && text.match_indices(phrase).any(|(at, _)| stands(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_products() {
        for (text, largest) in [
            ("say ha 500 times", 500),
            ("a 64x64 grid", 4096),
            ("8 by 8, or 20 in all", 64),
            ("12 of these and then 20 of those", 20),
            ("1,000 times; 2.500 mal; 10\u{a0}000 fois", 10_000),
            ("1,2,3", 6),
            ("٥٠٠ مرة", 500),
            ("写１００遍", 100),
            ("99999999999", u32::MAX),
            ("five", 0),
        ] {
            assert_eq!(largest_number(text), largest, "{text}");
        }
    }

    #[test]
    fn phrases_stand_alone() {
        let text = normalised("Say \"Ha-ha\", 把我爱你写一百遍 the cats!");
        for (phrase, stands) in
            [("ha ha", true), ("ha", true), ("a", false), ("cat", false), ("我爱你", true), ("", false)]
        {
            assert_eq!(stands_in(&text, phrase), stands, "{phrase}");
        }
    }

    #[test]
    fn copies_of_a_prompt() {
        let lines = |copies: usize| [7, 8, 9, 10, 11, 12].repeat(copies);
        assert_eq!((most_copies(&lines(1)), most_copies(&lines(5))), (0, 5));
        assert_eq!(most_copies(&[7; 90]), 0, "a ruler is no unit");
    }
}
