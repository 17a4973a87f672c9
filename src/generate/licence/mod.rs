//! Whether a prompt asks for the repetition that its reply shows.
//!
//! Looked at only when a reply has repeated something for a while. What permits it, in the last user message and the system message:
//!
//! - a number of copies ("500 times", "zweihundertmal", "写一百遍"), or the unit and a number: that many and a quarter more;
//! - a number of things that are alike by nature ("a 64x64 grid", "200 rows"), of units that are marks or code, or where the request says
//!   that they are alike: likewise;
//! - a sentence that it gives word for word, and something that says how often: a long stretch of that;
//! - words for repetition, for pictures made of marks, or for no end, without a number: a long stretch of what they name;
//! - a reply that is repetition from its start, unless the request wants prose: a long stretch of it;
//! - what the prompt itself repeats, which may be copied, corrected or translated: as often, and the same unit eight times the threshold.
//!
//! Units that differ a little from copy to copy (counters, records, verses) are permitted by any number of things, by lists and plans, and
//! by lines of one shape in the prompt.
//!
//! ```text
//! numbers  digits, words and numerals of many languages    words    lists of words that requests are known by
//! unit     the repeated unit as text                       request  one message's numbers and words
//! shared   what of a unit a message gives word for word     counts   what its numbers count
//! ```

mod counts;
mod numbers;
mod request;
mod shared;
mod unit;
mod words;

use std::sync::{Arc, OnceLock};

use self::request::Message;
use self::unit::{Unit, is_fault, is_whole_words};
use crate::guard::{Allowance, Licence, Periods, Permit};
use crate::text::{Tokenizer, markers};

/// Tokens of a message that are read, half of them at its beginning and half at its end: what is wanted stands before or behind material.
const MAX_MESSAGE: usize = 4096;
/// Prompt tokens that are looked through for the unit itself.
const MAX_PROMPT: usize = 128 * 1024;
/// Prompt tokens in which repetition is looked for.
const MAX_REPEATING: usize = 32 * 1024;
/// Longest unit that is looked for in words, and most of its rotations.
const MAX_UNIT: usize = 512;
const MAX_ROTATIONS: usize = 32;
/// What a unit that the prompt repeats multiplies.
const COPIED: u32 = 8;
/// Copies from which a prompt repeats something.
const LEAST_COPIES: u32 = 3;
/// Shortest unit of a prompt that may come back as another one, and how much longer or shorter that may be.
const LEAST_UNIT: u32 = 4;
const MOST_GROWTH: u32 = 4;
/// Distances that are remembered of a prompt.
const MAX_DISTANCES: usize = 64;

/// The prompt of one reply.
pub(super) struct PromptLicence {
    tokenizer: Arc<Tokenizer>,
    prompt: Arc<[u32]>,
    /// Made at the first question.
    wishes: OnceLock<Wishes>,
}

/// What a prompt says, as far as it matters here.
struct Wishes {
    messages: Vec<Message>,
    /// What the last one permits of a reply that is repetition from its start; what goes on with a plain text is no reply.
    from_start: Allowance,
    repeats: Vec<PromptRepeat>,
}

/// Something that a prompt repeats.
#[derive(Debug, Clone, Copy)]
struct PromptRepeat {
    period: u32,
    /// Copies that are equal.
    exact: u32,
    /// Copies that differ a little.
    varied: u32,
}

/// A turn of a prompt: who speaks, and what.
struct Turn<'a> {
    role: u32,
    name: &'a [u32],
    body: &'a [u32],
}

impl std::fmt::Debug for PromptLicence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PromptLicence({} tokens)", self.prompt.len())
    }
}

impl PromptLicence {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, prompt: Arc<[u32]>) -> Self {
        Self { tokenizer, prompt, wishes: OnceLock::new() }
    }

    fn wishes(&self) -> Wishes {
        let turns = self.turns();
        let id = |name| self.tokenizer.special_id(name);
        let (user, system, assistant) =
            (id(markers::IM_USER), id(markers::IM_SYSTEM), id(markers::IM_ASSISTANT));
        let message = |body: &[u32]| {
            let text = |tokens| self.tokenizer.decode(tokens, true);
            if body.len() <= MAX_MESSAGE {
                return Message::new(&text(body));
            }
            let (head, tail) = (&body[..MAX_MESSAGE / 2], &body[body.len() - MAX_MESSAGE / 2..]);
            Message::new(&format!("{}\n{}", text(head), text(tail)))
        };
        let mut messages = Vec::new();
        for turn in turns.iter().rev().filter(|turn| Some(turn.role) == user).take(2) {
            messages.push(message(turn.body));
            if !messages[0].refers_back() {
                break;
            }
        }
        let from_start = messages.first().map_or(Allowance::None, Message::whole_reply);
        // Tool results and declarations are no wishes, though they have the same marker.
        let is_system = |turn: &&Turn| {
            Some(turn.role) == system && self.tokenizer.decode(turn.name, true).trim() == "system"
        };
        messages.extend(turns.iter().rev().find(is_system).map(|turn| message(turn.body)));
        let mut material: Vec<u32> = Vec::new();
        if turns.is_empty() {
            messages.push(message(&self.prompt));
            material.extend(&self.prompt[self.prompt.len().saturating_sub(MAX_REPEATING)..]);
        } else {
            // What the model wrote itself is no wish.
            let others = turns.iter().filter(|turn| Some(turn.role) != assistant);
            others.for_each(|turn| material.extend(turn.body));
            material.drain(..material.len().saturating_sub(MAX_REPEATING));
        }
        Wishes { messages, from_start, repeats: repeats_of(&material) }
    }

    /// The turns of the prompt; none if it is plain text.
    fn turns(&self) -> Vec<Turn<'_>> {
        let id = |name| self.tokenizer.special_id(name);
        let roles = [markers::IM_USER, markers::IM_SYSTEM, markers::IM_ASSISTANT].map(id);
        let (middle, end) = (id(markers::IM_MIDDLE), id(markers::IM_END));
        let is_role = |token: &u32| roles.contains(&Some(*token));
        let begins = (0..self.prompt.len()).filter(|&at| is_role(&self.prompt[at]));
        begins
            .map(|at| {
                let turn = &self.prompt[at + 1..];
                let turn =
                    &turn[..turn.iter().position(|t| Some(*t) == end || is_role(t)).unwrap_or(turn.len())];
                let split = turn.iter().position(|t| Some(*t) == middle);
                let (name, body) = split.map_or((&turn[..0], turn), |at| (&turn[..at], &turn[at + 1..]));
                Turn { role: self.prompt[at], name, body }
            })
            .collect()
    }

    /// How often back to back the unit stands in the prompt.
    fn copies_in_prompt(&self, unit: &[u32]) -> u32 {
        let prompt = &self.prompt[self.prompt.len().saturating_sub(MAX_PROMPT)..];
        let period = unit.len();
        let (mut run, mut most, mut is_unit) = (0, 0, false);
        for at in period..prompt.len() {
            run = if prompt[at] == prompt[at - period] { run + 1 } else { 0 };
            if run == period {
                // Whatever its rotation, two copies hold the unit.
                is_unit = is_rotation(&prompt[at + 1 - period..=at], unit);
            }
            if run >= period && is_unit {
                most = most.max(run);
            }
        }
        if most > 0 { (most / period) as u32 + 1 } else { 0 }
    }

    /// The unit as text. One that is too long for the messages to name it whole is looked for in one rotation, for what it is made of.
    fn unit(&self, wishes: &Wishes, unit: &[u32]) -> Unit {
        let text = |turn: usize| self.tokenizer.decode(&[&unit[turn..], &unit[..turn]].concat(), false);
        let first = text(0);
        let room = wishes.messages.iter().map(Message::len).max().unwrap_or(0);
        let turns = if unit.len() <= MAX_UNIT { unit.len().min(MAX_ROTATIONS) } else { 1 };
        let mut rest = (1..turns).map(text);
        let mut rotations = vec![first];
        if rotations[0].len() <= room {
            rotations.extend(rest);
        } else if !is_whole_words(&rotations[0]) {
            rotations.extend(rest.find(|text| is_whole_words(text)));
        }
        Unit::new(&rotations)
    }

    /// What the messages permit of a unit.
    fn permit_by_words(&self, wishes: &Wishes, tokens: &[u32], permit: &mut Permit) {
        let unit = self.unit(wishes, tokens);
        let period = tokens.len() as u32;
        for message in &wishes.messages {
            message.exact(&unit).into_iter().for_each(|allowance| permit.raise_exact(allowance, period));
            message.varied(&unit).into_iter().for_each(|allowance| permit.raise_varied(allowance, period));
        }
        // A correction or a translation is about as long as what it is made of.
        let near = |repeat: &&PromptRepeat| {
            repeat.period <= period.saturating_mul(MOST_GROWTH)
                && period <= repeat.period.saturating_mul(MOST_GROWTH)
        };
        for repeat in wishes.repeats.iter().filter(near).filter(|_| unit.has_words) {
            // What differs in the prompt may be what is to be taken out.
            permit.raise_exact(a_quarter_more(repeat.exact.max(repeat.varied)), period);
            permit.raise_varied(a_quarter_more(repeat.varied), period);
        }
    }
}

impl Licence for PromptLicence {
    fn permit(&self, tokens: &[u32]) -> Permit {
        let wishes = self.wishes.get_or_init(|| self.wishes());
        let period = tokens.len() as u32;
        let mut permit = Permit::NONE;
        if !wishes.permit_nothing() {
            self.permit_by_words(wishes, tokens, &mut permit);
        }
        if wishes.from_start != Allowance::None && !is_fault(&self.tokenizer.decode(tokens, true)) {
            permit.from_start = wishes.from_start;
        }
        let copies = self.copies_in_prompt(tokens);
        if copies >= LEAST_COPIES {
            permit.raise_exact(Allowance::Times(COPIED), period);
            permit.raise_exact(a_quarter_more(copies), period);
        }
        permit
    }
}

impl Wishes {
    /// Whether none of them permits anything of any unit.
    fn permit_nothing(&self) -> bool {
        self.repeats.is_empty() && self.messages.iter().all(Message::permits_nothing)
    }
}

/// So many copies and a quarter more.
fn a_quarter_more(copies: u32) -> Allowance {
    Allowance::Copies(copies.saturating_add(copies.div_ceil(4)))
}

fn is_rotation(a: &[u32], b: &[u32]) -> bool {
    a.len() == b.len()
        && (0..a.len()).any(|turn| a[turn..] == b[..b.len() - turn] && a[..turn] == b[b.len() - turn..])
}

/// What a text repeats, by the guard's own measure.
fn repeats_of(tokens: &[u32]) -> Vec<PromptRepeat> {
    let mut found: Vec<PromptRepeat> = Vec::new();
    let mut periods = Periods::new(tokens.len());
    for end in 1..=tokens.len() {
        periods.push(&tokens[..end]);
        for (_, repeat) in periods.repeats().filter(|(_, r)| r.period >= LEAST_UNIT) {
            let (exact, varied) = (repeat.run / repeat.period + 1, repeat.score / repeat.period + 1);
            if exact.max(varied) < LEAST_COPIES {
                continue;
            }
            let known = found.iter().position(|known| known.period == repeat.period);
            if let Some(known) = known {
                let known = &mut found[known];
                (known.exact, known.varied) = (known.exact.max(exact), known.varied.max(varied));
            } else if found.len() < MAX_DISTANCES {
                found.push(PromptRepeat { period: repeat.period, exact, varied });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
