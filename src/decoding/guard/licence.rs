//! Repetition that a request asks for, told from the prompt's numbers, its text and its own
//! repetitions; no rule depends on a language.
//!
//! A licence is consulted only after a reply has repeated a unit for a while. The prompt is
//! analysed at the first consultation.

use std::sync::{Arc, OnceLock};

use super::words::Words;
use super::{Periods, Vocabulary};

/// Tokens permitted to a reply that is repetition from its start.
const FREE_TOKENS: u32 = 4096;
/// Factor on the threshold of a unit that occurs in the prompt, or of any unit if the prompt itself
/// is repetitive.
const PROMPT_TIMES: u32 = 8;
/// Copies from which a prompt counts as repetitive, and the shortest unit that counts.
const LEAST_COPIES: u32 = 3;
const LEAST_UNIT: u32 = 4;
/// Prompt tokens that are read, from the end of the prompt.
const MAX_READ: usize = 32 * 1024;
/// Longest unit searched for in the prompt, and the most of its rotations.
const MAX_UNIT: usize = 512;
const MAX_ROTATIONS: usize = 32;
/// Most characters between two numbers that are multiplied with each other: "64x64", "8 by 8".
const MAX_GAP: usize = 4;

/// The repetition permitted beyond the threshold; the largest of the three limits applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// Factor on the threshold.
    pub times: u32,
    /// Permitted copies of the unit.
    pub copies: u32,
    /// Permitted tokens.
    pub tokens: u32,
}

impl Permit {
    /// Nothing beyond the threshold.
    pub const NONE: Self = Self { times: 1, copies: 0, tokens: 0 };

    /// The run, in tokens, at which a unit of `period` tokens is a loop. `threshold` is the run for
    /// a unit without a permit.
    pub fn limit(self, period: u32, threshold: u32) -> u32 {
        threshold.saturating_mul(self.times).max(self.copies.saturating_mul(period)).max(self.tokens)
    }
}

/// Control tokens of a conversation; `None` or an empty list where the vocabulary has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roles {
    /// Opens a user's turn.
    pub user: Option<u32>,
    /// Opens the model's turn.
    pub assistant: Option<u32>,
    /// Opens a turn of the system: instructions, declarations, results of tools.
    pub system: Option<u32>,
    /// Tokens of the name that marks a system turn as instructions.
    pub instructions: Vec<u32>,
    /// Separates a turn's name from its text.
    pub middle: Option<u32>,
    /// Ends a turn.
    pub end: Option<u32>,
}

/// The repetition that one prompt permits.
pub struct Licence {
    vocabulary: Arc<Vocabulary>,
    roles: Roles,
    prompt: Arc<[u32]>,
    /// Filled at the first consultation.
    request: OnceLock<Request>,
}

/// The facts about a prompt that a permit follows from.
#[derive(Debug)]
struct Request {
    /// The largest number in the request's text, products of adjacent numbers included.
    number: u32,
    /// Copies of the unit that the prompt repeats most often.
    copies: u32,
    /// Words of the prompt's text.
    words: Words,
    /// Whether the prompt is a conversation: the reply to a plain-text prompt continues text, so a
    /// repetition never begins at its start.
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
    /// A licence for `prompt`, which is not read before the first [`Licence::permit`].
    pub fn new(vocabulary: Arc<Vocabulary>, roles: Roles, prompt: Arc<[u32]>) -> Self {
        Self { vocabulary, roles, prompt, request: OnceLock::new() }
    }

    /// The permit of a unit. `from_start`: the reply is a repetition of the unit from its start.
    pub fn permit(&self, unit: &[u32], from_start: bool) -> Permit {
        let request = self.request.get_or_init(|| self.read());
        let from_start = from_start && request.is_conversation;
        let named = self.is_in(&request.words, unit);
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
            // Text that the model wrote itself is no request for repetition.
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
            words: Words::of(&self.vocabulary.text(text)),
            is_conversation,
        }
    }

    /// The turns of the prompt; none if the prompt is plain text.
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

    /// Whether some rotation of a unit occurs in a text as whole words.
    fn is_in(&self, words: &Words, unit: &[u32]) -> bool {
        if unit.len() > MAX_UNIT {
            return false;
        }
        let begins = |at: &usize| {
            let before = at.checked_sub(1).unwrap_or(unit.len() - 1);
            self.vocabulary.parts(unit[before], unit[*at])
        };
        let starts: Vec<usize> = (0..unit.len().min(MAX_ROTATIONS)).filter(begins).collect();
        let ends = starts.iter().skip(1).copied().chain(starts.first().map(|first| first + unit.len()));
        let twice = [unit, unit].concat();
        let pieces = starts.iter().zip(ends).map(|(&start, end)| self.vocabulary.text(&twice[start..end]));
        words.contain_rotation(&pieces.collect::<Vec<String>>())
    }
}

/// The last `MAX_READ` tokens of a text.
fn last(tokens: &[u32]) -> &[u32] {
    &tokens[tokens.len().saturating_sub(MAX_READ)..]
}

fn a_quarter_more(copies: u32) -> u32 {
    copies.saturating_add(copies.div_ceil(4))
}

/// Copies of the unit that a text repeats most often back to back, exactly or with noise.
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

/// The largest number written in digits in a text, products of two adjacent numbers included.
/// Separators of thousands are allowed.
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
    fn copies_of_a_prompt() {
        let lines = |copies: usize| [7, 8, 9, 10, 11, 12].repeat(copies);
        assert_eq!((most_copies(&lines(1)), most_copies(&lines(5))), (0, 5));
        assert_eq!(most_copies(&[7; 90]), 0, "a ruler is no unit");
    }
}
